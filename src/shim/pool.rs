//! Idle connections to one instance.

use super::instance::lock;
use bytes::BytesMut;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// A connection to an instance, with one request on it at a time.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) stream: TcpStream,
    /// What was read and not yet taken; empty whenever the connection is idle.
    pub(super) input: BytesMut,
    /// Whether it has carried a request before.
    pub(super) is_reused: bool,
}

impl Upstream {
    pub(super) fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            input: BytesMut::new(),
            is_reused: false,
        }
    }

    /// Whether nothing has happened on it while it was idle: neither its end, nor a byte that nobody asked for.
    fn is_quiet(&self) -> bool {
        matches!(
            self.stream.try_read(&mut [0; 1]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock
        )
    }
}

/// The idle connections, the last used first: what is too many grows old, and goes.
#[derive(Debug)]
pub(super) struct Pool {
    idle: Mutex<Vec<(Upstream, Instant)>>,
    idle_max: usize,
    idle_time: Duration,
}

impl Pool {
    /// A pool of at most `idle_max` connections, each idle for less than `idle_time`.
    pub(super) fn new(idle_max: usize, idle_time: Duration) -> Self {
        Self {
            idle: Mutex::default(),
            idle_max,
            idle_time,
        }
    }

    /// A connection that is still open, as far as can be seen from here.
    pub(super) fn take(&self) -> Option<Upstream> {
        loop {
            let (mut upstream, since) = lock(&self.idle).pop()?;
            if since.elapsed() < self.idle_time && upstream.is_quiet() {
                upstream.is_reused = true;
                return Some(upstream);
            }
        }
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(super) fn put(&self, upstream: Upstream) {
        let mut idle = lock(&self.idle);
        if idle.len() < self.idle_max {
            idle.push((upstream, Instant::now()));
        }
    }

    /// Whether there are as many as are kept.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.idle).len() >= self.idle_max
    }

    /// Closes what is too old, or was closed by the other side.
    pub(super) fn sweep(&self, now: Instant) {
        lock(&self.idle).retain(|(upstream, since)| {
            now.duration_since(*since) < self.idle_time && upstream.is_quiet()
        });
    }

    /// Closes them all.
    pub(super) fn clear(&self) {
        lock(&self.idle).clear();
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.idle).len()
    }
}
