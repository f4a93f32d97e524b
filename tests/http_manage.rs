//! What operators do besides hunts and bulk finds: adjust, reinstate, export, verify.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{Answer, Ask, Site, lines};
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

fn adjust(site: &Site, body: &Value) -> Answer {
    site.manage(Ask::post("/hunts/h/players/ann/adjust", body.to_string()))
}

#[test]
fn an_adjustment_is_made_once_and_shows_in_the_history() {
    let site = Site::start();
    site.open_h();
    let grant = json!({"coins": 50, "reason": "sorry", "key": "k1"});
    let made = adjust(&site, &grant).is(200);
    assert_eq!(
        (&made["balance"], &made["duplicate"], &made["coins"]),
        (&json!(50), &json!(false), &json!(50))
    );
    let again = adjust(&site, &grant).is(200);
    assert_eq!(
        (&again["balance"], &again["duplicate"]),
        (&json!(50), &json!(true))
    );
    assert_eq!((&again["seq"], &again["at"]), (&made["seq"], &made["at"]));
    let other = json!({"coins": 51, "reason": "sorry", "key": "k1"});
    adjust(&site, &other).is_problem(409, "adjust_conflict");
    let revoke = json!({"coins": -51, "reason": "r", "key": "k2"});
    adjust(&site, &revoke).is_problem(409, "insufficient_coins");
    let revoke = json!({"coins": -20, "reason": "r", "key": "k2"});
    assert_eq!(
        adjust(&site, &revoke).is(200)["balance"],
        30,
        "a refused key is free"
    );
    let keyed = json!({"coins": 1, "reason": "r"}).to_string();
    let keyed = Ask::post("/hunts/h/players/ann/adjust", keyed);
    site.manage(keyed.clone()).is_problem(422, "malformed_body");
    site.manage(keyed.with("Idempotency-Key", "k3")).is(200);
    let both = Ask::post("/hunts/h/players/ann/adjust", grant.to_string());
    site.manage(both.with("Idempotency-Key", "k9"))
        .is_problem(422, "key_contradicts_id");
    for (body, code) in [
        (
            json!({"coins": 0, "reason": "r", "key": "k"}),
            "coins_out_of_range",
        ),
        (
            json!({"coins": 9_007_199_254_740_992_i64, "reason": "r", "key": "k"}),
            "coins_out_of_range",
        ),
        (
            json!({"coins": i64::MIN, "reason": "r", "key": "k"}),
            "coins_out_of_range",
        ),
        (
            json!({"coins": 9_007_199_254_740_991_i64, "reason": "r", "key": "k"}),
            "coins_out_of_range",
        ),
        (
            json!({"coins": 1.5, "reason": "r", "key": "k"}),
            "malformed_body",
        ),
        (
            json!({"coins": 1, "reason": "", "key": "k"}),
            "malformed_body",
        ),
        (
            json!({"coins": 1, "reason": "r\n", "key": "k"}),
            "malformed_body",
        ),
        (
            json!({"coins": 1, "reason": "r", "key": "x".repeat(257)}),
            "malformed_body",
        ),
        (json!({"coins": 1, "key": "k"}), "malformed_body"),
    ] {
        adjust(&site, &body).is_problem(422, code);
    }
    let ask = Ask::post("/hunts/x/players/ann/adjust", grant.to_string());
    site.manage(ask).is_problem(404, "no_such_hunt");
    let ask = Ask::post("/hunts/h/players/a%20b/adjust", grant.to_string());
    site.manage(ask).is_problem(422, "bad_parameter");
    let history = site
        .player("ann")
        .send(Ask::get("/treasure/h/history"))
        .is(200);
    let reasons: Vec<_> = history["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["coins"].as_i64().unwrap(), e["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(reasons, [(1, "r"), (-20, "r"), (50, "sorry")]);
    let entry = site
        .export("h")
        .into_iter()
        .find(|row| row["kind"] == "adjust")
        .unwrap();
    assert_eq!(
        (&entry["by"], &entry["key"]),
        (&json!("admin"), &json!("k1"))
    );
    site.verifies();
}

#[test]
fn a_players_name_may_hold_every_character_that_it_may_hold() {
    let site = Site::start();
    site.open_h();
    let name = "A-z_0.9:x@y.example";
    let path = "/hunts/h/players/A-z_0.9%3Ax%40y.example/adjust";
    let grant = json!({"coins": 5, "reason": "r", "key": "k"}).to_string();
    site.manage(Ask::post(path, grant)).is(200);
    let poll = site.player(name).poll();
    assert_eq!(
        (&poll["player"], &poll["balance"]),
        (&json!(name), &json!(5))
    );
    assert_eq!(
        site.manage(Ask::new("DELETE", &format!("/players/{name}")))
            .is(200)["existed"],
        true
    );
}

#[test]
fn what_ran_out_while_the_server_was_down_is_reinstated_once() {
    let mut site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    let mut hunt = http_site::hunt_h();
    hunt["window_ms"] = json!(2_000);
    site.open_hunt(&hunt);
    let mut ann = site.player("ann");
    let expires_at = ann.finds("r", "one")["expires_at"].as_u64().unwrap();
    // A window that has to run out while nothing runs: here the test does wait for time.
    site.kill();
    while http_site::seconds_now() * 1_000 <= expires_at + 1_000 {
        thread::sleep(Duration::from_millis(20));
    }
    site.start_again();
    let mut ann = site.player("ann");
    let poll = ann.since("0.0");
    assert_eq!(poll["balance"], 0);
    assert_eq!(poll["expired"][0]["reason"], "store_outage", "{poll}");
    let ask = |from: u64, to: u64| {
        let body = json!({"from": from, "to": to}).to_string();
        site.manage(Ask::post("/hunts/h/reinstate", body))
    };
    assert_eq!(ask(0, expires_at - 1).is(200)["finds"], 0);
    let done = ask(expires_at, expires_at).is(200);
    assert_eq!(done, json!({"finds": 1, "coins": 3, "refused": 0}));
    assert_eq!(ask(0, expires_at + 60_000).is(200)["finds"], 0, "once");
    let cursor = poll["cursor"].as_str().unwrap();
    let after = ann.since(cursor);
    assert_eq!(
        (&after["balance"], &after["finds"][0]["id"]),
        (&json!(3), &json!("one")),
        "{after}"
    );
    ask(5, 4).is_problem(422, "malformed_body");
    site.manage(Ask::post("/hunts/h/reinstate", "{}"))
        .is_problem(422, "malformed_body");
    site.manage(Ask::post(
        "/hunts/x/reinstate",
        json!({"from": 0, "to": 1}).to_string(),
    ))
    .is_problem(404, "no_such_hunt");
    // What ran out while the server was there stays expired.
    ann.finds("r", "two");
    http_site::wait("the second find to expire", || {
        site.manage(Ask::get("/hunts")).is(200)["hunts"][0]["expired"] == 3
    });
    assert_eq!(ask(0, expires_at + 600_000).is(200)["finds"], 0);
    site.verifies();
}

#[test]
fn exports_of_the_server_the_command_beside_it_and_after_it_are_the_same() {
    let mut site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    for n in 0..30 {
        let mut player = site.player(&format!("p{}", n % 7));
        player.finds("r", &n.to_string());
        if n % 3 > 0 {
            player.poll();
        }
    }
    adjust(
        &site,
        &json!({"coins": 5, "reason": "said \"sorry\", twice", "key": "k"}),
    )
    .is(200);
    let take = |format: &str| {
        let answer = site.manage(Ask::get(&format!("/hunts/h/export?format={format}")));
        assert_eq!(answer.status, 200);
        answer
    };
    let (jsonl, csv) = (take("jsonl"), take("csv"));
    assert!(
        csv.field("content-type")
            .unwrap()
            .starts_with("text/csv; charset=utf-8")
    );
    assert_eq!(site.manage(Ask::get("/hunts/h/export")).body, jsonl.body);
    site.manage(Ask::get("/hunts/h/export?format=xml"))
        .is_problem(422, "bad_parameter");
    site.manage(Ask::get("/hunts/x/export"))
        .is_problem(404, "no_such_hunt");
    let rows = lines(&jsonl.body);
    let sum = |kind: &str| -> i64 {
        let of = rows.iter().filter(|row| row["kind"] == kind);
        of.map(|row| row["coins"].as_i64().unwrap()).sum()
    };
    let mut csv_sums = std::collections::BTreeMap::<String, i64>::new();
    let mut reader = csv::Reader::from_reader(&csv.body[..]);
    let columns = reader.headers().unwrap().clone();
    let column = |name: &str| columns.iter().position(|known| known == name).unwrap();
    let mut csv_rows = 0;
    for record in reader.records().map(Result::unwrap) {
        csv_rows += 1;
        *csv_sums
            .entry(record[column("kind")].to_owned())
            .or_default() += record[column("coins")].parse::<i64>().unwrap_or_default();
    }
    assert_eq!(csv_rows, rows.len());
    for kind in ["find", "credit", "adjust"] {
        assert_eq!(csv_sums[kind], sum(kind), "{kind}");
    }
    let listed = site.manage(Ask::get("/hunts")).is(200)["hunts"][0].clone();
    assert_eq!(listed["recorded"], sum("find") + sum("adjust"));
    assert_eq!(listed["credited"], sum("credit") + sum("adjust"));
    let balances: i64 = rows.iter().filter_map(|row| row["balance"].as_i64()).sum();
    assert_eq!(listed["credited"], balances);
    let beside = [&["export", "h"][..], &["export", "h", "--format", "csv"]]
        .map(|args| site.run(args).stdout);
    assert_eq!(beside, [jsonl.body.clone(), csv.body.clone()]);
    let verified = site.verifies();
    assert!(site.stop().success());
    let after = [&["export", "h"][..], &["export", "h", "--format", "csv"]]
        .map(|args| site.run(args).stdout);
    assert_eq!(after, beside);
    assert_eq!(site.verifies(), verified);
}

#[test]
fn many_exports_at_once_leave_room_for_everybody_else() {
    let site = Site::start();
    site.open_h();
    let finds: Vec<Value> = (0..3_000)
        .map(|n| json!({"id": n.to_string(), "player": format!("p{}", n % 50), "coins": 1}))
        .collect();
    site.manage(Ask::post("/hunts/h/finds", json!(finds).to_string()))
        .is(200);
    // More than there are threads for blocking work, and nobody reads any of them.
    let stuck: Vec<_> = (0..600)
        .map(|_| {
            let mut client = site.client();
            client
                .start(&Ask::get("/hunts/h/export").bearer(http_site::ADMIN_KEY))
                .unwrap();
            client
        })
        .collect();
    // A wallet that is not in memory is read on such a thread.
    assert_eq!(
        site.player("p1").poll()["balance"].as_u64().unwrap() % 60,
        0
    );
    drop(stuck);
    site.verifies();
}
