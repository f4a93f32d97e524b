//! Polls that are held until there is news (`Prefer: wait`).

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Answer, Ask, Player, Site, series, wait};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Sends a poll that is held for as long as allowed, and waits until it is.
fn hold(site: &Site, name: &str, fields: &[(&str, &str)]) -> JoinHandle<Answer> {
    let before = held(site);
    let mut player = site.player(name);
    let mut ask = player.poll_ask().with("Prefer", "wait=55");
    for (name, value) in fields {
        ask = ask.with(name, value);
    }
    let answer = thread::spawn(move || player.send(ask));
    wait("the poll to be held", || {
        held(site) > before || answer.is_finished()
    });
    assert!(!answer.is_finished(), "{:?}", answer.join());
    answer
}

fn held(site: &Site) -> u64 {
    let metrics = site.ops().send(Ask::get("/metrics")).text();
    series(&metrics, "trove_held_polls")
}

fn ids(poll: &Value) -> Value {
    let finds = poll["finds"].as_array().unwrap();
    finds.iter().map(|find| find["id"].clone()).collect()
}

fn bulk(site: &Site, finds: &Value) {
    let done = site
        .manage(Ask::post("/hunts/h/finds", finds.to_string()))
        .is(200);
    assert_eq!(done["refused"], 0, "{done}");
}

#[test]
fn a_held_poll_is_woken_by_a_find_a_bulk_find_and_an_adjustment() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let answer = hold(&site, "ann", &[]);
    site.player("ann").finds("r", "one");
    let answer = answer.join().unwrap();
    assert_eq!(answer.field("preference-applied"), Some("wait=55"));
    let poll = answer.is(200);
    assert_eq!((ids(&poll), &poll["balance"]), (json!(["one"]), &json!(3)));

    let etag = answer.field("etag").unwrap().to_owned();
    let answer = hold(&site, "ann", &[("If-None-Match", &etag)]);
    bulk(&site, &json!([{"id": "two", "player": "ann", "coins": 40}]));
    let poll = answer.join().unwrap().is(200);
    assert_eq!((ids(&poll), &poll["balance"]), (json!(["two"]), &json!(43)));

    let answer = hold(&site, "ann", &[]);
    let adjust = json!({"coins": -3, "reason": "r", "key": "k"}).to_string();
    site.manage(Ask::post("/hunts/h/players/ann/adjust", adjust))
        .is(200);
    assert_eq!(answer.join().unwrap().is(200)["balance"], 40);
    assert_eq!(held(&site), 0);
}

#[test]
fn a_held_poll_is_woken_by_an_expiry() {
    let site = Site::with(&[("poll.credit_wait_ms", "0")]);
    let mut hunt = http_site::hunt_h();
    hunt["window_ms"] = json!(1);
    site.open_hunt(&hunt);
    let mut player = site.player("ann");
    player.finds("r", "one");
    let mut cursor = player.poll()["cursor"].as_str().unwrap().to_owned();
    let mut reasons = Vec::new();
    wait("the expiry", || {
        let ask = Ask::get(&format!("/treasure/h?since={cursor}")).with("Prefer", "wait=20");
        let poll = player.send(ask).is(200);
        cursor = poll["cursor"].as_str().unwrap().to_owned();
        let expired = poll["expired"].as_array().unwrap();
        reasons.extend(expired.iter().map(|find| find["reason"].clone()));
        poll["pending"] == 0
    });
    // Whether it ran out before its first poll or after, it is told once or more, and always as what it is.
    let shown = player.since(&cursor.replace(&cursor[cursor.find('.').unwrap()..], ".0"));
    let outcome = [&shown["expired"][0]["reason"], &shown["finds"][0]["id"]];
    assert!(
        outcome.contains(&&json!("window")) || outcome.contains(&&json!("one")),
        "{shown}"
    );
}

#[test]
fn a_poll_with_news_is_not_held() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let mut player = site.player("ann");
    let etag = player
        .send(player.poll_ask())
        .field("etag")
        .unwrap()
        .to_owned();
    player.finds("r", "one");
    let began = Instant::now();
    for field in [("If-None-Match", etag.as_str()), ("Accept", "*/*")] {
        let ask = player
            .poll_ask()
            .with("Prefer", "wait=50")
            .with(field.0, field.1);
        if field.0 == "Accept" {
            player.finds("r", "two");
        }
        assert_eq!(player.send(ask).status, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(40));
}

#[test]
fn at_the_end_of_the_wait_the_answer_is_304_if_conditional_and_200_otherwise() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    let etag = player
        .send(player.poll_ask())
        .field("etag")
        .unwrap()
        .to_owned();
    let ask = player.poll_ask().with("Prefer", "respond-async, wait=1");
    let began = Instant::now();
    let conditional = player.send(ask.clone().with("If-None-Match", &etag));
    assert_eq!(conditional.status, 304);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(conditional.field("preference-applied"), Some("wait=1"));
    assert!(conditional.field("trove-next-poll-ms").is_some());
    assert_eq!(player.send(ask).is(200)["credited"], 0);
    assert_eq!(held(&site), 0);
    let head = Ask::new("HEAD", "/treasure/h").with("Prefer", "wait=50");
    let began = Instant::now();
    assert_eq!(player.send(head).status, 200);
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "HEAD is not held"
    );
}

#[test]
fn held_polls_are_answered_at_once_when_draining() {
    let mut site = Site::start();
    site.open_h();
    let etag = {
        let mut player = site.player("ann");
        player
            .send(player.poll_ask())
            .field("etag")
            .unwrap()
            .to_owned()
    };
    let plain = hold(&site, "ann", &[]);
    let conditional = hold(&site, "ann", &[("If-None-Match", &etag)]);
    let began = Instant::now();
    site.signal(Signal::TERM);
    assert_eq!(plain.join().unwrap().status, 200);
    assert_eq!(conditional.join().unwrap().status, 304);
    assert!(site.ended().success());
    assert!(began.elapsed() < Duration::from_secs(40));
}

#[test]
fn a_poll_past_the_most_that_are_held_is_answered_at_once() {
    let site = Site::with(&[("poll.held_max", "1")]);
    site.open_h();
    let first = hold(&site, "ann", &[]);
    let mut bob = site.player("bob");
    let ask = bob.poll_ask().with("Prefer", "wait=50");
    assert_eq!(bob.send(ask).status, 200);
    site.player("ann").finds("r", "one");
    assert_eq!(first.join().unwrap().status, 200);
    let _second = hold(&site, "bob", &[]);
}

#[test]
fn a_held_poll_whose_client_has_gone_leaves_its_place() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    player.poll();
    let ask = player
        .poll_ask()
        .with("Prefer", "wait=50")
        .bearer(&player.token);
    player.client.start(&ask).unwrap();
    wait("the poll to be held", || held(&site) == 1);
    player.client.cut();
    wait("its place to be free", || held(&site) == 0);
}

#[test]
fn a_held_poll_of_a_player_who_is_erased_meanwhile_opens_nothing() {
    let site = Site::start();
    site.open_h();
    site.player("ann").finds("r", "one");
    site.player("ann").poll();
    let answer = hold(&site, "ann", &[]);
    site.client()
        .send(Ask::new("DELETE", "/players/ann").bearer(ADMIN_KEY))
        .is(200);
    answer.join().unwrap().is_problem(401, "erased");
}

#[test]
fn held_polls_are_counted_without_the_time_that_they_were_held() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let mut player = site.player("ann");
    let answer = player.send(player.poll_ask().with("Prefer", "wait=1"));
    let timing = answer.field("server-timing").unwrap().to_owned();
    let ms: f64 = timing["app;dur=".len()..]
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(ms < 1_000.0, "{timing}");
    let metrics = site.ops().send(Ask::get("/metrics")).text();
    let polls = "trove_http_request_duration_seconds_count{route=\"poll\",status_class=\"2xx\"}";
    assert_eq!(series(&metrics, polls), 1);
    for cause in ["client", "shim", "app", "store"] {
        let slow = format!("trove_slow_requests_total{{cause=\"{cause}\"}}");
        assert_eq!(series(&metrics, &slow), 0, "{cause}");
    }
}

/// A player whose phones hold a poll each.
#[test]
fn every_phone_of_a_player_is_woken() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let etag = {
        let mut player: Player = site.player("ann");
        player
            .send(player.poll_ask())
            .field("etag")
            .unwrap()
            .to_owned()
    };
    let phones: Vec<_> = (0..5)
        .map(|_| hold(&site, "ann", &[("If-None-Match", &etag)]))
        .collect();
    site.player("ann").finds("r", "one");
    for phone in phones {
        let poll = phone.join().unwrap().is(200);
        assert_eq!((ids(&poll), &poll["balance"]), (json!(["one"]), &json!(3)));
    }
}
