//! What players do, and what is done to one of them.

use crate::bench::{Bench, WINDOW_MS};
use rand::RngExt;
use trove::game::coins::COINS_MAX;
use trove::game::entry::Adjustment;
use trove::game::ids::{FindId, PlayerId, PlayerName, TreasureId};
use trove::game::rules::{self, Decision, NewFind, What};
use trove::store::{Erased, Opening, RecordOutcome};

impl Bench {
    pub(crate) fn new_find(&mut self, player: usize) -> NewFind {
        self.finds += 1;
        let kind = self.below(100);
        if kind < 20 && !self.sent[player].is_empty() {
            let index = self.below(self.sent[player].len() as u64);
            let mut again = self.sent[player][usize::try_from(index).unwrap()].clone();
            if kind < 5 {
                again.what = What::Coins(1 + self.below(3));
            }
            return again;
        }
        let found_at = match self.below(10) {
            0 | 1 => Some(self.now - self.random.random_range(0..WINDOW_MS + 50_000)),
            2 => Some(self.now + self.random.random_range(0..2_000)),
            _ => None,
        };
        let id = match self.below(8) {
            0 => None,
            1 => FindId::new(&format!("few-{}", self.below(5))).ok(),
            2 => FindId::new(&format!("{:-<64}", self.finds)).ok(),
            _ => FindId::new(&self.finds.to_string()).ok(),
        };
        let what = match self.below(10) {
            0 => What::Coins(if self.rich {
                self.below(COINS_MAX / 3)
            } else {
                self.below(1_000)
            }),
            1 if self.rich => What::Coins(COINS_MAX - self.below(3)),
            // One more than there are.
            _ => What::Treasure(TreasureId::new(&format!("t{}", self.below(13))).unwrap()),
        };
        let new = NewFind { what, id, found_at };
        self.sent[player].push(new.clone());
        new
    }

    pub(crate) fn expect_record(&mut self, player: usize, new: &NewFind) -> RecordOutcome {
        rules::identify(&self.model.hunt, new, self.now)?;
        if self.erased[player] {
            return Err(Erased.into());
        }
        let recorded = self
            .model
            .with(PlayerId(player as u64), self.now, |model, at, out| {
                model.record(at, new, out)
            });
        Ok(recorded.0?)
    }

    pub(crate) async fn record(&mut self, finds: Vec<(usize, NewFind)>) {
        let expected: Vec<RecordOutcome> = finds
            .iter()
            .map(|(player, new)| self.expect_record(*player, new))
            .collect();
        let hunt = self.hunt();
        for side in &self.sides {
            let asked = finds
                .iter()
                .map(|(player, new)| (side.numbers[*player], new.clone()))
                .collect();
            let recorded = side.store.record(&hunt, asked).await.unwrap();
            assert_eq!(recorded.outcomes, expected, "{}: {finds:?}", side.name);
            for (number, wallet) in recorded.wallets {
                let player = side
                    .numbers
                    .iter()
                    .position(|known| *known == number)
                    .unwrap();
                assert_eq!(
                    wallet,
                    self.model.players[&PlayerId(player as u64)].wallet,
                    "{}",
                    side.name
                );
            }
        }
        self.counts[0] += expected
            .iter()
            .filter(|outcome| matches!(outcome, Ok(Decision::Recorded(..))))
            .count() as u64;
        self.counts[1] += expected.iter().filter(|outcome| outcome.is_err()).count() as u64;
        self.counts[2] += expected
            .iter()
            .filter(|outcome| matches!(outcome, Ok(Decision::Duplicate(_))))
            .count() as u64;
    }

    pub(crate) async fn credit(&mut self, player: usize) {
        let now = self.now;
        let outages = self.model.outages.clone();
        let (wallet, entries) = self
            .model
            .with(PlayerId(player as u64), now, |model, _, out| {
                model.collect(now, &outages, out);
                model.wallet
            });
        let hunt = self.hunt();
        for side in &self.sides {
            let credited = side
                .store
                .credit(&hunt, side.numbers[player])
                .await
                .unwrap();
            assert_eq!(
                (credited.wallet, &credited.entries),
                (wallet, &entries),
                "{} player {player}",
                side.name
            );
        }
        self.counts[3] += entries.len() as u64;
    }

    pub(crate) async fn adjust(&mut self, player: usize) {
        let coins = match self.below(12) {
            0 => 0,
            1 => i64::MAX,
            2 => i64::try_from(COINS_MAX).unwrap() * if self.below(2) == 0 { 1 } else { -1 },
            _ => i64::try_from(self.below(60)).unwrap() - 30,
        };
        let adjustment = Adjustment {
            coins,
            reason: format!("reason {} \u{fc}  \"quoted\"", self.below(2)),
            key: format!("key-{}", self.below(40)),
            by: "ops".into(),
        };
        let (outcome, _) = self
            .model
            .with(PlayerId(player as u64), self.now, |model, at, out| {
                let outcome = model.adjust(at, adjustment.clone());
                if let Ok(rules::AdjustDecision::Recorded(entry)) = &outcome {
                    out.push(entry.clone());
                }
                (outcome, model.wallet)
            });
        let hunt = self.hunt();
        for side in &self.sides {
            let adjusted = side
                .store
                .adjust(&hunt, side.numbers[player], adjustment.clone())
                .await
                .unwrap();
            assert_eq!(
                (adjusted.outcome, adjusted.wallet),
                outcome,
                "{} {adjustment:?}",
                side.name
            );
        }
        self.counts[4] += u64::from(outcome.0.is_ok());
    }

    pub(crate) async fn erase(&mut self, player: usize) {
        let now = self.now;
        let revoked = if self.erased[player] {
            0
        } else {
            self.model
                .with(PlayerId(player as u64), now, |model, _, out| {
                    let coins = model.wallet.pending_coins;
                    model.revoke_pending(now, out);
                    coins
                })
                .0
        };
        let name = PlayerName::new(&format!("player-{player}")).unwrap();
        for side in &self.sides {
            let erasure = side.store.erase(&name).await.unwrap();
            assert_eq!(
                (erasure.revoked, erasure.existed),
                (revoked, !self.erased[player]),
                "{}",
                side.name
            );
            let again = Opening {
                name: name.clone(),
                issued_at: Some(now),
                known: None,
            };
            assert_eq!(
                side.store.open_players(vec![again]).await.unwrap(),
                [Err(Erased)],
                "{}",
                side.name
            );
        }
        self.erased[player] = true;
        self.counts[6] += 1;
    }
}
