//! Pauses between attempts to connect.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::partition::mix;

/// Doubles from `min` to `max`; each pause lies, evenly spread, in the upper half of what it would be, so that instances
/// which lost the same server do not all come back at the same moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    current: Duration,
    state: u64,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration, seed: Option<u64>) -> Self {
        // Doubling needs something to double.
        let max = max.max(Duration::from_millis(1));
        let min = min.clamp(Duration::from_millis(1), max);
        Self {
            min,
            max,
            current: min,
            // The standard library seeds its hashers from the system's randomness; no other source is needed for jitter.
            state: seed.unwrap_or_else(|| RandomState::new().hash_one(0)),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.current = self.min;
    }

    pub(crate) fn next(&mut self) -> Duration {
        // splitmix64
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let fraction = f64::from((mix(self.state) >> 32) as u32) / f64::from(u32::MAX);
        let pause = self.current.mul_f64(0.5 + fraction / 2.0);
        self.current = (self.current * 2).min(self.max);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_cap_and_are_jittered() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(20 * MS, 500 * MS, Some(seed));
            for expected in [20, 40, 80, 160, 320, 500, 500] {
                let pause = backoff.next();
                assert!(
                    pause >= expected * MS / 2 && pause <= expected * MS,
                    "seed {seed}: {pause:?}"
                );
            }
            backoff.reset();
            assert!(backoff.next() <= 20 * MS);
        }
    }

    #[test]
    fn two_connections_pause_differently() {
        let next = || Backoff::new(500 * MS, 500 * MS, None).next();
        assert!((0..10).any(|_| next() != next()));
    }
}
