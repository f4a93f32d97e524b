//! The rest of a body that nobody wants.

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
    /// Reads the rest of a body that nobody wants, up to a bound, to keep the connection.
    pub(super) fn discarding(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        loop {
            let Some(exchange) = &mut self.exchange else {
                return Flow::End;
            };
            let before = s.pending();
            if before > 0 && exchange.decode(s).is_err() {
                self.stage = Stage::Closing;
                return Flow::Go;
            }
            if exchange.has_whole_body() {
                self.exchange = None;
                self.timer = Timer::None;
                self.stage = Stage::Reading;
                return Flow::Go;
            }
            let discarded = u32::try_from(before - s.pending()).unwrap_or(u32::MAX);
            match self.spare.checked_sub(discarded) {
                Some(spare) => self.spare = spare,
                None => {
                    self.client_is_done = false;
                    self.stage = Stage::Closing;
                    return Flow::Go;
                }
            }
            if !s.out.is_empty()
                && let Sent::Stopped(flow) = self.send(cx, s)
            {
                return flow;
            }
            match self.read(cx, s, usize::MAX) {
                Poll::Pending => {
                    self.arm(Timer::Body);
                    return Flow::Wait;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Flow::End,
                Poll::Ready(Ok(_)) => {}
            }
        }
    }
}
