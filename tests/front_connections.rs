//! Connections over their lives: timers, bounds, clients that vanish or say nothing, and the drain.

mod front_site;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use front_site::{Client, PATIENCE, Running, until};
use trove::front::{Phase, Refusal, descriptors_max};

const NOW: &[u8] = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n";
const HELD: &[u8] = b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n";

/// A connection with an answered request behind it, or without.
fn used(server: &Running, used: bool) -> Client {
    let mut client = server.connect();
    if used {
        client.send(NOW);
        assert_eq!(client.reply().status, 200);
    }
    client
}

#[test]
fn a_head_that_trickles_is_timed_from_its_first_byte_on_every_request() {
    let server = Running::with(|limits| limits.header_timeout_ms = 300);
    for second in [false, true] {
        let mut client = used(&server, second);
        let start = Instant::now();
        client.send(b"GET /now HTTP/1.1\r\nHost: x\r\n");
        // Slowloris: bytes keep coming, the head never ends.
        let mut writer = client.stream.try_clone().unwrap();
        let trickle = std::thread::spawn(move || {
            while start.elapsed() < PATIENCE && writer.write_all(b"a: b\r\n").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.code(), reply.closes()),
            (408, "header_timeout", true)
        );
        assert!(start.elapsed() >= Duration::from_millis(300));
        client.rest_or_reset();
        let _ = client.stream.shutdown(Shutdown::Both);
        trickle.join().unwrap();
    }
}

#[test]
fn a_head_pipelined_in_part_is_timed_too() {
    let server = Running::with(|limits| limits.header_timeout_ms = 200);
    let mut client = server.connect();
    client.send(&[NOW, b"GET /now HT"].concat());
    assert_eq!(client.reply().status, 200);
    assert_eq!(client.reply().code(), "header_timeout");
    client.expect_end();
}

#[test]
fn silent_and_idle_connections_are_closed_without_a_word() {
    for second in [false, true] {
        let server = Running::with(|limits| {
            let timeout_ms = if second {
                &mut limits.idle_timeout_ms
            } else {
                &mut limits.silent_timeout_ms
            };
            *timeout_ms = 300;
        });
        let start = Instant::now();
        let mut client = used(&server, second);
        client.expect_end();
        assert!(start.elapsed() >= Duration::from_millis(300));
        drop(client);
        until("it is gone", || server.front.connections() == 0);
    }
}

#[test]
fn requests_keep_a_connection_from_idling() {
    let idle = Duration::from_millis(500);
    let server = Running::with(|limits| limits.idle_timeout_ms = 500);
    'again: loop {
        let mut client = server.connect();
        let start = Instant::now();
        while start.elapsed() < 3 * idle {
            let sent = Instant::now();
            client.send(NOW);
            assert_eq!(client.reply().status, 200);
            std::thread::sleep(idle / 10);
            // On a machine so loaded that this test itself idles, it proves nothing.
            if sent.elapsed() > idle / 2 {
                continue 'again;
            }
        }
        break;
    }
}

#[test]
fn a_body_must_make_progress() {
    let server = Running::with(|limits| limits.body_timeout_ms = 300);
    for second in [false, true] {
        for framing in [
            "Content-Length: 5000\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello",
        ] {
            let mut client = used(&server, second);
            client.send(format!("POST /count HTTP/1.1\r\nHost: x\r\n{framing}").as_bytes());
            // One byte now and then is no progress.
            let mut writer = client.stream.try_clone().unwrap();
            let start = Instant::now();
            let trickle = std::thread::spawn(move || {
                let byte: &[u8] = if framing.starts_with('C') {
                    b"x"
                } else {
                    b"\r\n1\r\nx"
                };
                while start.elapsed() < PATIENCE && writer.write_all(byte).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let reply = client.reply();
            assert_eq!(
                (reply.status, reply.code(), reply.closes()),
                (408, "body_timeout", true)
            );
            client.rest_or_reset();
            let _ = client.stream.shutdown(Shutdown::Both);
            trickle.join().unwrap();
        }
    }
}

#[test]
fn a_backend_that_does_not_take_the_body_is_not_the_clients_fault() {
    let server = Running::with(|limits| limits.body_timeout_ms = 1000);
    let mut client = server.connect();
    client.send(b"POST /trickle HTTP/1.1\r\nHost: x\r\nContent-Length: 80000\r\n\r\n");
    client.send(&[b'x'; 40_000]);
    until("the first piece is taken", || {
        server.gate.taken.load(SeqCst) > 0
    });
    // Longer than the timer, during which it is the backend that waits.
    std::thread::sleep(Duration::from_millis(1500));
    client.send(&[b'x'; 40_000]);
    until("all is taken", || {
        server.gate.open.notify_one();
        server.gate.taken.load(SeqCst) == 80_000
    });
    server.gate.open.notify_one();
    assert_eq!(client.reply().text(), "done");
}

#[test]
fn a_backend_that_does_not_answer_is_given_up() {
    let server = Running::with(|limits| limits.answer_timeout_ms = 200);
    let mut client = server.connect();
    client.send(HELD);
    let reply = client.reply();
    assert_eq!((reply.status, reply.code()), (503, "answer_timeout"));
    assert!(reply.field("retry-after").is_some());
    until("its future is dropped", || {
        server.gate.dropped.load(SeqCst) == 1
    });
    let given_up = server.gate.given_up.lock().unwrap();
    assert_eq!(*given_up, [Refusal::AnswerTimeout]);
    assert_eq!(
        *server.gate.told.lock().unwrap(),
        [(Refusal::AnswerTimeout, true)]
    );
}

#[test]
fn a_backend_is_told_of_every_answer_that_is_not_its_own() {
    let server = Running::with(|limits| limits.connections_max = 1);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let expected = [
        (get("/now"), 200, None),
        (get("/call/a"), 200, None),
        (
            "BROKEN\r\n\r\n".into(),
            400,
            Some((Refusal::BadRequestLine, false)),
        ),
        (get("/panic-now"), 500, Some((Refusal::Internal, false))),
        (get("/panic"), 500, Some((Refusal::Internal, true))),
        (
            "POST /count?little HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n".into(),
            413,
            Some((Refusal::BodyTooLarge, false)),
        ),
    ];
    let mut told = Vec::new();
    for (request, status, own) in expected {
        let mut client = server.connect();
        client.send(request.as_bytes());
        assert_eq!(client.reply().status, status, "{request}");
        drop(client);
        until("it has gone", || server.front.connections() == 0);
        told.extend(own);
        assert_eq!(*server.gate.told.lock().unwrap(), told, "{request}");
    }
    let _one = server.connect();
    until("it is there", || server.front.connections() == 1);
    assert_eq!(server.connect().reply().status, 503);
    told.push((Refusal::TooManyConnections, false));
    assert_eq!(*server.gate.told.lock().unwrap(), told);
}

#[test]
fn a_slow_reader_costs_no_more_than_the_bound_and_is_cut() {
    let server = Running::with(|limits| limits.write_timeout_ms = 500);
    let mut client = server.connect();
    client.send(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().status, 200);
    // Nothing more is read. What the backend gave is in the sockets' buffers, and 64 KiB of it in the front's.
    until("it is cut", || server.front.connections() == 0);
    let given = server.gate.given.load(SeqCst);
    let received = client.rest_or_reset().len();
    assert!(
        given < 64 << 20,
        "{given} bytes were given to a reader that took {received}"
    );
    assert_eq!(server.counter(|counters| &counters.timeouts), 1);
}

#[test]
fn a_pipelining_client_that_does_not_read_is_held_back_and_cut() {
    let server = Running::with(|limits| limits.write_timeout_ms = 500);
    let mut client = server.connect();
    client.stream.set_nonblocking(true).unwrap();
    let requests = NOW.repeat(1000);
    let start = Instant::now();
    let mut sent = 0;
    loop {
        match client.stream.write(&requests[sent % NOW.len()..]) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => break,
        }
        assert!(
            start.elapsed() < PATIENCE && sent < 256 << 20,
            "{sent} bytes taken"
        );
    }
    until("it is gone", || server.front.connections() == 0);
}

#[test]
fn a_crowd_that_connects_while_the_loop_is_busy_is_not_turned_away() {
    let queue = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    let queue: usize = queue
        .ok()
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(128);
    let server = Running::start();
    let busy = server.gate.blocked.lock().unwrap();
    let mut blocking = server.connect();
    blocking.send(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n");
    until("the loop is busy", || server.gate.held.load(SeqCst) == 1);
    // The kernel completes these on its own, as long as its queue has room: with the runtime's own queue of 128, the
    // 130th would have to try again a second later.
    let connect = || TcpStream::connect_timeout(&server.address, Duration::from_millis(900));
    let crowd: Vec<TcpStream> = (0..queue.min(1000)).map_while(|_| connect().ok()).collect();
    assert_eq!(crowd.len(), queue.min(1000));
    drop(busy);
    for stream in crowd {
        let mut client = Client::new(stream);
        client.send(NOW);
        assert_eq!(client.reply().status, 200);
    }
}

#[test]
fn a_reset_cancels_the_request() {
    let server = Running::start();
    let client = server.connect();
    let mut stream = &client.stream;
    stream.write_all(HELD).unwrap();
    until("it is held", || server.gate.held.load(SeqCst) == 1);
    let socket = socket2::SockRef::from(&client.stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    until("its future is dropped", || {
        server.gate.dropped.load(SeqCst) == 1
    });
    until("it is gone", || server.front.connections() == 0);
}

#[test]
fn clients_that_vanish_anywhere_leave_nothing_behind() {
    let server = Running::start();
    let requests: [&[u8]; 4] = [
        NOW,
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /elsewhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET /large/3000000 HTTP/1.1\r\nHost: x\r\n\r\n",
    ];
    for request in requests {
        for cut in 0..=request.len() {
            for reset in [false, true] {
                let client = server.connect();
                (&client.stream).write_all(&request[..cut]).unwrap();
                if reset {
                    socket2::SockRef::from(&client.stream)
                        .set_linger(Some(Duration::ZERO))
                        .unwrap();
                }
            }
        }
    }
    until("all are gone", || server.front.connections() == 0);
    let mut client = used(&server, true);
    client.send(NOW);
    assert_eq!(client.reply().status, 200);
}

#[test]
fn thousands_of_silent_connections_hold_back_nobody() {
    // Both ends are in this process, beside those of the tests that run at the same time.
    let count = (descriptors_max().saturating_sub(1500) / 2).min(4000) as usize;
    let server = Running::with(|limits| {
        limits.header_timeout_ms = 120_000;
        limits.silent_timeout_ms = 120_000;
    });
    let mut silent = Vec::new();
    for i in 0..count {
        let mut stream = TcpStream::connect(server.address).unwrap();
        if i % 2 == 0 {
            stream.write_all(b"GET /now HTTP/1.1\r\nHo").unwrap();
        }
        silent.push(stream);
        if i % 500 == 0 {
            assert_eq!(server.ask(NOW).status, 200);
        }
    }
    until("all are accepted", || {
        server.front.connections() as usize >= count
    });
    let mut client = used(&server, true);
    client.send(NOW);
    assert_eq!(client.reply().status, 200);
    // Each of them still gets its answer.
    for (i, stream) in silent.iter_mut().enumerate().step_by(97) {
        stream
            .write_all(if i % 2 == 0 { b"st: x\r\n\r\n" } else { NOW })
            .unwrap();
        let mut answer = [0; 12];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    drop(silent);
    until("all are gone", || server.front.connections() <= 1);
}

#[test]
fn a_full_front_refuses_new_connections_and_keeps_the_old() {
    let server = Running::with(|limits| limits.connections_max = 3);
    let mut old: Vec<Client> = (0..3).map(|_| used(&server, true)).collect();
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..30 {
        let reply = server.ask(NOW);
        assert_eq!(
            (reply.status, reply.code(), reply.closes()),
            (503, "too_many_connections", true)
        );
        waits.insert(reply.field("retry-after").unwrap().parse::<u32>().unwrap());
    }
    assert!(
        waits.len() > 1 && waits.iter().all(|wait| (1..=5).contains(wait)),
        "{waits:?}"
    );
    for client in &mut old {
        client.send(NOW);
        assert_eq!(client.reply().status, 200);
    }
    drop(old.pop());
    until("there is room", || server.front.connections() == 2);
    assert_eq!(server.ask(NOW).status, 200);
    assert_eq!(server.counter(|counters| &counters.refused_connections), 30);
}

#[test]
fn refused_connections_do_not_pile_up() {
    let server = Running::with(|limits| {
        limits.connections_max = 1;
        limits.refusals_max = 2;
        limits.linger_timeout_ms = 60_000;
    });
    let _old = used(&server, true);
    // These do not close; two linger, the others are dropped.
    let mut refused: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    until("all are seen", || {
        server.counter(|counters| &counters.refused_connections)
            + server.counter(|counters| &counters.dropped_connections)
            == 10
    });
    assert_eq!(server.counter(|counters| &counters.refused_connections), 2);
    let answers: Vec<Vec<u8>> = refused.iter_mut().map(Client::rest_or_reset).collect();
    assert_eq!(
        answers
            .iter()
            .filter(|answer| answer.starts_with(b"HTTP/1.1 503"))
            .count(),
        2
    );
    drop(refused);
    until("there is room to refuse in", || {
        server.ask_status(NOW) == Some(503)
    });
}

#[test]
fn notice_closes_after_the_next_answer_and_drain_closes_the_idle() {
    let mut server = Running::start();
    let (mut polling, mut idle, mut held) =
        (used(&server, true), used(&server, true), server.connect());
    held.send(HELD);
    until("it is held", || server.gate.held.load(SeqCst) == 1);
    server.phase.send(Phase::Notice).unwrap();
    until("the notice is out", || {
        let reply = server.ask(NOW);
        assert_eq!(reply.status, 200, "still accepting");
        reply.closes()
    });
    polling.send(&[NOW, NOW].concat());
    assert!(polling.reply().closes());
    polling.expect_end();
    // The idle one is still there, until the drain.
    idle.stream.set_nonblocking(true).unwrap();
    assert_eq!(
        idle.stream.peek(&mut [0]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    idle.stream.set_nonblocking(false).unwrap();
    server.phase.send(Phase::Draining).unwrap();
    idle.expect_end();
    // What is under way is answered.
    server.gate.open.notify_one();
    let reply = held.reply();
    assert!(reply.closes() && reply.text() == "released");
    held.expect_end();
    drop((polling, idle, held));
    server.drain();
    assert!(
        TcpStream::connect(server.address).is_err(),
        "nothing listens any more"
    );
}

#[test]
fn the_drain_ends_at_its_deadline() {
    let mut server = Running::with(|limits| limits.drain_deadline_ms = 300);
    let mut held = server.connect();
    held.send(HELD);
    until("it is held", || server.gate.held.load(SeqCst) == 1);
    let start = Instant::now();
    server.drain();
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(held.rest_or_reset(), b"");
    assert_eq!(server.gate.dropped.load(SeqCst), 1);
    assert_eq!(server.front.connections(), 0);
}

#[test]
fn a_request_under_way_when_the_drain_begins_is_answered() {
    let mut server = Running::start();
    let mut client = used(&server, true);
    client.send(b"GET /now HTTP/1.1\r\nHo");
    // The front has the first part once another request, sent later, is answered.
    assert_eq!(server.ask(NOW).status, 200);
    server.phase.send(Phase::Draining).unwrap();
    until("it drains", || TcpStream::connect(server.address).is_err());
    client.send(b"st: x\r\n\r\n");
    let reply = client.reply();
    assert!(reply.status == 200 && reply.closes());
    client.expect_end();
    drop(client);
    server.drain();
}

#[test]
fn connections_that_say_nothing_do_not_hold_up_the_drain() {
    let mut server = Running::with(|limits| {
        limits.drain_deadline_ms = 3_600_000;
        limits.linger_timeout_ms = 200;
    });
    let silent = [server.connect(), server.connect()];
    let idle = [used(&server, true), used(&server, true)];
    until("all are accepted", || server.front.connections() == 4);
    // Neither kind closes its half.
    server.drain();
    assert_eq!(server.front.connections(), 0);
    drop((silent, idle));
}

#[test]
fn a_client_that_never_closes_is_waited_for_only_so_long() {
    let server = Running::with(|limits| limits.linger_timeout_ms = 200);
    let mut client = server.connect();
    client.send(b"nonsense\r\n\r\n");
    assert_eq!(client.reply().status, 400);
    client.expect_end();
    until("it is gone", || server.front.connections() == 0);
}

#[test]
fn accepted_sockets_do_not_delay_small_writes() {
    // Two answers in two writes with the client's acknowledgement between them: with Nagle's algorithm and delayed
    // acknowledgements this takes 40 ms a round.
    let server = Running::start();
    let mut client = server.connect();
    let start = Instant::now();
    for _ in 0..50 {
        client.send(
            b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n",
        );
        assert_eq!(client.reply().status, 100);
        client.send(b"x");
        assert_eq!(client.reply().text(), "1");
    }
    assert!(start.elapsed() < PATIENCE);
}
