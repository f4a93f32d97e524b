//! Between requests: reading a head, and a small body where that is wanted whole; answering, or handing it on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{Answer, Persistence, Shape};
use super::connection::{Connection, Flow, Sent, Stage, Timer};
use super::exchange::Exchange;
use super::framing::Framing;
use super::head::{Head, Origin, field_slots};
use super::offer::Offer;
use super::refusal::Refusal;
use super::scratch::Scratch;
use super::upgrade::push_switching;
use super::{Backend, count};

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    /// Answers what the input has, then reads on.
    pub(super) fn reading(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        loop {
            while s.pending() > 0 && !self.incomplete {
                let flow = self.next_request(cx, s);
                if flow != Flow::Go || self.stage != Stage::Reading {
                    return flow;
                }
            }
            if !s.out.is_empty()
                && let Sent::Stopped(flow) = self.send(cx, s)
            {
                return flow;
            }
            if self.eof {
                return Flow::End;
            }
            let known = s.pending();
            match self.read(cx, s, usize::MAX) {
                Poll::Ready(Ok(0)) if self.incomplete && self.spare > 0 => {
                    self.refuse(s, Refusal::IncompleteBody);
                    return Flow::Go;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Flow::End,
                // A body that its backend wants whole.
                Poll::Ready(Ok(_)) if self.incomplete && self.spare > 0 => {
                    self.incomplete = s.pending() < self.spare as usize;
                }
                Poll::Ready(Ok(_)) => {
                    // A head that trickles in is not parsed anew for every byte: only when a line has ended, or when it
                    // may have become too long.
                    let fresh = &s.input[s.start + known..s.end];
                    if known == 0
                        || memchr(b'\n', fresh).is_some()
                        || s.pending() > self.front.limits.target_bytes_max as usize
                    {
                        self.incomplete = false;
                    }
                }
                Poll::Pending => {
                    // Who never sent a byte has no answer on its way that a reset could take.
                    if self.expired && self.fresh {
                        return Flow::End;
                    }
                    if self.expired || (self.front.is_draining() && s.pending() == 0 && !self.fresh)
                    {
                        self.stage = Stage::Closing;
                        return Flow::Go;
                    }
                    self.arm(match (s.pending() > 0, self.fresh) {
                        (true, _) if self.incomplete && self.spare > 0 => Timer::Body,
                        (true, _) => Timer::Header,
                        (_, true) if self.front.is_draining() => Timer::LastCall,
                        (_, true) => Timer::Silent,
                        _ => Timer::Idle,
                    });
                    return Flow::Wait;
                }
            }
        }
    }

    /// Takes the next head from the input, and answers it or begins an exchange.
    fn next_request(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        let Scratch {
            input,
            start,
            end,
            out,
            date,
            ..
        } = &mut *s;
        let unread = &input[*start..*end];
        let origin = Origin {
            peer: self.peer,
            arrived: self.arrived,
        };
        let mut slots = field_slots();
        let head = match Head::parse(unread, &mut slots, &self.front.limits, origin) {
            Ok(Some(head)) => match self.kept.as_ref().and_then(|kept| kept.since) {
                Some(since) => head.sent_over(self.arrived.saturating_duration_since(since)),
                None => head,
            },
            Ok(None) => {
                self.incomplete = true;
                self.spare = 0;
                return Flow::Go;
            }
            Err(refusal) => {
                self.refuse(s, refusal);
                return Flow::Go;
            }
        };
        let shape = Shape {
            persistence: match (
                head.keep_alive() && !self.front.is_closing(),
                head.minor_version(),
            ) {
                (false, _) => Persistence::Close,
                (true, 0) => Persistence::KeepAlive,
                (true, _) => Persistence::Implied,
            },
            head_only: head.method() == "HEAD",
            date,
        };
        let head_only = shape.head_only;
        self.client_is_done = !head.keep_alive();
        if head.upgrade().is_some() && !self.front.is_closing() {
            // Safe to go on after a panic: nothing of the backend is kept.
            match catch_unwind(AssertUnwindSafe(|| self.front.backend.upgrade(&head))) {
                Ok(None) => {}
                Ok(Some(upgraded)) => {
                    push_switching(out, upgraded.protocol());
                    let bytes = head.bytes();
                    s.consume(bytes);
                    self.timer = Timer::None;
                    self.exchange = Some(Exchange::of_upgraded(upgraded));
                    self.stage = Stage::Upgraded;
                    return Flow::Go;
                }
                Err(_) => return self.panicked(s, head_only),
            }
        }
        let bytes = head.bytes();
        let body_bytes = match head.framing() {
            Framing::Empty => Some(0),
            Framing::Length(length) => match self.wanted_whole(&head, length) {
                Ok(wanted) => wanted,
                Err(()) => return self.panicked(s, head_only),
            },
            Framing::Chunked => None,
        };
        if let Some(body_bytes) = body_bytes {
            let Some(body) = unread[bytes..].get(..body_bytes) else {
                // Read on: this comes back when all of it is there.
                self.incomplete = true;
                self.spare = u32::try_from(bytes + body_bytes).unwrap_or(u32::MAX);
                self.timer = Timer::None;
                return Flow::Go;
            };
            let before = out.len();
            let mut answer = Answer::new(out, shape);
            // Safe to go on after a panic: all it can have left half done is the output, which is cut back.
            let answered = catch_unwind(AssertUnwindSafe(|| {
                if body_bytes == 0 {
                    self.front.backend.answer_now(&head, &mut answer)
                } else {
                    self.front.backend.answer_whole(&head, body, &mut answer)
                }
            }));
            match answered {
                Ok(true) => match answer.finish() {
                    Ok(()) => {
                        let closes = shape.persistence == Persistence::Close;
                        s.consume(bytes + body_bytes);
                        if closes {
                            self.stage = Stage::Closing;
                            return Flow::Go;
                        }
                        return self.after_answer(cx, s);
                    }
                    Err(refusal) => {
                        self.refuse_method(s, refusal, head_only);
                        return Flow::Go;
                    }
                },
                Ok(false) => out.truncate(before),
                Err(_) => {
                    out.truncate(before);
                    return self.panicked(s, head_only);
                }
            }
            let desk = (&self.front.desk, self.seat);
            let mut offer = Offer::new(&head, &unread[..bytes], body, desk, shape);
            // Safe to go on after a panic: its ticket is abandoned below.
            let taken = catch_unwind(AssertUnwindSafe(|| self.front.backend.take(&mut offer)));
            if let Some(place) = offer.drawn() {
                s.consume(bytes + body_bytes);
                self.timer = Timer::None;
                self.spare = place;
                self.stage = Stage::Deferred;
                if taken.is_ok() {
                    return Flow::Go;
                }
                self.leave_desk();
                return self.panicked(s, head_only);
            }
            if taken.is_err() {
                return self.panicked(s, head_only);
            }
        }
        self.timer = Timer::None;
        match Exchange::begin(&self.front, &head, &unread[..bytes], shape, cx.waker()) {
            Ok((mut exchange, request)) => {
                s.consume(bytes);
                self.stage = Stage::Exchanging;
                if let Err(refusal) = exchange.take_in(s, cx.waker()) {
                    self.exchange = Some(exchange);
                    self.refuse_method(s, refusal, head_only);
                    return Flow::Go;
                }
                if exchange.call(&self.front, request).is_err() {
                    self.exchange = Some(exchange);
                    return self.panicked(s, head_only);
                }
                self.exchange = Some(exchange);
            }
            Err(refusal) => self.refuse_method(s, refusal, head_only),
        }
        Flow::Go
    }

    /// The length of a request's body, if the backend wants it whole and it may be so long.
    ///
    /// # Errors
    /// The backend panicked.
    fn wanted_whole(&self, head: &Head<'_>, length: u64) -> Result<Option<usize>, ()> {
        let limits = &self.front.limits;
        if length > limits.small_body_bytes_max.into() || head.expects_continue() {
            return Ok(None);
        }
        let backend = &self.front.backend;
        // Safe to go on after a panic: nothing of the backend is kept.
        let wanted = catch_unwind(AssertUnwindSafe(|| {
            backend.wants_whole(head)
                && length
                    <= backend
                        .body_bytes_max(head)
                        .unwrap_or(limits.body_bytes_max)
        }));
        match wanted {
            Ok(true) => Ok(usize::try_from(length).ok()),
            Ok(false) => Ok(None),
            Err(_) => Err(()),
        }
    }

    /// The backend panicked over a request.
    fn panicked(&mut self, s: &mut Scratch, head_only: bool) -> Flow {
        count(&self.front.counters.panics);
        self.refuse_method(s, Refusal::Internal, head_only);
        Flow::Go
    }
}
