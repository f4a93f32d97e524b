//! How to reach a store, and why it may be refused.

use super::recent::{RECENT_ENTRIES_MAX, RECENT_KEPT};
use crate::game::rules::Limits;
use crate::store::clock::TimeSource;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trove_streams::{StoreUrl, UrlError, Version};

/// Where the store's time comes from.
#[derive(Clone)]
pub enum Time {
    /// The Redis server's clock.
    Server,
    /// A test's: the scripts read a key of the server, this process a clock that the test moves with it.
    Manual {
        /// A STRING with milliseconds since the epoch.
        key: String,
        /// The same time.
        time: Arc<dyn TimeSource>,
    },
    /// A test's on a cluster: a key in each slot that the store uses, as [`trove_streams::Clock::Beside`].
    ManualBeside {
        /// The end of the STRINGs' names.
        name: String,
        /// The same time.
        time: Arc<dyn TimeSource>,
    },
}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Server => "Server",
            Self::Manual { .. } | Self::ManualBeside { .. } => "Manual",
        })
    }
}

/// What must have a change before it is answered and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The server's memory.
    #[default]
    Async,
    /// So many replicas too.
    Replicated {
        /// How many.
        replicas_min: u32,
    },
    /// The server's append-only file too, on disk.
    Fsync,
}

/// How to use a Redis store.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many partitions a new store gets; an existing one must have as many.
    pub partitions: u16,
    /// Begins every key; empty where the store has a database of its own.
    pub prefix: String,
    /// How many instances share the store, to be compared with how many clients the server takes.
    pub instances_expected: u32,
    /// The rules' limits.
    pub limits: Limits,
    /// The most bytes of all feeds together; beyond them new finds are refused. No cap if `None`.
    pub feed_bytes_max: Option<u64>,
    /// Whether an empty server becomes a new store. If not, it is refused until somebody accepts it.
    pub create: bool,
    /// How long `connect` waits for a server.
    pub connect_wait: Duration,
    /// How long an answer may take, after which its outcome is unknown.
    pub response_timeout: Duration,
    /// What must have a change before it is answered and shown.
    pub durability: Durability,
    /// How long that is waited for, after which the answer is [`StoreError::NotDurable`](crate::store::StoreError).
    pub durability_wait: Duration,
    /// How long a read of the feed blocks.
    pub feed_block: Duration,
    /// The pause after a read of the feed that brought something, in which more gathers for the next: how far the mirror may
    /// be behind what other instances write. Each read costs the server a round of all partitions, and both a wake-up.
    pub feed_gather: Duration,
    /// How often whoever holds the lease looks for finds that have run out.
    pub sweep_interval: Duration,
    /// How often whoever holds the lease looks for clients' ids past their time.
    pub forget_interval: Duration,
    /// How often the feeds' bytes are measured.
    pub measure_interval: Duration,
    /// How long after a failover nothing runs out, while instances bring back what it took.
    pub recovery: Duration,
    /// The most entries of the feeds that are kept in memory after a failover, and for how long.
    pub recent_entries_max: usize,
    /// See `recent_entries_max`.
    pub recent_kept: Duration,
    /// The most bytes that an instance keeps of what it executed, to bring it back after a failover.
    pub replay_bytes_max: usize,
    /// For how long it keeps it.
    pub replay_age_max: Duration,
    /// A directory of this instance's own where it keeps it on disk too.
    pub journal_dir: Option<PathBuf>,
    /// Where time comes from.
    pub time: Time,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partitions: trove_streams::PARTITIONS_DEFAULT,
            prefix: String::new(),
            instances_expected: 1,
            limits: Limits::default(),
            feed_bytes_max: None,
            create: true,
            connect_wait: Duration::from_secs(5),
            response_timeout: Duration::from_millis(500),
            durability: Durability::Async,
            durability_wait: Duration::from_millis(1_000),
            feed_block: Duration::from_millis(100),
            feed_gather: Duration::from_millis(20),
            sweep_interval: Duration::from_secs(4),
            forget_interval: Duration::from_secs(60),
            measure_interval: Duration::from_secs(15),
            recovery: Duration::from_secs(2),
            recent_entries_max: RECENT_ENTRIES_MAX,
            recent_kept: RECENT_KEPT,
            replay_bytes_max: 64 << 20,
            replay_age_max: Duration::from_secs(60),
            journal_dir: None,
            time: Time::Server,
        }
    }
}

/// The most pending finds of a wallet that a script can handle at once.
pub const PENDING_FINDS_MAX: u64 = 3_000;

/// Why a server is not used as a store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    /// The URL is none, or asks for what is not supported.
    #[error("the store's URL: {0}")]
    Url(#[from] UrlError),
    /// The options contradict themselves.
    #[error("{0}")]
    Options(String),
    /// No usable server answered in time.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The server is too old.
    #[error("the server has version {found}, but Trove needs Redis {needed} or newer, or Valkey")]
    TooOld {
        /// Its version.
        found: Version,
        /// The oldest that will do.
        needed: Version,
    },
    /// The store was made with another number of partitions.
    #[error(
        "the store was made with {found} partitions, the settings say {wanted}; the number cannot change: set it to {found}"
    )]
    Partitions {
        /// The store's.
        found: u16,
        /// The settings'.
        wanted: u16,
    },
    /// A newer version of Trove wrote it.
    #[error(
        "the store has schema version {found}, this version of Trove knows {known}; use a newer one"
    )]
    Schema {
        /// The store's.
        found: u32,
        /// This version's.
        known: u32,
    },
    /// The server throws away what it was given when its memory is full.
    #[error(
        "the server's maxmemory-policy is {0}: when its memory is full it would throw wallets away; set it to noeviction"
    )]
    Evicts(String),
    /// The server cannot keep the promise that the settings ask for.
    #[error("store.durability = \"fsync\": {0}")]
    Durability(String),
    /// The server holds no store, or another one.
    #[error("{0}; if it is the store to be used from now on, run `trove store accept`")]
    Identity(String),
}

/// What `trove store info` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The store's identity; `None` on a server that holds no store.
    pub identity: Option<String>,
    /// Whether it is the one that this instance knows.
    pub known: bool,
    /// The version of the layout.
    pub schema: u32,
    /// The number of partitions.
    pub partitions: u16,
    /// The epoch.
    pub epoch: u64,
    /// When it was made, in milliseconds since the epoch.
    pub created_ms: u64,
    /// The server's version.
    pub version: String,
    /// Bytes of all feeds together, as last measured.
    pub feed_bytes: u64,
}

/// A parsed URL.
///
/// # Errors
/// When it is none.
pub(super) fn parse(url: &str) -> Result<StoreUrl, ConnectError> {
    Ok(url.parse()?)
}
