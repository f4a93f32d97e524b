//! What is seen while a run goes on: on a terminal a bar with the last interval's figures, elsewhere a line now and then.

use crate::case::{Case, Kind};
use crate::record::{Interval, KindCounts};
use crate::verdict::{at, ms};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::Duration;

/// Lines without a terminal, in all of a run: 48 hours fit into a log that a person can read.
const LINES_MAX: u32 = 500;
/// Not more often than this, however short the run.
const LINE_EVERY_MIN: Duration = Duration::from_secs(5);

/// The view of one run. Standard error, so that what a command prints can be read by a program.
#[derive(Debug)]
pub struct Live {
    bar: Option<ProgressBar>,
    line_every_ms: u64,
    last_line_ms: Option<u64>,
    last_status: String,
}

impl Live {
    /// Of a run of this case.
    #[must_use]
    pub fn new(case: &Case) -> Self {
        let lasts = case.run_lasts();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(millis(lasts)), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{prefix} [{wide_bar}] {percent} %\n  {msg}");
            bar.set_style(
                style
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars("=> "),
            );
            bar
        });
        Self {
            bar,
            line_every_ms: millis((lasts / LINES_MAX).max(LINE_EVERY_MIN)),
            last_line_ms: None,
            last_status: String::new(),
        }
    }

    /// Shows an interval, and what goes on besides.
    pub fn show(&mut self, interval: &Interval, status: &str) {
        let line = line(interval, status);
        if let Some(bar) = &self.bar {
            bar.set_prefix(clock(interval.to_ms));
            bar.set_position(interval.to_ms);
            bar.set_message(line);
            return;
        }
        let due = self
            .last_line_ms
            .is_none_or(|last| interval.to_ms >= last + self.line_every_ms);
        if due || status != self.last_status || !interval.invalid.is_empty() {
            self.last_line_ms = Some(interval.to_ms);
            status.clone_into(&mut self.last_status);
            eprintln!("{} {line}", clock(interval.to_ms));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    format!(
        "{}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// An interval in a line.
fn line(interval: &Interval, status: &str) -> String {
    let seconds = (interval.to_ms.saturating_sub(interval.from_ms) as f64 / 1e3).max(1e-3);
    let requests: u64 = interval.kinds.values().map(|counts| counts.answered).sum();
    let failed: u64 = interval.kinds.values().map(KindCounts::failures).sum();
    let polls = interval.kinds.get(&Kind::Poll);
    let p99 = polls.and_then(|polls| polls.latency.values().ok().flatten());
    let mut line = format!(
        "{} users, {:.0} answered/s, polls p99 {}, {failed} failed, behind {}",
        interval.users,
        requests as f64 / seconds,
        p99.map_or_else(|| "–".to_owned(), |values| ms(at(&values, 99.0))),
        ms(interval.behind_us_max),
    );
    for part in interval
        .invalid
        .iter()
        .map(|why| format!("NO VERDICT: {why}"))
        .chain((!status.is_empty()).then(|| status.to_owned()))
    {
        line.push_str(" | ");
        line.push_str(&part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::KindCounts;

    #[test]
    fn an_interval_is_one_line_with_what_matters() {
        let polls = KindCounts {
            answered: 500,
            failed: [("timeout".to_owned(), 2)].into(),
            ..KindCounts::default()
        };
        let interval = Interval {
            from_ms: 5_000,
            to_ms: 10_000,
            users: 120,
            kinds: [(Kind::Poll, polls)].into(),
            behind_us_max: 400,
            invalid: vec!["fell behind".to_owned()],
            ..Interval::default()
        };
        assert_eq!(
            line(&interval, "kill_redis redis-0"),
            "120 users, 100 answered/s, polls p99 –, 2 failed, behind 0.40 ms | NO VERDICT: fell behind | kill_redis redis-0"
        );
    }
}
