//! The Redis store under the conformance suite: one server for all facts, a prefix of its keys for each, and a clock that
//! the scripts read from a key.

use crate::redis_server::Server;
use crate::store_suite::world::{Fixture, START};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use trove::game::rules::Limits;
use trove::store::Store;
use trove::store::clock::ManualTime;
use trove::store::redis::{Options, RedisStore, Time};
use trove_streams::redis::{self, Commands};

/// A Redis store of `PARTITIONS` partitions.
pub(crate) struct Redis<const PARTITIONS: u16> {
    server: Arc<Server>,
    connection: Mutex<redis::Connection>,
    prefix: String,
    time: Arc<ManualTime>,
    limits: Limits,
    store: Option<RedisStore>,
}

/// One server for as long as any fact needs one.
fn server() -> Arc<Server> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Server::start());
        *shared = Arc::downgrade(&server);
        server
    })
}

impl<const PARTITIONS: u16> Redis<PARTITIONS> {
    fn now_key(&self) -> String {
        format!("{}now", self.prefix)
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
            time: Time::Manual {
                key: self.now_key(),
                time: self.time.clone(),
            },
            ..Options::default()
        }
    }

    async fn start(&mut self) {
        self.store = Some(
            RedisStore::connect(&self.server.url(), self.options())
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

impl<const PARTITIONS: u16> Fixture for Redis<PARTITIONS> {
    async fn fresh(limits: Limits) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = server();
        let connection = Mutex::new(server.connection());
        let mut fixture = Self {
            server,
            connection,
            prefix: format!("fact-{}:", COUNT.fetch_add(1, Ordering::Relaxed)),
            time: Arc::new(ManualTime::new(START)),
            limits,
            store: None,
        };
        let key = fixture.now_key();
        let () = fixture.connection.lock().unwrap().set(key, START).unwrap();
        fixture.start().await;
        fixture
    }

    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn advance(&self, ms: u64) {
        // The store's reckoning first: the server may never be ahead of it.
        self.time.advance(ms);
        let () = self
            .connection
            .lock()
            .unwrap()
            .incr(self.now_key(), ms)
            .unwrap();
    }

    fn step_clock(&self, ms: u64) -> bool {
        let to = self.store().now() + ms;
        self.time.set_wall(to);
        let () = self
            .connection
            .lock()
            .unwrap()
            .set(self.now_key(), to)
            .unwrap();
        true
    }

    async fn restart(&mut self, away_ms: u64) -> bool {
        self.store = None;
        self.advance(away_ms);
        self.start().await;
        true
    }

    async fn holds_text(&mut self, text: &str) -> bool {
        let mut connection = self.connection.lock().unwrap();
        let keys = self.keys(&mut connection);
        keys.iter().any(|key| {
            let kind: String = redis::cmd("TYPE").arg(key).query(&mut connection).unwrap();
            let mut read = redis::Cmd::new();
            match kind.as_str() {
                "string" => read.arg("GET").arg(key),
                "hash" => read.arg("HGETALL").arg(key),
                "set" => read.arg("SMEMBERS").arg(key),
                "zset" => read.arg("ZRANGE").arg(key).arg(0).arg(-1),
                "stream" => read.arg("XRANGE").arg(key).arg("-").arg("+"),
                other => panic!("what does a {other} hold?"),
            };
            let value: redis::Value = read.query(&mut connection).unwrap();
            key.contains(text) || holds(&value, text.as_bytes())
        })
    }

    async fn rows(&mut self) -> u64 {
        let mut connection = self.connection.lock().unwrap();
        let keys = self.keys(&mut connection);
        let mut rows = 0;
        for key in keys {
            // What is due goes when the sweeper passes, in its own time.
            let count = match &key[key.find('}').map_or(0, |end| end + 1)..] {
                "feed" => "XLEN",
                wallet if wallet.starts_with("w:") => "HLEN",
                _ => continue,
            };
            rows += redis::cmd(count)
                .arg(&key)
                .query::<u64>(&mut connection)
                .unwrap();
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
