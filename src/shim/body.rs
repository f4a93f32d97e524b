//! The body of an answer on its way from an instance to a client.

use super::cache::Keeping;
use super::exchange::{STREAM_BYTES_MIN, Sending, poll_read};
use super::group::{Failure, Ticket};
use super::pool::Upstream;
use super::replay::ReplayBody;
use super::wire::AnswerBody;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// The body of an answer of the shim.
#[derive(Debug)]
pub(super) enum ShimBody {
    /// All of it is here.
    Whole(Bytes),
    /// It comes from an instance.
    Streamed(Box<StreamedBody>),
}

/// A body that comes from an instance. Its ticket counts until it ends, and its connection is used again only if both
/// the request and the answer ended as they should.
#[derive(Debug)]
pub(super) struct StreamedBody {
    pub(super) upstream: Option<Upstream>,
    pub(super) ticket: Option<Ticket>,
    pub(super) answer: AnswerBody,
    pub(super) keep_alive: bool,
    /// What is left of the request.
    pub(super) sending: Sending,
    pub(super) request: Option<ReplayBody>,
    /// How long the instance may take from one piece to the next.
    pub(super) pause_max: Duration,
    pub(super) timer: Option<Pin<Box<Sleep>>>,
    pub(super) keeping: Option<Keeping>,
}

/// An answer's body broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrokenBody(pub(super) &'static str);

impl fmt::Display for BrokenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BrokenBody {}

impl ShimBody {
    /// No body.
    pub(super) fn empty() -> Self {
        Self::Whole(Bytes::new())
    }

    /// Keeps it while it passes through.
    pub(super) fn keep(&mut self, mut keeping: Keeping) {
        match self {
            Self::Whole(bytes) => {
                keeping.add(bytes);
                keeping.done();
            }
            Self::Streamed(body) => body.keeping = Some(keeping),
        }
    }
}

impl StreamedBody {
    /// All of the body, if its length is known and all of it has arrived.
    pub(super) fn take_whole(&mut self) -> Option<Bytes> {
        let upstream = self.upstream.as_mut()?;
        let length = self.answer.length()?;
        if !self.sending.is_over() || length > upstream.input.len() as u64 {
            return None;
        }
        let bytes = self.answer.take(&mut upstream.input).ok()?;
        let bytes = Bytes::copy_from_slice(&bytes.unwrap_or_default());
        self.end();
        Some(bytes)
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BrokenBody>> {
        let Some(upstream) = &mut self.upstream else {
            return Poll::Ready(Ok(None));
        };
        // A client that breaks off its request is noticed by the front.
        if let Some(request) = &mut self.request {
            let _ = self.sending.poll(upstream, request, cx);
        }
        loop {
            match self.answer.take(&mut upstream.input) {
                Err(bad) => return self.broken(Failure::Broken, bad.0),
                Ok(Some(piece)) => {
                    if let Some(timer) = &mut self.timer {
                        timer
                            .as_mut()
                            .reset(tokio::time::Instant::now() + self.pause_max);
                    }
                    if let Some(keeping) = &mut self.keeping {
                        keeping.add(&piece);
                    }
                    if self.answer.is_done() {
                        self.end();
                    }
                    return Poll::Ready(Ok(Some(piece)));
                }
                Ok(None) if self.answer.is_done() => {
                    self.end();
                    return Poll::Ready(Ok(None));
                }
                Ok(None) => {}
            }
            match poll_read(upstream, STREAM_BYTES_MIN, cx) {
                Poll::Ready(Ok(read)) if read > 0 => {}
                Poll::Ready(Ok(_)) if matches!(self.answer, AnswerBody::Close) => {
                    self.answer = AnswerBody::Done;
                }
                Poll::Ready(_) => return self.broken(Failure::Broken, "the answer broke off"),
                Poll::Pending => break,
            }
        }
        let pause_max = self.pause_max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(pause_max)));
        match timer.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => self.broken(Failure::Timeout, "the answer did not go on"),
        }
    }

    fn broken(
        &mut self,
        failure: Failure,
        what: &'static str,
    ) -> Poll<Result<Option<Bytes>, BrokenBody>> {
        self.upstream = None;
        self.keeping = None;
        if let Some(ticket) = self.ticket.take() {
            ticket.failed(failure);
        }
        Poll::Ready(Err(BrokenBody(what)))
    }

    /// The answer is complete.
    fn end(&mut self) {
        if let Some(keeping) = self.keeping.take() {
            keeping.done();
        }
        let ticket = self.ticket.take();
        if let (Some(upstream), Some(ticket)) = (self.upstream.take(), &ticket)
            && self.keep_alive
            && self.sending.is_whole()
            && upstream.input.is_empty()
        {
            ticket.instance().pool.put(upstream);
        }
    }
}

impl http_body::Body for ShimBody {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        let polled = match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Ok(Some(std::mem::take(bytes)))),
            Self::Streamed(body) => body.poll_piece(cx),
        };
        polled.map(|piece| piece.map(|piece| piece.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Streamed(body) => body.upstream.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed(body) => body
                .answer
                .length()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
