//! A request's body, kept as far as it was read where that allows a second attempt.

use super::blame::BodyWait;
use crate::front::{self, BodyError};
use bytes::Bytes;
use http_body::Body as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// A request's body on its way to an instance, or to several after one another.
#[derive(Debug)]
pub(super) struct ReplayBody {
    source: front::Body,
    source_is_over: bool,
    /// What was read of the source, as far as it is kept.
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// The most bytes that are kept; 0 once more than these were read.
    keep_max: usize,
    /// The next piece of `kept` to give.
    next: usize,
    /// Whether something was given that is not kept.
    is_lost: bool,
    /// How long the client was waited for, and since when it is.
    waited: BodyWait,
    waiting: Option<Instant>,
}

impl ReplayBody {
    /// A body of which up to `keep_max` bytes are kept.
    pub(super) fn new(source: front::Body, keep_max: usize) -> Self {
        Self {
            source_is_over: source.is_end_stream(),
            source,
            kept: Vec::new(),
            kept_bytes: 0,
            keep_max,
            next: 0,
            is_lost: false,
            waited: BodyWait::default(),
            waiting: None,
        }
    }

    /// How long its client was waited for, now and later.
    pub(super) fn waited(&self) -> BodyWait {
        self.waited.clone()
    }

    /// Its length, if it was announced.
    pub(super) fn length(&self) -> Option<u64> {
        let rest = if self.source_is_over {
            Some(0)
        } else {
            self.source.size_hint().exact()
        };
        rest.filter(|_| !self.is_lost)
            .map(|rest| rest + self.kept_bytes as u64)
    }

    /// Changes how much is kept from now on; what is kept already stays while a second attempt may want it.
    pub(super) fn keep(&mut self, keep_max: usize) {
        self.keep_max = keep_max;
    }

    /// Begins again; `false` if that is not possible any more.
    pub(super) fn rewind(&mut self) -> bool {
        self.next = 0;
        !self.is_lost
    }

    /// Reads up to `max` bytes ahead. `Some` with the whole body if it ends there, `None` if it is larger: then what was
    /// read is given first.
    pub(super) async fn read_ahead(&mut self, max: usize) -> Result<Option<Vec<u8>>, BodyError> {
        while !self.source_is_over && self.kept_bytes <= max {
            let piece = std::future::poll_fn(|cx| self.poll_source(cx)).await?;
            if let Some(piece) = piece {
                self.kept_bytes += piece.len();
                self.kept.push(piece);
            }
        }
        Ok((self.source_is_over && self.kept_bytes <= max).then(|| self.kept.concat()))
    }

    /// The next piece; `None` at the end.
    pub(super) fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        if let Some(piece) = self.kept.get(self.next) {
            self.next += 1;
            let piece = piece.clone();
            // Beyond what may be kept, a piece that was read ahead is let go when it is given.
            if self.kept_bytes > self.keep_max && self.next == self.kept.len() {
                self.forget();
            }
            return Poll::Ready(Ok(Some(piece)));
        }
        let piece = ready!(self.poll_source(cx))?;
        if let Some(piece) = &piece {
            if !self.is_lost && self.kept_bytes + piece.len() <= self.keep_max {
                self.kept_bytes += piece.len();
                self.kept.push(piece.clone());
                self.next = self.kept.len();
            } else {
                self.forget();
            }
        }
        Poll::Ready(Ok(piece))
    }

    fn forget(&mut self) {
        self.kept = Vec::new();
        self.kept_bytes = 0;
        self.next = 0;
        self.is_lost = true;
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        while !self.source_is_over {
            let polled = Pin::new(&mut self.source).poll_frame(cx);
            if polled.is_pending() {
                self.waiting.get_or_insert_with(Instant::now);
            } else if let Some(since) = self.waiting.take() {
                self.waited.add(since.elapsed());
            }
            let frame = ready!(polled);
            match frame {
                None => self.source_is_over = true,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.source_is_over = self.source.is_end_stream();
                        return Poll::Ready(Ok(Some(data)));
                    }
                }
            }
        }
        Poll::Ready(Ok(None))
    }
}
