//! The Redis store with several instances on one server, and with servers that fail. Each test has a server of its own.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap that fails here fails its test, which is what it is for"
)]

#[path = "../redis_server/mod.rs"]
mod redis_server;

mod cluster;
mod durability;
mod failures;
mod figures;
mod instances;
mod refusals;

use redis_server::{PATIENCE, Server};
use std::time::{Duration, Instant};
use trove::game::hunt::{HuntSpec, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, PlayerName, TreasureId};
use trove::game::rules::{NewFind, What};
use trove::store::redis::{Options, RedisStore};
use trove::store::{Erased, FeedEvent, Opening, RecordOutcome, Store, StoreError};

/// Options that notice soon what is to be noticed.
fn quick() -> Options {
    Options {
        partitions: 4,
        connect_wait: PATIENCE,
        response_timeout: Duration::from_secs(1),
        feed_block: Duration::from_millis(50),
        sweep_interval: Duration::from_millis(50),
        measure_interval: Duration::from_millis(50),
        ..Options::default()
    }
}

async fn connect(server: &Server) -> RedisStore {
    connect_with(server, quick()).await
}

async fn connect_with(server: &Server, options: Options) -> RedisStore {
    RedisStore::connect(&server.url(), options).await.unwrap()
}

fn hunt() -> HuntId {
    HuntId::new("h").unwrap()
}

fn spec(window_ms: u64) -> HuntSpec {
    let treasure = |id: &str, repeatable| Treasure {
        id: TreasureId::new(id).unwrap(),
        name: None,
        coins: 10,
        place: Some((52.516_272_222_222_22, 13.377_721_999_999_999)),
        repeatable,
    };
    HuntSpec {
        id: hunt(),
        name: "Hunt".into(),
        window_ms,
        opens_at: None,
        closes_at: None,
        treasures: vec![
            treasure("a", false),
            treasure("b", false),
            treasure("r", true),
        ],
    }
}

async fn open_hunt(store: &RedisStore, window_ms: u64) {
    store.put_hunt(spec(window_ms)).await.unwrap().unwrap();
    store
        .step_hunt(&hunt(), LifeStep::Open)
        .await
        .unwrap()
        .unwrap();
}

fn of(treasure: &str) -> NewFind {
    NewFind {
        what: What::Treasure(TreasureId::new(treasure).unwrap()),
        id: None,
        found_at: None,
    }
}

fn with_id(id: &str) -> NewFind {
    NewFind {
        id: Some(FindId::new(id).unwrap()),
        ..of("r")
    }
}

async fn find(
    store: &RedisStore,
    player: PlayerId,
    new: NewFind,
) -> Result<RecordOutcome, StoreError> {
    let recorded = store.record(&hunt(), vec![(player, new)]).await?;
    Ok(recorded.outcomes.into_iter().next().unwrap())
}

async fn open(store: &RedisStore, name: &str, issued_at: u64) -> Result<PlayerId, Erased> {
    let opening = Opening {
        name: PlayerName::new(name).unwrap(),
        issued_at: Some(issued_at),
        known: None,
    };
    store.open_players(vec![opening]).await.unwrap()[0]
}

async fn verify(store: &RedisStore) {
    for audit in store.verify(None).await.unwrap() {
        assert!(audit.holds(), "{audit:#?}");
    }
}

/// Asks again and again until there is something.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "it never came true that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads the feed until an event is what is looked for.
async fn told(
    feed: &mut tokio::sync::mpsc::Receiver<Vec<FeedEvent>>,
    what: &str,
    is: impl Fn(&FeedEvent) -> bool,
) -> FeedEvent {
    let look = async {
        loop {
            let events = feed.recv().await.expect("the feed goes on");
            if let Some(event) = events.into_iter().find(&is) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, look)
        .await
        .unwrap_or_else(|_| panic!("the feed never told {what}"))
}
