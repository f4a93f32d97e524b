//! How far the event loop is behind, and what that means for clients. [`crate::sla::Stalls`] measures it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A lag at which clients are asked to come half as often, in microseconds.
const HALVING_LAG_US: f64 = 20_000.0;
/// Clients are asked to wait at most this many times longer.
const FACTOR_MAX: f64 = 5.0;

/// The lag, smoothed.
#[derive(Debug, Default)]
pub struct LoopLoad {
    lag_us: AtomicU64,
}

impl LoopLoad {
    /// By how much clients should stretch their interval: 1 when the loop is on time.
    #[must_use]
    pub fn factor(&self) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a lag in microseconds is far below 2^52"
        )]
        let lag_us = self.lag_us.load(Ordering::Relaxed) as f64;
        (1.0 + lag_us / HALVING_LAG_US).min(FACTOR_MAX)
    }

    /// The loop was late by so much when it was looked at, ten times a second.
    pub fn observe(&self, lag: Duration) {
        let lag_us = u64::try_from(lag.as_micros()).unwrap_or(u64::MAX);
        let before = self.lag_us.load(Ordering::Relaxed);
        // An eighth of the new each time: about a second until a change is believed.
        self.lag_us
            .store(before - before / 8 + lag_us / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_lags_asks_clients_to_wait_longer_within_a_bound() {
        let load = LoopLoad::default();
        assert!((load.factor() - 1.0).abs() < 1e-9);
        (0..100).for_each(|_| load.observe(Duration::from_millis(20)));
        assert!((1.9..2.1).contains(&load.factor()), "{}", load.factor());
        (0..100).for_each(|_| load.observe(Duration::from_secs(5)));
        assert!((load.factor() - FACTOR_MAX).abs() < 1e-9);
    }
}
