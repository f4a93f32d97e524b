//! Servers of the tests' own, and waiting for conditions.

use std::fs;
use std::future::Future;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trove_streams::{Config, Connection, DownReason, State, StoreUrl, Up};

/// How long a test waits for what must come. Only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A real server with a directory of its own. Killed, and its directory removed, when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    dir: PathBuf,
    args: Vec<String>,
}

fn binary(name: &str) -> PathBuf {
    match std::env::var_os("TROVE_TEST_REDIS") {
        Some(dir) => Path::new(&dir).join(name),
        None => PathBuf::from(name),
    }
}

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

impl Server {
    /// A server that keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further arguments, such as `["--requirepass", "x"]`.
    pub(crate) fn with(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // The port was free a moment ago; if somebody else was faster, another one is tried.
        for _ in 0..5 {
            let dir = temp_dir();
            let port = free_port();
            let mut child = spawn(port, &dir, &args);
            if came_up(&mut child, port) {
                return Self {
                    child,
                    port,
                    dir,
                    args,
                };
            }
            let _ = fs::remove_dir_all(&dir);
        }
        panic!("redis-server did not start: is it installed?");
    }

    pub(crate) fn url(&self) -> StoreUrl {
        format!("redis://127.0.0.1:{}", self.port)
            .parse()
            .expect("this is a URL")
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port; it holds what its directory holds, which is nothing unless it was told to save.
    pub(crate) fn start_again(&mut self) {
        self.kill();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.child = spawn(self.port, &self.dir, &self.args);
            if came_up(&mut self.child, self.port) {
                return;
            }
        }
        panic!("redis-server did not start again on port {}", self.port);
    }

    /// Stops the process without ending it: the network answers, it does not.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.child.id().to_string())
            .status();
        assert!(status.expect("kill can be run").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn spawn(port: u16, dir: &Path, args: &[String]) -> Child {
    Command::new(binary("redis-server"))
        .args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ])
        .args(["--port", &port.to_string()])
        .arg("--dir")
        .arg(dir)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server can be started")
}

/// Starts a sentinel that watches the master at `port` under `name`, alone.
pub(crate) fn sentinel(name: &str, port: u16) -> Server {
    let dir = temp_dir();
    let own = free_port();
    let file = dir.join("sentinel.conf");
    let settings = format!(
        "port {own}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {port} 1\nsentinel down-after-milliseconds {name} 500\n\
         sentinel failover-timeout {name} 5000\n"
    );
    fs::write(&file, settings).expect("the temporary directory can be written");
    let mut child = Command::new(binary("redis-server"))
        .arg(&file)
        .arg("--sentinel")
        .arg("--dir")
        .arg(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server can be started");
    assert!(came_up(&mut child, own), "the sentinel did not start");
    Server {
        child,
        port: own,
        dir,
        args: Vec::new(),
    }
}

/// Whether the process listens; false once it has ended.
fn came_up(child: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            // Another process might listen there, and ours have ended for that reason.
            std::thread::sleep(Duration::from_millis(5));
            return matches!(child.try_wait(), Ok(None));
        }
        if !matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
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
    Connection::to(&server.url(), config)
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
