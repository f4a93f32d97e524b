//! The end of an interval: its counts are checked, and handed over with the reasons why it may have no verdict.

use super::engine::Engine;
use super::schedule::micros;
use crate::case::Kind;
use crate::record::Phase;
use std::time::Duration;

impl Engine {
    /// Ends an interval.
    pub(super) fn cut(&mut self, now_us: u64) {
        let (from_us, to_us) = (self.boundary_us - self.interval_us, self.boundary_us);
        let behind_max_us = micros(self.case.bounds.behind_max);
        let overslept_us = now_us - to_us;
        let counts = self.checker.take_counts();
        let unbalanced = self.tally.unbalanced(&self.opened, &self.open);
        let (users, users_intended) = self.crowd.present();
        let phase = self.phase(from_us);
        for kind in Kind::ALL {
            self.sent_total += self.tally.of(kind).sent;
        }
        let record = &mut self.tally.record;
        record.from_ms = from_us / 1_000;
        record.to_ms = to_us / 1_000;
        record.phase = phase;
        record.users = users;
        record.users_intended = users_intended;
        record.stale = counts.stale;
        record.finds = counts.finds;
        record.credits = counts.credits;
        record.expiries = counts.expiries;
        record.behind_us_max = record.behind_us_max.max(overslept_us);
        let mut invalid = Vec::new();
        if record.behind_us_max > behind_max_us {
            invalid.push(format!(
                "the generator fell behind its schedule by {} us, more than {behind_max_us}",
                record.behind_us_max
            ));
        }
        invalid.extend(unbalanced);
        if let Some(broken) = self.replay.as_mut().and_then(|replay| replay.broken.take()) {
            invalid.push(format!("the recording ends early: {broken}"));
        }
        if std::mem::take(&mut self.exhausted) {
            invalid.push("the generator ran out of descriptors or ports".to_owned());
        }
        if self.checker.books_refused > 0 {
            invalid.push(format!(
                "the books did not take {} entries",
                self.checker.books_refused
            ));
            self.checker.books_refused = 0;
        }
        if self.desk.lost > 0 {
            invalid.push(format!(
                "{} records were lost: nobody took them in time",
                self.desk.lost
            ));
            self.desk.lost = 0;
        }
        record.invalid = invalid;
        let full = std::mem::take(&mut self.tally);
        self.tally = self.desk.interval(full);
        self.opened = self.open;
        self.boundary_us += self.interval_us;
    }

    /// What part of the run a moment lies in.
    fn phase(&self, at_us: u64) -> Phase {
        let at = Duration::from_micros(at_us);
        if at < self.case.warmup {
            Phase::Warmup
        } else if at < self.case.event_lasts() {
            Phase::Event
        } else {
            Phase::Settle
        }
    }
}
