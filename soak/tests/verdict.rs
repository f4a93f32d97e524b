//! The verdict, on records that were made up.

mod synthetic;

use soak::case::Kind;
use soak::record::{Finding, files};
use soak::verdict::{Outcome, Verdict, judge};
use synthetic::{Dice, Synthetic, histogram};

fn verdict(run: &Synthetic) -> Verdict {
    run.write();
    judge(run.dir()).expect("judged")
}

/// The run is this, and the first reason begins with these words.
fn is(run: &Synthetic, outcome: Outcome, words: &str) {
    let verdict = verdict(run);
    assert_eq!(verdict.outcome, outcome, "{:?}", verdict.reasons);
    let first = verdict
        .reasons
        .first()
        .map_or("", |reason| reason.text.as_str());
    assert!(
        first.starts_with(words),
        "{words:?} is not how {first:?} begins"
    );
}

#[test]
fn a_run_in_which_all_went_well_passes() {
    let run = Synthetic::passing();
    let verdict = verdict(&run);
    assert_eq!(
        (verdict.outcome, verdict.reasons.as_slice()),
        (Outcome::Pass, [].as_slice())
    );
    assert!(verdict.objectives.iter().all(|objective| objective.holds));
    assert!(
        verdict
            .objectives
            .iter()
            .all(|objective| objective.latency_us <= objective.slowest_us)
    );
    assert_eq!(verdict.allowances.len(), 2);
    assert!(
        verdict
            .allowances
            .iter()
            .all(|allowance| allowance.holds && allowance.intervals > 0)
    );
    assert!(!verdict.leaks.is_empty());
    // 29 minutes of 5 s, after the warm-up.
    assert_eq!(verdict.intervals_judged, 29 * 12);
}

#[test]
fn a_finding_fails_a_run_even_if_the_harness_was_starved() {
    let mut run = Synthetic::passing();
    run.interval_at(600_000)
        .invalid
        .push("fell behind by 99 ms".to_owned());
    run.findings.push(Finding {
        at_ms: 1,
        kind: "credited_twice".to_owned(),
        player: "u1".to_owned(),
        text: "f1".to_owned(),
    });
    is(&run, Outcome::Fail, "1 finding of credited_twice");
}

#[test]
fn findings_that_were_only_counted_fail_a_run() {
    let mut run = Synthetic::passing();
    run.end.as_mut().expect("an end").findings = 3;
    is(&run, Outcome::Fail, "3 more findings than are written down");
}

#[test]
fn an_audit_that_does_not_hold_fails_a_run() {
    let mut run = Synthetic::passing();
    let end = run.end.as_mut().expect("an end");
    end.verify_holds = false;
    end.verify = "exit 1: 5 coins too many".to_owned();
    is(
        &run,
        Outcome::Fail,
        "the audit does not hold: exit 1: 5 coins too many",
    );
}

#[test]
fn an_interval_without_a_verdict_makes_a_run_invalid_even_if_it_was_slow() {
    let mut run = Synthetic::passing();
    for at in [600_000, 700_000] {
        run.interval_at(at)
            .invalid
            .push(format!("fell behind by {at} µs"));
    }
    let mut dice = Dice::new(1);
    for interval in &mut run.intervals {
        interval.kinds.get_mut(&Kind::Poll).expect("polls").latency =
            histogram(&mut dice, 50_000.0, 1000);
    }
    is(
        &run,
        Outcome::Invalid,
        "2 of 348 judged intervals have no verdict: fell behind by # µs",
    );
    run.case.bounds.invalid_share_max = 0.01;
    is(&run, Outcome::Fail, "p99 of poll is ");
}

#[test]
fn what_is_missing_unknown_or_unchecked_is_no_pass() {
    let mut run = Synthetic::passing();
    run.end.as_mut().expect("an end").finds_unknown = 1;
    is(&run, Outcome::Invalid, "the fate of 1 finds is unknown");
    let mut run = Synthetic::passing();
    run.end
        .as_mut()
        .expect("an end")
        .unchecked
        .push("the export broke off".to_owned());
    is(&run, Outcome::Invalid, "not checked: the export broke off");
    let mut run = Synthetic::passing();
    run.end = None;
    is(&run, Outcome::Invalid, "there was no final check");
    let mut run = Synthetic::passing();
    run.faults.pop();
    is(
        &run,
        Outcome::Invalid,
        "the fault kill_redis was done 0 of 1 times",
    );
    let mut run = Synthetic::passing();
    run.intervals.truncate(100);
    is(
        &run,
        Outcome::Invalid,
        "the record covers 8m 20s of the event's 30m",
    );
    let mut run = Synthetic::passing();
    run.intervals.remove(100);
    is(&run, Outcome::Invalid, "intervals are missing for 5s");
    let mut run = Synthetic::passing();
    let twice = run.intervals[100].clone();
    run.intervals.insert(101, twice);
    is(
        &run,
        Outcome::Invalid,
        "1 intervals overlap: something is counted twice",
    );
    let mut run = Synthetic::passing();
    for interval in &mut run.intervals {
        interval.kinds.remove(&Kind::Find);
    }
    is(
        &run,
        Outcome::Invalid,
        "no find was judged, and there is an objective for it",
    );
}

#[test]
fn an_objective_that_is_missed_fails_a_run() {
    let mut run = Synthetic::passing();
    let polls = run
        .interval_at(600_000)
        .kinds
        .get_mut(&Kind::Poll)
        .expect("polls");
    polls.failed.insert("500".to_owned(), 3_000);
    is(&run, Outcome::Fail, "3000 of ");
    let mut run = Synthetic::passing();
    let mut dice = Dice::new(1);
    for interval in &mut run.intervals {
        let polls = interval.kinds.get_mut(&Kind::Poll).expect("polls");
        polls.latency = histogram(&mut dice, 15_000.0, polls.answered);
    }
    is(&run, Outcome::Fail, "p99 of poll is ");
}

#[test]
fn an_answer_slower_than_the_promise_counts_as_failed_once() {
    let mut run = Synthetic::passing();
    let before = verdict(&run).objectives[0].failed;
    let polls = run
        .interval_at(600_000)
        .kinds
        .get_mut(&Kind::Poll)
        .expect("polls");
    // Four were too slow, and two of them are those that timed out.
    polls.failed.insert("timeout".to_owned(), 2);
    let mut values = polls.latency.values().expect("read").expect("values");
    values.record_n(1_500_000, 2).expect("recorded");
    values.record_n(10_000_000, 2).expect("recorded");
    polls.latency = soak::record::Histogram::of(&values).expect("encoded");
    assert_eq!(verdict(&run).objectives[0].failed, before + 4);
}

#[test]
fn failures_beyond_an_allowance_fail_a_run_and_kinds_that_are_not_named_have_none() {
    let at = 8 * 60_000;
    let mut run = Synthetic::passing();
    run.interval_at(at)
        .kinds
        .get_mut(&Kind::Find)
        .expect("finds")
        .failed
        .insert("503".to_owned(), 21);
    is(
        &run,
        Outcome::Fail,
        "21 find requests failed during kill_instance of serve-0 at 8 min 0 s, and 20 might",
    );
    let mut run = Synthetic::passing();
    run.interval_at(at)
        .kinds
        .get_mut(&Kind::Poll)
        .expect("polls")
        .failed
        .insert("broken".to_owned(), 1);
    is(
        &run,
        Outcome::Fail,
        "1 poll requests failed during kill_instance",
    );
}

#[test]
fn a_process_that_grows_by_more_than_both_bounds_leaks() {
    let mut run = Synthetic::passing();
    for sample in run
        .samples
        .iter_mut()
        .filter(|sample| sample.process == "serve-1")
    {
        let grown = 1.0 + sample.at_ms as f64 / 3_600_000.0;
        *sample.values.get_mut("rss_bytes").expect("memory") *= grown;
    }
    is(&run, Outcome::Fail, "rss_bytes of serve-1 leaks: +");
}

#[test]
fn a_few_mebibytes_or_connections_are_no_leak_whatever_their_share() {
    let of = |bytes: f64, connections: f64| {
        let mut run = Synthetic::passing();
        let last = run.samples.iter().map(|one| one.at_ms).max().expect("some") as f64;
        let samples = run.samples.iter_mut();
        for sample in samples.filter(|sample| sample.process == "serve-1") {
            let passed = sample.at_ms as f64 / last;
            let values = [
                ("rss_bytes", 30e6 + bytes * passed),
                ("connections", 3.0 + connections * passed),
            ];
            sample
                .values
                .extend(values.map(|(name, value)| (name.to_owned(), value)));
        }
        run
    };
    // By 27 % and 133 % at the most.
    let small = of(8e6, 4.0);
    assert_eq!(verdict(&small).leaks.iter().find(|leak| leak.leaks), None);
    is(
        &of(30e6, 4.0),
        Outcome::Fail,
        "rss_bytes of serve-1 leaks: +",
    );
    is(
        &of(8e6, 40.0),
        Outcome::Fail,
        "connections of serve-1 leaks: +",
    );
}

#[test]
fn a_load_that_rises_is_no_leak() {
    // Everything follows the users, half of whom come in the second half.
    let case = synthetic::CASE.replace(
        r#"curve = { kind = "spike", base = 0.5, at = "12m", lasts = "6m" }"#,
        r#"curve = { kind = "ramp", from = 0.2, over = "30m" }"#,
    );
    let run = Synthetic::of(&case, 5);
    assert_eq!(verdict(&run).leaks.iter().find(|leak| leak.leaks), None);
}

#[test]
fn a_last_line_that_is_cut_off_is_no_matter_and_a_damaged_one_only_after_a_resumption() {
    let run = Synthetic::passing();
    run.write();
    for file in [
        files::INTERVALS,
        files::RESOURCES,
        files::FAULTS,
        files::FINDINGS,
    ] {
        run.append(file, r#"{"from_ms":18"#);
    }
    assert_eq!(judge(run.dir()).expect("judged").outcome, Outcome::Pass);
    run.append(files::INTERVALS, "\n");
    let verdict = judge(run.dir()).expect("judged");
    assert_eq!(
        verdict.reasons[0].text,
        "1 lines of intervals.jsonl are damaged, and the run was resumed 0 times"
    );
    let mut run = Synthetic::passing();
    run.resumed_at.push(900_000);
    run.write();
    run.append(files::INTERVALS, "{\"from_ms\":18\n");
    assert_eq!(judge(run.dir()).expect("judged").outcome, Outcome::Pass);
}

#[test]
fn a_run_that_hardly_began_is_judged_and_is_no_pass() {
    let mut run = Synthetic::passing();
    run.intervals.clear();
    run.samples.clear();
    run.faults.clear();
    run.end = None;
    is(&run, Outcome::Invalid, "no interval was judged");
}
