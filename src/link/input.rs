//! What has been read from a link and not been acted on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::frame::{self, FrameError};

/// A read buffer that grows only for a frame that is larger than it, and shrinks again.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Its usual size.
    usual: usize,
    /// Bytes that the next frame has in all, where its length is known and it is not all there.
    wanted: usize,
}

impl Input {
    pub(super) fn new(usual: u32) -> Input {
        let usual = (usual as usize).max(1024);
        Input {
            buffer: vec![0; usual],
            start: 0,
            end: 0,
            usual,
            wanted: 0,
        }
    }

    /// Stands in while another is worked with.
    pub(super) fn empty() -> Input {
        Input {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            usual: 0,
            wanted: 0,
        }
    }

    /// Puts in bytes that were read elsewhere.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.buffer.len() < self.end + bytes.len() {
            self.buffer.resize(self.end + bytes.len(), 0);
        }
        self.buffer[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// One read. `Ready(Ok(0))` is the end.
    pub(super) fn read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(self.start == 0);
        let mut buffer = ReadBuf::new(&mut self.buffer[self.end..]);
        match Pin::new(stream).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let read = buffer.filled().len();
                self.end += read;
                Poll::Ready(Ok(read))
            }
        }
    }

    /// Consumes bytes that are no frame.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// The next frame that is all there, and where it starts in [`Input::all`]. It is consumed.
    ///
    /// # Errors
    /// It is longer than may be.
    pub(super) fn next(
        &mut self,
        frame_bytes_max: usize,
    ) -> Result<Option<(&[u8], usize)>, FrameError> {
        let unread = &self.buffer[self.start..self.end];
        match frame::split(unread, frame_bytes_max)? {
            Some((frame, consumed)) => {
                let at = self.start + frame::LENGTH_BYTES;
                self.start += consumed;
                Ok(Some((frame, at)))
            }
            None => {
                self.wanted = match unread.first_chunk() {
                    Some(length) => u32::from_le_bytes(*length) as usize + frame::LENGTH_BYTES,
                    None => 0,
                };
                Ok(None)
            }
        }
    }

    /// Everything, also what was consumed since the last [`Input::compact`].
    pub(super) fn all(&self) -> &[u8] {
        &self.buffer[..self.end]
    }

    /// Forgets what was consumed, and makes room for the next read. To be called after [`Input::next`] gave nothing.
    pub(super) fn compact(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let size = self.usual.max(self.wanted);
        if self.buffer.len() != size && self.end <= size {
            self.buffer.resize(size, 0);
            self.buffer.shrink_to(size);
        }
    }
}
