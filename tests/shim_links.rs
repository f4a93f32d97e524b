//! What travels on links, what does not, and what becomes of it when servers misbehave there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use shim_site::speaker::Said;
use shim_site::{Seen, Server, Shim, answer, group, until};
use trove::link::Refused;

fn owner(seen: &Seen) -> String {
    seen.field("authorization").unwrap_or("nobody").to_owned()
}

/// A server that says on links what `says` says, and to whom a request belongs over plain HTTP.
fn server(says: impl Fn(&Seen) -> Said + Send + Sync + 'static) -> Server {
    Server::speaking(
        |seen, stream| answer(stream, 200, &[], owner(seen).as_bytes()),
        Some(Arc::new(says)),
    )
}

fn polite() -> Server {
    server(|seen| Said::Answer(200, "x-kind: link\r\n", owner(seen)))
}

fn linked(servers: &[&Server], settings: &[(&str, &str)]) -> Shim {
    let shim = Shim::with(&[group("blue", servers)], settings);
    for server in servers {
        shim.until_usable(server.address, true);
        shim.until_linked(server.address, 2);
    }
    shim
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: x\r\n{fields}\r\n")
}

#[test]
fn small_requests_travel_on_links_and_the_rest_over_plain_http() {
    let server = polite();
    let shim = linked(&[&server], &[]);
    let mut client = shim.connect();
    let small = "x".repeat(4096);
    let large = "x".repeat(4097);
    let with = |method: &str, target: &str, body: &str| {
        let length = body.len();
        format!("{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let chunks =
        "POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    for (request, on_link, body) in [
        (get("/treasure/h", "authorization: Bearer t\r\n"), true, ""),
        (get("/treasure/h/history", ""), true, ""),
        (get("/hunts", ""), false, ""),
        (get("/", ""), false, ""),
        (with("POST", "/a", "hello"), true, "hello"),
        (with("POST", "/a", &small), true, &small),
        (with("PUT", "/a", ""), true, ""),
        (with("DELETE", "/a?b=c", ""), true, ""),
        (with("POST", "/a", &large), false, &large),
        (chunks.to_owned(), false, "hi"),
        (
            "POST /a HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi".to_owned(),
            true,
            "hi",
        ),
    ] {
        // Whole, and byte by byte where that does not take long.
        for byte_by_byte in [false, request.len() < 200] {
            if byte_by_byte {
                request.bytes().for_each(|byte| client.send(&[byte]));
            } else {
                client.send(request.as_bytes());
            }
            let reply = client.reply();
            let seen = server.last();
            assert_eq!(reply.status, 200);
            assert_eq!(seen.linked.is_some(), on_link, "{request:.60}");
            assert_eq!(reply.field("x-kind").is_some(), on_link);
            assert!(seen.body == body.as_bytes(), "{request:.60}");
            assert_eq!(reply.text(), owner(&seen));
        }
    }
    // A heartbeat is none of them.
    let before = server.count();
    client.send(with("POST", "/heartbeat", "hello").as_bytes());
    assert_eq!(client.reply().status, 204);
    assert_eq!(server.count(), before);
}

#[test]
fn a_link_carries_who_asks_a_trace_and_no_claims() {
    let server = polite();
    for trusts in [false, true] {
        let trusted = if trusts { "127.0.0.0/8" } else { "10.0.0.0/8" };
        let settings = [("SHIM__TRUSTED_PROXIES", trusted), ("TRACE__EVERY", "0")];
        let shim = linked(&[&server], &settings);
        let claims = "x-forwarded-for: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\nx-real-ip: 1.1.1.1\r\n";
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let twice = format!("traceparent: {good}\r\ntraceparent: {good}\r\n");
        let fields = format!("{claims}connection: x-mine\r\nx-mine: 1\r\nx-kept: 2\r\n");
        for (trace, is_kept) in [
            (format!("traceparent: {good}\r\n"), true),
            (String::new(), false),
            ("traceparent: junk\r\n".to_owned(), false),
            (twice, false),
        ] {
            let reply = shim.ask(get("/treasure/h", &format!("{fields}{trace}")));
            assert_eq!(reply.status, 200);
            let timing = reply.field("server-timing").unwrap();
            assert!(timing.starts_with("shim;dur=") && timing.ends_with(", queue;dur=0.000"));
            let seen = server.last();
            assert!(seen.linked.unwrap().ip().is_loopback());
            for claim in ["x-forwarded-for", "Forwarded", "x-real-ip"] {
                assert_eq!(seen.field(claim).is_some(), trusts, "{claim}");
            }
            assert_eq!(
                (seen.field("x-mine"), seen.field("x-kept")),
                (None, Some("2"))
            );
            let made = seen.field("traceparent").unwrap();
            assert_eq!(made == good, is_kept);
            assert_eq!(
                (made.len(), &made[..3], &made[52..]),
                (55, "00-", if is_kept { "-01" } else { "-00" })
            );
        }
    }
}

#[test]
fn of_the_traces_that_begin_at_the_shim_it_chooses_those_that_all_record() {
    let server = polite();
    for (every, flags) in [("0", "-00"), ("1", "-01")] {
        let shim = linked(&[&server], &[("TRACE__EVERY", every)]);
        let mut known = Vec::new();
        // Over a link, and over plain HTTP.
        for target in ["/treasure/h", "/hunts/h", "/treasure/h"] {
            assert_eq!(shim.ask(get(target, "")).status, 200);
            let made = server.last().field("traceparent").unwrap().to_owned();
            assert_eq!((made.len(), &made[52..]), (55, flags));
            assert!(!known.contains(&made[3..35].to_owned()), "{known:?}");
            known.push(made[3..35].to_owned());
        }
    }
}

#[test]
fn a_request_whose_link_dies_is_sent_again_only_where_that_is_safe() {
    let ends: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let ending = || {
        let ends = ends.clone();
        server(move |seen| {
            let mut ends = ends.lock().unwrap();
            let times = ends.entry(seen.target.clone()).or_default();
            *times += 1;
            let wanted: usize = seen.target.rsplit('/').next().unwrap().parse().unwrap_or(0);
            if *times <= wanted {
                return Said::End;
            }
            Said::Answer(200, "", owner(seen))
        })
    };
    let servers = [ending(), ending()];
    let shim = linked(&[&servers[0], &servers[1]], &[]);
    let key = "idempotency-key: k\r\n";
    for (n, (method, fields, dies, status, times)) in [
        ("GET", "", 1, 200, 2),
        ("HEAD", "", 1, 200, 2),
        ("POST", key, 1, 200, 2),
        ("POST", "", 1, 502, 1),
        ("DELETE", "", 1, 502, 1),
        ("GET", "", 2, 502, 2),
        ("POST", key, 2, 502, 2),
    ]
    .into_iter()
    .enumerate()
    {
        servers
            .iter()
            .for_each(|server| shim.until_linked(server.address, 2));
        let target = format!("/treasure/h/{n}/{dies}");
        let mut client = shim.connect();
        let request = format!("{method} {target} HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
        client.send(request.as_bytes());
        let reply = client.reply_to(method);
        let came = ends.lock().unwrap()[&target];
        assert_eq!((reply.status, came), (status, times), "{method} {fields}");
        if status == 502 {
            assert_eq!(reply.field("x-instance-id"), Some("the-shim"));
            assert_eq!(reply.code(), "upstream_failed");
        }
    }
    assert!(shim.metric("trove_shim_retries_total") > 4.5);
}

#[test]
fn a_request_that_was_sent_on_a_link_is_sent_once_more_at_most_also_over_plain_http() {
    for refusal in [None, Some(Refused::AnswerTooLarge)] {
        let server = Server::speaking(
            // Takes the request and closes without an answer.
            |_, _| false,
            Some(Arc::new(move |_: &Seen| {
                refusal.map_or(Said::End, Said::Refused)
            })),
        );
        let shim = Shim::with(&[server.group("blue")], &[("SHIM_UPSTREAM__LINKS", "1")]);
        shim.until_usable(server.address, true);
        shim.until_linked(server.address, 1);
        let reply = shim.ask(get("/treasure/h", ""));
        assert_eq!((reply.status, reply.code()), (502, "upstream_failed"));
        let seen = server.seen.lock().unwrap().clone();
        let on_links: Vec<_> = seen.iter().map(|seen| seen.linked.is_some()).collect();
        assert_eq!(on_links, [true, false], "{refusal:?}");
    }
}

#[test]
fn a_request_that_a_live_link_never_answers_is_504_in_time_and_the_link_goes_on() {
    let server = server(|seen| match &*seen.target {
        "/treasure/silent" => Said::Silence,
        _ => Said::Answer(200, "", owner(seen)),
    });
    let times = [
        ("SHIM_UPSTREAM__ANSWER_MS", "300"),
        ("SHIM_UPSTREAM__QUEUE_MS", "100"),
        ("SHIM_UPSTREAM__CONNECT_MS", "100"),
    ];
    let shim = linked(&[&server], &times);
    for method in ["GET", "HEAD", "POST"] {
        let mut silent = shim.connect();
        let request = format!("{method} /treasure/silent HTTP/1.1\r\nhost: x\r\n\r\n");
        silent.send(request.as_bytes());
        let mut other = shim.connect();
        other.send(get("/treasure/h", "authorization: other\r\n").as_bytes());
        assert_eq!(other.reply().text(), "other");
        let reply = silent.reply_to(method);
        assert_eq!(reply.status, 504, "{method}");
        assert_eq!(reply.field("x-instance-id"), Some("the-shim"));
        assert!(reply.field("server-timing").is_some());
        if method != "HEAD" {
            assert_eq!(reply.code(), "upstream_timeout");
        }
        // The client's connection is as good as before.
        silent.send(get("/treasure/h", "authorization: it\r\n").as_bytes());
        assert_eq!(silent.reply().text(), "it");
    }
    until("the server has let go of them", || {
        shim.instance(server.address)["on_links"] == 0
    });
    assert_eq!(shim.instance(server.address)["links"], 2);
    // Each was sent once.
    let silent = |seen: &&Seen| seen.target == "/treasure/silent";
    let seen = server.seen.lock().unwrap().clone();
    assert_eq!(seen.iter().filter(silent).count(), 3);
}

#[test]
fn what_a_link_refuses_goes_elsewhere_or_over_plain_http() {
    let server = server(|seen| {
        Said::Refused(match &*seen.target {
            "/treasure/leaving" | "/leaving" => Refused::Leaving,
            "/treasure/large" | "/large" => Refused::AnswerTooLarge,
            "/treasure/broke" => Refused::AnswerBroke,
            _ => Refused::DeadlinePassed,
        })
    });
    let shim = linked(&[&server], &[]);
    for (method, target, status, code) in [
        ("GET", "/treasure/leaving", 200, ""),
        ("POST", "/leaving", 200, ""),
        ("GET", "/treasure/large", 200, ""),
        ("POST", "/large", 502, "upstream_failed"),
        ("GET", "/treasure/broke", 502, "upstream_failed"),
        ("GET", "/treasure/late", 504, "upstream_timeout"),
    ] {
        let request = format!("{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: me\r\n\r\n");
        let reply = shim.ask(request);
        assert_eq!(reply.status, status, "{target}");
        assert_eq!(server.last().linked.is_none(), status == 200, "{target}");
        if status == 200 {
            assert_eq!(reply.text(), "me");
        } else {
            assert_eq!(reply.code(), code);
        }
    }
}

#[test]
fn an_instance_that_fails_on_links_is_ejected_and_one_switched_away_gets_nothing() {
    let failing = Arc::new(AtomicBool::new(false));
    let fails = failing.clone();
    let bad = server(move |seen| {
        let status = if fails.load(SeqCst) { 500 } else { 200 };
        Said::Answer(status, "", owner(seen))
    });
    let (good, green) = (polite(), polite());
    let groups = [group("blue", &[&bad, &good]), green.group("green")];
    let settings = [
        ("SHIM_HEALTH__EJECT_MS", "600000"),
        ("SHIM_HEALTH__EJECT_FAILURES", "3"),
    ];
    let shim = Shim::with(&groups, &settings);
    for server in [&bad, &good, &green] {
        shim.until_usable(server.address, true);
        shim.until_linked(server.address, 2);
    }
    failing.store(true, SeqCst);
    let mut player = 0;
    let mut ask = || {
        player += 1;
        let token = format!("authorization: Bearer {player}\r\n");
        let reply = shim.ask(get("/treasure/h", &token));
        (
            reply.status,
            reply.status != 200 || reply.text() == format!("Bearer {player}"),
        )
    };
    until("it is ejected", || {
        assert!(ask().1);
        shim.instance(bad.address)["ejected"] == true
    });
    let before = bad.count();
    (0..20).for_each(|_| assert_eq!(ask(), (200, true)));
    assert_eq!((bad.count(), green.count()), (before, 0));
    let key = shim_site::ADMIN_KEY;
    let body = r#"{"group":"green"}"#;
    let reply = shim.ask_ops(format!(
        "POST /shim/switch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let before = good.count();
    (0..20).for_each(|_| assert_eq!(ask(), (200, true)));
    assert_eq!((good.count(), green.count()), (before, 20));
}

#[test]
fn a_request_whose_client_is_gone_is_cancelled() {
    let server = server(|_| Said::Silence);
    let shim = linked(&[&server], &[]);
    let under_way = || shim.instance(server.address)["on_links"].as_u64().unwrap();
    let mut clients: Vec<_> = (0..20).map(|_| shim.connect()).collect();
    for client in &mut clients {
        client.send(get("/treasure/h", "").as_bytes());
    }
    until("all are under way", || under_way() == 20);
    drop(clients.split_off(5));
    // A half-closed client may still read: it waits.
    let socket = |client: &shim_site::Client| {
        let socket = socket2::SockRef::from(&client.stream);
        socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    };
    clients.iter().for_each(socket);
    drop(clients);
    let mut resets: Vec<_> = (0..5).map(|_| shim.connect()).collect();
    for client in &mut resets {
        client.send(get("/treasure/h", "").as_bytes());
        socket(client);
    }
    drop(resets);
    until("what was reset is let go of", || under_way() <= 15);
}

/// Whose answer it is, when two servers end links, refuse, and answer twice, at random.
#[test]
fn no_player_ever_gets_another_s_answer_on_links_that_misbehave() {
    let seed: u64 =
        std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let done: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let odd = |seed: u64| {
        let random = Mutex::new(SmallRng::seed_from_u64(seed));
        let carries_out = done.clone();
        let by_plain = done.clone();
        let carry_out = |done: &Mutex<HashMap<String, usize>>, seen: &Seen| {
            *done.lock().unwrap().entry(owner(seen)).or_default() += 1;
        };
        Server::speaking(
            move |seen, stream| {
                carry_out(&by_plain, seen);
                answer(stream, 200, &[], owner(seen).as_bytes())
            },
            Some(Arc::new(move |seen: &Seen| {
                let what = random.lock().unwrap().random_range(0..200);
                if what == 0 {
                    return Said::Refused(Refused::Leaving);
                }
                carry_out(&carries_out, seen);
                match what {
                    1 => Said::End,
                    2 => Said::Twice(owner(seen)),
                    3 => Said::Refused(Refused::AnswerTooLarge),
                    4 => Said::Refused(Refused::AnswerBroke),
                    _ => Said::Answer(200, "", owner(seen)),
                }
            })),
        )
    };
    let servers = [odd(seed), odd(seed ^ 1)];
    let settings = [("SHIM_HEALTH__EJECT_MS", "100")];
    let shim = linked(&[&servers[0], &servers[1]], &settings);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..24u64 {
            let (shim, answered, done) = (&shim, &answered, &done);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed ^ (thread << 8));
                let mut client = shim.connect();
                for n in 0..250 {
                    let player = format!("Bearer {}.{thread}.{n}", random.random::<u32>());
                    let (line, keyed) = match random.random_range(0..4) {
                        0 => ("POST /a", ""),
                        1 => ("POST /a", "idempotency-key: k\r\n"),
                        _ => ("GET /treasure/h", ""),
                    };
                    client.send(
                        format!(
                            "{line} HTTP/1.1\r\nhost: x\r\nauthorization: {player}\r\n{keyed}\r\n"
                        )
                        .as_bytes(),
                    );
                    if random.random_ratio(1, 40) {
                        client = shim.connect();
                        continue;
                    }
                    let reply = client.reply();
                    if reply.status == 200 {
                        answered.fetch_add(1, SeqCst);
                        assert_eq!(reply.text(), player, "SEED={seed}");
                    } else {
                        assert!(matches!(reply.status, 502 | 503), "{}", reply.text());
                    }
                    let times = done.lock().unwrap().get(&player).copied().unwrap_or(0);
                    let is_write = line.starts_with("POST") && keyed.is_empty();
                    let most = if is_write { 1 } else { 2 };
                    assert!(times <= most, "SEED={seed} {line} {keyed}: {times} times");
                    assert!(times > 0 || reply.status != 200, "SEED={seed}");
                }
            });
        }
    });
    let of = |server: &Server| shim.instance(server.address)["on_links"].as_u64().unwrap();
    until("nothing is under way", || {
        servers.iter().map(of).sum::<u64>() == 0
    });
    assert!(answered.load(SeqCst) > 5_000, "{answered:?} of 6000");
}
