//! The harness in a process of its own, so that it can be stopped and killed: this test binary once more, with a case to run.

use rustix::process::{Pid, Signal, kill_process};
use soak::case::Case;
use soak::record::{Interval, files, read_lines};
use soak::run::Options;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const RUN: &str = "SOAK_TEST_RUN";
const CASE: &str = "SOAK_TEST_CASE";

/// A running harness; killed when dropped.
pub struct Harness(Child);

fn spawn(run: &Path, case: Option<&Path>) -> Harness {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--ignored",
            "--exact",
            "the_harness_of_another_test",
            "--nocapture",
        ])
        .env(RUN, run)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(case) = case {
        command.env(CASE, case);
    }
    Harness(command.spawn().unwrap())
}

/// Runs a case.
pub fn start(case: &Case, run: &Path) -> Harness {
    let file = run.with_extension("toml");
    std::fs::write(&file, toml::to_string(case).unwrap()).unwrap();
    spawn(run, Some(&file))
}

/// Goes on with a run.
pub fn resume(run: &Path) -> Harness {
    spawn(run, None)
}

/// How many intervals a run has recorded.
pub fn intervals(run: &Path) -> usize {
    read_lines::<Interval>(&run.join(files::INTERVALS))
        .unwrap()
        .flatten()
        .count()
}

/// What the process does: the test that is named above calls it.
pub fn main() {
    let Some(run) = std::env::var_os(RUN) else {
        return;
    };
    let options = Options {
        command: std::env::args().collect(),
        show: Box::new(|_, _| {}),
    };
    let verdict = match std::env::var_os(CASE) {
        Some(case) => {
            let case = toml::from_str(&std::fs::read_to_string(case).unwrap()).unwrap();
            soak::run::run(case, Path::new(&run), options)
        }
        None => soak::run::resume(Path::new(&run), options),
    };
    let status = match verdict {
        Ok(verdict) => verdict.outcome.exit_status(),
        Err(refusal) => {
            eprintln!("{refusal}");
            refusal.exit_status()
        }
    };
    std::process::exit(status.into());
}

impl Harness {
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Takes its processor away.
    pub fn stop_for(&self, time: Duration) {
        self.signal(Signal::STOP);
        std::thread::sleep(time);
        self.signal(Signal::CONT);
    }

    /// Waits until it has ended: its exit status, if it was not a signal.
    pub fn ended(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
