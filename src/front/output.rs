//! Writing: everything that leaves a connection goes through [`Connection::send`].

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};

use super::Backend;
use super::connection::{Connection, Flow, Sent, Timer};
use super::scratch::Scratch;

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    /// Writes what earlier turns left, then the output, then the piece of an answer that waits beside it.
    ///
    /// `Sent::All`: all of it has left, and at most a chunk's CRLF is in the output again. Else what the socket did not
    /// take is kept with the connection, and nothing more may be produced in this turn.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Sent {
        if let Some(flow) = self.write_all(cx, s) {
            return Sent::Stopped(flow);
        }
        if let Some(kept) = &mut self.kept {
            kept.unsent = Vec::new();
            kept.sent = 0;
            self.tell_blocked();
        }
        s.out.clear();
        if let Some(exchange) = &mut self.exchange
            && std::mem::take(&mut exchange.piece_is_chunk)
        {
            // Leaves with the next chunk, or at the end of this turn.
            s.out.extend_from_slice(b"\r\n");
        }
        if self.unflushed && Pin::new(&mut self.io).poll_flush(cx).is_pending() {
            self.arm(Timer::Write);
            self.keep(s, 0);
            return Sent::Stopped(Flow::Wait);
        }
        self.unflushed = false;
        Sent::All
    }

    /// What earlier turns could not write.
    pub(super) fn unsent(&self) -> &[u8] {
        self.kept
            .as_ref()
            .map_or(&[], |kept| &kept.unsent[kept.sent..])
    }

    /// Keeps what was not written; `at` bytes of the output were.
    fn keep(&mut self, s: &mut Scratch, at: usize) {
        if at < s.out.len() || self.kept.is_some() {
            let kept = self.kept.get_or_insert_default();
            kept.unsent.drain(..kept.sent);
            kept.sent = 0;
            kept.unsent.extend_from_slice(&s.out[at..]);
        }
        s.out.clear();
    }

    /// The client takes no more for now.
    fn note_blocked(&mut self) {
        let arrived = self.arrived;
        let kept = self.kept.get_or_insert_default();
        kept.blocked.get_or_insert_with(|| {
            let now = Instant::now();
            (now, now.saturating_duration_since(arrived))
        });
    }

    /// Tells the backend, if the client took no more for a while, how long that was.
    pub(super) fn tell_blocked(&mut self) {
        let blocked = self.kept.as_mut().and_then(|kept| kept.blocked.take());
        if let Some((since, answered_after)) = blocked {
            // Requests that were read meanwhile could not be answered: their time begins now.
            self.arrived = Instant::now();
            self.front
                .backend
                .read_slowly(answered_after, since.elapsed());
        }
    }

    /// `None` when all is written.
    fn write_all(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Option<Flow> {
        // Bytes of the output that are written.
        let mut at = 0;
        loop {
            let unsent = self
                .kept
                .as_ref()
                .map_or(&[][..], |kept| &kept.unsent[kept.sent..]);
            let from_unsent = !unsent.is_empty();
            let before = if from_unsent { unsent } else { &s.out[at..] };
            // The piece follows all that was written before it.
            let piece_is_next = !from_unsent || s.out.len() == at;
            let piece = match &self.exchange {
                Some(exchange) if piece_is_next => &exchange.piece[..],
                _ => &[],
            };
            if before.is_empty() && piece.is_empty() {
                return None;
            }
            let room = (self.front.limits.turn_bytes_max as usize).saturating_sub(s.written);
            if room == 0 {
                self.keep(s, at);
                return Some(Flow::Yield);
            }
            let before = &before[..before.len().min(room)];
            let piece = &piece[..piece.len().min(room - before.len())];
            let io = Pin::new(&mut self.io);
            let written = if before.is_empty() {
                io.poll_write(cx, piece)
            } else if piece.is_empty() || !io.is_write_vectored() {
                io.poll_write(cx, before)
            } else {
                io.poll_write_vectored(cx, &[IoSlice::new(before), IoSlice::new(piece)])
            };
            let of_before = before.len();
            match written {
                Poll::Pending => {
                    self.arm(Timer::Write);
                    self.keep(s, at);
                    self.note_blocked();
                    return Some(Flow::Wait);
                }
                Poll::Ready(Ok(0) | Err(_)) => return Some(Flow::End),
                Poll::Ready(Ok(written)) => {
                    s.written += written;
                    self.timer = Timer::None;
                    self.unflushed = true;
                    let of_before = written.min(of_before);
                    match &mut self.kept {
                        Some(kept) if from_unsent => kept.sent += of_before,
                        _ => at += of_before,
                    }
                    if written > of_before
                        && let Some(exchange) = &mut self.exchange
                    {
                        exchange.piece_written(written - of_before);
                    }
                }
            }
        }
    }
}
