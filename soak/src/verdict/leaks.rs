//! What leaks. A resource is looked at within one life of its process, without that life's warm-up, and only where the load
//! was about the usual: else the load curve would be taken for a leak, or hide one. Growth in proportion to the load is none:
//! what the load itself has grown by in the same readings is taken off.

use super::millis;
use crate::case::Case;
use crate::record::{Interval, Sample};
use crate::resources::leak::{self, Leak, LeakBounds};
use serde::Serialize;
use std::collections::BTreeMap;

/// What can leak. Not here: Redis's memory and entries, the ledger's sizes, CPU time, which grow by their nature.
pub const LEAKABLE: [&str; 5] = ["rss_bytes", "fds", "threads", "connections", "clients"];

/// The load counts as usual within this share of its median.
const USUAL_SHARE: f64 = 0.25;
/// The most readings of a series: past it every other one is dropped, and then every other one is taken.
const READINGS_MAX: usize = 4_000;

/// Whether a resource leaks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeakVerdict {
    /// Whose.
    pub process: String,
    /// In which of its lives.
    pub incarnation: u32,
    /// Which resource.
    pub resource: String,
    /// For how long it was looked at.
    pub observed_ms: u64,
    /// Its level at the beginning.
    pub level: f64,
    /// Its growth an hour, as a share of the level.
    pub slope_per_hour: f64,
    /// By how much it has grown, as a share of the level.
    pub growth: f64,
    /// Whether both are over their bounds.
    pub leaks: bool,
}

impl LeakVerdict {
    pub(super) fn text(&self) -> String {
        format!(
            "{} of {} leaks: {:+.1} % an hour, {:+.1} % in all",
            self.resource,
            self.process,
            self.slope_per_hour * 100.0,
            self.growth * 100.0
        )
    }
}

/// Readings in the order of time, bounded.
#[derive(Debug, Default)]
struct Series {
    readings: Vec<(u64, f64)>,
    stride: usize,
    passed: usize,
}

impl Series {
    fn push(&mut self, reading: (u64, f64)) {
        self.passed += 1;
        if self.passed <= self.stride {
            return;
        }
        self.passed = 0;
        self.readings.push(reading);
        if self.readings.len() >= READINGS_MAX {
            let mut keep = false;
            self.readings.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride = self.stride * 2 + 1;
        }
    }
}

pub(super) struct Leaks {
    bounds: LeakBounds,
    bytes: f64,
    count: f64,
    observed_ms_min: u64,
    warmup_ms: u64,
    event_ms: u64,
    /// Users that were there, by time.
    users: Series,
    /// The readings, by process, its life, and resource.
    series: BTreeMap<(String, u32, &'static str), Series>,
    /// When each life was first seen.
    born: BTreeMap<(String, u32), u64>,
}

impl Leaks {
    pub(super) fn new(case: &Case) -> Self {
        Self {
            bounds: LeakBounds {
                slope_per_hour: case.bounds.leak_slope_per_hour,
                growth: case.bounds.leak_growth,
            },
            bytes: case.bounds.leak_bytes as f64,
            count: case.bounds.leak_count as f64,
            observed_ms_min: millis(case.bounds.leak_after),
            warmup_ms: millis(case.warmup),
            event_ms: millis(case.event_lasts()),
            users: Series::default(),
            series: BTreeMap::new(),
            born: BTreeMap::new(),
        }
    }

    pub(super) fn interval(&mut self, interval: &Interval) {
        self.users.push((interval.to_ms, f64::from(interval.users)));
    }

    pub(super) fn sample(&mut self, sample: Sample) {
        let life = (sample.process, sample.incarnation);
        let born = *self.born.entry(life.clone()).or_insert(sample.at_ms);
        if sample.at_ms < born + self.warmup_ms || sample.at_ms > self.event_ms {
            return;
        }
        // The memory of Redis is its data, which grows with the ledger.
        let redis = life.0.starts_with("redis");
        for resource in LEAKABLE {
            if redis && resource == "rss_bytes" {
                continue;
            }
            if let Some(value) = sample.values.get(resource) {
                let key = (life.0.clone(), life.1, resource);
                self.series
                    .entry(key)
                    .or_default()
                    .push((sample.at_ms, *value));
            }
        }
    }

    pub(super) fn verdicts(self) -> Vec<LeakVerdict> {
        let usual = Usual::of(self.users.readings);
        let verdicts =
            self.series
                .into_iter()
                .filter_map(|((process, incarnation, resource), series)| {
                    let readings: Vec<(u64, f64)> = series
                        .readings
                        .into_iter()
                        .filter(|(at, _)| usual.holds_at(*at))
                        .collect();
                    let observed_ms = readings.last()?.0 - readings.first()?.0;
                    if observed_ms < self.observed_ms_min {
                        return None;
                    }
                    let Leak {
                        level,
                        slope_per_hour,
                        growth,
                        ..
                    } = leak::judge(&readings, self.bounds)?;
                    let load: Vec<(u64, f64)> = readings
                        .iter()
                        .map(|(at, _)| (*at, usual.users_at(*at)))
                        .collect();
                    let load = leak::judge(&load, self.bounds);
                    let (load_slope, load_growth) = load.map_or((0.0, 0.0), |load| {
                        (load.slope_per_hour.max(0.0), load.growth.max(0.0))
                    });
                    let of_bytes = resource.ends_with("_bytes");
                    let grown_min = if of_bytes { self.bytes } else { self.count };
                    let leaks = slope_per_hour - load_slope > self.bounds.slope_per_hour
                        && growth - load_growth > self.bounds.growth
                        && growth * level > grown_min;
                    Some(LeakVerdict {
                        process,
                        incarnation,
                        resource: resource.to_owned(),
                        observed_ms,
                        level,
                        slope_per_hour,
                        growth,
                        leaks,
                    })
                });
        verdicts.collect()
    }
}

/// When the load was about the usual.
struct Usual {
    users: Vec<(u64, f64)>,
    median: f64,
}

impl Usual {
    fn of(users: Vec<(u64, f64)>) -> Self {
        let mut values: Vec<f64> = users.iter().map(|(_, users)| *users).collect();
        let middle = values.len() / 2;
        let median = if values.is_empty() {
            0.0
        } else {
            *values.select_nth_unstable_by(middle, f64::total_cmp).1
        };
        Self { users, median }
    }

    /// Users that were there.
    fn users_at(&self, at_ms: u64) -> f64 {
        let next = self.users.partition_point(|(to_ms, _)| *to_ms < at_ms);
        let reading = self.users.get(next).or(self.users.last());
        reading.map_or(self.median, |(_, users)| *users)
    }

    /// Without a record of the load every moment is as good as another.
    fn holds_at(&self, at_ms: u64) -> bool {
        (self.users_at(at_ms) - self.median).abs() <= self.median * USUAL_SHARE
    }
}
