//! A harness that is killed or interrupted, and a run that goes on.
#![allow(clippy::unwrap_used)]

mod site;

use rustix::process::Signal;
use soak::record::{FaultMark, Interval, Segment, files, read_lines};
use soak::run::Options;
use soak::verdict::{Outcome, judge};
use std::path::Path;

fn lines<T: serde::de::DeserializeOwned>(dir: &Path, file: &str) -> Vec<T> {
    read_lines(&dir.join(file))
        .unwrap()
        .map(|line| line.unwrap())
        .collect()
}

#[test]
fn a_run_whose_harness_is_killed_goes_on_with_nothing_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let more = r#"
        [system]
        store = "redis"
        instances = 2
        [[faults]]
        at = "1s"
        what = "stampede"
        allow_for = "5s"
        allow_failed = { poll = 100, heartbeat = 200, find = 40, history = 40, bulk_find = 10, catalogue = 40 }
        allow_p99 = "5s"
    "#;
    let case = site::case("resumed", "14s", more);
    let harness = site::harness::start(&case, &run);
    site::until("three intervals", || site::harness::intervals(&run) >= 3);
    harness.kill();
    site::until("its processes to be gone", || {
        site::processes_of(dir.path()).is_empty()
    });
    // An unfinished last line, as a crash in the middle of a write leaves it.
    let unfinished = run.join(files::INTERVALS);
    let mut text = std::fs::read(&unfinished).unwrap();
    text.extend(b"{\"from_ms\": 6000, \"to_");
    std::fs::write(&unfinished, text).unwrap();

    let mut harness = site::harness::resume(&run);
    assert_eq!(harness.ended(), Some(0), "{:#?}", judge(&run));
    let segments: Vec<Segment> = lines(&run, files::RUN);
    assert_eq!(segments.len(), 2);
    let intervals: Vec<Interval> = lines(&run, files::INTERVALS);
    assert!(
        intervals
            .windows(2)
            .all(|two| two[0].to_ms == two[1].from_ms),
        "{intervals:#?}"
    );
    assert_eq!(intervals[0].from_ms, 0);
    assert!(intervals.iter().any(|one| one.from_ms == segments[1].at_ms));
    assert_eq!(lines::<FaultMark>(&run, files::FAULTS).len(), 1);
    let verdict = judge(&run).unwrap();
    assert_eq!(verdict.outcome, Outcome::Pass, "{verdict:#?}");
    assert!(verdict.end.unwrap().finds_acknowledged > 100);

    let again = soak::run::resume(
        &run,
        Options {
            command: Vec::new(),
            show: Box::new(|_, _| {}),
        },
    );
    assert_eq!(again.unwrap_err().exit_status(), 2, "it has ended");
}

#[test]
fn an_interrupted_run_ends_what_it_started_and_is_no_pass() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let case = site::case("interrupted", "10m", "");
    let mut harness = site::harness::start(&case, &run);
    site::until("an interval", || site::harness::intervals(&run) >= 1);
    harness.signal(Signal::INT);
    assert_eq!(harness.ended(), Some(1));
    assert!(site::processes_of(dir.path()).is_empty());
    let verdict = judge(&run).unwrap();
    assert_ne!(verdict.outcome, Outcome::Pass);
    let end = verdict.end.unwrap();
    assert!(
        end.unchecked
            .iter()
            .any(|text| text.contains("interrupted")),
        "{end:?}"
    );
    assert!(run.join("report.html").exists());
}

#[test]
fn a_directory_with_a_run_is_not_run_in_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(files::RUN), "{}\n").unwrap();
    let options = Options {
        command: Vec::new(),
        show: Box::new(|_, _| {}),
    };
    let refusal = soak::run::run(site::case("twice", "1s", ""), dir.path(), options).unwrap_err();
    assert_eq!(refusal.exit_status(), 2);
    assert!(refusal.to_string().contains("soak resume"));
}

#[test]
#[ignore = "is the harness of other tests, in a process of its own"]
fn the_harness_of_another_test() {
    site::harness::main();
}
