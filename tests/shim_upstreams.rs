//! Instances are balanced, ejected and switched; who must wait, waits in order and not for long.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use shim_site::{
    ADMIN_KEY, Client, Reply, Server, Shim, answer, group, tokens, trove, until, wait_exit,
};

fn poll(token: &str) -> Vec<u8> {
    format!("GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n")
        .into_bytes()
}

/// A door that requests wait at.
#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Door {
    fn wait(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// A server that says its name; requests to `/held…` wait at a door.
fn named(name: &'static str, door: &Arc<Door>) -> Server {
    let door = door.clone();
    Server::start(move |seen, stream| {
        if seen.target.starts_with("/held") || seen.target.starts_with("/treasure/held") {
            door.wait();
        }
        answer(stream, 200, &[], name.as_bytes())
    })
}

#[test]
fn a_player_s_polls_stay_with_one_instance_and_players_spread() {
    let door = Arc::default();
    let servers = [named("a", &door), named("b", &door), named("c", &door)];
    let shim = Shim::start(&[group("blue", &[&servers[0], &servers[1], &servers[2]])]);
    let players: Vec<String> = (0..60).map(|n| format!("p{n}")).collect();
    let mut homes: HashMap<String, String> = HashMap::new();
    let mut client = shim.connect();
    // Two tokens of a player are the same player: the verified name counts.
    for round in 0..2 {
        for (player, token) in players.iter().zip(tokens(&players)) {
            client.send(&poll(&token));
            let name = client.reply().text().to_owned();
            let home = homes.entry(player.clone()).or_insert_with(|| name.clone());
            assert_eq!(*home, name, "{player} in round {round}");
        }
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    let used: HashSet<&String> = homes.values().collect();
    assert_eq!(used.len(), 3);
}

#[test]
fn held_polls_of_one_instance_spill_over_and_the_rest_goes_where_least_is_open() {
    let door: Arc<Door> = Arc::default();
    let servers = [named("a", &door), named("b", &door)];
    let shim = Shim::with(
        &[group("blue", &[&servers[0], &servers[1]])],
        &[("SHIM_UPSTREAM__SPILL_MIN", "1")],
    );
    let token = &tokens(&["p".to_owned()])[0];
    let held =
        format!("GET /treasure/held HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    let mut clients: Vec<Client> = Vec::new();
    for n in 1..=40 {
        let mut client = shim.connect();
        client.send(held.as_bytes());
        clients.push(client);
        until("it has arrived", || {
            servers[0].count() + servers[1].count() == n
        });
    }
    let (a, b) = (servers[0].count(), servers[1].count());
    assert!(a.max(b) <= 26, "1.25 times the mean of 20: {a} and {b}");
    // Others go to the one with fewer.
    let fewer = usize::from(a > b);
    for _ in 0..5 {
        let reply = shim.ask("GET /other HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(reply.text(), ["a", "b"][fewer]);
    }
    door.open();
    for client in &mut clients {
        assert_eq!(client.reply().status, 200);
    }
}

#[test]
fn an_instance_that_fails_is_ejected_and_comes_back_slowly() {
    let failing = Arc::new(AtomicBool::new(false));
    let fails = failing.clone();
    let bad = Server::start(move |_, stream| {
        if fails.load(SeqCst) {
            return answer(stream, 500, &[], b"");
        }
        answer(stream, 200, &[], b"bad")
    });
    let good = named("good", &Arc::default());
    let settings = [
        ("SHIM_HEALTH__EJECT_MS", "300"),
        ("SHIM_HEALTH__EJECT_FAILURES", "3"),
        ("SHIM_HEALTH__SLOW_START_MS", "1500"),
    ];
    let shim = Shim::with(&[group("blue", &[&bad, &good])], &settings);
    shim.until_usable(bad.address, true);
    shim.until_usable(good.address, true);
    failing.store(true, SeqCst);
    until("it is ejected", || {
        shim.ask("GET /a HTTP/1.1\r\nhost: x\r\n\r\n");
        shim.instance(bad.address)["ejected"] == true
    });
    assert_eq!(
        shim.ask("GET /a HTTP/1.1\r\nhost: x\r\n\r\n").text(),
        "good"
    );
    let series = format!(
        "trove_shim_ejections_total{{instance=\"{}\",upstream=\"blue\"}}",
        bad.address
    );
    assert!(shim.metric(&series) >= 1.0);
    failing.store(false, SeqCst);
    until("it is back", || {
        shim.instance(bad.address)["usable"] == true
    });
    let instance = shim.instance(bad.address);
    assert!(instance["starting_slowly"] == true || instance["ejected"] == false);
    until("it has its full share", || {
        shim.ask("GET /a HTTP/1.1\r\nhost: x\r\n\r\n");
        shim.instance(bad.address)["starting_slowly"] == false
    });
}

#[test]
fn never_more_than_half_is_ejected_and_never_for_the_store_s_503() {
    let all_fail = |status: u16| Server::start(move |_, stream| answer(stream, status, &[], b""));
    let settings = [
        ("SHIM_HEALTH__EJECT_FAILURES", "2"),
        ("SHIM_HEALTH__EJECT_MS", "600000"),
    ];
    let count_out = |servers: &[Server]| {
        let refs: Vec<&Server> = servers.iter().collect();
        let shim = Shim::with(&[group("blue", &refs)], &settings);
        servers
            .iter()
            .for_each(|server| shim.until_usable(server.address, true));
        for _ in 0..60 {
            shim.ask("GET /a HTTP/1.1\r\nhost: x\r\n\r\n");
        }
        let out = servers
            .iter()
            .filter(|server| shim.instance(server.address)["usable"] == false);
        out.count()
    };
    let five_hundreds: Vec<Server> = (0..4).map(|_| all_fail(500)).collect();
    assert_eq!(count_out(&five_hundreds), 2);
    let store_away: Vec<Server> = (0..4).map(|_| all_fail(503)).collect();
    assert_eq!(count_out(&store_away), 0);
    let alone = [all_fail(500)];
    assert_eq!(count_out(&alone), 0);
}

#[test]
fn checks_take_instances_out_and_when_all_are_out_all_are_used() {
    let door = Arc::default();
    let servers = [named("a", &door), named("b", &door)];
    let shim = Shim::start(&[group("blue", &[&servers[0], &servers[1]])]);
    shim.until_usable(servers[0].address, true);
    servers[0].health.store(503, SeqCst);
    shim.until_usable(servers[0].address, false);
    for _ in 0..10 {
        assert_eq!(shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n").text(), "b");
    }
    servers[1].health.store(0, SeqCst);
    shim.until_usable(servers[1].address, false);
    until("both are used", || {
        shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n").status == 200 && servers[0].count() > 0
    });
    // A server that does not know the path is well.
    servers[0].health.store(404, SeqCst);
    servers[1].health.store(200, SeqCst);
    shim.until_usable(servers[0].address, true);
    shim.until_usable(servers[1].address, true);
}

#[test]
fn what_was_never_sent_goes_to_another_instance_whatever_it_is() {
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let alive = Server::echo();
    let shim = Shim::with(
        &[format!("blue={dead},{}", alive.address)],
        &[("SHIM_HEALTH__INTERVAL_MS", "600000")],
    );
    for method in ["GET", "POST", "DELETE"] {
        for _ in 0..10 {
            let reply = shim.ask(format!(
                "{method} / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
            ));
            assert_eq!(reply.text(), format!("{method} /\nhi"));
        }
    }
    let shim = Shim::start(&[format!("blue={dead}")]);
    let reply = shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!((reply.status, reply.code()), (503, "upstream_unreachable"));
    assert!(reply.field("retry-after").is_some());
    assert!(shim.metric(r#"trove_shim_shed_total{reason="unreachable"}"#) > 0.5);
}

#[test]
fn past_its_bounds_the_queue_answers_503_at_once_and_the_old_are_served_first() {
    let door: Arc<Door> = Arc::default();
    let server = named("a", &door);
    let settings = [
        ("SHIM_UPSTREAM__REQUESTS_MAX", "1"),
        ("SHIM_UPSTREAM__QUEUE_MAX", "3"),
        ("SHIM_UPSTREAM__QUEUE_MS", "20000"),
    ];
    let shim = Shim::with(&[server.group("blue")], &settings);
    let send = |target: &str| {
        let mut client = shim.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        client
    };
    let mut under_way = send("/held");
    until("it is under way", || server.count() == 1);
    let queued = || shim.metric(r#"trove_shim_queued_requests{upstream="blue"}"#);
    let mut waiting = Vec::new();
    for (n, target) in [(1.0, "/waits1"), (2.0, "/waits2"), (3.0, "/waits3")] {
        waiting.push(send(target));
        until("it waits", || (queued() - n).abs() < 0.5);
    }
    for _ in 0..3 {
        let reply = shim.ask("GET /late HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!((reply.status, reply.code()), (503, "queue_full"));
        let seconds: u32 = reply.field("retry-after").unwrap().parse().unwrap();
        assert!((1..=5).contains(&seconds));
    }
    // One who leaves makes room.
    let gone = waiting.remove(1);
    let socket = socket2::SockRef::from(&gone.stream);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(gone);
    until("there is room", || (queued() - 2.0).abs() < 0.5);
    waiting.push(send("/waits4"));
    until("it waits", || (queued() - 3.0).abs() < 0.5);
    door.open();
    assert_eq!(under_way.reply().status, 200);
    for client in &mut waiting {
        assert_eq!(client.reply().status, 200);
    }
    assert!((shim.metric(r#"trove_shim_shed_total{reason="queue_full"}"#) - 3.0).abs() < 0.5);
    let seen = server.seen.lock().unwrap();
    let order: Vec<&str> = seen.iter().map(|seen| &*seen.target).collect();
    assert_eq!(order, ["/held", "/waits1", "/waits3", "/waits4"]);
}

#[test]
fn who_waits_longer_than_the_deadline_is_answered_503() {
    let door: Arc<Door> = Arc::default();
    let server = named("a", &door);
    let settings = [
        ("SHIM_UPSTREAM__REQUESTS_MAX", "1"),
        ("SHIM_UPSTREAM__QUEUE_MS", "50"),
    ];
    let shim = Shim::with(&[server.group("blue")], &settings);
    let mut held = shim.connect();
    held.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n");
    until("it is under way", || server.count() == 1);
    let reply = shim.ask("GET /late HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!((reply.status, reply.code()), (503, "queue_deadline"));
    let timing = reply.field("server-timing").expect("times");
    assert!(timing.contains("shim;dur="), "{timing}");
    door.open();
    assert_eq!(held.reply().status, 200);
    assert_eq!(server.count(), 1);
}

#[test]
fn an_instance_that_does_not_answer_is_given_up() {
    let door: Arc<Door> = Arc::default();
    let server = named("a", &door);
    let settings = [
        ("SHIM_UPSTREAM__ANSWER_MS", "200"),
        ("SHIM_UPSTREAM__QUEUE_MS", "200"),
        ("SHIM_UPSTREAM__CONNECT_MS", "200"),
    ];
    let shim = Shim::with(&[server.group("blue")], &settings);
    let reply = shim.ask("GET /held HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!((reply.status, reply.code()), (504, "upstream_timeout"));
    door.open();
    until("nothing is under way", || {
        shim.instance(server.address)["outstanding"] == 0
    });
}

fn switch(shim: &Shim, to: &str, key: Option<&str>) -> Reply {
    let body = format!(r#"{{"group":"{to}"}}"#);
    let key = key.map_or_else(String::new, |key| {
        format!("authorization: Bearer {key}\r\n")
    });
    shim.ask_ops(format!(
        "POST /shim/switch HTTP/1.1\r\nhost: x\r\n{key}content-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

#[test]
fn another_group_becomes_live_only_when_all_of_it_is_healthy() {
    let door: Arc<Door> = Arc::default();
    let blue = named("blue", &door);
    let green = [named("green", &door), named("green", &door)];
    let shim = Shim::start(&[blue.group("blue"), group("green", &[&green[0], &green[1]])]);
    let live = || {
        shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .text()
            .to_owned()
    };
    assert_eq!(live(), "blue");
    let (bad, ops) = (green[1].address.to_string(), shim.ops.to_string());
    let switch_by_command = |to: &str| {
        let args = ["shim", "switch", to, "--ops", &ops];
        let output = trove(&args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    green[1].health.store(503, SeqCst);
    let (status, _, said) = switch_by_command("green");
    assert!(
        status == Some(1) && said.contains(&bad) && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(live(), "blue");
    green[1].health.store(0, SeqCst);
    assert_eq!(switch(&shim, "green", Some(ADMIN_KEY)).status, 409);
    assert_eq!(live(), "blue");
    green[1].health.store(200, SeqCst);
    assert_eq!(switch(&shim, "green", None).status, 401);
    assert_eq!(
        switch(&shim, "green", Some("another-key-of-16-bytes")).status,
        403
    );
    assert_eq!(switch(&shim, "red", Some(ADMIN_KEY)).status, 404);
    assert_eq!(switch_by_command("red").0, Some(1));
    assert_eq!(live(), "blue");
    // What is under way ends where it is.
    let mut held = shim.connect();
    held.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n");
    until("it is under way", || blue.last().target == "/held");
    until("all are healthy", || {
        switch_by_command("green") == (Some(0), "green is live\n".into(), String::new())
    });
    assert_eq!(live(), "green");
    door.open();
    assert_eq!(held.reply().text(), "blue");
    assert_eq!(switch(&shim, "blue", Some(ADMIN_KEY)).status, 200);
    assert_eq!(live(), "blue");
}

#[test]
fn a_drain_ends_what_is_under_way_and_nothing_is_cut() {
    let door: Arc<Door> = Arc::default();
    let server = named("a", &door);
    let mut shim = Shim::with(&[server.group("blue")], &[("SERVER__NOTICE_MS", "300")]);
    let mut held = shim.connect();
    held.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n");
    until("it is under way", || server.count() == 1);
    shim.process.terminate();
    until("it says so", || {
        shim.ask("GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
            .status
            == 503
    });
    let reply = shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(reply.status == 200 && reply.closes(), "{reply:?}");
    door.open();
    let reply = held.reply();
    assert!(reply.status == 200 && reply.closes(), "{reply:?}");
    assert_eq!(wait_exit(&mut shim.process), 0);
}

#[test]
fn without_upstreams_or_with_wrong_ones_it_does_not_start() {
    for (args, part) in [
        (&["shim"][..], "--upstream"),
        (&["shim", "--upstream", "127.0.0.1:1"], "NAME=host:port"),
        (&["shim", "--upstream", "a=127.0.0.1"], "host:port"),
        (
            &["shim", "--upstream", "a=h:1", "--upstream", "a=h:2"],
            "two groups",
        ),
    ] {
        let output = trove(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{said}");
    }
    let args = ["shim", "--upstream", "a=h:1"];
    let mut command = trove(&args);
    command.env("TROVE_SHIM_UPSTREAM__POOL_IDLE_MS", "75000");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("shim_upstream.pool_idle_ms") && said.contains("shim_upstream.keep_alive_ms"),
        "{said}"
    );
}
