//! Thousands of random operations on the embedded store and on `game::model` side by side: every answer, wallet,
//! history and sum must be the same, through windows, clock steps and restarts.
//!
//! The store's sweeper runs when it likes. Time stands still during an operation, so it either came before the
//! operation or it did not, and the model is asked both ways.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

#[path = "store_model/pair.rs"]
mod pair;
mod store_disk;

use pair::{LIMITS, Pair, WINDOW_MS, spec};
use rand::RngExt;
use trove::game::coins::COINS_MAX;
use trove::game::entry::{Adjustment, Change};
use trove::game::hunt::{Hunt, HuntState, LifeStep};
use trove::game::ids::{FindId, PlayerId, PlayerName, TreasureId};
use trove::game::model::Model;
use trove::game::rules::{self, AdjustDecision, Circumstances, NewFind, What};
use trove::store::{Erased, Opening, RecordOutcome, Reinstated, Store};

impl Pair {
    fn new_find(&mut self, hunt: usize, now: u64) -> NewFind {
        let what = match self.below(10) {
            0 => What::Coins([0, 5, COINS_MAX + 1, COINS_MAX / 3][self.below(3 + hunt)]),
            _ => What::Treasure(TreasureId::new(&format!("t{}", self.below(14))).unwrap()),
        };
        let id = match self.below(12) {
            0 => None,
            _ => FindId::new(&format!("t{}", self.below(25))).ok(),
        };
        let found_at = match self.below(10) {
            0 => Some(now - WINDOW_MS - self.random.random_range(0..3)),
            1 => Some(now - self.random.random_range(0..2 * WINDOW_MS)),
            2 => Some(now + self.random.random_range(990..1_010)),
            _ => None,
        };
        NewFind { what, id, found_at }
    }

    async fn record(&mut self) {
        let (hunt, player, now) = (self.below(2), self.some_player(), self.now());
        let finds: Vec<NewFind> = (0..1 + self.below(3))
            .map(|_| self.new_find(hunt, now))
            .collect();
        let batch = finds.iter().map(|find| (player, find.clone())).collect();
        let recorded = self.store().record(&self.hunt_id(hunt), batch).await;
        let recorded = recorded.unwrap();
        let wallet = recorded.wallets.first().map(|(_, wallet)| *wallet);
        let answer = format!("{:?}", (&recorded.outcomes, wallet));
        let erased = self.erased.contains(&player);
        self.agree(
            hunt,
            player,
            &format!("{finds:?}"),
            &answer,
            |model, at, out| {
                let before = out.len();
                let outcomes: Vec<RecordOutcome> = finds
                    .iter()
                    .map(|find| {
                        if erased {
                            rules::identify(at.hunt, find, at.now)?;
                            return Err(Erased.into());
                        }
                        // The totals grow with each find of the batch.
                        let mut totals = *at.totals;
                        for entry in &out[before..] {
                            totals.apply(&entry.change).unwrap();
                        }
                        let at = Circumstances {
                            totals: &totals,
                            ..at
                        };
                        Ok(model.record(at, find, out)?)
                    })
                    .collect();
                (outcomes, (out.len() > before).then_some(model.wallet))
            },
        );
    }

    async fn poll(&mut self) {
        let (hunt, player) = (self.below(2), self.some_player());
        let credited = self.store().credit(&self.hunt_id(hunt), player).await;
        let credited = credited.unwrap();
        let answer = format!("{:?}", (credited.wallet, credited.entries));
        self.agree(hunt, player, "poll", &answer, |model, at, out| {
            let before = out.len();
            model.collect(at.now, at.outages, out);
            (model.wallet, out[before..].to_vec())
        });
    }

    async fn adjust(&mut self) {
        let (hunt, player) = (self.below(2), self.some_player());
        let max = i64::try_from(COINS_MAX).unwrap();
        let coins = match self.below(8) {
            0 => [0, max + 1, -max, i64::MIN, max / 2][self.below(4 + hunt)],
            _ => self.random.random_range(-60..100),
        };
        let adjustment = Adjustment {
            coins,
            reason: "r".into(),
            key: format!("k{}", self.below(40)),
            by: "b".into(),
        };
        let id = self.hunt_id(hunt);
        let adjusted = self.store().adjust(&id, player, adjustment.clone()).await;
        let adjusted = adjusted.unwrap();
        let answer = format!("{:?}", (adjusted.outcome, adjusted.wallet));
        self.agree(
            hunt,
            player,
            &format!("{adjustment:?}"),
            &answer,
            |model, at, out| {
                let outcome = model.adjust(at, adjustment.clone());
                if let Ok(AdjustDecision::Recorded(entry)) = &outcome {
                    out.push(entry.clone());
                }
                (outcome, model.wallet)
            },
        );
    }

    async fn open_player(&mut self) {
        let (which, now) = (self.below(6), self.now());
        let issued_at = match self.below(3) {
            0 => None,
            1 => Some(now),
            _ => Some(now - self.random.random_range(0..100_000)),
        };
        let opening = Opening {
            name: PlayerName::new(&format!("person-{which}")).unwrap(),
            issued_at,
            known: None,
        };
        let opened = self.store().open_players(vec![opening]).await.unwrap()[0];
        let person = &mut self.people[which];
        let vouched = |at: u64| match issued_at {
            Some(issued_at) => issued_at > at,
            None => person.number.is_some(),
        };
        match person.erased_at {
            Some(at) if !vouched(at) => assert_eq!(opened, Err(Erased)),
            _ => match person.number {
                Some(number) => assert_eq!(opened, Ok(number)),
                None => {
                    let number = opened.unwrap();
                    assert!(!self.erased.contains(&number));
                    person.number = Some(number);
                }
            },
        }
    }

    async fn erase(&mut self) {
        self.settle().await;
        let (which, now) = (self.below(6), self.now());
        let name = PlayerName::new(&format!("person-{which}")).unwrap();
        let erasure = self.store().erase(&name).await.unwrap();
        let number = self.people[which].number.take();
        self.people[which].erased_at = Some(now);
        assert_eq!(erasure.existed, number.is_some());
        let mut revoked = 0;
        if let Some(number) = number {
            for (hunt, model) in self.models.iter_mut().enumerate() {
                revoked += model
                    .players
                    .get(&number)
                    .map_or(0, |p| p.wallet.pending_coins);
                let (_, entries) = model.with(number, now, |player, _, out| {
                    player.revoke_pending(now, out);
                });
                self.histories
                    .entry((hunt, number))
                    .or_default()
                    .extend(entries);
            }
            self.erased.push(number);
        }
        assert_eq!(erasure.revoked, revoked);
    }

    async fn change_hunt(&mut self) {
        self.settle().await;
        let (hunt, now, id) = (self.below(2), self.now(), format!("h{}", self.models.len()));
        let pending = |model: &Model| match model.totals.pending {
            0 => model.players.values().map(|p| p.wallet.pending_finds).sum(),
            coins => coins,
        };
        if self.below(3) == 0 {
            let same = self.hunt_id(hunt);
            let spec = spec(&mut self.random, same.as_str());
            let put = self.store().put_hunt(spec.clone()).await.unwrap();
            let model = &mut self.models[hunt];
            let found = model.found.clone();
            match model.hunt.replace(spec, &found) {
                Ok(()) => assert_eq!(*put.unwrap().0, model.hunt),
                Err(error) => assert_eq!(put.err(), Some(error)),
            }
            return;
        }
        let step = match self.below(9) {
            0 | 1 => LifeStep::Close,
            2 => LifeStep::Archive,
            _ => LifeStep::Open,
        };
        let stepped = self
            .store()
            .step_hunt(&self.hunt_id(hunt), step)
            .await
            .unwrap();
        let model = &mut self.models[hunt];
        let pending = pending(model);
        match model.hunt.step(step, now, pending) {
            Ok(()) => assert_eq!(*stepped.unwrap(), model.hunt),
            Err(error) => assert_eq!(stepped.err(), Some(error)),
        }
        if model.hunt.operator == Some(HuntState::Archived) {
            // It is over; another takes its place in the test.
            let spec = spec(&mut self.random, &id);
            let (hunt, _) = self.store().put_hunt(spec).await.unwrap().unwrap();
            self.models.push(Model::new(Hunt::clone(&hunt), LIMITS));
            let last = self.models.len() - 1;
            self.models[last].outages = self.models[0].outages.clone();
            self.swap_hunts(last);
        }
    }

    fn swap_hunts(&mut self, last: usize) {
        let over = (0..2)
            .find(|at| self.models[*at].hunt.operator == Some(HuntState::Archived))
            .unwrap();
        self.models.swap(over, last);
        self.histories = std::mem::take(&mut self.histories)
            .into_iter()
            .map(|((hunt, player), entries)| {
                let hunt = match hunt {
                    hunt if hunt == over => last,
                    hunt if hunt == last => over,
                    hunt => hunt,
                };
                ((hunt, player), entries)
            })
            .collect();
    }

    async fn reinstate(&mut self) {
        self.settle().await;
        let (hunt, now) = (self.below(2), self.now());
        let from = now - self.random.random_range(0..5 * WINDOW_MS);
        let to = from + self.random.random_range(0..3 * WINDOW_MS);
        let done = self.store().reinstate(&self.hunt_id(hunt), from, to).await;
        let mut sum = Reinstated::default();
        let model = &mut self.models[hunt];
        let players: Vec<PlayerId> = model.players.keys().copied().collect();
        for player in players {
            let (_, entries) = model.with(player, now, |player, _, out| {
                player.reinstate(from, to, now, out);
            });
            for entry in &entries {
                let Change::Reinstate(find) = &entry.change else {
                    panic!("{entry:?}")
                };
                sum.finds += 1;
                sum.coins += find.coins;
            }
            self.histories
                .entry((hunt, player))
                .or_default()
                .extend(entries);
        }
        sum.refused = done.as_ref().unwrap().refused;
        assert_eq!(done, Ok(sum));
    }

    async fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            let kind = self.below(1_000);
            let name = match kind {
                0..380 => {
                    self.record().await;
                    "record"
                }
                380..640 => {
                    self.poll().await;
                    "poll"
                }
                640..720 => {
                    self.adjust().await;
                    "adjust"
                }
                720..860 => {
                    self.pass_time().await;
                    "time"
                }
                860..930 => {
                    self.open_player().await;
                    "open"
                }
                930..940 => {
                    self.erase().await;
                    "erase"
                }
                940..965 => {
                    self.change_hunt().await;
                    "hunt"
                }
                965..967 => {
                    self.step_clock().await;
                    "step"
                }
                967..980 => {
                    let away = self.random.random_range(0..WINDOW_MS);
                    self.restart(away).await;
                    "restart"
                }
                980..990 => {
                    self.reinstate().await;
                    "reinstate"
                }
                _ => {
                    self.compare().await;
                    "compare"
                }
            };
            *self.counts.entry(name).or_default() += 1;
        }
        self.compare().await;
    }
}

async fn compare(seed: u64) {
    println!("TROVE_TEST_SEED={seed}");
    let operations = std::env::var("TROVE_TEST_OPERATIONS").ok();
    let operations = operations.and_then(|text| text.parse().ok());
    let mut pair = Pair::new(seed).await;
    pair.run(operations.unwrap_or(2_000)).await;
    let entries: usize = pair.histories.values().map(Vec::len).sum();
    println!(
        "seed {seed}: {entries} entries in {} hunts; {:?}",
        pair.models.len(),
        pair.counts
    );
}

#[tokio::test]
async fn the_store_and_the_model_say_the_same() {
    let given = std::env::var("TROVE_TEST_SEED").ok();
    match given.and_then(|text| text.parse().ok()) {
        Some(seed) => compare(seed).await,
        // Side by side, because much of the time is spent waiting for the sweeper.
        None => {
            tokio::join!(compare(1), compare(2), compare(3));
        }
    }
}
