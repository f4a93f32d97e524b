//! Between requests: reading a head, and answering it or handing it on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{Answer, Persistence, Shape};
use super::connection::{Connection, Flow, Sent, Stage, Timer};
use super::exchange::Exchange;
use super::framing::Framing;
use super::head::{Head, Origin, field_slots};
use super::refusal::Refusal;
use super::scratch::Scratch;
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
                Poll::Ready(Ok(0)) => return Flow::End,
                Poll::Ready(Err(_)) => return Flow::End,
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
            Ok(Some(head)) => head,
            Ok(None) => {
                self.incomplete = true;
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
        let bytes = head.bytes();
        if head.framing() == Framing::Empty {
            let before = out.len();
            let mut answer = Answer::new(out, shape);
            // Safe to go on after a panic: all it can have left half done is the output, which is cut back.
            let answered = catch_unwind(AssertUnwindSafe(|| {
                self.front.backend.answer_now(&head, &mut answer)
            }));
            match answered {
                Ok(true) => match answer.finish() {
                    Ok(()) => {
                        let closes = shape.persistence == Persistence::Close;
                        s.consume(bytes);
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
                    count(&self.front.counters.panics);
                    self.refuse_method(s, Refusal::Internal, head_only);
                    return Flow::Go;
                }
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
                    count(&self.front.counters.panics);
                    self.exchange = Some(exchange);
                    self.refuse_method(s, Refusal::Internal, head_only);
                    return Flow::Go;
                }
                self.exchange = Some(exchange);
            }
            Err(refusal) => self.refuse_method(s, refusal, head_only),
        }
        Flow::Go
    }
}
