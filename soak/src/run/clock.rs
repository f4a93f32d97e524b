//! The run's clock: it counts from the run's beginning, does not jump, and goes on after a resumption where the last
//! recorded interval ended.

use std::time::{Duration, Instant};

/// The clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
    from: Duration,
}

impl Clock {
    /// One that shows `from` now.
    #[must_use]
    pub fn starting_at(from: Duration) -> Self {
        Self {
            began: Instant::now(),
            from,
        }
    }

    /// When it was started.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The run's time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.at(Instant::now())
    }

    /// The run's time at a moment.
    #[must_use]
    pub fn at(&self, moment: Instant) -> Duration {
        self.from + moment.saturating_duration_since(self.began)
    }

    /// The same in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }
}
