//! Whether the run can be believed: whether the harness kept its schedule, the record is whole, the faults were done, and
//! everything was checked.

use super::{Reason, Verdict, millis};
use crate::case::{Case, Fault, FaultKind};
use crate::record::{FaultMark, Interval, Phase, Segment, files};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is noticed of the record while it is read.
pub(super) struct Coverage {
    /// The end of the interval before.
    last_ms: Option<u64>,
    event_ms: u64,
    gaps_ms: u64,
    overlaps: u64,
    resumptions: u64,
    begun: bool,
    skipped: BTreeMap<&'static str, u64>,
    gap_ms_max: u64,
}

impl Coverage {
    pub(super) fn new(case: &Case, segments: &[Segment]) -> Self {
        Self {
            last_ms: None,
            event_ms: 0,
            gaps_ms: 0,
            overlaps: 0,
            resumptions: (segments.len() as u64).saturating_sub(1),
            begun: !segments.is_empty(),
            skipped: BTreeMap::new(),
            // Intervals end when the loop comes round, not to the millisecond.
            gap_ms_max: millis(case.interval) / 10,
        }
    }

    pub(super) fn interval(&mut self, interval: &Interval) {
        if let Some(last) = self.last_ms {
            if interval.from_ms + self.gap_ms_max < last {
                self.overlaps += 1;
            } else if interval.from_ms > last + self.gap_ms_max {
                self.gaps_ms += interval.from_ms - last;
            }
        } else if interval.from_ms > self.gap_ms_max {
            self.gaps_ms += interval.from_ms;
        }
        if interval.phase != Phase::Settle {
            self.event_ms += interval.to_ms.saturating_sub(interval.from_ms);
        }
        self.last_ms = Some(interval.to_ms);
    }

    pub(super) fn skipped(&mut self, file: &'static str, lines: u64) {
        self.skipped.insert(file, lines);
    }

    pub(super) fn reasons(
        &self,
        case: &Case,
        faults: &[FaultMark],
        verdict: &Verdict,
    ) -> Vec<Reason> {
        let mut texts = Vec::new();
        if !self.begun {
            texts.push(format!("{} says nothing of how the run began", files::RUN));
        }
        let (judged, invalid) = (verdict.intervals_judged, verdict.intervals_invalid);
        if judged == 0 {
            texts.push("no interval was judged".to_owned());
        } else if as_f64(invalid) > case.bounds.invalid_share_max * as_f64(judged) {
            let why: Vec<&str> = verdict
                .invalid_reasons
                .keys()
                .take(3)
                .map(String::as_str)
                .collect();
            texts.push(format!(
                "{invalid} of {judged} judged intervals have no verdict: {}",
                why.join("; ")
            ));
        }
        let wanted = millis(case.event_lasts());
        if self.event_ms + millis(case.interval) < wanted {
            texts.push(format!(
                "the record covers {} of the event's {}",
                words(self.event_ms),
                words(wanted)
            ));
        }
        if self.gaps_ms > 0 {
            texts.push(format!("intervals are missing for {}", words(self.gaps_ms)));
        }
        if self.overlaps > 0 {
            texts.push(format!(
                "{} intervals overlap: something is counted twice",
                self.overlaps
            ));
        }
        for (file, lines) in &self.skipped {
            if *lines > self.resumptions {
                texts.push(format!(
                    "{lines} lines of {file} are damaged, and the run was resumed {} times",
                    self.resumptions
                ));
            }
        }
        texts.extend(undone(case, faults));
        match &verdict.end {
            None => texts.push("there was no final check".to_owned()),
            Some(end) => {
                if end.finds_unknown > 0 {
                    texts.push(format!(
                        "the fate of {} finds is unknown",
                        end.finds_unknown
                    ));
                }
                texts.extend(
                    end.unchecked
                        .iter()
                        .map(|what| format!("not checked: {what}")),
                );
            }
        }
        texts.into_iter().map(Reason::invalid).collect()
    }
}

/// How often this fault is to be done.
fn times(case: &Case, fault: &Fault) -> u64 {
    let left = case.duration.saturating_sub(fault.at);
    if fault.every.is_zero() {
        return 1;
    }
    // The moments at, at + every … before the end.
    let fit = left.as_nanos().div_ceil(fault.every.as_nanos());
    let fit = u64::try_from(fit).unwrap_or(u64::MAX);
    if fault.times == 0 {
        fit
    } else {
        fit.min(u64::from(fault.times))
    }
}

/// Faults that the case asks for and the run did not do: it proves less than it says.
fn undone(case: &Case, faults: &[FaultMark]) -> Vec<String> {
    let mut wanted: BTreeMap<FaultKind, u64> = BTreeMap::new();
    for fault in &case.faults {
        *wanted.entry(fault.what).or_default() += times(case, fault);
    }
    let missing = wanted.into_iter().filter_map(|(what, wanted)| {
        let done = faults.iter().filter(|mark| mark.what == what).count() as u64;
        (done < wanted).then(|| {
            format!(
                "the fault {} was done {done} of {wanted} times",
                what.as_str()
            )
        })
    });
    missing.collect()
}

/// Exact below 2^53.
fn as_f64(count: u64) -> f64 {
    count as f64
}

fn words(ms: u64) -> String {
    humantime_serde::re::humantime::format_duration(Duration::from_millis(ms)).to_string()
}
