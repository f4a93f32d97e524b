//! What operators do to a whole hunt.

use crate::bench::{Bench, START, WINDOW_MS, spec};
use rand::RngExt;
use trove::game::hunt::LifeStep;
use trove::game::ids::PlayerId;

impl Bench {
    pub(crate) async fn reinstate(&mut self) {
        // By turns a stretch, and all there is.
        let now = self.now;
        let from = if self.below(2) == 0 {
            START
        } else {
            now - self.below(2 * WINDOW_MS)
        };
        let to = if from == START {
            now
        } else {
            from + self.below(WINDOW_MS)
        };
        let before = self.model.totals;
        for player in 0..self.erased.len() {
            self.model
                .with(PlayerId(player as u64), now, |model, _, out| {
                    model.reinstate(from, to, now, out)
                });
        }
        let hunt = self.hunt();
        for side in &self.sides {
            let reinstated = side.store.reinstate(&hunt, from, to).await.unwrap();
            assert_eq!(
                reinstated.coins,
                before.expired - self.model.totals.expired,
                "{}",
                side.name
            );
            self.counts[5] += reinstated.finds;
        }
    }

    pub(crate) async fn change_hunt(&mut self) {
        let hunt = self.hunt();
        if self.below(2) == 0 {
            let step = if self.below(3) == 0 {
                LifeStep::Close
            } else {
                LifeStep::Open
            };
            let expected = self
                .model
                .hunt
                .step(step, self.now, self.model.totals.pending);
            for side in &self.sides {
                let stepped = side.store.step_hunt(&hunt, step).await.unwrap();
                assert_eq!(
                    stepped.map(|hunt| hunt.generation),
                    expected.clone().map(|()| self.model.hunt.generation)
                );
            }
        } else {
            let mut new = spec(
                self.random.random_range(1..20),
                WINDOW_MS - self.random.random_range(0..1_000),
            );
            if self.below(3) == 0 {
                let gone = usize::try_from(self.below(12)).unwrap();
                new.treasures.remove(gone);
            }
            let expected = self.model.hunt.replace(new.clone(), &self.model.found);
            for side in &self.sides {
                let put = side.store.put_hunt(new.clone()).await.unwrap();
                let put = put.map(|(hunt, _)| hunt.generation);
                assert_eq!(
                    put,
                    expected.clone().map(|()| self.model.hunt.generation),
                    "{}",
                    side.name
                );
            }
        }
        self.counts[7] += 1;
    }
}
