//! A soak case: a seeded, declarative file that says what to run, what to break, and what must hold.
//!
//! Every time in a case is a time of the *event* that it stands for. [`Case::compress`] divides the times that belong to
//! the event (its length, the window, intervals of users, the curve, the faults), so that 48 hours pass in less; what belongs to the
//! machines (time-outs, latencies, the harness's own intervals) stays as it is. The fields say which is which.

mod check;
pub mod curve;
mod rates;
mod read;
mod scale;
pub mod shipped;
#[cfg(test)]
mod tests;

pub use check::{
    ACTION_INTERVAL_MIN, DURATION_MAX, FAULTS_MAX, INSTANCES_MAX, INTERVAL_MIN, USERS_MAX,
};
pub use rates::{BULK_EVERY, BULK_FINDS_MAX, emits_line, emits_per_second};
pub use read::{CASE_BYTES_MAX, CaseError};
pub use scale::WINDOW_MIN;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A case as its file says it. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Names the run: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// The question that the case answers, in a sentence or two; the report begins with it.
    pub question: String,
    /// Of everything random in the run.
    pub seed: u64,
    /// How long the event lasts. Compressed.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// How much of its beginning is recorded but not judged (users arrive, caches fill). Not compressed.
    #[serde(with = "humantime_serde", default)]
    pub warmup: Duration,
    /// After its end: users go on polling without new finds, so that what is pending is collected or expires. Not compressed;
    /// the window is added to it.
    #[serde(with = "humantime_serde", default = "defaults::settle")]
    pub settle: Duration,
    /// By how much the event's times are divided, at least 1.
    #[serde(default = "defaults::compress")]
    pub compress: f64,
    /// The length of an interval of the record: counts are reconciled and validity is decided for each. Not compressed.
    #[serde(with = "humantime_serde", default = "defaults::interval")]
    pub interval: Duration,
    /// The hunt's window. Compressed, 5 s at the least.
    #[serde(with = "humantime_serde", default = "defaults::window")]
    pub window: Duration,
    /// How many users, when.
    pub load: Load,
    /// What each user does.
    #[serde(default)]
    pub behaviour: Behaviour,
    /// What lies between users and the system.
    #[serde(default)]
    pub network: Network,
    /// What is tested.
    #[serde(default)]
    pub system: System,
    /// What is broken, and when.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What must hold.
    #[serde(default)]
    pub objectives: Vec<Objective>,
    /// When the harness must not be believed, and when a resource counts as leaking.
    #[serde(default)]
    pub bounds: Bounds,
}

/// How many users, when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The most users at a time; the curve is a share of it.
    pub users: u32,
    /// The curve over the event.
    #[serde(default)]
    pub curve: Curve,
    /// Over how long users who are to come arrive, instead of all at once. Not compressed.
    #[serde(with = "humantime_serde", default = "defaults::arrive_over")]
    pub arrive_over: Duration,
    /// The generator's step: what is due is sent at its end, and answers are seen at its end. Latency counts from the
    /// intended time all the same, so a long tick makes it look worse, never better. A short one costs the generator, and
    /// the machine it shares, a waking for each request. Not compressed.
    #[serde(with = "humantime_serde", default = "defaults::tick")]
    pub tick: Duration,
    /// How the generator's thread is scheduled.
    #[serde(default)]
    pub priority: Priority,
}

/// How the generator's thread, or a process, is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// As any other.
    #[default]
    Normal,
    /// Before any other (`SCHED_RR`), as if it had a machine of its own, for a run in which it shares its cores with what
    /// loads it or what it loads. Where that is not allowed (it takes `CAP_SYS_NICE`) the run says so and goes on without.
    RealTime,
}

/// The share of [`Load::users`] that is there, over the event's time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Curve {
    /// All, from beginning to end.
    #[default]
    Constant,
    /// From a share to all, evenly over a time, then all.
    Ramp {
        /// The share at the beginning, 0 to 1.
        from: f64,
        /// Compressed.
        #[serde(with = "humantime_serde")]
        over: Duration,
    },
    /// Numbers of users one after the other, each for an equal part of the event: `[10, 50, 100, 200, 400, 800]`.
    Steps {
        /// Users of each step, none above [`Load::users`].
        users: Vec<u32>,
    },
    /// A share, and all of them for a time.
    Spike {
        /// The share outside the spike, 0 to 1.
        base: f64,
        /// When it begins. Compressed.
        #[serde(with = "humantime_serde")]
        at: Duration,
        /// How long it lasts. Compressed.
        #[serde(with = "humantime_serde")]
        lasts: Duration,
    },
    /// Readings of `timestamp,value`, the greatest of which is all; their whole length is mapped onto the event's.
    Csv {
        /// The file: beside the case file, or one that ships with the harness (`elb_request_count.csv`).
        file: PathBuf,
        /// What is in it, once the case has been read.
        #[serde(skip)]
        readings: curve::Readings,
    },
    /// A recording of real traffic (see `recording`): its requests' times and kinds instead of intervals.
    Recording {
        /// The recording's directory or file.
        file: PathBuf,
    },
}

/// What each user does. An interval of zero turns an action off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behaviour {
    /// Between two polls. Compressed.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Whether `next_poll_ms` of the answers is obeyed instead, the hint scaled as the intervals are.
    pub obey_hint: bool,
    /// The share of polls that carry `If-None-Match` of the last cursor, 0 to 1.
    pub conditional_share: f64,
    /// Connections that a user may hold, 1 or 2: with 2, polls and heartbeats go on over a new one while a find, a look at
    /// the history or at the catalogue waits for its answer on the first.
    pub connections: u32,
    /// Between two heartbeats. Compressed.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// The size of a heartbeat's body, bytes.
    pub heartbeat_bytes: u32,
    /// Between two finds, on average (times between finds are exponential). Compressed.
    #[serde(with = "humantime_serde")]
    pub find_interval: Duration,
    /// The share of finds that a game back end reports in bulk instead of the player, 0 to 1.
    pub bulk_share: f64,
    /// The share of finds that are sent again with the same id at once, as a phone does that lost the answer, 0 to 1.
    pub find_retry_share: f64,
    /// The share of finds of players who never poll in the find's window, so that they must expire, 0 to 1.
    pub abandon_share: f64,
    /// Between two looks at the history. Compressed.
    #[serde(with = "humantime_serde")]
    pub history_interval: Duration,
    /// Between two looks at the catalogue. Compressed.
    #[serde(with = "humantime_serde")]
    pub catalogue_interval: Duration,
    /// After how long a request is given up. Not compressed.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

/// What lies between users and the system. None of it is compressed but the times of connections and of the background.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// One way, before a request leaves and before its answer is seen.
    #[serde(with = "humantime_serde")]
    pub latency: Duration,
    /// Added to it, evenly from 0 to this.
    #[serde(with = "humantime_serde")]
    pub jitter: Duration,
    /// The share of requests that are lost on their way, half before the server and half after, 0 to 1.
    pub loss: f64,
    /// How long a connection is kept, on average, before the user opens a new one; zero: for ever. Compressed.
    #[serde(with = "humantime_serde")]
    pub connection_lasts: Duration,
    /// How long a user stays in the foreground, on average; zero: always. Compressed.
    #[serde(with = "humantime_serde")]
    pub foreground: Duration,
    /// How long in the background, where nothing is sent, on average. Compressed.
    #[serde(with = "humantime_serde")]
    pub background: Duration,
}

/// What is tested: an address, or processes that the harness starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct System {
    /// `http://host:port` of what is already there; empty: the harness starts the processes below.
    pub address: String,
    /// Where its operations listeners are, if they are to be reconciled: `http://host:port`, the shim's first.
    pub ops_addresses: Vec<String>,
    /// The path of a poll, with `{player}`; a server that is not Trove's gets only such requests and is checked only for
    /// speed and errors. Empty: Trove's own.
    pub url_template: String,
    /// Of the store.
    pub store: StoreKind,
    /// Replicas of each Redis primary (`redis_sentinel`, `redis_cluster`).
    pub replicas: u32,
    /// How many `trove serve`.
    pub instances: u32,
    /// A second group of as many instances, to switch to.
    pub second_group: bool,
    /// Whether `trove shim` stands in front of them.
    pub shim: bool,
    /// Settings of the servers, `"section.key" = value`, passed as `TROVE_SECTION__KEY`.
    pub settings: BTreeMap<String, toml::Value>,
    /// How processes of each kind are scheduled; what is not named as any other. On cores that a system shares with what
    /// loads it, `shim = "real_time"` is what a machine of its own is to a shim in the field.
    pub priority: Priorities,
    /// The `trove` program; empty: the one beside the harness's own.
    pub trove: PathBuf,
}

/// How each kind of process that the harness starts is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Priorities {
    /// `trove shim`.
    pub shim: Priority,
    /// `trove serve`.
    pub serve: Priority,
    /// Redis servers.
    pub redis: Priority,
    /// Sentinels.
    pub sentinel: Priority,
}

impl Priorities {
    /// Each kind, by what the names of such processes begin with (`serve-0`), and how it is scheduled.
    #[must_use]
    pub const fn by_kind(&self) -> [(&'static str, Priority); 4] {
        [
            ("shim", self.shim),
            ("serve", self.serve),
            ("redis", self.redis),
            ("sentinel", self.sentinel),
        ]
    }

    /// How the process of this name is scheduled.
    #[must_use]
    pub fn of(&self, process: &str) -> Priority {
        let mut kinds = self.by_kind().into_iter();
        let found = kinds.find(|(kind, _)| process.split('-').next() == Some(kind));
        found.map_or(Priority::Normal, |(_, priority)| priority)
    }
}

/// The store of a system that the harness starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// One server, one file.
    #[default]
    Embedded,
    /// One Redis.
    Redis,
    /// A primary, replicas, three Sentinels.
    RedisSentinel,
    /// Three primaries and their replicas.
    RedisCluster,
}

/// One thing that is broken on purpose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When. Compressed.
    #[serde(with = "humantime_serde")]
    pub at: Duration,
    /// Again after each such time until the event ends; zero: once. Compressed.
    #[serde(with = "humantime_serde", default)]
    pub every: Duration,
    /// The most times, with `every`; 0: as often as fits.
    #[serde(default)]
    pub times: u32,
    /// What.
    pub what: FaultKind,
    /// Which of its kind, from 0; with `every`, the next one each time.
    #[serde(default)]
    pub which: u32,
    /// How long it lasts, where it does (a stop, a cut, slowness, a full disk). Not compressed.
    #[serde(with = "humantime_serde", default)]
    pub lasts: Duration,
    /// For how long a Redis server that was killed, and whose place another takes, stays away; zero: until the other has it.
    /// On one machine what it does when it comes back (reading its file, copying all that is new) costs the rest the
    /// processor's time, which in the field it does not. Not compressed.
    #[serde(with = "humantime_serde", default)]
    pub away: Duration,
    /// For how long from its beginning its allowance counts instead of the objectives. Not compressed.
    #[serde(with = "humantime_serde", default)]
    pub allow_for: Duration,
    /// Requests of each kind that may fail meanwhile: `{ find = 100 }`; what is not named may not.
    #[serde(default)]
    pub allow_failed: BTreeMap<Kind, u64>,
    /// The p99 of polls that is allowed meanwhile; zero: the objectives'.
    #[serde(with = "humantime_serde", default)]
    pub allow_p99: Duration,
}

/// What can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// `kill -9` of an instance, then started again.
    KillInstance,
    /// SIGSTOP of an instance, SIGCONT after `lasts`.
    StopInstance,
    /// SIGTERM of an instance (it drains), then started again.
    RestartInstance,
    /// Blue/green: the other group is started and switched to, the old one ended.
    Switch,
    /// `kill -9` of the shim, then started again.
    KillShim,
    /// SIGTERM of the shim, then started again.
    RestartShim,
    /// `kill -9` of the Redis primary; with Sentinel or Cluster another takes over and the old one returns as a replica, else
    /// it is started again from its append-only file.
    KillRedis,
    /// The primary's replicas hear nothing from it for `lasts`; then it dies as in `KillRedis`, and with it what it
    /// acknowledged meanwhile, unless `store.durability` waits for replicas.
    LoseRedis,
    /// SIGSTOP of the primary, SIGCONT after `lasts`.
    StopRedis,
    /// `SENTINEL FAILOVER` or `CLUSTER FAILOVER`, as an operator does.
    FailoverRedis,
    /// Nothing passes between instances and Redis for `lasts`; connections stay open.
    CutRedis,
    /// Every byte between instances and Redis is late by 50 ms for `lasts`.
    SlowRedis,
    /// Nothing passes between users and the system for `lasts`; connections stay open.
    CutClients,
    /// No space is left on the store's disk for `lasts`.
    FillDisk,
    /// Every user drops its connection and reconnects at once.
    Stampede,
    /// The number of users is doubled for `lasts`.
    DoubleLoad,
}

impl FaultKind {
    /// As in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KillInstance => "kill_instance",
            Self::StopInstance => "stop_instance",
            Self::RestartInstance => "restart_instance",
            Self::Switch => "switch",
            Self::KillShim => "kill_shim",
            Self::RestartShim => "restart_shim",
            Self::KillRedis => "kill_redis",
            Self::LoseRedis => "lose_redis",
            Self::StopRedis => "stop_redis",
            Self::FailoverRedis => "failover_redis",
            Self::CutRedis => "cut_redis",
            Self::SlowRedis => "slow_redis",
            Self::CutClients => "cut_clients",
            Self::FillDisk => "fill_disk",
            Self::Stampede => "stampede",
            Self::DoubleLoad => "double_load",
        }
    }
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `GET /treasure/{hunt}`.
    Poll,
    /// `POST /heartbeat`.
    Heartbeat,
    /// `POST /treasure/{hunt}/finds` by a player.
    Find,
    /// `POST /hunts/{hunt}/finds` by a back end; one request carries many finds.
    BulkFind,
    /// `GET /treasure/{hunt}/history`.
    History,
    /// `GET /hunts/{hunt}`.
    Catalogue,
}

impl Kind {
    /// All of them, in the order in which tables show them.
    pub const ALL: [Self; 6] = [
        Self::Poll,
        Self::Heartbeat,
        Self::Find,
        Self::BulkFind,
        Self::History,
        Self::Catalogue,
    ];

    /// As in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Heartbeat => "heartbeat",
            Self::Find => "find",
            Self::BulkFind => "bulk_find",
            Self::History => "history",
            Self::Catalogue => "catalogue",
        }
    }
}

/// What must hold over all judged intervals together, outside the allowances of faults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Of which requests.
    pub request: Kind,
    /// The share of failed requests, at most (0.005 is half a percent). A request slower than `failed_above` counts as failed.
    pub error_ratio: f64,
    /// Slower than this is failed; zero: only what failed is. Not compressed.
    #[serde(with = "humantime_serde", default)]
    pub failed_above: Duration,
    /// The percentile that is judged, above 0 and below 100.
    pub percentile: f64,
    /// It is at most this. Not compressed.
    #[serde(with = "humantime_serde")]
    pub below: Duration,
}

/// When the harness must not be believed, and when a resource counts as leaking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// An interval in which a request left later than intended by more than this has no verdict.
    #[serde(with = "humantime_serde")]
    pub behind_max: Duration,
    /// The share by which the harness's counts and the system's may differ in an interval (requests under way at its edges).
    pub reconcile_ratio: f64,
    /// The share of judged intervals that may be without a verdict before the whole run is invalid.
    pub invalid_share_max: f64,
    /// A resource leaks if it grows faster than this share of its level after the warm-up, an hour of the run …
    pub leak_slope_per_hour: f64,
    /// … and has grown by more than this share …
    pub leak_growth: f64,
    /// … and, of memory, by more than so many bytes (what an allocator keeps after a burst is no leak) …
    pub leak_bytes: u64,
    /// … or, of descriptors, threads and connections, by more than so many …
    pub leak_count: u64,
    /// … over at least this long, under about the same load, of one life of the process, its own warm-up left out. What was
    /// not observed for so long is not judged, and the report says so. Not compressed.
    #[serde(with = "humantime_serde")]
    pub leak_after: Duration,
}

mod defaults {
    use std::time::Duration;

    pub(super) fn settle() -> Duration {
        Duration::from_secs(15)
    }
    pub(super) fn compress() -> f64 {
        1.0
    }
    pub(super) fn interval() -> Duration {
        Duration::from_secs(5)
    }
    pub(super) fn window() -> Duration {
        Duration::from_secs(300)
    }
    pub(super) fn tick() -> Duration {
        Duration::from_micros(200)
    }
    pub(super) fn arrive_over() -> Duration {
        Duration::from_secs(5)
    }
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_millis(1200),
            obey_hint: false,
            conditional_share: 0.5,
            heartbeat_interval: Duration::from_millis(250),
            connections: 1,
            heartbeat_bytes: 96,
            find_interval: Duration::from_secs(30),
            bulk_share: 0.1,
            find_retry_share: 0.02,
            abandon_share: 0.01,
            history_interval: Duration::from_secs(300),
            catalogue_interval: Duration::from_secs(600),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Default for System {
    fn default() -> Self {
        Self {
            address: String::new(),
            ops_addresses: Vec::new(),
            url_template: String::new(),
            store: StoreKind::default(),
            replicas: 1,
            instances: 1,
            second_group: false,
            shim: true,
            settings: BTreeMap::new(),
            priority: Priorities::default(),
            trove: PathBuf::new(),
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            behind_max: Duration::from_millis(50),
            reconcile_ratio: 0.01,
            invalid_share_max: 0.0,
            leak_slope_per_hour: 0.05,
            leak_growth: 0.1,
            leak_bytes: 8 << 20,
            leak_count: 8,
            leak_after: Duration::from_secs(600),
        }
    }
}
