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
