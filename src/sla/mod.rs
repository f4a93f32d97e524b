//! Whether the promise holds, and whose fault it is when it does not.
//!
//! - [`objective`]: what is promised of a route, as the settings say it.
//! - [`recorder`]: looks at the histograms of [`crate::metrics`] once a second and keeps what they gained, in slots. A
//!   request pays nothing for it. [`slots`] is their memory, bounded by a constant; [`state_file`] keeps it over a restart.
//! - [`burn`]: from failures in windows to decisions: is the budget of errors being spent so fast that somebody must be told?
//! - [`slow`]: what a slow request waited for, and the one cause that it is counted against. [`stalls`] knows when the event
//!   loop itself stood still, which no request can see.
//! - [`snapshot`]: all of it at one moment, as `/sla` shows it and the page of operators too.
//! - [`rules`]: the same objectives as rules for Prometheus.
//!
//! It knows neither game nor store: server and shim use it alike.

pub mod burn;
pub mod objective;
pub mod recorder;
pub mod rules;
pub mod slots;
pub mod slow;
pub mod snapshot;
pub mod stalls;
pub mod state_file;

pub use objective::Objective;
pub use recorder::{Recorder, Watched};
pub use slow::{Example, Parts, SlowRequests};
pub use snapshot::Snapshot;
pub use stalls::Stalls;

use crate::config::SlaSettings;
use crate::front::TraceParent;
use crate::metrics::labels::Cause;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The name, without `_total`, and the meaning of the series of slow requests.
pub const SLOW_REQUESTS: (&str, &str) = (
    "trove_slow_requests",
    "Requests that took sla.slow_ms or longer from their first byte in to their last byte out, by what took most of it",
);

/// How often the histograms are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The verdict's parts in one process.
#[derive(Debug)]
pub struct Sla {
    /// Requests that were slow.
    pub slow: SlowRequests,
    /// When the event loop stood still.
    pub stalls: Stalls,
    recorder: Recorder,
    instance: String,
    role: &'static str,
    failures_min: u64,
    file: Option<PathBuf>,
    save_every: Duration,
}

/// Milliseconds since the epoch by this machine's clock.
fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

impl Sla {
    /// For a `role`, `serve` or `shim`. `watched` are the objectives whose route this process knows. What a process of this
    /// name left in the state's directory is taken up; `own_dir` is that directory where the settings name none.
    #[must_use]
    pub fn new(
        settings: &SlaSettings,
        role: &'static str,
        instance: &str,
        own_dir: Option<PathBuf>,
        watched: Vec<Watched>,
    ) -> Arc<Self> {
        let dir = if settings.state_dir.as_os_str().is_empty() {
            own_dir
        } else {
            Some(settings.state_dir.clone())
        };
        let file = dir.map(|dir| dir.join(format!("sla-{role}-{instance}.state")));
        let recorder = Recorder::new(watched, unix_ms());
        if let Some(path) = &file {
            match state_file::read(path) {
                Ok(Some(saved)) => recorder.take_up(saved),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "the record of objectives cannot be read; a new one begins");
                    state_file::put_aside(path);
                }
            }
        }
        Arc::new(Self {
            slow: SlowRequests::new(Duration::from_millis(settings.slow_ms)),
            stalls: Stalls::default(),
            recorder,
            instance: instance.to_owned(),
            role,
            failures_min: settings.failures_min,
            file,
            save_every: Duration::from_millis(settings.save_ms),
        })
    }

    /// Whether so much time makes a request a slow one.
    #[inline]
    #[must_use]
    pub fn is_slow(&self, took: Duration) -> bool {
        !cfg!(feature = "unmeasured") && took >= self.slow.threshold()
    }

    /// Counts a request if it was slow: against the largest of its parts, after what the event loop's standing still took
    /// has been charged to `own`, this process. `began` is when its first byte arrived.
    pub fn note(
        &self,
        own: Cause,
        (route, status): (&'static str, u16),
        began: Instant,
        parts: Parts,
        trace: Option<TraceParent>,
    ) {
        if !self.is_slow(parts.total()) {
            return;
        }
        let stalled = self.stalls.before(began, Instant::now());
        let parts = parts.charge_stall(own, stalled);
        self.slow.count(Example {
            at_ms: unix_ms(),
            route,
            status,
            cause: parts.cause(),
            parts,
            trace,
        });
    }

    /// An answer that was ready `answered_after` its request waited so long for its client to read it. One that was slow
    /// before that has been counted.
    pub fn note_reading(&self, answered_after: Duration, reading: Duration) {
        if self.is_slow(answered_after) || !self.is_slow(answered_after + reading) {
            return;
        }
        self.slow.count(Example {
            at_ms: unix_ms(),
            route: "any",
            status: 0,
            cause: Cause::Client,
            parts: Parts {
                client: reading,
                ..Parts::default()
            },
            trace: None,
        });
    }

    /// Everything as of now. Some thousand sums: not on the event loop.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let now_ms = unix_ms();
        let objectives = self
            .recorder
            .judge(now_ms, self.slow.counts(), self.failures_min);
        Snapshot::new(
            (self.role, &self.instance, now_ms),
            objectives,
            self.recorder.causes(now_ms, self.slow.counts()),
            &self.slow,
        )
    }

    /// Looks at the histograms for ever, and saves what there is from time to time.
    pub async fn keep(self: Arc<Self>) {
        let mut saved = Instant::now();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.recorder.look(unix_ms(), self.slow.counts());
            if self.file.is_some() && saved.elapsed() >= self.save_every {
                saved = Instant::now();
                self.clone().save().await;
            }
        }
    }

    /// Saves what there is, beside the event loop.
    pub async fn save(self: Arc<Self>) {
        let Some(path) = self.file.clone() else {
            return;
        };
        let saving = crate::blocking::spawn(move || {
            let saved = self.recorder.saved(unix_ms(), self.slow.counts());
            state_file::write(&path, &saved).map_err(|error| (path, error))
        });
        if let Ok(Err((path, error))) = saving.await {
            tracing::warn!(path = %path.display(), %error, "the record of objectives cannot be saved");
        }
    }
}
