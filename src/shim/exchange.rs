//! One attempt at a request: it is sent on one connection, and the head of its answer is read from there.
//!
//! Both directions move at once: an instance may answer before it has the whole body, and the body may go on while the
//! answer already streams.

use super::group::Failure;
use super::pool::Upstream;
use super::replay::ReplayBody;
use super::wire::{self, AnswerHead, BodyForm};
use crate::front::BodyError;
use http::Method;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, sleep_until};

/// What is asked of the kernel at once, at least.
const READ_BYTES_MIN: usize = 8 * 1024;
/// The same while a large body streams.
pub(super) const STREAM_BYTES_MIN: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Ended {
    /// The instance's doing; `&str` says what was wrong.
    Upstream(Failure, &'static str),
    /// The client's body failed.
    Client,
}

/// The part of a request that has not been sent yet.
#[derive(Debug)]
pub(super) struct Sending {
    out: Vec<u8>,
    sent: usize,
    form: BodyForm,
    body_is_over: bool,
    /// The connection takes no more. What it still gives may be an answer.
    is_broken: bool,
}

impl Sending {
    /// A request whose head is `out`.
    pub(super) fn new(out: Vec<u8>, form: BodyForm) -> Self {
        Self {
            out,
            sent: 0,
            body_is_over: form == BodyForm::None,
            form,
            is_broken: false,
        }
    }

    /// Whether all of it has left.
    pub(super) fn is_over(&self) -> bool {
        self.is_broken || (self.body_is_over && self.sent == self.out.len())
    }

    /// Whether the connection can be used again as far as the request is concerned.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_broken && self.is_over()
    }

    /// Sends what the connection takes and the client has given.
    pub(super) fn poll(
        &mut self,
        upstream: &mut Upstream,
        body: &mut ReplayBody,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        while !self.is_over() {
            if self.sent < self.out.len() {
                let rest = &self.out[self.sent..];
                match ready!(Pin::new(&mut upstream.stream).poll_write(cx, rest)) {
                    Ok(sent) if sent > 0 => self.sent += sent,
                    _ => self.is_broken = true,
                }
                continue;
            }
            self.out.clear();
            self.sent = 0;
            match ready!(body.poll_piece(cx))? {
                Some(piece) if self.form == BodyForm::Chunked => {
                    wire::write_chunk(&mut self.out, &piece);
                }
                Some(piece) => self.out.extend_from_slice(&piece),
                None => {
                    self.body_is_over = true;
                    if self.form == BodyForm::Chunked {
                        self.out.extend_from_slice(wire::LAST_CHUNK);
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads what there is; `Ok(0)` at the end.
pub(super) fn poll_read(
    upstream: &mut Upstream,
    room_min: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    upstream.input.reserve(room_min);
    let mut input = &mut upstream.input;
    let read = std::pin::pin!(upstream.stream.read_buf(&mut input));
    read.poll(cx)
}

/// Sends a request and reads the head of its answer. `answer_max` runs from the end of the request, or from the last
/// byte of an answer that has begun.
///
/// # Errors
/// Why there is none. The connection is of no use then.
pub(super) async fn exchange(
    upstream: &mut Upstream,
    sending: &mut Sending,
    body: &mut ReplayBody,
    method: &Method,
    answer_max: Duration,
) -> Result<AnswerHead, Ended> {
    let mut has_begun = false;
    // First the request alone; most are gone with the first write.
    let sent = poll_fn(|cx| match sending.poll(upstream, body, cx) {
        Poll::Ready(sent) => Poll::Ready(sent),
        // Something to read ends this part too: an early answer, or the connection's end.
        Poll::Pending => upstream.stream.poll_read_ready(cx).map(|_| Ok(())),
    })
    .await;
    sent.map_err(|_| Ended::Client)?;
    let timer = sleep_until(Instant::now() + answer_max);
    tokio::pin!(timer);
    poll_fn(|cx| {
        if let Poll::Ready(Err(_)) = sending.poll(upstream, body, cx) {
            return Poll::Ready(Err(Ended::Client));
        }
        loop {
            match poll_read(upstream, READ_BYTES_MIN, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(read)) if read > 0 => {
                    has_begun = true;
                    match wire::read_head(&mut upstream.input, method) {
                        Ok(Some(head)) => return Poll::Ready(Ok(head)),
                        Ok(None) => {}
                        Err(bad) => {
                            return Poll::Ready(Err(Ended::Upstream(Failure::Broken, bad.0)));
                        }
                    }
                }
                Poll::Ready(_) if has_begun => {
                    let what = "the answer broke off in its head";
                    return Poll::Ready(Err(Ended::Upstream(Failure::Broken, what)));
                }
                Poll::Ready(_) => {
                    let what = "the connection ended without an answer";
                    return Poll::Ready(Err(Ended::Upstream(Failure::Closed, what)));
                }
            }
        }
        // While the client still sends, its own timers hold.
        if sending.is_over() {
            ready!(timer.as_mut().poll(cx));
            let what = "no answer in time";
            return Poll::Ready(Err(Ended::Upstream(Failure::Timeout, what)));
        }
        Poll::Pending
    })
    .await
}
