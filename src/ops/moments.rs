//! What is kept of each second: rates, failures, percentiles, and how late the event loop was. Taken from what the histograms
//! gained, so a request pays nothing for it.

use crate::metrics::Durations;
use crate::metrics::durations::native_bound_s;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Instant;

/// The moments that are kept: five minutes.
pub const MOMENTS_MAX: usize = 300;

/// What is looked at.
#[derive(Debug)]
pub struct Tracked {
    /// Kinds of requests, each with its histograms.
    pub rates: Vec<(&'static str, Vec<Durations>)>,
    /// The histograms of requests that failed.
    pub failed: Vec<Durations>,
    /// The histograms of the requests whose percentiles are shown.
    pub latency: Vec<Durations>,
    /// How late the event loop's timer fires.
    pub loop_lag: Durations,
}

/// One second, or what has been one: the loop may have stood still.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Its end, in milliseconds since the epoch.
    pub time_ms: u64,
    /// Requests a second by kind, in the order of [`Tracked::rates`].
    pub rates: Vec<f64>,
    /// Failed requests a second.
    pub failed: f64,
    /// p50, p95 and p99 in seconds, as upper bounds at most 9 % too high; `None` if there was no request.
    pub latency_s: Option<[f64; 3]>,
    /// The greatest lag of the event loop, in seconds.
    pub loop_lag_s: Option<f64>,
}

/// What had been counted at the last look.
#[derive(Debug)]
struct Before {
    at: Instant,
    rates: Vec<u64>,
    failed: u64,
    latency: Vec<u64>,
    loop_lag: Vec<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Moments {
    tracked: Tracked,
    before: Before,
    kept: VecDeque<Moment>,
}

fn count(of: &[Durations]) -> u64 {
    of.iter().map(Durations::count).sum()
}

/// The native buckets of several histograms, summed.
fn native(of: &[Durations]) -> Vec<u64> {
    let mut sums: Vec<u64> = Vec::new();
    for one in of {
        let counted = one.counted().native;
        sums.resize(counted.len(), 0);
        for (sum, count) in sums.iter_mut().zip(counted) {
            *sum += count;
        }
    }
    sums
}

fn gained(now: &[u64], before: &[u64]) -> Vec<u64> {
    let pairs = now.iter().zip(before);
    pairs
        .map(|(now, before)| now.saturating_sub(*before))
        .collect()
}

/// The upper bound of the bucket that the nearest rank lies in.
fn percentile_s(gained: &[u64], percent: u64) -> Option<f64> {
    let all: u64 = gained.iter().sum();
    let rank = (all * percent).div_ceil(100).max(1);
    let mut below = 0;
    let place = gained.iter().position(|count| {
        below += count;
        below >= rank
    });
    place.map(native_bound_s)
}

impl Before {
    fn look(tracked: &Tracked, at: Instant) -> Self {
        Self {
            at,
            rates: tracked.rates.iter().map(|(_, of)| count(of)).collect(),
            failed: count(&tracked.failed),
            latency: native(&tracked.latency),
            loop_lag: native(std::slice::from_ref(&tracked.loop_lag)),
        }
    }
}

impl Moments {
    /// None yet; the first begins `now`.
    #[must_use]
    pub fn new(tracked: Tracked, now: Instant) -> Self {
        Self {
            before: Before::look(&tracked, now),
            tracked,
            kept: VecDeque::with_capacity(MOMENTS_MAX),
        }
    }

    /// Ends a moment.
    pub fn look(&mut self, now: Instant, time_ms: u64) {
        let after = Before::look(&self.tracked, now);
        let before = &self.before;
        let seconds = now.saturating_duration_since(before.at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of a second")]
        let rate = |now: u64, before: u64| {
            // A tenth is as fine as a rate of one second can be read.
            (now.saturating_sub(before) as f64 / seconds * 10.0).round() / 10.0
        };
        let latency = gained(&after.latency, &before.latency);
        let percentiles = [50, 95, 99].map(|percent| percentile_s(&latency, percent));
        let moment = Moment {
            time_ms,
            rates: after
                .rates
                .iter()
                .zip(&before.rates)
                .map(|(now, before)| rate(*now, *before))
                .collect(),
            failed: rate(after.failed, before.failed),
            latency_s: match percentiles {
                [Some(p50), Some(p95), Some(p99)] => Some([p50, p95, p99]),
                _ => None,
            },
            loop_lag_s: percentile_s(&gained(&after.loop_lag, &before.loop_lag), 100),
        };
        if self.kept.len() >= MOMENTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(moment);
        self.before = after;
    }

    /// The kinds of requests whose rates are told.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        self.tracked.rates.iter().map(|(name, _)| *name).collect()
    }

    /// What is kept, the oldest first.
    #[must_use]
    pub fn kept(&self) -> &VecDeque<Moment> {
        &self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Buckets;
    use std::time::Duration;

    #[test]
    fn a_moment_tells_what_was_gained_in_it_and_no_more_are_kept_than_may_be() {
        let made = || Durations::new(Buckets::of_ms(&[1.0, 1_000.0]));
        let (good, bad, lag) = (made(), made(), made());
        let tracked = Tracked {
            rates: vec![("polls", vec![good.clone(), bad.clone()])],
            failed: vec![bad.clone()],
            latency: vec![good.clone(), bad.clone()],
            loop_lag: lag.clone(),
        };
        good.observe(Duration::from_secs(50));
        let began = Instant::now();
        let mut moments = Moments::new(tracked, began);
        for _ in 0..98 {
            good.observe(Duration::from_millis(2));
        }
        for _ in 0..2 {
            bad.observe(Duration::from_millis(500));
        }
        lag.observe(Duration::from_millis(1));
        lag.observe(Duration::from_millis(30));
        moments.look(began + Duration::from_secs(2), 7);
        let moment = moments.kept()[0].clone();
        assert_eq!(
            (moment.time_ms, moment.rates, moment.failed),
            (7, vec![50.0], 1.0)
        );
        let [p50, p95, p99] = moment.latency_s.unwrap();
        assert!((0.002..0.0022).contains(&p50) && p95 == p50, "{p50} {p95}");
        assert!((0.5..0.55).contains(&p99), "{p99}");
        let lag_s = moment.loop_lag_s.unwrap();
        assert!((0.03..0.033).contains(&lag_s), "{lag_s}");
        for second in 3..400 {
            moments.look(began + Duration::from_secs(second), second);
        }
        assert_eq!(moments.kept().len(), MOMENTS_MAX);
        let last = moments.kept().back().unwrap();
        assert_eq!(
            (last.time_ms, last.latency_s, last.loop_lag_s),
            (399, None, None)
        );
    }
}
