//! One server behind the shim: what is known of it, its idle connections, and its links.

use super::balance::stable_hash;
use super::links::Links;
use super::pool::Pool;
use prometheus_client::metrics::counter::Counter;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// What is counted of an instance.
#[derive(Debug, Clone)]
pub(super) struct InstanceCounters {
    /// Requests sent to it.
    pub(super) forwarded: Counter,
    /// Those of them that were sent on links.
    pub(super) on_links: Counter,
    /// Failures, by [`super::Failure`].
    pub(super) failures: [Counter; super::Failure::ALL.len()],
    /// Times it was ejected.
    pub(super) ejections: Counter,
}

/// One server behind the shim.
#[derive(Debug)]
pub struct Instance {
    address: String,
    seed: u64,
    /// Where its name led when last asked; an address literal leads to itself.
    resolved: Mutex<Option<SocketAddr>>,
    /// Requests under way over plain HTTP.
    pub(super) plain: AtomicU32,
    pub(super) links: Links,
    /// Whether it is given requests.
    pub(super) usable: AtomicBool,
    /// When it came back, in milliseconds of its group's clock; 0 if it has its full share.
    pub(super) recovering_since_ms: AtomicU64,
    /// Requests in a row that failed.
    pub(super) failures_in_row: AtomicU32,
    /// It answered in HTTP/1.0: it would not understand a chunked body.
    pub(super) is_http10: AtomicBool,
    pub(super) checks: Mutex<Checks>,
    pub(super) pool: Pool,
    pub(super) counters: InstanceCounters,
}

/// What the health checks know.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Whether the last ones came to "healthy"; `None` before the first.
    pub(super) healthy: Option<bool>,
    pub(super) good_in_row: u32,
    pub(super) bad_in_row: u32,
    /// Until when it is ejected, in milliseconds of its group's clock.
    pub(super) ejected_until_ms: Option<u64>,
    pub(super) ejections_in_row: u32,
    /// What the last check came to, for operators.
    pub(super) last: String,
}

impl Instance {
    pub(super) fn new(address: &str, pool: Pool, links: Links, counters: InstanceCounters) -> Self {
        Self {
            address: address.to_owned(),
            seed: stable_hash(address.as_bytes()),
            resolved: Mutex::new(address.parse().ok()),
            plain: AtomicU32::new(0),
            links,
            usable: AtomicBool::new(true),
            recovering_since_ms: AtomicU64::new(0),
            failures_in_row: AtomicU32::new(0),
            is_http10: AtomicBool::new(false),
            checks: Mutex::new(Checks::default()),
            pool,
            counters,
        }
    }

    /// `host:port`, as the settings have it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Requests under way, however they travel.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.plain.load(Relaxed) + self.links.under_way()
    }

    /// Whether it is given requests (when none of a group is usable, all are).
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.usable.load(Relaxed)
    }

    /// What operators are told of it.
    pub(super) fn describe(&self) -> serde_json::Value {
        let checks = lock(&self.checks);
        serde_json::json!({
            "address": self.address,
            "usable": self.is_usable(),
            "healthy": checks.healthy,
            "last_check": checks.last,
            "ejected": checks.ejected_until_ms.is_some(),
            "starting_slowly": self.recovering_since_ms.load(Relaxed) != 0,
            "outstanding": self.outstanding(),
            "idle_connections": self.pool.len(),
            "links": self.links.open(),
            "on_links": self.links.under_way(),
            "forwarded": self.counters.forwarded.get(),
        })
    }

    /// Whether it is ejected because its requests failed.
    pub(super) fn is_ejected(&self) -> bool {
        lock(&self.checks).ejected_until_ms.is_some()
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Where to connect to.
    ///
    /// # Errors
    /// Its name leads nowhere.
    pub async fn socket_address(&self) -> std::io::Result<SocketAddr> {
        let known = *lock(&self.resolved);
        match known {
            Some(address) => Ok(address),
            None => self.resolve().await,
        }
    }

    /// Asks where its name leads now.
    pub(super) async fn resolve(&self) -> std::io::Result<SocketAddr> {
        if let Ok(address) = self.address.parse() {
            return Ok(address);
        }
        let found = tokio::net::lookup_host(&self.address).await?.next();
        let address = found.ok_or(std::io::ErrorKind::NotFound)?;
        *lock(&self.resolved) = Some(address);
        Ok(address)
    }
}

/// A lock held by a thread that panicked still guards whole values: each is written by one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
