//! A Redis server of a test's own.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trove_streams::redis;

/// How long a test waits for what must come. Only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a directory of its own; ended when dropped. `TROVE_TEST_REDIS` names the directory of another binary.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    dir: TempDir,
    args: Vec<String>,
}

fn binary() -> PathBuf {
    match std::env::var_os("TROVE_TEST_REDIS") {
        Some(dir) => Path::new(&dir).join("redis-server"),
        None => PathBuf::from("redis-server"),
    }
}

fn free_port() -> u16 {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has a free port");
    listener
        .local_addr()
        .expect("a bound listener has an address")
        .port()
}

fn spawn(port: u16, dir: &Path, args: &[String]) -> Child {
    Command::new(binary())
        .args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
            &port.to_string(),
        ])
        .arg("--dir")
        .arg(dir)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server can be started")
}

/// Whether the process listens; false once it has ended.
fn came_up(child: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            // Another process might listen there, and ours have ended for that reason.
            std::thread::sleep(Duration::from_millis(5));
            return matches!(child.try_wait(), Ok(None));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[allow(
    dead_code,
    reason = "not every test that has a server needs all of this"
)]
impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further arguments.
    pub(crate) fn with(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // The port was free a moment ago; if somebody else was faster, another one is tried.
        for _ in 0..5 {
            let dir = tempfile::tempdir().expect("the temporary directory can be written");
            let port = free_port();
            let mut child = spawn(port, dir.path(), &args);
            if came_up(&mut child, port) {
                return Self {
                    child,
                    port,
                    dir,
                    args,
                };
            }
        }
        panic!("redis-server did not start: is it installed?");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection of the test's own.
    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .expect("this is a URL")
            .get_connection()
            .expect("the server answers")
    }

    /// Runs a command given in words.
    pub(crate) fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut cmd = redis::Cmd::new();
        for word in words {
            cmd.arg(word);
        }
        cmd.query(&mut self.connection())
            .unwrap_or_else(|error| panic!("{words:?}: {error:?}"))
    }

    /// The same where there may be no answer.
    pub(crate) fn try_run<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        ask(self.port, words)
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port, with what its directory holds: nothing unless it was told to save.
    pub(crate) fn start_again(&mut self) {
        self.kill();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.child = spawn(self.port, self.dir.path(), &self.args);
            if came_up(&mut self.child, self.port) {
                return;
            }
        }
        panic!("redis-server did not start again on port {}", self.port);
    }

    /// Another server with what this one saved last.
    pub(crate) fn copy_of_saved(&self) -> Self {
        let mut other = Self::start();
        other.take_files_of(self);
        other
    }

    /// Starts again with what another server saved last, which is ended.
    pub(crate) fn take_saved_of(&mut self, other: &mut Self) {
        other.kill();
        self.take_files_of(other);
    }

    fn take_files_of(&mut self, other: &Self) {
        self.kill();
        std::fs::copy(
            other.dir.path().join("dump.rdb"),
            self.dir.path().join("dump.rdb"),
        )
        .expect("the other has saved");
        self.start_again();
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
    }
}

/// Asks a server that may not answer.
fn ask<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> Option<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).ok()?;
    let within = Duration::from_millis(500);
    let mut connection = client.get_connection_with_timeout(within).ok()?;
    connection.set_read_timeout(Some(within)).ok()?;
    let mut cmd = redis::Cmd::new();
    for word in words {
        cmd.arg(word);
    }
    cmd.query(&mut connection).ok()
}

/// A sentinel of a test's own; ended when dropped.
pub(crate) struct Sentinel {
    child: Child,
    pub(crate) port: u16,
    _dir: TempDir,
}

#[allow(dead_code, reason = "not every test that has a server needs sentinels")]
impl Sentinel {
    /// Watches the master at `port` under `name`; so many must agree that it is down.
    pub(crate) fn start(name: &str, port: u16, quorum: u32) -> Self {
        for _ in 0..5 {
            let dir = tempfile::tempdir().expect("the temporary directory can be written");
            let own = free_port();
            let file = dir.path().join("sentinel.conf");
            let settings = format!(
                "port {own}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {port} {quorum}\n\
                 sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 3000\n\
                 sentinel parallel-syncs {name} 2\n"
            );
            std::fs::write(&file, settings).expect("the temporary directory can be written");
            let mut child = Command::new(binary())
                .arg(&file)
                .arg("--sentinel")
                .arg("--dir")
                .arg(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("redis-server can be started");
            if came_up(&mut child, own) {
                return Self {
                    child,
                    port: own,
                    _dir: dir,
                };
            }
            let _ = (child.kill(), child.wait());
        }
        panic!("the sentinel did not start");
    }

    /// Asks the sentinel, which may not answer.
    pub(crate) fn try_run<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        ask(self.port, words)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
