//! The process from outside: health, metrics, drain, what every path says, and browsers.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Ask, Site, series, wait};
use rustix::process::Signal;
use serde_json::json;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn every_path_and_method_that_is_not_there_is_a_problem() {
    let site = Site::start();
    site.open_h();
    let mut client = site.client();
    for path in [
        "/",
        "/treasure",
        "/treasure/",
        "/treasure/h/",
        "/treasure/h/x",
        "/hunts/",
        "/hunts/h/x",
        "/metrics",
        "/heartbeat/x",
        "/%ff",
        "//treasure/h",
    ] {
        client.send(Ask::get(path)).is_problem(404, "not_found");
    }
    for (method, path, allowed) in [
        ("POST", "/treasure/h", "GET,HEAD"),
        ("OPTIONS", "/treasure/h", "GET,HEAD"),
        ("GET", "/treasure/h/finds", "POST"),
        ("DELETE", "/hunts/h", "GET,HEAD,PUT"),
        ("GET", "/heartbeat", "POST"),
        ("PATCH", "/hunts/h/finds", "POST"),
        ("GET", "/players/p", "DELETE"),
        ("BREW", "/token", "POST"),
    ] {
        let answer = client.send(Ask::new(method, path));
        answer.is_problem(405, "method_not_allowed");
        assert_eq!(answer.field("allow"), Some(allowed), "{method} {path}");
        assert_eq!(answer.field("x-instance-id"), Some("site-1"));
        assert!(answer.field("server-timing").is_some());
    }
    let not_utf8 = client.send(Ask::get("/treasure/%ff").bearer(&http_site::token("p")));
    assert!([400, 404].contains(&not_utf8.status), "{not_utf8:?}");
    assert_eq!(
        not_utf8.field("content-type"),
        Some("application/problem+json")
    );
    let beat = client.send(Ask::post("/heartbeat", "x".repeat(96)));
    assert_eq!((beat.status, beat.body.len()), (204, 0));
    let mut ops = site.ops();
    ops.send(Ask::get("/treasure/h"))
        .is_problem(404, "not_found");
    ops.send(Ask::new("POST", "/metrics"))
        .is_problem(405, "method_not_allowed");
}

#[test]
fn health_is_of_this_process_and_says_how_the_store_is() {
    let site = Site::start();
    for path in ["/health", "/health/live", "/health/ready"] {
        let health = site.client().send(Ask::get(path)).is(200);
        assert_eq!(
            (&health["status"], &health["store"]),
            (&json!("ok"), &json!("up"))
        );
        assert_eq!(health["instance"], "site-1");
        assert_eq!(site.client().send(Ask::new("HEAD", path)).status, 200);
    }
    assert_eq!(site.ops().send(Ask::get("/health")).is(200)["status"], "ok");
}

#[test]
fn a_draining_server_says_so_and_goes_on_through_its_notice() {
    let mut site = Site::with(&[("server.notice_ms", "600000")]);
    site.open_h();
    let mut ann = site.player("ann");
    site.signal(Signal::TERM);
    wait("it to drain", || {
        site.client().send(Ask::get("/health/ready")).status == 503
    });
    assert_eq!(
        site.client().send(Ask::get("/health")).is(503)["status"],
        "draining"
    );
    assert_eq!(
        site.client().send(Ask::get("/health/live")).is(200)["status"],
        "draining"
    );
    assert_eq!(site.ops().send(Ask::get("/health")).status, 503);
    ann.finds("r", "one");
    let poll = ann.send(ann.poll_ask().with("Prefer", "wait=50"));
    assert_eq!(
        (poll.status, poll.field("connection")),
        (200, Some("close"))
    );
    site.kill();
}

#[test]
fn what_was_acknowledged_before_a_sigterm_is_on_disk() {
    let mut site = Site::start();
    site.open_h();
    let stopped = AtomicBool::new(false);
    let acknowledged: Vec<String> = std::thread::scope(|scope| {
        let finders: Vec<_> = (0..8)
            .map(|n| {
                let mut player = site.player(&format!("p{n}"));
                let stopped = &stopped;
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    for i in 0.. {
                        let id = format!("p{n}-{i}");
                        let body = json!({"treasure": "r", "id": id}).to_string();
                        let ask = Ask::post("/treasure/h/finds", body).bearer(&player.token);
                        match player.client.try_send(&ask) {
                            Ok(answer) if answer.status == 201 => acknowledged.push(id),
                            Ok(answer) => panic!("{} {}", answer.status, answer.text()),
                            Err(_) if stopped.load(Ordering::Relaxed) => break,
                            Err(error) => panic!("{error}"),
                        }
                        // The wallet takes a thousand finds at most.
                        if i % 500 == 499
                            && player
                                .client
                                .try_send(&player.poll_ask().bearer(&player.token))
                                .is_err()
                        {
                            break;
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        wait("some finds", || {
            site.manage(Ask::get("/hunts")).is(200)["hunts"][0]["recorded"].as_u64() > Some(300)
        });
        stopped.store(true, Ordering::Relaxed);
        site.signal(Signal::TERM);
        finders
            .into_iter()
            .flat_map(|finder| finder.join().unwrap())
            .collect()
    });
    assert!(site.ended().success());
    let rows = site.export("h");
    let recorded: std::collections::BTreeSet<&str> = rows
        .iter()
        .filter(|row| row["kind"] == "find")
        .map(|row| row["find"].as_str().unwrap())
        .collect();
    assert!(acknowledged.len() > 90, "{}", acknowledged.len());
    for id in &acknowledged {
        assert!(
            recorded.contains(id.as_str()),
            "{id} was acknowledged and is gone"
        );
    }
    site.verifies();
    assert!(!site.store().join("trove.sock").exists());
}

#[test]
fn the_metrics_are_well_formed_and_equal_the_ledger() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    let text = site.ops().send(Ask::get("/metrics")).text();
    for cause in ["client", "shim", "app", "store"] {
        assert_eq!(
            series(
                &text,
                &format!("trove_slow_requests_total{{cause=\"{cause}\"}}")
            ),
            0
        );
    }
    for route in [
        "poll",
        "find",
        "history",
        "catalogue",
        "bulk_finds",
        "adjust",
        "export",
        "other",
    ] {
        for class in ["2xx", "3xx", "4xx", "5xx"] {
            let name = format!(
                "trove_http_request_duration_seconds_count{{route=\"{route}\",status_class=\"{class}\"}}"
            );
            assert_eq!(
                series(&text, &name),
                0,
                "every series is there from the start"
            );
        }
    }
    for name in [
        "trove_credits_total",
        "trove_refused_requests_total",
        "trove_refused_connections_total",
        "trove_dropped_connections_total",
        "trove_timeouts_total",
        "trove_panics_total",
        "trove_cut_answers_total",
        "trove_front_answers_total{code=\"answer_timeout\"}",
        "trove_blocking_jobs{state=\"queued\"}",
    ] {
        assert_eq!(series(&text, name), 0);
    }
    let mut hunt = http_site::hunt_h();
    hunt["window_ms"] = json!(60_000);
    site.open_hunt(&hunt);
    let now = site.player("ann").poll()["server_time"].as_u64().unwrap();
    let finds = json!([
        {"id": "1", "player": "ann", "coins": 10},
        {"id": "2", "player": "ann", "coins": 100, "found_at": now - 70_000},
        {"id": "3", "player": "bob", "coins": 1_000},
    ]);
    site.manage(Ask::post("/hunts/h/finds", finds.to_string()))
        .is(200);
    site.player("ann").poll();
    let adjust = json!({"coins": -4, "reason": "r", "key": "k"}).to_string();
    site.manage(Ask::post("/hunts/h/players/ann/adjust", adjust))
        .is(200);
    let mut client = site.client();
    client.raw(b"BROKEN\r\n\r\n").unwrap();
    client
        .finish(false)
        .unwrap()
        .is_problem(400, "bad_request_line");
    let text = site.ops().send(Ask::get("/metrics")).text();
    for (state, coins) in [
        ("recorded", 1_110),
        ("credited", 6),
        ("expired", 100),
        ("pending", 1_000),
        ("revoked", 4),
    ] {
        let name = format!("trove_coins{{hunt=\"h\",state=\"{state}\"}}");
        assert_eq!(series(&text, &name), coins, "{state}");
    }
    assert_eq!(series(&text, "trove_credits_total"), 1);
    assert_eq!(series(&text, "trove_refused_requests_total"), 1);
    assert_eq!(
        series(
            &text,
            "trove_http_request_duration_seconds_count{route=\"adjust\",status_class=\"2xx\"}"
        ),
        1
    );
    if let Ok(mut promtool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        promtool
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let checked = promtool.wait_with_output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    } else {
        println!("promtool is not installed: the metrics were not checked by it");
    }
}

#[test]
fn metrics_asked_for_at_once_count_nothing_twice() {
    let site = Site::start();
    site.open_h();
    site.player("ann").finds("r", "one");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| drop(site.ops().send(Ask::get("/metrics")))));
        }
    });
    let text = site.ops().send(Ask::get("/metrics")).text();
    let [batches, syncs] =
        ["trove_store_batches_total", "trove_store_syncs_total"].map(|name| series(&text, name));
    assert!(
        (1..20).contains(&batches) && syncs < 100,
        "{batches} {syncs}"
    );
}

#[test]
fn pages_of_allowed_origins_and_no_others_may_call() {
    let origin = "https://game.example";
    let preflight = || {
        Ask::new("OPTIONS", "/treasure/h")
            .with("Origin", origin)
            .with("Access-Control-Request-Method", "GET")
            .with(
                "Access-Control-Request-Headers",
                "authorization,if-none-match,prefer",
            )
    };
    for (setting, allowed) in [
        ("https://game.example,https://b.example", origin),
        ("*", "*"),
    ] {
        let site = Site::with(&[("cors.allowed_origins", setting)]);
        site.open_h();
        let answer = site.client().send(preflight());
        assert_eq!(answer.status, 200, "{setting}");
        assert_eq!(answer.field("access-control-allow-origin"), Some(allowed));
        let headers = answer.field("access-control-allow-headers").unwrap();
        assert!(
            headers.contains("authorization") && headers.contains("prefer"),
            "{headers}"
        );
        let mut ann = site.player("ann");
        let ask = ann.poll_ask().with("Origin", origin);
        for _ in 0..2 {
            let poll = ann.send(ask.clone());
            assert_eq!(poll.is(200)["balance"], 0);
            assert_eq!(poll.field("access-control-allow-origin"), Some(allowed));
            let exposed = poll.field("access-control-expose-headers").unwrap();
            assert!(
                exposed.contains("etag") && exposed.contains("trove-next-poll-ms"),
                "{exposed}"
            );
        }
        let refused = site.client().send(ask);
        assert_eq!(
            refused.field("access-control-allow-origin"),
            Some(allowed),
            "errors can be read too"
        );
        refused.is_problem(401, "token_missing");
        if setting != "*" {
            let other = ann.poll_ask().with("Origin", "https://evil.example");
            let other = ann.send(other);
            assert!(other.field("access-control-allow-origin").is_none());
        }
    }
    let site = Site::start();
    let answer = site.client().send(preflight());
    assert_eq!(answer.status, 405);
    assert!(answer.field("access-control-allow-origin").is_none());
}

#[test]
fn nothing_that_a_client_sends_comes_back_as_a_header() {
    let site = Site::start();
    site.open_h();
    let mut ann = site.player("ann");
    for value in [
        "wait=1\u{b}",
        "wait=1, x=\"y",
        "wait=99999999999999999999999",
        "wait=-1",
        "wait",
    ] {
        let ask = ann
            .poll_ask()
            .with("Prefer", value)
            .with("If-None-Match", "W/\"1.1\"");
        assert_ne!(ann.send(ask).status, 500, "{value}");
    }
    for path in [
        "/treasure/h%0d%0aX-Evil:1",
        "/hunts/h?fields=%0d%0aX-Evil:1",
        "/hunts/%0d%0aX-Evil:%201",
    ] {
        let answer = ann.send(Ask::get(path));
        assert!(
            answer.status >= 400 && answer.field("x-evil").is_none(),
            "{answer:?}"
        );
        assert!(answer.json()["code"].is_string());
    }
    let named = json!({"id": "n", "name": "</script>\u{2028}\"\\", "treasures": []});
    site.client()
        .send(
            Ask::new("PUT", "/hunts/n")
                .bearer(ADMIN_KEY)
                .body(named.to_string()),
        )
        .is(201);
    assert_eq!(
        site.client().send(Ask::get("/hunts/n")).is(200)["name"],
        named["name"]
    );
}
