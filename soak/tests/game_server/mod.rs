//! A small game server for tests, a thread a connection: it plays by the rules, or breaks one of them.

#![allow(
    clippy::unwrap_used,
    reason = "a test server that meets the unexpected should fail its test"
)]

use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The hunt's window.
const WINDOW_MS: u64 = 5_000;
/// Of so many answers or finds one is treated badly.
const EACH: u64 = 10;
/// How long a slow find takes.
const SLOW_FIND: Duration = Duration::from_millis(400);

/// What it does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mischief {
    /// Nothing.
    None,
    /// Adds a credit to the balance twice.
    CreditTwice,
    /// Shows a credited find once more.
    ShowAgain,
    /// Acknowledges a find and forgets it.
    Lose,
    /// Answers with the wallet of another.
    WrongPlayer,
    /// Changes a balance without a reason.
    BalanceJumps,
    /// Credits whenever it is polled.
    OutsideWindow,
    /// Lets an answer trickle.
    SlowLoris,
    /// Closes instead of answering, having done what was asked.
    Closes,
    /// Records a find, and takes its time to say so.
    SlowFinds,
    /// Answers any path with a constant.
    NotATrove,
}

#[derive(Clone)]
struct Found {
    id: String,
    treasure: Option<String>,
    coins: u64,
    found_at: u64,
}

enum Event {
    Find,
    Credit(Found),
    Expire(Found),
}

#[derive(Default)]
struct Purse {
    balance: u64,
    events: Vec<(u64, Event)>,
    pending: Vec<Found>,
    known: HashMap<String, Found>,
}

impl Purse {
    fn seq(&self) -> u64 {
        self.events.len() as u64
    }
}

struct Game {
    mischief: Mischief,
    purses: Mutex<HashMap<String, Purse>>,
    polls: AtomicU64,
    /// Players whose find is not answered yet.
    finding: Mutex<HashSet<String>>,
    /// Their polls meanwhile.
    overtaken: AtomicU64,
    nth: AtomicU64,
    stops: AtomicBool,
}

/// A running server.
pub(crate) struct GameServer {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    game: Option<Arc<Game>>,
    thread: Option<JoinHandle<()>>,
}

impl GameServer {
    /// Starts one on a free port.
    pub(crate) fn start(mischief: Mischief) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let game = Arc::new(Game {
            mischief,
            purses: Mutex::default(),
            polls: AtomicU64::new(0),
            finding: Mutex::default(),
            overtaken: AtomicU64::new(0),
            nth: AtomicU64::new(0),
            stops: AtomicBool::new(false),
        });
        let shared = game.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.stops.load(Ordering::SeqCst) {
                    return;
                }
                let game = shared.clone();
                // It ends with its connection, at the latest when the generator does.
                std::thread::spawn(move || game.serve(stream));
            }
        });
        Self {
            address,
            game: Some(game),
            thread: Some(thread),
        }
    }

    /// None at all, at an address.
    pub(crate) fn nowhere(address: SocketAddr) -> Self {
        Self {
            address,
            game: None,
            thread: None,
        }
    }

    /// Polls that arrived.
    pub(crate) fn polls(&self) -> u64 {
        self.game
            .as_ref()
            .map_or(0, |game| game.polls.load(Ordering::SeqCst))
    }

    /// Polls that arrived while a find of the same player was not answered yet.
    pub(crate) fn overtaken(&self) -> u64 {
        self.game
            .as_ref()
            .map_or(0, |game| game.overtaken.load(Ordering::SeqCst))
    }
}

impl Drop for GameServer {
    fn drop(&mut self) {
        if let (Some(game), Some(thread)) = (&self.game, self.thread.take()) {
            game.stops.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(self.address);
            thread.join().unwrap();
        }
    }
}

struct Request {
    method: String,
    path: String,
    token: String,
    key: Option<String>,
    cursor: Option<String>,
    conditional: bool,
    body: Vec<u8>,
}

fn now_ms() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|bytes| *bytes > 0)?;
    let mut words = line.split_whitespace();
    let mut request = Request {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        token: String::new(),
        key: None,
        cursor: None,
        conditional: false,
        body: Vec::new(),
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader
            .read_line(&mut line)
            .ok()
            .filter(|bytes| *bytes > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ")?;
        match name {
            "Authorization" => request.token = value.trim_start_matches("Bearer ").to_owned(),
            "Idempotency-Key" => request.key = Some(value.to_owned()),
            "Content-Length" => length = value.parse().ok()?,
            "If-None-Match" => {
                request.cursor = Some(value.trim_start_matches("W/").trim_matches('"').to_owned());
                request.conditional = true;
            }
            _ => {}
        }
    }
    if let Some((path, since)) = request.path.clone().split_once("?since=") {
        request.path = path.to_owned();
        request.cursor = Some(since.to_owned());
    }
    request.body = vec![0; length];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

impl Game {
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(request) = read_request(&mut reader) {
            let (status, fields, body) = self.answer(&request);
            let answer = format!(
                "HTTP/1.1 {status} X\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let nth = self.nth.fetch_add(1, Ordering::SeqCst);
            let written = match self.mischief {
                Mischief::Closes if nth.is_multiple_of(EACH) => return,
                Mischief::SlowLoris if nth.is_multiple_of(EACH) => {
                    trickle(&mut stream, answer.as_bytes())
                }
                _ => stream.write_all(answer.as_bytes()),
            };
            if written.is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> (u16, String, String) {
        let path: Vec<&str> = request
            .path
            .split('?')
            .next()
            .unwrap()
            .split('/')
            .skip(1)
            .collect();
        if self.mischief == Mischief::NotATrove {
            assert_eq!(
                path[..],
                ["wallets", request.token.as_str()],
                "{}",
                request.path
            );
            let polls = self.polls.fetch_add(1, Ordering::SeqCst);
            return (
                if polls % EACH == 1 { 500 } else { 200 },
                String::new(),
                "ok".to_owned(),
            );
        }
        match (request.method.as_str(), &path[..]) {
            ("POST", ["heartbeat"]) => (204, String::new(), String::new()),
            ("GET", ["treasure", "h"]) => self.poll(request),
            ("POST", ["treasure", "h", "finds"]) => {
                let asked: Value = serde_json::from_slice(&request.body).unwrap();
                let treasure = asked["treasure"].as_str().unwrap();
                let id = match treasure {
                    "drop" => asked["id"].as_str().or(request.key.as_deref()).unwrap(),
                    once => once,
                };
                let (new, found) = self.record(&request.token, id, Some(treasure), None);
                if self.mischief == Mischief::SlowFinds {
                    self.finding.lock().unwrap().insert(request.token.clone());
                    std::thread::sleep(SLOW_FIND);
                    self.finding.lock().unwrap().remove(&request.token);
                }
                let body = json!({"find": found.id, "treasure": treasure, "coins": found.coins, "found_at": found.found_at,
                    "expires_at": found.found_at + WINDOW_MS, "duplicate": !new});
                (if new { 201 } else { 200 }, String::new(), body.to_string())
            }
            ("POST", ["hunts", "h", "finds"]) => self.bulk(request),
            ("GET", ["treasure", "h", "history"]) => self.history(request),
            ("GET", ["hunts", "h"]) => (200, String::new(), json!({"id": "h"}).to_string()),
            _ => panic!("{} {}", request.method, request.path),
        }
    }

    fn record(
        &self,
        player: &str,
        id: &str,
        treasure: Option<&str>,
        coins: Option<u64>,
    ) -> (bool, Found) {
        let mut purses = self.purses.lock().unwrap();
        let purse = purses.entry(player.to_owned()).or_default();
        if let Some(found) = purse.known.get(id) {
            return (false, found.clone());
        }
        let found = Found {
            id: id.to_owned(),
            treasure: treasure.map(str::to_owned),
            coins: coins.unwrap_or(if treasure == Some("drop") { 5 } else { 9 }),
            found_at: now_ms(),
        };
        purse.known.insert(id.to_owned(), found.clone());
        purse.events.push((found.found_at, Event::Find));
        let nth = self.nth.load(Ordering::SeqCst);
        if !(self.mischief == Mischief::Lose && nth.is_multiple_of(2)) {
            purse.pending.push(found.clone());
        }
        (true, found)
    }

    fn bulk(&self, request: &Request) -> (u16, String, String) {
        assert_eq!(request.token, "admin");
        let text = std::str::from_utf8(&request.body).unwrap();
        let finds: Vec<Value> = if text.starts_with('[') {
            serde_json::from_str(text).unwrap()
        } else {
            text.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        };
        let outcomes = finds.iter().map(|find| {
            let (player, id) = (find["player"].as_str().unwrap(), find["id"].as_str().unwrap());
            let (new, found) = self.record(player, id, find["treasure"].as_str(), find["coins"].as_u64());
            json!({"status": if new { 201 } else { 200 }, "find": id, "coins": found.coins, "expires_at": found.found_at + WINDOW_MS})
        });
        let outcomes: Vec<Value> = outcomes.collect();
        (
            200,
            String::new(),
            json!({"outcomes": outcomes}).to_string(),
        )
    }

    fn poll(&self, request: &Request) -> (u16, String, String) {
        self.polls.fetch_add(1, Ordering::SeqCst);
        let overtakes = self.finding.lock().unwrap().contains(&request.token);
        self.overtaken
            .fetch_add(u64::from(overtakes), Ordering::SeqCst);
        let nth = self.nth.load(Ordering::SeqCst);
        let does = |mischief| self.mischief == mischief && nth.is_multiple_of(EACH);
        let mut purses = self.purses.lock().unwrap();
        let now = now_ms();
        let purse = purses.entry(request.token.clone()).or_default();
        for found in std::mem::take(&mut purse.pending) {
            if now <= found.found_at + WINDOW_MS || self.mischief == Mischief::OutsideWindow {
                purse.balance += found.coins;
                if self.mischief == Mischief::CreditTwice && nth.is_multiple_of(2) {
                    purse.balance += found.coins;
                }
                purse.events.push((now, Event::Credit(found)));
            } else {
                purse.events.push((now, Event::Expire(found)));
            }
        }
        if does(Mischief::BalanceJumps) {
            purse.balance += 1;
        }
        let cursor = format!("1.{}", purse.seq());
        let fields = format!("ETag: W/\"{cursor}\"\r\nServer-Timing: app;dur=0.010\r\n");
        if request.conditional
            && request.cursor.as_deref() == Some(&*cursor)
            && self.mischief != Mischief::BalanceJumps
        {
            return (304, fields, String::new());
        }
        let mut after = request.cursor.as_deref().map_or(0, |cursor| {
            cursor.split_once('.').unwrap().1.parse().unwrap()
        });
        if does(Mischief::ShowAgain) {
            after = 0;
        }
        let (mut finds, mut expired, mut credited) = (Vec::new(), Vec::new(), 0);
        for (_, event) in &purse.events[usize::try_from(after).unwrap()..] {
            match event {
                Event::Find => {}
                Event::Credit(found) => {
                    credited += found.coins;
                    finds.push(show(found));
                }
                Event::Expire(found) => {
                    let mut shown = show(found);
                    shown["reason"] = json!("window");
                    expired.push(shown);
                }
            }
        }
        let player = if does(Mischief::WrongPlayer) {
            "u1x"
        } else {
            &request.token
        };
        let body = json!({"hunt": "h", "player": player, "balance": purse.balance, "credited": credited, "finds": finds,
            "expired": expired, "pending": 0, "cursor": cursor, "server_time": now, "next_poll_ms": 1200});
        (200, fields, body.to_string())
    }

    fn history(&self, request: &Request) -> (u16, String, String) {
        let mut purses = self.purses.lock().unwrap();
        let purse = purses.entry(request.token.clone()).or_default();
        let entries = purse
            .events
            .iter()
            .zip(1_u64..)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .take(200)
            .map(|((at, event), seq)| match event {
                Event::Find => json!({"seq": seq, "at": at, "kind": "find", "coins": 0}),
                Event::Credit(found) => {
                    let mut entry = show(found);
                    entry["kind"] = json!("credit");
                    with_place(entry, seq, *at)
                }
                Event::Expire(found) => {
                    let mut entry = show(found);
                    entry["kind"] = json!("expiry");
                    entry["reason"] = json!("window");
                    with_place(entry, seq, *at)
                }
            });
        let entries: Vec<Value> = entries.collect();
        (200, String::new(), json!({"entries": entries}).to_string())
    }
}

fn with_place(mut entry: Value, seq: u64, at: u64) -> Value {
    entry["seq"] = json!(seq);
    entry["at"] = json!(at);
    entry["find"] = entry["id"].take();
    entry
}

fn show(found: &Found) -> Value {
    json!({"id": found.id, "treasure": found.treasure, "coins": found.coins, "found_at": found.found_at})
}

/// Some bytes, for longer than the users of the tests wait.
fn trickle(stream: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    for byte in answer {
        stream.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
