//! What a failover takes comes back, rule by rule: a server saves its data, goes on, is killed, and starts again with what
//! it had saved. So exactly what came after the saving is lost, and the instances find a history that was cut.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap that fails here fails its test, which is what it is for"
)]

#[path = "../redis_server/mod.rs"]
mod redis_server;

mod journal;
mod model;
mod names;
mod recent;
mod rules;

use redis_server::{PATIENCE, Server};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trove::game::entry::{Adjustment, Change, Entry};
use trove::game::hunt::{HuntSpec, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, PlayerName, TreasureId};
use trove::game::rules::{NewFind, What};
use trove::game::wallet::Wallet;
use trove::store::clock::ManualTime;
use trove::store::redis::{Dropped, Options, RedisStore, ReplayKind, Time};
use trove::store::{Erased, FeedEvent, Health, Opening, RecordOutcome, Store, StoreError};

pub(crate) const WINDOW_MS: u64 = 300_000;
const START: u64 = 1_800_000_000_000;

/// A server, the time of its scripts, and what it had when it was saved.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) time: Arc<ManualTime>,
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self {
            server: Server::start(),
            time: Arc::new(ManualTime::new(START)),
        };
        world.tell_time(START);
        world
    }

    fn tell_time(&self, ms: u64) {
        let () = self.server.run(&["SET", "now", &ms.to_string()]);
    }

    fn now(&self) -> u64 {
        use trove::store::clock::TimeSource;
        self.time.wall_ms()
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.time.advance(ms);
        self.tell_time(self.now());
    }

    /// Keeps what there is.
    pub(crate) fn save(&self) {
        let () = self.server.run(&["SAVE"]);
    }

    /// Loses what came since.
    pub(crate) fn lose(&mut self) {
        self.server.start_again();
        self.tell_time(self.now());
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            partitions: 4,
            connect_wait: PATIENCE,
            response_timeout: Duration::from_secs(5),
            feed_block: Duration::from_millis(50),
            sweep_interval: Duration::from_millis(50),
            recovery: Duration::from_millis(300),
            time: Time::Manual {
                key: "now".into(),
                time: self.time.clone(),
            },
            ..Options::default()
        }
    }

    pub(crate) async fn connect(&self) -> RedisStore {
        self.connect_with(self.options()).await
    }

    pub(crate) async fn connect_with(&self, options: Options) -> RedisStore {
        RedisStore::connect(&self.server.url(), options)
            .await
            .unwrap()
    }
}

pub(crate) fn hunt() -> HuntId {
    HuntId::new("h").unwrap()
}

pub(crate) fn spec(id: &str) -> HuntSpec {
    let treasure = |id: &str, coins, repeatable| Treasure {
        id: TreasureId::new(id).unwrap(),
        name: None,
        coins,
        place: None,
        repeatable,
    };
    HuntSpec {
        id: HuntId::new(id).unwrap(),
        name: "Hunt".into(),
        window_ms: WINDOW_MS,
        opens_at: None,
        closes_at: None,
        treasures: vec![
            treasure("a", 10, false),
            treasure("b", 20, false),
            treasure("r", 3, true),
        ],
    }
}

pub(crate) async fn open_hunt(store: &RedisStore, id: &str) {
    store.put_hunt(spec(id)).await.unwrap().unwrap();
    step(store, id, LifeStep::Open).await;
}

pub(crate) async fn step(store: &RedisStore, id: &str, step: LifeStep) {
    let id = HuntId::new(id).unwrap();
    store.step_hunt(&id, step).await.unwrap().unwrap();
}

pub(crate) fn of(treasure: &str) -> NewFind {
    NewFind {
        what: What::Treasure(TreasureId::new(treasure).unwrap()),
        id: None,
        found_at: None,
    }
}

pub(crate) fn with_id(id: &str) -> NewFind {
    NewFind {
        id: Some(FindId::new(id).unwrap()),
        ..of("r")
    }
}

pub(crate) async fn try_find(
    store: &RedisStore,
    id: &HuntId,
    player: PlayerId,
    new: NewFind,
) -> Result<RecordOutcome, StoreError> {
    let recorded = store.record(id, vec![(player, new)]).await?;
    Ok(recorded.outcomes.into_iter().next().unwrap())
}

pub(crate) async fn find(store: &RedisStore, player: PlayerId, new: NewFind) {
    try_find(store, &hunt(), player, new)
        .await
        .unwrap()
        .unwrap();
}

pub(crate) async fn credit(store: &RedisStore, player: PlayerId) -> Wallet {
    store.credit(&hunt(), player).await.unwrap().wallet
}

pub(crate) async fn open(
    store: &RedisStore,
    name: &str,
    issued_at: u64,
) -> Result<PlayerId, Erased> {
    let opening = Opening {
        name: PlayerName::new(name).unwrap(),
        issued_at: Some(issued_at),
        known: None,
    };
    until("players are opened", async || {
        let opened = store.open_players(vec![opening.clone()]).await.ok()?;
        Some(opened[0])
    })
    .await
}

pub(crate) fn adjustment(coins: i64, key: &str) -> Adjustment {
    Adjustment {
        coins,
        reason: "because".into(),
        key: key.into(),
        by: "ops".into(),
    }
}

pub(crate) async fn wallet(store: &RedisStore, player: PlayerId) -> Wallet {
    store.wallet(&hunt(), player).await.unwrap()
}

/// A wallet's history, oldest first.
pub(crate) async fn history(store: &RedisStore, player: PlayerId) -> Vec<Entry> {
    let read = store.history(&hunt(), player, u64::MAX, 1_000).await;
    let mut entries = read.unwrap();
    entries.reverse();
    entries
}

/// The kinds of a history's entries, by their first letters.
pub(crate) async fn kinds(store: &RedisStore, player: PlayerId) -> String {
    let letter = |entry: &Entry| match &entry.change {
        Change::Find(_) => 'f',
        Change::Credit(_) => 'c',
        Change::Expire(..) => 'e',
        Change::Reinstate(_) => 'r',
        Change::Revoke(_) => 'v',
        Change::Adjust(_) => 'g',
        Change::Replay(_, replayed) if replayed.reinstates => 'R',
        Change::Replay(..) => 'C',
    };
    history(store, player).await.iter().map(letter).collect()
}

pub(crate) async fn verify(store: &RedisStore) {
    for audit in store.verify(None).await.unwrap() {
        assert!(audit.holds(), "{audit:#?}");
    }
}

/// Waits until a later epoch than this one has got over its recovery.
pub(crate) async fn recovered(store: &RedisStore, epoch: u64) {
    until("the recovery is over", async || {
        (store.epoch() > epoch && store.health() == Health::Up).then_some(())
    })
    .await;
}

pub(crate) fn returned(store: &RedisStore, kind: ReplayKind) -> u64 {
    store.replay_counts().replayed[kind as usize]
}

pub(crate) fn dropped(store: &RedisStore, why: Dropped) -> u64 {
    store.replay_counts().dropped[why as usize]
}

/// Asks again and again until there is something.
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "it never came true that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
