//! A request's body on its way to the backend: one piece at a time, read only when asked for.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::seats::lock;

/// Why a body ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The client went away, or the answer was over before the body was.
    Disconnected,
    /// The chunked coding was malformed.
    Malformed,
    /// More bytes than the request may have.
    TooLarge,
    /// It did not arrive in time.
    TimedOut,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::Disconnected => "the client went away in the middle of the body",
            BodyError::Malformed => "the chunked body is malformed",
            BodyError::TooLarge => "the body is too large",
            BodyError::TimedOut => "the body took too long",
        })
    }
}

impl std::error::Error for BodyError {}

/// The one slot between a connection and whoever reads the body, perhaps in another task.
#[derive(Debug)]
pub(super) struct Pipe(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    slot: Option<Bytes>,
    /// Set once no more follows what is in the slot.
    end: Option<Result<(), BodyError>>,
    /// Bytes not yet taken, where the length is known.
    left: Option<u64>,
    /// The reader came and found nothing.
    wanted: bool,
    reader_gone: bool,
    reader: Option<Waker>,
    connection: Option<Waker>,
}

impl Pipe {
    pub(super) fn new(length: Option<u64>, connection: &Waker) -> Arc<Pipe> {
        Arc::new(Pipe(Mutex::new(Inner {
            slot: None,
            end: None,
            left: length,
            wanted: false,
            reader_gone: false,
            reader: None,
            connection: Some(connection.clone()),
        })))
    }

    /// Whether the reader waits for bytes that the connection has not given yet.
    pub(super) fn is_wanted(&self, connection: &Waker) -> bool {
        let mut inner = lock(&self.0);
        if inner
            .connection
            .as_ref()
            .is_none_or(|known| !known.will_wake(connection))
        {
            inner.connection = Some(connection.clone());
        }
        inner.wanted && inner.slot.is_none() && inner.end.is_none() && !inner.reader_gone
    }

    /// Whether the backend has dropped the body.
    pub(super) fn reader_is_gone(&self) -> bool {
        lock(&self.0).reader_gone
    }

    /// Whether the slot is free for [`Pipe::give`].
    pub(super) fn has_room(&self) -> bool {
        let inner = lock(&self.0);
        inner.slot.is_none() && inner.end.is_none()
    }

    /// Puts a piece in the slot, which is free, and with `end` says that it was the last.
    pub(super) fn give(&self, piece: Option<Bytes>, end: bool, own: &Waker) {
        let mut inner = lock(&self.0);
        inner.slot = piece.filter(|piece| !piece.is_empty() && !inner.reader_gone);
        if end {
            inner.end = Some(Ok(()));
        }
        inner.wanted = false;
        inner.wake_reader(own);
    }

    /// Ends the body early. What is in the slot can still be read, unless the request is refused.
    pub(super) fn fail(&self, error: BodyError, own: &Waker) {
        let mut inner = lock(&self.0);
        if inner.end.is_none() {
            inner.end = Some(Err(error));
            inner.wake_reader(own);
        }
    }
}

impl Inner {
    /// A reader that waits in the connection's own task is polled again anyway: waking it would only cost a turn.
    fn wake_reader(&mut self, own: &Waker) {
        if let Some(reader) = self.reader.take()
            && !reader.will_wake(own)
        {
            reader.wake();
        }
    }
}

/// The body of a request, as a backend gets it.
///
/// It holds at most one piece of [`READ_BUFFER_BYTES`](super::READ_BUFFER_BYTES): the client is read from when the last
/// one has been taken and the next is polled for, and no earlier. Dropped, it wants no more; what is left is thrown away
/// or the connection is closed.
#[derive(Debug, Default)]
pub struct Body(Option<Arc<Pipe>>);

impl Body {
    /// A body of no bytes.
    #[must_use]
    pub fn empty() -> Body {
        Body(None)
    }

    /// A body that is all there.
    pub(super) fn whole(bytes: Bytes) -> Body {
        if bytes.is_empty() {
            return Body::empty();
        }
        let pipe = Pipe::new(Some(bytes.len() as u64), Waker::noop());
        pipe.give(Some(bytes), true, Waker::noop());
        Body::streamed(pipe)
    }

    pub(super) fn streamed(pipe: Arc<Pipe>) -> Body {
        Body(Some(pipe))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(pipe) = &self.0 else {
            return Poll::Ready(None);
        };
        let mut inner = lock(&pipe.0);
        if let Some(piece) = inner.slot.take() {
            if let Some(left) = &mut inner.left {
                *left = left.saturating_sub(piece.len() as u64);
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match inner.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                inner.wanted = true;
                if inner
                    .reader
                    .as_ref()
                    .is_none_or(|known| !known.will_wake(cx.waker()))
                {
                    inner.reader = Some(cx.waker().clone());
                }
                // In the connection's own task nothing need be woken: it looks once the backend has been polled.
                if let Some(connection) = &inner.connection
                    && !connection.will_wake(cx.waker())
                {
                    connection.wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|pipe| {
            let inner = lock(&pipe.0);
            inner.slot.is_none() && inner.end == Some(Ok(()))
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(pipe) = &self.0 else {
            return SizeHint::with_exact(0);
        };
        let inner = lock(&pipe.0);
        inner
            .left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(pipe) = &self.0 {
            let mut inner = lock(&pipe.0);
            inner.reader_gone = true;
            inner.slot = None;
            // A connection that reads on behalf of another task learns that it need not.
            if inner.wanted
                && inner.end.is_none()
                && let Some(connection) = inner.connection.take()
            {
                connection.wake();
            }
        }
    }
}
