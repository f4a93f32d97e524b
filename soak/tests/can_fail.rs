//! That the soak can fail: a build in which a credit is applied twice, one is lost, something leaks, or an answer goes to the
//! wrong player, and a generator that gets no processor, are all caught by the verdict. See [`site::liar`] for how a real
//! `trove` is broken from outside; what the harness runs is otherwise what it always runs.
#![allow(clippy::unwrap_used)]

mod site;

use site::liar::{Message, Mischief, broken_trove};
use soak::case::Case;
use soak::run::Options;
use soak::verdict::{Outcome, Verdict};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SYSTEM: &str = "[system]\nshim = false\n";

fn options() -> Options {
    Options {
        command: vec!["soak".into(), "run".into()],
        show: Box::new(|_, _| {}),
    }
}

/// Runs a case on a broken build.
fn run(mut case: Case, dir: &Path, mischief: impl Mischief) -> Verdict {
    case.system.trove = broken_trove(dir, mischief);
    let verdict = soak::run::run(case, &dir.join("run"), options()).unwrap();
    assert_ne!(verdict.outcome, Outcome::Pass, "{verdict:#?}");
    verdict
}

fn found(verdict: &Verdict, kinds: &[&str]) {
    assert_eq!(verdict.outcome, Outcome::Fail, "{verdict:#?}");
    for kind in kinds {
        assert!(
            verdict.findings.contains_key(*kind),
            "no {kind}: {verdict:#?}"
        );
    }
}

struct Honest;
impl Mischief for Honest {}

#[test]
fn an_honest_build_behind_the_same_proxy_passes() {
    let dir = tempfile::tempdir().unwrap();
    let mut case = site::case("honest", "6s", SYSTEM);
    case.system.trove = broken_trove(dir.path(), Honest);
    let verdict = soak::run::run(case, &dir.path().join("run"), options()).unwrap();
    assert_eq!(verdict.outcome, Outcome::Pass, "{verdict:#?}");
}

/// From one credit on a player's balance has the coins twice, in this answer and all later ones.
#[derive(Default)]
struct AppliesACreditTwice {
    extra: Mutex<Option<(String, u64)>>,
}

impl Mischief for AppliesACreditTwice {
    fn answer(&self, request: &Message, answer: &mut Message) {
        if !request.is_poll() || !answer.first.contains(" 200 ") {
            return;
        }
        let mut told = answer.json();
        let mut extra = self.extra.lock().unwrap();
        let coins = told["finds"][0]["coins"].as_u64();
        let player = told["player"].as_str().unwrap_or_default().to_owned();
        if let (None, Some(coins)) = (&*extra, coins) {
            *extra = Some((player.clone(), coins));
        }
        if let Some((_, coins)) = extra.as_ref().filter(|(whose, _)| *whose == player) {
            told["balance"] = (told["balance"].as_u64().unwrap() + coins).into();
            answer.body = told.to_string().into_bytes();
        }
    }
}

#[test]
fn a_credit_applied_twice_is_caught_by_what_users_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let case = site::case("twice", "6s", SYSTEM);
    let verdict = run(case, dir.path(), AppliesACreditTwice::default());
    found(&verdict, &["balance"]);
}

/// Coins are written to a wallet a second time behind the product's back, as a retry without an idempotency key does.
struct WritesACreditTwice {
    program: PathBuf,
    state: PathBuf,
    server: Mutex<Option<SocketAddr>>,
    done: AtomicBool,
}

impl Mischief for WritesACreditTwice {
    fn begins(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = Some(server);
    }
    fn answer(&self, request: &Message, answer: &mut Message) {
        let told = answer.json();
        let Some(coins) = told["finds"][0]["coins"]
            .as_u64()
            .filter(|_| request.is_poll())
        else {
            return;
        };
        if self.done.swap(true, Ordering::SeqCst) {
            return;
        }
        let state = std::fs::read(&self.state).unwrap();
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        let server = format!("http://{}", self.server.lock().unwrap().unwrap());
        let of = |name: &str| told[name].as_str().unwrap().to_owned();
        let status = std::process::Command::new(&self.program)
            .args(["adjust", &of("hunt"), &of("player"), &coins.to_string()])
            .args(["--reason", "again", "--key", "again", "--server", &server])
            .env("TROVE_ADMIN_KEY", state["admin_key"].as_str().unwrap())
            .stdout(std::process::Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }
}

#[test]
fn a_credit_written_twice_is_caught_by_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let mischief = WritesACreditTwice {
        program: site::trove(),
        state: dir.path().join("run/system/state.json"),
        server: Mutex::default(),
        done: AtomicBool::new(false),
    };
    let verdict = run(site::case("ledger", "6s", SYSTEM), dir.path(), mischief);
    found(&verdict, &["ledger"]);
}

/// One find is acknowledged and never recorded.
#[derive(Default)]
struct LosesAFind {
    done: AtomicBool,
}

impl Mischief for LosesAFind {
    fn request(&self, request: &mut Message) -> Option<Message> {
        let asked = request.json();
        let id = asked["id"].as_str().or(request.field("idempotency-key"))?;
        let treasure = asked["treasure"].as_str()?;
        let coins: u64 = treasure.strip_prefix("again-")?.parse().ok()?;
        if !request.is_find() || self.done.swap(true, Ordering::SeqCst) {
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = u64::try_from(now.as_millis()).unwrap();
        let body = serde_json::json!({
            "find": id, "treasure": treasure, "coins": coins, "found_at": now,
            "expires_at": now + 5000, "duplicate": false,
        });
        Some(Message {
            first: "HTTP/1.1 201 Created".into(),
            fields: vec![("content-type".into(), "application/json".into())],
            body: body.to_string().into_bytes(),
        })
    }
}

#[test]
fn a_find_that_was_acknowledged_and_lost_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let verdict = run(
        site::case("lost", "6s", SYSTEM),
        dir.path(),
        LosesAFind::default(),
    );
    found(&verdict, &["find_lost"]);
}

/// Now and then a poll is answered as if another player had asked.
#[derive(Default)]
struct MixesPlayersUp {
    last: Mutex<Option<String>>,
    polls: Mutex<u32>,
}

impl Mischief for MixesPlayersUp {
    fn request(&self, request: &mut Message) -> Option<Message> {
        if !request.is_poll() {
            return None;
        }
        let own = request.field("authorization")?.to_owned();
        let mut polls = self.polls.lock().unwrap();
        *polls += 1;
        let other = self.last.lock().unwrap().replace(own.clone());
        if let Some(other) = other.filter(|other| polls.is_multiple_of(100) && *other != own) {
            request.set("authorization", &other);
        }
        None
    }
}

#[test]
fn an_answer_to_the_wrong_player_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let verdict = run(
        site::case("mixed", "6s", SYSTEM),
        dir.path(),
        MixesPlayersUp::default(),
    );
    found(&verdict, &["wrong_player"]);
}

/// Connections that nobody closes.
struct Leaks;

impl Mischief for Leaks {
    fn begins(&self, server: SocketAddr) {
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            while let Ok(connection) = TcpStream::connect(server) {
                kept.push(connection);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }
}

#[test]
fn a_leak_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let mut case = site::case("leak", "12s", SYSTEM);
    case.interval = Duration::from_secs(1);
    case.bounds.leak_after = Duration::from_secs(6);
    case.bounds.leak_growth = 0.5;
    // A short interval's counts may be read too late on a busy machine; that is not this test's question.
    case.bounds.invalid_share_max = 1.0;
    let verdict = run(case, dir.path(), Leaks);
    // The proxy's ends of those connections are in this process, the harness's.
    for resource in ["connections", "fds"] {
        let mut leaks = verdict.leaks.iter().filter(|leak| leak.leaks);
        let found = leaks.any(|leak| leak.process == "serve-0" && leak.resource == resource);
        assert!(found, "{resource}: {verdict:#?}");
    }
}

#[test]
fn a_generator_that_gets_no_processor_has_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let mut case = site::case("starved", "8s", SYSTEM);
    case.bounds.behind_max = Duration::from_millis(500);
    let run = dir.path().join("run");
    let mut harness = site::harness::start(&case, &run);
    site::until("two intervals", || site::harness::intervals(&run) >= 2);
    harness.stop_for(Duration::from_secs(2));
    assert_eq!(harness.ended(), Some(1));
    let verdict = soak::verdict::judge(&run).unwrap();
    assert_eq!(verdict.outcome, Outcome::Invalid, "{verdict:#?}");
    let late = verdict
        .invalid_reasons
        .keys()
        .any(|reason| reason.contains("late") || reason.contains("behind"));
    assert!(late, "{verdict:#?}");
}

#[test]
#[ignore = "is the harness of other tests, in a process of its own"]
fn the_harness_of_another_test() {
    site::harness::main();
}
