//! When the event loop stood still: because a task held it, or because the process was stopped or had no processor.
//!
//! A request cannot see that. Its answer lay in the socket, and looks as if it had come late. So a task sleeps and looks how
//! late it wakes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the loop is looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// tokio's timer counts whole milliseconds, rounded up.
const ON_TIME: Duration = Duration::from_millis(101);
/// A lag from which on the loop counts as having stood still.
const STALL_MIN: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub struct Stalls(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// When the loop should have woken the watcher next.
    due: Option<Instant>,
    /// From when to when it last stood still.
    last: Option<(Instant, Instant)>,
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
            seen.last = Some((due, now));
        }
        lag
    }

    /// For how long the loop had stood still, within `from` to `to`, when it came to what happened at `to`. 0 if it had been
    /// running: only the standing still that ends with an event can have kept it waiting; what came before that ended
    /// without the event. Up to 100 ms of it are not known.
    #[must_use]
    pub fn before(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.lock();
        // The loop has come to the event before it came to the watcher, who is overdue.
        let standing = seen.due.filter(|due| *due + STALL_MIN <= to);
        let began = match standing {
            Some(due) => Some((due, to)),
            None => seen.last.filter(|(_, ended)| *ended + PERIOD >= to),
        };
        began.map_or(Duration::ZERO, |(began, ended)| {
            ended.min(to).saturating_duration_since(began.max(from))
        })
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
    fn only_the_stall_that_ends_with_an_event_counts_and_only_the_part_that_a_request_lasted_through()
     {
        let stalls = Stalls::default();
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        stalls.asleep_until(at(100));
        assert_eq!(stalls.awake(at(101)), Duration::from_millis(1));
        stalls.asleep_until(at(200));
        assert_eq!(stalls.awake(at(1_200)), Duration::from_millis(1_000));
        let before = |from, to| stalls.before(at(from), at(to)).as_millis();
        assert_eq!(before(0, 1_210), 1_000);
        assert_eq!(before(700, 1_210), 500);
        // It ran again before this happened.
        assert_eq!(before(0, 2_000), 0);
        // Overdue, and not yet awake.
        stalls.asleep_until(at(1_300));
        assert_eq!(before(1_250, 2_300), 1_000);
        assert_eq!(before(2_000, 2_300), 300);
        assert_eq!(before(1_250, 1_305), 0);
    }
}
