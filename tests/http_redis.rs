//! Several servers on one Redis, from outside: what one does the others know, most polls ask Redis nothing, and a Redis
//! that stalls, goes or comes back empty costs no coin.

#![allow(clippy::unwrap_used)]

mod http_site;
mod redis_server;

use http_site::{Ask, Player, Site, hunt_h, series, trove, wait};
use redis_server::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A server named for the test, on a Redis.
fn site(redis: &Server, name: &str, settings: &[(&str, &str)]) -> Site {
    let mut all = vec![("server.instance_id", name), ("poll.jitter", "0")];
    all.extend(settings);
    let mut site = Site::stopped(&all).store_at(&redis.url());
    site.start_again();
    site
}

fn two(redis: &Server) -> [Site; 2] {
    let sites = [site(redis, "one", &[]), site(redis, "two", &[])];
    sites[0].open_h();
    // A changed document shows everywhere within a second; opening holds at once, but the other must know the hunt.
    wait("the other to know the hunt", || {
        sites[1].client().send(Ask::get("/hunts/h")).status == 200
    });
    sites
}

/// How often Redis ran each command that is not of a link's upkeep or of the feed.
fn commands(redis: &Server) -> Vec<(String, u64)> {
    let text: String = redis.run(&["INFO", "commandstats"]);
    text.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(name, _)| !matches!(*name, "info" | "xread" | "ping" | "role" | "time"))
        .map(|(name, rest)| {
            let calls = rest.split(',').next().unwrap().parse().unwrap();
            (name.to_owned(), calls)
        })
        .collect()
}

fn calls(redis: &Server) -> u64 {
    commands(redis).iter().map(|(_, calls)| calls).sum()
}

#[test]
fn what_one_instance_records_another_credits() {
    let redis = Server::start();
    let sites = two(&redis);
    let mut there = sites[1].player("ann");
    assert_eq!(there.poll()["balance"], 0);
    let mut here = sites[0].player("ann");
    here.find(&json!({"treasure": "a"})).is(201);
    assert_eq!(here.poll()["credited"], 5, "what was just written is read");
    wait("the other to hear of it", || there.poll()["balance"] == 5);
    sites[0]
        .player("bea")
        .find(&json!({"treasure": "b"}))
        .is(201);
    let mut bea = sites[1].player("bea");
    assert_eq!(bea.poll()["credited"], 7);
    sites[0].verifies();
}

#[test]
fn a_poll_with_nothing_to_collect_sends_redis_no_command() {
    let redis = Server::start();
    let sites = two(&redis);
    let mut players: Vec<Player> = (0..20)
        .map(|n| sites[n % 2].player(&format!("p{n}")))
        .collect();
    players.iter_mut().for_each(|player| drop(player.poll()));
    // What else the instances do meanwhile, measured over as long as the polls take.
    let rounds = 100;
    let before = calls(&redis);
    let began = Instant::now();
    for _ in 0..rounds {
        for player in &mut players {
            assert_eq!(player.poll()["balance"], 0);
        }
    }
    let took = began.elapsed();
    let with_polls = calls(&redis) - before;
    std::thread::sleep(took);
    let alone = calls(&redis) - before - with_polls;
    // 2,000 polls; the instances' upkeep varies by a few commands.
    assert!(
        with_polls <= alone + 30,
        "{rounds} rounds: {with_polls} commands, {alone} without polls: {:?}",
        commands(&redis)
    );
}

#[test]
fn a_player_who_polls_two_instances_at_once_is_credited_once() {
    let redis = Server::start();
    let sites = two(&redis);
    let mut balance = 0;
    for nth in 0..30 {
        sites[0].player("ann").finds("r", &format!("f{nth}"));
        let credited: u64 = std::thread::scope(|scope| {
            let polls: Vec<_> = sites
                .iter()
                .map(|site| scope.spawn(|| site.player("ann").poll()))
                .collect();
            let answers: Vec<Value> = polls.into_iter().map(|poll| poll.join().unwrap()).collect();
            answers
                .iter()
                .map(|answer| answer["credited"].as_u64().unwrap())
                .sum()
        });
        balance += 3;
        assert_eq!(credited, 3);
        wait("the balance", || {
            sites[0].player("ann").poll()["balance"] == balance
        });
        wait("the balance", || {
            sites[1].player("ann").poll()["balance"] == balance
        });
    }
    sites[1].verifies();
}

#[test]
fn closing_and_erasing_hold_everywhere_when_they_are_answered() {
    let redis = Server::start();
    let sites = two(&redis);
    for nth in 0..10 {
        let close = Ask::new("POST", "/hunts/h/close");
        assert_eq!(sites[nth % 2].manage(close).is(200)["state"], "closed");
        let mut ann = sites[(nth + 1) % 2].player("ann");
        ann.find(&json!({"treasure": "r", "id": format!("c{nth}")}))
            .is_problem(409, "hunt_not_open");
        let open = Ask::new("POST", "/hunts/h/open");
        assert_eq!(sites[nth % 2].manage(open).is(200)["state"], "open");
        ann.finds("r", &format!("o{nth}"));
    }
    let mut bea = sites[1].player("bea");
    bea.finds("r", "1");
    assert_eq!(bea.poll()["balance"], 3);
    sites[0].manage(Ask::new("DELETE", "/players/bea")).is(200);
    bea.find(&json!({"treasure": "r", "id": "2"}))
        .is_problem(401, "erased");
    let ask = bea.poll_ask();
    wait("the other to have forgotten the token", || {
        bea.send(ask.clone()).status == 401
    });
}

#[test]
fn a_player_erased_elsewhere_who_came_again_is_found_under_the_new_number() {
    let redis = Server::start();
    let sites = two(&redis);
    let bulk = |id: &str| {
        let finds = json!([{"player": "ann", "treasure": "r", "id": id}]);
        let ask = Ask::post("/hunts/h/finds", finds.to_string());
        sites[0].manage(ask).is(200)
    };
    let opened = || {
        let text: String = redis.run(&["INFO", "commandstats"]);
        let line = text
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"));
        let calls = line.unwrap().split(['=', ',']).nth(1).unwrap();
        calls.parse::<u64>().unwrap()
    };
    assert_eq!(bulk("1")["recorded"], 1);
    let before = opened();
    for n in 2..52 {
        assert_eq!(bulk(&n.to_string())["recorded"], 1);
    }
    let scripts = opened() - before;
    assert!(
        scripts < 75,
        "50 finds took {scripts} scripts: each asked who ann is"
    );
    sites[1].manage(Ask::new("DELETE", "/players/ann")).is(200);
    assert_eq!(bulk("again")["refused"], 1);
    // A token is as old as its second; one from before the erasure opens nothing.
    wait("ann to come again", || {
        let mut ann = sites[1].player("ann");
        let ask = ann.poll_ask();
        ann.send(ask).status == 200
    });
    assert_eq!(bulk("again")["recorded"], 1);
    wait("the find to be credited", || {
        sites[1].player("ann").poll()["balance"] == 3
    });
    sites[1].verifies();
}

#[test]
fn a_changed_document_shows_on_every_instance_within_a_second() {
    let redis = Server::start();
    let sites = two(&redis);
    let mut document = hunt_h();
    document["name"] = json!("Another name");
    let put = Ask::new("PUT", "/hunts/h").body(document.to_string());
    sites[0].manage(put).is(200);
    let began = Instant::now();
    wait("the new name", || {
        sites[1].client().send(Ask::get("/hunts/h")).json()["name"] == "Another name"
    });
    println!("the other instance showed it after {:?}", began.elapsed());
}

#[test]
fn a_redis_that_stalls_leaves_polls_answered_and_finds_refused() {
    let redis = Server::start();
    let site = site(&redis, "one", &[("store.find_wait_ms", "1500")]);
    site.open_h();
    let mut ann = site.player("ann");
    ann.finds("r", "1");
    assert_eq!(ann.poll()["balance"], 3);
    redis.pause();
    wait("the answers to say that they may be old", || {
        let answer = ann.poll();
        assert_eq!(answer["balance"], 3, "never another balance");
        answer["stale"] == true
    });
    let ask = ann.poll_ask();
    assert_eq!(ann.send(ask).field("trove-stale"), Some("true"));
    site.player("new")
        .send(Ask::get("/treasure/h"))
        .is_problem(503, "store_unavailable");
    let refused = ann.find(&json!({"treasure": "r", "id": "2"}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    let seconds: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds));
    let health = site.client().send(Ask::get("/health/ready")).is(200);
    assert_eq!(health["store"], "down");
    redis.go_on();
    wait("all to be as ever", || ann.poll().get("stale").is_none());
    ann.find(&json!({"treasure": "r", "id": "2"}));
    wait("the find to be credited", || ann.poll()["balance"] == 6);
    site.verifies();
}

#[test]
fn a_find_waits_for_a_redis_that_comes_back_in_time() {
    let redis = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut redis = redis;
    let site = site(&redis, "one", &[("store.find_wait_ms", "60000")]);
    site.open_h();
    let mut ann = site.player("ann");
    assert_eq!(ann.poll()["balance"], 0);
    redis.kill();
    wait("the loss to be noticed", || ann.poll()["stale"] == true);
    let found = std::thread::spawn(move || {
        let answer = ann.find(&json!({"treasure": "a"}));
        (ann, answer)
    });
    // The find is on its way while the server is away.
    std::thread::sleep(Duration::from_millis(200));
    redis.start_again();
    let (mut ann, answer) = found.join().unwrap();
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    wait("the find to be credited", || ann.poll()["balance"] == 5);
    site.verifies();
}

#[test]
fn a_redis_that_comes_back_empty_never_shows_a_zero_balance() {
    let mut redis = Server::start();
    let site = site(&redis, "one", &[]);
    site.open_h();
    let mut ann = site.player("ann");
    ann.finds("r", "1");
    assert_eq!(ann.poll()["balance"], 3);
    redis.start_again();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let ask = ann.poll_ask();
        let answer = ann.send(ask);
        if answer.status == 200 {
            let answer = answer.json();
            assert_eq!(answer["balance"], 3, "{answer}");
        } else {
            answer.is_problem(503, "store_unavailable");
        }
    }
    let mut new = site.player("new");
    new.send(Ask::get("/treasure/h"))
        .is_problem(503, "store_unavailable");
    let info = site.run(&["store", "info"]);
    assert!(
        String::from_utf8_lossy(&info.stdout).contains("holds no store"),
        "{info:?}"
    );
    let accepted = site.run(&["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    wait("the new store to be served", || {
        site.client().send(Ask::get("/health")).is(200)["store"] == "up"
    });
}

/// How many commands a server's fences have held back, by reason.
fn fenced(site: &Site, reason: &str) -> u64 {
    let text = site.ops().send(Ask::get("/metrics")).text();
    series(
        &text,
        &format!("trove_store_fenced_total{{reason=\"{reason}\"}}"),
    )
}

#[test]
fn a_command_of_another_epoch_is_refused_and_counted_and_goes_through_anew() {
    let redis = Server::start();
    let site = site(&redis, "one", &[]);
    site.open_h();
    let mut ann = site.player("ann");
    ann.poll();
    for reason in ["epoch", "clock", "generation", "role", "history", "too_few"] {
        assert_eq!(fenced(&site, reason), 0, "{reason}");
    }
    // As if every partition were of the epoch before.
    let states: Vec<String> = redis.run(&["KEYS", "*}s"]);
    assert!(!states.is_empty());
    for state in &states {
        redis.run::<u64>(&["HINCRBY", state, "epoch", "-1"]);
    }
    ann.find(&json!({"treasure": "a"})).is(201);
    assert!(fenced(&site, "epoch") >= 1);
    wait("the find to be credited", || ann.poll()["balance"] == 5);
    site.verifies();
}

#[test]
fn what_no_replica_has_is_not_acknowledged_and_counted() {
    let redis = Server::start();
    let settings = [
        ("store.durability", "replicated"),
        ("store.replicas_min", "1"),
        ("store.durability_wait_ms", "100"),
    ];
    let site = site(&redis, "one", &settings);
    let put = Ask::new("PUT", "/hunts/h").body(hunt_h().to_string());
    let answer = site.manage(put);
    answer.is_problem(503, "not_durable");
    assert!(fenced(&site, "too_few") >= 1);
    assert_eq!(fenced(&site, "epoch"), 0);
}

#[test]
fn an_instance_that_is_killed_while_it_credits_loses_nothing() {
    let redis = Server::start();
    let [keeps, mut dies] = two(&redis);
    for round in 0..5 {
        let public = dies.public();
        let phones: Vec<_> = (0..4)
            .map(|phone| {
                let mut player = dies.player(&format!("p{phone}"));
                std::thread::spawn(move || {
                    let mut acknowledged = Vec::new();
                    for nth in 0.. {
                        let id = format!("{round}-{nth}");
                        let body = json!({"treasure": "r", "id": id}).to_string();
                        let find = Ask::post("/treasure/h/finds", body).bearer(&player.token);
                        let poll = player.poll_ask().bearer(&player.token);
                        match player.client.try_send(&find) {
                            Ok(answer) if answer.status == 201 => acknowledged.push(id),
                            _ => break,
                        }
                        if player.client.try_send(&poll).is_err() {
                            break;
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(150));
        dies.kill();
        let acknowledged: usize = phones
            .into_iter()
            .map(|phone| phone.join().unwrap().len())
            .sum();
        assert!(acknowledged > 0, "nothing was found at {public}");
        let export = keeps.export("h");
        let recorded = export
            .iter()
            .filter(|row| row["kind"] == "find")
            .filter(|row| {
                row["find"]
                    .as_str()
                    .unwrap()
                    .starts_with(&format!("{round}-"))
            })
            .count();
        assert!(
            recorded >= acknowledged,
            "{recorded} of {acknowledged} finds are there"
        );
        for phone in 0..4 {
            keeps.player(&format!("p{phone}")).poll();
        }
        keeps.verifies();
        dies.start_again();
    }
    let export = keeps.export("h");
    let count = |kind: &str| export.iter().filter(|row| row["kind"] == kind).count();
    assert_eq!(
        count("find"),
        count("credit"),
        "every find was credited once"
    );
}

#[test]
fn a_server_on_redis_needs_keys_and_a_server_that_keeps_what_it_is_given() {
    let redis = Server::start();
    let refused = |env: &[(&str, &str)], said: &str| {
        let site = Site::stopped(&[]).store_at(&redis.url());
        let mut variables = site.env.clone();
        for (name, value) in env {
            if value.is_empty() {
                variables.remove(*name);
            } else {
                variables.insert((*name).to_owned(), (*value).to_owned());
            }
        }
        let args = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--ops-listen",
            "127.0.0.1:0",
            "--store",
            &redis.url(),
        ];
        let output = trove(&variables, &args).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(said), "{err}");
    };
    refused(&[("TROVE_TOKEN_KEY", "")], "TROVE_TOKEN_KEY");
    redis.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    refused(&[], "maxmemory-policy");
    redis.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    drop(site(&redis, "one", &[]));
    refused(&[("TROVE_STORE__PARTITIONS", "8")], "16 partitions");
}

#[test]
fn what_redis_says_of_itself_is_among_the_metrics() {
    let redis = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &redis.port.to_string()]);
    let one = site(&redis, "one", &[]);
    one.open_h();
    one.player("ann").find(&json!({"treasure": "a"})).is(201);
    let value = |text: &str, name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .trim()
            .parse()
            .unwrap()
    };
    let text = || one.ops().send(Ask::get("/metrics")).text();
    // Every series is there before the server was asked for the first time.
    value(&text(), "trove_redis_stream_entries{partition=\"15\"}");
    wait("the server to have been asked", || {
        value(&text(), "trove_redis_commands_total") > 0.0
    });
    let text = text();
    assert!(value(&text, "trove_redis_memory_bytes") > 100_000.0);
    assert!(value(&text, "trove_redis_clients") >= 1.0);
    assert!(value(&text, "trove_redis_evicted_keys_total").abs() < 0.5);
    value(&text, "trove_redis_replication_lag_bytes");
    value(&text, "trove_redis_replication_lag_seconds");
    drop(replica);
}

#[test]
fn a_server_that_takes_too_few_clients_is_warned_about_with_the_sum() {
    let redis = Server::with(&["--maxclients", "200"]);
    let said = |instances: &str| {
        let site = site(&redis, "one", &[("store.instances", instances)]);
        let log = site.log();
        log.into_iter().find(|line| line.contains("maxclients"))
    };
    assert_eq!(said("40"), None);
    let line = said("50").expect("a warning");
    assert!(line.contains("WARN"), "{line}");
    let sum = "2 connections x 50 instances x 2 during a deploy = 200, and the server's maxclients is 200";
    assert!(line.contains(sum), "{line}");
}
