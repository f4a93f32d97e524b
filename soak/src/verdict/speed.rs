//! Objectives over the judged intervals, and allowances over those in which something was being broken.

use crate::case::{Case, Kind, Objective};
use crate::record::{FaultMark, GAVE_UP, Interval, LATENCY_US_MAX};
use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// What became of an objective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectiveVerdict {
    /// Of which requests.
    pub request: Kind,
    /// Requests that were judged: answered or failed.
    pub requests: u64,
    /// How many of them failed, by the objective's own measure.
    pub failed: u64,
    /// Their share.
    pub error_ratio: f64,
    /// What it may be.
    pub error_ratio_max: f64,
    /// The percentile that is judged.
    pub percentile: f64,
    /// Its latency from the intended time, microseconds.
    pub latency_us: u64,
    /// What it may be.
    pub latency_us_max: u64,
    /// The greatest latency.
    pub slowest_us: u64,
    /// Whether both hold.
    pub holds: bool,
}

impl ObjectiveVerdict {
    /// What does not hold.
    pub(super) fn missed(&self) -> Vec<String> {
        let request = self.request.as_str();
        let mut texts = Vec::new();
        if self.error_ratio > self.error_ratio_max {
            texts.push(format!(
                "{} of {} {request} requests failed: {:.4} %, over {:.4} %",
                self.failed,
                self.requests,
                self.error_ratio * 100.0,
                self.error_ratio_max * 100.0
            ));
        }
        if self.latency_us > self.latency_us_max {
            texts.push(format!(
                "p{} of {request} is {}, over {}",
                self.percentile,
                ms(self.latency_us),
                ms(self.latency_us_max)
            ));
        }
        texts
    }
}

/// What became of a time in which allowances of one or more faults counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AllowanceVerdict {
    /// From the first fault's beginning.
    pub from_ms: u64,
    /// To the end of the last allowance.
    pub to_ms: u64,
    /// The faults.
    pub faults: Vec<String>,
    /// Intervals that lie in it, if only in part.
    pub intervals: u64,
    /// Requests that failed, and how many might, by kind; kinds of which none failed and none might are left out.
    pub failed: BTreeMap<Kind, Failed>,
    /// Polls that were judged.
    pub polls: u64,
    /// Their p99, microseconds.
    pub p99_us: u64,
    /// What it may be; 0: there is no bound.
    pub p99_us_max: u64,
    /// Whether all of it holds.
    pub holds: bool,
}

/// Failed requests of a kind, while something was broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// How many failed.
    pub failed: u64,
    /// How many might.
    pub allowed: u64,
}

impl AllowanceVerdict {
    /// What does not hold.
    pub(super) fn missed(&self) -> Vec<String> {
        let faults = self.faults.join(", ");
        let at = ms(self.from_ms.saturating_mul(1000));
        let over = self
            .failed
            .iter()
            .filter(|(_, failed)| failed.failed > failed.allowed);
        let mut texts: Vec<String> = over
            .map(|(kind, failed)| {
                format!(
                    "{} {} requests failed during {faults} at {at}, and {} might",
                    failed.failed,
                    kind.as_str(),
                    failed.allowed
                )
            })
            .collect();
        if self.p99_us_max > 0 && self.p99_us > self.p99_us_max {
            texts.push(format!(
                "p99 of poll is {} during {faults} at {at}, over {}",
                ms(self.p99_us),
                ms(self.p99_us_max)
            ));
        }
        texts
    }
}

/// Microseconds as a time to read.
pub(crate) fn ms(us: u64) -> String {
    let us = us as f64;
    if us >= 60e6 {
        let minutes = (us / 60e6).floor();
        format!("{minutes:.0} min {:.0} s", (us - minutes * 60e6) / 1e6)
    } else if us >= 10e6 {
        format!("{:.1} s", us / 1e6)
    } else if us >= 1e6 {
        format!("{:.2} s", us / 1e6)
    } else if us >= 100_000.0 {
        format!("{:.0} ms", us / 1e3)
    } else if us >= 10_000.0 {
        format!("{:.1} ms", us / 1e3)
    } else {
        format!("{:.2} ms", us / 1e3)
    }
}

/// What is gathered of one objective.
struct Judged {
    objective: Objective,
    requests: u64,
    failed: u64,
    latency: Histogram<u64>,
}

/// What is gathered of one time with allowances.
struct Group {
    verdict: AllowanceVerdict,
    latency: Histogram<u64>,
}

/// Gathers counts and histograms, in memory that does not depend on the run's length.
pub(super) struct Speed {
    judged: Vec<Judged>,
    groups: Vec<Group>,
}

impl Speed {
    pub(super) fn new(case: &Case, faults: &[FaultMark]) -> Self {
        let judged = case.objectives.iter().map(|objective| Judged {
            objective: objective.clone(),
            requests: 0,
            failed: 0,
            latency: empty(),
        });
        // Of objectives for polls the widest at p99 counts where a fault does not say another.
        let of_polls = case
            .objectives
            .iter()
            .filter(|objective| objective.request == Kind::Poll);
        let below = of_polls
            .map(|objective| us(objective.below))
            .max()
            .unwrap_or(0);
        let promised: Vec<Kind> = case
            .objectives
            .iter()
            .map(|objective| objective.request)
            .collect();
        Self {
            judged: judged.collect(),
            groups: groups(faults, below, &promised),
        }
    }

    /// A judged interval with a verdict.
    pub(super) fn interval(&mut self, interval: &Interval) -> anyhow::Result<()> {
        let within = |group: &&mut Group| {
            interval.from_ms < group.verdict.to_ms && group.verdict.from_ms < interval.to_ms
        };
        let values = |histogram: &crate::record::Histogram| {
            histogram.values().with_context(|| {
                format!("the histogram of the interval at {} ms", interval.from_ms)
            })
        };
        if let Some(group) = self.groups.iter_mut().find(within) {
            group.verdict.intervals += 1;
            for (kind, counts) in &interval.kinds {
                if let Some(failed) = group.verdict.failed.get_mut(kind) {
                    failed.failed += counts.failures();
                }
                if *kind == Kind::Poll
                    && let Some(values) = values(&counts.latency)?
                {
                    group.latency.add(&values)?;
                }
            }
            return Ok(());
        }
        for judged in &mut self.judged {
            let Some(counts) = interval.kinds.get(&judged.objective.request) else {
                continue;
            };
            let failed = counts.failures();
            judged.requests += counts.answered + failed;
            judged.failed += failed;
            let Some(values) = values(&counts.latency)? else {
                continue;
            };
            let above = us(judged.objective.failed_above);
            if above > 0 {
                let slow = values.count_between(above + 1, u64::MAX);
                // What timed out, or waited in vain to be sent, is among the slow ones and among the failed ones.
                let both = counts.failed.get("timeout").copied().unwrap_or(0)
                    + counts.dropped.get(GAVE_UP).copied().unwrap_or(0);
                judged.failed += slow.saturating_sub(both);
            }
            judged.latency.add(&values)?;
        }
        Ok(())
    }

    pub(super) fn verdicts(self) -> (Vec<ObjectiveVerdict>, Vec<AllowanceVerdict>) {
        let objectives = self.judged.into_iter().map(|judged| {
            let objective = &judged.objective;
            let error_ratio = if judged.requests == 0 {
                0.0
            } else {
                judged.failed as f64 / judged.requests as f64
            };
            let mut verdict = ObjectiveVerdict {
                request: objective.request,
                requests: judged.requests,
                failed: judged.failed,
                error_ratio,
                error_ratio_max: objective.error_ratio,
                percentile: objective.percentile,
                latency_us: at(&judged.latency, objective.percentile),
                latency_us_max: us(objective.below),
                slowest_us: judged.latency.max(),
                holds: false,
            };
            verdict.holds = judged.requests > 0 && verdict.missed().is_empty();
            verdict
        });
        let allowances = self.groups.into_iter().map(|mut group| {
            group.verdict.polls = group.latency.len();
            group.verdict.p99_us = at(&group.latency, 99.0);
            group
                .verdict
                .failed
                .retain(|_, failed| failed.failed > 0 || failed.allowed > 0);
            group.verdict.holds = group.verdict.missed().is_empty();
            group.verdict
        });
        (objectives.collect(), allowances.collect())
    }
}

/// A percentile, which is never above the greatest value.
pub(crate) fn at(histogram: &Histogram<u64>, percentile: f64) -> u64 {
    histogram
        .value_at_percentile(percentile)
        .min(histogram.max())
}

/// An empty histogram as those of the record are.
pub(crate) fn empty() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_US_MAX, 3).expect("bounds that a histogram can have")
}

fn us(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Allowances that overlap are one: what fails then may be due to either fault, so what may fail is added up.
fn groups(faults: &[FaultMark], below_us: u64, promised: &[Kind]) -> Vec<Group> {
    let mut faults: Vec<&FaultMark> = faults
        .iter()
        .filter(|fault| fault.allow_until_ms > fault.at_ms)
        .collect();
    faults.sort_by_key(|fault| fault.at_ms);
    let mut groups: Vec<Group> = Vec::new();
    for fault in faults {
        let p99_us_max = if fault.allow_p99_us > 0 {
            fault.allow_p99_us
        } else {
            below_us
        };
        let joins = groups
            .last()
            .is_some_and(|last| fault.at_ms < last.verdict.to_ms);
        if !joins {
            groups.push(Group {
                verdict: AllowanceVerdict {
                    from_ms: fault.at_ms,
                    to_ms: fault.allow_until_ms,
                    faults: Vec::new(),
                    intervals: 0,
                    failed: promised
                        .iter()
                        .map(|kind| (*kind, Failed::default()))
                        .collect(),
                    polls: 0,
                    p99_us: 0,
                    p99_us_max: 0,
                    holds: false,
                },
                latency: empty(),
            });
        }
        let Some(Group { verdict, .. }) = groups.last_mut() else {
            continue;
        };
        verdict.to_ms = verdict.to_ms.max(fault.allow_until_ms);
        verdict.p99_us_max = verdict.p99_us_max.max(p99_us_max);
        verdict
            .faults
            .push(format!("{} of {}", fault.what.as_str(), fault.target));
        for (kind, allowed) in &fault.allow_failed {
            verdict.failed.entry(*kind).or_default().allowed += allowed;
        }
    }
    groups
}
