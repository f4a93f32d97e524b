//! Well-formed requests over real sockets: each is answered, in whatever pieces it comes.

mod front_site;

use std::sync::atomic::Ordering::SeqCst;

use front_site::{Running, large, until};

const NOW: &[u8] = b"GET /now?a HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn a_request_is_answered_at_once_or_by_the_service() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(NOW);
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (200, "now GET a"));
    assert_eq!(reply.field("content-type"), Some("text/plain"));
    assert!(
        reply
            .field("date")
            .is_some_and(|date| date.ends_with(" GMT"))
    );
    assert_eq!(reply.field("connection"), None);
    client.send(b"GET /call/bob HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.reply().text(), "called bob");
    client.send(b"GET /missing HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.reply().status, 404);
    client.send(b"GET /peer HTTP/1.1\r\nHost: x\r\n\r\n");
    let own = client.stream.local_addr().unwrap();
    assert_eq!(client.reply().text(), format!("{own} true"));
}

#[test]
fn every_split_of_a_request_reads_alike() {
    let server = Running::start();
    let requests: [(&[u8], &str); 4] = [
        (NOW, "now GET a"),
        (b"\r\nGET http://x/call/bob HTTP/1.1\r\nHost: x\r\nX: y\r\n\r\n", "called bob"),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        (
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nT: x\r\n\r\n",
            "hello!",
        ),
    ];
    let mut client = server.connect();
    for (request, body) in requests {
        for cut in 1..request.len() {
            let (first, second) = request.split_at(cut);
            client.send(first);
            client.send(second);
            assert_eq!(client.reply().text(), body, "cut at {cut}");
        }
        for byte in request {
            client.send(&[*byte]);
        }
        assert_eq!(client.reply().text(), body);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Running::start();
    let mut client = server.connect();
    let mut all = Vec::new();
    for i in 0..300 {
        all.extend(
            match i % 3 {
                0 => format!("GET /now?{i} HTTP/1.1\r\nHost: x\r\n\r\n"),
                1 => format!("GET /call/{i} HTTP/1.1\r\nHost: x\r\n\r\n"),
                _ => format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{i:05}"),
            }
            .into_bytes(),
        );
    }
    client.send(&all);
    for i in 0..300 {
        let text = client.reply();
        let expected = match i % 3 {
            0 => format!("now GET {i}"),
            1 => format!("called {i}"),
            _ => format!("{i:05}"),
        };
        assert_eq!(text.text(), expected);
    }
}

#[test]
fn a_request_behind_a_held_one_waits_for_its_answer() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
    until("the first is held", || server.gate.held.load(SeqCst) == 1);
    client.send(&[b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n", NOW].concat());
    // Another client is not held up by it, and when it has its answer the second has surely been read.
    assert_eq!(server.ask(NOW).status, 200);
    assert_eq!(server.gate.held.load(SeqCst), 1);
    server.gate.open.notify_one();
    assert_eq!(client.reply().text(), "released");
    until("the second is held", || server.gate.held.load(SeqCst) == 2);
    server.gate.open.notify_one();
    assert_eq!(client.reply().text(), "released");
    assert_eq!(client.reply().text(), "now GET a");
}

#[test]
fn what_is_pipelined_behind_a_held_request_is_bounded() {
    let server = Running::with(|limits| limits.pipelined_bytes_max = 4096);
    let mut client = server.connect();
    client.send(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
    until("it is held", || server.gate.held.load(SeqCst) == 1);
    client.stream.set_nonblocking(true).unwrap();
    // The sockets take some megabytes; a front that read on would take these 64 as well.
    let (mut sent, mut stalls) = (0, 0);
    while sent < 64 << 20 && stalls < 200 {
        match std::io::Write::write(&mut client.stream, &NOW.repeat(1000)) {
            Ok(bytes) => (sent, stalls) = (sent + bytes, 0),
            Err(_) => {
                stalls += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    assert!(sent < 64 << 20, "the front read {sent} bytes ahead");
}

#[test]
fn head_is_answered_like_get_without_the_body() {
    let server = Running::start();
    let mut client = server.connect();
    for path in ["/now?x", "/call/bob", "/large/70000"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let get = client.reply();
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let head = client.reply_to("HEAD");
        assert_eq!(head.status, get.status);
        if !path.starts_with("/now") {
            assert_eq!(
                head.field("content-length"),
                get.field("content-length"),
                "{path}"
            );
        }
    }
    client.send(
        b"HEAD /stream/3 HTTP/1.1\r\nHost: x\r\n\r\nHEAD /missing HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    assert_eq!(client.reply_to("HEAD").status, 200);
    assert_eq!(client.reply_to("HEAD").status, 404);
    client.send(NOW);
    assert_eq!(client.reply().text(), "now GET a");
}

#[test]
fn answers_without_a_body_have_no_length() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"GET /none-now HTTP/1.1\r\nHost: x\r\n\r\n");
    let reply = client.reply();
    assert_eq!(
        (
            reply.status,
            reply.field("content-length"),
            reply.field("x-none")
        ),
        (204, None, Some("1"))
    );
    client.send(NOW);
    assert_eq!(client.reply().status, 200);
}

#[test]
fn bodies_of_any_size_come_back_whole() {
    let server = Running::start();
    for (size, chunk) in [
        (1, 0),
        (70_000, 0),
        (3_000_000, 0),
        (1, 1),
        (5_000, 1),
        (3_000_000, 1 << 20),
        (200_000, 999),
    ] {
        let body = large(size);
        let mut client = server.connect();
        let mut writer = client.stream.try_clone().unwrap();
        let sent = body.clone();
        let sender = std::thread::spawn(move || {
            use std::io::Write as _;
            if chunk == 0 {
                write!(
                    writer,
                    "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
                    sent.len()
                )
                .unwrap();
                writer.write_all(&sent).unwrap();
            } else {
                let mut wire =
                    b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
                        .to_vec();
                for piece in sent.chunks(chunk) {
                    wire.extend(format!("{:X}\r\n", piece.len()).as_bytes());
                    wire.extend(piece);
                    wire.extend(b"\r\n");
                }
                wire.extend(b"0\r\n\r\n");
                writer.write_all(&wire).unwrap();
            }
        });
        let reply = client.reply();
        sender.join().unwrap();
        assert!(reply.body == body, "{size} bytes in chunks of {chunk}");
        client.send(NOW);
        assert_eq!(client.reply().status, 200, "the connection goes on");
    }
}

#[test]
fn a_body_can_be_read_by_another_task() {
    let server = Running::start();
    let mut client = server.connect();
    for size in [0, 5, 300_000] {
        client.send(
            format!("POST /elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n")
                .as_bytes(),
        );
        client.send(&large(size));
        assert_eq!(client.reply().text(), size.to_string());
    }
}

#[test]
fn a_body_is_read_no_faster_than_it_is_taken() {
    let server = Running::start();
    let mut client = server.connect();
    let size = 64 << 20;
    client.send(
        format!("POST /trickle HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n").as_bytes(),
    );
    assert_eq!(client.reply().code(), "body_too_large");

    let server = Running::with(|limits| limits.body_bytes_max = u64::MAX);
    let mut client = server.connect();
    client.send(
        format!("POST /trickle HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n").as_bytes(),
    );
    client.stream.set_nonblocking(true).unwrap();
    let (mut sent, mut stalls) = (0, 0);
    while sent < size && stalls < 200 {
        match std::io::Write::write(&mut client.stream, &[b'x'; 65536]) {
            Ok(bytes) => (sent, stalls) = (sent + bytes, 0),
            Err(_) => {
                stalls += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    assert!(sent < size, "all of it was taken in");
    assert!(
        server.gate.taken.load(SeqCst) <= 65536,
        "one piece has been taken"
    );
}

#[test]
fn a_stream_of_unknown_size_is_chunked() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"GET /stream/3 HTTP/1.1\r\nHost: x\r\n\r\n");
    let reply = client.reply();
    assert_eq!(reply.text(), "piece 2;piece 1;piece 0;");
    assert_eq!(reply.field("transfer-encoding"), Some("chunked"));
    client.send(
        b"GET /large-chunks/5 HTTP/1.1\r\nHost: x\r\n\r\nGET /stream/0 HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let reply = client.reply();
    assert!(reply.body == large(50_000).repeat(5));
    assert_eq!(reply.chunks, [50_000; 5]);
    assert_eq!(client.reply().text(), "");
    client.send(NOW);
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_large_answer_survives_a_slow_reader() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"GET /large/9000000 HTTP/1.1\r\nHost: x\r\n\r\nGET /large-chunks/40 HTTP/1.1\r\nHost: x\r\n\r\n");
    client.send(NOW);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(client.reply().body == large(9_000_000));
    assert!(client.reply().body == large(50_000).repeat(40));
    assert_eq!(client.reply().text(), "now GET a");
}

#[test]
fn http_1_0_is_closed_unless_it_asks_to_be_kept() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"GET /now HTTP/1.0\r\n\r\n");
    let reply = client.reply();
    assert!(reply.closes() && reply.text() == "now GET -");
    client.expect_end();

    let mut client = server.connect();
    for _ in 0..2 {
        client.send(b"GET /call/bob HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        let reply = client.reply();
        assert_eq!(
            (reply.field("connection"), reply.text()),
            (Some("keep-alive"), "called bob")
        );
    }
    client.send(b"GET /stream/2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let reply = client.reply();
    assert_eq!(
        (reply.field("transfer-encoding"), reply.text()),
        (None, "piece 1;piece 0;")
    );
    client.expect_end();
}

#[test]
fn connection_close_is_honoured_on_both_sides() {
    let server = Running::start();
    for path in ["/now", "/call/bob", "/bye", "/missing"] {
        let mut client = server.connect();
        let asks = if path == "/bye" {
            ""
        } else {
            "Connection: close\r\n"
        };
        client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{asks}\r\n").as_bytes());
        assert!(client.reply().closes(), "{path}");
        client.expect_end();
    }
}

#[test]
fn a_half_closed_client_gets_all_its_answers() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(&NOW.repeat(3));
    client.send(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n");
    client.send(NOW);
    client.half_close();
    until("it is held", || server.gate.held.load(SeqCst) == 1);
    for _ in 0..3 {
        assert_eq!(client.reply().status, 200);
    }
    server.gate.open.notify_one();
    assert_eq!(client.reply().text(), "released");
    assert_eq!(client.reply().text(), "now GET a");
    client.expect_end();
}

#[test]
fn continue_is_sent_when_the_body_is_wanted() {
    let server = Running::start();
    let mut client = server.connect();
    let head =
        b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n";
    for _ in 0..2 {
        client.send(head);
        assert_eq!(client.reply().status, 100);
        client.send(b"hello");
        assert_eq!(client.reply().text(), "5");
    }
    // Who does not wait for it does not get it.
    client.send(&[head, &b"hello"[..]].concat());
    assert_eq!(client.reply().text(), "5");
    // Nobody wants the body: it is not asked for, and as it may come nevertheless the connection ends.
    client.send(
        b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    let reply = client.reply();
    assert!(reply.closes() && reply.text() == "not wanted");
    client.expect_end();
    let reply =
        server.ask(b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: tea\r\n\r\n");
    assert_eq!((reply.status, reply.code()), (417, "unknown_expectation"));
}

#[test]
fn a_body_that_nobody_wants_is_thrown_away_up_to_a_bound() {
    let server = Running::start();
    let mut client = server.connect();
    for request in [
        b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello".to_vec(),
        b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec(),
        [&b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"[..], &large(60_000)].concat(),
    ] {
        for byte in [request.len(), request.len() - 3] {
            client.send(&request[..byte]);
            assert_eq!(client.reply().text(), "not wanted");
            client.send(&request[byte..]);
            client.send(NOW);
            assert_eq!(client.reply().text(), "now GET a");
        }
    }
    // Above the bound the answer says that the connection ends, and is not lost to a reset.
    client.send(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 800000\r\n\r\n");
    client.send(&large(800_000));
    let reply = client.reply();
    assert!(reply.closes() && reply.text() == "not wanted");
    client.expect_end();
}

#[test]
fn a_panic_ends_one_connection() {
    let server = Running::start();
    let mut other = server.connect();
    for path in ["/panic-now", "/panic", "/bad-now", "/upgrade"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.code(), reply.closes()),
            (500, "internal", true),
            "{path}"
        );
        client.expect_end();
    }
    let mut client = server.connect();
    client.send(b"GET /panic-body HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().status, 200);
    assert_eq!(client.rest(), b"", "no end of the body is sent");
    other.send(NOW);
    assert_eq!(other.reply().status, 200);
    assert_eq!(server.counter(|counters| &counters.panics), 3);
}

#[test]
fn a_refusal_of_head_has_no_body() {
    let server = Running::start();
    for path in ["/panic-now", "/panic", "/bad-now"] {
        let mut client = server.connect();
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(client.reply_to("HEAD").status, 500);
        client.expect_end();
    }
}

#[test]
fn an_answer_that_is_declined_half_written_is_taken_back() {
    let server = Running::start();
    let reply = server.ask(b"GET /half-now HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((reply.status, reply.field("x")), (404, None));
}

#[test]
fn a_body_that_breaks_is_never_ended_well() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"GET /broken/unknown HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.head().field("transfer-encoding"), Some("chunked"));
    assert_eq!(client.rest(), b"4\r\npart\r\n4\r\npart\r\n");
    // Shorter, and longer, than it said.
    for (length, got) in [("100", "partpart"), ("6", "part")] {
        let mut client = server.connect();
        client.send(format!("GET /broken/{length} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(client.head().field("content-length"), Some(length));
        assert_eq!(client.rest(), got.as_bytes());
    }
    assert_eq!(server.counter(|counters| &counters.cut_answers), 3);
}
