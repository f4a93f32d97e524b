//! The HTTP/1.1 connection layer: a lean, hard server for one event loop.
//!
//! A [`Front`] stands between sockets and a [`Backend`]. It reads requests strictly (what two servers could read
//! differently is refused, see [`Refusal`]), keeps every bound of [`Limits`] and frames every answer itself.
//!
//! An idle connection costs 905 bytes measured, and 28 for its place, which is there from the start: its task is 256, the
//! runtime's registration of its socket another 256, both aligned to 128. A poll answered at once is one read and one
//! write; of its CPU time 85 % is the kernel's.
//!
//! The life of a connection (`connection.rs`): it *reads* until it has a head; offers it to
//! [`Backend::answer_now`]; if that declines, holds an *exchange* with [`Backend::call`], feeding it the body and
//! writing its answer; *discards* what was not wanted of the body; and reads on. In the end it *closes* its half and
//! *lingers* until the client has closed the other, so that the last answer is not lost to a reset.
//!
//! What holds:
//! - Pipelined requests are answered in order, one at a time: a request is not given to the backend before the answer
//!   ahead of it is complete. Answers that are ready together leave in one write.
//! - A request whose client half-closed is answered. One whose connection is reset is cancelled: its future is dropped.
//! - A body that fails midway cuts the connection; its end is never written. (An HTTP/1.0 client without a length cannot
//!   tell, as ever.)
//! - A panic of the backend ends one connection.
//!
//! What is deliberately absent: HTTP/2, upgrades (the `Upgrade` field is dropped), trailers in either direction (they
//! are checked and dropped), and decoding of paths.

mod accept;
mod answer;
mod body;
mod chunk;
mod closing;
mod connection;
mod exchange;
mod framing;
mod head;
mod intake;
mod limits;
mod output;
mod reading;
mod refusal;
mod request;
mod response;
mod scratch;
mod seats;
mod service;
mod target;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use tokio::sync::Notify;

pub use accept::{descriptors_max, serve};
pub use answer::{Answer, FieldBlock, UnwritableField};
pub use body::{Body, BodyError};
pub use chunk::{ChunkDecoder, ChunkError, ChunkStep};
pub use connection::Connection;
pub use framing::Framing;
pub use head::{FieldSlots, Head, Origin, field_slots};
pub use limits::{FIELDS_CAPACITY, Limits, LimitsError, READ_BUFFER_BYTES};
pub use refusal::Refusal;
pub use seats::TICK_MS;
pub use service::{ServiceBackend, ServiceFuture};

use seats::Seats;

/// What stands behind a front: the application in this process, or servers elsewhere.
pub trait Backend: Send + Sync + 'static {
    /// The body of the answers of [`Backend::call`].
    type Body: http_body::Body<Data = Bytes, Error: std::fmt::Display> + Send + 'static;
    /// What [`Backend::call`] gives. Dropped when the client's connection is reset or the answer takes too long.
    type Future: Future<Output = Response<Self::Body>> + Send + 'static;

    /// A chance to answer from memory, without an `http::Request`, by writing into the connection's output.
    ///
    /// Offered for requests without a body. Returns false, having written nothing, to decline; the request then goes to
    /// [`Backend::call`]. What was written is taken back when this returns false or panics.
    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        let _ = (head, answer);
        false
    }

    /// The most bytes that this request's body may have, where it is not [`Limits::body_bytes_max`].
    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        let _ = head;
        None
    }

    /// Everything else. [`Origin`] is among the request's extensions.
    fn call(&self, request: Request<Body>) -> Self::Future;
}

/// How far the end of serving has come; sent by whoever owns the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// As ever.
    Serving = 0,
    /// The notice period: still accepting and answering, every answer with `Connection: close`, so that clients turn to
    /// another instance between two requests.
    Notice = 1,
    /// No new connections, idle ones are closed, and after [`Limits::drain_deadline_ms`] all of them.
    Draining = 2,
    /// What is still open is cut.
    Ended = 3,
}

/// What a front has counted since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections admitted.
    pub accepted: AtomicU64,
    /// Connections answered 503 because the front was full.
    pub refused_connections: AtomicU64,
    /// Connections dropped for want of a descriptor, or of a place to be refused in.
    pub dropped_connections: AtomicU64,
    /// Requests that the front refused on its own.
    pub refused_requests: AtomicU64,
    /// Timers that ended a request or a write (idle connections that were closed are not counted).
    pub timeouts: AtomicU64,
    /// Panics of the backend.
    pub panics: AtomicU64,
    /// Answers cut off because their body failed.
    pub cut_answers: AtomicU64,
}

/// One front: a backend, limits, and a place for each connection.
pub struct Front<B: Backend> {
    backend: Arc<B>,
    limits: Limits,
    seats: Seats,
    counters: Counters,
    phase: AtomicU8,
    /// Refused connections that linger; they have seats of their own.
    refusing: AtomicU32,
    started: Instant,
    unix_s: AtomicU64,
    emptied: Notify,
}

impl<B: Backend> Front<B> {
    /// A front with nothing to serve yet. Its clock moves only while [`Front::serve`] or [`Front::tick`] runs.
    ///
    /// # Errors
    /// Limits that contradict each other.
    pub fn new(backend: Arc<B>, limits: Limits) -> Result<Arc<Front<B>>, LimitsError> {
        limits.check()?;
        Ok(Arc::new(Front {
            backend,
            seats: Seats::new(limits.connections_max + limits.refusals_max),
            limits,
            counters: Counters::default(),
            phase: AtomicU8::new(Phase::Serving as u8),
            refusing: AtomicU32::new(0),
            started: Instant::now(),
            unix_s: AtomicU64::new(unix_s()),
            emptied: Notify::new(),
        }))
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its limits, as they are in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Connections open now, without those that are being refused.
    pub fn connections(&self) -> u32 {
        self.seats
            .open()
            .saturating_sub(self.refusing.load(Relaxed))
    }

    /// Moves to a phase, never back, and lets every connection act on it.
    pub fn enter(&self, phase: Phase) {
        let before = self.phase.fetch_max(phase as u8, Relaxed);
        if before < phase as u8 && phase >= Phase::Draining {
            self.seats.wake_all();
        }
    }

    fn is_closing(&self) -> bool {
        self.phase.load(Relaxed) >= Phase::Notice as u8
    }

    fn is_draining(&self) -> bool {
        self.phase.load(Relaxed) >= Phase::Draining as u8
    }

    fn has_ended(&self) -> bool {
        self.phase.load(Relaxed) >= Phase::Ended as u8
    }

    /// Moves the clock of timers and of `Date` on, every [`TICK_MS`], for ever.
    pub async fn tick(&self) {
        let period = Duration::from_millis(TICK_MS.into());
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.unix_s.store(unix_s(), Relaxed);
            let ticks = self.started.elapsed().as_millis() / u128::from(TICK_MS) + 1;
            self.seats
                .tick(u32::try_from(ticks).unwrap_or(u32::MAX - 1));
        }
    }

    /// A refusal's whole answer, for a connection that has no turn of its own.
    fn refusal(&self, refusal: Refusal) -> Vec<u8> {
        let mut answer = Vec::new();
        let scratch = scratch::Scratch::take(self.unix_s.load(Relaxed));
        let retry_after_s = self.retry_after_s();
        answer::push_refusal(&mut answer, refusal, false, &scratch.date, retry_after_s);
        scratch.give_back();
        answer
    }

    /// Seconds that a refused client is asked to stay away: spread, so that a crowd does not return as one.
    fn retry_after_s(&self) -> u32 {
        let spread = self.limits.retry_after_s_max - self.limits.retry_after_s_min + 1;
        // A multiplicative hash of a count and the clock is random enough to spread a crowd.
        let count = self
            .counters
            .refused_connections
            .load(Relaxed)
            .wrapping_add(self.unix_s.load(Relaxed));
        let hash = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        self.limits.retry_after_s_min + u32::try_from(hash % u64::from(spread)).unwrap_or(0)
    }
}

fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Adds one to a counter.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
