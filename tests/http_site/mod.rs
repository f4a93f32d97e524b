//! A server as the outside sees it: the built binary on free ports with a store of its own, and a client.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // Each test binary uses its part.

mod client;
mod tokens;

pub use client::{Answer, Ask, Client};
#[allow(unused_imports)] // As above.
pub use tokens::{ADMIN_KEY, Forged, TOKEN_KEY, forge, seconds_now, token};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Longer than anything takes that is not stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The built program in an environment without settings of the tests' own.
pub fn trove(env: &BTreeMap<String, String>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trove"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TROVE_") {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A server that runs.
struct Running {
    child: Child,
    public: SocketAddr,
    ops: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

/// A server and its store's directory. Both go away with it.
pub struct Site {
    root: tempfile::TempDir,
    store: PathBuf,
    /// The store's address where it is no directory of the site's.
    url: Option<String>,
    pub env: BTreeMap<String, String>,
    running: Option<Running>,
}

impl Site {
    /// A server with a store of its own.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// The same with settings: `("poll.jitter", "0")`.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        let mut site = Self::stopped(settings);
        site.start_again();
        site
    }

    /// One that has not started.
    pub fn stopped(settings: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut env = BTreeMap::from([
            ("TROVE_TOKEN_KEY".to_owned(), TOKEN_KEY.to_owned()),
            ("TROVE_ADMIN_KEY".to_owned(), ADMIN_KEY.to_owned()),
            ("TROVE_LOG__FORMAT".to_owned(), "json".to_owned()),
            ("TROVE_SERVER__INSTANCE_ID".to_owned(), "site-1".to_owned()),
        ]);
        for (name, value) in settings {
            let name = format!("TROVE_{}", name.replace('.', "__").to_uppercase());
            env.insert(name, (*value).to_owned());
        }
        Self {
            store: root.path().join("store"),
            root,
            url: None,
            env,
            running: None,
        }
    }

    /// Keeps the store in another directory.
    pub fn store_in(mut self, dir: &Path) -> Self {
        self.store = dir.to_owned();
        self
    }

    /// Keeps the store elsewhere, by its address.
    pub fn store_at(mut self, url: &str) -> Self {
        self.url = Some(url.to_owned());
        self
    }

    /// The store's directory.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// A directory of the test's own.
    pub fn dir(&self) -> &Path {
        self.root.path()
    }

    pub fn store_url(&self) -> String {
        let embedded = || format!("embedded:{}", self.store.display());
        self.url.clone().unwrap_or_else(embedded)
    }

    /// Starts the server on the store as it is.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.start_with_ops_on("127.0.0.1:0");
    }

    /// The same, with the operations listener on an address of the test's choice.
    #[track_caller]
    pub fn start_with_ops_on(&mut self, ops: &str) {
        assert!(self.running.is_none(), "it runs");
        let url = self.store_url();
        let listen = ["--listen", "127.0.0.1:0", "--ops-listen", ops];
        let args = [&["serve", "--store", &url], &listen[..]].concat();
        let mut child = trove(&self.env, &args).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (ready, addresses) = mpsc::channel();
        let lines = log.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                lines.lock().unwrap().push(line);
                if event["fields"]["message"] == "ready" {
                    let _ = ready.send(["public", "ops"].map(|name| {
                        let address = event["fields"][name].as_str().unwrap();
                        address.parse::<SocketAddr>().unwrap()
                    }));
                }
            }
        });
        let Ok([public, ops]) = addresses.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("it did not start: {:#?}", log.lock().unwrap());
        };
        self.running = Some(Running {
            child,
            public,
            ops,
            log,
        });
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub fn public(&self) -> SocketAddr {
        self.running().public
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.public())
    }

    pub fn client(&self) -> Client {
        Client::new(self.public())
    }

    pub fn ops(&self) -> Client {
        Client::new(self.running().ops)
    }

    /// What the server has logged since its start.
    pub fn log(&self) -> Vec<String> {
        self.running().log.lock().unwrap().clone()
    }

    /// Waits for a line of the log.
    #[track_caller]
    pub fn logged(&self, part: &str) {
        wait(&format!("{part:?} in the log"), || {
            self.log().iter().any(|line| line.contains(part))
        });
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.running().child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Kills it like a power cut of the process: kill -9.
    pub fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.child.kill().unwrap();
            running.child.wait().unwrap();
        }
    }

    /// Lets it drain and stop.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let mut running = self.running.take().expect("it ran");
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                let _ = running.child.kill();
                panic!("it does not stop: {:#?}", running.log.lock().unwrap());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a command of the program on the site's store.
    pub fn run(&self, args: &[&str]) -> Output {
        let url = self.store_url();
        let args = [args, &["--store", &url]].concat();
        trove(&self.env, &args).output().unwrap()
    }

    /// Holds the store to adding up, beside the server or after it.
    #[track_caller]
    pub fn verifies(&self) -> String {
        let verify = self.run(&["verify"]);
        let said = String::from_utf8_lossy(&verify.stdout).into_owned();
        let err = String::from_utf8_lossy(&verify.stderr);
        assert!(verify.status.success(), "{said}{err}");
        said
    }

    /// The rows of an export, taken by the command.
    #[track_caller]
    pub fn export(&self, hunt: &str) -> Vec<Value> {
        let export = self.run(&["export", hunt]);
        assert!(export.status.success(), "{export:?}");
        lines(&export.stdout)
    }

    /// Asks as an operator.
    #[track_caller]
    pub fn manage(&self, ask: Ask) -> Answer {
        self.client().send(ask.bearer(ADMIN_KEY))
    }

    /// Puts a document and opens the hunt.
    #[track_caller]
    pub fn open_hunt(&self, document: &Value) {
        let id = document["id"].as_str().unwrap();
        self.manage(Ask::new("PUT", &format!("/hunts/{id}")).body(document.to_string()))
            .is(201);
        self.manage(Ask::new("POST", &format!("/hunts/{id}/open")))
            .is(200);
    }

    /// A small hunt `h` that is open: once-only `a` (5) and `b` (7), repeatable `r` (3).
    #[track_caller]
    pub fn open_h(&self) {
        self.open_hunt(&hunt_h());
    }

    /// A player with a connection of its own.
    pub fn player(&self, name: &str) -> Player {
        Player {
            client: self.client(),
            token: token(name),
            hunt: "h".into(),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn hunt_h() -> Value {
    json!({"id": "h", "name": "H", "treasures": [
        {"id": "a", "name": "A", "coins": 5, "lat": 1.5, "lon": 2},
        {"id": "b", "coins": 7},
        {"id": "r", "coins": 3, "repeatable": true}]})
}

/// A player's phone.
pub struct Player {
    pub client: Client,
    pub token: String,
    pub hunt: String,
}

impl Player {
    #[track_caller]
    pub fn send(&mut self, ask: Ask) -> Answer {
        let ask = ask.bearer(&self.token);
        self.client.send(ask)
    }

    pub fn poll_ask(&self) -> Ask {
        Ask::get(&format!("/treasure/{}", self.hunt))
    }

    /// A poll that names nothing.
    #[track_caller]
    pub fn poll(&mut self) -> Value {
        let ask = self.poll_ask();
        self.send(ask).is(200)
    }

    /// A poll that names a cursor.
    #[track_caller]
    pub fn since(&mut self, cursor: &str) -> Value {
        let ask = Ask::get(&format!("/treasure/{}?since={cursor}", self.hunt));
        self.send(ask).is(200)
    }

    pub fn find(&mut self, body: &Value) -> Answer {
        let ask = Ask::post(&format!("/treasure/{}/finds", self.hunt), body.to_string());
        self.send(ask)
    }

    /// Finds a repeatable treasure.
    #[track_caller]
    pub fn finds(&mut self, treasure: &str, id: &str) -> Value {
        self.find(&json!({"treasure": treasure, "id": id})).is(201)
    }
}

/// One JSON value a line.
#[track_caller]
pub fn lines(bytes: &[u8]) -> Vec<Value> {
    bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// Waits until something holds.
#[track_caller]
pub fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The whole number of a series in Prometheus's text: its name with its labels, as they stand there.
#[track_caller]
pub fn series(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| {
        let (known, value) = line.rsplit_once(' ')?;
        (known == name).then(|| value.parse().unwrap())
    });
    line.unwrap_or_else(|| panic!("no series {name} in {text}"))
}
