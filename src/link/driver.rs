//! The client's end of a link: its socket.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Interval, MissedTickBehavior, Sleep};

use super::client::{Delivery, LinkOwner, Matched, Shared};
use super::frame::{self, Frame, FrameError};
use super::input::Input;
use super::returned::Returned;
use crate::front::FieldLines;

/// Reads of a link before the rest of the event loop has its turn.
const READS_PER_TURN: u32 = 4;

/// Answers that are written before the clock is looked at again: some 10 µs.
const ANSWERS_PER_CLOCK_READ: usize = 16;

/// How a link ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkEnd {
    /// The server had said that it is leaving, and everything was answered.
    #[error("the server left")]
    Left,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The server said something that it must not.
    #[error(transparent)]
    Protocol(#[from] FrameError),
    /// Nothing came from the server for too long.
    #[error("the server has fallen silent")]
    Silent,
    /// The server reads nothing any more.
    #[error("the server has stopped reading")]
    Stuck,
}

/// Moves the bytes of a link; a future that ends with it. To be spawned on the front's event loop.
///
/// When it ends, or is dropped, every request under way has been given back to its owner.
#[must_use = "a link without its driver does nothing"]
pub struct LinkDriver<S> {
    stream: S,
    shared: Arc<Shared>,
    owner: Arc<dyn LinkOwner>,
    input: Input,
    /// Frames on their way out, from `written` on.
    output: Vec<u8>,
    written: usize,
    looks: Interval,
    /// Fires when a request may be overdue: at `due`, if there is one.
    due_timer: Pin<Box<Sleep>>,
    due: Option<Instant>,
    silent_looks: u32,
    stuck_looks: u32,
    /// What came with the server's hello has not been looked at.
    fresh: bool,
    /// Answers were delivered in this turn.
    delivered: bool,
    /// What waits to be written was held back at the last turn.
    held_back: bool,
    /// Of the turn's answers; empty between turns.
    batch: Vec<Pending>,
}

/// An answer of this turn, and where it stands in the input.
struct Pending {
    matched: Matched,
    status: u16,
    fields: std::ops::Range<usize>,
    body: std::ops::Range<usize>,
    length: Option<u64>,
}

impl<S> LinkDriver<S> {
    fn tell_ended(&self, ended: u32) {
        if ended > 0 {
            self.owner.ended(ended);
        }
    }

    pub(super) fn new(
        stream: S,
        shared: Arc<Shared>,
        owner: Arc<dyn LinkOwner>,
        input: Input,
    ) -> Self {
        let period = Duration::from_millis(shared.limits.ping_interval_ms.into());
        let mut looks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        LinkDriver {
            stream,
            shared,
            owner,
            input,
            output: Vec::new(),
            written: 0,
            looks,
            due_timer: Box::pin(tokio::time::sleep(period)),
            due: None,
            silent_looks: 0,
            stuck_looks: 0,
            fresh: true,
            delivered: false,
            held_back: false,
            batch: Vec::new(),
        }
    }

    /// Gives back what is under way. Nothing the second time.
    fn give_back(&mut self) {
        let (ended, returned) = {
            let mut state = self.shared.lock();
            let returned = state.die();
            (state.take_ended(), returned)
        };
        self.tell_ended(ended);
        for request in returned {
            self.owner.returned(request);
        }
    }
}

impl<S> Drop for LinkDriver<S> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for LinkDriver<S> {
    type Output = LinkEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        let this = self.get_mut();
        let due = this.shared.lock().visit(cx.waker());
        this.look_for_overdue(due, cx);
        match this.turn(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(end) => {
                this.give_back();
                Poll::Ready(end)
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkDriver<S> {
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        while self.looks.poll_tick(cx).is_ready() {
            if let Some(end) = self.look() {
                return Poll::Ready(end);
            }
        }
        // The end of the input is acted on after what was read before it has been delivered.
        if let Some(end) = self.read(cx) {
            let has_left = matches!(end, LinkEnd::Closed) && self.shared.lock().has_left();
            return Poll::Ready(if has_left { LinkEnd::Left } else { end });
        }
        if self.holds_back() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Poll::Ready(Err(error)) = self.write(cx) {
            return Poll::Ready(LinkEnd::Io(error));
        }
        if self.output.is_empty() && self.shared.lock().has_left() {
            return Poll::Ready(LinkEnd::Left);
        }
        Poll::Pending
    }

    /// Gives back what is overdue, if it is time to look. The timer is touched only when that time changes.
    fn look_for_overdue(&mut self, mut due: Option<Instant>, cx: &mut Context<'_>) {
        loop {
            if due != self.due {
                self.due = due;
                let Some(due) = due else { return };
                self.due_timer.as_mut().reset(due.into());
                if self.due_timer.as_mut().poll(cx).is_pending() {
                    return;
                }
            } else if due.is_none() || !self.due_timer.is_elapsed() {
                return;
            }
            let overdue = {
                let mut state = self.shared.lock();
                let overdue = state.take_overdue(Instant::now());
                due = state.next_due;
                overdue
            };
            // Whatever comes next, the timer is set anew for it.
            self.due = None;
            for request in overdue {
                self.owner.returned(request);
            }
        }
    }

    /// Whether what waits to be written shall wait for one more turn, because answers were just delivered: the connections
    /// that have something to say say it first, and it travels along. Not twice in a row.
    fn holds_back(&mut self) -> bool {
        let delivered = std::mem::take(&mut self.delivered);
        self.held_back = delivered && !self.held_back && self.output.is_empty();
        self.held_back
    }

    /// Reads until there is no more, or the others shall have their turn: a read that did not fill the buffer was the last,
    /// and the next only asks to be woken.
    fn read(&mut self, cx: &mut Context<'_>) -> Option<LinkEnd> {
        if std::mem::take(&mut self.fresh)
            && let Err(error) = self.take_frames()
        {
            return Some(LinkEnd::Protocol(error));
        }
        for _ in 0..READS_PER_TURN {
            match self.input.read(&mut self.stream, cx) {
                Poll::Pending => return None,
                Poll::Ready(Ok(0)) => return Some(LinkEnd::Closed),
                Poll::Ready(Err(error)) => return Some(LinkEnd::Io(error)),
                Poll::Ready(Ok(_)) => {}
            }
            self.silent_looks = 0;
            if let Err(error) = self.take_frames() {
                return Some(LinkEnd::Protocol(error));
            }
        }
        cx.waker().wake_by_ref();
        None
    }

    /// A look at whether the server is alive.
    fn look(&mut self) -> Option<LinkEnd> {
        let limits = &self.shared.limits;
        if self.silent_looks >= limits.silent_looks_max {
            return Some(LinkEnd::Silent);
        }
        if !self.output.is_empty() {
            self.stuck_looks += 1;
            if self.stuck_looks >= limits.stuck_looks_max {
                return Some(LinkEnd::Stuck);
            }
        }
        if self.silent_looks > 0 && self.output.is_empty() {
            frame::push(&mut self.output, &Frame::Ping);
        }
        self.silent_looks += 1;
        None
    }

    /// Acts on the frames that have arrived, and delivers their answers.
    fn take_frames(&mut self) -> Result<(), FrameError> {
        let result = self.match_frames();
        let read = Instant::now();
        let mut now = read;
        let input = self.input.all();
        self.delivered |= !self.batch.is_empty();
        for (nth, pending) in self.batch.drain(..).enumerate() {
            if nth % ANSWERS_PER_CLOCK_READ == ANSWERS_PER_CLOCK_READ - 1 {
                now = Instant::now();
            }
            let Pending {
                matched,
                status,
                fields,
                body,
                length,
            } = pending;
            let Some(lines) = FieldLines::check(&input[fields]) else {
                // Its client is told that there is no answer.
                tracing::warn!(
                    link = self.shared.id,
                    "an answer with fields that cannot be sent"
                );
                continue;
            };
            let delivery = Delivery {
                link: self.shared.id,
                mark: matched.course.mark,
                status,
                fields: lines,
                arrived: matched.ticket.arrived(),
                sent: matched.sent,
                elsewhere: Duration::from_micros(matched.course.elsewhere_us.into()),
                read,
                now,
                sending: Duration::from_micros(matched.course.sending_us.into()),
                trace: matched.course.trace,
            };
            let owner = &self.owner;
            matched.ticket.answer(|answer| {
                answer.status(status).lines(lines);
                owner.answering(&delivery, answer);
                match length {
                    Some(length) => answer.length_only(length),
                    None => answer.body(&input[body]),
                }
            });
        }
        self.input.compact();
        result
    }

    /// Acts on the frames that have arrived; answers that have a client go to the batch.
    fn match_frames(&mut self) -> Result<(), FrameError> {
        let frame_bytes_max = self.shared.limits.answer_frame_bytes_max();
        let mut returned: Vec<Returned> = Vec::new();
        // One lock for the whole read. Nothing that could need it is called: what comes back is handed on below.
        let mut state = self.shared.lock();
        let result = loop {
            let (frame, start) = match self.input.next(frame_bytes_max) {
                Ok(Some(found)) => found,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let step = match frame::parse(frame) {
                Ok(Frame::Answer(answer)) => state.answered(&answer).map(|matched| {
                    let fields_at = start + frame::ANSWER_HEAD_BYTES - frame::LENGTH_BYTES;
                    let body_at = fields_at + answer.fields.len();
                    if let Some(matched) = matched {
                        self.batch.push(Pending {
                            matched,
                            status: answer.status,
                            fields: fields_at..body_at,
                            body: body_at..body_at + answer.body.len(),
                            length: answer.length,
                        });
                    }
                }),
                Ok(Frame::Cancelled(tag)) => state.cancelled(tag),
                Ok(Frame::Refused(why, tag)) => state
                    .refused(why, tag)
                    .map(|request| returned.extend(request)),
                Ok(Frame::Leaving) => {
                    state.leave();
                    Ok(())
                }
                Ok(Frame::Pong) => Ok(()),
                Ok(Frame::Ping) => {
                    // Who pings and does not read gets no answer.
                    if self.output.is_empty() {
                        frame::push(&mut self.output, &Frame::Pong);
                    }
                    Ok(())
                }
                Ok(Frame::Hello(_) | Frame::Request(_) | Frame::Cancel(_)) => {
                    Err(FrameError::OutOfPlace)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = step {
                break Err(error);
            }
        };
        let ended = state.take_ended();
        drop(state);
        self.tell_ended(ended);
        for request in returned {
            self.owner.returned(request);
        }
        result
    }

    /// Writes what waits: one write, unless the socket takes less than all.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.output.is_empty() {
                self.shared.lock().take_output(&mut self.output);
                if self.output.is_empty() {
                    return Pin::new(&mut self.stream).poll_flush(cx);
                }
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.output[self.written..]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    self.stuck_looks = 0;
                    self.written += written;
                    if self.written == self.output.len() {
                        self.output.clear();
                        self.output
                            .shrink_to(self.shared.limits.read_bytes as usize);
                        self.written = 0;
                    }
                }
            }
        }
    }
}
