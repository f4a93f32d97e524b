//! What the shim forwards arrives as it was sent, and so does the answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};

use shim_site::{Client, Server, Shim, answer, tokens, until};

#[test]
fn every_method_and_body_arrives_as_it_was_sent() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    for method in [
        "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND",
    ] {
        for size in [0, 1, 96, 70_000, 1_000_000] {
            let body: Vec<u8> = (0..size).map(|n: u32| n.to_le_bytes()[0]).collect();
            let head = format!("{method} /a%20b?q=1&r HTTP/1.1\r\nhost: h.example\r\nx-own: 1\r\n");
            let plain = format!("{head}content-length: {size}\r\n\r\n");
            let mut in_chunks = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
            for chunk in body.chunks(33_333) {
                in_chunks.extend_from_slice(format!("{:x};ext=1\r\n", chunk.len()).as_bytes());
                in_chunks.extend_from_slice(chunk);
                in_chunks.extend_from_slice(b"\r\n");
            }
            in_chunks.extend_from_slice(b"0\r\nx-trailer: 1\r\n\r\n");
            for request in [[plain.as_bytes(), &body].concat(), in_chunks] {
                client.send(&request);
                let reply = client.reply();
                assert_eq!(reply.status, 200);
                let line = format!("{method} /a%20b?q=1&r\n");
                assert!(
                    reply.body.strip_prefix(line.as_bytes()) == Some(&body),
                    "{line}{size}"
                );
                let seen = server.last();
                assert_eq!(seen.field("host"), Some("h.example"));
                assert_eq!(seen.field("x-own"), Some("1"));
                assert_eq!(seen.field("x-trailer"), None);
            }
        }
    }
}

#[test]
fn hop_by_hop_fields_stay_on_their_hop_in_both_directions() {
    let server = Server::start(|_, stream| {
        let fields = [
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("x-end", "2"),
            ("set-cookie", "a=b"),
            ("set-cookie", "c=d"),
        ];
        answer(stream, 200, &fields, b"ok")
    });
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    client.send(
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: x-hop\r\nx-hop: 1\r\nte: trailers\r\nupgrade: h2c\r\nx-end: 2\r\n\r\n",
    );
    let reply = client.reply();
    assert_eq!(
        (reply.field("x-hop"), reply.field("keep-alive")),
        (None, None)
    );
    assert_eq!(reply.field("x-end"), Some("2"));
    let cookies = reply.fields.iter().filter(|(name, _)| name == "set-cookie");
    assert_eq!(cookies.count(), 2);
    let seen = server.last();
    for name in ["x-hop", "te", "upgrade", "connection"] {
        assert_eq!(seen.field(name), None);
    }
    assert_eq!(seen.field("x-end"), Some("2"));
    client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(
        client.reply().status,
        200,
        "the client's connection goes on"
    );
}

#[test]
fn a_connection_that_cannot_be_kept_is_the_instance_s_to_close() {
    let server = Server::echo();
    let shim = Shim::with(
        &[server.group("blue")],
        &[("SHIM_UPSTREAM__POOL_IDLE_MAX", "0")],
    );
    shim.ask("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi");
    assert_eq!(server.last().field("connection"), Some("close"));
    let shim = Shim::start(&[server.group("blue")]);
    for nth in 0..3 {
        shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        let seen = server.last();
        assert_eq!((seen.field("connection"), seen.nth), (None, nth));
    }
}

#[test]
fn answers_of_every_framing_reach_the_client_whole() {
    let large: Vec<u8> = (0..3_000_000u32)
        .map(|n| (n >> 3).to_le_bytes()[0])
        .collect();
    let sent = large.clone();
    let server = Server::start(move |seen, stream| {
        let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into_bytes();
        let _ = match seen.target.as_str() {
            "/chunked" => {
                let mut all = head("transfer-encoding: chunked\r\nx: y\r\n");
                for chunk in sent.chunks(50_001) {
                    all.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                    all.extend_from_slice(chunk);
                    all.extend_from_slice(b"\r\n");
                }
                all.extend_from_slice(b"0\r\ntrailer: 1\r\n\r\n");
                stream.write_all(&all)
            }
            "/length" => {
                let length = format!("content-length: {}\r\n", sent.len());
                stream.write_all(&[head(&length), sent.clone()].concat())
            }
            "/close" => {
                let _ = stream.write_all(&[head(""), sent.clone()].concat());
                return false;
            }
            "/old" => {
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nold");
                return false;
            }
            "/304" => stream.write_all(b"HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\ncontent-length: 9\r\n\r\n"),
            "/204" => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n"),
            "/hints" => stream.write_all(
                b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            ),
            _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 77\r\n\r\n"),
        };
        true
    });
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    let mut ask = |method: &str, target: &str| {
        client.send(format!("{method} {target} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        client.reply_to(method)
    };
    for target in ["/chunked", "/length", "/close", "/chunked"] {
        let reply = ask("GET", target);
        assert!(reply.body == large, "{target}: {} bytes", reply.body.len());
    }
    assert_eq!(ask("GET", "/old").text(), "old");
    let reply = ask("GET", "/304");
    assert_eq!((reply.status, reply.field("etag")), (304, Some("\"1\"")));
    assert_eq!(ask("GET", "/204").status, 204);
    assert_eq!(ask("GET", "/hints").text(), "ok");
    let reply = ask("HEAD", "/head");
    assert_eq!(reply.field("content-length"), Some("77"));
    // The connection is in step after all of these.
    assert_eq!(ask("GET", "/hints").text(), "ok");
    // An old client is told the end of a body of unknown length by the connection's.
    let mut old = shim.connect();
    old.send(b"GET /chunked HTTP/1.0\r\n\r\n");
    let reply = old.reply();
    assert!(reply.closes() && reply.body == large);
}

#[test]
fn bodies_stream_both_ways_while_neither_side_has_ended() {
    // A server that answers each chunk as it comes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut buffer = [0; 4096];
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut buffer) {
                        Ok(read @ 1..) => head.extend_from_slice(&buffer[..read]),
                        _ => return,
                    }
                }
                if head.starts_with(b"GET /health") {
                    answer(&mut stream, 200, &[], b"");
                    return;
                }
                let end = memchr::memmem::find(&head, b"\r\n\r\n").expect("an end");
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
                let _ = stream.write_all(&head[end + 4..]);
                // The chunks of the request are passed back as they are, framing and all.
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(&buffer[..read]);
                    if buffer[..read].ends_with(b"0\r\n\r\n") {
                        return;
                    }
                }
            });
        }
    });
    let shim = Shim::start(&[format!("blue={address}")]);
    let mut client = shim.connect();
    client.send(b"POST /duplex HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(b"3\r\none\r\n");
    let mut got = Vec::new();
    let mut until_ends = |end: &[u8]| {
        while !got.ends_with(end) {
            let mut buffer = [0; 4096];
            let read = client.stream.read(&mut buffer).expect("more");
            assert!(read > 0, "the end after {}", got.escape_ascii());
            got.extend_from_slice(&buffer[..read]);
        }
        client.stream.try_clone().expect("a handle")
    };
    let mut stream = until_ends(b"\r\n\r\n3\r\none\r\n");
    stream.write_all(b"3\r\ntwo\r\n").unwrap();
    until_ends(b"one\r\n3\r\ntwo\r\n");
    stream.write_all(b"0\r\n\r\n").unwrap();
    until_ends(b"two\r\n0\r\n\r\n");
}

#[test]
fn a_client_that_does_not_read_holds_its_server_back_and_not_the_shim_s_memory() {
    let written = Arc::new(AtomicUsize::new(0));
    let counted = written.clone();
    let server = Server::start(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 268435456\r\n\r\n");
        let piece = [b'x'; 65_536];
        for _ in 0..4096 {
            if stream.write_all(&piece).is_err() {
                return false;
            }
            counted.fetch_add(piece.len(), SeqCst);
        }
        true
    });
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    client.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n");
    // The sockets between fill up, then nothing moves.
    let mut last = 0;
    until("the server is held back", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = written.load(SeqCst);
        std::mem::replace(&mut last, now) == now && now > 0
    });
    assert!(last < 64 << 20, "{last} bytes are somewhere");
    let reply = client.reply();
    assert_eq!(reply.body.len(), 268_435_456);
}

#[test]
fn an_old_server_gets_a_length_for_a_chunked_body() {
    let server = Server::start(|seen, stream| {
        let body = format!("{:?} {}", seen.field("content-length"), seen.body.len());
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
        let _ = stream.write_all(body.as_bytes());
        false
    });
    let shim = Shim::with(
        &[server.group("old")],
        &[("SHIM__REPLAY_BYTES_MAX", "1000")],
    );
    assert_eq!(
        shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n").text(),
        "None 0"
    );
    let head = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    // A health check in between says HTTP/1.1: it is the test's.
    until("the old server's version is known", || {
        shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        shim.ask(format!("{head}3\r\nabc\r\n0\r\n\r\n")).text() == "Some(\"3\") 3"
    });
    until("a large one is refused", || {
        shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        let large = format!("{head}{:x}\r\n{}\r\n0\r\n\r\n", 2000, "x".repeat(2000));
        shim.ask(large).status == 411
    });
}

#[test]
fn what_expects_100_continue_is_told_and_forwarded() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    client
        .send(b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n");
    assert_eq!(client.head().status, 100);
    client.send(b"hello");
    assert_eq!(client.reply().text(), "POST /a\nhello");
    assert_eq!(server.last().field("expect"), None);
}

#[test]
fn every_answer_tells_its_instance_and_its_times() {
    let server = Server::start(|seen, stream| match seen.target.as_str() {
        "/plain" => answer(stream, 200, &[], b"x"),
        _ => {
            let fields = [("x-instance-id", "i-7"), ("server-timing", "app;dur=1.5")];
            answer(stream, 200, &fields, b"x")
        }
    });
    let shim = Shim::start(&[server.group("blue")]);
    let reply = shim.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(reply.field("x-instance-id"), Some("i-7"));
    let timing = reply.field("server-timing").expect("times");
    let parts: Vec<&str> = timing.split(", ").collect();
    assert_eq!(parts[0], "app;dur=1.5");
    for (part, name) in parts[1..].iter().zip(["shim;dur=", "queue;dur="]) {
        let ms = part.strip_prefix(name).expect("a part");
        let (_, digits) = ms.split_once('.').expect("a fraction");
        assert!(ms.parse::<f64>().expect("a number") < 1000.0 && digits.len() == 3);
    }
    let reply = shim.ask("GET /plain HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(
        reply
            .field("server-timing")
            .is_some_and(|timing| timing.starts_with("shim;"))
    );
    let reply = shim.ask("GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(reply.field("x-instance-id"), Some("the-shim"));
    assert!(reply.text().contains(r#""status":"ok""#));
    for (method, target, status) in [
        ("GET", "/health/live", 200),
        ("HEAD", "/health/ready", 200),
        ("POST", "/health", 405),
    ] {
        let mut client = shim.connect();
        client.send(format!("{method} {target} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        assert_eq!(client.reply_to(method).status, status);
    }
    assert_eq!(server.count(), 2);
}

#[test]
fn a_trace_is_passed_on_or_begun() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    shim.ask(format!(
        "GET / HTTP/1.1\r\nhost: x\r\ntraceparent: {trace}\r\n\r\n"
    ));
    assert_eq!(server.last().field("traceparent"), Some(trace));
    shim.ask("GET / HTTP/1.1\r\nhost: x\r\ntraceparent: nonsense\r\n\r\n");
    let made = server
        .last()
        .field("traceparent")
        .expect("a trace")
        .to_owned();
    assert!(made.len() == 55 && made.starts_with("00-"), "{made}");
}

#[test]
fn a_client_s_word_for_its_address_counts_only_from_trusted_peers() {
    let server = Server::echo();
    let ask = |shim: &Shim| {
        shim.ask(
            "GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 1.1.1.1\r\nx-forwarded-proto: https\r\nforwarded: for=1.1.1.1\r\n\r\n",
        );
        let seen = server.last();
        let field = |name| seen.field(name).map(str::to_owned);
        (
            field("x-forwarded-for"),
            field("x-forwarded-proto"),
            field("forwarded"),
        )
    };
    let some = |text: &str| Some(text.to_owned());
    let shim = Shim::start(&[server.group("blue")]);
    assert_eq!(ask(&shim), (some("127.0.0.1"), some("http"), None));
    let trusting = [("SHIM__TRUSTED_PROXIES", "10.0.0.0/8,127.0.0.0/8")];
    let shim = Shim::with(&[server.group("blue")], &trusting);
    assert_eq!(
        ask(&shim),
        (
            some("1.1.1.1, 127.0.0.1"),
            some("https"),
            some("for=1.1.1.1")
        )
    );
    let silent = [("SHIM__FORWARDED_FOR", "false")];
    let shim = Shim::with(&[server.group("blue")], &silent);
    assert_eq!(ask(&shim), (None, None, None));
}

#[test]
fn the_proxy_protocol_is_read_from_configured_peers_and_only_from_them() {
    let server = Server::echo();
    let shim = Shim::with(
        &[server.group("blue")],
        &[("SHIM__PROXY_PROTOCOL_FROM", "127.0.0.1")],
    );
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let v4 = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0f"[..],
        &[9, 9, 9, 9, 127, 0, 0, 1, 3, 232, 0, 80, 4, 0, 0],
    ]
    .concat();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".to_vec();
    for (header, client_address) in [
        (
            b"PROXY TCP4 8.8.8.8 127.0.0.1 1000 80\r\n".to_vec(),
            "8.8.8.8",
        ),
        (
            b"PROXY TCP6 2001:db8::8 ::1 1000 80\r\n".to_vec(),
            "2001:db8::8",
        ),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (v4, "9.9.9.9"),
        (local, "127.0.0.1"),
    ] {
        // At once with two requests behind it, and cut into bytes.
        let mut client = shim.connect();
        client.send(&[&header[..], request, request].concat());
        assert_eq!(client.reply().status, 200);
        assert_eq!(client.reply().status, 200);
        assert_eq!(server.last().field("x-forwarded-for"), Some(client_address));
        let mut client = shim.connect();
        for byte in header.iter().chain(request) {
            client.send(&[*byte]);
        }
        assert_eq!(client.reply().status, 200);
        assert_eq!(server.last().field("x-forwarded-for"), Some(client_address));
    }
    let forwarded = server.count();
    for wrong in [
        &request[..],
        b"PROXY TCP4 8.8.8.8 127.0.0.1 1000\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &[b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat(),
    ] {
        let mut client = shim.connect();
        client.try_send(wrong);
        assert!(client.rest_or_reset().is_empty());
    }
    assert!((shim.metric("trove_shim_bad_proxy_headers_total") - 3.0).abs() < 0.5);
    // From anybody else it is no request.
    let other = Shim::with(
        &[server.group("blue")],
        &[("SHIM__PROXY_PROTOCOL_FROM", "10.0.0.1")],
    );
    let reply = other
        .ask(&b"PROXY TCP4 8.8.8.8 127.0.0.1 1000 80\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n"[..]);
    assert_eq!(reply.status, 400);
    assert_eq!(other.ask(request).status, 200);
    assert_eq!(server.count(), forwarded + 1);
    for shim in [&shim, &other] {
        shim.process.terminate();
    }
    let (mut shim, mut other) = (shim, other);
    assert_eq!(shim_site::wait_exit(&mut shim.process), 0);
    assert_eq!(shim_site::wait_exit(&mut other.process), 0);
}

#[test]
fn ambiguous_requests_stop_at_the_shim() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    for (request, status) in [
        (
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
            400,
        ),
        ("GET / HTTP/1.1\r\nhost: x\r\n folded: 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nhost: x\n\n", 400),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400),
        ("GET http://y/ HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        ("CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", 501),
        ("GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505),
    ] {
        let mut client = shim.connect();
        client.try_send(request.as_bytes());
        let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
        client.try_send(smuggled.as_bytes());
        let all = client.rest_or_reset();
        let text = String::from_utf8_lossy(&all);
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:?}: {text}"
        );
        assert_eq!(text.matches("\r\ndate: ").count(), 1, "{request:?}: {text}");
    }
    let seen = server.seen.lock().unwrap();
    // The head of the one with a bad chunk was forwarded; nothing of it is a request of its own.
    assert!(
        seen.iter().all(|seen| seen.target != "/smuggled"),
        "{seen:?}"
    );
}

#[test]
fn public_answers_are_given_from_memory_while_they_are_fresh() {
    let server = Server::start(|seen, stream| {
        let cache = match seen.target.as_str() {
            "/public" => "public, max-age=60",
            "/brief" => "public, max-age=1",
            _ => "no-store",
        };
        let body = format!("{} {:?}", seen.target, seen.field("accept-encoding"));
        let fields = [
            ("cache-control", cache),
            ("etag", "W/\"7\""),
            ("vary", "accept-encoding"),
            ("x-instance-id", "i-7"),
        ];
        answer(stream, 200, &fields, body.as_bytes())
    });
    let shim = Shim::start(&[server.group("blue")]);
    let get = |target: &str, fields: &str| {
        shim.ask(format!("GET {target} HTTP/1.1\r\nhost: x\r\n{fields}\r\n"))
    };
    let first = get("/public", "");
    assert_eq!(first.field("x-instance-id"), Some("i-7"));
    for _ in 0..3 {
        let kept = get("/public", "");
        assert_eq!(kept.body, first.body);
        assert_eq!(kept.field("x-instance-id"), Some("the-shim"));
        assert!(kept.field("age").is_some());
    }
    assert_eq!(server.count(), 1);
    assert_eq!(get("/public", "if-none-match: \"7\"\r\n").status, 304);
    assert_eq!(
        get("/public", "accept-encoding: gzip\r\n").text(),
        r#"/public Some("gzip")"#
    );
    assert_eq!(server.count(), 2);
    get("/public", "cache-control: no-cache\r\n");
    assert_eq!(server.count(), 3);
    get("/private", "");
    get("/private", "");
    assert_eq!(server.count(), 5);
    get("/brief", "");
    until("it is asked for again", || {
        get("/brief", "");
        server.count() >= 7
    });
    assert!(shim.metric("trove_shim_cache_hits_total") >= 4.0);
}

#[test]
fn it_stands_before_python_s_own_server() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file.txt"), "from a file").unwrap();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let python = std::process::Command::new("python3")
        .args([
            "-m",
            "http.server",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
        ])
        .current_dir(dir.path())
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("python3");
    let _python = shim_site::Process(python);
    until("it listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let shim = Shim::start(&[format!("py=127.0.0.1:{port}")]);
    let mut client = shim.connect();
    for _ in 0..3 {
        client.send(b"GET /file.txt HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(client.reply().text(), "from a file");
        client.send(b"HEAD /file.txt HTTP/1.1\r\nhost: x\r\n\r\n");
        let head = client.reply_to("HEAD");
        assert_eq!(
            (head.status, head.field("content-length")),
            (200, Some("11"))
        );
        client.send(b"POST /heartbeat HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi");
        assert_eq!(client.reply().status, 204);
    }
    client.send(b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(client.reply().status, 404);
    client.send(b"POST /file.txt HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi");
    assert_eq!(client.reply().status, 501, "python's word");
    shim.until_usable(([127, 0, 0, 1], port).into(), true);
}

#[test]
fn a_client_that_goes_away_takes_its_request_with_it() {
    let (sender, receiver) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let server = Server::start(move |_, stream| {
        // Ends when the shim lets go of the connection.
        let gone = matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_));
        let _ = sender.lock().unwrap().send(gone);
        false
    });
    let shim = Shim::start(&[server.group("blue")]);
    let client = shim.connect();
    let mut stream = client.stream.try_clone().unwrap();
    stream
        .write_all(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    until("it is held", || server.count() == 1);
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop((client, stream));
    assert!(receiver.recv_timeout(shim_site::PATIENCE).expect("the end"));
    until("nothing is under way", || {
        shim.instance(server.address)["outstanding"] == 0
    });
}

#[test]
fn a_poll_through_the_shim_is_its_player_s() {
    let server = Server::start(|seen, stream| {
        let token = seen.field("authorization").unwrap_or("none").to_owned();
        answer(stream, 200, &[], token.as_bytes())
    });
    let shim = Shim::start(&[server.group("blue")]);
    let players: Vec<String> = (0..10).map(|n| format!("p{n}")).collect();
    let mut client: Client = shim.connect();
    for token in tokens(&players) {
        let request =
            format!("GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
        client.send(request.as_bytes());
        assert_eq!(client.reply().text(), format!("Bearer {token}"));
    }
}
