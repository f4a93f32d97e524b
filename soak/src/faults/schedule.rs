//! When the faults of a case are due, by the run's clock.

use super::{mark, seen};
use crate::case::{Case, Fault, FaultKind};
use crate::record::FaultMark;
use std::collections::BTreeMap;
use std::time::Duration;

/// The most faults of a run: a case that asks for more (a fault each second for 48 hours) has them cut off and is told.
pub const FAULTS_MAX: usize = 20_000;

/// A fault at its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    /// When, by the run's clock.
    pub at: Duration,
    /// Which of its kind it is done to; taken modulo how many there are.
    pub which: u32,
    /// What.
    pub fault: Fault,
}

/// All of them in the order of their times. None is due after the event: what settles then is to be undisturbed.
#[must_use]
pub fn schedule(case: &Case) -> Vec<Due> {
    let mut dues = Vec::new();
    for fault in &case.faults {
        let most = match (fault.every.is_zero(), fault.times) {
            (true, _) => 1,
            (false, 0) => u32::MAX,
            (false, times) => times,
        };
        for nth in 0..most {
            let at = fault.at.saturating_add(fault.every.saturating_mul(nth));
            if at > case.duration || dues.len() >= FAULTS_MAX {
                break;
            }
            dues.push(Due {
                at: case.scaled(at),
                which: fault.which.wrapping_add(nth),
                fault: fault.clone(),
            });
        }
    }
    dues.sort_by_key(|due| due.at);
    dues
}

/// What is left to do from `from` on, and marks of those that were due before and have none: the harness ended while they
/// were under way, and what they broke was broken all the same.
#[must_use]
pub fn after(dues: Vec<Due>, from: Duration, marks: &[FaultMark]) -> (Vec<Due>, Vec<FaultMark>) {
    let mut done: BTreeMap<FaultKind, usize> = BTreeMap::new();
    for mark in marks {
        *done.entry(mark.what).or_default() += 1;
    }
    let (before, left): (Vec<Due>, Vec<Due>) = dues.into_iter().partition(|due| due.at < from);
    let mut interrupted = Vec::new();
    for due in before {
        let count = done.entry(due.fault.what).or_default();
        if *count > 0 {
            *count -= 1;
            continue;
        }
        let note = format!(
            "{}: the harness ended before it was over",
            due.fault.what.as_str()
        );
        interrupted.push(mark(&due.fault, due.at, from, seen("", note)));
    }
    (left, interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(faults: &str) -> Case {
        let head = "name = \"n\"\nquestion = \"q\"\nseed = 1\nduration = \"1h\"\ncompress = 60.0\n[load]\nusers = 1\n";
        toml::from_str(&format!("{head}{faults}")).expect("a case")
    }

    const TWO: &str = "[[faults]]\nat = \"10m\"\nevery = \"20m\"\nwhat = \"kill_instance\"\n\
                       [[faults]]\nat = \"15m\"\nwhat = \"stampede\"\nallow_for = \"5s\"\n";

    #[test]
    fn faults_are_due_in_compressed_time_each_time_at_the_next_one() {
        let dues = schedule(&case(TWO));
        let seen: Vec<_> = dues
            .iter()
            .map(|due| (due.at.as_secs(), due.which, due.fault.what))
            .collect();
        let expected = [
            (10, 0, FaultKind::KillInstance),
            (15, 0, FaultKind::Stampede),
            (30, 1, FaultKind::KillInstance),
            (50, 2, FaultKind::KillInstance),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_number_of_times_and_the_events_end_bound_them() {
        let often = "[[faults]]\nat = \"1s\"\nevery = \"1s\"\nwhat = \"stampede\"\n";
        assert_eq!(schedule(&case(often)).len(), 3600);
        assert_eq!(schedule(&case(&format!("{often}times = 3\n"))).len(), 3);
        let too_often = "[[faults]]\nat = \"1ms\"\nevery = \"1ms\"\nwhat = \"stampede\"\n";
        assert_eq!(schedule(&case(too_often)).len(), FAULTS_MAX);
    }

    #[test]
    fn after_a_resumption_only_the_rest_is_done_and_what_was_interrupted_is_marked() {
        let dues = schedule(&case(TWO));
        let marks = [mark(
            &dues[0].fault,
            dues[0].at,
            dues[0].at,
            seen("serve-0", ""),
        )];
        let (left, interrupted) = after(dues.clone(), Duration::from_secs(30), &marks);
        assert_eq!(left, dues[2..]);
        assert_eq!(interrupted.len(), 1);
        assert_eq!(interrupted[0].what, FaultKind::Stampede);
        assert_eq!(
            (interrupted[0].at_ms, interrupted[0].allow_until_ms),
            (15_000, 20_000)
        );
        let (left, interrupted) = after(dues.clone(), Duration::ZERO, &[]);
        assert_eq!((left, interrupted), (dues, Vec::new()));
    }
}
