//! What a run writes down as it goes: files of one JSON object a line in the run's directory, each line appended whole, so
//! that they can be read after a crash (an unfinished last line is skipped). The verdict and the report read only these.
//!
//! | file | one line is |
//! |---|---|
//! | `case.toml` | the case as run, with `--set` applied |
//! | `run.jsonl` | a [`Segment`]: the run, and each resumption of it |
//! | `intervals.jsonl` | an [`Interval`] |
//! | `resources.jsonl` | a [`Sample`] of one process |
//! | `faults.jsonl` | a [`FaultMark`] |
//! | `findings.jsonl` | a [`Finding`] of the checker |
//! | `end.jsonl` | an [`End`]: what the final check found |
//! | `books/` | what clients were told (see [`crate::books`]) |
//!
//! Times named `at_ms`, `from_ms` and `to_ms` count from the run's beginning, on a clock that does not jump; a
//! resumed run goes on where the last recorded interval ended.

mod read;

pub use read::{LATENCY_US_MAX, LINE_BYTES_MAX, Lines, read_lines};

use crate::case::{FaultKind, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Names of the files.
pub mod files {
    /// The case as run.
    pub const CASE: &str = "case.toml";
    /// [`super::Segment`]s.
    pub const RUN: &str = "run.jsonl";
    /// [`super::Interval`]s.
    pub const INTERVALS: &str = "intervals.jsonl";
    /// [`super::Sample`]s.
    pub const RESOURCES: &str = "resources.jsonl";
    /// [`super::FaultMark`]s.
    pub const FAULTS: &str = "faults.jsonl";
    /// [`super::Finding`]s.
    pub const FINDINGS: &str = "findings.jsonl";
    /// [`super::End`].
    pub const END: &str = "end.jsonl";
    /// The books' directory.
    pub const BOOKS: &str = "books";
}

/// The run's beginning, or a resumption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Where it goes on.
    pub at_ms: u64,
    /// Wall clock, milliseconds since the epoch: when.
    pub wall_ms: u64,
    /// The exact command.
    pub command: Vec<String>,
    /// Of `soak`, `trove`, Redis, by name.
    pub versions: BTreeMap<String, String>,
    /// The machine: kernel, processor, cores, memory, by name.
    pub machine: BTreeMap<String, String>,
    /// What the case emits per second at its peak, by kind, computed from the settings alone.
    pub emits_per_second: BTreeMap<Kind, f64>,
}

/// What happened from one moment to another.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Interval {
    /// From.
    pub from_ms: u64,
    /// To.
    pub to_ms: u64,
    /// What users did meanwhile.
    pub phase: Phase,
    /// Users that the curve asks for, at its end.
    pub users_intended: u32,
    /// Users that are there, at its end.
    pub users: u32,
    /// Connections opened meanwhile.
    pub connects: u64,
    /// Connections that could not be opened, or ended without our asking.
    pub disconnects: u64,
    /// By kind of request.
    pub kinds: BTreeMap<Kind, KindCounts>,
    /// By part of `Server-Timing` (`shim`, `queue`, `app`, `store`) of polls: a histogram of microseconds (see [`Histogram`]).
    pub parts: BTreeMap<String, Histogram>,
    /// Polls that were answered `stale`.
    pub stale: u64,
    /// Finds acknowledged (201, or 200 as a duplicate whose first answer was lost), in bulk too.
    pub finds: u64,
    /// Credits told for the first time.
    pub credits: u64,
    /// Expiries told for the first time.
    pub expiries: u64,
    /// How late the latest request left, microseconds after its intended time.
    pub behind_us_max: u64,
    /// The longest turn of the generator's loop, microseconds.
    pub turn_us_max: u64,
    /// What the system counted meanwhile, by `process/series`, where it was asked.
    pub counted: BTreeMap<String, f64>,
    /// Why this interval has no verdict; empty: it has.
    pub invalid: Vec<String>,
    /// What could not be compared, though that is no fault of the harness: a killed server's last counts.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not judged.
    Warmup,
    /// Judged.
    #[default]
    Event,
    /// No new finds; what is pending is collected or expires. Judged for correctness alone.
    Settle,
}

/// Counts of one kind of request. What was intended was sent, dropped, or is not due yet; what was sent was answered, failed,
/// or is under way.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KindCounts {
    /// Whose intended time lay in the interval.
    pub intended: u64,
    /// Sent.
    pub sent: u64,
    /// Answered as it should be (2xx, 304, or an answer by the rules such as 409).
    pub answered: u64,
    /// Failed, by reason (`timeout`, `broken`, `connect`, `503`, `500` …).
    pub failed: BTreeMap<String, u64>,
    /// Never sent, by reason: `offline`, `lost` and `user_gone` are the model's doing, [`GAVE_UP`] and [`BULK_FULL`] the
    /// system's, and count as failures.
    pub dropped: BTreeMap<String, u64>,
    /// From the intended time to the last byte of the answer, or to when it failed or was given up.
    pub latency: Histogram,
    /// From when it was sent instead.
    pub service: Histogram,
}

/// Dropped because it waited for the user's earlier requests as long as a request may take.
pub const GAVE_UP: &str = "gave_up";
/// Dropped because too many finds waited for the back end.
pub const BULK_FULL: &str = "bulk_full";

impl KindCounts {
    /// What the system did not do: requests that failed, and those that could never be sent because earlier ones were not
    /// answered.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed.values().sum::<u64>() + self.dropped_by_system()
    }

    /// The share of [`KindCounts::failures`] that was never sent.
    #[must_use]
    pub fn dropped_by_system(&self) -> u64 {
        [GAVE_UP, BULK_FULL]
            .iter()
            .filter_map(|reason| self.dropped.get(*reason))
            .sum()
    }
}

/// Microseconds, three significant digits, as HdrHistogram's V2 encoding in base64; empty: no value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(pub String);

/// A process at a moment. What is not known is left out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub at_ms: u64,
    /// Which: `soak`, `shim`, `serve-0`, `redis-0`, `sentinel-0` …
    pub process: String,
    /// Grows by one when the process was started anew: no growth is judged across that.
    pub incarnation: u32,
    /// By name: `cpu_s` (since its start), `rss_bytes`, `fds`, `threads`; of Redis also `used_memory_bytes`, `clients`, `keys`,
    /// `feed_entries`, `feed_bytes`; of servers what their `/metrics` tell: `connections`, `wallets`.
    pub values: BTreeMap<String, f64>,
}

/// A fault that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultMark {
    /// When it began.
    pub at_ms: u64,
    /// When it ended (what was stopped goes on, what was killed serves again).
    pub until_ms: u64,
    /// Till when its allowance counts.
    pub allow_until_ms: u64,
    /// What.
    pub what: FaultKind,
    /// To which process or group.
    pub target: String,
    /// What was seen: the new primary, how long it took.
    pub note: String,
    /// The allowance: failed requests by kind.
    pub allow_failed: BTreeMap<Kind, u64>,
    /// The p99 of polls that is allowed meanwhile, microseconds; 0: the objectives'.
    pub allow_p99_us: u64,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// When it was seen.
    pub at_ms: u64,
    /// Its kind: `wrong_player`, `credited_twice`, `credit_lost`, `outside_window`, `balance`, `sequence`, `ledger`, `unknown` …
    pub kind: String,
    /// Whose.
    pub player: String,
    /// What was told, and what should have been.
    pub text: String,
}

/// What the final check found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct End {
    /// When.
    pub at_ms: u64,
    /// Finds acknowledged to users, credits and expiries told to them, in the books.
    pub finds_acknowledged: u64,
    /// Credited exactly once, by books and ledger.
    pub finds_credited: u64,
    /// Expired lawfully, by books and ledger.
    pub finds_expired: u64,
    /// Whose fate is unknown. Not a pass.
    pub finds_unknown: u64,
    /// Coins credited, by the books.
    pub coins_credited: u64,
    /// `trove verify`: its exit status and last line.
    pub verify: String,
    /// Whether it was 0.
    pub verify_holds: bool,
    /// How many findings there are in all; those written are bounded.
    pub findings: u64,
    /// What could not be checked, and why. Not a pass.
    pub unchecked: Vec<String>,
}
