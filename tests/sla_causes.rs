//! Slow requests at a server, each slow on purpose in one place, and blamed on that place alone.

#![allow(clippy::unwrap_used)]

mod http_site;
mod redis_server;

use http_site::{Ask, Client, Site, series, token, wait};
use redis_server::Server;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What counts as slow in these tests, and several times as much.
const SLOW_MS: &str = "1000";
const SLOWLY: Duration = Duration::from_millis(2_500);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CAUSES: [&str; 4] = ["client", "shim", "app", "store"];

fn traced(ask: Ask) -> Ask {
    ask.with("traceparent", &format!("00-{TRACE}-00f067aa0ba902b7-01"))
}

/// Slow requests by cause, in the order of [`CAUSES`].
fn slow(site: &Site) -> [u64; 4] {
    let text = site.ops().send(Ask::get("/metrics")).text();
    CAUSES.map(|cause| {
        series(
            &text,
            &format!("trove_slow_requests_total{{cause=\"{cause}\"}}"),
        )
    })
}

/// Waits until so many requests more than `before` are blamed on one cause, and holds the others to none more: what a
/// busy machine made slow while the test was set up does not count.
#[track_caller]
fn blamed(site: &Site, before: [u64; 4], cause: &str, count: u64) -> Value {
    let place = CAUSES.iter().position(|known| *known == cause).unwrap();
    wait(&format!("{cause} to be blamed"), || {
        slow(site)[place] >= before[place] + count
    });
    let mut expected = before;
    expected[place] += count;
    assert_eq!(slow(site), expected, "{CAUSES:?}");
    let sla = site.ops().send(Ask::get("/sla")).is(200);
    assert_eq!(sla["slow"]["since_start"][cause], expected[place]);
    assert_eq!(sla["slow"]["windows"][0]["causes"][cause], expected[place]);
    let example = sla["slow"]["examples"][0].clone();
    assert_eq!(example["cause"], cause, "{example}");
    site.logged("a slow request");
    example
}

/// Sends bytes in pieces over at least [`SLOWLY`].
fn send_slowly(stream: &mut TcpStream, bytes: &[u8]) {
    let began = Instant::now();
    let pieces = u32::try_from(bytes.len()).unwrap();
    for (n, byte) in (1..).zip(bytes) {
        stream.write_all(&[*byte]).unwrap();
        let due = SLOWLY * n / pieces;
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
}

/// Sends a request a byte at a time; its status.
fn ask_slowly(site: &Site, ask: &Ask) -> u16 {
    let stream = TcpStream::connect(site.public()).unwrap();
    stream.set_nodelay(true).unwrap();
    send_slowly(&mut stream.try_clone().unwrap(), &ask.bytes());
    Client::on(stream).finish(false).unwrap().status
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_is_blamed_alone() {
    let site = Site::with(&[("sla.slow_ms", SLOW_MS)]);
    site.open_h();
    let before = slow(&site);
    let poll = || traced(Ask::get("/treasure/h").bearer(&token("ann")));
    // Through the router, where the player is not known yet, and from memory.
    assert_eq!(ask_slowly(&site, &poll()), 200);
    blamed(&site, before, "client", 1);
    assert_eq!(ask_slowly(&site, &poll()), 200);
    let example = blamed(&site, before, "client", 2);
    assert_eq!(
        (&example["route"], &example["status"]),
        (&json!("poll"), &json!(200))
    );
    assert_eq!(example["trace_id"], TRACE);
    assert!(
        example["parts_s"]["client"].as_f64().unwrap() >= 1.0,
        "{example}"
    );
    site.logged(TRACE);
    // What the client took is not the server's time.
    let text = site.ops().send(Ask::get("/metrics")).text();
    let in_time =
        "trove_http_request_duration_seconds_bucket{route=\"poll\",status_class=\"2xx\",le=\"1\"}";
    assert_eq!(series(&text, in_time), 2);
}

#[test]
fn a_client_that_sends_its_body_a_byte_at_a_time_is_blamed_alone() {
    let site = Site::with(&[("sla.slow_ms", SLOW_MS)]);
    site.open_h();
    let before = slow(&site);
    let ask = Ask::post("/treasure/h/finds", r#"{"treasure": "a"}"#).bearer(&token("ann"));
    let bytes = ask.bytes();
    let (head, body) = bytes.split_at(bytes.len() - ask.body.as_ref().unwrap().len());
    let mut stream = TcpStream::connect(site.public()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(head).unwrap();
    send_slowly(&mut stream, body);
    let answer = Client::on(stream).finish(false).unwrap();
    assert_eq!(answer.status, 201);
    let timing = answer.field("server-timing").unwrap();
    assert!(timing.contains("client;dur="), "{timing}");
    assert_eq!(blamed(&site, before, "client", 1)["route"], "find");
}

#[test]
fn a_client_that_does_not_read_its_answers_is_blamed_alone() {
    let site = Site::with(&[("sla.slow_ms", SLOW_MS)]);
    // Half a megabyte an answer.
    let treasures: Vec<Value> = (0..2_500)
        .map(|n| json!({"id": format!("t{n}"), "name": "n".repeat(200), "coins": 1}))
        .collect();
    site.open_hunt(&json!({"id": "h", "name": "h", "treasures": treasures}));
    site.client().send(Ask::get("/hunts/h")).is(200);
    let before = slow(&site);
    let mut client = site.client();
    // More than the sockets of both ends hold.
    let asked = 40;
    client
        .raw(&Ask::get("/hunts/h").bytes().repeat(asked))
        .unwrap();
    std::thread::sleep(SLOWLY);
    for _ in 0..asked {
        assert_eq!(client.finish(false).unwrap().status, 200);
    }
    let example = blamed(&site, before, "client", 1);
    assert_eq!(example["route"], "any");
}

#[test]
fn a_paused_redis_is_blamed_on_the_store_alone() {
    let redis = Server::start();
    let settings = [
        ("sla.slow_ms", SLOW_MS),
        ("server.instance_id", "one"),
        ("store.response_timeout_ms", "4000"),
    ];
    let mut site = Site::stopped(&settings).store_at(&redis.url());
    site.start_again();
    site.open_h();
    let mut ann = site.player("ann");
    ann.poll();
    let before = slow(&site);
    redis.pause();
    let asked = std::thread::spawn(move || {
        let body = json!({"treasure": "a"}).to_string();
        ann.send(traced(Ask::post("/treasure/h/finds", body)))
    });
    std::thread::sleep(SLOWLY);
    redis.go_on();
    let answer = asked.join().unwrap();
    answer.is(201);
    let example = blamed(&site, before, "store", 1);
    assert_eq!(
        (&example["route"], &example["status"]),
        (&json!("find"), &json!(201))
    );
    assert_eq!(example["trace_id"], TRACE);
}

#[test]
fn a_find_that_is_asked_for_again_until_redis_is_back_is_blamed_on_the_store_alone() {
    let redis = Server::start();
    // The link is given up and made anew several times meanwhile.
    let settings = [
        ("sla.slow_ms", SLOW_MS),
        ("server.instance_id", "one"),
        ("store.response_timeout_ms", "200"),
    ];
    let mut site = Site::stopped(&settings).store_at(&redis.url());
    site.start_again();
    site.open_h();
    let mut ann = site.player("ann");
    ann.poll();
    let before = slow(&site);
    redis.pause();
    let asked = std::thread::spawn(move || {
        let body = json!({"treasure": "a"}).to_string();
        ann.send(traced(Ask::post("/treasure/h/finds", body)))
    });
    std::thread::sleep(SLOWLY);
    redis.go_on();
    let answer = asked.join().unwrap();
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    blamed(&site, before, "store", 1);
}

#[test]
fn a_server_that_stood_still_is_blamed_itself() {
    let site = Site::with(&[("sla.slow_ms", SLOW_MS)]);
    site.open_h();
    let before = slow(&site);
    let ask = Ask::post("/treasure/h/finds", r#"{"treasure": "a"}"#).bearer(&token("ann"));
    let bytes = ask.bytes();
    let (first, rest) = bytes.split_at(bytes.len() - 5);
    let stream = TcpStream::connect(site.public()).unwrap();
    stream.set_nodelay(true).unwrap();
    (&stream).write_all(first).unwrap();
    wait("the request to be under way", || {
        let text = site.ops().send(Ask::get("/metrics")).text();
        series(&text, "trove_connections") == 1
    });
    // The rest of the body arrives at once, while nobody looks.
    site.signal(Signal::STOP);
    (&stream).write_all(rest).unwrap();
    std::thread::sleep(SLOWLY);
    site.signal(Signal::CONT);
    assert_eq!(Client::on(stream).finish(false).unwrap().status, 201);
    assert_eq!(blamed(&site, before, "app", 1)["route"], "find");
}

#[test]
fn a_request_whose_client_gave_up_is_counted_with_what_it_had_waited() {
    let redis = Server::start();
    let settings = [
        ("sla.slow_ms", SLOW_MS),
        ("server.instance_id", "one"),
        ("store.response_timeout_ms", "4000"),
    ];
    let mut site = Site::stopped(&settings).store_at(&redis.url());
    site.start_again();
    site.open_h();
    let before = slow(&site);
    redis.pause();
    let mut client = site.client();
    let body = json!({"treasure": "a"}).to_string();
    let find = Ask::post("/treasure/h/finds", body).bearer(&token("ann"));
    client.start(&find).unwrap();
    std::thread::sleep(SLOWLY);
    client.cut();
    let example = blamed(&site, before, "store", 1);
    assert_eq!(
        (&example["route"], &example["status"]),
        (&json!("find"), &json!(499))
    );
    redis.go_on();
    let text = site.ops().send(Ask::get("/metrics")).text();
    let of = |class: &str| {
        let labels = format!("{{route=\"find\",status_class=\"{class}\"}}");
        series(
            &text,
            &format!("trove_http_request_duration_seconds_count{labels}"),
        )
    };
    assert_eq!((of("2xx"), of("4xx"), of("5xx")), (0, 1, 0));
}

#[test]
fn a_credit_that_was_not_waited_for_to_its_end_counts_as_far_as_it_was() {
    let redis = Server::start();
    let settings = [
        ("sla.slow_ms", SLOW_MS),
        ("server.instance_id", "one"),
        ("store.response_timeout_ms", "4000"),
    ];
    let mut site = Site::stopped(&settings).store_at(&redis.url());
    site.start_again();
    site.open_h();
    let mut ann = site.player("ann");
    ann.poll();
    ann.finds("r", "one");
    let before = slow(&site);
    redis.pause();
    // The credit is waited for 20 ms, then the poll is held: that time is nobody's.
    let held = ann.send(ann.poll_ask().with("Prefer", "wait=1"));
    redis.go_on();
    let body = held.is(200);
    assert_eq!(
        (&body["pending"], &body["balance"]),
        (&json!(3), &json!(0)),
        "{body}"
    );
    let timing = held.field("server-timing").unwrap();
    let store_ms = timing.split("store;dur=").nth(1).unwrap();
    let store_ms: f64 = store_ms.split(',').next().unwrap().parse().unwrap();
    assert!((19.0..1_000.0).contains(&store_ms), "{timing}");
    assert_eq!(slow(&site), before);
}
