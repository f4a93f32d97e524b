//! The embedded store's clock.
//!
//! Time follows the machine's monotonic clock, anchored to its wall clock, so that it neither stands still nor runs
//! backwards when the wall clock is set. Small differences between the two are followed. A step of the wall clock
//! forward by more than [`STEP_MS`] is followed at once and reported, because windows run out inside it; a step
//! backwards of that size is not followed until the next start.

use crate::game::Millis;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A difference between the wall clock and the store's clock beyond this is a step, in milliseconds (rule 3).
pub const STEP_MS: u64 = 5_000;

/// Where time comes from. Injected, so that tests cross whole windows.
pub trait TimeSource: Send + Sync + 'static {
    /// Milliseconds since the epoch by the wall clock, which may be set.
    fn wall_ms(&self) -> Millis;
    /// Milliseconds that have passed since any fixed moment; never runs backwards.
    fn monotonic_ms(&self) -> Millis;
    /// Both at one moment, or nearly so: the monotonic one first, then the wall clock.
    fn both_ms(&self) -> (Millis, Millis) {
        (self.monotonic_ms(), self.wall_ms())
    }
    /// How long ago that was, in milliseconds. Apart from the clocks, so that a test that moves time does not look like a
    /// store that hung.
    fn elapsed_ms(&self, since: Instant) -> u64 {
        u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemTimeSource(Instant);

impl Default for SystemTimeSource {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl TimeSource for SystemTimeSource {
    fn wall_ms(&self) -> Millis {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_ms(&self) -> Millis {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that tests move.
#[derive(Debug)]
pub struct ManualTime(Mutex<Manual>);

#[derive(Debug)]
struct Manual {
    wall: Millis,
    monotonic: Millis,
    hung: u64,
}

impl ManualTime {
    /// Starts at `wall` milliseconds since the epoch.
    #[must_use]
    pub fn new(wall: Millis) -> Self {
        Self(Mutex::new(Manual {
            wall,
            monotonic: 0,
            hung: 0,
        }))
    }

    fn clocks(&self) -> MutexGuard<'_, Manual> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass, in milliseconds.
    pub fn advance(&self, ms: u64) {
        let mut clocks = self.clocks();
        clocks.monotonic += ms;
        clocks.wall += ms;
    }

    /// Lets the store seem to have hung for so many milliseconds, whenever it looks.
    pub fn set_hung(&self, ms: u64) {
        self.clocks().hung = ms;
    }

    /// Sets the wall clock without any time passing.
    pub fn set_wall(&self, wall: Millis) {
        self.clocks().wall = wall;
    }
}

impl TimeSource for ManualTime {
    fn wall_ms(&self) -> Millis {
        self.clocks().wall
    }

    fn monotonic_ms(&self) -> Millis {
        self.clocks().monotonic
    }

    fn both_ms(&self) -> (Millis, Millis) {
        let clocks = self.clocks();
        (clocks.monotonic, clocks.wall)
    }

    fn elapsed_ms(&self, _: Instant) -> u64 {
        self.clocks().hung
    }
}

/// The store's clock. Read by every thread; steered by one.
pub struct StoreClock {
    source: Arc<dyn TimeSource>,
    /// What to add to the monotonic clock.
    offset: AtomicU64,
    /// The latest time given out.
    latest: AtomicU64,
}

/// What steering the clock found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steered {
    /// The wall clock is close.
    Close,
    /// The wall clock stepped forward: from what the store's clock said to what it says now.
    Forward(Millis, Millis),
    /// The wall clock is behind by this many milliseconds, and is not followed.
    Behind(u64),
}

impl StoreClock {
    /// A clock that gives no time before `not_before`: the last one that the store has on record.
    #[must_use]
    pub fn new(source: Arc<dyn TimeSource>, not_before: Millis) -> Self {
        let (monotonic, wall) = source.both_ms();
        let start = wall.max(not_before);
        let offset = AtomicU64::new(start.saturating_sub(monotonic));
        Self {
            source,
            offset,
            latest: AtomicU64::new(start),
        }
    }

    /// Milliseconds since the epoch; never less than before.
    pub fn now(&self) -> Millis {
        self.at(self.source.monotonic_ms())
    }

    fn at(&self, monotonic: Millis) -> Millis {
        let now = monotonic + self.offset.load(Ordering::Relaxed);
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// How long ago that was, in milliseconds.
    pub fn elapsed_ms(&self, since: Instant) -> u64 {
        self.source.elapsed_ms(since)
    }

    /// Follows the wall clock. To be called about once a second, by one thread.
    pub fn steer(&self) -> Steered {
        // Read together: time that passes between two readings must not look like a difference between the clocks.
        let (monotonic, wall) = self.source.both_ms();
        let now = self.at(monotonic);
        let follow = || {
            self.offset
                .store(wall.saturating_sub(monotonic), Ordering::Relaxed);
        };
        if wall > now + STEP_MS {
            follow();
            Steered::Forward(now, self.now())
        } else if wall + STEP_MS < now {
            Steered::Behind(now - wall)
        } else {
            follow();
            Steered::Close
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> (Arc<ManualTime>, StoreClock) {
        let time = Arc::new(ManualTime::new(1_000_000));
        let clock = StoreClock::new(time.clone(), 0);
        (time, clock)
    }

    #[test]
    fn a_step_forward_is_followed_and_reported() {
        let (time, clock) = clock();
        time.set_wall(1_006_000);
        assert_eq!(clock.steer(), Steered::Forward(1_000_000, 1_006_000));
        assert_eq!(clock.now(), 1_006_000);
    }

    #[test]
    fn a_step_back_is_not_followed_and_time_goes_on() {
        let (time, clock) = clock();
        time.set_wall(900_000);
        assert_eq!(clock.steer(), Steered::Behind(100_000));
        time.advance(10);
        assert_eq!(clock.now(), 1_000_010);
    }

    #[test]
    fn a_small_difference_is_followed_without_running_backwards() {
        let (time, clock) = clock();
        time.set_wall(999_000);
        assert_eq!(clock.steer(), Steered::Close);
        assert_eq!(clock.now(), 1_000_000);
        time.advance(1_500);
        assert_eq!(clock.now(), 1_000_500);
        time.set_wall(1_004_000);
        assert_eq!(clock.steer(), Steered::Close);
        assert_eq!(clock.now(), 1_004_000);
    }

    /// Time passes between any two readings of it.
    struct Restless(ManualTime);

    impl TimeSource for Restless {
        fn wall_ms(&self) -> Millis {
            self.0.advance(6_000);
            self.0.wall_ms()
        }
        fn monotonic_ms(&self) -> Millis {
            self.0.advance(6_000);
            self.0.monotonic_ms()
        }
        fn both_ms(&self) -> (Millis, Millis) {
            self.0.advance(6_000);
            self.0.both_ms()
        }
    }

    #[test]
    fn time_that_passes_while_the_clocks_are_read_is_no_step_and_stops_nothing() {
        let time = Arc::new(Restless(ManualTime::new(1_000_000)));
        let clock = StoreClock::new(time, 0);
        for _ in 0..10 {
            let before = clock.now();
            assert_eq!(clock.steer(), Steered::Close);
            assert_eq!(clock.now(), before + 12_000);
        }
    }

    #[test]
    fn a_start_before_the_last_time_on_record_begins_there() {
        let time = Arc::new(ManualTime::new(5_000));
        let clock = StoreClock::new(time.clone(), 9_000);
        assert_eq!(clock.now(), 9_000);
        time.advance(1);
        assert_eq!(clock.now(), 9_001);
    }
}
