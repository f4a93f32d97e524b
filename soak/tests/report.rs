//! Reports of records that were made up.

mod synthetic;

use soak::report::{self, COMPARED_HTML, HTML, JSON};
use std::path::Path;
use synthetic::Synthetic;

fn page(dir: &Path, against: Option<&Path>) -> String {
    let report = report::html(dir, against).expect("a report");
    std::fs::read_to_string(report.html).expect("read")
}

/// What a browser would ask a network for.
fn requests(page: &str) -> Vec<&str> {
    let marks = [
        "src=", "href=", "url(", "@import", "<script", "<link", "<iframe",
    ];
    marks
        .into_iter()
        .filter(|mark| page.contains(mark))
        .collect()
}

#[test]
fn a_report_is_one_page_that_asks_nobody_for_anything() {
    let run = Synthetic::passing();
    run.write();
    let page = page(run.dir(), None);
    assert_eq!(requests(&page), Vec::<&str>::new());
    for part in [
        "made-up",
        "Is a made-up half hour",
        "Latency of polls",
        "Answered per second",
        "Load curve",
        "Where the time of polls went",
        "Resident memory",
        "kill_redis",
        "served again after 3.1 s",
        "soak run made-up.toml --set load.users=2000",
        "seed 11",
        "a made-up one",
        "exit 0: 2,000 players, everything adds up",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    assert!(page.matches("<svg").count() >= 12);
    // No colour of the drawing library is left: each is a variable of the style sheet.
    for line in page.lines().filter(|line| line.starts_with('<')) {
        assert!(!line.contains("=\"#"), "{line}");
    }
    let json = std::fs::read(run.dir().join(JSON)).expect("figures");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["verdict"]["outcome"], "pass");
    assert_eq!(json["seed"], 11);
    assert!(json["kinds"]["poll"]["latency"]["p99_us"].as_u64() > Some(0));
}

#[test]
fn what_a_run_names_itself_cannot_become_markup() {
    let mut run = Synthetic::passing();
    run.case.question = "Is <script>alert(1)</script> only text?".to_owned();
    run.faults[0].note = "<img src=x>".to_owned();
    run.write();
    let page = page(run.dir(), None);
    assert!(!page.contains("<script>") && !page.contains("<img"));
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn a_report_of_a_run_that_was_cut_off_says_so() {
    let mut run = Synthetic::passing();
    run.intervals.truncate(3);
    run.samples.truncate(10);
    run.faults.clear();
    run.end = None;
    run.write();
    let page = page(run.dir(), None);
    assert!(page.contains("Why it is no pass"));
    assert!(page.contains("There was no final check."));
}

#[test]
fn two_runs_are_compared_in_tables_and_in_the_same_plots() {
    let (before, after) = (Synthetic::passing(), Synthetic::of(synthetic::CASE, 12));
    before.write();
    after.write();
    let page = page(after.dir(), Some(before.dir()));
    assert_eq!(requests(&page), Vec::<&str>::new());
    for part in [
        "Before and after",
        "p99, before",
        "poll p99",
        "redis-0 CPU, mean",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    assert!(after.dir().join(COMPARED_HTML).exists());
    assert!(!after.dir().join(HTML).exists());
}

#[test]
fn a_report_of_48_hours_keeps_its_worst_moment_and_stays_small() {
    // Of the cheapest users there are, in a quarter of the usual intervals: still twelve of them in each point of a plot.
    let case = synthetic::CASE
        .replace("duration = \"30m\"", "duration = \"48h\"")
        .replace("interval = \"5s\"", "interval = \"20s\"\nbehaviour = { heartbeat_interval = \"0s\", find_interval = \"0s\", history_interval = \"0s\", catalogue_interval = \"0s\" }")
        .replace("users = 2000", "users = 5");
    let objective_for_finds = case.rfind("[[objectives]]").expect("two objectives");
    let mut run = Synthetic::of(&case[..objective_for_finds], 3);
    assert!(run.intervals.len() > 10 * report::POINTS_MAX);
    let mut dice = synthetic::Dice::new(4);
    let at = 31 * 3_600_000;
    let polls = run
        .interval_at(at)
        .kinds
        .get_mut(&soak::case::Kind::Poll)
        .expect("polls");
    polls.latency = synthetic::histogram(&mut dice, 1_234_000_000.0, 1);
    let worst = polls.latency.values().expect("read").expect("values").max();
    run.write();
    let report = report::html(run.dir(), None).expect("a report");
    assert_eq!(
        report.summary.kinds[&soak::case::Kind::Poll].latency.max_us,
        worst
    );
    let page = std::fs::read_to_string(report.html).expect("read");
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    // The plot's scale reaches past it: 1,000 s and more.
    assert!(page.contains("1000 s") || page.contains("10000 s"));
}
