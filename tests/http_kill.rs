//! Fifty times kill -9 at random moments while many clients play. The clients keep lists of their own of all that was
//! acknowledged; at the end every entry of theirs must be explained by the ledger, exactly once.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Answer, Ask, Client, Site, hunt_h, token};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Duration;

const KILLS: usize = 55;
const PLAYERS: usize = 24;

/// What was acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// The first answer to each find, by player and id.
    finds: HashMap<(String, String), Value>,
    /// Coins of each adjustment, by player and key.
    adjustments: HashMap<(String, String), i64>,
    /// Balances by player and cursor.
    balances: Vec<(String, u64, u64)>,
    /// Credited finds that a poll has shown, by player, id and the poll's cursor.
    shown: Vec<(String, String, u64)>,
}

/// What the clients share.
struct World {
    server: RwLock<SocketAddr>,
    /// Nobody is to begin anything more.
    over: AtomicBool,
    /// The test has failed: nobody is to wait for an answer either.
    failed: AtomicBool,
    answered: AtomicU64,
    acknowledged: Mutex<Acknowledged>,
}

impl World {
    /// Sends until there is a definite answer, to whichever server is there. What is in doubt is sent again as it is.
    fn send(&self, client: &mut Client, ask: &Ask) -> Answer {
        loop {
            let server = *self.server.read().unwrap();
            if client.address != server {
                *client = Client::new(server);
            }
            match client.try_send(ask) {
                Ok(answer) if answer.status != 503 => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return answer;
                }
                _ => thread::sleep(Duration::from_millis(2)),
            }
            assert!(
                !self.failed.load(Ordering::Relaxed),
                "the test has failed elsewhere"
            );
        }
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn acknowledge_find(&self, player: &str, answer: &Value) {
        let id = answer["find"].as_str().unwrap().to_owned();
        let mut all = self.acknowledged.lock().unwrap();
        let mut made = answer.clone();
        made.as_object_mut()
            .unwrap()
            .retain(|name, _| name == "coins" || name == "expires_at");
        let known = all
            .finds
            .entry((player.to_owned(), id))
            .or_insert_with(|| made.clone());
        assert_eq!(*known, made, "a repeat is answered like the first");
    }
}

/// Lets everybody go home when its thread panics.
struct Alarm<'a>(&'a World);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.over.store(true, Ordering::Relaxed);
            self.0.failed.store(true, Ordering::Relaxed);
        }
    }
}

fn name(random: &mut SmallRng) -> String {
    format!("p{}", random.random_range(0..PLAYERS))
}

/// Finds repeatable and once-only treasures, and now and then one that was acknowledged before.
fn find(world: &World, worker: u64, mut random: SmallRng) {
    let _alarm = Alarm(world);
    let mut client = Client::new(*world.server.read().unwrap());
    let mut made: Vec<(String, Value)> = Vec::new();
    let mut count = 0;
    while world.goes_on() {
        let (player, body, repeat) = if !made.is_empty() && random.random_bool(0.2) {
            let (player, body) = made[random.random_range(0..made.len())].clone();
            (player, body, true)
        } else if random.random_bool(0.1) {
            (
                name(&mut random),
                json!({"treasure": format!("t{}", random.random_range(0..40))}),
                false,
            )
        } else {
            count += 1;
            (
                name(&mut random),
                json!({"treasure": "r", "id": format!("s{worker}-{count}")}),
                false,
            )
        };
        let ask = Ask::post("/treasure/h/finds", body.to_string()).bearer(&token(&player));
        let answer = world.send(&mut client, &ask);
        match answer.status {
            200 | 201 => {
                assert!(
                    !repeat || answer.status == 200,
                    "{body} was acknowledged before: {}",
                    answer.text()
                );
                world.acknowledge_find(&player, &answer.json());
                made.push((player, body));
            }
            429 => assert!(!repeat),
            _ => panic!("{} {}", answer.status, answer.text()),
        }
    }
}

fn find_in_bulk(world: &World, worker: u64, mut random: SmallRng) {
    let _alarm = Alarm(world);
    let mut client = Client::new(*world.server.read().unwrap());
    for batch in 0.. {
        if !world.goes_on() {
            return;
        }
        let finds: Vec<Value> = (0..random.random_range(1..1_200))
            .map(|n| json!({"id": format!("b{worker}-{batch}-{n}"), "player": name(&mut random), "coins": random.random_range(0..50)}))
            .collect();
        let lines: String = finds.iter().map(|find| format!("{find}\n")).collect();
        let ask = Ask::post("/hunts/h/finds", lines).bearer(ADMIN_KEY);
        let done = world.send(&mut client, &ask).is(200);
        let outcomes = done["outcomes"].as_array().unwrap();
        assert_eq!(outcomes.len(), finds.len());
        for (find, outcome) in finds.iter().zip(outcomes) {
            match outcome["status"].as_u64().unwrap() {
                200 | 201 => world.acknowledge_find(find["player"].as_str().unwrap(), outcome),
                429 => {}
                _ => panic!("{find}: {outcome}"),
            }
        }
    }
}

fn poll(world: &World, mut random: SmallRng) {
    let _alarm = Alarm(world);
    let mut client = Client::new(*world.server.read().unwrap());
    let mut last: HashMap<String, Value> = HashMap::new();
    while world.goes_on() {
        let player = name(&mut random);
        let path = match last.get(&player) {
            Some(poll) => format!("/treasure/h?since={}", poll["cursor"].as_str().unwrap()),
            None => "/treasure/h".to_owned(),
        };
        let poll = world
            .send(&mut client, &Ask::get(&path).bearer(&token(&player)))
            .is(200);
        assert!(
            poll.get("reset").is_none(),
            "a store that only crashed keeps its history: {poll}"
        );
        let seq = poll["cursor"]
            .as_str()
            .unwrap()
            .split_once('.')
            .unwrap()
            .1
            .parse()
            .unwrap();
        let mut all = world.acknowledged.lock().unwrap();
        all.balances
            .push((player.clone(), seq, poll["balance"].as_u64().unwrap()));
        for find in poll["finds"].as_array().unwrap() {
            all.shown
                .push((player.clone(), find["id"].as_str().unwrap().to_owned(), seq));
        }
        drop(all);
        last.insert(player, poll);
    }
}

fn adjust(world: &World, worker: u64, mut random: SmallRng) {
    let _alarm = Alarm(world);
    let mut client = Client::new(*world.server.read().unwrap());
    for count in 0.. {
        if !world.goes_on() {
            return;
        }
        let (player, key) = (name(&mut random), format!("a{worker}-{count}"));
        let coins = random.random_range(1..100) * if random.random_bool(0.3) { -1 } else { 1 };
        let body = json!({"coins": coins, "reason": "r", "key": key}).to_string();
        let ask = Ask::post(&format!("/hunts/h/players/{player}/adjust"), body).bearer(ADMIN_KEY);
        let answer = world.send(&mut client, &ask);
        if answer.status == 200 {
            world
                .acknowledged
                .lock()
                .unwrap()
                .adjustments
                .insert((player, key), coins);
        } else {
            answer.is_problem(409, "insufficient_coins");
        }
    }
}

/// One player's ledger.
#[derive(Default)]
struct Ledger {
    found: HashMap<String, (u64, i64)>,
    credited_at: HashMap<String, u64>,
    adjusted: HashMap<String, i64>,
    /// The balance after each entry.
    balances: Vec<u64>,
    balance: u64,
}

fn ledgers(rows: &[Value]) -> BTreeMap<String, Ledger> {
    let mut names = HashMap::new();
    let mut ledgers: BTreeMap<String, Ledger> = BTreeMap::new();
    for row in rows {
        let number = row["player"].as_str().unwrap();
        if row["kind"] == "wallet" {
            let name = row["name"].as_str().unwrap().to_owned();
            ledgers.entry(name.clone()).or_default().balance = row["balance"].as_u64().unwrap();
            names.insert(number, name);
            continue;
        }
        let ledger = ledgers.get_mut(&names[number]).unwrap();
        let (seq, coins) = (row["seq"].as_u64().unwrap(), row["coins"].as_i64().unwrap());
        let before = ledger.balances.last().copied().unwrap_or(0);
        assert_eq!(seq, ledger.balances.len() as u64 + 1, "no entry is missing");
        let mut after = before;
        // The two kinds of ids are namespaces of their own, so the tests' ids differ between them.
        let id = || row["find"].as_str().unwrap().to_owned();
        match row["kind"].as_str().unwrap() {
            "find" => {
                let expires_at = row["expires_at"].as_u64().unwrap();
                assert!(
                    ledger.found.insert(id(), (expires_at, coins)).is_none(),
                    "recorded twice: {row}"
                );
            }
            "credit" => {
                after += u64::try_from(coins).unwrap();
                assert!(ledger.found.contains_key(&id()));
                assert!(
                    ledger.credited_at.insert(id(), seq).is_none(),
                    "credited twice: {row}"
                );
            }
            "adjust" => {
                after = after.checked_add_signed(coins).unwrap();
                let key = row["key"].as_str().unwrap().to_owned();
                assert!(
                    ledger.adjusted.insert(key, coins).is_none(),
                    "adjusted twice: {row}"
                );
            }
            kind => panic!("nobody asked for a {kind}: {row}"),
        }
        ledger.balances.push(after);
    }
    ledgers
}

fn check(acknowledged: &Acknowledged, ledgers: &BTreeMap<String, Ledger>) {
    for ((player, id), made) in &acknowledged.finds {
        let found = ledgers[player].found.get(id);
        let Some((expires_at, coins)) = found else {
            panic!("the acknowledged find {id} of {player} is gone");
        };
        assert_eq!(
            (&made["expires_at"], &made["coins"]),
            (&json!(expires_at), &json!(coins))
        );
    }
    for ((player, key), coins) in &acknowledged.adjustments {
        assert_eq!(
            ledgers[player].adjusted.get(key),
            Some(coins),
            "{player} {key}"
        );
    }
    for (player, seq, balance) in &acknowledged.balances {
        let known = match seq.checked_sub(1) {
            Some(index) => ledgers[player]
                .balances
                .get(usize::try_from(index).unwrap()),
            None => Some(&0),
        };
        assert_eq!(known, Some(balance), "what {player} was told at {seq}");
    }
    for (player, id, seq) in &acknowledged.shown {
        let credited_at = ledgers[player].credited_at.get(id);
        assert!(
            credited_at.is_some_and(|at| at <= seq),
            "{player} was shown {id} at {seq}"
        );
    }
    for (player, ledger) in ledgers {
        assert_eq!(ledger.balances.last(), Some(&ledger.balance), "{player}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_by_kill_9() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut site = Site::with(&[
        ("poll.credit_wait_ms", "200"),
        ("game.pending_finds_max", "300"),
    ]);
    let mut hunt = hunt_h();
    let once = (0..40).map(|n| json!({"id": format!("t{n}"), "coins": n}));
    hunt["treasures"].as_array_mut().unwrap().extend(once);
    site.open_hunt(&hunt);
    let world = World {
        server: RwLock::new(site.public()),
        over: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        answered: AtomicU64::new(0),
        acknowledged: Mutex::default(),
    };
    thread::scope(|scope| {
        let world = &world;
        let _alarm = Alarm(world);
        for worker in 0..6 {
            let random = SmallRng::seed_from_u64(seed ^ (100 + worker));
            scope.spawn(move || find(world, worker, random));
        }
        for worker in 0..2 {
            let random = SmallRng::seed_from_u64(seed ^ (200 + worker));
            scope.spawn(move || find_in_bulk(world, worker, random));
        }
        for worker in 0..4 {
            let random = SmallRng::seed_from_u64(seed ^ (300 + worker));
            scope.spawn(move || poll(world, random));
        }
        let of_adjuster = SmallRng::seed_from_u64(seed ^ 400);
        scope.spawn(move || adjust(world, 0, of_adjuster));
        for kill in 0..KILLS {
            // Some life in every life, and then a random moment.
            let before = world.answered.load(Ordering::Relaxed);
            let some = random.random_range(1..60);
            http_site::wait("answers", || {
                assert!(!world.failed.load(Ordering::Relaxed), "a client failed");
                world.answered.load(Ordering::Relaxed) >= before + some
            });
            thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
            site.kill();
            if kill % 9 == 8 {
                site.verifies();
            }
            site.start_again();
            *world.server.write().unwrap() = site.public();
            if kill % 9 == 4 {
                site.verifies();
            }
        }
        world.over.store(true, Ordering::Relaxed);
    });
    for player in 0..PLAYERS {
        site.player(&format!("p{player}")).poll();
    }
    site.verifies();
    let ledgers = ledgers(&site.export("h"));
    let acknowledged = world.acknowledged.into_inner().unwrap();
    check(&acknowledged, &ledgers);
    assert!(site.stop().success());
    site.verifies();
    let credited: usize = ledgers
        .values()
        .map(|ledger| ledger.credited_at.len())
        .sum();
    let moments: HashSet<_> = acknowledged.balances.iter().collect();
    println!(
        "{KILLS} kills, {} answers: {} finds and {} adjustments acknowledged, {} balances told ({} different), {credited} finds credited",
        world.answered.into_inner(),
        acknowledged.finds.len(),
        acknowledged.adjustments.len(),
        acknowledged.balances.len(),
        moments.len(),
    );
    assert!(acknowledged.finds.len() > KILLS * 20 && credited > KILLS);
}
