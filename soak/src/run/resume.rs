//! Where a run goes on after its harness, or the machine, has crashed: where the last recorded interval ended.
//!
//! What was recorded after that point (samples and marks of an interval that was not finished) is taken away, because that
//! interval is run again; findings stay, whatever they are of. The books stay too: a find is entered before it leaves, so the
//! numbers after theirs are free, and what was under way is decided by the ledger in the end.

use super::records::keep;
use crate::books;
use crate::case::Case;
use crate::faults::schedule::{self, Due};
use crate::record::{self, FaultMark, Finding, Interval, Sample, Segment, files};
use crate::refusal::Refusal;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// Where a segment of a run begins, and with what.
#[derive(Debug, Default)]
pub(super) struct Point {
    /// By the run's clock.
    pub(super) at_ms: u64,
    /// How many segments there were before.
    pub(super) segment: u32,
    /// The number of the next find.
    pub(super) next_find: u64,
    /// The faults that are left.
    pub(super) dues: Vec<Due>,
    /// Marks of those that the crash interrupted.
    pub(super) interrupted: Vec<FaultMark>,
    /// Findings so far.
    pub(super) findings: u64,
    /// What cannot be checked any more.
    pub(super) unchecked: Vec<String>,
}

impl Point {
    /// A run's beginning.
    pub(super) fn beginning(case: &Case) -> Self {
        Self {
            next_find: 1,
            dues: schedule::schedule(case),
            ..Self::default()
        }
    }
}

/// Finds the point in a run's directory, and takes away what was recorded after it.
pub(super) fn point(dir: &Path, case: &Case) -> Result<Point, Refusal> {
    let failed =
        |error: std::io::Error| Refusal::unreachable(format!("{}: {error}", dir.display()));
    let segments = count::<Segment>(dir, files::RUN).map_err(failed)?;
    if segments == 0 {
        return Err(Refusal::usage(format!("{} holds no run", dir.display())));
    }
    if dir.join(files::END).exists() {
        return Err(Refusal::usage(format!(
            "the run in {} has ended; `soak report` shows it",
            dir.display()
        )));
    }
    let mut at_ms = 0;
    for interval in record::read_lines::<Interval>(&dir.join(files::INTERVALS)).map_err(failed)? {
        at_ms = at_ms.max(interval.map_err(failed)?.to_ms);
    }
    keep::<Interval>(dir, files::INTERVALS, |interval| interval.to_ms <= at_ms).map_err(failed)?;
    keep::<Sample>(dir, files::RESOURCES, |sample| sample.at_ms <= at_ms).map_err(failed)?;
    keep::<FaultMark>(dir, files::FAULTS, |mark| mark.at_ms < at_ms).map_err(failed)?;
    keep::<Finding>(dir, files::FINDINGS, |_| true).map_err(failed)?;
    let marks = record::read_lines(&dir.join(files::FAULTS)).map_err(failed)?;
    let marks: Vec<FaultMark> = marks.collect::<std::io::Result<_>>().map_err(failed)?;
    let findings = count::<Finding>(dir, files::FINDINGS).map_err(failed)?;
    let all = schedule::schedule(case);
    let (dues, interrupted) = schedule::after(all, Duration::from_millis(at_ms), &marks);
    let next_find = books::resume(dir).map_err(failed)?;
    Ok(Point {
        at_ms,
        segment: u32::try_from(segments).unwrap_or(u32::MAX),
        next_find,
        dues,
        interrupted,
        findings,
        unchecked: Vec::new(),
    })
}

/// How many records a file has.
fn count<T: DeserializeOwned>(dir: &Path, file: &str) -> std::io::Result<u64> {
    let mut lines = record::read_lines::<T>(&dir.join(file))?;
    lines.try_fold(0, |count, line| line.map(|_| count + 1))
}
