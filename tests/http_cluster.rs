//! Servers on a Redis Cluster whose primaries die under load, from outside: what was acknowledged is there, each of it once.
//!
//! `TROVE_TEST_KILLS` sets how many primaries are killed (3 unless set).

#![allow(clippy::unwrap_used)]

mod http_site;
mod redis_server;

use http_site::{Ask, Player, Site, wait};
use redis_server::Server;
use redis_server::cluster::{Cluster, PRIMARIES};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trove_streams::slot::slot;
use trove_streams::{PARTITIONS_DEFAULT, Partitions};

const PLAYERS: usize = 24;

fn site(url: &str, name: &str, settings: &[(&str, &str)]) -> Site {
    let mut all = vec![
        ("server.instance_id", name),
        ("poll.jitter", "0"),
        ("store.connect_wait_ms", "30000"),
        // The servers that fall silent here are killed, which closes their links.
        ("store.response_timeout_ms", "1500"),
    ];
    all.extend(settings);
    let mut site = Site::stopped(&all).store_at(url);
    site.start_again();
    site
}

/// What a phone was told.
#[derive(Default)]
struct Told {
    /// Finds that were acknowledged.
    acknowledged: Vec<String>,
    /// Polls, and how many of them said that they may be old.
    polls: u64,
    stale: u64,
    /// Polls that failed.
    failed: Vec<String>,
    /// The longest poll.
    longest: Duration,
    /// Answers to finds that said to ask again, by their code.
    refused: BTreeMap<String, u64>,
}

/// Finds and polls until it is told to stop; asks for each find until it is acknowledged.
fn phone(mut player: Player, name: &str, stop: &AtomicBool, progress: &AtomicU64) -> Told {
    let mut told = Told::default();
    let mut balance = 0;
    for nth in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("{name}-{nth}");
        let asked_since = Instant::now();
        loop {
            let answer = player.find(&json!({"treasure": "r", "id": id}));
            match answer.status {
                200 | 201 => break,
                503 => {
                    let code = answer.json()["code"].as_str().unwrap().to_owned();
                    *told.refused.entry(code).or_default() += 1;
                }
                _ => panic!("{}", answer.text()),
            }
            assert!(
                asked_since.elapsed() < http_site::PATIENCE,
                "{id} is never taken: {:?}",
                told.refused
            );
        }
        told.acknowledged.push(id);
        progress.fetch_add(1, Ordering::Relaxed);
        for _ in 0..3 {
            let began = Instant::now();
            let answer = player.send(player.poll_ask());
            if answer.status != 200 {
                told.failed
                    .push(format!("{:?} {}", asked_since.elapsed(), answer.text()));
                continue;
            }
            let answer = answer.json();
            told.longest = told.longest.max(began.elapsed());
            told.polls += 1;
            told.stale += u64::from(answer.get("stale").is_some());
            let now = answer["balance"].as_u64().unwrap();
            assert!(now >= balance, "{name}: {balance} was shown, then {answer}");
            balance = now;
            std::thread::sleep(Duration::from_millis(15));
        }
    }
    told
}

#[test]
fn primaries_killed_under_load_lose_and_double_nothing_that_was_acknowledged() {
    let kills: usize = std::env::var("TROVE_TEST_KILLS").map_or(3, |kills| kills.parse().unwrap());
    let mut cluster = Cluster::start(true, 1_500);
    let settings = [
        ("store.durability", "replicated"),
        // There is one replica: after a failover the killed primary has to come back as the next.
        ("store.durability_wait_ms", "15000"),
        ("store.response_timeout_ms", "5000"),
        ("store.find_wait_ms", "20000"),
    ];
    let sites = ["one", "two"].map(|name| site(&cluster.url(), name, &settings));
    sites[0].open_h();
    wait("the other to know the hunt", || {
        sites[1].client().send(Ask::get("/hunts/h")).status == 200
    });
    let names: Vec<String> = (0..PLAYERS).map(|n| format!("p{n}")).collect();
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let told: Vec<Told> = std::thread::scope(|scope| {
        let phones: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| {
                let mut player = sites[n % 2].player(name);
                player.poll();
                let (stop, progress) = (&stop, &progress);
                scope.spawn(move || phone(player, name, stop, progress))
            })
            .collect();
        let go_on = |finds: u64, what: &str| {
            let before = progress.load(Ordering::Relaxed);
            wait(what, || {
                if phones.iter().any(|phone| phone.is_finished()) {
                    for site in &sites {
                        println!("{:#?}", site.log());
                    }
                    panic!("a phone gave up");
                }
                progress.load(Ordering::Relaxed) >= before + finds
            });
        };
        go_on(200, "the load to begin");
        for nth in 0..kills {
            // Each primary in turn, that of the store's identity among them.
            let victim_slot = match nth % PRIMARIES {
                0 => slot(b"{store}identity"),
                share => u16::try_from(share * 5_461).unwrap(),
            };
            let victim = cluster.primary_of(victim_slot);
            cluster.nodes[victim].kill();
            let began = Instant::now();
            wait("a replica to take over", || {
                cluster.primary_of(victim_slot) != victim
            });
            println!(
                "kill {nth}: a replica took over after {:?}",
                began.elapsed()
            );
            cluster.nodes[victim].start_again();
            go_on(200, "the load to go on");
            cluster.wait_whole();
        }
        stop.store(true, Ordering::Relaxed);
        phones
            .into_iter()
            .map(|phone| phone.join().unwrap())
            .collect()
    });
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    for (code, count) in told.iter().flat_map(|told| &told.refused) {
        *refused.entry(code.clone()).or_default() += count;
    }
    println!(
        "{} finds acknowledged, {} polls, {} of them stale, the longest {:?}; finds asked again: {refused:?}",
        told.iter()
            .map(|told| told.acknowledged.len())
            .sum::<usize>(),
        told.iter().map(|told| told.polls).sum::<u64>(),
        told.iter().map(|told| told.stale).sum::<u64>(),
        told.iter().map(|told| told.longest).max().unwrap(),
    );
    let failed: Vec<&String> = told.iter().flat_map(|told| &told.failed).collect();
    if !failed.is_empty() {
        for site in &sites {
            println!("{:#?}", site.log());
        }
    }
    assert!(
        failed.is_empty(),
        "{} polls failed: {failed:#?}",
        failed.len()
    );
    // The balance comes to what was acknowledged, on both instances.
    for (name, told) in names.iter().zip(&told) {
        let sum = told.acknowledged.len() as u64 * 3;
        for site in &sites {
            let mut player = site.player(name);
            wait("every find to be credited", || {
                let answer = player.send(player.poll_ask());
                answer.status == 200 && answer.json()["balance"] == sum
            });
        }
    }
    let ledger = sites[0].export("h");
    let mut times: HashMap<(&str, &str), u32> = HashMap::new();
    for row in &ledger {
        if let (Some(kind), Some(find)) = (row["kind"].as_str(), row["find"].as_str()) {
            *times.entry((kind, find)).or_default() += 1;
        }
    }
    for id in told.iter().flat_map(|told| &told.acknowledged) {
        for kind in ["find", "credit"] {
            assert_eq!(times.get(&(kind, id.as_str())), Some(&1), "{kind} of {id}");
        }
    }
    sites[1].verifies();
}

#[test]
fn one_primary_that_is_silent_makes_only_the_wallets_that_it_holds_stale() {
    let cluster = Cluster::start(false, 60_000);
    let site = site(&cluster.url(), "one", &[]);
    site.open_h();
    let partitions = Partitions::new(PARTITIONS_DEFAULT).unwrap();
    let holder = |name: &str| {
        let tag = partitions.tag(partitions.of_name(name.as_bytes()));
        cluster.primary_of(slot(tag.as_bytes()))
    };
    let mut players: Vec<(usize, Player)> = (0..PLAYERS)
        .map(|n| {
            let name = format!("p{n}");
            let at = holder(&name);
            let mut player = site.player(&name);
            player.finds("r", "first");
            wait("the first find to be credited", || {
                player.poll()["balance"] == 3
            });
            (at, player)
        })
        .collect();
    for victim in 0..PRIMARIES {
        let is_stale = |answer: &serde_json::Value| answer.get("stale").is_some();
        assert!(players.iter().any(|(at, _)| *at == victim), "{victim}");
        let newcomer = (0..)
            .map(|n| format!("new{victim}-{n}"))
            .find(|name| holder(name) != victim)
            .unwrap();
        cluster.nodes[victim].pause();
        // First the tail is silent, and the store is asked in vain; then the link counts as down.
        for is_noticed in [false, true] {
            wait("its players to be told that they see something old", || {
                let of_victim = players.iter_mut().filter(|(at, _)| *at == victim);
                let stale = of_victim.map(|(_, player)| is_stale(&player.poll()));
                stale.filter(|stale| !stale).count() == 0
            });
            wait("the silence to be noticed", || {
                let health = site.client().send(Ask::get("/health")).json();
                !is_noticed || health["store"] == "down"
            });
            for _ in 0..20 {
                for (_, player) in players.iter_mut().filter(|(at, _)| *at != victim) {
                    let answer = player.send(player.poll_ask());
                    let timing = answer.field("server-timing").unwrap().to_owned();
                    let answer = answer.is(200);
                    assert!(!is_stale(&answer), "{victim} is silent: {answer}");
                    assert!(!timing.contains("store"), "the store was asked: {timing}");
                }
            }
        }
        // Those that others hold go on playing, also one who was never here.
        let balance = 3 * (victim as u64 + 2);
        for (at, player) in &mut players {
            let answer = player.poll();
            assert_eq!(is_stale(&answer), *at == victim, "{answer}");
            if *at != victim {
                player.finds("r", &format!("while-{victim}-is-silent"));
                wait("it to be credited", || player.poll()["balance"] == balance);
            }
        }
        assert!(!is_stale(&site.player(&newcomer).poll()));
        cluster.nodes[victim].go_on();
        wait("nobody to be told that what they see is old", || {
            let stale = players
                .iter_mut()
                .map(|(_, player)| is_stale(&player.poll()));
            stale.filter(|stale| *stale).count() == 0
        });
        for (at, player) in &mut players {
            if *at == victim {
                player.finds("r", "afterwards");
                wait("it to be credited", || player.poll()["balance"] == balance);
            }
        }
    }
    site.verifies();
}

/// Opens a hunt on a store whose replica may not have acknowledged anything yet.
fn open_once_safe(site: &Site) {
    wait("the hunt to be put", || {
        let put = Ask::new("PUT", "/hunts/h").body(http_site::hunt_h().to_string());
        matches!(site.manage(put).status, 200 | 201)
    });
    wait("the hunt to be open", || {
        site.manage(Ask::new("POST", "/hunts/h/open")).status == 200
    });
}

#[test]
fn a_poll_of_a_wallet_that_is_not_in_memory_needs_no_replica_for_what_they_have_had() {
    let redis = Server::with(&["--repl-diskless-sync-delay", "0"]);
    let of = format!("127.0.0.1 {}", redis.port);
    let replica = Server::with(&["--replicaof", &of]);
    wait("the replica to follow", || {
        redis
            .run::<String>(&["INFO", "replication"])
            .contains("state=online")
    });
    let settings = [
        ("store.durability", "replicated"),
        ("store.durability_wait_ms", "600"),
        ("store.find_wait_ms", "2000"),
    ];
    let sites = ["one", "two"].map(|name| site(&redis.url(), name, &settings));
    open_once_safe(&sites[0]);
    wait("the other to know the hunt", || {
        sites[1].client().send(Ask::get("/hunts/h")).status == 200
    });
    // Players of one partition, whose feed tells of them in order.
    let partitions = Partitions::new(PARTITIONS_DEFAULT).unwrap();
    let of = |name: &String| partitions.of_name(name.as_bytes());
    let names: Vec<String> = (0..)
        .map(|n| format!("p{n}"))
        .filter(|name| of(name) == of(&"p0".to_owned()))
        .take(4)
        .collect();
    let [mut ann, mut bob, mut dan] = [0, 1, 2].map(|n| sites[0].player(&names[n]));
    let first = ann.poll()["cursor"].as_str().unwrap().to_owned();
    ann.finds("r", "1");
    wait("her find to be credited", || ann.poll()["balance"] == 3);
    bob.finds("r", "1");
    dan.poll();
    // What the other instance has told of this player it has of those before.
    let mut last = sites[1].player(&names[3]);
    last.poll();
    last.finds("r", "1");
    wait("the last find to be credited", || {
        last.poll()["balance"] == 3
    });
    // It was told so by its own credit; its feed, which tells what is safe for reads, comes a moment later.
    let waits = || {
        let stats: String = redis.run(&["INFO", "commandstats"]);
        let of_wait = stats.lines().find(|line| line.starts_with("cmdstat_wait:"));
        of_wait.map(str::to_owned)
    };
    wait("a look at the history to wait for no replica", || {
        let before = waits();
        last.send(Ask::get("/treasure/h/history")).is(200);
        waits() == before
    });
    replica.pause();
    let mut ann = sites[1].player(&names[0]);
    let answer = ann.since(&first);
    assert_eq!(answer["balance"], 3, "{answer}");
    assert_eq!(answer["finds"][0]["id"], "1", "what she missed: {answer}");
    assert!(answer.get("stale").is_none(), "{answer}");
    let history = Ask::get("/treasure/h/history");
    ann.send(history).is(200);
    let answer = sites[1].player(&names[1]).poll();
    assert_eq!(
        (&answer["balance"], &answer["pending"]),
        (&json!(0), &json!(3)),
        "it cannot be collected now: {answer}"
    );
    // What no replica has had is not shown.
    dan.find(&json!({"treasure": "r", "id": "1"}))
        .is_problem(503, "not_durable");
    let mut elsewhere = sites[1].player(&names[2]);
    let refused = elsewhere.send(elsewhere.poll_ask());
    refused.is_problem(503, "not_durable");
    assert!(refused.field("retry-after").is_some());
    replica.go_on();
    wait("it to be credited", || {
        let answer = elsewhere.send(elsewhere.poll_ask());
        answer.status == 200 && answer.json()["balance"] == 3
    });
    sites[1].verifies();
}

#[test]
fn a_find_that_no_replica_has_is_refused_and_a_poll_shows_no_coin_of_it() {
    let redis = Server::with(&["--repl-diskless-sync-delay", "0"]);
    let of = format!("127.0.0.1 {}", redis.port);
    let replica = Server::with(&["--replicaof", &of]);
    wait("the replica to follow", || {
        redis
            .run::<String>(&["INFO", "replication"])
            .contains("state=online")
    });
    let settings = [
        ("store.durability", "replicated"),
        ("store.durability_wait_ms", "600"),
        ("store.find_wait_ms", "2000"),
    ];
    let site = site(&redis.url(), "one", &settings);
    open_once_safe(&site);
    let mut ann = site.player("ann");
    wait("her wallet to be in memory", || {
        let ask = ann.poll_ask();
        ann.send(ask).status == 200
    });
    wait("a first find", || {
        ann.find(&json!({"treasure": "r", "id": "1"})).status < 300
    });
    // The credit cannot be covered, so the coins stay pending.
    replica.pause();
    for _ in 0..5 {
        let answer = ann.poll();
        assert_eq!(
            (&answer["balance"], &answer["pending"]),
            (&json!(0), &json!(3)),
            "{answer}"
        );
    }
    let refused = ann.find(&json!({"treasure": "r", "id": "2"}));
    refused.is_problem(503, "not_durable");
    assert!(refused.field("retry-after").is_some());
    let answer = ann.poll();
    assert_eq!(
        (&answer["balance"], &answer["pending"]),
        (&json!(0), &json!(3)),
        "{answer}"
    );
    replica.go_on();
    wait("the find to be safe", || {
        let again = ann.find(&json!({"treasure": "r", "id": "2"}));
        again.status != 503 && again.is(200)["duplicate"] == true
    });
    wait("both to be credited", || ann.poll()["balance"] == 6);
    site.verifies();
}
