//! The shim before real Trove servers, over links and over plain HTTP: servers that go away, stop speaking links and
//! begin again, and polls that are held.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use shim_site::{Client, PATIENCE, Process, Shim, start, tokens, trove, until};

fn poll(token: &str) -> Vec<u8> {
    poll_with(token, "")
}

fn poll_with(token: &str, fields: &str) -> Vec<u8> {
    format!("GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{fields}\r\n")
        .into_bytes()
}

fn find(token: &str) -> Vec<u8> {
    let body = r#"{"treasure": "t"}"#;
    let length = body.len();
    format!(
        "POST /treasure/h/finds HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Ends the others when a thread fails.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, SeqCst);
        }
    }
}

/// A Trove server with a store of its own.
fn serve(dir: &Path, name: &str, listen: &str, settings: &[(&str, &str)]) -> (Process, SocketAddr) {
    let store = format!("embedded:{}", dir.join(name).display());
    let args = [
        "serve",
        "--listen",
        listen,
        "--ops-listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--instance-id",
        name,
    ];
    let mut command = trove(&args);
    for (name, value) in settings {
        command.env(format!("TROVE_{name}"), value);
    }
    let (process, public, _) = start(command);
    (process, public)
}

fn on_links(shim: &Shim, address: SocketAddr) -> f64 {
    shim.metric(&format!(
        "trove_shim_link_requests_total{{instance=\"{address}\",upstream=\"blue\"}}"
    ))
}

/// Two Trove servers with the same hunt.
fn two_servers(dir: &Path) -> Vec<(Process, SocketAddr)> {
    let hunt = dir.join("hunt.json");
    std::fs::write(
        &hunt,
        r#"{"id":"h","name":"h","treasures":[{"id":"t","coins":5}]}"#,
    )
    .unwrap();
    ["a", "b"]
        .map(|name| {
            let (process, public) = serve(dir, name, "127.0.0.1:0", &[]);
            let server = format!("http://{public}");
            let put = ["hunt", "put", hunt.to_str().unwrap(), "--server", &server];
            assert!(trove(&put).output().unwrap().status.success());
            let open = ["hunt", "open", "h", "--server", &server];
            assert!(trove(&open).output().unwrap().status.success());
            (process, public)
        })
        .into()
}

#[test]
fn a_killed_instance_costs_no_poll_and_mixes_up_no_player() {
    for links in ["2", "0"] {
        under_load(links, false, Process::kill);
    }
}

#[test]
fn an_instance_that_is_told_to_stop_costs_no_request_at_all() {
    for links in ["2", "0"] {
        under_load(links, true, |process| process.terminate());
    }
}

/// Thousands of players over few connections, while one of two instances goes away. Every answer must be its player's.
fn under_load(links: &str, with_finds: bool, takes_away: impl FnOnce(&mut Process)) {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = two_servers(dir.path());
    let addresses = format!("blue={},{}", servers[0].1, servers[1].1);
    let shim = Shim::with(&[addresses], &[("SHIM_UPSTREAM__LINKS", links)]);
    for (_, address) in &servers {
        shim.until_usable(*address, true);
        shim.until_linked(*address, links.parse().unwrap());
    }
    let players: Vec<String> = (0..3000).map(|n| format!("player-{n}")).collect();
    let tokens = tokens(&players);
    let (done, is_away) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done_since = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let by: Mutex<HashMap<String, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..32usize {
            let (shim, players, tokens, by) = (&shim, &players, &tokens, &by);
            let (done, is_away, done_since, stop) = (&done, &is_away, &done_since, &stop);
            scope.spawn(move || {
                let _stops = StopOnPanic(stop);
                let mut client = shim.connect();
                let mut n = thread;
                while !stop.load(SeqCst) {
                    // Several players' polls are under way on one connection.
                    let many = [n, n + 7, n + 11].map(|n| n % players.len());
                    let polls = many.iter().map(|player| poll(&tokens[*player]));
                    client.send(&polls.collect::<Vec<_>>().concat());
                    for player in many {
                        let reply = client.reply();
                        assert_eq!(reply.status, 200, "{}", reply.text());
                        let owner = format!(r#""player":"{}""#, players[player]);
                        assert!(reply.text().contains(&owner), "{owner}: {}", reply.text());
                        let instance = reply.field("x-instance-id").expect("an instance");
                        *by.lock().unwrap().entry(instance.to_owned()).or_default() += 1;
                        done.fetch_add(1, SeqCst);
                        if is_away.load(SeqCst) {
                            done_since.fetch_add(1, SeqCst);
                        }
                    }
                    if with_finds && n % 4 == 0 {
                        client.send(&find(&tokens[many[0]]));
                        let reply = client.reply();
                        assert!(matches!(reply.status, 200 | 201), "{}", reply.text());
                    }
                    n += 32;
                }
            });
        }
        let _stops = StopOnPanic(&stop);
        until_long("polls are under way", || {
            done.load(SeqCst) > 3_000 || stop.load(SeqCst)
        });
        takes_away(&mut servers[0].0);
        is_away.store(true, SeqCst);
        until_long("polls go on", || {
            done_since.load(SeqCst) > 3_000 || stop.load(SeqCst)
        });
        stop.store(true, SeqCst);
    });
    let by = by.lock().unwrap();
    assert!(by["a"] > 300 && by["b"] > 3_000, "{by:?}");
    let on_links: f64 = servers.iter().map(|(_, at)| on_links(&shim, *at)).sum();
    if links == "0" {
        assert!(on_links < 0.5, "{on_links}");
    } else {
        assert!(on_links > 5_000.0, "{on_links} of {by:?}");
    }
}

/// Like `until`, for what takes a while on a busy machine.
fn until_long(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < 4 * PATIENCE,
            "waited in vain until {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn held_polls_on_links_hold_back_nobody_and_each_hears_of_its_own_news() {
    let dir = tempfile::tempdir().unwrap();
    // One: a find must be where its player's poll is, and their stores are their own.
    let (_process, address) = two_servers(dir.path()).swap_remove(0);
    // Over plain HTTP, three requests could be there.
    let settings = [
        ("SHIM_UPSTREAM__REQUESTS_MAX", "2"),
        ("SHIM_UPSTREAM__QUEUE_MAX", "1"),
    ];
    let shim = Shim::with(&[format!("blue={address}")], &settings);
    shim.until_usable(address, true);
    shim.until_linked(address, 2);
    let under_way = || shim.instance(address)["on_links"].as_u64().unwrap();
    let players: Vec<String> = (0..800).map(|n| format!("player-{n}")).collect();
    let tokens = tokens(&players);
    let held = |token: &String| {
        let mut client = shim.connect();
        client.send(&poll_with(token, "prefer: wait=55\r\n"));
        client
    };
    let mut clients: Vec<Client> = tokens.iter().map(held).collect();
    until("all are held", || under_way() == 800);
    // Those who leave are let go of.
    for gone in clients.drain(600..) {
        let socket = socket2::SockRef::from(&gone.stream);
        socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
    until("the servers have let go", || under_way() == 600);
    let mut other = shim.connect();
    for token in &tokens[600..] {
        other.send(&poll(token));
        assert_eq!(other.reply().status, 200);
    }
    // The news come in another order than the polls did.
    for n in (0..600).map(|n| n * 7 % 600) {
        other.send(&find(&tokens[n]));
        let reply = other.reply();
        assert!(matches!(reply.status, 200 | 201), "{}", reply.text());
        let reply = clients[n].reply();
        let owner = format!(r#""player":"{}""#, players[n]);
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains(&owner), "{owner}: {}", reply.text());
        // On a slow disk the credit may still be under way.
        let is_news = [r#""balance":5"#, r#""pending":5"#].map(|part| reply.text().contains(part));
        assert!(is_news.contains(&true), "{}", reply.text());
    }
    until("nothing is under way", || under_way() == 0);
    // Their time was no time of anybody here.
    let slow: f64 = ["shim", "app", "client", "store"]
        .iter()
        .map(|cause| shim.metric(&format!(r#"trove_slow_requests_total{{cause="{cause}"}}"#)))
        .sum();
    assert!(slow < 0.5, "{slow}");
}

#[test]
fn a_server_that_stops_speaking_links_is_spoken_to_over_plain_http_until_it_speaks_them_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut servers, name) = (two_servers(dir.path()), "a");
    let (process, address) = servers.swap_remove(0);
    drop(servers);
    let shim = Shim::start(&[format!("blue={address}")]);
    let token = &tokens(&["p".to_owned()])[0];
    let mut client = shim.connect();
    let mut works = || {
        client.send(&poll(token));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
    };
    let count = || on_links(&shim, address);
    shim.until_linked(address, 2);
    works();
    assert!((count() - 1.0).abs() < 0.5);
    let listen = address.to_string();
    drop(process);
    let silent = [("SERVER__LINK_PEERS", "10.9.9.9")];
    let (process, _) = serve(dir.path(), name, &listen, &silent);
    shim.until_usable(address, true);
    shim.until_linked(address, 0);
    works();
    assert!((count() - 1.0).abs() < 0.5);
    drop(process);
    let (_process, _) = serve(dir.path(), name, &listen, &[]);
    shim.until_usable(address, true);
    shim.until_linked(address, 2);
    works();
    assert!((count() - 2.0).abs() < 0.5);
}

#[test]
fn polls_held_on_links_of_a_killed_instance_are_held_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = two_servers(dir.path());
    let shim = Shim::start(&[format!("blue={},{}", servers[0].1, servers[1].1)]);
    for (_, address) in &servers {
        shim.until_usable(*address, true);
        shim.until_linked(*address, 2);
    }
    let players: Vec<String> = (0..200).map(|n| format!("player-{n}")).collect();
    let tokens = tokens(&players);
    let held = |token: &String| {
        let mut client = shim.connect();
        client.send(&poll_with(token, "prefer: wait=55\r\n"));
        client
    };
    let mut clients: Vec<Client> = tokens.iter().map(held).collect();
    let under_way = |address| shim.instance(address)["on_links"].as_u64().unwrap();
    let [(_, first), (_, second)] = servers[..] else {
        unreachable!("two servers")
    };
    until("all are held", || {
        under_way(first) + under_way(second) == 200
    });
    assert!(under_way(first) > 0 && under_way(second) > 0);
    servers[0].0.kill();
    until("the other holds all", || {
        (under_way(first), under_way(second)) == (0, 200)
    });
    let mut other = shim.connect();
    for (client, (player, token)) in clients.iter_mut().zip(players.iter().zip(&tokens)) {
        other.send(&find(token));
        assert!(matches!(other.reply().status, 200 | 201));
        let reply = client.reply();
        let owner = format!(r#""player":"{player}""#);
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains(&owner), "{owner}: {}", reply.text());
        assert_eq!(reply.field("x-instance-id"), Some("b"));
    }
}
