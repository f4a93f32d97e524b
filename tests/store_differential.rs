//! Random sequences of everything that players and operators do, run through the game's model, the Redis store and the
//! embedded store side by side under one clock. Every answer, wallet, sequence number, history entry and sum must be the
//! same. `TROVE_TEST_SEED` repeats a run.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap that fails here fails its test, which is what it is for"
)]

mod redis_server;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis_server::{PATIENCE, Server};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trove::game::coins::COINS_MAX;
use trove::game::entry::{Adjustment, Entry};
use trove::game::hunt::{Hunt, HuntSpec, HuntState, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, PlayerName, TreasureId};
use trove::game::model::Model;
use trove::game::rules::{self, Decision, Limits, NewFind, What};
use trove::store::clock::ManualTime;
use trove::store::embedded::{EmbeddedStore, Options as EmbeddedOptions};
use trove::store::redis::{Options, RedisStore, Time};
use trove::store::{Erased, Opening, RecordOutcome, Store};
use trove_streams::redis::{self, Commands};

const START: u64 = 1_800_000_000_000;
const WINDOW_MS: u64 = 300_000;
const LIMITS: Limits = Limits {
    pending_finds_max: 6,
    find_id_ttl_ms: 900_000,
};

/// A store beside the model, and the numbers under which it knows the players.
struct Side {
    name: &'static str,
    store: Box<dyn Store>,
    numbers: Vec<PlayerId>,
}

struct Bench {
    random: SmallRng,
    connection: redis::Connection,
    time: Arc<ManualTime>,
    now: u64,
    model: Model,
    erased: Vec<bool>,
    finds: u64,
    sent: Vec<Vec<NewFind>>,
    sides: Vec<Side>,
    /// Whether stores expire by themselves, which the test then waits for.
    sweeping: bool,
    rich: bool,
    counts: [u64; 8],
    _server: Server,
    _dir: tempfile::TempDir,
}

fn seed() -> u64 {
    let seed = match std::env::var("TROVE_TEST_SEED") {
        Ok(seed) => seed.parse().expect("TROVE_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("TROVE_TEST_SEED={seed}");
    seed
}

fn spec(coins: u64, window_ms: u64) -> HuntSpec {
    let treasure = |n: u64| Treasure {
        id: TreasureId::new(&format!("t{n}")).unwrap(),
        name: None,
        coins: if n == 3 { 0 } else { coins + n },
        place: None,
        repeatable: n % 3 == 2,
    };
    HuntSpec {
        id: HuntId::new("h").unwrap(),
        name: "Hunt".into(),
        window_ms,
        opens_at: None,
        closes_at: None,
        treasures: (0..12).map(treasure).collect(),
    }
}

impl Bench {
    async fn new(seed: u64, players: usize, partitions: u16, sweeping: bool, rich: bool) -> Self {
        let server = Server::start();
        let mut connection = server.connection();
        let () = connection.set("now", START).unwrap();
        let time = Arc::new(ManualTime::new(START));
        let hour = Duration::from_secs(3_600);
        let sweep_interval = if sweeping {
            Duration::from_millis(20)
        } else {
            hour
        };
        let options = Options {
            partitions,
            limits: LIMITS,
            response_timeout: Duration::from_secs(20),
            connect_wait: PATIENCE,
            sweep_interval,
            forget_interval: if sweeping {
                Duration::from_millis(500)
            } else {
                hour
            },
            time: Time::Manual {
                key: "now".into(),
                time: time.clone(),
            },
            ..Options::default()
        };
        let redis = RedisStore::connect(&server.url(), options).await.unwrap();
        let mut stores: Vec<(&'static str, Box<dyn Store>)> = vec![("redis", Box::new(redis))];
        let dir = tempfile::tempdir().unwrap();
        if sweeping {
            let options = EmbeddedOptions {
                limits: LIMITS,
                time: time.clone(),
                min_free_bytes: 0,
                on_fatal: Box::new(|reason| panic!("{reason}")),
                ..EmbeddedOptions::new(dir.path())
            };
            let memory = ::redb::backends::InMemoryBackend::new;
            stores.push((
                "embedded",
                Box::new(EmbeddedStore::open_backend(options, memory).unwrap()),
            ));
        }
        let mut sides = Vec::new();
        for (name, store) in stores {
            store.put_hunt(spec(10, WINDOW_MS)).await.unwrap().unwrap();
            store
                .step_hunt(&HuntId::new("h").unwrap(), LifeStep::Open)
                .await
                .unwrap()
                .unwrap();
            let openings = (0..players).map(|n| Opening {
                name: PlayerName::new(&format!("player-{n}")).unwrap(),
                issued_at: Some(START),
            });
            let opened = store.open_players(openings.collect()).await.unwrap();
            sides.push(Side {
                name,
                store,
                numbers: opened.into_iter().map(Result::unwrap).collect(),
            });
        }
        let mut hunt = Hunt::new(1, spec(10, WINDOW_MS));
        hunt.step(LifeStep::Open, START, 0).unwrap();
        Self {
            random: SmallRng::seed_from_u64(seed),
            connection,
            time,
            now: START,
            model: Model::new(hunt, LIMITS),
            erased: vec![false; players],
            finds: 0,
            sent: vec![Vec::new(); players],
            sides,
            sweeping,
            rich,
            counts: [0; 8],
            _server: server,
            _dir: dir,
        }
    }

    fn hunt(&self) -> HuntId {
        self.model.hunt.spec.id.clone()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.random_range(0..bound)
    }

    fn new_find(&mut self, player: usize) -> NewFind {
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

    fn expect_record(&mut self, player: usize, new: &NewFind) -> RecordOutcome {
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

    async fn record(&mut self, finds: Vec<(usize, NewFind)>) {
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

    async fn credit(&mut self, player: usize) {
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

    async fn adjust(&mut self, player: usize) {
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

    /// Lets time pass for all; where stores expire by themselves, until they have.
    async fn advance(&mut self, ms: u64) {
        self.now += ms;
        self.time.advance(ms);
        let () = self.connection.incr("now", ms).unwrap();
        self.settle().await;
    }

    /// Steps every clock forward, which is an outage.
    async fn step(&mut self, ms: u64) {
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

    async fn settle(&mut self) {
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

    async fn reinstate(&mut self) {
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

    async fn erase(&mut self, player: usize) {
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

    async fn change_hunt(&mut self) {
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

    /// Compares everything that can be read.
    async fn compare(&mut self, histories: &mut [Vec<Entry>]) {
        let hunt = self.hunt();
        for side in &self.sides {
            let hunts = side.store.hunts().await.unwrap();
            assert_eq!(hunts[0].1, self.model.totals, "{}", side.name);
            for audit in side.store.verify(None).await.unwrap() {
                assert!(audit.holds(), "{}: {audit:#?}", side.name);
            }
            for (player, history) in histories.iter_mut().enumerate() {
                let wallet = side
                    .store
                    .wallet(&hunt, side.numbers[player])
                    .await
                    .unwrap();
                let expected = self
                    .model
                    .players
                    .get(&PlayerId(player as u64))
                    .map(|player| player.wallet);
                assert_eq!(
                    wallet,
                    expected.unwrap_or_default(),
                    "{} player {player}",
                    side.name
                );
                let mut is = side
                    .store
                    .history(&hunt, side.numbers[player], u64::MAX, usize::MAX)
                    .await
                    .unwrap();
                is.reverse();
                assert_eq!(is.len() as u64, wallet.seq);
                if side.name == self.sides[0].name {
                    *history = is;
                    continue;
                }
                assert_eq!(is, *history, "{} player {player}", side.name);
            }
            // Pages from anywhere, also across the links that skip entries.
            for (player, history) in histories
                .iter()
                .enumerate()
                .filter(|(_, history)| history.len() > 40)
            {
                let before = 1 + history.len() / 3;
                let page = side
                    .store
                    .history(&hunt, side.numbers[player], before as u64, 7)
                    .await
                    .unwrap();
                let expected: Vec<Entry> = history[..before - 1]
                    .iter()
                    .rev()
                    .take(7)
                    .cloned()
                    .collect();
                assert_eq!(
                    page, expected,
                    "{} player {player} before {before}",
                    side.name
                );
            }
        }
    }

    /// Random operations, then something that happens to all, by turns.
    async fn round(&mut self, nth: usize) {
        let players = self.erased.len() as u64;
        for _ in 0..players {
            let player = usize::try_from(self.below(players)).unwrap();
            match self.below(20) {
                0..8 => {
                    let new = self.new_find(player);
                    self.record(vec![(player, new)]).await;
                }
                8..10 => {
                    let mut finds = Vec::new();
                    for _ in 0..self.below(12) {
                        // Where the hunt's coins run out, the order of two partitions' finds within a batch is open.
                        let other = usize::try_from(self.below(players)).unwrap();
                        let player = if self.rich { player } else { other };
                        finds.push((player, self.new_find(player)));
                    }
                    self.record(finds).await;
                }
                10..17 => self.credit(player).await,
                _ => self.adjust(player).await,
            }
        }
        let (short, long) = (
            self.below(60_000),
            WINDOW_MS / 2 + self.below(2 * WINDOW_MS),
        );
        if self.model.hunt.state(self.now) != HuntState::Open {
            // A hunt that stays closed shows little.
            self.change_hunt().await;
        }
        match nth % 6 {
            0 => self.change_hunt().await,
            1 => self.step(6_000 + long).await,
            2 => self.reinstate().await,
            3 => {
                let player = usize::try_from(self.below(players)).unwrap();
                self.erase(player).await;
            }
            4 => self.advance(long).await,
            _ => {}
        }
        self.advance(short).await;
    }
}

async fn run(
    seed: u64,
    players: usize,
    rounds: usize,
    partitions: u16,
    sweeping: bool,
    rich: bool,
) -> [u64; 8] {
    let mut bench = Bench::new(seed, players, partitions, sweeping, rich).await;
    let mut histories = vec![Vec::new(); players];
    for round in 0..rounds {
        bench.round(round).await;
        if round % 10 == 9 || round + 1 == rounds {
            bench.compare(&mut histories).await;
        }
    }
    bench.counts
}

fn met(counts: [u64; 8]) {
    let names = [
        "recorded",
        "refused",
        "repeated",
        "settled",
        "adjusted",
        "reinstated",
        "erased",
        "hunt changed",
    ];
    println!("{names:?} {counts:?}");
    for (name, count) in names.iter().zip(counts) {
        assert!(count > 0, "nothing was {name}");
    }
}

fn sum(runs: &[[u64; 8]]) -> [u64; 8] {
    std::array::from_fn(|index| runs.iter().map(|run| run[index]).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_do_what_the_model_does() {
    let seed = seed();
    let mut counts = Vec::new();
    for (nth, partitions) in [16, 1, 3].into_iter().enumerate() {
        counts.push(run(seed + nth as u64, 400, 18, partitions, false, false).await);
    }
    met(sum(&counts));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_keep_to_the_range_of_coins_as_the_model_does() {
    let seed = seed();
    let mut counts = Vec::new();
    for nth in 0..40 {
        counts.push(
            run(
                seed + nth,
                12,
                20,
                [1, 4][usize::try_from(nth % 2).unwrap()],
                false,
                true,
            )
            .await,
        );
    }
    assert!(sum(&counts)[1] > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_do_what_the_model_does_also_by_themselves() {
    let counts = run(seed(), 300, 16, 16, true, false).await;
    met(counts);
}
