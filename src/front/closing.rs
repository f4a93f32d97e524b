//! How a connection ends so that its client still gets the last answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use super::Backend;
use super::connection::{Connection, Flow, Sent, Stage, Timer};
use super::scratch::Scratch;

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    /// Sends the last answer and closes this half.
    pub(super) fn closing(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        if let Sent::Stopped(flow) = self.send(cx, s) {
            return flow;
        }
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Pending => {
                self.arm(Timer::Linger);
                return Flow::Wait;
            }
            Poll::Ready(Err(_)) => return Flow::End,
            Poll::Ready(Ok(())) => {}
        }
        // Nothing is left that the client could still be sending, and be reset for.
        if self.eof || (self.client_is_done && s.pending() == 0) {
            return Flow::End;
        }
        s.consume(s.pending());
        self.spare = self.front.limits.linger_bytes_max;
        self.stage = Stage::Lingering;
        Flow::Go
    }

    /// Throws away what arrives until the client has closed its half too.
    pub(super) fn lingering(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        loop {
            match self.read(cx, s, usize::MAX) {
                Poll::Pending => {
                    self.arm(Timer::Linger);
                    return Flow::Wait;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Flow::End,
                Poll::Ready(Ok(read)) => {
                    s.consume(read);
                    match self
                        .spare
                        .checked_sub(u32::try_from(read).unwrap_or(u32::MAX))
                    {
                        Some(spare) => self.spare = spare,
                        None => return Flow::End,
                    }
                }
            }
        }
    }
}
