//! A client's socket as a stream that two can hold: the connection, and the desk where an answer for it may come in.
//!
//! Reads and writes go to the kernel without the C library, whose `send` and `recv` prepare for the thread's
//! cancellation each time.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A shared TCP socket. Clones are the same socket.
#[derive(Clone, Debug)]
pub struct Tcp(Arc<TcpStream>);

impl Tcp {
    /// Takes a socket.
    #[must_use]
    pub fn new(stream: TcpStream) -> Tcp {
        Tcp(Arc::new(stream))
    }

    /// Writes what the socket takes now. Nobody is woken when it takes more.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, bytes.len(), || {
            rustix::net::send(&*self.0, bytes, SendFlags::NOSIGNAL)
        })
    }

    /// Moves bytes, `max` at most, if the socket is ready as far as the runtime knows.
    ///
    /// Less than `max`, and the runtime is told that the socket is ready no more: the next try would only say that. To be
    /// told in the same breath, so that news which come after the move are not taken back.
    fn try_io(
        &self,
        interest: Interest,
        max: usize,
        mut io: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let mut moved = None;
        let tried = self.0.try_io(interest, || match io() {
            Ok(bytes) if (1..max).contains(&bytes) => {
                moved = Some(bytes);
                Err(io::ErrorKind::WouldBlock.into())
            }
            other => Ok(other?),
        });
        moved.map_or(tried, Ok)
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let room = buffer.initialize_unfilled();
            let max = room.len();
            let read = self.try_io(Interest::READABLE, max, || {
                Ok(rustix::net::recv(&*self.0, &mut *room, RecvFlags::empty())?.0)
            });
            match read {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
