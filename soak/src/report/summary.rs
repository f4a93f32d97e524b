//! A run in figures: `report.json`, the tables of the page, and the text for a terminal.

use super::digest::Digest;
use super::words;
use crate::case::{Case, Kind};
use crate::record::{FaultMark, Segment, files};
use crate::verdict::{Verdict, all, at};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// A run in figures.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The case's name.
    pub name: String,
    /// The question that it answers.
    pub question: String,
    /// Of everything random.
    pub seed: u64,
    /// The verdict, with what it stands on.
    pub verdict: Verdict,
    /// The run's beginning and its resumptions: commands, versions, machine.
    pub segments: Vec<Segment>,
    /// How long the record is.
    pub recorded_ms: u64,
    /// By kind of request, over the whole run: warm-up, faults and settling too.
    pub kinds: BTreeMap<Kind, KindSummary>,
    /// By part of `Server-Timing` of polls.
    pub parts: BTreeMap<String, Percentiles>,
    /// Polls that were answered `stale`.
    pub stale: u64,
    /// The harness's greatest lag behind its own schedule, microseconds.
    pub behind_us_max: u64,
    /// The longest turn of its loop, microseconds.
    pub turn_us_max: u64,
    /// By process, then by resource.
    pub resources: BTreeMap<String, BTreeMap<String, ResourceSummary>>,
    /// What was broken.
    pub faults: Vec<FaultMark>,
}

/// A kind of request.
#[derive(Debug, Clone, Serialize)]
pub struct KindSummary {
    /// Due.
    pub intended: u64,
    /// Sent.
    pub sent: u64,
    /// Answered as it should be.
    pub answered: u64,
    /// Failed, by reason.
    pub failed: BTreeMap<String, u64>,
    /// Never sent, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// From the intended time.
    pub latency: Percentiles,
    /// From the time of sending.
    pub service: Percentiles,
}

/// Of a histogram, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// How many values.
    pub count: u64,
    /// The median.
    pub p50_us: u64,
    /// The 90th.
    pub p90_us: u64,
    /// The 99th.
    pub p99_us: u64,
    /// The 99.9th.
    pub p999_us: u64,
    /// The greatest.
    pub max_us: u64,
}

impl Percentiles {
    fn of(values: &Histogram<u64>) -> Self {
        Self {
            count: values.len(),
            p50_us: at(values, 50.0),
            p90_us: at(values, 90.0),
            p99_us: at(values, 99.0),
            p999_us: at(values, 99.9),
            max_us: values.max(),
        }
    }
}

/// A resource of a process, over all its lives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ResourceSummary {
    /// The first reading.
    pub first: f64,
    /// The last.
    pub last: f64,
    /// The greatest.
    pub max: f64,
    /// The mean of the plot's points.
    pub mean: f64,
}

impl Summary {
    pub(super) fn new(
        dir: &Path,
        case: &Case,
        digest: &Digest,
        verdict: Verdict,
    ) -> anyhow::Result<Self> {
        let kinds = digest.kinds.iter().map(|(kind, total)| {
            let summary = KindSummary {
                intended: total.counts.intended,
                sent: total.counts.sent,
                answered: total.counts.answered,
                failed: total.counts.failed.clone(),
                dropped: total.counts.dropped.clone(),
                latency: Percentiles::of(&total.latency),
                service: Percentiles::of(&total.service),
            };
            (*kind, summary)
        });
        let mut resources: BTreeMap<String, BTreeMap<String, ResourceSummary>> = BTreeMap::new();
        for ((process, name), points) in &digest.resources {
            let values: Vec<f64> = points.iter().map(|reading| reading.value).collect();
            let (Some(first), Some(last)) = (values.first(), values.last()) else {
                continue;
            };
            let summary = ResourceSummary {
                first: *first,
                last: *last,
                max: values.iter().copied().fold(f64::MIN, f64::max),
                mean: values.iter().sum::<f64>() / values.len() as f64,
            };
            resources
                .entry(process.clone())
                .or_default()
                .insert(name.clone(), summary);
        }
        Ok(Self {
            name: case.name.clone(),
            question: case.question.clone(),
            seed: case.seed,
            verdict,
            segments: all(dir, files::RUN)?,
            recorded_ms: digest.end_ms,
            kinds: kinds.collect(),
            parts: digest
                .parts
                .iter()
                .map(|(part, values)| (part.clone(), Percentiles::of(values)))
                .collect(),
            stale: digest.stale,
            behind_us_max: digest.behind_us_max,
            turn_us_max: digest.turn_us_max,
            resources,
            faults: all(dir, files::FAULTS)?,
        })
    }

    /// All requests that were answered or failed.
    pub(super) fn requests(&self) -> u64 {
        self.kinds
            .values()
            .map(|kind| kind.answered + kind.failed_in_all())
            .sum()
    }

    /// The run in lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let verdict = &self.verdict;
        let mut say = |line: std::fmt::Arguments<'_>| {
            // Text in memory.
            let _ = writeln!(text, "{line}");
        };
        say(format_args!(
            "{}: {} (seed {})",
            self.name,
            verdict.outcome.as_str().to_uppercase(),
            self.seed
        ));
        for reason in &verdict.reasons {
            say(format_args!(
                "  {}: {}",
                reason.outcome.as_str(),
                reason.text
            ));
        }
        for objective in &verdict.objectives {
            say(format_args!(
                "  {:<9} p{} {} (at most {}), greatest {}; failed {} of {}: {} (at most {})  {}",
                objective.request.as_str(),
                objective.percentile,
                words::exact(objective.latency_us),
                words::exact(objective.latency_us_max),
                words::exact(objective.slowest_us),
                words::count(objective.failed),
                words::count(objective.requests),
                words::percent(objective.error_ratio),
                words::percent(objective.error_ratio_max),
                if objective.holds {
                    "holds"
                } else {
                    "DOES NOT HOLD"
                },
            ));
        }
        for allowance in &verdict.allowances {
            let failed: Vec<String> = allowance
                .failed
                .iter()
                .map(|(kind, failed)| {
                    format!("{} {} of {}", kind.as_str(), failed.failed, failed.allowed)
                })
                .collect();
            say(format_args!(
                "  at {} {}: p99 of polls {}{}  {}",
                words::clock(allowance.from_ms),
                allowance.faults.join(", "),
                words::exact(allowance.p99_us),
                if failed.is_empty() {
                    String::new()
                } else {
                    format!("; failed {}", failed.join(", "))
                },
                if allowance.holds {
                    "holds"
                } else {
                    "DOES NOT HOLD"
                },
            ));
        }
        say(format_args!(
            "  {} requests in {}, {} of {} judged intervals without a verdict; behind by {} at most",
            words::count(self.requests()),
            words::lasted(self.recorded_ms),
            verdict.intervals_invalid,
            verdict.intervals_judged,
            words::exact(self.behind_us_max),
        ));
        let polls = self.kinds.get(&Kind::Poll).map_or(0, |kind| kind.answered);
        if self.stale > 0 {
            say(format_args!(
                "  {} of {} polls were answered from memory and marked stale: {}",
                words::count(self.stale),
                words::count(polls),
                words::percent(self.stale as f64 / polls.max(1) as f64),
            ));
        }
        // An instance that was started again counts from 0: then this is the least.
        let replayed: f64 = self
            .resources
            .values()
            .filter_map(|of| of.get("replayed"))
            .map(|replayed| replayed.max)
            .sum();
        if replayed > 0.0 {
            say(format_args!(
                "  {replayed:.0} writes that a failover had rolled back were brought back by replay",
            ));
        }
        if let Some(end) = &verdict.end {
            say(format_args!(
                "  {} finds acknowledged; {} credited once, {} expired lawfully, {} unknown; {} coins; {}",
                words::count(end.finds_acknowledged),
                words::count(end.finds_credited),
                words::count(end.finds_expired),
                words::count(end.finds_unknown),
                words::count(end.coins_credited),
                end.verify,
            ));
        }
        text
    }
}

impl KindSummary {
    /// Over all reasons.
    pub(super) fn failed_in_all(&self) -> u64 {
        self.failed.values().sum()
    }
}
