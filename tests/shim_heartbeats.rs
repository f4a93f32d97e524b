//! Heartbeats end at the shim, in every shape; what only resembles one passes untouched.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use shim_site::{Server, Shim, tokens, until};

const BEATS: &str = "trove_shim_heartbeats_total";
const ONLINE: &str = "trove_shim_players_online";

/// A heartbeat with `Content-Length`.
fn beat(bytes: usize, fields: &str) -> Vec<u8> {
    let body = "x".repeat(bytes);
    format!("POST /heartbeat HTTP/1.1\r\nhost: x\r\n{fields}content-length: {bytes}\r\n\r\n{body}")
        .into_bytes()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let chunks = body
        .chunks(7)
        .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    [chunks.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat()
}

#[test]
fn a_heartbeat_of_any_shape_is_answered_204_and_never_forwarded() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    let chunked_beat = |body: &[u8]| {
        let head = "POST /heartbeat HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        [head.as_bytes(), &chunked(body)].concat()
    };
    let shapes: Vec<Vec<u8>> = vec![
        b"POST /heartbeat HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        beat(1, ""),
        beat(96, ""),
        beat(4096, ""),
        beat(16_384, "content-type: application/json\r\n"),
        b"POST /heartbeat?at=1&b=2 HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi".to_vec(),
        b"POST /heartbeat? HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"POST http://x/heartbeat HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"POST /heartbeat HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi"
            .to_vec(),
        chunked_beat(b""),
        chunked_beat(&[b'x'; 96]),
        chunked_beat(&[b'x'; 4096]),
    ];
    for shape in &shapes {
        client.send(shape);
        let reply = client.reply();
        assert_eq!(reply.status, 204, "{}", shape.escape_ascii());
        assert_eq!(reply.field("x-instance-id"), Some("the-shim"));
        assert!(
            reply
                .field("server-timing")
                .is_some_and(|timing| timing.starts_with("shim;dur="))
        );
    }
    // Pipelined behind one another, and each cut into packets of one byte.
    client.send(&shapes.concat());
    for _ in &shapes {
        assert_eq!(client.reply().status, 204);
    }
    let small: Vec<&Vec<u8>> = shapes.iter().filter(|shape| shape.len() < 300).collect();
    for shape in &small {
        for byte in *shape {
            client.send(&[*byte]);
        }
        assert_eq!(client.reply().status, 204);
    }
    assert_eq!(server.count(), 0, "{:?}", server.seen);
    #[allow(clippy::cast_precision_loss)]
    let beats = (2 * shapes.len() + small.len()) as f64;
    assert!((shim.metric(BEATS) - beats).abs() < 0.5);
}

#[test]
fn a_heartbeat_pipelined_behind_a_poll_waits_for_its_turn() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    let poll = b"GET /treasure/h HTTP/1.1\r\nhost: x\r\n\r\n";
    client.send(&[&poll[..], &beat(96, ""), poll].concat());
    assert_eq!(client.reply().text(), "GET /treasure/h\n");
    assert_eq!(client.reply().status, 204);
    assert_eq!(client.reply().text(), "GET /treasure/h\n");
    assert_eq!(server.count(), 2);
}

#[test]
fn a_heartbeat_above_its_bound_is_refused_and_not_forwarded() {
    let server = Server::echo();
    let shim = Shim::with(
        &[server.group("blue")],
        &[("SHIM__HEARTBEAT_BYTES_MAX", "100")],
    );
    assert_eq!(shim.ask(beat(100, "")).status, 204);
    assert_eq!(shim.ask(beat(101, "")).status, 413);
    let head = "POST /heartbeat HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let long = [head.as_bytes(), &chunked(&[b'x'; 101])].concat();
    assert_eq!(shim.ask(long).status, 413);
    assert_eq!(server.count(), 0);
}

#[test]
fn what_resembles_a_heartbeat_is_forwarded_with_its_body() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    for (method, path) in [
        ("PUT", "/heartbeat"),
        ("POST", "/heartbeat/"),
        ("POST", "/heartbeats"),
        ("POST", "/Heartbeat"),
        ("POST", "/heart%62eat"),
        ("POST", "//heartbeat"),
        ("POST", "/v1/heartbeat"),
        ("POST", "/a?/heartbeat"),
        ("post", "/heartbeat"),
    ] {
        let reply = shim.ask(format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
        ));
        assert_eq!(reply.text(), format!("{method} {path}\nhello"));
    }
    let reply = shim.ask("GET /heartbeat HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(reply.text(), "GET /heartbeat\n");
    assert!(shim.metric(BEATS) < 0.5);
}

#[test]
fn on_a_shared_path_the_marker_decides_and_the_rest_is_untouched() {
    let server = Server::echo();
    let rules = "POST /events type=heartbeat,POST /heartbeat";
    let shim = Shim::with(
        &[server.group("blue")],
        &[
            ("SHIM__HEARTBEATS", rules),
            ("SHIM__HEARTBEAT_BYTES_MAX", "4096"),
        ],
    );
    let pad = "x".repeat(4000);
    let large = format!(r#"{{"type":"heartbeat","pad":"{}"}}"#, "x".repeat(5000));
    let mut client = shim.connect();
    for (body, is_beat) in [
        (r#"{"type":"heartbeat","seq":7}"#.to_owned(), true),
        (format!(r#"{{"pad":"{pad}","type":"heartbeat"}}"#), true),
        (
            r#"{"type":"heartbeat","note":"\"type\":\"find\""}"#.to_owned(),
            true,
        ),
        (
            r#"{"type":"find","note":"\"type\":\"heartbeat\""}"#.to_owned(),
            false,
        ),
        (
            r#"{"type":"find","inner":{"type":"heartbeat"}}"#.to_owned(),
            false,
        ),
        (r#"{"type":"heartbeats"}"#.to_owned(), false),
        ("not json".to_owned(), false),
        // Too large to be looked at: no heartbeat.
        (large, false),
    ] {
        for is_chunked in [false, true] {
            let request = if is_chunked {
                let head =
                    "POST /events?q HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
                [head.as_bytes(), &chunked(body.as_bytes())].concat()
            } else {
                let length = body.len();
                format!(
                    "POST /events?q HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
                )
                .into_bytes()
            };
            let before = server.count();
            client.send(&request);
            let reply = client.reply();
            if is_beat {
                assert_eq!((reply.status, server.count()), (204, before), "{body}");
            } else {
                assert_eq!(reply.text(), format!("POST /events?q\n{body}"));
                assert_eq!(server.count(), before + 1);
            }
        }
    }
}

#[test]
fn a_player_is_online_by_heartbeats_with_a_valid_token_only() {
    let server = Server::echo();
    let shim = Shim::with(&[server.group("blue")], &[("SHIM__PRESENCE_MS", "2000")]);
    assert!(shim.metric(ONLINE) < 0.5);
    let players: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    let tokens = tokens(&players);
    let mut client = shim.connect();
    let mut beat_with = |token: &str| {
        client.send(&beat(96, &format!("authorization: Bearer {token}\r\n")));
        assert_eq!(client.reply().status, 204);
    };
    beat_with("no.token.atall");
    let forged = format!("{}x", tokens[0]);
    beat_with(&forged);
    let round = |beat_with: &mut dyn FnMut(&str)| tokens.iter().for_each(|token| beat_with(token));
    until("all count", || {
        round(&mut beat_with);
        (shim.metric(ONLINE) - 20.0).abs() < 0.5
    });
    until("they are forgotten", || shim.metric(ONLINE) < 0.5);
    assert_eq!(server.count(), 0);
}

#[test]
fn a_poll_does_not_make_a_player_present() {
    let server = Server::echo();
    let shim = Shim::start(&[server.group("blue")]);
    let token = &tokens(&["p".to_owned()])[0];
    let request =
        format!("GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    assert_eq!(shim.ask(request).status, 200);
    let beat =
        format!("POST /heartbeat HTTP/1.1\r\nhost: x\r\nauthorization: bearer {token}\r\n\r\n");
    assert!(shim.metric(ONLINE) < 0.5);
    until("the heartbeat counts", || {
        assert_eq!(shim.ask(&beat).status, 204);
        (shim.metric(ONLINE) - 1.0).abs() < 0.5
    });
}
