//! The store on a Redis Cluster under the conformance suite: three primaries for all facts, a prefix of their keys for each,
//! and a clock that the scripts read from a key in their slot.

#![allow(
    clippy::disallowed_methods,
    reason = "only what the program itself makes wait is counted"
)]

use crate::redis_server::cluster::Cluster;
use crate::store_suite::world::{Fixture, START};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use trove::game::rules::Limits;
use trove::store::Store;
use trove::store::clock::ManualTime;
use trove::store::redis::{Options, RedisStore, Time};
use trove_streams::Partitions;
use trove_streams::redis::{self, Commands};
use trove_streams::slot::slot;

const PARTITIONS: u16 = 16;

/// A store on a cluster.
pub(crate) struct OnCluster {
    cluster: Arc<Cluster>,
    /// One a primary.
    connections: Mutex<Vec<redis::Connection>>,
    /// The keys with the time, each with the primary that has it.
    clocks: Vec<(usize, String)>,
    prefix: String,
    time: Arc<ManualTime>,
    limits: Limits,
    store: Option<RedisStore>,
}

/// One cluster for as long as any fact needs one.
fn cluster() -> Arc<Cluster> {
    static CLUSTER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = CLUSTER.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        // No fact is about nodes that die: a loaded machine must not make it so.
        let cluster = Arc::new(Cluster::start(false, 60_000));
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

impl OnCluster {
    /// Sets or moves the time in every slot that the store uses.
    fn tell_time(&self, command: &str, ms: u64) {
        let mut connections = self.connections.lock().unwrap();
        for (primary, key) in &self.clocks {
            let mut cmd = redis::cmd(command);
            let () = cmd
                .arg(key)
                .arg(ms)
                .query(&mut connections[*primary])
                .unwrap();
        }
    }

    fn options(&self) -> Options {
        Options {
            partitions: PARTITIONS,
            prefix: self.prefix.clone(),
            limits: self.limits,
            // Only a machine that is loaded beyond measure answers later; no fact is about time-outs.
            response_timeout: Duration::from_secs(20),
            connect_wait: Duration::from_secs(60),
            feed_block: Duration::from_millis(50),
            sweep_interval: Duration::from_millis(100),
            forget_interval: Duration::from_millis(100),
            // That the primaries of an empty cluster are met one after the other is no failover.
            recovery: Duration::ZERO,
            time: Time::ManualBeside {
                name: "now".into(),
                time: self.time.clone(),
            },
            ..Options::default()
        }
    }

    async fn start(&mut self) {
        self.store = Some(
            RedisStore::connect(&self.cluster.url(), self.options())
                .await
                .unwrap(),
        );
    }

    fn keys(&self, connection: &mut redis::Connection) -> Vec<String> {
        connection
            .scan_match(format!("{}*", self.prefix))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }
}

impl Fixture for OnCluster {
    const HAS_ONE_FEED: bool = false;

    async fn fresh(limits: Limits) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = tokio::task::spawn_blocking(cluster).await.unwrap();
        let connect = |node: &crate::redis_server::Server| node.connection();
        let prefix = format!("fact-{}:", COUNT.fetch_add(1, Ordering::Relaxed));
        let partitions = Partitions::new(PARTITIONS).unwrap();
        let tags = partitions.iter().map(|partition| partitions.tag(partition));
        let clocks = tags.chain(["store", "hunts"]).map(|tag| {
            let key = format!("{prefix}{{{tag}}}now");
            (cluster.primary_of(slot(key.as_bytes())), key)
        });
        let mut fixture = Self {
            clocks: clocks.collect(),
            connections: Mutex::new(cluster.nodes.iter().map(connect).collect()),
            cluster,
            prefix,
            time: Arc::new(ManualTime::new(START)),
            limits,
            store: None,
        };
        fixture.tell_time("SET", START);
        fixture.start().await;
        fixture
    }

    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn advance(&self, ms: u64) {
        // The store's reckoning first: the servers may never be ahead of it.
        self.time.advance(ms);
        self.tell_time("INCRBY", ms);
    }

    fn step_clock(&self, ms: u64) -> bool {
        let to = self.store().now() + ms;
        self.time.set_wall(to);
        self.tell_time("SET", to);
        true
    }

    async fn restart(&mut self, away_ms: u64) -> bool {
        self.store = None;
        self.advance(away_ms);
        self.start().await;
        true
    }

    async fn holds_text(&mut self, text: &str) -> bool {
        let mut connections = self.connections.lock().unwrap();
        connections.iter_mut().any(|connection| {
            let keys = self.keys(connection);
            keys.iter().any(|key| {
                let kind: String = redis::cmd("TYPE").arg(key).query(connection).unwrap();
                let mut read = redis::Cmd::new();
                match kind.as_str() {
                    "string" => read.arg("GET").arg(key),
                    "hash" => read.arg("HGETALL").arg(key),
                    "set" => read.arg("SMEMBERS").arg(key),
                    "zset" => read.arg("ZRANGE").arg(key).arg(0).arg(-1),
                    "stream" => read.arg("XRANGE").arg(key).arg("-").arg("+"),
                    other => panic!("what does a {other} hold?"),
                };
                let value: redis::Value = read.query(connection).unwrap();
                key.contains(text) || holds(&value, text.as_bytes())
            })
        })
    }

    async fn rows(&mut self) -> u64 {
        let mut connections = self.connections.lock().unwrap();
        let mut rows = 0;
        for connection in connections.iter_mut() {
            // What is due goes when the sweeper passes, in its own time.
            for key in self.keys(connection) {
                let count = match &key[key.find('}').map_or(0, |end| end + 1)..] {
                    "feed" => "XLEN",
                    wallet if wallet.starts_with("w:") => "HLEN",
                    _ => continue,
                };
                rows += redis::cmd(count)
                    .arg(&key)
                    .query::<u64>(connection)
                    .unwrap();
            }
        }
        rows
    }
}

fn holds(value: &redis::Value, text: &[u8]) -> bool {
    match value {
        redis::Value::BulkString(bytes) => bytes.windows(text.len()).any(|part| part == text),
        redis::Value::Array(values) => values.iter().any(|value| holds(value, text)),
        _ => false,
    }
}
