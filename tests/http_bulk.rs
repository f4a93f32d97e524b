//! Bulk finds, from outside.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Answer, Ask, Site, lines};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn send(site: &Site, body: impl Into<Vec<u8>>) -> Answer {
    site.manage(Ask::post("/hunts/h/finds", body))
}

fn counts(answer: &Value) -> [u64; 3] {
    ["recorded", "duplicates", "refused"].map(|name| answer[name].as_u64().unwrap())
}

fn ndjson(finds: &[Value]) -> String {
    finds.iter().map(|find| format!("{find}\n")).collect()
}

fn many(count: usize, players: usize) -> Vec<Value> {
    let find = |n: usize| json!({"id": format!("f{n}"), "player": format!("p{}", n % players), "coins": n});
    (0..count).map(find).collect()
}

/// Every find of the ledger, with how often it is there.
fn recorded(site: &Site) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for row in site.export("h").iter().filter(|row| row["kind"] == "find") {
        *found
            .entry(row["find"].as_str().unwrap().to_owned())
            .or_default() += 1;
    }
    found
}

#[test]
fn an_array_and_lines_are_recorded_alike_and_a_repeat_adds_nothing() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let finds = [
        json!({"id": "1", "player": "ann", "treasure": "r"}),
        json!({"player": "ann", "treasure": "a"}),
        json!({"id": "2", "player": "bob", "coins": 100}),
    ];
    let first = send(&site, json!(finds).to_string()).is(200);
    assert_eq!(counts(&first), [3, 0, 0]);
    let outcomes = first["outcomes"].as_array().unwrap();
    let shown: Vec<_> = outcomes
        .iter()
        .map(|o| (&o["status"], &o["find"], &o["coins"]))
        .collect();
    assert_eq!(shown[0], (&json!(201), &json!("1"), &json!(3)));
    assert_eq!(shown[1], (&json!(201), &json!("a"), &json!(5)));
    assert_eq!(shown[2], (&json!(201), &json!("2"), &json!(100)));
    for body in [
        json!(finds).to_string(),
        ndjson(&finds),
        ndjson(&finds).replace('\n', "\r\n\r\n"),
    ] {
        let again = send(&site, body).is(200);
        assert_eq!(counts(&again), [0, 3, 0]);
        assert_eq!(
            again["outcomes"][2]["expires_at"],
            outcomes[2]["expires_at"]
        );
    }
    let ann = site.player("ann").poll();
    assert_eq!(
        (&ann["balance"], ann["finds"].as_array().unwrap().len()),
        (&json!(8), 2)
    );
    let bob = site.player("bob").poll();
    assert_eq!(
        (&bob["balance"], &bob["finds"][0]["treasure"]),
        (&json!(100), &Value::Null)
    );
    site.verifies();
}

#[test]
fn ten_thousand_finds_are_taken_and_one_more_is_not() {
    let site = Site::start();
    site.open_h();
    let finds = many(10_001, 500);
    let refused = send(&site, json!(finds).to_string());
    refused.is_problem(413, "too_many_finds");
    send(&site, ndjson(&finds)).is_problem(413, "too_many_finds");
    let done = send(&site, json!(finds[..10_000]).to_string()).is(200);
    assert_eq!(counts(&done), [10_000, 0, 0]);
    assert_eq!(
        counts(&send(&site, ndjson(&finds[..10_000])).is(200)),
        [0, 10_000, 0]
    );
    let recorded = recorded(&site);
    assert_eq!(recorded.len(), 10_000);
    assert!(recorded.values().all(|times| *times == 1));
    site.verifies();
}

#[test]
fn a_batch_whose_connection_breaks_is_sent_again_without_loss_or_doubling() {
    let site = Site::start();
    site.open_h();
    let finds = many(6_000, 300);
    let ask = Ask::post("/hunts/h/finds", ndjson(&finds)).bearer(ADMIN_KEY);
    let bytes = ask.bytes();
    // Cut in the body, at its end, and a little later, when some of it may be recorded.
    for (sent, wait_for) in [
        (bytes.len() / 2, 0),
        (bytes.len(), 0),
        (bytes.len(), 1),
        (bytes.len(), 1_500),
    ] {
        let mut client = site.client();
        client.raw(&bytes[..sent]).unwrap();
        http_site::wait("some of it to be recorded", || {
            let list = site.manage(Ask::get("/hunts")).is(200);
            wait_for == 0 || list["hunts"][0]["recorded"].as_u64().unwrap() >= wait_for
        });
        client.cut();
    }
    let done = send(&site, ndjson(&finds)).is(200);
    let [new, duplicates, refused] = counts(&done);
    assert_eq!((new + duplicates, refused), (6_000, 0));
    let recorded = recorded(&site);
    assert_eq!(recorded.len(), 6_000);
    assert!(recorded.values().all(|times| *times == 1));
    site.verifies();
}

#[test]
fn a_bad_find_among_good_ones_is_refused_alone() {
    let site = Site::start();
    site.open_h();
    let now = http_site::seconds_now() * 1_000;
    let cases = [
        (json!({"id": "1", "player": "ann", "coins": 1}), 201, ""),
        (
            json!({"id": "1", "player": "ann", "coins": 2}),
            409,
            "find_conflict",
        ),
        (
            json!({"id": "1", "player": "ann", "treasure": "r"}),
            409,
            "find_conflict",
        ),
        (
            json!({"id": "2", "player": "ann", "treasure": "zz"}),
            404,
            "no_such_treasure",
        ),
        (
            json!({"player": "ann", "treasure": "r"}),
            422,
            "id_required",
        ),
        (json!({"player": "ann", "coins": 1}), 422, "id_required"),
        (
            json!({"id": "3", "player": "a b", "coins": 1}),
            422,
            "malformed_body",
        ),
        (json!({"id": "3", "player": "ann"}), 422, "malformed_body"),
        (
            json!({"id": "3", "player": "ann", "coins": 1, "treasure": "r"}),
            422,
            "malformed_body",
        ),
        (
            json!({"id": "3", "player": "ann", "coins": -1}),
            422,
            "malformed_body",
        ),
        (
            json!({"id": "3", "player": "ann", "coins": 9_007_199_254_740_992_u64}),
            422,
            "coins_out_of_range",
        ),
        (
            json!({"id": "3", "player": "ann", "coins": 1, "x": 1}),
            422,
            "malformed_body",
        ),
        (
            json!({"id": "4", "player": "ann", "coins": 1, "found_at": now + 60_000}),
            422,
            "found_at_ahead",
        ),
        (
            json!({"id": "4", "player": "ann", "coins": 1, "found_at": u64::MAX}),
            422,
            "malformed_body",
        ),
        (json!("x"), 422, "malformed_body"),
        (
            json!({"id": "5", "player": "ann", "coins": 5, "found_at": now - 1_000}),
            201,
            "",
        ),
        (
            json!({"id": "6", "player": "bob", "coins": 9_007_199_254_740_991_u64}),
            422,
            "coins_out_of_range",
        ),
        (json!({"id": "7", "player": "bob", "coins": 0}), 201, ""),
    ];
    let finds: Vec<Value> = cases.iter().map(|(find, ..)| find.clone()).collect();
    for body in [json!(finds).to_string(), ndjson(&finds)] {
        let done = send(&site, body).is(200);
        for ((find, status, code), outcome) in
            cases.iter().zip(done["outcomes"].as_array().unwrap())
        {
            let again = *status == 201 && outcome["status"] == 200;
            assert!(outcome["status"] == *status || again, "{find}: {outcome}");
            assert_eq!(
                outcome["code"].as_str().unwrap_or_default(),
                *code,
                "{find}"
            );
        }
        assert_eq!(done["refused"], 15);
    }
    let mut broken = ndjson(&[json!({"id": "8", "player": "ann", "coins": 1})]);
    broken += "{\"id\":\n{\"id\":\"9\",\"player\":\"ann\",\"coins\":1}";
    assert_eq!(counts(&send(&site, broken).is(200)), [2, 0, 1]);
    for body in ["", "  \n ", "[]", "[{\"id\":\"x\"", "[1,"] {
        send(&site, body).is_problem(422, "malformed_body");
    }
    site.verifies();
}

#[test]
fn a_late_find_is_recorded_as_expired_and_a_back_dated_one_within_its_window_is_credited() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let now = site.player("ann").poll()["server_time"].as_u64().unwrap();
    let finds = json!([
        {"id": "late", "player": "ann", "coins": 10, "found_at": now - 300_001},
        {"id": "old", "player": "ann", "coins": 20, "found_at": now - 200_000},
        {"id": "soon", "player": "ann", "coins": 40, "found_at": now + 500},
    ]);
    let done = send(&site, finds.to_string()).is(200);
    let outcomes = done["outcomes"].as_array().unwrap();
    assert_eq!(
        (&outcomes[0]["status"], &outcomes[0]["expired"]),
        (&json!(201), &json!("window"))
    );
    assert_eq!(outcomes[1]["expires_at"], now + 100_000);
    assert!(outcomes[1].get("expired").is_none());
    let poll = site.player("ann").since("0.0");
    assert_eq!(poll["balance"], 60);
    assert_eq!(poll["expired"][0]["id"], "late");
    assert_eq!(poll["expired"][0]["reason"], "window");
    assert_eq!(counts(&send(&site, finds.to_string()).is(200)), [0, 3, 0]);
    site.verifies();
}

#[test]
fn a_body_past_8_mib_is_refused_whole() {
    let site = Site::start();
    site.open_h();
    let mut body = ndjson(&many(10, 1));
    body += &" ".repeat((8 << 20) - body.len());
    assert_eq!(counts(&send(&site, body.clone()).is(200)), [10, 0, 0]);
    body.push('\n');
    send(&site, body).is_problem(413, "body_too_large");
    site.manage(Ask::post("/hunts/x/finds", "[]"))
        .is_problem(404, "no_such_hunt");
}

#[test]
fn bulk_and_single_finds_of_the_same_player_race_to_the_same_ledger() {
    let site = Site::start();
    site.open_h();
    let finds: Vec<Value> = (0..400)
        .map(|n| json!({"id": format!("f{n}"), "player": "ann", "treasure": "r"}))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(send(&site, ndjson(&finds)).is(200)["refused"], 0));
        }
        scope.spawn(|| {
            let mut ann = site.player("ann");
            for n in (0..400).rev() {
                let find = ann.find(&json!({"treasure": "r", "id": format!("f{n}")}));
                assert!([200, 201].contains(&find.status), "{}", find.text());
            }
        });
        scope.spawn(|| {
            let mut ann = site.player("ann");
            let mut seen = BTreeSet::new();
            let mut cursor = ann.poll();
            while seen.len() < 300 {
                let at = cursor["cursor"].as_str().unwrap().to_owned();
                cursor = ann.since(&at);
                assert!(cursor.get("gap").is_none() || seen.len() < 400);
                if cursor["balance"] == 1_200 {
                    break;
                }
                seen.extend(
                    cursor["finds"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|f| f["id"].to_string()),
                );
            }
        });
    });
    assert_eq!(recorded(&site).len(), 400);
    http_site::wait("all to be credited", || {
        site.player("ann").poll()["balance"] == 1_200
    });
    site.verifies();
    assert_eq!(lines(&site.run(&["export", "h"]).stdout).len(), 1 + 800);
}
