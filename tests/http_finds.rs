//! Finds and the history, from outside.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Ask, Site};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const FINDS: &str = "/treasure/h/finds";

#[test]
fn a_find_is_201_and_the_same_again_is_200() {
    let site = Site::start();
    site.open_h();
    let mut ann = site.player("ann");
    let first = ann.find(&json!({"treasure": "a"})).is(201);
    let names: BTreeSet<&str> = first
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let expected = [
        "find",
        "treasure",
        "coins",
        "found_at",
        "expires_at",
        "duplicate",
    ];
    assert_eq!(names, BTreeSet::from(expected));
    assert_eq!(
        (&first["find"], &first["treasure"]),
        (&json!("a"), &json!("a"))
    );
    assert_eq!(
        (&first["coins"], &first["duplicate"]),
        (&json!(5), &json!(false))
    );
    let window = first["expires_at"].as_u64().unwrap() - first["found_at"].as_u64().unwrap();
    assert_eq!(window, 300_000);
    let mut same = first.clone();
    same["duplicate"] = json!(true);
    // An id, a code and a place are no content of a once-only find.
    for body in [
        json!({"treasure": "a"}),
        json!({"treasure": "a", "id": "other"}),
        json!({"treasure": "a", "code": "x", "lat": 1, "lon": 2}),
    ] {
        assert_eq!(ann.find(&body).is(200), same, "{body}");
    }
    ann.poll();
    assert_eq!(
        ann.find(&json!({"treasure": "a"})).is(200),
        same,
        "also once credited"
    );
    assert_eq!(ann.poll()["balance"], 5);
}

#[test]
fn a_repeatable_treasure_needs_an_id_from_the_body_or_the_key() {
    let site = Site::start();
    site.open_h();
    let mut ann = site.player("ann");
    let bare = json!({"treasure": "r"});
    ann.find(&bare).is_problem(422, "id_required");
    let keyed = Ask::post(FINDS, bare.to_string());
    let made = ann
        .send(keyed.clone().with("Idempotency-Key", "k1"))
        .is(201);
    assert_eq!(made["find"], "k1");
    let again = ann
        .send(keyed.clone().with("Idempotency-Key", "\"k1\""))
        .is(200);
    assert_eq!(
        (&again["find"], &again["duplicate"]),
        (&json!("k1"), &json!(true))
    );
    assert_eq!(
        ann.find(&json!({"treasure": "r", "id": "k1"})).is(200)["find"],
        "k1"
    );
    let both = json!({"treasure": "r", "id": "k2"}).to_string();
    let both = Ask::post(FINDS, both);
    ann.send(both.clone().with("Idempotency-Key", "k3"))
        .is_problem(422, "key_contradicts_id");
    assert_eq!(
        ann.send(both.with("Idempotency-Key", "k2")).is(201)["find"],
        "k2"
    );
    let wrong = ann.send(keyed.with("Idempotency-Key", "a b"));
    assert_eq!(wrong.is_problem(422, "malformed_body")["pointer"], "/id");
}

#[test]
fn the_same_id_with_other_content_is_a_conflict_and_changes_nothing() {
    let site = Site::start();
    let mut hunt = http_site::hunt_h();
    let more = json!({"id": "q", "coins": 9, "repeatable": true});
    hunt["treasures"].as_array_mut().unwrap().push(more);
    site.open_hunt(&hunt);
    let mut ann = site.player("ann");
    ann.finds("r", "one");
    ann.find(&json!({"treasure": "q", "id": "one"}))
        .is_problem(409, "find_conflict");
    assert_eq!(ann.poll()["balance"], 3);
    // The id of a once-only treasure is the treasure's: another namespace.
    ann.finds("r", "a");
    assert_eq!(ann.find(&json!({"treasure": "a"})).is(201)["coins"], 5);
    // And ids are scoped to the player.
    site.player("bob").finds("q", "one");
}

#[test]
fn checks_come_in_the_order_of_the_contract() {
    let site = Site::start();
    site.open_h();
    let mut ann = site.player("ann");
    ann.finds("r", "one");
    let shapeless = Ask::post("/treasure/nowhere/finds", "{");
    // Token before shape, shape before everything.
    site.client()
        .send(shapeless.clone())
        .is_problem(401, "token_missing");
    ann.send(shapeless).is_problem(422, "malformed_body");
    let nowhere = Ask::post(
        "/treasure/nowhere/finds",
        json!({"treasure": "a"}).to_string(),
    );
    ann.send(nowhere).is_problem(404, "no_such_hunt");
    ann.find(&json!({"treasure": "zz"}))
        .is_problem(404, "no_such_treasure");
    site.manage(Ask::new("POST", "/hunts/h/close")).is(200);
    // Identity before the hunt's state.
    ann.find(&json!({"treasure": "r", "id": "one"})).is(200);
    ann.find(&json!({"treasure": "r", "id": "two"}))
        .is_problem(409, "hunt_not_open");
    ann.find(&json!({"treasure": "r"}))
        .is_problem(422, "id_required");
    assert_eq!(
        ann.poll()["balance"],
        3,
        "polls go on when the hunt is closed"
    );
    site.manage(Ask::new("POST", "/hunts/h/archive")).is(200);
    ann.find(&json!({"treasure": "r", "id": "one"}))
        .is_problem(410, "hunt_archived");
    ann.send(Ask::get("/treasure/h"))
        .is_problem(410, "hunt_archived");
    ann.send(Ask::get("/treasure/h/history"))
        .is_problem(410, "hunt_archived");
}

#[test]
fn a_draft_takes_no_finds() {
    let site = Site::start();
    let hunt = http_site::hunt_h();
    site.manage(Ask::new("PUT", "/hunts/h").body(hunt.to_string()))
        .is(201);
    let mut ann = site.player("ann");
    ann.find(&json!({"treasure": "a"}))
        .is_problem(409, "hunt_not_open");
    assert_eq!(ann.poll()["balance"], 0);
}

#[test]
fn a_malformed_find_says_where() {
    let site = Site::start();
    site.open_h();
    let mut ann = site.player("ann");
    for (body, pointer) in [
        ("", ""),
        ("{", ""),
        ("[]", ""),
        ("null", ""),
        ("{}", ""),
        ("{\"treasure\":7}", "/treasure"),
        ("{\"treasure\":\"a b\"}", "/treasure"),
        ("{\"treasure\":\"\"}", "/treasure"),
        ("{\"treasure\":\"a\",\"id\":\"\"}", "/id"),
        ("{\"treasure\":\"a\",\"id\":\"a/b\"}", "/id"),
        ("{\"treasure\":\"a\",\"coins\":1}", "/coins"),
        ("{\"treasure\":\"a\",\"treasure\":\"b\"}", "/treasure"),
        ("\u{feff}{\"treasure\":\"a\"}", ""),
    ] {
        let problem = ann
            .send(Ask::post(FINDS, body))
            .is_problem(422, "malformed_body");
        let said = problem["pointer"]
            .as_str()
            .unwrap_or_else(|| panic!("{body}: {problem}"));
        // serde names a field that is unknown or doubled by the object that holds it, or by itself.
        assert!(said == pointer || said.is_empty(), "{body}: {problem}");
    }
    let long = json!({"treasure": "x".repeat(65)});
    ann.find(&long).is_problem(422, "malformed_body");
    let not_utf8 = b"{\"treasure\":\"\xff\"}".to_vec();
    ann.send(Ask::post(FINDS, not_utf8))
        .is_problem(422, "malformed_body");
    assert_eq!(
        ann.poll()["cursor"]
            .as_str()
            .unwrap()
            .split_once('.')
            .unwrap()
            .1,
        "0"
    );
}

#[test]
fn a_body_past_the_limit_is_refused_whether_or_not_it_says_its_length() {
    let site = Site::start();
    site.open_h();
    let mut ann = site.player("ann");
    let padded = |bytes: usize| {
        let find = json!({"treasure": "a"}).to_string();
        format!("{find}{}", " ".repeat(bytes - find.len()))
    };
    ann.send(Ask::post(FINDS, padded(65_536))).is(201);
    ann.send(Ask::post(FINDS, padded(65_537)))
        .is_problem(413, "body_too_large");
    let mut chunked = format!(
        "POST {FINDS} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        ann.token
    );
    for _ in 0..5 {
        chunked += &format!("4000\r\n{}\r\n", " ".repeat(0x4000));
    }
    let mut client = site.client();
    let _ = client.raw((chunked + "0\r\n\r\n").as_bytes());
    client
        .finish(false)
        .unwrap()
        .is_problem(413, "body_too_large");
}

#[test]
fn too_many_pending_finds_are_429_until_they_are_collected() {
    let site = Site::with(&[
        ("game.pending_finds_max", "2"),
        ("poll.credit_wait_ms", "1000"),
    ]);
    site.open_h();
    let mut ann = site.player("ann");
    ann.finds("r", "1");
    ann.finds("r", "2");
    ann.find(&json!({"treasure": "r", "id": "3"}))
        .is_problem(429, "too_many_pending");
    assert_eq!(ann.poll()["balance"], 6);
    ann.finds("r", "3");
}

#[test]
fn finds_raced_by_many_phones_are_recorded_once() {
    let site = Site::start();
    site.open_h();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let phones: Vec<_> = (0..16)
            .map(|_| {
                let mut phone = site.player("ann");
                scope.spawn(move || phone.find(&json!({"treasure": "a"})).status)
            })
            .collect();
        phones
            .into_iter()
            .map(|phone| phone.join().unwrap())
            .collect()
    });
    assert_eq!(
        statuses.iter().filter(|status| **status == 201).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 15);
    http_site::wait("the credit", || site.player("ann").poll()["balance"] == 5);
    site.verifies();
}

#[test]
fn history_pages_lead_from_the_newest_entry_to_the_first() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let mut ann = site.player("ann");
    for n in 0..7 {
        ann.finds("r", &n.to_string());
        ann.poll();
    }
    let adjust = json!({"coins": -1, "reason": "sorry", "key": "k"}).to_string();
    site.client()
        .send(Ask::post("/hunts/h/players/ann/adjust", adjust).bearer(ADMIN_KEY))
        .is(200);
    let whole = ann.send(Ask::get("/treasure/h/history")).is(200);
    let entries = whole["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 15);
    assert!(whole.get("next_before").is_none());
    let seqs: Vec<u64> = entries.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=15).rev().collect::<Vec<_>>());
    let newest = &entries[0];
    assert_eq!(
        (&newest["kind"], &newest["coins"], &newest["reason"]),
        (&json!("adjustment"), &json!(-1), &json!("sorry"))
    );
    assert_eq!(
        (&entries[1]["kind"], &entries[2]["kind"]),
        (&json!("credit"), &json!("find"))
    );
    for limit in [1, 4, 5, 15, 500] {
        let mut paged: Vec<Value> = Vec::new();
        let mut before = String::new();
        loop {
            let page = ann
                .send(Ask::get(&format!(
                    "/treasure/h/history?limit={limit}{before}"
                )))
                .is(200);
            paged.extend(page["entries"].as_array().unwrap().iter().cloned());
            let Some(next) = page.get("next_before") else {
                break;
            };
            before = format!("&before={next}");
        }
        assert_eq!(&paged, entries, "{limit}");
    }
    for query in [
        "limit=0",
        "limit=501",
        "limit=x",
        "before=-1",
        "before=x",
        "other=1",
    ] {
        let ask = Ask::get(&format!("/treasure/h/history?{query}"));
        ann.send(ask).is_problem(422, "bad_parameter");
    }
    assert_eq!(
        ann.send(Ask::get("/treasure/h/history?before=0")).is(200)["entries"],
        json!([])
    );
    let far = format!("/treasure/h/history?before={}&limit=1", u64::MAX);
    assert_eq!(ann.send(Ask::get(&far)).is(200)["entries"][0]["seq"], 15);
    site.client()
        .send(Ask::get("/treasure/h/history"))
        .is_problem(401, "token_missing");
    ann.send(Ask::get("/treasure/x/history"))
        .is_problem(404, "no_such_hunt");
}
