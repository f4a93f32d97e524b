//! Time passes, or steps.

use crate::bench::Bench;
use crate::redis_server::PATIENCE;
use std::time::{Duration, Instant};
use trove::game::ids::PlayerId;
use trove_streams::redis::Commands;

impl Bench {
    /// Lets time pass for all; where stores expire by themselves, until they have.
    pub(crate) async fn advance(&mut self, ms: u64) {
        self.now += ms;
        self.time.advance(ms);
        let () = self.connection.incr("now", ms).unwrap();
        self.settle().await;
    }

    /// Steps every clock forward, which is an outage.
    pub(crate) async fn step(&mut self, ms: u64) {
        let from = self.now;
        self.now += ms;
        self.model.outages.record(from, self.now);
        self.time.set_wall(self.now);
        let () = self.connection.set("now", self.now).unwrap();
        let hunt = self.hunt();
        for side in &self.sides {
            let began = Instant::now();
            while side.store.now() != self.now {
                assert!(
                    began.elapsed() < PATIENCE,
                    "{} did not follow the clock",
                    side.name
                );
                // Any operation meets the clock.
                side.store.wallet(&hunt, side.numbers[0]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.settle().await;
    }

    pub(crate) async fn settle(&mut self) {
        if !self.sweeping {
            return;
        }
        let (now, outages, hunt) = (self.now, self.model.outages.clone(), self.hunt());
        for player in 0..self.erased.len() {
            let (wallet, _) = self
                .model
                .with(PlayerId(player as u64), now, |model, _, out| {
                    model.expire(now, &outages, out);
                    model.wallet
                });
            for side in &self.sides {
                let began = Instant::now();
                loop {
                    let is = side
                        .store
                        .wallet(&hunt, side.numbers[player])
                        .await
                        .unwrap();
                    if is == wallet {
                        break;
                    }
                    assert!(
                        began.elapsed() < PATIENCE,
                        "{} player {player}: {is:?}, not {wallet:?}",
                        side.name
                    );
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }
}
