//! A request that the backend has, until its answer is complete: both bodies flow through here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{Persistence, Shape};
use super::body::{Body, BodyError, Pipe};
use super::connection::{Connection, Flow, Sent, Stage, Timer};
use super::intake::Intake;
use super::refusal::Refusal;
use super::response::{Delimiter, write_head};
use super::scratch::Scratch;
use super::upgrade::Upgraded;
use super::{Backend, Front, count};

mod begin;

/// How far the backend is.
enum Progress<B: Backend> {
    /// `call` has not been reached.
    Ready,
    Calling(Pin<Box<B::Future>>),
    Streaming(Pin<Box<B::Body>>),
    Over,
    /// No exchange any more, but kept where one would be: so that only connections that have it pay for it.
    Upgraded(Box<dyn Upgraded>),
}

/// One request and its answer. Boxed, so that a connection without one is small.
pub(super) struct Exchange<B: Backend> {
    progress: Progress<B>,
    intake: Intake,
    pipe: Option<Arc<Pipe>>,
    /// Bytes of the request's body that may still come.
    body_left: u64,
    /// Bytes of it since the timer was set.
    since_timer: u32,
    /// The client waits for `100 Continue`.
    owes_continue: bool,
    delimiter: Delimiter,
    persistence: Persistence,
    pub(super) head_only: bool,
    minor: u8,
    /// A piece of the answer that goes out from where it is, after what is in the output.
    pub(super) piece: Bytes,
    /// CRLF is owed after it.
    pub(super) piece_is_chunk: bool,
}

/// What a look at the backend gave.
enum Step {
    /// It waits for something.
    Pending,
    /// There is output to be sent before it goes on.
    Full,
    Over,
    Refuse(Refusal),
    Cut,
}

impl<B: Backend> Exchange<B> {
    pub(super) fn upgraded(&mut self) -> Option<&mut Box<dyn Upgraded>> {
        match &mut self.progress {
            Progress::Upgraded(upgraded) => Some(upgraded),
            _ => None,
        }
    }

    /// Gives the request to the backend.
    ///
    /// # Errors
    /// It panicked.
    pub(super) fn call(
        &mut self,
        front: &Front<B>,
        request: http::Request<Body>,
    ) -> Result<(), ()> {
        // Safe to go on after a panic: nothing of the backend is kept.
        let future = catch_unwind(AssertUnwindSafe(|| Box::pin(front.backend.call(request))))
            .map_err(drop)?;
        self.progress = Progress::Calling(future);
        Ok(())
    }

    /// The front answers by itself. Whether the backend has had the request; it is told then.
    pub(super) fn give_up(&mut self, front: &Front<B>, why: Refusal) -> bool {
        let Progress::Calling(future) = &mut self.progress else {
            return false;
        };
        // Safe to go on after a panic: the future is dropped next.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            front.backend.give_up(why, future.as_mut());
        }));
        true
    }

    /// Takes what the input has of the body and puts it in the pipe, if that has room.
    ///
    /// # Errors
    /// The body is malformed or too large.
    pub(super) fn take_in(&mut self, s: &mut Scratch, waker: &Waker) -> Result<(), Refusal> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        if s.pending() == 0 || matches!(self.intake, Intake::Done) || !pipe.has_room() {
            return Ok(());
        }
        let pipe = pipe.clone();
        // Who has begun to send does not wait to be told.
        self.owes_continue = false;
        let piece = self.decode(s)?;
        pipe.give(piece, matches!(self.intake, Intake::Done), waker);
        Ok(())
    }

    /// Consumes what the input has of the body; `None` if that was framing only.
    pub(super) fn decode(&mut self, s: &mut Scratch) -> Result<Option<Bytes>, Refusal> {
        let (consumed, piece) = self.intake.take(&s.input[s.start..s.end], self.body_left)?;
        self.body_left = self
            .body_left
            .saturating_sub(piece.as_ref().map_or(0, Bytes::len) as u64);
        s.consume(consumed);
        Ok(piece)
    }

    /// Whether the connection must end with this exchange, because the rest of the request's body will not be read.
    fn must_close(&self, discard_max: u32) -> bool {
        match &self.intake {
            Intake::Done => false,
            // Whether the client sends the body after all cannot be known.
            _ if self.owes_continue => true,
            // Who still holds the body may yet read it to its end.
            Intake::Length(left) => *left > u64::from(discard_max) && self.reader_is_gone(),
            Intake::Chunked(_) => false,
        }
    }

    fn reader_is_gone(&self) -> bool {
        self.pipe.as_ref().is_none_or(|pipe| pipe.reader_is_gone())
    }

    /// Polls the backend, and writes what it gives.
    fn advance(
        &mut self,
        front: &Front<B>,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        date: &[u8],
    ) -> Step {
        loop {
            if !self.piece.is_empty() {
                return Step::Full;
            }
            match &mut self.progress {
                Progress::Ready => return Step::Refuse(Refusal::Internal),
                Progress::Calling(future) => {
                    let response = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)))
                    {
                        Ok(Poll::Pending) => return Step::Pending,
                        Ok(Poll::Ready(response)) => response,
                        Err(_) => {
                            count(&front.counters.panics);
                            return Step::Refuse(Refusal::Internal);
                        }
                    };
                    if self.must_close(front.limits.discard_bytes_max) || front.is_closing() {
                        self.persistence = Persistence::Close;
                    }
                    let (parts, body) = response.into_parts();
                    let shape = Shape {
                        persistence: self.persistence,
                        head_only: self.head_only,
                        date,
                    };
                    match write_head(out, &parts, &body.size_hint(), self.minor, shape) {
                        Ok((delimiter, persistence)) => {
                            self.delimiter = delimiter;
                            self.persistence = persistence;
                        }
                        Err(refusal) => return Step::Refuse(refusal),
                    }
                    self.progress = match self.delimiter {
                        Delimiter::None | Delimiter::Length(0) => Progress::Over,
                        _ => Progress::Streaming(Box::pin(body)),
                    };
                }
                Progress::Streaming(body) => {
                    if out.len() >= front.limits.output_bytes_max as usize {
                        return Step::Full;
                    }
                    match catch_unwind(AssertUnwindSafe(|| body.as_mut().poll_frame(cx))) {
                        Ok(Poll::Pending) => return Step::Pending,
                        Ok(Poll::Ready(Some(Ok(frame)))) => {
                            let Ok(data) = frame.into_data() else {
                                continue;
                            };
                            match self.delimiter.frame(data, out) {
                                Ok((piece, is_chunk)) => {
                                    self.piece = piece;
                                    self.piece_is_chunk = is_chunk;
                                }
                                Err(_) => return Step::Cut,
                            }
                        }
                        Ok(Poll::Ready(None)) => {
                            if self.delimiter.end(out).is_err() {
                                return Step::Cut;
                            }
                            self.progress = Progress::Over;
                        }
                        Ok(Poll::Ready(Some(Err(error)))) => {
                            tracing::debug!(%error, "the body of an answer failed");
                            return Step::Cut;
                        }
                        Err(_) => {
                            count(&front.counters.panics);
                            return Step::Cut;
                        }
                    }
                }
                Progress::Over => return Step::Over,
                Progress::Upgraded(_) => return Step::Cut,
            }
        }
    }

    /// `bytes` of the piece have left.
    pub(super) fn piece_written(&mut self, bytes: usize) {
        // An exhausted piece lets go of the memory that it shares.
        self.piece = if bytes == self.piece.len() {
            Bytes::new()
        } else {
            self.piece.slice(bytes..)
        };
    }

    /// Whether nothing more of the request's body is to come.
    pub(super) fn has_whole_body(&self) -> bool {
        matches!(self.intake, Intake::Done)
    }

    fn has_begun_answer(&self) -> bool {
        matches!(self.progress, Progress::Streaming(_) | Progress::Over)
    }
}

impl<B: Backend> Drop for Exchange<B> {
    /// Whoever still reads the body elsewhere is told that no more comes.
    fn drop(&mut self) {
        if let Some(pipe) = &self.pipe {
            pipe.fail(BodyError::Disconnected, Waker::noop());
        }
    }
}

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    pub(super) fn exchanging(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        loop {
            let Some(exchange) = &mut self.exchange else {
                self.stage = Stage::Reading;
                return Flow::Go;
            };
            let step = exchange.advance(&self.front, cx, &mut s.out, &s.date);
            match step {
                Step::Full => match self.send(cx, s) {
                    Sent::All => continue,
                    Sent::Stopped(flow) => return flow,
                },
                Step::Over => return self.finish_exchange(cx, s),
                Step::Refuse(refusal) => {
                    self.fail_exchange(s, refusal);
                    return Flow::Go;
                }
                Step::Cut => {
                    self.cut();
                    return Flow::Go;
                }
                Step::Pending => {}
            }
            match self.feed(cx, s) {
                Some(Flow::Go) if self.stage == Stage::Exchanging => continue,
                Some(flow) => return flow,
                None => {}
            }
            if !s.out.is_empty() {
                match self.send(cx, s) {
                    // What was sent may have made room for what the backend has waiting.
                    Sent::All => {}
                    Sent::Stopped(flow) => return flow,
                }
            }
            let calling = self
                .exchange
                .as_ref()
                .is_some_and(|exchange| !exchange.has_begun_answer());
            self.arm(if calling { Timer::Answer } else { Timer::None });
            return self.read_ahead(cx, s);
        }
    }

    /// Gives the backend more of the body if it waits for it. `None` if it does not.
    fn feed(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Option<Flow> {
        let exchange = self.exchange.as_mut()?;
        if !exchange
            .pipe
            .as_ref()
            .is_some_and(|pipe| pipe.is_wanted(cx.waker()))
        {
            return None;
        }
        if s.pending() == 0 {
            if exchange.owes_continue {
                exchange.owes_continue = false;
                if !exchange.has_begun_answer() {
                    s.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
            }
            if !s.out.is_empty()
                && let Sent::Stopped(flow) = self.send(cx, s)
            {
                return Some(flow);
            }
            if s.taken >= self.front.limits.turn_bytes_max as usize {
                return Some(Flow::Yield);
            }
            match if self.eof {
                Poll::Ready(Ok(0))
            } else {
                self.read(cx, s, usize::MAX)
            } {
                Poll::Pending => {
                    self.arm(Timer::Body);
                    return Some(Flow::Wait);
                }
                Poll::Ready(Ok(0)) => {
                    self.fail_exchange(s, Refusal::IncompleteBody);
                    return Some(Flow::Go);
                }
                Poll::Ready(Err(_)) => return Some(Flow::End),
                Poll::Ready(Ok(_)) => {}
            }
        }
        let exchange = self.exchange.as_mut()?;
        // Bytes of the wire, not of the body: a bound on the time is all that is wanted.
        let arrived = u32::try_from(s.pending()).unwrap_or(u32::MAX);
        exchange.since_timer = exchange.since_timer.saturating_add(arrived);
        if exchange.since_timer >= self.front.limits.body_progress_bytes {
            exchange.since_timer = 0;
            self.timer = Timer::None;
        }
        if let Err(refusal) = exchange.take_in(s, cx.waker()) {
            self.fail_exchange(s, refusal);
        }
        Some(Flow::Go)
    }

    /// While the backend works: notices a reset, and takes a bounded part of what is pipelined.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        let reads = self
            .exchange
            .as_ref()
            .is_none_or(|exchange| matches!(exchange.intake, Intake::Done));
        let max = self.front.limits.pipelined_bytes_max as usize;
        while reads && !self.eof && s.pending() < max {
            match self.read(cx, s, max - s.pending()) {
                Poll::Pending => break,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Flow::End,
            }
        }
        Flow::Wait
    }

    fn finish_exchange(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        let Some(exchange) = &mut self.exchange else {
            return Flow::End;
        };
        if exchange.persistence == Persistence::Close {
            // A body that was not read to its end is still coming: the client must not be reset by it.
            self.client_is_done &= matches!(exchange.intake, Intake::Done);
            self.exchange = None;
            self.stage = Stage::Closing;
            return Flow::Go;
        }
        if matches!(exchange.intake, Intake::Done) {
            self.exchange = None;
            self.stage = Stage::Reading;
        } else {
            exchange.progress = Progress::Over;
            self.spare = self.front.limits.discard_bytes_max;
            self.stage = Stage::Discarding;
        }
        self.after_answer(cx, s)
    }

    /// Refuses the request if its answer has not begun, else cuts the answer off.
    pub(super) fn fail_exchange(&mut self, s: &mut Scratch, refusal: Refusal) {
        if let Some(exchange) = &self.exchange {
            if let Some(pipe) = &exchange.pipe {
                pipe.fail(
                    match refusal {
                        Refusal::BadChunk => BodyError::Malformed,
                        Refusal::BodyTooLarge => BodyError::TooLarge,
                        Refusal::BodyTimeout => BodyError::TimedOut,
                        _ => BodyError::Disconnected,
                    },
                    Waker::noop(),
                );
            }
            if exchange.has_begun_answer() {
                return self.cut();
            }
        }
        self.refuse(s, refusal);
    }

    fn cut(&mut self) {
        count(&self.front.counters.cut_answers);
        self.exchange = None;
        self.stage = Stage::Cutting;
    }
}
