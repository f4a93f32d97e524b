//! Requests that a backend takes and answers later, small bodies that it wants whole, and upgrades.

mod front_taker;

use std::sync::atomic::Ordering::SeqCst;

use front_taker::{Client, PATIENCE, Taking, until};
use std::io::Read;
use trove::front::Refusal;

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[test]
fn a_small_body_is_offered_whole_however_it_arrives() {
    let taking = Taking::start();
    let request = post("/whole", "twelve bytes");
    for split in 1..request.len() {
        let mut client = taking.connect();
        client.send(&request[..split]);
        if split % 7 == 0 {
            // Only then has the server surely seen the first part by itself.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        client.send(&request[split..]);
        assert_eq!(
            client.reply().text(),
            "whole twelve bytes",
            "split at {split}"
        );
    }
    let mut client = taking.connect();
    for byte in &request {
        client.send(&[*byte]);
    }
    assert_eq!(client.reply().text(), "whole twelve bytes");
    // Pipelined with others, before and behind.
    let all = [&get("/now")[..], &request, &request, &get("/now"), &request].concat();
    client.send(&all);
    let texts: Vec<String> = (0..5).map(|_| client.reply().text().to_owned()).collect();
    let whole = "whole twelve bytes";
    assert_eq!(texts, ["now", whole, whole, "now", whole]);
}

#[test]
fn what_is_not_a_small_body_goes_to_call_untouched() {
    let taking = Taking::start();
    let large = "x".repeat(5000);
    let largest = "y".repeat(4096);
    for (request, expected) in [
        (post("/declined", "abc"), "called abc"),
        (post("/whole", &large), &*format!("called {large}")),
        (post("/whole", &largest), &*format!("whole {largest}")),
        (post("/unwanted", "abc"), "called abc"),
        (post("/whole", ""), "called "),
        (
            b"POST /whole HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                .to_vec(),
            "called abc",
        ),
    ] {
        let mut client = taking.connect();
        client.send(&request);
        assert_eq!(client.reply().text(), expected);
        client.send(&get("/now"));
        assert_eq!(client.reply().text(), "now");
    }
    let mut client = taking.connect();
    client.send(
        b"POST /whole HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.head().status, 100);
    client.send(b"abc");
    assert_eq!(client.reply().text(), "called abc");
    // Larger than this request may be.
    client.send(&post("/little", "four"));
    let reply = client.reply();
    assert_eq!((reply.status, reply.code()), (413, "body_too_large"));
}

#[test]
fn a_small_body_that_does_not_come_is_refused() {
    let taking = Taking::with(|limits| limits.body_timeout_ms = 200);
    let mut client = taking.connect();
    client.send(&post("/whole", "abc")[..54]);
    client.half_close();
    let reply = client.reply();
    assert_eq!((reply.status, reply.code()), (400, "incomplete_body"));
    client.expect_end();
    let mut client = taking.connect();
    let request = post("/whole", "abc");
    client.send(&request[..request.len() - 1]);
    let reply = client.reply();
    assert_eq!((reply.status, reply.code()), (408, "body_timeout"));
    assert_eq!(taking.front.counters().timeouts.load(SeqCst), 1);
}

#[test]
fn a_taken_request_is_answered_by_its_ticket() {
    let taking = Taking::start();
    let mut client = taking.connect();
    client.send(&get("/later/a"));
    taking.ticket("/later/a").answer(|answer| {
        answer.status(200).field("x", "1").body(b"for a");
    });
    let reply = client.reply();
    assert_eq!((reply.text(), reply.field("x")), ("for a", Some("1")));
    assert!(reply.field("date").is_some());
    // With a body, and to HEAD.
    client.send(&post("/later/b", "with a body"));
    assert_eq!(taking.body("/later/b"), b"with a body");
    taking
        .ticket("/later/b")
        .answer(|answer| answer.status(201).body(b"b"));
    assert_eq!(client.reply().status, 201);
    client.send(b"HEAD /later/c HTTP/1.1\r\nhost: x\r\n\r\n");
    taking.ticket("/later/c").answer(|answer| {
        answer.status(200).length_only(77);
    });
    assert_eq!(client.reply_to("HEAD").field("content-length"), Some("77"));
    client.send(b"GET /later/d HTTP/1.0\r\n\r\n");
    taking
        .ticket("/later/d")
        .answer(|answer| answer.status(200).body(b"d"));
    assert!(client.reply().closes());
    client.expect_end();
}

#[test]
fn answers_keep_the_order_of_the_pipeline() {
    let taking = Taking::start();
    let mut client = taking.connect();
    let all = [
        get("/now"),
        get("/later/1"),
        get("/now"),
        get("/later/2"),
        get("/call"),
    ]
    .concat();
    client.send(&all);
    assert_eq!(client.reply().text(), "now");
    taking
        .ticket("/later/1")
        .answer(|answer| answer.status(200).body(b"one"));
    assert_eq!(client.reply().text(), "one");
    assert_eq!(client.reply().text(), "now");
    taking
        .ticket("/later/2")
        .answer(|answer| answer.status(200).body(b"two"));
    assert_eq!(client.reply().text(), "two");
    assert_eq!(client.reply().text(), "called ");
}

#[test]
fn a_dropped_ticket_is_a_502_and_a_broken_answer_a_500() {
    let taking = Taking::start();
    let mut client = taking.connect();
    client.send(&get("/later/a"));
    drop(taking.ticket("/later/a"));
    let reply = client.reply();
    assert_eq!((reply.status, reply.code()), (502, "no_answer"));
    assert_eq!(reply.field("x-site"), Some("1"));
    client.send(&get("/later/b"));
    taking.ticket("/later/b").answer(|answer| {
        answer.status(200).field("a", "b\r\nc: d").body(b"");
    });
    assert_eq!(client.reply().code(), "internal");
    client.expect_end();
    let mut client = taking.connect();
    client.send(&get("/take-panic"));
    assert_eq!(client.reply().code(), "internal");
    let mut client = taking.connect();
    client.send(&get("/take-dropped"));
    assert_eq!(client.reply().code(), "no_answer");
    // Dropped, broken, a panic, dropped.
    let own = [
        Refusal::NoAnswer,
        Refusal::Internal,
        Refusal::Internal,
        Refusal::NoAnswer,
    ];
    assert_eq!(taking.told(), own);
    client.send(&get("/take-back"));
    assert_eq!(client.reply().text(), "called ");
    client.send(&get("/take-answered"));
    assert_eq!(client.reply().text(), "at once");
}

#[test]
fn a_ticket_whose_client_has_gone_answers_nobody() {
    let taking = Taking::start();
    for round in 0..50 {
        let path = format!("/later/gone{round}");
        let mut client = taking.connect();
        client.send(&get(&path));
        let ticket = taking.ticket(&path);
        assert!(ticket.is_waiting());
        reset(client);
        let note = taking.note(&path);
        until("the backend is told", || taking.gone(note));
        assert!(!ticket.is_waiting());
        // Another client has its seat and its place by now.
        let path = format!("/later/next{round}");
        let mut next = taking.connect();
        next.send(&get(&path));
        let second = taking.ticket(&path);
        ticket.answer(|answer| answer.status(200).body(b"the wrong one"));
        second.answer(|answer| answer.status(200).body(b"the right one"));
        assert_eq!(next.reply().text(), "the right one");
        next.send(&get("/now"));
        assert_eq!(next.reply().text(), "now");
    }
}

fn reset(client: Client) {
    let socket = socket2::SockRef::from(&client.stream);
    socket
        .set_linger(Some(std::time::Duration::ZERO))
        .expect("a reset at close");
    drop(client);
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let taking = Taking::start();
    let mut client = taking.connect();
    client.send(&get("/later/half"));
    client.half_close();
    taking
        .ticket("/later/half")
        .answer(|answer| answer.status(200).body(b"still"));
    assert_eq!(client.reply().text(), "still");
    client.expect_end();
}

#[test]
fn an_answer_that_takes_too_long_is_a_503_and_comes_too_late() {
    let taking = Taking::with(|limits| limits.answer_timeout_ms = 100);
    let mut client = taking.connect();
    client.send(b"HEAD /later/slow HTTP/1.1\r\nhost: x\r\n\r\n");
    let ticket = taking.ticket("/later/slow");
    let reply = client.reply_to("HEAD");
    assert_eq!(reply.status, 503);
    assert!(reply.field("retry-after").is_some());
    client.expect_end();
    assert!(taking.gone(taking.note("/later/slow")));
    ticket.answer(|answer| answer.status(200).body(b"late"));
}

#[test]
fn a_ticket_can_hand_its_request_to_call() {
    let taking = Taking::start();
    let mut client = taking.connect();
    client.send(&[post("/later/on", "original"), get("/now")].concat());
    let head = b"POST /streamed HTTP/1.1\r\nhost: x\r\nx-added: 1\r\ncontent-length: 3\r\n\r\n";
    taking
        .ticket("/later/on")
        .call(head, b"new", trove::front::Tried(0));
    assert_eq!(client.reply().text(), "called new");
    assert_eq!(client.reply().text(), "now");
    for (head, body) in [
        (&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], &b"body"[..]),
        (b"nonsense", b""),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET ", b""),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            b"3\r\n",
        ),
    ] {
        let mut client = taking.connect();
        client.send(&get("/later/bad"));
        taking
            .ticket("/later/bad")
            .call(head, body, trove::front::Tried(0));
        assert_eq!(client.reply().code(), "internal");
    }
}

#[test]
fn draining_waits_for_tickets_and_closes_behind_their_answers() {
    let mut taking = Taking::start();
    let mut client = taking.connect();
    client.send(&get("/later/last"));
    let ticket = taking.ticket("/later/last");
    taking.front.enter(trove::front::Phase::Draining);
    ticket.answer(|answer| answer.status(200).body(b"last"));
    let reply = client.reply();
    assert!(reply.closes());
    client.expect_end();
    taking.drain();
}

#[test]
fn tickets_of_many_clients_answered_in_any_order_reach_their_own() {
    let taking = Taking::start();
    let mut clients: Vec<_> = (0..300)
        .map(|n| {
            let mut client = taking.connect();
            client.send(&get(&format!("/later/{n}")));
            client
        })
        .collect();
    let mut tickets: Vec<_> = (0..300)
        .map(|n| (n, taking.ticket(&format!("/later/{n}"))))
        .collect();
    // A fixed shuffle.
    tickets.sort_by_key(|(n, _)| (n * 7919) % 311);
    for (n, ticket) in tickets {
        ticket.answer(|answer| answer.status(200).body(format!("for {n}").as_bytes()));
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply().text(), format!("for {n}"));
    }
}

#[test]
fn a_connection_is_idle_from_its_answer_on() {
    let taking = Taking::with(|limits| {
        limits.idle_timeout_ms = 300;
        limits.answer_timeout_ms = 60_000;
    });
    let mut client = taking.connect();
    for round in 0..3 {
        let path = format!("/later/idle{round}");
        client.send(&get(&path));
        let ticket = taking.ticket(&path);
        ticket.answer(|answer| answer.status(200).body(b"here"));
        assert_eq!(client.reply().text(), "here");
    }
    client.expect_end();
    until("the connection has gone", || {
        taking.front.connections() == 0
    });
    assert_eq!(taking.front.counters().timeouts.load(SeqCst), 0);
}

#[test]
fn draining_closes_a_connection_that_has_had_its_answer() {
    let mut taking = Taking::start();
    let mut client = taking.connect();
    client.send(&get("/later/only"));
    let ticket = taking.ticket("/later/only");
    ticket.answer(|answer| answer.status(200).body(b"only"));
    assert_eq!(client.reply().text(), "only");
    taking.front.enter(trove::front::Phase::Draining);
    client.expect_end();
    taking.drain();
}

#[test]
fn a_client_that_goes_after_its_answer_takes_nothing_from_who_has_its_place() {
    let taking = Taking::start();
    for round in 0..100 {
        let (first, second) = (format!("/later/a{round}"), format!("/later/b{round}"));
        let mut going = taking.connect();
        let mut staying = taking.connect();
        going.send(&get(&first));
        let ticket = taking.ticket(&first);
        ticket.answer(|answer| answer.status(200).body(b"first"));
        assert_eq!(going.reply().text(), "first");
        // Its place is free, and the next that waits has it.
        staying.send(&get(&second));
        let ticket = taking.ticket(&second);
        if round % 2 == 0 {
            reset(going);
        } else {
            drop(going);
        }
        until("one is left", || taking.front.connections() == 1);
        assert!(ticket.is_waiting());
        assert!(!taking.gone(taking.note(&second)));
        ticket.answer(|answer| answer.status(200).body(b"second"));
        assert_eq!(staying.reply().text(), "second");
        drop(staying);
        until("nobody is left", || taking.front.connections() == 0);
    }
}

#[test]
fn an_answer_larger_than_the_socket_takes_arrives_whole() {
    let taking = Taking::start();
    let large: Vec<u8> = (0..8_000_000_u32).map(|n| b'a' + (n % 23) as u8).collect();
    let mut client = taking.connect();
    for round in 0..2 {
        let path = format!("/later/large{round}");
        client.send(&get(&path));
        let ticket = taking.ticket(&path);
        ticket.answer(|answer| answer.status(200).body(&large));
        assert!(client.reply().text().as_bytes() == large);
        client.send(&get("/now"));
        assert_eq!(client.reply().text(), "now");
    }
}

#[test]
fn what_is_pipelined_behind_a_request_that_waits_is_answered_after_it() {
    let taking = Taking::start();
    let mut client = taking.connect();
    for round in 0..100 {
        let (first, second) = (format!("/later/c{round}"), format!("/later/d{round}"));
        client.send(&get(&first));
        let ticket = taking.ticket(&first);
        // Nobody knows which comes first.
        client.send(&get(&second));
        ticket.answer(|answer| answer.status(200).body(b"first"));
        let ticket = taking.ticket(&second);
        ticket.answer(|answer| answer.status(200).body(b"second"));
        assert_eq!(client.reply().text(), "first");
        assert_eq!(client.reply().text(), "second");
    }
}

#[test]
fn a_connection_becomes_another_protocols_only_where_the_backend_wants_it() {
    let taking = Taking::start();
    let ask = |fields: &str| format!("GET /up HTTP/1.1\r\nhost: x\r\n{fields}\r\n").into_bytes();
    for fields in [
        "",
        "upgrade: shout\r\n",
        "connection: upgrade\r\n",
        "connection: upgrade\r\nupgrade: other\r\n",
        "connection: upgrade\r\nupgrade: shout\r\ncontent-length: 3\r\n\r\nabc",
    ] {
        let mut client = taking.connect();
        client.send(&ask(fields));
        assert_eq!(client.reply().status, 200, "{fields:?}");
    }
    let mut client = taking.connect();
    let mut request = ask("connection: keep-alive, Upgrade\r\nupgrade: shout\r\n");
    request.extend_from_slice(b"early ");
    client.send(&request);
    let head = client.head();
    assert_eq!((head.status, head.field("upgrade")), (101, Some("shout")));
    assert_eq!(head.field("connection"), Some("upgrade"));
    client.send(b"and late");
    client.half_close();
    assert_eq!(client.rest(), b"EARLY AND LATE");
}

#[test]
fn an_upgraded_connection_has_a_timer_and_ends_with_the_front() {
    let taking = Taking::start();
    let mut client = taking.connect();
    client.send(b"GET /up HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: shout\r\n\r\n");
    assert_eq!(client.head().status, 101);
    client.send(b"?");
    // The timer that it asked for says so.
    client
        .stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout");
    let mut tick = [0; 6];
    client.stream.read_exact(&mut tick).expect("reading");
    assert_eq!(&tick, b"ticked");
    assert_eq!(taking.front.connections(), 1);
    client.send(b"!");
    client.rest_or_reset();
    let mut client = taking.connect();
    client.send(b"GET /up HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: shout\r\n\r\n");
    assert_eq!(client.head().status, 101);
    taking.front.enter(trove::front::Phase::Ended);
    client.rest_or_reset();
}
