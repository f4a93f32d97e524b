//! A connection that has left HTTP: its bytes belong to what the backend made of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::{Connection, Flow, Sent, Timer};
use super::scratch::Scratch;
use super::{Backend, Phase, count};

/// A byte stream of two directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// What speaks on a connection after 101; see [`Backend::upgrade`].
///
/// The connection keeps its seat: it counts as open, and is cut when serving has ended. Dropped with it.
pub trait Upgraded: Send {
    /// The value of `Upgrade` in the 101.
    fn protocol(&self) -> &'static str;

    /// One turn: reads and writes `stream` until it would wait, or for as long as is fair to others. `Ready` ends the
    /// connection.
    ///
    /// Polled again when the stream or whatever else took `cx`'s waker wakes it, when the time given to
    /// [`UpgradedTurn::wake_in`] is over, and when draining begins.
    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn Stream,
        turn: &mut UpgradedTurn<'_>,
    ) -> Poll<()>;
}

/// What a turn of [`Upgraded`] is told, and can ask for.
#[derive(Debug)]
pub struct UpgradedTurn<'a> {
    early: &'a [u8],
    phase: Phase,
    timer_fired: bool,
    wake_in_ms: Option<u32>,
}

impl<'a> UpgradedTurn<'a> {
    /// Bytes that the client sent behind its request. There are some in the first turn only, and only once: they are lost
    /// unless they are taken.
    pub fn early(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.early)
    }

    /// How far the end of serving has come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the time of [`UpgradedTurn::wake_in`] is over. It is over once.
    #[must_use]
    pub fn timer_fired(&self) -> bool {
        self.timer_fired
    }

    /// Asks for another turn in `ms` milliseconds, instead of whatever time was asked for before.
    pub fn wake_in(&mut self, ms: u32) {
        self.wake_in_ms = Some(ms);
    }
}

/// The head of 101.
pub(super) fn push_switching(out: &mut Vec<u8>, protocol: &str) {
    out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: ");
    out.extend_from_slice(protocol.as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
}

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    pub(super) fn upgraded(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        if !s.out.is_empty()
            && let Sent::Stopped(flow) = self.send(cx, s)
        {
            return flow;
        }
        // The timers of writing the 101 are over.
        let timer_fired = std::mem::take(&mut self.expired);
        let Some(upgraded) = self.exchange.as_mut().and_then(|e| e.upgraded()) else {
            return Flow::End;
        };
        let mut turn = UpgradedTurn {
            early: &s.input[s.start..s.end],
            phase: self.front.phase(),
            timer_fired,
            wake_in_ms: None,
        };
        let io = &mut self.io;
        let polled = catch_unwind(AssertUnwindSafe(|| upgraded.turn(cx, io, &mut turn)));
        let wake_in_ms = turn.wake_in_ms;
        s.consume(s.pending());
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => return Flow::End,
            Err(_) => {
                count(&self.front.counters.panics);
                return Flow::End;
            }
        }
        if let Some(ms) = wake_in_ms {
            self.arm_in(Timer::Upgraded, ms);
        } else if self.timer != Timer::Upgraded {
            self.arm(Timer::None);
        }
        Flow::Wait
    }
}
