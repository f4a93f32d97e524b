//! What players see of a failover: a server saves its data, goes on, is killed, and starts again with what it had saved.

#![allow(clippy::unwrap_used)]

mod http_site;
mod redis_server;

use http_site::{Ask, Site, series, wait};
use redis_server::Server;
use serde_json::{Value, json};

fn site(redis: &Server, recovery_ms: &str) -> Site {
    let mut site = Site::stopped(&[
        ("poll.jitter", "0"),
        ("store.recovery_ms", recovery_ms),
        ("store.connect_wait_ms", "30000"),
    ])
    .store_at(&redis.url());
    site.start_again();
    site
}

fn store(site: &Site) -> Value {
    site.client().send(Ask::get("/health")).json()["store"].clone()
}

fn lose(redis: &mut Server, site: &Site) {
    redis.start_again();
    wait("the store to recover", || store(site) == "recovering");
}

fn replayed(site: &Site, kind: &str) -> u64 {
    let text = site.ops().send(Ask::get("/metrics")).text();
    series(&text, &format!("trove_replayed_total{{kind=\"{kind}\"}}"))
}

#[test]
fn every_series_of_replay_exists_at_0_from_the_start() {
    let redis = Server::start();
    let site = site(&redis, "100");
    for kind in [
        "player",
        "hunt",
        "erasure",
        "find",
        "credit",
        "reinstatement",
        "adjustment",
    ] {
        assert_eq!(replayed(&site, kind), 0);
    }
    let text = site.ops().send(Ask::get("/metrics")).text();
    for reason in ["archived", "erased", "conflict", "coins", "missing", "full"] {
        let name = format!("trove_replay_dropped_total{{reason=\"{reason}\"}}");
        assert_eq!(series(&text, &name), 0);
    }
}

#[test]
fn while_lost_coins_may_come_back_the_balance_is_the_last_true_one_and_marked_stale() {
    let mut redis = Server::start();
    let site = site(&redis, "3000");
    site.open_h();
    let mut ann = site.player("ann");
    ann.poll();
    let () = redis.run(&["SAVE"]);
    ann.find(&json!({"treasure": "a"})).is(201);
    let before = ann.poll();
    assert_eq!(before["balance"], 5);
    lose(&mut redis, &site);
    let during = ann.since(before["cursor"].as_str().unwrap());
    assert_eq!(
        (&during["balance"], &during["stale"]),
        (&json!(5), &json!(true))
    );
    assert_eq!(during["reset"], Value::Null, "{during}");
    assert_eq!(during["cursor"], before["cursor"]);
    // A find is recorded meanwhile, and shown as pending until the recovery is over.
    ann.find(&json!({"treasure": "b"})).is(201);
    wait("the recovery to be over", || store(&site) == "up");
    wait("what is known to be of the new epoch", || {
        ann.poll()["stale"] == Value::Null
    });
    let after = ann.since(before["cursor"].as_str().unwrap());
    assert_eq!(
        (&after["balance"], &after["reset"]),
        (&json!(12), &json!(true))
    );
    assert_eq!(after["finds"].as_array().unwrap().len(), 2, "{after}");
    assert_eq!((replayed(&site, "find"), replayed(&site, "credit")), (1, 1));
    site.verifies();
}

#[test]
fn a_cursor_of_before_is_shown_also_what_came_after_the_feeds_were_read_anew() {
    let mut redis = Server::start();
    let site = site(&redis, "1000");
    site.open_h();
    let mut ann = site.player("ann");
    ann.find(&json!({"treasure": "a"})).is(201);
    let first = ann.poll();
    ann.find(&json!({"treasure": "b"})).is(201);
    ann.poll();
    let () = redis.run(&["SAVE"]);
    lose(&mut redis, &site);
    let ids = |poll: &Value| -> Vec<String> {
        let finds = poll["finds"].as_array().unwrap();
        let id = |find: &Value| find["id"].as_str().unwrap().to_owned();
        finds.iter().map(id).collect()
    };
    wait("the recovery to be over", || {
        ann.poll()["stale"] == Value::Null
    });
    let cursor = first["cursor"].as_str().unwrap();
    assert_eq!(ids(&ann.since(cursor)), ["a", "b"]);
    let mut expected = vec!["a".to_owned(), "b".to_owned()];
    for nth in 0..12 {
        let id = format!("again-{nth}");
        ann.find(&json!({"treasure": "r", "id": id})).is(201);
        ann.poll();
        expected.push(id);
        let poll = ann.since(cursor);
        assert_eq!(poll["reset"], true);
        assert_eq!(ids(&poll), expected);
    }
    // Of one who has nothing recent, all that there is.
    let poll = site.player("ben").since(cursor);
    assert_eq!((&poll["reset"], ids(&poll).len()), (&json!(true), 0));
    site.verifies();
}

#[test]
fn what_is_pending_during_a_recovery_is_shown_as_pending_and_credited_all_the_same() {
    let mut redis = Server::start();
    let site = site(&redis, "3000");
    site.open_h();
    let mut ann = site.player("ann");
    ann.poll();
    let before = ann.poll();
    ann.find(&json!({"treasure": "a"})).is(201);
    let () = redis.run(&["SAVE"]);
    lose(&mut redis, &site);
    let during = ann.poll();
    assert_eq!(
        [&during["balance"], &during["pending"], &during["credited"]],
        [&json!(0), &json!(5), &json!(0)]
    );
    assert_eq!(during["stale"], true);
    wait("the recovery to be over", || {
        ann.poll()["stale"] == Value::Null
    });
    let after = ann.since(before["cursor"].as_str().unwrap());
    assert_eq!(
        [&after["balance"], &after["pending"]],
        [&json!(5), &json!(0)]
    );
    assert_eq!(after["finds"][0]["id"], "a");
    site.verifies();
}

#[test]
fn a_store_that_goes_again_before_wallets_are_read_anew_still_fails_no_poll() {
    let mut redis = Server::start();
    let site = site(&redis, "0");
    site.open_h();
    let mut players: Vec<_> = (0..5).map(|nth| site.player(&format!("p{nth}"))).collect();
    for player in &mut players {
        player.find(&json!({"treasure": "a"})).is(201);
        assert_eq!(player.poll()["balance"], 5);
    }
    let mut idle: Vec<_> = (0..5).map(|nth| site.player(&format!("q{nth}"))).collect();
    for player in &mut idle {
        player.poll();
    }
    let () = redis.run(&["SAVE"]);
    let failovers = |site: &Site| {
        let text = site.ops().send(Ask::get("/metrics")).text();
        series(&text, "trove_store_failovers_total")
    };
    redis.start_again();
    wait("every wallet to be void", || failovers(&site) == 1);
    redis.kill();
    wait("the store to be down", || store(&site) == "down");
    for player in &mut players {
        let poll = player.poll();
        assert_eq!(
            (&poll["balance"], &poll["stale"]),
            (&json!(5), &json!(true))
        );
    }
    for player in &mut idle {
        let poll = player.poll();
        assert_eq!(poll["stale"], true);
        // Of one of whom nothing is known the cursor is of no epoch: whoever names it is told all that is recent.
        assert!(poll["cursor"].as_str().unwrap().starts_with("0."), "{poll}");
    }
    redis.start_again();
    wait("the store to be up", || {
        store(&site) == "up" && players[0].poll()["stale"] == Value::Null
    });
    for player in &mut idle {
        assert_eq!(player.since("0.0")["reset"], true);
    }
    for player in &mut players {
        let poll = player.since("0.2");
        assert_eq!(
            (&poll["balance"], &poll["reset"]),
            (&json!(5), &json!(true))
        );
    }
    site.verifies();
}

#[test]
fn after_a_failover_polls_do_not_wait_until_a_busy_store_has_told_everything_anew() {
    let mut redis = Server::start();
    let mut site = Site::stopped(&[
        ("poll.jitter", "0"),
        ("store.recovery_ms", "0"),
        ("store.connect_wait_ms", "30000"),
        // As long as polls would wait otherwise.
        ("store.find_wait_ms", "60000"),
        ("store.response_timeout_ms", "50000"),
    ])
    .store_at(&redis.url());
    site.start_again();
    site.open_h();
    // Of those who have found something lately the store knows by heart what became of it; of others it has to be asked.
    let mut players: Vec<_> = (0..5).map(|nth| site.player(&format!("p{nth}"))).collect();
    let mut idle: Vec<_> = (0..5).map(|nth| site.player(&format!("q{nth}"))).collect();
    let mut cursors = Vec::new();
    for player in &mut players {
        player.find(&json!({"treasure": "a"})).is(201);
        let poll = player.poll();
        assert_eq!(poll["balance"], 5);
        cursors.push(poll["cursor"].as_str().unwrap().to_owned());
    }
    let idle_cursor = idle[0].poll()["cursor"].as_str().unwrap().to_owned();
    for player in &mut idle {
        assert_eq!(player.poll()["cursor"], idle_cursor);
    }
    let () = redis.run(&["SAVE"]);
    redis.start_again();
    wait("every wallet to be void", || {
        let text = site.ops().send(Ask::get("/metrics")).text();
        series(&text, "trove_store_failovers_total") == 1
    });
    redis.pause();
    let began = std::time::Instant::now();
    for player in &mut idle {
        let poll = player.since(&idle_cursor);
        assert_eq!(
            [&poll["balance"], &poll["stale"], &poll["cursor"]],
            [&json!(0), &json!(true), &json!(idle_cursor)]
        );
    }
    assert!(began.elapsed().as_secs() < 25, "{:?}", began.elapsed());
    // One that is held has time: it goes on to be held, and is answered with what is true.
    let mut held = site.player("q0");
    let ask = Ask::get(&format!("/treasure/h?since={idle_cursor}")).with("Prefer", "wait=20");
    let held = std::thread::spawn(move || held.send(ask).json());
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(
        !held.is_finished(),
        "it was answered while nothing was known"
    );
    redis.go_on();
    let answer = held.join().unwrap();
    assert_eq!(
        [&answer["balance"], &answer["reset"], &answer["stale"]],
        [&json!(0), &json!(true), &Value::Null]
    );
    for (player, cursor) in players.iter_mut().zip(&cursors) {
        wait("what is known to be of the new epoch", || {
            let poll = player.since(cursor);
            poll["stale"] == Value::Null && poll["reset"] == true && poll["balance"] == 5
        });
    }
    site.verifies();
}

#[test]
fn who_has_found_something_lately_is_known_after_a_failover_without_asking_the_store() {
    let mut redis = Server::start();
    let mut site = Site::stopped(&[
        ("poll.jitter", "0"),
        ("store.recovery_ms", "500"),
        ("store.connect_wait_ms", "30000"),
        ("store.find_wait_ms", "60000"),
        ("store.response_timeout_ms", "50000"),
    ])
    .store_at(&redis.url());
    site.start_again();
    site.open_h();
    let mut players: Vec<_> = (0..5).map(|nth| site.player(&format!("p{nth}"))).collect();
    let mut cursors = Vec::new();
    // Who comes before the last entry of what is left of a history is known to the millisecond, in each partition for itself.
    for nth in 0..200 {
        let mut player = site.player(&format!("first-{nth}"));
        player.find(&json!({"treasure": "a"})).is(201);
    }
    for player in &mut players {
        player.find(&json!({"treasure": "a"})).is(201);
        cursors.push(player.poll()["cursor"].as_str().unwrap().to_owned());
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    for nth in 0..200 {
        let mut player = site.player(&format!("last-{nth}"));
        player.find(&json!({"treasure": "a"})).is(201);
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    let () = redis.run(&["SAVE"]);
    redis.start_again();
    wait("every wallet to be void", || {
        let text = site.ops().send(Ask::get("/metrics")).text();
        series(&text, "trove_store_failovers_total") == 1
    });
    redis.pause();
    for (player, cursor) in players.iter_mut().zip(&cursors) {
        let poll = player.since(cursor);
        assert_eq!(
            [&poll["balance"], &poll["reset"], &poll["stale"]],
            [&json!(5), &json!(true), &Value::Null],
            "{poll}"
        );
        assert_eq!(poll["finds"][0]["id"], "a");
        assert_ne!(poll["cursor"], json!(cursor));
    }
    redis.go_on();
    // What happens to them is heard of, also from elsewhere.
    let mut other = Site::stopped(&[("poll.jitter", "0")]).store_at(&redis.url());
    other.start_again();
    for nth in 0..5 {
        let mut there = other.player(&format!("p{nth}"));
        there.find(&json!({"treasure": "b"})).is(201);
        assert_eq!(there.poll()["balance"], 12);
    }
    for player in &mut players {
        wait("what happened elsewhere", || player.poll()["balance"] == 12);
    }
    site.verifies();
}
