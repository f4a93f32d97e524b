//! Connections to servers of the tests' own, sentinels, and waiting for conditions. The servers are those of Trove's tests.

use std::fs;
use std::future::Future;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trove_streams::{Config, Connection, DownReason, State, StoreUrl, Up};

#[path = "../../../tests/redis_server/mod.rs"]
mod redis_server;

pub(crate) use redis_server::{PATIENCE, Server};

pub(crate) fn free_port() -> u16 {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has a free port");
    listener
        .local_addr()
        .expect("a bound listener has an address")
        .port()
}

pub(crate) fn temp_dir() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("trove-streams-{}-{number}", std::process::id()));
    fs::create_dir_all(&dir).expect("the temporary directory can be written");
    dir
}

/// A sentinel that watches a master, alone; ended when dropped.
pub(crate) struct Watcher {
    child: Child,
    pub(crate) port: u16,
    dir: PathBuf,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Starts a sentinel that watches the master at `port` under `name`, alone.
pub(crate) fn sentinel(name: &str, port: u16) -> Watcher {
    let dir = temp_dir();
    let own = free_port();
    let file = dir.join("sentinel.conf");
    let settings = format!(
        "port {own}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {port} 1\nsentinel down-after-milliseconds {name} 500\n\
         sentinel failover-timeout {name} 5000\n"
    );
    fs::write(&file, settings).expect("the temporary directory can be written");
    let binary = match std::env::var_os("TROVE_TEST_REDIS") {
        Some(dir) => Path::new(&dir).join("redis-server"),
        None => PathBuf::from("redis-server"),
    };
    let child = Command::new(binary)
        .arg(&file)
        .arg("--sentinel")
        .arg("--dir")
        .arg(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server can be started");
    let mut sentinel = Watcher {
        child,
        port: own,
        dir,
    };
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, own)).is_err() {
        let runs = matches!(sentinel.child.try_wait(), Ok(None));
        assert!(
            runs && Instant::now() < deadline,
            "the sentinel did not start"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    sentinel
}

/// Settings that notice faults fast.
pub(crate) fn quick() -> Config {
    Config {
        connect_timeout: Duration::from_millis(800),
        response_timeout: Duration::from_millis(400),
        probe_interval: Duration::from_millis(100),
        backoff_max: Duration::from_millis(100),
        ..Config::commands()
    }
}

/// Like [`quick`], for reads that block for up to 50 ms.
pub(crate) fn quick_blocking() -> Config {
    Config {
        block_max: Duration::from_millis(50),
        timeouts_max: 1,
        ..quick()
    }
}

pub(crate) fn connect_with(server: &Server, config: Config) -> Connection {
    connect_to(server.port, config)
}

pub(crate) fn connect_to(port: u16, config: Config) -> Connection {
    let url: StoreUrl = format!("redis://127.0.0.1:{port}")
        .parse()
        .expect("this is a URL");
    Connection::to(&url, config)
        .expect("a redis:// URL needs nothing")
        .start()
}

/// A connection that is up.
pub(crate) async fn connected(server: &Server) -> Connection {
    let connection = connect_with(server, quick());
    up(&connection).await;
    connection
}

pub(crate) async fn up(connection: &Connection) -> Up {
    connection
        .wait_up(PATIENCE)
        .await
        .expect("the connection comes up")
}

/// Waits for a link with a number above `link`.
pub(crate) async fn next_up(connection: &Connection, link: u64) -> Up {
    until("a new link", async || {
        connection.state().up().filter(|up| up.link > link).cloned()
    })
    .await
}

/// Waits until the connection is down for a reason that `is` accepts.
pub(crate) async fn down_because(connection: &Connection, is: impl Fn(&DownReason) -> bool) {
    let mut states = connection.states();
    let waited = states.wait_for(|state| matches!(state, State::Down { reason, .. } if is(reason)));
    if tokio::time::timeout(PATIENCE, waited).await.is_err() {
        panic!("not down for the expected reason: {:?}", connection.state());
    }
}

/// Asks again and again until there is something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what} in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a command given in words.
pub(crate) async fn run<T: redis::FromRedisValue>(connection: &Connection, words: &[&str]) -> T {
    let mut cmd = redis::Cmd::new();
    for word in words {
        cmd.arg(word);
    }
    connection
        .query_as(&cmd)
        .await
        .unwrap_or_else(|error| panic!("{words:?}: {error:?}"))
}

/// A seeded generator (splitmix64) that prints its seed; `TROVE_TEST_SEED` sets it.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded() -> Self {
        let seed = match std::env::var("TROVE_TEST_SEED") {
            Ok(seed) => seed.parse().expect("TROVE_TEST_SEED is a number"),
            Err(_) => u64::from(std::process::id()) << 20 ^ u64::from(free_port()),
        };
        println!("TROVE_TEST_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
