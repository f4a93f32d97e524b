//! The verdict of a run, from what it wrote down and nothing else. The order in which reasons count:
//!
//! 1. What clients or the ledger contradict (findings, an audit that does not hold) **fails** a run, however badly the harness
//!    kept its schedule: it happened.
//! 2. What makes the harness itself not worth believing, or leaves something unchecked, makes a run **invalid**: a verdict on
//!    speed would be a guess. "Unknown" is here, and is no pass.
//! 3. Then objectives, allowances and leaks decide whether it **fails** or **passes**.

mod coverage;
mod leaks;
mod speed;

pub use leaks::{LEAKABLE, LeakVerdict};
pub use speed::{AllowanceVerdict, Failed, ObjectiveVerdict};
pub(crate) use speed::{at, empty, ms};

use crate::case::Case;
use crate::record::{End, FaultMark, Finding, Interval, Phase, Sample, Segment, files, read_lines};
use anyhow::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The most findings that a verdict quotes; all are counted.
pub const FINDINGS_QUOTED_MAX: usize = 50;
/// The most different reasons of invalid intervals that are told apart.
const REASONS_MAX: usize = 50;

/// What a run is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything held, and everything was checked.
    Pass,
    /// Something did not hold.
    Fail,
    /// The run says nothing: the harness fell behind, or something was not checked.
    Invalid,
}

impl Outcome {
    /// The process's exit status for it.
    #[must_use]
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail | Self::Invalid => 1,
        }
    }

    /// In a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Invalid => "invalid",
        }
    }
}

/// A verdict and what it stands on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What the run is worth.
    pub outcome: Outcome,
    /// Why it is no pass, the gravest first.
    pub reasons: Vec<Reason>,
    /// Of each objective of the case, in its order.
    pub objectives: Vec<ObjectiveVerdict>,
    /// Of each time in which allowances counted instead.
    pub allowances: Vec<AllowanceVerdict>,
    /// Of each resource that was observed for long enough.
    pub leaks: Vec<LeakVerdict>,
    /// How many intervals there are, of any phase.
    pub intervals: u64,
    /// How many of them are judged: of the event, after the warm-up.
    pub intervals_judged: u64,
    /// How many of those have no verdict.
    pub intervals_invalid: u64,
    /// Why, with how many it was said of.
    pub invalid_reasons: BTreeMap<String, u64>,
    /// Findings of the online checker and of the final check, by kind.
    pub findings: BTreeMap<String, u64>,
    /// The first of them.
    pub findings_quoted: Vec<Finding>,
    /// What the final check found, if there was one.
    pub end: Option<End>,
}

/// A reason why a run is no pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// What it makes of the run.
    pub outcome: Outcome,
    /// In words.
    pub text: String,
}

impl Reason {
    fn fail(text: String) -> Self {
        Self {
            outcome: Outcome::Fail,
            text,
        }
    }

    fn invalid(text: String) -> Self {
        Self {
            outcome: Outcome::Invalid,
            text,
        }
    }
}

/// Judges the run in this directory. A run that was cut off is judged by what there is, and is no pass.
///
/// # Errors
/// There is no case, or a file cannot be read.
pub fn judge(dir: &Path) -> anyhow::Result<Verdict> {
    let case = Case::of_run(dir)?;
    let segments: Vec<Segment> = all(dir, files::RUN)?;
    let faults: Vec<FaultMark> = all(dir, files::FAULTS)?;
    let mut speed = speed::Speed::new(&case, &faults);
    let mut coverage = coverage::Coverage::new(&case, &segments);
    let mut leaks = leaks::Leaks::new(&case);
    let mut verdict = Verdict {
        outcome: Outcome::Pass,
        reasons: Vec::new(),
        objectives: Vec::new(),
        allowances: Vec::new(),
        leaks: Vec::new(),
        intervals: 0,
        intervals_judged: 0,
        intervals_invalid: 0,
        invalid_reasons: BTreeMap::new(),
        findings: BTreeMap::new(),
        findings_quoted: Vec::new(),
        end: None,
    };

    let mut intervals = lines::<Interval>(dir, files::INTERVALS)?;
    for interval in &mut intervals {
        let interval = interval?;
        verdict.intervals += 1;
        coverage.interval(&interval);
        leaks.interval(&interval);
        if interval.phase != Phase::Event || interval.from_ms < millis(case.warmup) {
            continue;
        }
        verdict.intervals_judged += 1;
        if interval.invalid.is_empty() {
            speed.interval(&interval)?;
            continue;
        }
        verdict.intervals_invalid += 1;
        for reason in &interval.invalid {
            let known = verdict.invalid_reasons.len();
            let reason = gist(reason);
            if known < REASONS_MAX || verdict.invalid_reasons.contains_key(&reason) {
                *verdict.invalid_reasons.entry(reason).or_default() += 1;
            }
        }
    }
    coverage.skipped(files::INTERVALS, intervals.skipped());
    let mut samples = lines::<Sample>(dir, files::RESOURCES)?;
    for sample in &mut samples {
        leaks.sample(sample?);
    }
    coverage.skipped(files::RESOURCES, samples.skipped());
    findings(dir, &mut verdict)?;

    let contradicted = correctness(&verdict);
    let unbelievable = coverage.reasons(&case, &faults, &verdict);
    (verdict.objectives, verdict.allowances) = speed.verdicts();
    verdict.leaks = leaks.verdicts();
    let missed = performance(&verdict);
    let unjudged = verdict
        .objectives
        .iter()
        .filter(|objective| objective.requests == 0);
    let unjudged: Vec<Reason> = unjudged
        .map(|objective| {
            let request = objective.request.as_str();
            Reason::invalid(format!(
                "no {request} was judged, and there is an objective for it"
            ))
        })
        .collect();
    verdict.reasons = [contradicted, unbelievable, unjudged, missed].concat();
    verdict.outcome = verdict
        .reasons
        .first()
        .map_or(Outcome::Pass, |reason| reason.outcome);
    Ok(verdict)
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Streams the records of one of the run's files.
pub(crate) fn lines<T: serde::de::DeserializeOwned>(
    dir: &Path,
    file: &str,
) -> anyhow::Result<crate::record::Lines<T>> {
    let path = dir.join(file);
    read_lines(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads all records of a file that is small in any run.
pub(crate) fn all<T: serde::de::DeserializeOwned>(
    dir: &Path,
    file: &str,
) -> anyhow::Result<Vec<T>> {
    let records = lines(dir, file)?.collect::<std::io::Result<Vec<T>>>();
    records.with_context(|| format!("cannot read {}", dir.join(file).display()))
}

/// A reason without its figures, so that the same reason of many intervals is one.
fn gist(reason: &str) -> String {
    let mut text = String::with_capacity(reason.len());
    for part in reason.split_inclusive(|character: char| !character.is_ascii_digit()) {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
        if rest.len() < part.len() && !text.ends_with('#') {
            text.push('#');
        }
        text.push_str(rest);
    }
    text
}

fn findings(dir: &Path, verdict: &mut Verdict) -> anyhow::Result<()> {
    for finding in lines::<Finding>(dir, files::FINDINGS)? {
        let finding = finding?;
        *verdict.findings.entry(finding.kind.clone()).or_default() += 1;
        if verdict.findings_quoted.len() < FINDINGS_QUOTED_MAX {
            verdict.findings_quoted.push(finding);
        }
    }
    verdict.end = all::<End>(dir, files::END)?.pop();
    Ok(())
}

/// What clients or the ledger contradict.
fn correctness(verdict: &Verdict) -> Vec<Reason> {
    let of_findings = verdict.findings.iter().map(|(kind, count)| {
        Reason::fail(match count {
            1 => format!("1 finding of {kind}"),
            count => format!("{count} findings of {kind}"),
        })
    });
    let mut reasons: Vec<Reason> = of_findings.collect();
    let Some(end) = &verdict.end else {
        return reasons;
    };
    // Findings that were not written are still counted.
    let written: u64 = verdict.findings.values().sum();
    if end.findings > written {
        let more = end.findings - written;
        reasons.push(Reason::fail(format!(
            "{more} more findings than are written down"
        )));
    }
    if !end.verify_holds {
        let verify = &end.verify;
        reasons.push(Reason::fail(format!("the audit does not hold: {verify}")));
    }
    reasons
}

/// What was promised and not kept.
fn performance(verdict: &Verdict) -> Vec<Reason> {
    let objectives = verdict
        .objectives
        .iter()
        .filter(|objective| objective.requests > 0);
    let objectives = objectives.flat_map(ObjectiveVerdict::missed);
    let allowances = verdict.allowances.iter().flat_map(AllowanceVerdict::missed);
    let leaks = verdict
        .leaks
        .iter()
        .filter(|leak| leak.leaks)
        .map(LeakVerdict::text);
    objectives
        .chain(allowances)
        .chain(leaks)
        .map(Reason::fail)
        .collect()
}
