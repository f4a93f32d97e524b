//! Times of the event and times of the run: a compressed case lives through the event's times faster.

use super::Case;
use std::time::Duration;

/// No window may be shorter than this in a run: expiry alone may take 10 s and is not compressed.
pub const WINDOW_MIN: Duration = Duration::from_secs(5);

impl Case {
    /// A time of the event as a time of the run.
    #[must_use]
    pub fn scaled(&self, event: Duration) -> Duration {
        event.div_f64(self.compress.max(1.0))
    }

    /// The time of the event at a time of the run.
    #[must_use]
    pub fn event_time(&self, run: Duration) -> Duration {
        run.mul_f64(self.compress.max(1.0))
    }

    /// The hunt's window in the run.
    #[must_use]
    pub fn window_scaled(&self) -> Duration {
        self.scaled(self.window).max(WINDOW_MIN)
    }

    /// How long the event lasts in the run, without what settles after it.
    #[must_use]
    pub fn event_lasts(&self) -> Duration {
        self.scaled(self.duration)
    }

    /// How long the run lasts: the event, a window, and what settles. The system's start and the final check are not in it.
    #[must_use]
    pub fn run_lasts(&self) -> Duration {
        self.event_lasts() + self.window_scaled() + self.settle
    }
}
