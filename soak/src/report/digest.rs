//! A run read once, in memory that does not depend on its length: totals, and points for plots. When there are too many
//! points each two neighbours become one, which keeps the sums of counts and the worst of everything else. So a plot of 48
//! hours still shows the one bad interval.

use crate::case::Kind;
use crate::record::{Interval, KindCounts, Sample, files};
use crate::verdict::{at, empty, lines};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::path::Path;

/// The most points of a plot.
pub const POINTS_MAX: usize = 720;
/// The most series of resources; a run has a dozen processes with some ten each.
const SERIES_MAX: usize = 1_000;

/// Points in the order of time, bounded.
#[derive(Debug, Clone)]
pub(super) struct Points<P> {
    points: Vec<P>,
    /// How many readings the last point holds, and how many a point may hold.
    filled: usize,
    capacity: usize,
}

/// Two neighbours become one.
pub(super) trait Merge {
    fn merge(&mut self, later: Self);
}

impl<P> Default for Points<P> {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            filled: 0,
            capacity: 1,
        }
    }
}

impl<P: Merge> Points<P> {
    pub(super) fn push(&mut self, point: P) {
        if self.filled < self.capacity
            && let Some(last) = self.points.last_mut()
        {
            last.merge(point);
            self.filled += 1;
            return;
        }
        if self.points.len() >= POINTS_MAX {
            let mut merged: Vec<P> = Vec::with_capacity(POINTS_MAX);
            for (nth, point) in self.points.drain(..).enumerate() {
                match merged.last_mut() {
                    Some(last) if nth % 2 == 1 => last.merge(point),
                    _ => merged.push(point),
                }
            }
            self.points = merged;
            self.capacity *= 2;
        }
        self.points.push(point);
        self.filled = 1;
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, P> {
        self.points.iter()
    }
}

/// What a stretch of the run was like.
#[derive(Debug, Clone, Default)]
pub(super) struct Stretch {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) users_intended: u32,
    pub(super) users: u32,
    pub(super) connects: u64,
    pub(super) disconnects: u64,
    pub(super) kinds: BTreeMap<Kind, KindStretch>,
    /// By part of `Server-Timing`: p50 and p99, microseconds.
    pub(super) parts: BTreeMap<String, [u64; 2]>,
    pub(super) stale: u64,
    pub(super) behind_us: u64,
    pub(super) turn_us: u64,
    pub(super) invalid: bool,
}

/// A kind of request in a stretch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KindStretch {
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// p50, p99, p99.9 and the greatest, microseconds.
    pub(super) latency_us: [u64; 4],
}

impl Merge for Stretch {
    fn merge(&mut self, later: Self) {
        self.to_ms = later.to_ms;
        self.users_intended = self.users_intended.max(later.users_intended);
        self.users = self.users.max(later.users);
        self.connects += later.connects;
        self.disconnects += later.disconnects;
        self.stale += later.stale;
        self.behind_us = self.behind_us.max(later.behind_us);
        self.turn_us = self.turn_us.max(later.turn_us);
        self.invalid |= later.invalid;
        for (kind, counts) in later.kinds {
            let mine = self.kinds.entry(kind).or_default();
            mine.answered += counts.answered;
            mine.failed += counts.failed;
            for (mine, other) in mine.latency_us.iter_mut().zip(counts.latency_us) {
                *mine = (*mine).max(other);
            }
        }
        for (part, us) in later.parts {
            let mine = self.parts.entry(part).or_default();
            for (mine, other) in mine.iter_mut().zip(us) {
                *mine = (*mine).max(other);
            }
        }
    }
}

/// A reading of a resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) at_ms: u64,
    pub(super) value: f64,
}

impl Merge for Reading {
    fn merge(&mut self, later: Self) {
        self.at_ms = later.at_ms;
        self.value = self.value.max(later.value);
    }
}

/// All of a kind of request in the run.
#[derive(Debug, Clone)]
pub(super) struct KindTotal {
    pub(super) counts: KindCounts,
    pub(super) latency: Histogram<u64>,
    pub(super) service: Histogram<u64>,
}

/// A run in a few megabytes.
#[derive(Debug, Default)]
pub(super) struct Digest {
    pub(super) end_ms: u64,
    pub(super) stretches: Points<Stretch>,
    pub(super) kinds: BTreeMap<Kind, KindTotal>,
    pub(super) parts: BTreeMap<String, Histogram<u64>>,
    /// By process and resource; `cpu_percent` of one core is computed from `cpu_s`.
    pub(super) resources: BTreeMap<(String, String), Points<Reading>>,
    pub(super) behind_us_max: u64,
    pub(super) turn_us_max: u64,
    pub(super) stale: u64,
}

impl Digest {
    pub(super) fn read(dir: &Path) -> anyhow::Result<Self> {
        let mut digest = Self::default();
        for interval in lines::<Interval>(dir, files::INTERVALS)? {
            digest.interval(&interval?)?;
        }
        // The last reading of CPU time of each process: its life, when, how much.
        let mut cpu: BTreeMap<String, (u32, u64, f64)> = BTreeMap::new();
        for sample in lines::<Sample>(dir, files::RESOURCES)? {
            let mut sample = sample?;
            if let Some(cpu_s) = sample.values.remove("cpu_s") {
                let now = (sample.incarnation, sample.at_ms, cpu_s);
                let before = cpu.insert(sample.process.clone(), now);
                if let Some((life, at_ms, before_s)) = before
                    && life == sample.incarnation
                    && sample.at_ms > at_ms
                {
                    let percent = (cpu_s - before_s) / ((sample.at_ms - at_ms) as f64) * 1e5;
                    sample
                        .values
                        .insert("cpu_percent".to_owned(), percent.max(0.0));
                }
            }
            digest.sample(sample);
        }
        Ok(digest)
    }

    fn interval(&mut self, interval: &Interval) -> anyhow::Result<()> {
        let mut stretch = Stretch {
            from_ms: interval.from_ms,
            to_ms: interval.to_ms,
            users_intended: interval.users_intended,
            users: interval.users,
            connects: interval.connects,
            disconnects: interval.disconnects,
            stale: interval.stale,
            behind_us: interval.behind_us_max,
            turn_us: interval.turn_us_max,
            invalid: !interval.invalid.is_empty(),
            ..Stretch::default()
        };
        for (kind, counts) in &interval.kinds {
            let total = self.kinds.entry(*kind).or_insert_with(|| KindTotal {
                counts: KindCounts::default(),
                latency: empty(),
                service: empty(),
            });
            total.counts.intended += counts.intended;
            total.counts.sent += counts.sent;
            total.counts.answered += counts.answered;
            add(&mut total.counts.failed, &counts.failed);
            add(&mut total.counts.dropped, &counts.dropped);
            if let Some(values) = counts.service.values()? {
                total.service.add(&values)?;
            }
            let mut latency_us = [0; 4];
            if let Some(values) = counts.latency.values()? {
                latency_us = [
                    at(&values, 50.0),
                    at(&values, 99.0),
                    at(&values, 99.9),
                    values.max(),
                ];
                total.latency.add(&values)?;
            }
            let counts = KindStretch {
                answered: counts.answered,
                failed: counts.failures(),
                latency_us,
            };
            stretch.kinds.insert(*kind, counts);
        }
        for (part, histogram) in &interval.parts {
            if let Some(values) = histogram.values()? {
                self.parts
                    .entry(part.clone())
                    .or_insert_with(empty)
                    .add(&values)?;
                stretch
                    .parts
                    .insert(part.clone(), [at(&values, 50.0), at(&values, 99.0)]);
            }
        }
        self.end_ms = self.end_ms.max(interval.to_ms);
        self.behind_us_max = self.behind_us_max.max(interval.behind_us_max);
        self.turn_us_max = self.turn_us_max.max(interval.turn_us_max);
        self.stale += interval.stale;
        self.stretches.push(stretch);
        Ok(())
    }

    fn sample(&mut self, sample: Sample) {
        for (name, value) in sample.values {
            let key = (sample.process.clone(), name);
            if self.resources.len() >= SERIES_MAX && !self.resources.contains_key(&key) {
                continue;
            }
            self.resources.entry(key).or_default().push(Reading {
                at_ms: sample.at_ms,
                value,
            });
        }
    }
}

fn add(to: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>) {
    for (reason, count) in from {
        *to.entry(reason.clone()).or_default() += count;
    }
}
