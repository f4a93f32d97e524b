//! Slow requests at the shim, each slow on purpose in one place, and blamed on that place alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod redis_server;
mod shim_site;

use redis_server::Server as Redis;
use shim_site::{Client, Process, Server, Shim, answer, start, tokens, trove, until};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SLOW: (&str, &str) = ("SLA__SLOW_MS", "1000");
const SLOWLY: Duration = Duration::from_millis(2_500);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CAUSES: [&str; 4] = ["client", "shim", "app", "store"];

fn slow(shim: &Shim) -> [u64; 4] {
    let reply = shim.ask_ops("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    CAUSES.map(|cause| {
        let series = format!("trove_slow_requests_total{{cause=\"{cause}\"}} ");
        let line = reply
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&series));
        line.expect("the series").parse().expect("a count")
    })
}

/// Waits until so many requests more than `before` are blamed on one cause, and holds the others to none more: what a
/// busy machine made slow while the test was set up does not count. The newest example.
#[track_caller]
fn blamed(shim: &Shim, before: [u64; 4], cause: &str, count: u64) -> serde_json::Value {
    let place = CAUSES.iter().position(|known| *known == cause).unwrap();
    until(&format!("{cause} is blamed"), || {
        slow(shim)[place] >= before[place] + count
    });
    let mut expected = before;
    expected[place] += count;
    let reply = shim.ask_ops("GET /sla HTTP/1.1\r\nhost: x\r\n\r\n");
    let sla: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(slow(shim), expected, "{CAUSES:?} {sla}");
    assert_eq!(sla["role"], "shim");
    sla["slow"]["examples"][0].clone()
}

fn poll(token: &str, hunt: &str) -> Vec<u8> {
    format!(
        "GET /treasure/{hunt} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ntraceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n\r\n"
    )
    .into_bytes()
}

fn find(token: &str) -> Vec<u8> {
    let body = r#"{"treasure": "t"}"#;
    format!(
        "POST /treasure/h/finds HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn signal(process: &Process, name: &str) {
    let pid = process.0.id().to_string();
    let status = Command::new("kill").args([name, &pid]).status();
    assert!(status.expect("kill").success());
}

/// A Trove server: its public listener and the one for operations.
fn serve(store: &str) -> (Process, SocketAddr, SocketAddr) {
    let mut command = trove(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--ops-listen",
        "127.0.0.1:0",
        "--store",
        store,
        "--instance-id",
        "the-server",
    ]);
    command.env("TROVE_STORE__RESPONSE_TIMEOUT_MS", "4000");
    start(command)
}

/// A shim before a server whose health is not asked for while a test stops it.
fn before(address: SocketAddr) -> Shim {
    let settings = [
        SLOW,
        ("SHIM_HEALTH__INTERVAL_MS", "60000"),
        ("SHIM_HEALTH__TIMEOUT_MS", "30000"),
    ];
    let shim = Shim::with(&[format!("blue={address}")], &settings);
    shim.until_linked(address, 2);
    shim
}

fn open_hunt(address: SocketAddr) {
    let mut client = Client::new(std::net::TcpStream::connect(address).unwrap());
    let document = r#"{"id":"h","name":"h","treasures":[{"id":"t","coins":5}]}"#;
    let admin = format!("authorization: Bearer {}\r\n", shim_site::ADMIN_KEY);
    client.send(
        format!(
            "PUT /hunts/h HTTP/1.1\r\nhost: x\r\n{admin}content-length: {}\r\n\r\n{document}",
            document.len()
        )
        .as_bytes(),
    );
    assert_eq!(client.reply().status, 201);
    client.send(
        format!("POST /hunts/h/open HTTP/1.1\r\nhost: x\r\n{admin}content-length: 0\r\n\r\n")
            .as_bytes(),
    );
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_client_that_sends_a_byte_at_a_time_is_blamed_alone() {
    let server = Server::start(|_, stream| answer(stream, 200, &[], b"well"));
    let shim = Shim::with(&[server.group("blue")], &[SLOW]);
    shim.until_usable(server.address, true);
    let before = slow(&shim);
    let slowly = |bytes: &[u8], at_once: usize| {
        let mut client = shim.connect();
        client.stream.set_nodelay(true).unwrap();
        client.send(&bytes[..at_once]);
        let began = Instant::now();
        let rest = &bytes[at_once..];
        for (n, byte) in (1..).zip(rest) {
            client.stream.write_all(&[*byte]).unwrap();
            let due = SLOWLY * n / u32::try_from(rest.len()).unwrap();
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        assert_eq!(client.reply().status, 200);
    };
    slowly(&poll("t", "h"), 0);
    let example = blamed(&shim, before, "client", 1);
    assert_eq!(example["trace_id"], TRACE);
    // Its body, where the request is forwarded while that comes.
    let find = find("t");
    slowly(&find, find.len() - 17);
    blamed(&shim, before, "client", 2);
}

#[test]
fn a_full_queue_is_blamed_on_the_shim_alone() {
    let go = Arc::new(AtomicBool::new(false));
    let may = go.clone();
    let server = Server::start(move |seen, stream| {
        if !seen.target.contains("/first") {
            return answer(stream, 200, &[], b"well");
        }
        until("the test lets it go", || may.load(SeqCst));
        // Held as its client wished: nobody's fault.
        answer(stream, 200, &[("preference-applied", "wait=5")], b"news")
    });
    let settings = [
        SLOW,
        ("SHIM_UPSTREAM__REQUESTS_MAX", "1"),
        ("SHIM_UPSTREAM__QUEUE_MS", "30000"),
    ];
    let shim = Shim::with(&[server.group("blue")], &settings);
    shim.until_usable(server.address, true);
    let before = slow(&shim);
    let mut first = shim.connect();
    first.send(&poll("a", "first"));
    until("it is under way", || {
        shim.instance(server.address)["outstanding"] == 1
    });
    let mut second = shim.connect();
    second.send(&poll("b", "second"));
    until("it waits", || {
        shim.metric("trove_shim_queued_requests{upstream=\"blue\"}") > 0.5
    });
    std::thread::sleep(SLOWLY);
    go.store(true, SeqCst);
    assert_eq!(first.reply().text(), "news");
    let reply = second.reply();
    assert_eq!(reply.text(), "well");
    let example = blamed(&shim, before, "shim", 1);
    assert_eq!(example["trace_id"], TRACE);
}

#[test]
fn a_server_that_stood_still_is_blamed_as_the_app_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address, _) = serve(&format!("embedded:{}", dir.path().display()));
    open_hunt(address);
    let shim = before(address);
    let token = &tokens(&["p".to_owned()])[0];
    let mut client = shim.connect();
    client.send(&poll(token, "h"));
    assert_eq!(client.reply().status, 200);
    let before = slow(&shim);
    signal(&server, "-STOP");
    client.send(&poll(token, "h"));
    std::thread::sleep(SLOWLY);
    signal(&server, "-CONT");
    assert_eq!(client.reply().status, 200);
    let example = blamed(&shim, before, "app", 1);
    assert_eq!(
        (&example["route"], &example["trace_id"]),
        (&"poll".into(), &TRACE.into())
    );
}

#[test]
fn a_paused_redis_is_blamed_on_the_store_alone() {
    let redis = Redis::start();
    let (_server, address, _) = serve(&redis.url());
    open_hunt(address);
    let shim = before(address);
    let token = &tokens(&["p".to_owned()])[0];
    let mut client = shim.connect();
    client.send(&poll(token, "h"));
    assert_eq!(client.reply().status, 200);
    let before = slow(&shim);
    redis.pause();
    client.send(&find(token));
    std::thread::sleep(SLOWLY);
    redis.go_on();
    let reply = client.reply();
    assert_eq!(reply.status, 201, "{}", reply.text());
    blamed(&shim, before, "store", 1);
}

/// What a process says of its slow requests, the newest first.
fn examples(ops: SocketAddr) -> Vec<serde_json::Value> {
    let mut client = Client::new(std::net::TcpStream::connect(ops).unwrap());
    client.send(b"GET /sla HTTP/1.1\r\nhost: x\r\n\r\n");
    let sla: serde_json::Value = serde_json::from_slice(&client.reply().body).unwrap();
    sla["slow"]["examples"].as_array().unwrap().clone()
}

#[test]
fn a_slow_request_whose_client_named_no_trace_has_one_that_its_server_knows_too() {
    let redis = Redis::start();
    let (_server, address, ops) = serve(&redis.url());
    open_hunt(address);
    let shim = before(address);
    let token = &tokens(&["p".to_owned()])[0];
    // Once over a link, and once over plain HTTP, for a body of unknown length travels on no link.
    let chunked = format!(
        "POST /treasure/h/finds HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ntransfer-encoding: chunked\r\n\r\n11\r\n{{\"treasure\": \"t\"}}\r\n0\r\n\r\n"
    );
    let on_links =
        format!("trove_shim_link_requests_total{{instance=\"{address}\",upstream=\"blue\"}}");
    for request in [find(token), chunked.into_bytes()] {
        let before = slow(&shim);
        let mut client = shim.connect();
        redis.pause();
        client.send(&request);
        std::thread::sleep(SLOWLY);
        redis.go_on();
        let reply = client.reply();
        assert!(matches!(reply.status, 200 | 201), "{}", reply.text());
        assert!(
            (shim.metric(&on_links) - 1.0).abs() < 0.5,
            "the first alone"
        );
        let example = blamed(&shim, before, "store", 1);
        let trace = example["trace_id"].as_str().expect("a trace");
        assert_eq!(trace.len(), 32, "{example}");
        until("the server tells of it too", || {
            examples(ops).iter().any(|one| one["trace_id"] == trace)
        });
    }
}

#[test]
fn a_shim_that_stood_still_is_blamed_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address, _) = serve(&format!("embedded:{}", dir.path().display()));
    open_hunt(address);
    let shim = before(address);
    let token = &tokens(&["p".to_owned()])[0];
    let mut client = shim.connect();
    client.send(&poll(token, "h"));
    assert_eq!(client.reply().status, 200);
    // The poll is with the server; the answer comes while nobody looks.
    let before = slow(&shim);
    signal(&server, "-STOP");
    client.send(&poll(token, "h"));
    until("it is under way", || {
        shim.instance(address)["on_links"] == 1
    });
    signal(&shim.process, "-STOP");
    signal(&server, "-CONT");
    std::thread::sleep(SLOWLY);
    signal(&shim.process, "-CONT");
    assert_eq!(client.reply().status, 200);
    blamed(&shim, before, "shim", 1);
}

#[test]
fn polls_that_no_server_answers_count_against_the_objective() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let shim = Shim::start(&[format!("blue={address}")]);
    assert_eq!(shim.ask(poll("t", "h")).status, 503);
    let polls = "trove_http_request_duration_seconds_count{route=\"poll\",status_class=\"5xx\"}";
    assert!((shim.metric(polls) - 1.0).abs() < 0.5);
    let reply = shim.ask_ops("GET /sla HTTP/1.1\r\nhost: x\r\n\r\n");
    let sla: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    let hour = &sla["objectives"][0]["windows"][2];
    assert_eq!(
        (&hour["requests"], &hour["failed"]),
        (&1.into(), &1.into()),
        "{sla}"
    );
}
