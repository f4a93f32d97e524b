//! The command line, as a process.

mod synthetic;

use std::process::{Command, Output};
use synthetic::Synthetic;

fn soak(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(args)
        .output()
        .expect("the harness starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn cases_are_listed_with_their_questions() {
    let output = soak(&["cases"]);
    assert_eq!(output.status.code(), Some(0));
    let listed = text(&output.stdout);
    assert_eq!(listed.lines().count(), soak::case::shipped::CASES.len());
    assert!(listed.lines().all(|line| line.contains('?')), "{listed}");
}

#[test]
fn what_is_wrong_is_one_line_and_status_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let empty = dir.path().to_str().expect("a path");
    for (args, says) in [
        (
            vec!["run", "no-such-case"],
            "soak: there is no case file no-such-case",
        ),
        (
            vec!["run", "smoke", "--set", "load.users=0"],
            "soak: load.users: 0 is not from 1 to",
        ),
        (
            vec!["run"],
            "soak: the following required arguments were not provided",
        ),
        (vec!["report", empty], "soak: "),
        (vec!["resume", empty], "soak: "),
        (vec!["walk"], "soak: unrecognized subcommand 'walk'"),
    ] {
        let output = soak(&args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.starts_with(says), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [["--help"], ["--version"]] {
        let output = soak(&args);
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    }
}

#[test]
fn a_report_ends_with_the_verdicts_status() {
    let mut run = Synthetic::passing();
    run.write();
    let dir = run.dir().to_str().expect("a path").to_owned();
    let output = soak(&["report", &dir]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.starts_with("made-up: PASS (seed 11)"), "{said}");
    assert!(said.trim_end().ends_with("report.html"), "{said}");
    run.end = None;
    run.write();
    let output = soak(&["report", &dir]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("invalid: there was no final check"));
}
