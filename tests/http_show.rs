//! The whole road once: a hunt of real places, a thousand players, finds singly and in bulk, polls, kill -9 in the middle,
//! and every coin where it must be.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{Ask, Client, Site, token};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;

const PLAYERS: usize = 1_000;

/// The demo's places as a hunt document.
fn document() -> Value {
    let places: Value = serde_json::from_str(include_str!("../data/demo_places.json")).unwrap();
    let treasures: Vec<Value> = places
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(nth, place)| {
            let mut treasure = place.clone();
            treasure["coins"] = json!(1 + nth % 50);
            treasure["repeatable"] = json!(nth % 3 == 0);
            treasure
        })
        .collect();
    json!({"id": "world", "name": "Airports of the world", "treasures": treasures})
}

/// Sends until the server, or the one after it, answers.
fn surely(server: &Mutex<std::net::SocketAddr>, ask: &Ask) -> Value {
    loop {
        let address = *server.lock().unwrap();
        match Client::new(address).try_send(ask) {
            Ok(answer) if answer.status == 200 || answer.status == 201 => return answer.json(),
            Ok(answer) if answer.status != 503 => panic!("{} {}", answer.status, answer.text()),
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
}

#[test]
fn every_coin_of_a_real_hunt_reaches_its_player_through_a_crash() {
    let mut site = Site::with(&[("poll.credit_wait_ms", "500")]);
    let document = document();
    site.open_hunt(&document);
    let treasures = document["treasures"].as_array().unwrap();
    let server = Mutex::new(site.public());
    let expected: Mutex<BTreeMap<String, u64>> = Mutex::default();
    let add = |player: &str, coins: &Value| {
        let coins = coins.as_u64().unwrap();
        *expected
            .lock()
            .unwrap()
            .entry(player.to_owned())
            .or_default() += coins;
    };
    std::thread::scope(|scope| {
        let (server, add) = (&server, &add);
        for part in 0..4 {
            scope.spawn(move || {
                for n in (part..PLAYERS).step_by(4) {
                    let treasure = &treasures[n * 7 % treasures.len()];
                    let (player, id) = (format!("p{n}"), format!("s{n}"));
                    let body = json!({"treasure": treasure["id"], "id": id}).to_string();
                    let ask = Ask::post("/treasure/world/finds", body).bearer(&token(&player));
                    let made = surely(server, &ask);
                    assert_eq!(made["coins"], treasure["coins"]);
                    add(&player, &made["coins"]);
                }
            });
        }
        scope.spawn(move || {
            for batch in 0..6 {
                let finds: Vec<Value> = (0..1_000)
                    .map(|n| json!({"id": format!("b{batch}-{n}"), "player": format!("p{}", n * 31 % PLAYERS), "treasure": treasures[0]["id"]}))
                    .collect();
                let ask = Ask::post("/hunts/world/finds", json!(finds).to_string()).bearer(http_site::ADMIN_KEY);
                let done = surely(server, &ask);
                assert_eq!(done["refused"], 0);
                for find in &finds {
                    add(find["player"].as_str().unwrap(), &treasures[0]["coins"]);
                }
            }
        });
        scope.spawn(move || {
            for n in 0..PLAYERS {
                surely(
                    server,
                    &Ask::get("/treasure/world").bearer(&token(&format!("p{n}"))),
                );
            }
        });
        http_site::wait("half of it", || {
            let listed = surely(server, &Ask::get("/hunts").bearer(http_site::ADMIN_KEY));
            listed["hunts"][0]["recorded"].as_u64() > Some(5_000)
        });
        site.kill();
        site.start_again();
        *server.lock().unwrap() = site.public();
    });
    let expected = expected.into_inner().unwrap();
    let mut client = site.client();
    for (player, coins) in &expected {
        let ask = Ask::get("/treasure/world").bearer(&token(player));
        let poll = client.send(ask).is(200);
        assert_eq!(
            poll["balance"].as_u64().unwrap() + poll["pending"].as_u64().unwrap(),
            *coins,
            "{player}"
        );
    }
    let sum: u64 = expected.values().sum();
    http_site::wait("all to be credited", || {
        let listed = site.manage(Ask::get("/hunts")).is(200);
        listed["hunts"][0]["credited"] == sum && listed["hunts"][0]["recorded"] == sum
    });
    site.verifies();
}
