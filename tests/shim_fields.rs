//! What the shim says in fields, to clients and to servers: who it is, how long it took, whom a request is from.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use shim_site::{Server, Shim, answer, until};

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
fn a_refusal_of_the_front_tells_its_instance_and_its_time_too() {
    let server = Server::echo();
    let settings = [
        ("LIMITS__CONNECTIONS_MAX", "2"),
        ("LIMITS__HEADER_MS", "100"),
    ];
    let shim = Shim::with(&[server.group("blue")], &settings);
    let told = |reply: &shim_site::Reply, status: u16| {
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(reply.field("x-instance-id"), Some("the-shim"), "{reply:?}");
        let timing = reply.field("server-timing").expect("a time");
        let ms = timing.strip_prefix("shim;dur=").expect("the shim's");
        ms.parse::<f64>().expect("a number")
    };
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nhost: x\r\n".to_owned(), 408),
        (
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n".to_owned(),
            413,
        ),
        (
            format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(9000)),
            414,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nhost: x\r\n{}\r\n",
                "a: b\r\n".repeat(100)
            ),
            431,
        ),
        ("CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 501),
    ] {
        let ms = told(&shim.ask(&request), status);
        assert!(status != 408 || ms >= 50.0, "{ms}");
    }
    // And who finds no place.
    let full = [shim.connect(), shim.connect()];
    until("there is no place", || {
        let reply = shim.ask("GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
        if reply.status == 503 {
            told(&reply, 503);
        }
        reply.status == 503
    });
    drop(full);
}
