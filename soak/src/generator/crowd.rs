//! Who is there: the load curve, looked at on a fixed grid of times, so that arrivals do not depend on how the run goes.

use super::engine::Engine;
use super::schedule::{NEVER, Pace, micros};
use super::tally::Drop;
use crate::case::{BULK_EVERY, Case, Curve, Kind, curve};
use std::time::Duration;

/// The grid.
const STEP_US: u64 = 100_000;

/// Who is there.
#[derive(Debug)]
pub(super) struct Crowd {
    /// Users 1 to this are there.
    here: u32,
    /// As many there have been at once.
    here_max: u32,
    /// The curve's.
    intended: u32,
    users_max: u32,
    /// Users that can come or go in one step.
    per_step: u32,
    next_us: u64,
    settle_us: u64,
    settles: bool,
    /// Until when there are twice as many.
    doubled_until_us: u64,
    /// Whether there are users for that; else those who are there do twice as much.
    by_users: bool,
}

impl Crowd {
    pub(super) fn new(case: &Case, users_max: u32, by_users: bool, origin_us: u64) -> Self {
        let steps = micros(case.load.arrive_over).div_ceil(STEP_US).max(1);
        let mut per_step = u64::from(case.load.users).div_ceil(steps);
        if matches!(case.load.curve, Curve::Recording { .. }) {
            // They are there, and do nothing until their first request.
            per_step = case.load.users.into();
        }
        Self {
            here: 0,
            here_max: 0,
            intended: 0,
            users_max,
            per_step: u32::try_from(per_step).unwrap_or(u32::MAX),
            next_us: origin_us,
            settle_us: micros(case.event_lasts()),
            settles: false,
            doubled_until_us: 0,
            by_users,
        }
    }

    pub(super) const fn next_us(&self) -> u64 {
        self.next_us
    }

    /// Users there, and users that the curve asks for.
    pub(super) const fn present(&self) -> (u32, u32) {
        (self.here, self.intended)
    }

    pub(super) fn double(&mut self, until_us: u64) {
        self.doubled_until_us = until_us;
    }

    /// Whether users do twice as much.
    pub(super) const fn hurries(&self) -> bool {
        self.doubled_until_us > self.next_us && !self.by_users
    }
}

impl Engine {
    /// One step of the grid.
    pub(super) fn step_crowd(&mut self) {
        let at_us = self.crowd.next_us;
        self.crowd.next_us += STEP_US;
        if self.back_end.has_key() && self.user(0).schedule.next_us() == NEVER {
            self.user(0)
                .schedule
                .set(Kind::BulkFind, at_us + micros(BULK_EVERY));
            self.arm(0);
        }
        if at_us >= self.crowd.settle_us && !self.crowd.settles {
            self.crowd.settles = true;
            if self.replay.take().is_some() {
                // The recording is over. Users poll by the case's intervals to learn what became of their finds.
                self.pace = Pace::of(&self.case);
                for number in 1..=self.crowd.here {
                    let (pace, user) = (&self.pace, &mut self.users[number as usize]);
                    user.schedule.arrive(at_us, pace);
                }
            }
            for number in 0..self.users.len() {
                self.users[number].schedule.settle();
            }
            for number in 1..=self.crowd.here {
                self.arm(number);
            }
        }
        let wanted = self.wanted(at_us);
        self.crowd.intended = wanted;
        let per_step = self.crowd.per_step;
        let coming = wanted.saturating_sub(self.crowd.here).min(per_step);
        for nth in 0..coming {
            let spread_us = STEP_US * u64::from(nth) / u64::from(coming);
            self.arrive(self.crowd.here + 1, at_us + spread_us);
            self.crowd.here += 1;
        }
        self.crowd.here_max = self.crowd.here_max.max(self.crowd.here);
        let going = self.crowd.here.saturating_sub(wanted).min(per_step);
        for _ in 0..going {
            self.leave(self.crowd.here);
            self.crowd.here -= 1;
        }
    }

    fn wanted(&self, at_us: u64) -> u32 {
        let crowd = &self.crowd;
        if crowd.settles {
            // Whoever has been there comes back to learn what became of its finds.
            return crowd.here_max;
        }
        let event_time = self.case.event_time(Duration::from_micros(at_us));
        let users = curve::users_at(&self.case, event_time);
        if at_us < crowd.doubled_until_us && crowd.by_users {
            users.saturating_mul(2).min(crowd.users_max)
        } else {
            users.min(crowd.users_max)
        }
    }

    fn arrive(&mut self, number: u32, at_us: u64) {
        let settles = self.crowd.settles;
        let (pace, user) = (&self.pace, &mut self.users[number as usize]);
        user.here = true;
        user.schedule.arrive(at_us, pace);
        if settles {
            user.schedule.settle();
        }
        for (retry_us, _) in &mut user.retries {
            *retry_us = at_us;
        }
        self.arm(number);
    }

    fn leave(&mut self, number: u32) {
        let user = self.user(number);
        user.here = false;
        user.schedule.leave();
        for (retry_us, _) in &mut user.retries {
            *retry_us = NEVER;
        }
        let waiting = std::mem::take(&mut user.waiting);
        if user.exchange.is_none() {
            user.link.close();
        } else {
            user.link.closes = true;
        }
        for request in waiting {
            self.open.waiting[request.kind as usize] -= 1;
            let now_us = self.now_us();
            self.drop_request(number, request, Drop::UserGone, now_us);
        }
    }
}
