//! The client's end of a link: what is under way, and to whom it belongs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::frame::{self, AnswerFrame, Frame, FrameError, Hello, Refused, RequestFrame, Tag};
use super::limits::{LinkLimits, REQUESTS_CAPACITY};
use super::outgoing::Outgoing;
use super::returned::{Returned, Why};
use crate::front::{Answer, FieldLines, Ticket, TraceParent};

/// Buffers kept for requests to come, and the largest that is kept.
const SPARE_BUFFERS_MAX: usize = 256;
const SPARE_BUFFER_BYTES_MAX: usize = 4 * 1024;

/// Whoever uses links: told of answers on their way, and given back what a link could not bring to an answer.
pub trait LinkOwner: Send + Sync + 'static {
    /// An answer is about to be written to its client: fields may be added.
    fn answering(&self, delivery: &Delivery<'_>, answer: &mut Answer<'_>) {
        let _ = (delivery, answer);
    }

    /// So many requests that were sent on a link are under way there no more, whatever became of them. Told before their
    /// answers are written, or they are given back.
    fn ended(&self, requests: u32) {
        let _ = requests;
    }

    /// A request comes back without an answer, once. Dropped, its client is answered 502.
    ///
    /// Called on the link's own turn, with none of its locks held: it may be sent on another link at once.
    fn returned(&self, returned: Returned);
}

/// What is known of an answer when it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The number that the link was given by whoever connected it.
    pub link: u16,
    /// [`Outgoing::mark`] of its request.
    pub mark: u32,
    /// Its status.
    pub status: u16,
    /// Its fields, which are in the answer already.
    pub fields: FieldLines<'a>,
    /// When the last byte of the request's head had been read from its client.
    pub arrived: Instant,
    /// When the request was written to the link; of one that was sent again, the last time.
    pub sent: Instant,
    /// How long links that brought no answer had the request before.
    pub elsewhere: Duration,
    /// When the answer had been read from the link.
    pub read: Instant,
    /// The time, as of a few answers ago at most: a look at the clock for each would show nearly the same.
    pub now: Instant,
    /// How long its client took to send the request after its first byte.
    pub sending: Duration,
    /// The trace that the request belongs to.
    pub trace: Option<TraceParent>,
}

/// Why a link does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It has ended.
    Dead,
    /// The server is leaving.
    Leaving,
    /// As many requests are under way as the server takes, or as many bytes wait to be written as may.
    Full,
    /// The request is too large for a link; it can travel over plain HTTP.
    TooLarge,
    /// The client of the request has gone.
    Gone,
}

/// One link to a server, seen from whoever sends. Clones are the same link.
#[derive(Clone)]
pub struct LinkClient(pub(super) Arc<Shared>);

impl std::fmt::Debug for LinkClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkClient")
            .field("id", &self.0.id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// What the sender and the driver of a link share.
pub(super) struct Shared {
    pub(super) id: u16,
    pub(super) limits: LinkLimits,
    hello: Hello,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Frames that wait for the driver, and the tags of the requests among them.
    pub(super) out: Vec<u8>,
    unwritten: Vec<Tag>,
    /// Requests that have ended and of which the owner was not told.
    ended: u32,
    pub(super) places: Vec<Place>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    driver: Option<Waker>,
    /// Before this, no request under way is overdue.
    pub(super) next_due: Option<Instant>,
    /// The driver has been woken and has not been here since.
    woken: bool,
    leaving: bool,
    dead: bool,
}

/// A place of tags.
pub(super) struct Place {
    pub(super) serial: u32,
    pub(super) under_way: Option<UnderWay>,
}

pub(super) struct UnderWay {
    /// `None` once nobody waits: the server has been told, and its last word on this tag is awaited.
    pub(super) ticket: Option<Ticket>,
    /// The request's frame, for another try.
    frame: Vec<u8>,
    course: Course,
    sent: Instant,
    /// When it is overdue.
    pub(super) due: Instant,
}

/// What of a request goes with it from link to link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    pub(super) mark: u32,
    /// Links that it was sent on.
    pub(super) attempts: u8,
    /// Of these, how many may have had it carried out.
    pub(super) tried: u8,
    /// How long links that brought no answer had it. In microseconds, as the next: this travels by value, and shall be
    /// small.
    pub(super) elsewhere_us: u32,
    /// How long its client took to send it.
    pub(super) sending_us: u32,
    pub(super) trace: Option<TraceParent>,
}

/// An answer that has its client.
pub(super) struct Matched {
    pub(super) ticket: Ticket,
    pub(super) course: Course,
    pub(super) sent: Instant,
}

impl Shared {
    pub(super) fn new(id: u16, limits: LinkLimits, hello: Hello) -> Arc<Shared> {
        Arc::new(Shared {
            id,
            limits,
            hello,
            state: Mutex::default(),
        })
    }

    /// A panic while it was held can only have been one of running out of memory; whole values are behind it.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, tag: Tag) -> u64 {
        u64::from(self.id) << 48 | u64::from(tag.place) << 32 | u64::from(tag.serial)
    }
}

impl LinkClient {
    /// The link that a note belongs to: what [`Backend::gone`](crate::front::Backend::gone) is told begins with the number
    /// that its link was given.
    #[must_use]
    pub fn id_of_note(note: u64) -> u16 {
        u16::try_from(note >> 48).unwrap_or(u16::MAX)
    }

    /// The number that it was given.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.0.id
    }

    /// Requests under way, with those whose client has gone and of which the server has not let go yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let state = self.0.lock();
        state.places.len() - state.free.len()
    }

    /// Whether requests can be sent at all.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let state = self.0.lock();
        !state.dead && !state.leaving
    }

    /// Sends a request. Its answer goes to `ticket`; without one, it comes back through [`LinkOwner::returned`].
    ///
    /// Nothing is written to the socket yet: the driver does that once a turn of the event loop.
    ///
    /// # Errors
    /// The ticket, and why the link does not take the request.
    pub fn send(&self, ticket: Ticket, request: &Outgoing<'_>) -> Result<(), (Ticket, Rejected)> {
        let course = Course {
            mark: request.mark,
            attempts: 1,
            tried: 0,
            elsewhere_us: 0,
            sending_us: micros(request.head.sending()),
            trace: request.trace,
        };
        // Read in this very turn: another look at the clock would show the same but for what sending itself takes.
        let due = ticket.arrived() + Duration::from_millis(request.deadline_ms.into());
        self.submit(ticket, (course, due), request.bytes_max(), |out, tag| {
            request.write(out, tag);
        })
    }

    /// Sends a request that another link gave back.
    ///
    /// # Errors
    /// The request, and why the link does not take it.
    #[expect(
        clippy::result_large_err,
        reason = "a few bytes over the bound, on the way of what a dying link left"
    )]
    pub fn resend(&self, returned: Returned) -> Result<(), (Returned, Rejected)> {
        let Returned {
            ticket,
            frame,
            why,
            course,
        } = returned;
        let again = Course {
            attempts: course.attempts.saturating_add(1),
            ..course
        };
        let deadline_ms = kept(&frame).map_or(0, |request| request.deadline_ms);
        let due = Instant::now() + Duration::from_millis(deadline_ms.into());
        let sent = self.submit(ticket, (again, due), frame.len(), |out, tag| {
            let length = u32::try_from(frame.len()).expect("a frame that was sent before");
            out.extend_from_slice(&length.to_le_bytes());
            let at = out.len();
            out.extend_from_slice(&frame);
            frame::set_request_tag(&mut out[at..], tag);
        });
        sent.map_err(|(ticket, rejected)| {
            let returned = Returned {
                ticket,
                frame,
                why,
                course,
            };
            (returned, rejected)
        })
    }

    fn submit(
        &self,
        mut ticket: Ticket,
        (course, due): (Course, Instant),
        bytes_max: usize,
        write: impl FnOnce(&mut Vec<u8>, Tag),
    ) -> Result<(), (Ticket, Rejected)> {
        let Shared { limits, hello, .. } = &*self.0;
        if bytes_max > hello.request_bytes_max.min(limits.request_bytes_max) as usize {
            return Err((ticket, Rejected::TooLarge));
        }
        let mut guard = self.0.lock();
        let state = &mut *guard;
        let requests_max = hello
            .requests_max
            .min(limits.requests_max)
            .min(REQUESTS_CAPACITY);
        let in_flight = state.places.len() - state.free.len();
        let rejected = if state.dead {
            Some(Rejected::Dead)
        } else if state.leaving {
            Some(Rejected::Leaving)
        } else if in_flight >= requests_max as usize
            || state.out.len() >= limits.output_bytes_max as usize
        {
            Some(Rejected::Full)
        } else {
            None
        };
        if let Some(rejected) = rejected {
            return Err((ticket, rejected));
        }
        let place = state.free.pop().unwrap_or_else(|| {
            state.places.push(Place {
                serial: 0,
                under_way: None,
            });
            u32::try_from(state.places.len() - 1).expect("fewer places than requests_max")
        });
        let slot = &mut state.places[place as usize];
        let tag = Tag {
            place,
            serial: slot.serial.wrapping_add(1),
        };
        if !ticket.set_note(Some(self.0.note(tag))) {
            state.free.push(place);
            return Err((ticket, Rejected::Gone));
        }
        let at = state.out.len();
        let sent = ticket.arrived();
        write(&mut state.out, tag);
        let mut frame = state.spare.pop().unwrap_or_default();
        frame.extend_from_slice(&state.out[at + frame::LENGTH_BYTES..]);
        slot.serial = tag.serial;
        slot.under_way = Some(UnderWay {
            ticket: Some(ticket),
            frame,
            course,
            // Until it is written.
            sent,
            due,
        });
        state.next_due = Some(state.next_due.map_or(due, |next| next.min(due)));
        state.unwritten.push(tag);
        wake(guard);
        Ok(())
    }

    /// The client of a request has gone: the server is told. `note` is what [`Backend::gone`](crate::front::Backend::gone)
    /// was told. Nothing happens to a request that still waits.
    pub fn cancel(&self, note: u64) {
        let mut state = self.0.lock();
        let place = u32::try_from(note >> 32 & 0xffff).unwrap_or(u32::MAX);
        let serial = u32::try_from(note & 0xffff_ffff).unwrap_or(u32::MAX);
        let tag = Tag { place, serial };
        let Some(under_way) = state.under_way(tag) else {
            return;
        };
        if under_way.ticket.as_ref().is_none_or(Ticket::is_waiting) {
            return;
        }
        under_way.ticket = None;
        frame::push(&mut state.out, &Frame::Cancel(tag));
        wake(state);
    }
}

/// Has the driver write what waits, once for all that comes before its turn.
fn wake(mut state: MutexGuard<'_, State>) {
    if state.woken {
        return;
    }
    state.woken = true;
    let driver = state.driver.clone();
    drop(state);
    if let Some(driver) = driver {
        driver.wake();
    }
}

impl State {
    fn under_way(&mut self, tag: Tag) -> Option<&mut UnderWay> {
        let place = self.places.get_mut(tag.place as usize)?;
        place
            .under_way
            .as_mut()
            .filter(|_| place.serial == tag.serial)
    }

    /// Ends a request: its place is free again.
    fn finish(&mut self, tag: Tag) -> Option<UnderWay> {
        self.under_way(tag)?;
        let under_way = self.places[tag.place as usize].under_way.take();
        self.free.push(tag.place);
        self.ended += 1;
        under_way
    }

    /// The request that an answer is for. `Ok(None)`: its client has gone.
    ///
    /// # Errors
    /// There is no such request under way.
    pub(super) fn answered(
        &mut self,
        answer: &AnswerFrame<'_>,
    ) -> Result<Option<Matched>, FrameError> {
        let mut under_way = self.finish(answer.tag).ok_or(FrameError::NotUnderWay)?;
        if (1..=SPARE_BUFFER_BYTES_MAX).contains(&under_way.frame.capacity())
            && self.spare.len() < SPARE_BUFFERS_MAX
        {
            under_way.frame.clear();
            self.spare.push(under_way.frame);
        }
        Ok(under_way.ticket.map(|ticket| Matched {
            ticket,
            course: under_way.course,
            sent: under_way.sent,
        }))
    }

    /// The server has let go of a request that was cancelled.
    ///
    /// # Errors
    /// It was not.
    pub(super) fn cancelled(&mut self, tag: Tag) -> Result<(), FrameError> {
        match self.under_way(tag) {
            Some(UnderWay { ticket: None, .. }) => {
                self.finish(tag);
                Ok(())
            }
            _ => Err(FrameError::NotUnderWay),
        }
    }

    /// The server does not answer a request. `Ok(None)`: its client has gone.
    ///
    /// # Errors
    /// There is no such request under way.
    pub(super) fn refused(
        &mut self,
        why: Refused,
        tag: Tag,
    ) -> Result<Option<Returned>, FrameError> {
        let mut under_way = self.finish(tag).ok_or(FrameError::NotUnderWay)?;
        Ok(under_way.give_back(Why::Refused(why)))
    }

    /// The server takes no more requests.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Whether the server is leaving and owes nothing more.
    pub(super) fn has_left(&self) -> bool {
        self.leaving && self.out.is_empty() && self.places.len() == self.free.len()
    }

    /// Ends the link: all that is under way, to be handed back. Empty the second time.
    pub(super) fn die(&mut self) -> Vec<Returned> {
        self.dead = true;
        self.out = Vec::new();
        self.unwritten = Vec::new();
        self.spare = Vec::new();
        self.free = Vec::new();
        let places = std::mem::take(&mut self.places);
        let under_way = places.into_iter().filter_map(|place| place.under_way);
        under_way
            .inspect(|_| self.ended += 1)
            .filter_map(|mut one| one.give_back(Why::LinkDied))
            .collect()
    }

    /// Requests that have ended since this was asked last.
    pub(super) fn take_ended(&mut self) -> u32 {
        std::mem::take(&mut self.ended)
    }

    /// Swaps what waits to be written for an empty buffer.
    pub(super) fn take_output(&mut self, written: &mut Vec<u8>) {
        debug_assert!(written.is_empty());
        std::mem::swap(&mut self.out, written);
        if self.unwritten.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut unwritten = std::mem::take(&mut self.unwritten);
        for tag in unwritten.drain(..) {
            if let Some(under_way) = self.under_way(tag) {
                under_way.sent = now;
            }
        }
        self.unwritten = unwritten;
    }

    /// Called by the driver at the start of its turn. Gives when it is to look for what is overdue.
    pub(super) fn visit(&mut self, driver: &Waker) -> Option<Instant> {
        self.woken = false;
        if self
            .driver
            .as_ref()
            .is_none_or(|known| !known.will_wake(driver))
        {
            self.driver = Some(driver.clone());
        }
        self.next_due
    }
}

impl UnderWay {
    /// Takes the request from its link. `None` if nobody waits for it.
    pub(super) fn give_back(&mut self, why: Why) -> Option<Returned> {
        let mut ticket = self.ticket.take()?;
        let was_tried = why != Why::Refused(Refused::Leaving);
        // Whoever has it next says what its note is.
        ticket.set_note(None).then_some(Returned {
            ticket,
            frame: std::mem::take(&mut self.frame),
            why,
            course: Course {
                elsewhere_us: self
                    .course
                    .elsewhere_us
                    .saturating_add(micros(self.sent.elapsed())),
                tried: self.course.tried.saturating_add(was_tried.into()),
                ..self.course
            },
        })
    }
}

/// Microseconds, up to an hour and more.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// The address that a request is from, as a link can carry it: without the scope of a link-local one.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// A request frame as it was kept.
pub(super) fn kept(frame: &[u8]) -> Option<RequestFrame<'_>> {
    match frame::parse(frame) {
        Ok(Frame::Request(request)) => Some(request),
        _ => None,
    }
}
