//! When the event loop stood still: because a task held it, or because the process was stopped or had no processor.
//!
//! A request cannot see that. Its answer lay in the socket, and looks as if it had come late. So a task sleeps and looks how
//! late it wakes, and what it finds is kept for a while.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the loop is looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// tokio's timer counts whole milliseconds, rounded up.
const ON_TIME: Duration = Duration::from_millis(101);
/// A lag from which on the loop counts as having stood still.
const STALL_MIN: Duration = Duration::from_millis(20);
/// The stalls that are kept: more than any request lasts through.
const STALLS_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Stalls(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// When the loop should have woken the watcher next.
    due: Option<Instant>,
    /// From when to when it stood still, the latest last.
    stalls: VecDeque<(Instant, Instant)>,
}

impl Stalls {
    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watcher goes to sleep; it should wake by `due`.
    fn asleep_until(&self, due: Instant) {
        self.lock().due = Some(due);
    }

    /// The watcher has woken. By how much it was late.
    fn awake(&self, now: Instant) -> Duration {
        let mut seen = self.lock();
        let Some(due) = seen.due.take() else {
            return Duration::ZERO;
        };
        let lag = now.saturating_duration_since(due);
        if lag >= STALL_MIN {
            if seen.stalls.len() >= STALLS_MAX {
                seen.stalls.pop_front();
            }
            seen.stalls.push_back((due, now));
        }
        lag
    }

    /// For how long the loop stood still between two moments, as far as is known: up to 100 ms of each time are not.
    #[must_use]
    pub fn within(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.lock();
        // The loop has come to a request before it came to the watcher, who is overdue.
        let now_standing = seen.due.map(|due| (due, to));
        seen.stalls
            .iter()
            .copied()
            .chain(now_standing)
            .map(|(began, ended)| ended.min(to).saturating_duration_since(began.max(from)))
            .filter(|stalled| *stalled >= STALL_MIN)
            .sum()
    }

    /// Watches the loop for ever; tells how late each look was.
    pub async fn watch(&self, tell: impl Fn(Duration)) {
        loop {
            self.asleep_until(Instant::now() + ON_TIME);
            tokio::time::sleep(PERIOD).await;
            tell(self.awake(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_of_a_stall_that_a_request_lasted_through_counts() {
        let stalls = Stalls::default();
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        stalls.asleep_until(at(100));
        assert_eq!(stalls.awake(at(101)), Duration::from_millis(1));
        stalls.asleep_until(at(200));
        assert_eq!(stalls.awake(at(1_200)), Duration::from_millis(1_000));
        let within = |from, to| stalls.within(at(from), at(to)).as_millis();
        assert_eq!(within(0, 2_000), 1_000);
        assert_eq!(within(700, 2_000), 500);
        assert_eq!(within(1_200, 2_000), 0);
        assert_eq!(within(0, 150), 0);
        // Overdue, and not yet awake.
        stalls.asleep_until(at(1_300));
        assert_eq!(within(1_250, 2_300), 1_000);
    }

    #[test]
    fn the_stalls_that_are_kept_are_bounded() {
        let stalls = Stalls::default();
        let began = Instant::now();
        for n in 0..1_000 {
            let due = began + Duration::from_millis(n * 100);
            stalls.asleep_until(due);
            stalls.awake(due + STALL_MIN);
        }
        assert_eq!(stalls.lock().stalls.len(), STALLS_MAX);
    }
}
