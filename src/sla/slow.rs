//! Slow requests, each counted against exactly one cause.

use crate::front::TraceParent;
use crate::metrics::labels::Cause;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The examples that are kept.
pub const EXAMPLES_MAX: usize = 64;
/// The examples that are taken, and logged, in one second; the rest is only counted. When a store stands still for three
/// seconds, thousands of requests are slow for the same reason.
pub const EXAMPLES_PER_S_MAX: u32 = 10;

/// What a request waited for: of all its time, each moment belongs to one part. Time that its client wished to wait (a held
/// poll) belongs to none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parts {
    /// Its client: to send the rest of it, or to read its answer.
    pub client: Duration,
    /// The shim: its own work, and its queue.
    pub shim: Duration,
    /// The server: its own work, and a request that lay unread before it.
    pub app: Duration,
    /// The store.
    pub store: Duration,
}

impl Parts {
    /// One of them.
    #[must_use]
    pub fn part(&self, cause: Cause) -> Duration {
        match cause {
            Cause::Client => self.client,
            Cause::Shim => self.shim,
            Cause::App => self.app,
            Cause::Store => self.store,
        }
    }

    fn of(&mut self, cause: Cause) -> &mut Duration {
        match cause {
            Cause::Client => &mut self.client,
            Cause::Shim => &mut self.shim,
            Cause::App => &mut self.app,
            Cause::Store => &mut self.store,
        }
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.client + self.shim + self.app + self.store
    }

    /// The largest part. Of equals the first in the order client, shim, app, store.
    #[must_use]
    pub fn cause(&self) -> Cause {
        let mut largest = Cause::Client;
        for cause in &Cause::ALL[1..] {
            if self.part(*cause) > self.part(largest) {
                largest = *cause;
            }
        }
        largest
    }

    /// Charges the time in which the event loop of `own` stood still to it: whatever a request was waiting for then, it was
    /// this process that could not go on. What `own` has already covers it first; the rest is taken from the largest of the
    /// others.
    #[must_use]
    pub fn charge_stall(mut self, own: Cause, stalled: Duration) -> Self {
        let mut uncovered = stalled.saturating_sub(self.part(own));
        while !uncovered.is_zero() {
            let others = Cause::ALL.iter().filter(|cause| **cause != own);
            let Some(largest) = others.copied().max_by_key(|cause| self.part(*cause)) else {
                break;
            };
            let taken = uncovered.min(self.part(largest));
            if taken.is_zero() {
                break;
            }
            *self.of(largest) -= taken;
            *self.of(own) += taken;
            uncovered -= taken;
        }
        self
    }
}

impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = Cause::ALL.iter();
        serializer.collect_map(parts.map(|cause| (cause.as_str(), self.part(*cause).as_secs_f64())))
    }
}

/// One slow request.
#[derive(Debug, Clone, Serialize)]
pub struct Example {
    /// When it had been answered, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Its route; `any` where only its client's reading was slow.
    pub route: &'static str,
    /// Its status; 0 where that is not known any more.
    pub status: u16,
    /// What it is counted against.
    #[serde(serialize_with = "cause_as_text")]
    pub cause: Cause,
    /// What it waited for, in seconds.
    #[serde(rename = "parts_s")]
    pub parts: Parts,
    /// The trace that its client put it in, or the shim where the client did not.
    #[serde(rename = "trace_id")]
    pub trace: Option<TraceParent>,
}

fn cause_as_text<S: Serializer>(cause: &Cause, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(cause.as_str())
}

/// Counts slow requests, and keeps the latest as examples.
#[derive(Debug)]
pub struct SlowRequests {
    threshold: Duration,
    counts: SlowCounts,
    examples: Mutex<Examples>,
}

#[derive(Debug, Default)]
struct Examples {
    latest: VecDeque<Example>,
    /// The second in which examples were taken last, and how many.
    second: u64,
    taken: u32,
}

/// The counters, as a metric.
#[derive(Debug, Clone, Default)]
pub struct SlowCounts(Arc<[AtomicU64; 4]>);

impl EncodeMetric for SlowCounts {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (cause, count) in Cause::ALL.iter().zip(&*self.0) {
            let labels = [("cause", cause.as_str())];
            let mut of_cause = encoder.encode_family(&labels)?;
            of_cause.encode_counter::<NoLabelSet, u64, u64>(&count.load(Relaxed), None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl SlowRequests {
    /// None yet. A request that takes `threshold` or longer is slow.
    #[must_use]
    pub fn new(threshold: Duration) -> Self {
        Self {
            threshold,
            counts: SlowCounts::default(),
            examples: Mutex::default(),
        }
    }

    /// From when on a request is slow.
    #[inline]
    #[must_use]
    pub fn threshold(&self) -> Duration {
        self.threshold
    }

    /// How many there were, in the order of [`Cause::ALL`].
    #[must_use]
    pub fn counts(&self) -> [u64; 4] {
        std::array::from_fn(|place| self.counts.0[place].load(Relaxed))
    }

    /// The counters as `trove_slow_requests_total`.
    #[must_use]
    pub fn metric(&self) -> SlowCounts {
        self.counts.clone()
    }

    /// Counts one, and keeps and logs it if there were not too many in this second.
    pub fn count(&self, example: Example) {
        self.counts.0[example.cause as usize].fetch_add(1, Relaxed);
        let mut examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        let second = example.at_ms / 1_000;
        if examples.second != second {
            examples.second = second;
            examples.taken = 0;
        }
        if examples.taken >= EXAMPLES_PER_S_MAX {
            return;
        }
        examples.taken += 1;
        if examples.latest.len() >= EXAMPLES_MAX {
            examples.latest.pop_front();
        }
        examples.latest.push_back(example.clone());
        drop(examples);
        let parts = example.parts;
        let ms = |part: Duration| u64::try_from(part.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            route = example.route,
            status = example.status,
            cause = example.cause.as_str(),
            took_ms = ms(parts.total()),
            client_ms = ms(parts.client),
            shim_ms = ms(parts.shim),
            app_ms = ms(parts.app),
            store_ms = ms(parts.store),
            trace_id = example.trace.map(tracing::field::display),
            "a slow request"
        );
    }

    /// The latest, the newest first.
    #[must_use]
    pub fn examples(&self) -> Vec<Example> {
        let examples = self.examples.lock().unwrap_or_else(PoisonError::into_inner);
        examples.latest.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_largest_part_alone_is_the_cause() {
        let parts = Parts {
            client: ms(100),
            shim: ms(5),
            app: ms(300),
            store: ms(900),
        };
        assert_eq!(parts.cause(), Cause::Store);
        assert_eq!(parts.total(), ms(1_305));
        assert_eq!(Parts::default().cause(), Cause::Client);
    }

    #[test]
    fn a_loop_that_stood_still_is_to_blame_itself() {
        // The rest of the body lay in the socket while the process was stopped: it looked as if the client were slow.
        let parts = Parts {
            client: ms(1_300),
            app: ms(2),
            ..Parts::default()
        };
        let charged = parts.charge_stall(Cause::App, ms(1_200));
        assert_eq!(charged.cause(), Cause::App);
        assert_eq!(charged.total(), parts.total());
        // What the process did itself covers its standing still first.
        let parts = Parts {
            store: ms(1_100),
            app: ms(400),
            ..Parts::default()
        };
        assert_eq!(parts.charge_stall(Cause::App, ms(400)), parts);
        // Never more than there is.
        let charged = parts.charge_stall(Cause::Shim, ms(60_000));
        assert_eq!((charged.shim, charged.total()), (ms(1_500), ms(1_500)));
    }

    #[test]
    fn examples_are_bounded_in_number_and_in_pace() {
        let slow = SlowRequests::new(ms(1_000));
        let example = |at_ms| Example {
            at_ms,
            route: "poll",
            status: 200,
            cause: Cause::Store,
            parts: Parts::default(),
            trace: None,
        };
        for _ in 0..1_000 {
            slow.count(example(5_000));
        }
        assert_eq!(slow.counts(), [0, 0, 0, 1_000]);
        assert_eq!(slow.examples().len(), EXAMPLES_PER_S_MAX as usize);
        for second in 6..206 {
            slow.count(example(second * 1_000));
        }
        let examples = slow.examples();
        assert_eq!(examples.len(), EXAMPLES_MAX);
        assert_eq!(examples[0].at_ms, 205_000);
    }
}
