//! Looks at histograms from time to time, and keeps what they gained.

use super::burn::{BadOf, WINDOWS};
use super::objective::Objective;
use super::slots::{COARSE_REACH_S, COARSE_S, FINE_REACH_S, FINE_S, Ring, SavedSlot, Slot, Tally};
use super::snapshot::{ObjectiveNow, WindowCauses, WindowNow};
use crate::metrics::durations::Durations;
use crate::metrics::labels::STATUS_CLASSES;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// An objective and the histograms of its route.
#[derive(Debug)]
pub struct Watched {
    objective: Objective,
    /// By class of status.
    by_class: [Durations; STATUS_CLASSES.len()],
    /// The classic bucket that ends at the objective's latency.
    in_time: usize,
    /// The one that ends where an answer becomes a failure.
    not_failed: Option<usize>,
}

impl Watched {
    /// `place_of_ms` finds the classic bucket that ends at so many milliseconds. `None` if the histograms have no boundary
    /// where the objective needs one, which the settings make sure of.
    #[must_use]
    pub fn new(
        objective: Objective,
        by_class: [Durations; STATUS_CLASSES.len()],
        place_of_ms: impl Fn(f64) -> Option<usize>,
    ) -> Option<Self> {
        let in_time = place_of_ms(objective.latency_ms)?;
        let not_failed = if objective.failure_ms > 0.0 {
            Some(place_of_ms(objective.failure_ms)?)
        } else {
            None
        };
        Some(Self {
            objective,
            by_class,
            in_time,
            not_failed,
        })
    }

    /// What has happened since the process began.
    fn total(&self) -> Total {
        let mut total = Total::default();
        for (class, durations) in self.by_class.iter().enumerate() {
            let counted = durations.counted();
            let above = |place: usize| counted.classic[place + 1..].iter().sum::<u64>();
            total.requests += counted.count;
            total.late += above(self.in_time);
            total.failed += if STATUS_CLASSES[class] == "5xx" {
                counted.count
            } else {
                self.not_failed.map_or(0, above)
            };
            if total.latencies.is_empty() {
                total.latencies = counted.native;
            } else {
                for (sum, count) in total.latencies.iter_mut().zip(counted.native) {
                    *sum += count;
                }
            }
        }
        total
    }
}

#[derive(Debug, Clone, Default)]
struct Total {
    requests: u64,
    failed: u64,
    late: u64,
    latencies: Vec<u64>,
}

impl Total {
    /// What it has more than an earlier one.
    fn since(&self, before: &Self) -> Tally {
        let mut tally = Tally {
            requests: self.requests.saturating_sub(before.requests),
            failed: self.failed.saturating_sub(before.failed),
            late: self.late.saturating_sub(before.late),
            ..Tally::default()
        };
        for (place, gained) in tally.latencies.iter_mut().enumerate() {
            let then = before.latencies.get(place).copied().unwrap_or(0);
            let now = self.latencies.get(place).copied().unwrap_or(0);
            *gained = u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
        }
        tally
    }
}

/// What is known at one moment.
#[derive(Debug)]
struct State {
    fine: Ring,
    coarse: Ring,
    /// The totals at the last look.
    seen: Vec<Total>,
    seen_causes: [u64; 4],
    looked: Instant,
    began_ms: u64,
}

/// What is kept over a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saved {
    /// [`Objective::identity`] of each.
    objectives: Vec<String>,
    fine: Vec<SavedSlot>,
    coarse: Vec<SavedSlot>,
}

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    watched: Vec<Watched>,
    state: Mutex<State>,
}

impl Recorder {
    /// One that has seen nothing yet, at a time in milliseconds since the epoch.
    #[must_use]
    pub fn new(watched: Vec<Watched>, now_ms: u64) -> Self {
        let state = State {
            fine: Ring::new(FINE_S, FINE_REACH_S),
            coarse: Ring::new(COARSE_S, COARSE_REACH_S),
            seen: watched.iter().map(Watched::total).collect(),
            seen_causes: [0; 4],
            looked: Instant::now(),
            began_ms: now_ms,
        };
        Self {
            watched,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what another process of this name saved. Objectives that were others then are left out.
    pub fn take_up(&self, saved: Saved) {
        let identity = |watched: &Watched| watched.objective.identity();
        let places: Vec<Option<usize>> = self
            .watched
            .iter()
            .map(|one| {
                let identity = identity(one);
                saved.objectives.iter().position(|known| *known == identity)
            })
            .collect();
        let mut state = self.lock();
        state.fine.take_up(saved.fine, &places);
        state.coarse.take_up(saved.coarse, &places);
    }

    /// What is to be kept, as of now.
    #[must_use]
    pub fn saved(&self, now_ms: u64, causes: [u64; 4]) -> Saved {
        let (fine, coarse) = {
            let mut state = self.lock();
            self.look_at(&mut state, now_ms, causes);
            (state.fine.clone(), state.coarse.clone())
        };
        Saved {
            objectives: self
                .watched
                .iter()
                .map(|one| one.objective.identity())
                .collect(),
            fine: fine.saved(),
            coarse: coarse.saved(),
        }
    }

    /// Takes what the histograms have gained. Does nothing while somebody on another thread is reading: the next look takes
    /// it.
    pub fn look(&self, now_ms: u64, causes: [u64; 4]) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.look_at(&mut state, now_ms, causes);
    }

    fn look_at(&self, state: &mut State, now_ms: u64, causes: [u64; 4]) {
        let now = Instant::now();
        let totals: Vec<Total> = self.watched.iter().map(Watched::total).collect();
        let mut gained = Slot {
            number: 0,
            measured_ms: u64::try_from(now.duration_since(state.looked).as_millis())
                .unwrap_or(u64::MAX),
            tallies: totals
                .iter()
                .zip(&state.seen)
                .map(|(total, before)| total.since(before))
                .collect(),
            causes,
        };
        for (count, before) in gained.causes.iter_mut().zip(state.seen_causes) {
            *count = count.saturating_sub(before);
        }
        state.fine.add(now_ms / 1_000, &gained);
        state.coarse.add(now_ms / 1_000, &gained);
        state.seen = totals;
        state.seen_causes = causes;
        state.looked = now;
    }

    /// What happened in each window up to now, after a look.
    fn windows(&self, now_ms: u64, causes: [u64; 4]) -> (Vec<Slot>, u64) {
        let mut state = self.lock();
        self.look_at(&mut state, now_ms, causes);
        let now_s = now_ms / 1_000;
        let sums = WINDOWS.iter().map(|window| {
            let ring = if window.seconds <= FINE_REACH_S {
                &state.fine
            } else {
                &state.coarse
            };
            let mut sum = Slot::empty(0, self.watched.len());
            ring.sum_into(now_s, window.seconds, &mut sum);
            sum
        });
        let sums = sums.collect();
        let since_s = state.coarse.since_s().unwrap_or(now_s);
        // A slot's beginning may lie before the process's.
        let since_s =
            if state.coarse.since_s() == Some(state.began_ms / 1_000 / COARSE_S * COARSE_S) {
                state.began_ms / 1_000
            } else {
                since_s
            };
        (sums, now_s.saturating_sub(since_s))
    }

    /// Slow requests by cause in each window.
    #[must_use]
    pub fn causes(&self, now_ms: u64, causes: [u64; 4]) -> Vec<WindowCauses> {
        let (sums, _) = self.windows(now_ms, causes);
        let pairs = WINDOWS.iter().zip(sums);
        pairs
            .map(|(window, sum)| WindowCauses::new(*window, sum.causes))
            .collect()
    }

    /// Every objective as of now.
    #[must_use]
    pub fn judge(&self, now_ms: u64, causes: [u64; 4], failures_min: u64) -> Vec<ObjectiveNow> {
        let (sums, reaches_s) = self.windows(now_ms, causes);
        let judged = self.watched.iter().enumerate().map(|(place, watched)| {
            let objective = &watched.objective;
            let tallies = || sums.iter().map(|sum| &sum.tallies[place]);
            let windows: Vec<WindowNow> = WINDOWS
                .iter()
                .zip(&sums)
                .map(|(window, sum)| {
                    WindowNow::new(*window, sum.measured_ms, &sum.tallies[place], objective)
                })
                .collect();
            let mut failed: BadOf = [(0, 0); WINDOWS.len()];
            let mut late = failed;
            for (slot, tally) in tallies().enumerate() {
                failed[slot] = (tally.failed, tally.requests);
                late[slot] = (tally.late, tally.requests);
            }
            ObjectiveNow::new(objective, windows, (failed, late), failures_min, reaches_s)
        });
        judged.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::durations::Buckets;
    use crate::sla::snapshot::State as Verdict;
    use std::time::Duration;

    struct Bench {
        recorder: Recorder,
        by_class: [Durations; 4],
        now_ms: u64,
    }

    impl Bench {
        fn new(objective: &str) -> Self {
            let buckets = Buckets::of_ms(&[1.0, 1_000.0, 3_000.0]);
            let by_class = std::array::from_fn(|_| Durations::new(buckets.clone()));
            Self {
                recorder: Self::recorder(objective, &by_class),
                by_class,
                now_ms: 1_000_000_000_000,
            }
        }

        fn recorder(objective: &str, by_class: &[Durations; 4]) -> Recorder {
            let buckets = Buckets::of_ms(&[1.0, 1_000.0, 3_000.0]);
            let watched = Watched::new(objective.parse().unwrap(), by_class.clone(), |ms| {
                buckets.place_of_ms(ms)
            });
            Recorder::new(vec![watched.unwrap()], 1_000_000_000_000)
        }

        /// So many requests of a class that took so long, in each of so many seconds.
        fn run(&mut self, seconds: u64, requests: u64, class: usize, ms: u64) {
            for _ in 0..seconds {
                self.now_ms += 1_000;
                for _ in 0..requests {
                    self.by_class[class].observe(Duration::from_millis(ms));
                }
                self.recorder.look(self.now_ms, [0; 4]);
            }
        }

        fn now(&self) -> ObjectiveNow {
            self.recorder.judge(self.now_ms, [0; 4], 10).remove(0)
        }
    }

    #[test]
    fn windows_see_what_the_histograms_gained_in_them() {
        let mut bench = Bench::new("polls:poll:99:1000:0.005");
        assert_eq!(bench.now().state, Verdict::NoData);
        bench.run(600, 10, 0, 2);
        bench.run(60, 10, 3, 2);
        bench.run(20, 10, 0, 2_000);
        let now = bench.now();
        let five = &now.windows[0];
        assert!((3_000..=3_100).contains(&five.requests), "{five:?}");
        assert_eq!((five.failed, five.late), (600, 200));
        let hour = &now.windows[2];
        assert_eq!((hour.requests, hour.failed, hour.late), (6_800, 600, 200));
        // A slot of five minutes knows the same.
        assert_eq!(now.windows[4].requests, 6_800);
        assert_eq!(now.state, Verdict::Page);
        assert!(now.budget.errors_left < 0.0);
        assert!((680..=690).contains(&now.reaches_s), "{}", now.reaches_s);
    }

    #[test]
    fn percentiles_are_at_most_a_bucket_too_high() {
        let mut bench = Bench::new("polls:poll:99:1000:0.005");
        bench.run(10, 98, 0, 10);
        bench.run(10, 2, 0, 500);
        let hour = &bench.now().windows[2];
        let near = |value: Option<f64>, true_s: f64| {
            let value = value.unwrap();
            assert!(
                value >= true_s && value <= true_s * 1.1,
                "{value} for {true_s}"
            );
        };
        near(hour.p50_s, 0.010);
        near(hour.p95_s, 0.010);
        near(hour.p99_s, 0.500);
        near(hour.p999_s, 0.500);
    }

    #[test]
    fn slower_than_so_much_counts_as_a_failure_where_the_objective_says_so() {
        let mut bench = Bench::new("confirm:find:99:1000:0.005:3000");
        bench.run(10, 100, 0, 2_000);
        bench.run(10, 3, 1, 3_500);
        let hour = &bench.now().windows[2];
        assert_eq!((hour.failed, hour.late), (30, 1_030));
    }

    #[test]
    fn what_was_saved_goes_on_in_the_next_process() {
        let mut bench = Bench::new("polls:poll:99:1000:0.005");
        bench.run(700, 10, 0, 2);
        bench.run(10, 10, 3, 2);
        let saved = bench.recorder.saved(bench.now_ms, [0; 4]);
        let by_class =
            std::array::from_fn(|_| Durations::new(Buckets::of_ms(&[1_000.0, 1.0, 3_000.0])));
        let mut next = Bench {
            recorder: Bench::recorder("polls:poll:99:1000:0.005", &by_class),
            by_class,
            now_ms: bench.now_ms + 20_000,
        };
        next.recorder.take_up(saved.clone());
        next.run(10, 10, 0, 2);
        let hour = &next.now().windows[2];
        assert_eq!((hour.requests, hour.failed), (7_200, 100));
        // What counts as late is another thing now: nothing of it can be compared.
        let other = Bench::recorder("polls:poll:99:1:0.005", &next.by_class);
        other.take_up(saved);
        let hour = &other.judge(next.now_ms, [0; 4], 10)[0].windows[2];
        assert_eq!(hour.requests, 0);
    }

    #[test]
    fn one_error_in_a_quiet_night_leaves_the_state_well() {
        let mut bench = Bench::new("polls:poll:99:1000:0.005");
        bench.run(20, 1, 0, 2);
        bench.run(1, 1, 3, 2);
        let now = bench.now();
        assert!(now.windows[0].errors_burn_rate > 9.0);
        assert_eq!(now.state, Verdict::Ok);
    }
}
