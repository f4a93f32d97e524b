//! The HTTP/1.1 connection layer: a lean, hard server for one event loop.
//!
//! A [`Front`] stands between sockets and a [`Backend`]. It reads requests strictly (what two servers could read
//! differently is refused, see [`Refusal`]), keeps every bound of [`Limits`] and frames every answer itself.
//!
//! An idle connection costs 912 bytes measured, and 29 for its place, which is there from the start: its task is 256, the
//! runtime's registration of its socket another 256, both aligned to 128. A poll answered at once is one read and one
//! write; of its CPU time 85 % is the kernel's.
//!
//! The life of a connection (`connection.rs`): it *reads* until it has a head, and a small body if the backend wants that whole; offers
//! it to [`Backend::answer_now`]; if that declines, to [`Backend::take`], and waits for the ticket's answer (*deferred*),
//! which is written straight to a TCP socket when the connection has nothing else to do;
//! if that declines too, holds an *exchange* with [`Backend::call`], feeding it the body and writing its answer; *discards* what was not wanted of the body; and reads on. In the end it *closes* its half and
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
//! - Every answer carries what [`Backend::sign`] writes or what the backend wrote itself: refusals are no exception.
//! - A request that was taken is answered once: by its ticket, or with 502 if that is dropped, or with 503 when its time is
//!   over. A ticket knows its request by a number that is never used again, and opens no other.
//!
//! What is deliberately absent: HTTP/2, upgrades that no backend takes (the `Upgrade` field is dropped), trailers in
//! either direction (they are checked and dropped), and decoding of paths.

mod accept;
mod answer;
mod apart;
mod body;
mod chunk;
mod closing;
mod connection;
mod deferred;
mod desk;
mod discard;
mod exchange;
mod framing;
mod head;
mod intake;
mod limits;
mod offer;
mod output;
mod pen;
mod reading;
mod refusal;
mod request;
mod response;
mod scratch;
mod seats;
mod service;
mod target;
mod tcp;
mod trace;
mod upgrade;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use tokio::sync::Notify;

pub use accept::{descriptors_max, serve};
pub use answer::{Answer, FieldBlock, UnwritableField, is_framing};
pub use apart::{Apart, FieldLines};
pub use body::{Body, BodyError};
pub use chunk::{ChunkDecoder, ChunkError, ChunkStep};
pub use connection::Connection;
pub use desk::{Ticket, Tried};
pub use framing::{Framing, connection_options};
pub use head::{FieldSlots, Head, Origin, Sending, field_slots};
pub use limits::{FIELDS_CAPACITY, Limits, LimitsError, READ_BUFFER_BYTES};
pub use offer::Offer;
pub use refusal::{OwnAnswer, Refusal};
pub use request::whole_request;
pub use seats::TICK_MS;
pub use service::{ServiceBackend, ServiceFuture};
pub use tcp::Tcp;
pub use trace::TraceParent;
pub use upgrade::{Stream, Upgraded, UpgradedTurn};

use desk::Desk;
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

    /// Whether this request, whose body is of a declared length up to [`Limits::small_body_bytes_max`], is to be offered to
    /// [`Backend::answer_whole`] and [`Backend::take`] once its body has arrived. Asked again for each part that arrives.
    ///
    /// Not asked about a request with `Expect`, whose body comes only when it is read.
    fn wants_whole(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// [`Backend::answer_now`] for a request whose whole, small body is there: see [`Backend::wants_whole`].
    fn answer_whole(&self, head: &Head<'_>, body: &[u8], answer: &mut Answer<'_>) -> bool {
        let _ = (head, body, answer);
        false
    }

    /// A chance to take a request that was not answered at once, and to answer it later through the ticket that
    /// [`Offer::ticket`] draws: without an `http::Request`, and without a future of its own. A request of which no ticket
    /// was drawn goes to [`Backend::call`].
    ///
    /// Offered for requests without a body and for those that [`Backend::wants_whole`] asked for.
    fn take(&self, offer: &mut Offer<'_>) {
        let _ = offer;
    }

    /// The client of a request that was taken has gone, or has been told that the answer took too long: its ticket has
    /// become worthless. `note` is what [`Ticket::set_note`] left. Called from the connection's own turn or its drop.
    fn gone(&self, note: u64) {
        let _ = note;
    }

    /// Whether a connection whose client asks for another protocol ([`Head::upgrade`]) shall become what is returned: 101
    /// is sent, and from then on the byte stream is its own. `None` leaves the request an ordinary one, as
    /// RFC 9110 7.8 allows.
    fn upgrade(&self, head: &Head<'_>) -> Option<Box<dyn Upgraded>> {
        let _ = head;
        None
    }

    /// A client was slow to read: what it was to be sent was blocked for `reading`, after an answer that was ready
    /// `answered_after` its request. Told when all has left, or the wait was given up.
    fn read_slowly(&self, answered_after: Duration, reading: Duration) {
        let _ = (answered_after, reading);
    }

    /// Fields that every answer carries, for those that the front gives itself: its refusals, and the 502 of a ticket that
    /// was dropped. `took` is the time since the request was read, as far as it was.
    fn sign(&self, took: Duration, answer: &mut Answer<'_>) {
        let _ = (took, answer);
    }

    /// The front has answered by itself, or turned a connection away that it had no place to answer on: to be counted.
    fn refused(&self, own: &OwnAnswer) {
        let _ = own;
    }

    /// The front answers a request that [`Backend::call`] has, by itself. `future` is not polled again, and dropped next; it
    /// may have given its answer, which could not be sent then.
    fn give_up(&self, why: Refusal, future: Pin<&mut Self::Future>) {
        let _ = (why, future);
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
    /// Places, clock, and the requests whose answers are awaited; shared with their tickets.
    desk: Arc<Desk>,
    counters: Counters,
    /// Refused connections that linger; they have seats of their own.
    refusing: AtomicU32,
    started: Instant,
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
            desk: Desk::new(
                Seats::new(limits.connections_max + limits.refusals_max),
                (sign_of(&backend), count_of(&backend)),
                limits.idle_timeout_ms,
            ),
            backend,
            limits,
            counters: Counters::default(),
            refusing: AtomicU32::new(0),
            started: Instant::now(),
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
        self.desk
            .seats
            .open()
            .saturating_sub(self.refusing.load(Relaxed))
    }

    /// Moves to a phase, never back, and lets every connection act on it.
    pub fn enter(&self, phase: Phase) {
        let before = self.desk.phase.fetch_max(phase as u8, Relaxed);
        if before < phase as u8 && phase >= Phase::Draining {
            self.desk.seats.wake_all();
        }
    }

    fn phase(&self) -> Phase {
        match self.desk.phase.load(Relaxed) {
            0 => Phase::Serving,
            1 => Phase::Notice,
            2 => Phase::Draining,
            _ => Phase::Ended,
        }
    }

    fn is_closing(&self) -> bool {
        self.desk.is_closing()
    }

    fn is_draining(&self) -> bool {
        self.desk.phase.load(Relaxed) >= Phase::Draining as u8
    }

    fn has_ended(&self) -> bool {
        self.desk.phase.load(Relaxed) >= Phase::Ended as u8
    }

    /// Moves the clock of timers and of `Date` on, every [`TICK_MS`], for ever.
    pub async fn tick(&self) {
        let period = Duration::from_millis(TICK_MS.into());
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.desk.unix_s.store(unix_s(), Relaxed);
            let ticks = self.started.elapsed().as_millis() / u128::from(TICK_MS) + 1;
            self.desk
                .seats
                .tick(u32::try_from(ticks).unwrap_or(u32::MAX - 1));
        }
    }

    /// A refusal's whole answer, for a connection that has no turn of its own.
    fn refusal(&self, refusal: Refusal) -> Vec<u8> {
        let mut answer = Vec::new();
        let scratch = scratch::Scratch::take(self.desk.unix_s.load(Relaxed));
        let shape = (false, &*scratch.date);
        self.push_refusal(&mut answer, refusal, shape, Instant::now());
        scratch.give_back();
        answer
    }

    /// Has an answer of the front's own counted.
    fn refused(&self, why: Refusal, took: Duration, was_called: bool) {
        (self.desk.count)(&OwnAnswer {
            why,
            took,
            was_called,
        });
    }

    /// Writes a refusal of a request that arrived at `arrived`: whether it was HEAD, and `date: …`.
    fn push_refusal(
        &self,
        out: &mut Vec<u8>,
        refusal: Refusal,
        shape: (bool, &[u8]),
        arrived: Instant,
    ) {
        let sign = |answer: &mut Answer<'_>| (self.desk.sign)(arrived.elapsed(), answer);
        answer::push_refusal(out, refusal, shape, self.retry_after_s(), sign);
    }

    /// Seconds that a refused client is asked to stay away: spread, so that a crowd does not return as one.
    fn retry_after_s(&self) -> u32 {
        let spread = self.limits.retry_after_s_max - self.limits.retry_after_s_min + 1;
        // A multiplicative hash of a count and the clock is random enough to spread a crowd.
        let count = self
            .counters
            .refused_connections
            .load(Relaxed)
            .wrapping_add(self.desk.unix_s.load(Relaxed));
        let hash = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        self.limits.retry_after_s_min + u32::try_from(hash % u64::from(spread)).unwrap_or(0)
    }
}

/// [`Backend::sign`], for whoever does not know the backend. Where it panics, fields are missing and nothing else.
fn sign_of<B: Backend>(backend: &Arc<B>) -> desk::Sign {
    let backend = backend.clone();
    Box::new(move |took, answer| {
        // Safe to go on after a panic: an answer that it left half written cannot be sent, and is written anew.
        let signed = catch_unwind(AssertUnwindSafe(|| backend.sign(took, answer)));
        if signed.is_err() {
            answer.status(0);
        }
    })
}

/// [`Backend::refused`], for whoever does not know the backend. Where it panics, something is not counted.
fn count_of<B: Backend>(backend: &Arc<B>) -> desk::CountOwn {
    let backend = backend.clone();
    // Safe to go on after a panic: nothing of the backend is kept.
    Box::new(move |own| {
        let _ = catch_unwind(AssertUnwindSafe(|| backend.refused(own)));
    })
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
