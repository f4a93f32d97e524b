//! Requests that a backend has taken and will answer later, and the tickets that answer them.
//!
//! A poll that waits for an upstream needs no future of its own: the connection keeps a place here, the backend a ticket
//! that names it. Places are used again; the number in a ticket is not, so a ticket that outlived its request (the client
//! went away, the answer took too long) opens nothing, whoever has the place by then.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::answer::{Answer, Persistence, Shape};
use super::pen::Pen;
use super::refusal::{OwnAnswer, Refusal};
use super::seats::{Seats, lock};
use super::tcp::Tcp;
use super::{Phase, unix_s};

/// Buffers kept for answers to come. Past it they are freed.
const SPARE_BUFFERS_MAX: usize = 256;

/// Buffers above this size are freed, in bytes.
const SPARE_BUFFER_BYTES_MAX: usize = 4 * 1024;

/// What a front shares with the tickets of its requests.
pub(super) struct Desk {
    pub(super) seats: Seats,
    pub(super) phase: AtomicU8,
    pub(super) unix_s: AtomicU64,
    /// [`Backend::sign`](super::Backend::sign).
    pub(super) sign: Sign,
    /// [`Backend::refused`](super::Backend::refused).
    pub(super) count: CountOwn,
    idle_timeout_ms: u32,
    places: Mutex<Places>,
}

/// Adds what every answer carries to one of a request that took so long.
pub(super) type Sign = Box<dyn Fn(Duration, &mut Answer<'_>) + Send + Sync>;

/// Counts an answer of the front's own.
pub(super) type CountOwn = Box<dyn Fn(&OwnAnswer) + Send + Sync>;

/// One request that waits for its answer, each of another connection: there are never more than connections.
struct Place {
    /// The ticket that may answer. 0: none.
    serial: u64,
    seat: u32,
    note: Option<u64>,
    shape: TakenShape,
    outcome: Outcome,
    buffer: Vec<u8>,
    /// Where the answer can be written at once, while the connection has nothing else to do than to wait for it.
    direct: Option<Tcp>,
}

/// What of a request's [`Shape`] outlives the turn that took it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenShape {
    pub(super) persistence: Persistence,
    pub(super) head_only: bool,
    pub(super) arrived: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Waiting,
    /// The buffer has the answer; the connection closes behind it or not.
    Answered {
        closes: bool,
    },
    /// The answer could not be sent.
    Broken,
    /// The buffer has a request, with a head of so many bytes, that goes to `call` after all.
    Called {
        head_bytes: usize,
        tried: Tried,
    },
}

/// What of an answer was written straight to its client.
enum Direct {
    /// All of it, on the connection of this seat.
    All(u32),
    /// So many bytes.
    Part(usize),
}

#[derive(Default)]
struct Places {
    all: Vec<Place>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    serials: u64,
}

/// What has become of a request that was taken.
pub(super) enum Collected {
    Waiting,
    /// The answer is in the output.
    Answered {
        closes: bool,
    },
    Broken,
    /// It goes to `call`: the bytes of its head and body, and how many are the head's.
    Called {
        shape: TakenShape,
        request: Vec<u8>,
        head_bytes: usize,
        tried: Tried,
    },
}

/// How often a request that a ticket handed to [`Backend::call`](super::Backend::call) may have been carried out before;
/// among its extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried(pub u8);

impl Desk {
    pub(super) fn new(
        seats: Seats,
        (sign, count): (Sign, CountOwn),
        idle_timeout_ms: u32,
    ) -> Arc<Desk> {
        Arc::new(Desk {
            seats,
            sign,
            count,
            idle_timeout_ms,
            phase: AtomicU8::new(Phase::Serving as u8),
            unix_s: AtomicU64::new(unix_s()),
            places: Mutex::default(),
        })
    }

    pub(super) fn is_closing(&self) -> bool {
        self.phase.load(Relaxed) >= Phase::Notice as u8
    }

    pub(super) fn draw(self: &Arc<Self>, seat: u32, shape: TakenShape) -> Ticket {
        let mut places = lock(&self.places);
        places.serials += 1;
        let serial = places.serials;
        let fresh = Place {
            serial,
            seat,
            note: None,
            shape,
            outcome: Outcome::Waiting,
            buffer: Vec::new(),
            direct: None,
        };
        let place = match places.free.pop() {
            Some(place) => {
                places.all[place as usize] = fresh;
                place
            }
            None => {
                places.all.push(fresh);
                u32::try_from(places.all.len() - 1)
                    .expect("fewer places than seats, which u32 counts")
            }
        };
        drop(places);
        Ticket {
            desk: self.clone(),
            place,
            serial,
            shape,
        }
    }

    /// Lets the answer of a request that waits be written straight to `socket`: its connection has nothing else to do. The
    /// last act of the connection's turn; the next begins with [`Desk::resume`].
    pub(super) fn permit(&self, place: u32, socket: Tcp) {
        let mut places = lock(&self.places);
        let slot = &mut places.all[place as usize];
        if slot.outcome == Outcome::Waiting {
            slot.direct = Some(socket);
        }
    }

    /// Takes the permission back. True: the answer has been written meanwhile, all of it, and the place is another's.
    pub(super) fn resume(&self, place: u32, seat: u32) -> bool {
        let mut places = lock(&self.places);
        if self.seats.take_written(seat) {
            return true;
        }
        places.all[place as usize].direct = None;
        false
    }

    /// Takes what a request has been answered with, behind what is in `out`, and gives its place back unless it still
    /// waits.
    pub(super) fn collect(&self, place: u32, out: &mut Vec<u8>) -> Collected {
        let mut places = lock(&self.places);
        let slot = &mut places.all[place as usize];
        let collected = match slot.outcome {
            Outcome::Waiting => return Collected::Waiting,
            Outcome::Answered { closes } => {
                out.extend_from_slice(&slot.buffer);
                Collected::Answered { closes }
            }
            Outcome::Broken => Collected::Broken,
            Outcome::Called { head_bytes, tried } => Collected::Called {
                shape: slot.shape,
                request: std::mem::take(&mut slot.buffer),
                head_bytes,
                tried,
            },
        };
        places.give_back(place);
        collected
    }

    /// Gives a place back whose answer nobody will collect. The note of its ticket, if that has not answered.
    pub(super) fn abandon(&self, place: u32) -> Option<u64> {
        let mut places = lock(&self.places);
        let slot = &places.all[place as usize];
        let note = slot.note.filter(|_| slot.outcome == Outcome::Waiting);
        places.give_back(place);
        note
    }

    /// Whether the request of a place has no answer yet.
    pub(super) fn waits(&self, place: u32) -> bool {
        lock(&self.places).all[place as usize].outcome == Outcome::Waiting
    }

    /// HEAD, of a request that waits.
    pub(super) fn is_head_only(&self, place: u32) -> bool {
        lock(&self.places).all[place as usize].shape.head_only
    }
}

impl Places {
    fn give_back(&mut self, place: u32) {
        let slot = &mut self.all[place as usize];
        slot.serial = 0;
        slot.note = None;
        slot.direct = None;
        let buffer = std::mem::take(&mut slot.buffer);
        self.keep(buffer);
        self.free.push(place);
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        if (1..=SPARE_BUFFER_BYTES_MAX).contains(&buffer.capacity())
            && self.spare.len() < SPARE_BUFFERS_MAX
        {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// The place that a ticket opens, if its request still waits.
    fn opened(&mut self, place: u32, serial: u64) -> Option<&mut Place> {
        let slot = self.all.get_mut(place as usize)?;
        (slot.serial == serial && slot.outcome == Outcome::Waiting).then_some(slot)
    }

    /// Ends the wait of a ticket's request; the seat to wake.
    fn settle(&mut self, ticket: &Ticket, outcome: Outcome, parts: [&[u8]; 2]) -> Option<u32> {
        self.opened(ticket.place, ticket.serial)?;
        let mut buffer = self.spare.pop().unwrap_or_default();
        for part in parts {
            buffer.extend_from_slice(part);
        }
        let slot = self.opened(ticket.place, ticket.serial)?;
        slot.outcome = outcome;
        slot.buffer = buffer;
        Some(slot.seat)
    }

    /// Writes an answer straight to its client, where that is permitted: without waking its connection, which costs a turn
    /// of the event loop. If all of it leaves, its place is free.
    fn write_direct(&mut self, ticket: &Ticket, outcome: Outcome, answer: &[u8]) -> Direct {
        let slot = self.opened(ticket.place, ticket.serial);
        let permitted = slot.and_then(|slot| Some((slot.seat, slot.direct.take()?)));
        let Some((seat, socket)) =
            permitted.filter(|_| outcome == Outcome::Answered { closes: false })
        else {
            return Direct::Part(0);
        };
        // What is wrong with the socket, its connection finds out.
        let written = socket.try_write(answer).unwrap_or(0);
        if written < answer.len() {
            return Direct::Part(written);
        }
        self.give_back(ticket.place);
        Direct::All(seat)
    }
}

/// The right to answer one request, once. Dropped without an answer, it answers 502.
///
/// It may outlive its request: when the client has gone or was told that the answer took too long, answering does nothing.
/// It is meant to be used on the front's event loop, and works on any thread.
#[must_use = "a ticket that is dropped answers 502"]
pub struct Ticket {
    pub(super) desk: Arc<Desk>,
    pub(super) place: u32,
    pub(super) serial: u64,
    shape: TakenShape,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("place", &self.place)
            .field("serial", &self.serial)
            .finish()
    }
}

impl Ticket {
    /// Whether its request still waits for an answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        lock(&self.desk.places)
            .opened(self.place, self.serial)
            .is_some()
    }

    /// When the last byte of its request's head had been read.
    #[must_use]
    pub fn arrived(&self) -> Instant {
        self.shape.arrived
    }

    /// What [`Backend::gone`](super::Backend::gone) is told if the client goes away while this request waits. `None`, as
    /// at first: it is not told.
    /// Gives whether it still waits.
    pub fn set_note(&mut self, note: Option<u64>) -> bool {
        let mut places = lock(&self.desk.places);
        match places.opened(self.place, self.serial) {
            Some(slot) => {
                slot.note = note;
                true
            }
            None => false,
        }
    }

    /// Answers. What `write` writes is held to the same rules as in [`Backend::answer_now`](super::Backend::answer_now):
    /// broken, it becomes 500.
    pub fn answer(mut self, write: impl FnOnce(&mut Answer<'_>)) {
        self.write(write);
    }

    /// Hands the request to [`Backend::call`](super::Backend::call) after all, as `head` (from the request line to the
    /// empty line, as it is to be there) and `body`, which is whole. A head that cannot be read is answered 500. `tried`
    /// goes along.
    pub fn call(mut self, head: &[u8], body: &[u8], tried: Tried) {
        let outcome = Outcome::Called {
            head_bytes: head.len(),
            tried,
        };
        self.settle(outcome, [head, body]);
    }

    fn write(&mut self, write: impl FnOnce(&mut Answer<'_>)) {
        let shape = self.shape;
        let closes = self.desk.is_closing() || shape.persistence == Persistence::Close;
        let mut pen = Pen::take(self.desk.unix_s.load(Relaxed));
        let shape = Shape {
            persistence: if closes {
                Persistence::Close
            } else {
                shape.persistence
            },
            head_only: shape.head_only,
            date: &pen.date,
        };
        let mut answer = Answer::new(&mut pen.out, shape);
        write(&mut answer);
        let outcome = match answer.finish() {
            Ok(()) => Outcome::Answered { closes },
            Err(_) => Outcome::Broken,
        };
        self.settle(outcome, [&pen.out, &[]]);
        pen.give_back();
    }

    fn settle(&mut self, outcome: Outcome, parts: [&[u8]; 2]) {
        let seat = {
            let mut places = lock(&self.desk.places);
            match places.write_direct(self, outcome, parts[0]) {
                Direct::All(seat) => {
                    // Before the lock is open: whoever has the seat asks under it.
                    self.desk.seats.set_written(seat);
                    // The connection is idle from now on, though it does not know.
                    self.desk.seats.arm(seat, self.desk.idle_timeout_ms);
                    None
                }
                // Under the same lock: nobody else may write to that client now.
                Direct::Part(written) => {
                    places.settle(self, outcome, [&parts[0][written..], parts[1]])
                }
            }
        };
        self.serial = 0;
        if let Some(seat) = seat {
            self.desk.seats.wake(seat);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.serial != 0 {
            let desk = self.desk.clone();
            let took = self.shape.arrived.elapsed();
            let why = Refusal::NoAnswer;
            // Of a panic, the connection tells.
            if self.is_waiting() && !std::thread::panicking() {
                (desk.count)(&OwnAnswer {
                    why,
                    took,
                    was_called: false,
                });
            }
            self.write(|answer| {
                answer
                    .status(why.describe().0)
                    .content_type("application/problem+json")
                    .field("cache-control", "no-store");
                (desk.sign)(took, answer);
                answer.body(why.problem_json().as_bytes());
            });
        }
    }
}
