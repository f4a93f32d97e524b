//! When a user does what: intended times that depend on the seed, the case and the moment of arrival alone, never on
//! answers. (With `obey_hint` polls are the exception: the answer names the next one's time.)

use crate::case::{Behaviour, Case, Kind};
use rand::{RngExt, SeedableRng};
use rand_pcg::Mcg128Xsl64;
use std::time::Duration;

/// Never.
pub const NEVER: u64 = u64::MAX;

/// The case's intervals in the run's microseconds; 0: off.
#[derive(Debug, Clone)]
pub struct Pace {
    every_us: [u64; Kind::ALL.len()],
    obey_hint: bool,
    foreground_us: u64,
    background_us: u64,
    connection_us: u64,
}

impl Pace {
    /// Of a case. A server that is not Trove's gets polls alone.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        let behaviour: &Behaviour = &case.behaviour;
        let us = |event: Duration| micros(case.scaled(event));
        let mut every_us = [0; Kind::ALL.len()];
        every_us[Kind::Poll as usize] = us(behaviour.poll_interval);
        if case.system.url_template.is_empty() {
            every_us[Kind::Heartbeat as usize] = us(behaviour.heartbeat_interval);
            every_us[Kind::Find as usize] = us(behaviour.find_interval);
            every_us[Kind::History as usize] = us(behaviour.history_interval);
            every_us[Kind::Catalogue as usize] = us(behaviour.catalogue_interval);
        }
        Self {
            every_us,
            obey_hint: behaviour.obey_hint,
            foreground_us: us(case.network.foreground),
            background_us: us(case.network.background),
            connection_us: us(case.network.connection_lasts),
        }
    }

    /// Nothing: what is sent comes from a recording.
    #[must_use]
    pub fn silent(&self) -> Self {
        Self {
            every_us: [0; Kind::ALL.len()],
            foreground_us: 0,
            ..self.clone()
        }
    }
}

/// A duration in whole microseconds.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(NEVER)
}

/// The random numbers of one user for one purpose.
#[must_use]
pub fn random(seed: u64, user: u32, purpose: u64) -> Mcg128Xsl64 {
    // Streams of neighbours must not resemble each other, which `seed_from_u64` sees to.
    let mixed = seed
        ^ u64::from(user).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ purpose.wrapping_mul(0xD1B5_4A32_D192_ED03);
    Mcg128Xsl64::seed_from_u64(mixed)
}

/// Time to the next of events that come at random, `mean_us` apart on average.
pub fn exponential(random: &mut Mcg128Xsl64, mean_us: u64) -> u64 {
    let share: f64 = random.random();
    let ahead = Duration::from_micros(mean_us).mul_f64(-(1.0 - share).ln());
    micros(ahead).max(1)
}

/// One user's schedule. Indexes of `due` are those of [`Kind`].
#[derive(Debug)]
pub struct Schedule {
    random: Mcg128Xsl64,
    due_us: [u64; Kind::ALL.len()],
    /// Whether what is due is one between two of the user's own times, there only because users hurry.
    between: [bool; Kind::ALL.len()],
    /// When the user puts the app into the background, or fetches it back.
    flips_us: u64,
    /// Whether it is in the background.
    pub background: bool,
    /// When the connection is to be replaced.
    renews_us: u64,
}

/// What a schedule says is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A request, with its intended time.
    Request(Kind, u64),
    /// Into the background, or back.
    Flip,
    /// A new connection.
    Renew,
}

impl Schedule {
    /// Of a user who has not come yet.
    #[must_use]
    pub fn new(seed: u64, user: u32) -> Self {
        Self {
            random: random(seed, user, 1),
            due_us: [NEVER; Kind::ALL.len()],
            between: [false; Kind::ALL.len()],
            flips_us: NEVER,
            background: false,
            renews_us: NEVER,
        }
    }

    /// The user comes at `at_us`: each action first happens within one interval from then, evenly.
    pub fn arrive(&mut self, at_us: u64, pace: &Pace) {
        for (due_us, every_us) in self.due_us.iter_mut().zip(pace.every_us) {
            *due_us = if every_us == 0 {
                NEVER
            } else {
                at_us + self.random.random_range(0..every_us)
            };
        }
        let ahead = |random: &mut Mcg128Xsl64, mean_us| match mean_us {
            0 => NEVER,
            mean_us => at_us + exponential(random, mean_us),
        };
        if pace.every_us[Kind::Find as usize] > 0 {
            self.due_us[Kind::Find as usize] =
                ahead(&mut self.random, pace.every_us[Kind::Find as usize]);
        }
        self.between = [false; Kind::ALL.len()];
        self.background = false;
        self.flips_us = ahead(&mut self.random, pace.foreground_us);
        self.renews_us = ahead(&mut self.random, pace.connection_us);
    }

    /// The user goes.
    pub fn leave(&mut self) {
        self.due_us = [NEVER; Kind::ALL.len()];
        self.flips_us = NEVER;
        self.renews_us = NEVER;
    }

    /// The event is over: no further finds, and the user looks at what became of them.
    pub fn settle(&mut self) {
        self.due_us[Kind::Find as usize] = NEVER;
        self.background = false;
        self.flips_us = NEVER;
    }

    /// One of this kind at this time, instead of when it was due.
    pub fn set(&mut self, kind: Kind, at_us: u64) {
        self.due_us[kind as usize] = at_us;
    }

    /// One of this kind at this time, if it is not due sooner.
    pub fn advance(&mut self, kind: Kind, at_us: u64) {
        self.due_us[kind as usize] = self.due_us[kind as usize].min(at_us);
    }

    /// When something is due next.
    #[must_use]
    pub fn next_us(&self) -> u64 {
        let requests = self.due_us.iter().copied().min().unwrap_or(NEVER);
        requests.min(self.flips_us).min(self.renews_us)
    }

    /// The next action that is due at `now_us`; advances. `hurries`: the user does twice as much, with one more of each kind
    /// halfway between two of its own times. Its own times stay as they are: were intervals halved, everybody's times would
    /// lie in one half of the interval when the hurry ends, and the load would come in lockstep ever after.
    pub fn take(&mut self, now_us: u64, pace: &Pace, hurries: bool) -> Option<Action> {
        let next_us = self.next_us();
        if next_us > now_us {
            return None;
        }
        if self.flips_us == next_us {
            self.background = !self.background;
            let mean_us = if self.background {
                pace.background_us.max(1)
            } else {
                pace.foreground_us
            };
            self.flips_us += exponential(&mut self.random, mean_us);
            return Some(Action::Flip);
        }
        if self.renews_us == next_us {
            self.renews_us += exponential(&mut self.random, pace.connection_us);
            return Some(Action::Renew);
        }
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| self.due_us[*kind as usize] == next_us)?;
        let every_us = pace.every_us[kind as usize];
        let was_between = self.between[kind as usize];
        let is_between = hurries && !was_between;
        self.between[kind as usize] = is_between;
        let ahead_us = match (was_between, is_between) {
            (_, true) => every_us / 2,
            (true, false) => every_us - every_us / 2,
            (false, false) => every_us,
        };
        self.due_us[kind as usize] = match kind {
            // Only asked for once: set again by whoever asks.
            _ if every_us == 0 => NEVER,
            Kind::Find if hurries => next_us + exponential(&mut self.random, every_us / 2),
            Kind::Find => next_us + exponential(&mut self.random, every_us),
            Kind::Poll if pace.obey_hint => NEVER,
            _ => next_us + ahead_us,
        };
        Some(Action::Request(kind, next_us))
    }

    /// With `obey_hint`: the answer to a poll was seen at `seen_us` and names the next one in `hint_us`; none: there was
    /// no answer, and the next one is due an interval after the last.
    pub fn hinted(&mut self, pace: &Pace, intended_us: u64, seen: Option<(u64, u64)>) {
        if pace.obey_hint && pace.every_us[Kind::Poll as usize] > 0 {
            self.due_us[Kind::Poll as usize] = match seen {
                Some((seen_us, hint_us)) => seen_us + hint_us.max(1),
                None => intended_us + pace.every_us[Kind::Poll as usize],
            };
        }
    }

    /// A share of the user's own random numbers.
    pub fn share(&mut self) -> f64 {
        self.random.random()
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        let mut every_us = [0; Kind::ALL.len()];
        every_us[Kind::Poll as usize] = 1_200_000;
        every_us[Kind::Heartbeat as usize] = 250_000;
        every_us[Kind::Find as usize] = 30_000_000;
        Pace {
            every_us,
            obey_hint: false,
            foreground_us: 60_000_000,
            background_us: 10_000_000,
            connection_us: 20_000_000,
        }
    }

    /// Everything that users do in ten minutes, looked at each `look_us`.
    fn actions(seed: u64, look_us: u64) -> Vec<(u32, Action)> {
        let pace = pace();
        let mut actions = Vec::new();
        for user in 1..=20 {
            let mut schedule = Schedule::new(seed, user);
            schedule.arrive(u64::from(user) * 1_000, &pace);
            for now_us in (0..600_000_000).step_by(usize::try_from(look_us).unwrap()) {
                while let Some(action) = schedule.take(now_us, &pace, false) {
                    actions.push((user, action));
                }
            }
        }
        actions
    }

    #[test]
    fn the_same_seed_intends_the_same_whenever_it_is_looked_at() {
        let (often, seldom) = (actions(7, 1_000), actions(7, 977_000));
        for user in 1..=20 {
            let of = |all: &[(u32, Action)]| {
                let own = all.iter().filter(|(by, _)| *by == user);
                own.map(|(_, action)| *action).collect::<Vec<_>>()
            };
            // Looked at seldom, the last actions have not been seen.
            let (often, seldom) = (of(&often), of(&seldom));
            assert!(seldom.len() > 2_000 && often.len() - seldom.len() < 10);
            assert_eq!(often[..seldom.len()], seldom);
        }
        assert_ne!(often, actions(8, 1_000));
    }

    #[test]
    fn a_hurry_doubles_the_requests_and_leaves_everyone_at_its_own_times() {
        let pace = pace();
        for user in 1..=20 {
            let mut schedule = Schedule::new(3, user);
            schedule.arrive(0, &pace);
            let mut times = Vec::new();
            for now_us in (0..90_000_000).step_by(1_000) {
                let hurries = (30_000_000..60_000_000).contains(&now_us);
                while let Some(action) = schedule.take(now_us, &pace, hurries) {
                    if let Action::Request(Kind::Heartbeat, at_us) = action {
                        times.push(at_us);
                    }
                }
            }
            let within = |from: u64| {
                let in_it = |at_us: &&u64| (from..from + 30_000_000).contains(*at_us);
                times.iter().filter(in_it).count()
            };
            assert!((119..=121).contains(&within(0)), "{}", within(0));
            assert!((238..=242).contains(&within(30_000_000)));
            assert!((119..=121).contains(&within(60_000_000)));
            let after = times.iter().filter(|at_us| **at_us > 60_500_000);
            for at_us in after {
                assert_eq!(at_us % 250_000, times[0], "user {user}");
            }
        }
    }

    #[test]
    fn intervals_are_kept_to_the_microsecond_and_finds_come_at_random() {
        let actions = actions(1, 5_000);
        let of = |user, wanted| {
            let times = actions.iter().filter_map(move |(by, action)| match action {
                Action::Request(kind, at_us) if *by == user && *kind == wanted => Some(*at_us),
                _ => None,
            });
            times.collect::<Vec<u64>>()
        };
        for user in 1..=20 {
            assert!(
                of(user, Kind::Poll)
                    .windows(2)
                    .all(|two| two[1] - two[0] == 1_200_000)
            );
            assert!(
                of(user, Kind::Heartbeat)
                    .windows(2)
                    .all(|two| two[1] - two[0] == 250_000)
            );
        }
        // 20 users for 600 s, one each 30 s: 400, give or take five deviations.
        let finds: usize = (1..=20).map(|user| of(user, Kind::Find).len()).sum();
        assert!((300..500).contains(&finds), "{finds}");
    }
}
