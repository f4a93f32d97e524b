//! A recording as load: its requests take the place of the schedule's.

use super::engine::{Engine, TIMERS_PER_TURN};
use super::schedule::{NEVER, micros};
use crate::recording::Event;
use std::time::Duration;

impl Engine {
    /// When the next request of the recording is due.
    pub(super) fn replay_next_us(&mut self) -> u64 {
        let next_us = self.replay.as_mut().and_then(|replay| replay.next_us());
        next_us.map_or(NEVER, |at_us| self.run_us(at_us))
    }

    /// Begins requests of the recording up to a moment. Says whether some are left.
    pub(super) fn replay_on(&mut self, until_us: u64) -> bool {
        for _ in 0..TIMERS_PER_TURN {
            if self.replay_next_us() > until_us {
                return false;
            }
            let Some(event) = self.replay.as_mut().and_then(|replay| replay.take(NEVER)) else {
                return false;
            };
            self.replayed(event);
        }
        true
    }

    /// A request of the recording is due. Where it has more users than the case, several share one of ours; its requests for
    /// what this version cannot ask for are left out.
    fn replayed(&mut self, event: Event) {
        let users = u64::from(self.case.load.users.max(1));
        let (Some(kind), Ok(number)) = (
            event.kind,
            u32::try_from(event.user.saturating_sub(1) % users + 1),
        ) else {
            return;
        };
        let intended_us = self.run_us(event.at_us);
        let now_us = self.now_us();
        self.late(now_us.saturating_sub(intended_us));
        self.due(number, kind, intended_us, now_us);
        self.arm(number);
    }

    /// A time of the recording, which is one of the event, as one of the run.
    fn run_us(&self, at_us: u64) -> u64 {
        micros(self.case.scaled(Duration::from_micros(at_us)))
    }
}
