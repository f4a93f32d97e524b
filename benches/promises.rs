//! What each promise of `store.durability` costs a find: one after the other, and 64 at once, beside `async` in turns. Prints
//! figures, asserts none.
//!
//! ```text
//! cargo bench -p trove --bench promises
//! ```
//!
//! Starts its own servers, each with a replica and an append-only file. They need `WAITAOF` (Redis 7.2): `./test` installs such a
//! server, and `TROVE_TEST_REDIS` names the directory of another.

#![allow(clippy::unwrap_used, reason = "a measurement that fails ends there")]

#[path = "../tests/redis_server/mod.rs"]
mod redis_server;

use futures_util::future::join_all;
use redis_server::cluster::wait_until;
use redis_server::{PATIENCE, Server};
use std::path::Path;
use std::time::{Duration, Instant};
use trove::game::hunt::{HuntSpec, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, TreasureId};
use trove::game::rules::{NewFind, What};
use trove::store::Store;
use trove::store::redis::{Durability, Options, RedisStore};

const ROUNDS: u64 = 5;
/// Who finds at the same time.
const CALLERS: [u64; 2] = [1, 64];
/// Finds of each in a round.
const FINDS: u64 = 20;
/// … and where each waits for a sync that comes once a second.
const FINDS_EVERYSEC: u64 = 2;

/// A promise, the server and its replica that keep it, and how long each find of a round took, by [`CALLERS`].
struct Promise {
    name: &'static str,
    finds: u64,
    server: Server,
    _replica: Server,
    store: RedisStore,
    took_us: [Vec<f64>; 2],
}

impl Promise {
    async fn new(
        binary: &Path,
        (name, durability): (&'static str, Durability),
        appendfsync: &str,
    ) -> Self {
        let kept = ["--appendonly", "yes", "--appendfsync", appendfsync];
        let server = Server::of(binary, &kept);
        let of = format!("127.0.0.1 {}", server.port);
        let replica = Server::of(binary, &["--replicaof", &of]);
        wait_until("the replica follows", || {
            let info: String = server.run(&["INFO", "replication"]);
            info.contains("state=online")
        });
        let options = Options {
            durability,
            durability_wait: PATIENCE,
            response_timeout: Duration::from_secs(10),
            connect_wait: PATIENCE,
            ..Options::default()
        };
        let store = RedisStore::connect(&server.url(), options).await.unwrap();
        store.put_hunt(spec()).await.unwrap().unwrap();
        store
            .step_hunt(&hunt(), LifeStep::Open)
            .await
            .unwrap()
            .unwrap();
        let finds = if appendfsync == "everysec" && durability == Durability::Fsync {
            FINDS_EVERYSEC
        } else {
            FINDS
        };
        Self {
            name,
            finds,
            server,
            _replica: replica,
            store,
            took_us: Default::default(),
        }
    }

    /// Everybody finds, one find after the other. Gives the time that passed for each find of all, in microseconds.
    async fn round(&self, round: u64, callers: u64) -> f64 {
        let began = Instant::now();
        let finders = (0..callers).map(|caller| async move {
            for nth in 0..self.finds {
                let find = (PlayerId(caller), find(&format!("{callers}-{round}-{nth}")));
                let recorded = self.store.record(&hunt(), vec![find]).await.unwrap();
                assert!(recorded.outcomes.iter().all(Result::is_ok));
            }
        });
        join_all(finders).await;
        #[expect(clippy::cast_precision_loss, reason = "there are few finds")]
        let finds = (callers * self.finds) as f64;
        began.elapsed().as_secs_f64() * 1e6 / finds
    }
}

fn hunt() -> HuntId {
    HuntId::new("h").unwrap()
}

fn spec() -> HuntSpec {
    HuntSpec {
        id: hunt(),
        name: "Hunt".into(),
        window_ms: 300_000,
        opens_at: None,
        closes_at: None,
        treasures: vec![Treasure {
            id: TreasureId::new("r").unwrap(),
            name: None,
            coins: 10,
            place: None,
            repeatable: true,
        }],
    }
}

fn find(id: &str) -> NewFind {
    NewFind {
        what: What::Treasure(TreasureId::new("r").unwrap()),
        id: Some(FindId::new(id).unwrap()),
        found_at: None,
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Fences that were written to a server.
fn fences(server: &Server) -> u64 {
    let info: String = server.run(&["INFO", "commandstats"]);
    let calls = |line: &str| -> Option<u64> {
        let of = line.strip_prefix("cmdstat_wait:calls=");
        let of = of.or_else(|| line.strip_prefix("cmdstat_waitaof:calls="))?;
        of.split(',').next()?.parse().ok()
    };
    info.lines().filter_map(calls).sum()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let binary = redis_server::with_waitaof().expect("a server with WAITAOF");
    let replicated = Durability::Replicated { replicas_min: 1 };
    let mut promises = Vec::new();
    for (promise, appendfsync) in [
        (("async", Durability::Async), "everysec"),
        (("replicated", replicated), "everysec"),
        (("fsync, always", Durability::Fsync), "always"),
        (("fsync, everysec", Durability::Fsync), "everysec"),
    ] {
        promises.push(Promise::new(&binary, promise, appendfsync).await);
    }
    for round in 0..=ROUNDS {
        for promise in &mut promises {
            for (nth, callers) in CALLERS.into_iter().enumerate() {
                let took = promise.round(round, callers).await;
                // The first round makes the wallets.
                if round > 0 {
                    promise.took_us[nth].push(took);
                }
            }
        }
    }
    for (nth, callers) in CALLERS.into_iter().enumerate() {
        println!("{callers} at once, a find:");
        for promise in &promises {
            let ratios = promise.took_us[nth].iter().zip(&promises[0].took_us[nth]);
            println!(
                "  {:<16} {:>9.1} us, {:>7.2} times async",
                promise.name,
                median(promise.took_us[nth].clone()),
                median(ratios.map(|(took, of_async)| took / of_async).collect()),
            );
        }
    }
    for promise in &promises {
        let finds = (ROUNDS + 1) * promise.finds * CALLERS.iter().sum::<u64>();
        println!(
            "{:<16} {finds} finds, {} fences",
            promise.name,
            fences(&promise.server)
        );
        for audit in promise.store.verify(None).await.unwrap() {
            assert!(audit.holds(), "{audit:#?}");
        }
    }
}
