//! Whole runs, short ones, of real systems.
#![allow(clippy::unwrap_used)]

mod site;

use soak::case::{Case, Kind};
use soak::record::{FaultMark, Finding, Interval, Phase, Sample, Segment, files, read_lines};
use soak::run::Options;
use soak::verdict::{Outcome, Verdict};
use std::path::Path;

fn run(case: Case, dir: &Path) -> Verdict {
    let options = Options {
        command: vec!["soak".into(), "run".into()],
        show: Box::new(|_, _| {}),
    };
    let verdict = soak::run::run(case, dir, options).unwrap();
    // For whoever looks into a failure: what the intervals and the checker say.
    if verdict.outcome != Outcome::Pass {
        for interval in lines::<Interval>(dir, files::INTERVALS) {
            eprintln!(
                "{}-{} ms, behind {} µs, turn {} µs, counted {:?}: {:?} {:?}",
                interval.from_ms,
                interval.to_ms,
                interval.behind_us_max,
                interval.turn_us_max,
                interval.counted,
                interval.notes,
                interval.invalid
            );
        }
        for finding in lines::<Finding>(dir, files::FINDINGS) {
            eprintln!("{finding:?}");
        }
    }
    verdict
}

fn lines<T: serde::de::DeserializeOwned>(dir: &Path, file: &str) -> Vec<T> {
    read_lines(&dir.join(file))
        .unwrap()
        .map(|line| line.unwrap())
        .collect()
}

#[test]
fn a_healthy_run_passes_and_says_everything() {
    let dir = tempfile::tempdir().unwrap();
    let system = "[system]\nstore = \"redis\"\ninstances = 2\n";
    let verdict = run(site::case("healthy", "8s", system), dir.path());
    assert_eq!(verdict.outcome, Outcome::Pass, "{verdict:#?}");
    let end = verdict.end.unwrap();
    assert!(end.finds_acknowledged > 100, "{end:?}");
    assert_eq!(
        end.finds_acknowledged,
        end.finds_credited + end.finds_expired
    );
    assert!(end.verify.starts_with("0: "), "{end:?}");
    let intervals: Vec<Interval> = lines(dir.path(), files::INTERVALS);
    assert!(
        intervals.iter().all(|one| one.invalid.is_empty()),
        "{intervals:?}"
    );
    let event: Vec<_> = intervals
        .iter()
        .filter(|one| one.phase == Phase::Event)
        .collect();
    assert!(event.len() >= 3);
    // What the shim counted was what was sent, not only within the bounds of one interval.
    let sent: u64 = intervals
        .iter()
        .map(|one| one.kinds[&Kind::Heartbeat].sent)
        .sum();
    let counted: f64 = intervals
        .iter()
        .map(|one| one.counted["shim/heartbeats"])
        .sum();
    assert!((counted - sent as f64).abs() <= 10.0, "{counted} of {sent}");
    let samples: Vec<Sample> = lines(dir.path(), files::RESOURCES);
    for process in ["soak", "shim", "serve-0", "serve-1", "redis-0"] {
        assert!(
            samples.iter().any(|one| one.process == process),
            "{process}"
        );
    }
    let segments: Vec<Segment> = lines(dir.path(), files::RUN);
    assert_eq!(segments.len(), 1);
    assert!(
        segments[0].versions.contains_key("redis")
            && segments[0].emits_per_second[&Kind::Poll] > 0.0
    );
    assert!(site::processes_of(dir.path()).is_empty());
}

#[test]
fn a_killed_instance_costs_no_poll_and_no_coin() {
    let dir = tempfile::tempdir().unwrap();
    let more = r#"
        [system]
        store = "redis"
        instances = 2
        [[faults]]
        at = "3s"
        what = "kill_instance"
        allow_for = "5s"
        allow_failed = { find = 40, history = 40, bulk_find = 5, catalogue = 10 }
        allow_p99 = "2s"
    "#;
    let verdict = run(site::case("killed", "9s", more), dir.path());
    assert_eq!(verdict.outcome, Outcome::Pass, "{verdict:#?}");
    let marks: Vec<FaultMark> = lines(dir.path(), files::FAULTS);
    assert_eq!(marks.len(), 1);
    assert!(marks[0].until_ms > marks[0].at_ms);
    let intervals: Vec<Interval> = lines(dir.path(), files::INTERVALS);
    let noted = intervals.iter().flat_map(|one| &one.notes);
    assert!(
        noted
            .into_iter()
            .any(|note| note.contains("by the shim alone"))
    );
}
