//! What lies between a user and the system: delays, losses. Its random numbers are the user's own, so that a seed decides
//! them, in the order of the user's requests.

use super::schedule::{micros, random};
use crate::case::Network;
use rand::RngExt;
use rand_pcg::Mcg128Xsl64;

/// The model, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    latency_us: u64,
    jitter_us: u64,
    loss: f64,
}

/// Where a request is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Not at all.
    None,
    /// Before the server.
    Request,
    /// After it: the server did what it was asked, and the user does not know.
    Answer,
}

impl Model {
    /// Of a case.
    #[must_use]
    pub fn of(network: &Network) -> Self {
        Self {
            latency_us: micros(network.latency),
            jitter_us: micros(network.jitter),
            loss: network.loss,
        }
    }

    /// The random numbers of a user's network.
    #[must_use]
    pub fn random(seed: u64, user: u32) -> Mcg128Xsl64 {
        random(seed, user, 2)
    }

    /// One way.
    pub fn delay_us(&self, random: &mut Mcg128Xsl64) -> u64 {
        if self.jitter_us == 0 {
            return self.latency_us;
        }
        self.latency_us + random.random_range(0..=self.jitter_us)
    }

    /// Whether a request is lost, half of them before the server.
    pub fn loss(&self, random: &mut Mcg128Xsl64) -> Loss {
        if self.loss <= 0.0 {
            return Loss::None;
        }
        let share: f64 = random.random();
        if share < self.loss / 2.0 {
            Loss::Request
        } else if share < self.loss {
            Loss::Answer
        } else {
            Loss::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_seed_decides_what_is_late_and_what_is_lost() {
        let model = Model::of(&Network {
            latency: Duration::from_millis(40),
            jitter: Duration::from_millis(20),
            loss: 0.1,
            ..Network::default()
        });
        let run = |seed| {
            let mut random = Model::random(seed, 5);
            (0..10_000)
                .map(|_| (model.delay_us(&mut random), model.loss(&mut random)))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        let of = |loss| run(3).iter().filter(|(_, lost)| *lost == loss).count();
        assert!(
            (400..600).contains(&of(Loss::Request)),
            "{}",
            of(Loss::Request)
        );
        assert!(
            (400..600).contains(&of(Loss::Answer)),
            "{}",
            of(Loss::Answer)
        );
        assert!(run(3).iter().all(|(us, _)| (40_000..=60_000).contains(us)));
    }

    #[test]
    fn without_a_model_nothing_is_late_and_no_random_number_is_drawn() {
        let model = Model::of(&Network::default());
        let mut random = Model::random(1, 1);
        assert_eq!(
            (model.delay_us(&mut random), model.loss(&mut random)),
            (0, Loss::None)
        );
        assert_eq!(random, Model::random(1, 1));
    }
}
