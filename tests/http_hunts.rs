//! Hunts, from outside: documents, their life, the public catalogue.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Ask, Site, hunt_h};
use serde_json::{Value, json};
use std::io::Read;
use std::time::{Duration, Instant};

fn put(site: &Site, document: &Value) -> http_site::Answer {
    let id = document["id"].as_str().unwrap();
    site.manage(Ask::new("PUT", &format!("/hunts/{id}")).body(document.to_string()))
}

#[test]
fn a_document_creates_a_hunt_and_then_replaces_it() {
    let site = Site::start();
    let made = put(&site, &hunt_h()).is(201);
    assert_eq!(
        made,
        json!({"id": "h", "state": "draft", "generation": 1, "treasures": 3})
    );
    assert_eq!(put(&site, &hunt_h()).is(200)["state"], "draft");
    site.manage(Ask::new("POST", "/hunts/h/open")).is(200);
    let mut ann = site.player("ann");
    let made = ann.find(&json!({"treasure": "a"})).is(201);
    let mut changed = hunt_h();
    changed["treasures"][0]["coins"] = json!(500);
    changed["window_ms"] = json!(1_000);
    let more = json!({"id": "c", "coins": 11});
    changed["treasures"].as_array_mut().unwrap().push(more);
    put(&site, &changed).is(200);
    assert_eq!(
        ann.find(&json!({"treasure": "a"})).is(200)["coins"],
        5,
        "a find keeps its coins"
    );
    assert_eq!(
        ann.find(&json!({"treasure": "a"})).is(200)["expires_at"],
        made["expires_at"]
    );
    assert_eq!(ann.find(&json!({"treasure": "c"})).is(201)["coins"], 11);
    let mut without = hunt_h();
    without["treasures"].as_array_mut().unwrap().remove(0);
    put(&site, &without).is_problem(409, "treasure_found");
    let mut other_kind = changed.clone();
    other_kind["treasures"][0]["repeatable"] = json!(true);
    put(&site, &other_kind).is_problem(409, "treasure_found");
}

#[test]
fn what_is_wrong_with_a_document_is_named_by_json_pointers() {
    let site = Site::start();
    let treasure = |more: Value| {
        let mut treasure = json!({"id": "t", "coins": 1});
        treasure
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"id": "h", "name": "H", "treasures": [{"id": "s", "coins": 1}, treasure]})
    };
    for (document, code, pointer) in [
        (json!({"id": "h", "treasures": []}), "malformed_body", ""),
        (
            json!({"id": "h", "name": 7, "treasures": []}),
            "malformed_body",
            "/name",
        ),
        (
            json!({"id": "h", "name": "H", "treasures": {}}),
            "malformed_body",
            "/treasures",
        ),
        (
            treasure(json!({"coins": -1})),
            "malformed_body",
            "/treasures/1/coins",
        ),
        (
            treasure(json!({"coins": 1.5})),
            "malformed_body",
            "/treasures/1/coins",
        ),
        (
            treasure(json!({"coins": "5"})),
            "malformed_body",
            "/treasures/1/coins",
        ),
        (
            treasure(json!({"coins": 9_007_199_254_740_992_u64})),
            "invalid_hunt",
            "/treasures/1/coins",
        ),
        (
            treasure(json!({"id": "s"})),
            "invalid_hunt",
            "/treasures/1/id",
        ),
        (
            treasure(json!({"id": "a b"})),
            "invalid_hunt",
            "/treasures/1/id",
        ),
        (
            treasure(json!({"lat": 91, "lon": 0})),
            "invalid_hunt",
            "/treasures/1/lat",
        ),
        (treasure(json!({"lat": 1})), "invalid_hunt", "/treasures/1"),
        (
            treasure(json!({"supply": 5})),
            "invalid_hunt",
            "/treasures/1/supply",
        ),
        (
            treasure(json!({"prizes": []})),
            "invalid_hunt",
            "/treasures/1/prizes",
        ),
        (
            treasure(json!({"code": "x"})),
            "invalid_hunt",
            "/treasures/1/code",
        ),
        (
            treasure(json!({"radius_m": 5, "lat": 1, "lon": 1})),
            "invalid_hunt",
            "/treasures/1/radius_m",
        ),
        (
            treasure(json!({"name": "\u{7}"})),
            "invalid_hunt",
            "/treasures/1/name",
        ),
        (
            json!({"id": "h", "name": "", "treasures": []}),
            "invalid_hunt",
            "/name",
        ),
        (
            json!({"id": "h", "name": "H", "window_ms": 0, "treasures": []}),
            "invalid_hunt",
            "/window_ms",
        ),
        (
            json!({"id": "h", "name": "H", "opens_at": 5, "closes_at": 5, "treasures": []}),
            "invalid_hunt",
            "/closes_at",
        ),
        (
            json!({"id": "x", "name": "H", "treasures": []}),
            "malformed_body",
            "/id",
        ),
    ] {
        let answer = site.manage(Ask::new("PUT", "/hunts/h").body(document.to_string()));
        let problem = answer.is_problem(422, code);
        assert_eq!(problem["pointer"], pointer, "{problem}");
        assert_ne!(problem["detail"], "", "{problem}");
    }
    let many = json!({"id": "h", "name": "", "treasures": vec![json!({"id": "", "coins": 1}); 30]});
    let errors = put(&site, &many).is_problem(422, "invalid_hunt");
    assert_eq!(errors["errors"].as_array().unwrap().len(), 20);
    for body in ["", "{", "[]", "nul", "{\"id\":\"h\"}}"] {
        site.manage(Ask::new("PUT", "/hunts/h").body(body))
            .is_problem(422, "malformed_body");
    }
    assert_eq!(site.manage(Ask::get("/hunts")).is(200)["hunts"], json!([]));
}

#[test]
fn a_document_of_8_mib_is_taken_and_one_byte_more_is_not() {
    let site = Site::start();
    let document = hunt_h().to_string();
    let padded = |bytes: usize| format!("{}{document}", " ".repeat(bytes - document.len()));
    let put = |body: String| site.manage(Ask::new("PUT", "/hunts/h").body(body));
    put(padded(8 << 20)).is(201);
    let mut client = site.client();
    let ask = Ask::new("PUT", "/hunts/h")
        .bearer(ADMIN_KEY)
        .body(padded((8 << 20) + 1));
    client.send(ask).is_problem(413, "body_too_large");
    let mut chunked = format!(
        "PUT /hunts/h HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {ADMIN_KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for piece in padded(8 << 20).as_bytes().chunks(100_000) {
        chunked += &format!(
            "{:x}\r\n{}\r\n",
            piece.len(),
            std::str::from_utf8(piece).unwrap()
        );
    }
    client.raw((chunked + "0\r\n\r\n").as_bytes()).unwrap();
    client.finish(false).unwrap().is(200);
}

#[test]
fn the_steps_of_a_hunts_life_are_taken_once_and_in_order() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    let step = |step: &str| site.manage(Ask::new("POST", &format!("/hunts/h/{step}")));
    for name in ["open", "close", "archive"] {
        step(name).is_problem(404, "no_such_hunt");
    }
    put(&site, &hunt_h()).is(201);
    step("archive").is_problem(409, "hunt_not_closed");
    let opened = step("open").is(200);
    assert_eq!(opened["state"], "open");
    assert_eq!(
        step("open").is(200),
        opened,
        "opening an open hunt changes nothing"
    );
    step("archive").is_problem(409, "hunt_not_closed");
    let mut ann = site.player("ann");
    ann.finds("r", "one");
    assert_eq!(step("close").is(200)["state"], "closed");
    assert_eq!(step("close").is(200)["state"], "closed");
    step("archive").is_problem(409, "hunt_has_pending");
    assert_eq!(ann.poll()["balance"], 3);
    assert_eq!(step("open").is(200)["state"], "open");
    step("close").is(200);
    let archived = step("archive").is(200);
    assert_eq!(
        (&archived["state"], step("archive").is(200)),
        (&json!("archived"), archived.clone())
    );
    for name in ["open", "close"] {
        step(name).is_problem(410, "hunt_archived");
    }
    put(&site, &hunt_h()).is_problem(410, "hunt_archived");
    let bulk = json!([{"id": "x", "player": "ann", "coins": 1}]).to_string();
    site.manage(Ask::post("/hunts/h/finds", bulk))
        .is_problem(410, "hunt_archived");
    let adjust = json!({"coins": 5, "reason": "r", "key": "k"}).to_string();
    site.manage(Ask::post("/hunts/h/players/ann/adjust", adjust))
        .is_problem(410, "hunt_archived");
    let list = site.manage(Ask::get("/hunts")).is(200);
    let only = &list["hunts"][0];
    assert_eq!(
        (&only["id"], &only["state"], &only["credited"]),
        (&json!("h"), &json!("archived"), &json!(3))
    );
    assert_eq!(site.manage(Ask::get("/hunts/h/export")).status, 200);
    site.verifies();
}

#[test]
fn a_hunt_opens_and_closes_by_its_times() {
    let site = Site::start();
    let mut hunt = hunt_h();
    hunt["opens_at"] = json!(1);
    put(&site, &hunt).is(201);
    let mut ann = site.player("ann");
    ann.finds("r", "one");
    hunt["closes_at"] = json!(2);
    put(&site, &hunt).is(200);
    ann.find(&json!({"treasure": "a"}))
        .is_problem(409, "hunt_not_open");
    site.manage(Ask::new("POST", "/hunts/h/open"))
        .is_problem(409, "closes_at_passed");
}

#[test]
fn the_catalogue_is_public_and_cached() {
    let site = Site::with(&[("poll.catalogue_max_age_s", "7")]);
    site.open_h();
    let get = |ask: Ask| site.client().send(ask);
    let answer = get(Ask::get("/hunts/h"));
    let catalogue = answer.is(200);
    assert_eq!(catalogue["window_ms"], 300_000);
    assert_eq!(
        catalogue["treasures"][0],
        json!({"id": "a", "name": "A", "coins": 5, "lat": 1.5, "lon": 2.0})
    );
    assert_eq!(answer.field("cache-control"), Some("public, max-age=7"));
    assert_eq!(answer.field("vary"), Some("accept-encoding"));
    let etag = answer.field("etag").unwrap();
    let unchanged = get(Ask::get("/hunts/h").with("If-None-Match", &format!("\"x\", {etag}")));
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    assert_eq!(unchanged.field("etag"), Some(etag));
    assert_eq!(unchanged.field("cache-control"), Some("public, max-age=7"));
    let fields = get(Ask::get("/hunts/h?fields=id,coins"));
    assert_ne!(fields.field("etag"), Some(etag));
    assert_eq!(
        fields.is(200)["treasures"][0],
        json!({"id": "a", "coins": 5})
    );
    assert_eq!(
        fields.json()["treasures"][2],
        json!({"id": "r", "coins": 3})
    );
    get(Ask::get("/hunts/h?fields=code")).is_problem(422, "bad_parameter");
    get(Ask::get("/hunts/x")).is_problem(404, "no_such_hunt");
    let head = get(Ask::new("HEAD", "/hunts/h"));
    assert_eq!(
        head.field("content-length"),
        Some(answer.body.len().to_string().as_str())
    );
    for selection in 0..32u8 {
        let names = ["name", "coins", "lat", "lon", "repeatable"];
        let names: Vec<_> = names
            .iter()
            .enumerate()
            .filter(|(bit, _)| selection >> bit & 1 == 1)
            .map(|(_, name)| *name)
            .collect();
        get(Ask::get(&format!("/hunts/h?fields={}", names.join(",")))).is(200);
    }
}

#[test]
fn the_catalogue_comes_in_the_coding_that_is_asked_for() {
    let site = Site::start();
    site.open_h();
    let plain = site.client().send(Ask::get("/hunts/h")).body;
    for (accepts, coding) in [
        ("gzip", Some("gzip")),
        ("br", Some("br")),
        ("gzip, deflate, br", Some("br")),
        ("br;q=0, gzip;q=0.5", Some("gzip")),
        ("gzip;q=0", None),
        ("identity", None),
        ("*", Some("br")),
        ("", None),
    ] {
        let answer = site
            .client()
            .send(Ask::get("/hunts/h").with("Accept-Encoding", accepts));
        assert_eq!(answer.field("content-encoding"), coding, "{accepts}");
        let mut body = Vec::new();
        match coding {
            Some("gzip") => flate2::read::GzDecoder::new(&answer.body[..])
                .read_to_end(&mut body)
                .unwrap(),
            Some(_) => brotli::Decompressor::new(&answer.body[..], 4_096)
                .read_to_end(&mut body)
                .unwrap(),
            None => answer.body.as_slice().read_to_end(&mut body).unwrap(),
        };
        assert_eq!(body, plain, "{accepts}");
    }
}

#[test]
fn a_changed_document_shows_at_once() {
    let site = Site::start();
    site.open_h();
    let before = site.client().send(Ask::get("/hunts/h"));
    let mut changed = hunt_h();
    changed["treasures"][0]["name"] = json!("Ä");
    put(&site, &changed).is(200);
    let began = Instant::now();
    let after = site
        .client()
        .send(Ask::get("/hunts/h").with("If-None-Match", before.field("etag").unwrap()));
    assert_eq!(after.is(200)["treasures"][0]["name"], "Ä");
    assert!(began.elapsed() < Duration::from_secs(20));
}
