//! What the server's end of a link does with a client that keeps the rules, and with one that breaks them.

mod link_site;

use std::sync::atomic::Ordering::SeqCst;

use link_site::raw::*;
use link_site::{Asker, PATIENCE, shim, until, upstream, upstream_for};
use tokio::io::AsyncWriteExt;
use trove::link::frame::{self, Frame, Hello, RequestFrame, VERSION};
use trove::link::{LinkLimits, LinkPeers, Refused};

#[tokio::test]
async fn a_server_answers_each_tag_once_and_uses_the_clients_address() {
    let upstream = upstream(1, LinkLimits::default()).await;
    let mut raw = Raw::client(upstream.address).await;
    for serial in 1..4 {
        raw.send(&[request(tag(0, serial), NOW), request(tag(7, serial), NOW)])
            .await;
        for place in [0, 7] {
            let body = "/now/a nobody 192.0.2.9".to_owned();
            assert_eq!(raw.next().await, Got::Answer(tag(place, serial), 200, body));
        }
    }
    // Held polls hold back nobody.
    for place in 10..200 {
        raw.send(&[request(tag(place, 1), HELD)]).await;
    }
    raw.send(&[request(tag(0, 4), NOW)]).await;
    assert!(matches!(raw.next().await, Got::Answer(_, 200, _)));
    until("all are held", || upstream.game.called.load(SeqCst) == 190).await;
    // Cancelled ones stop, and have a receipt each.
    for place in 10..200 {
        raw.send(&[Frame::Cancel(tag(place, 1))]).await;
        let Got::Other(5, bytes) = raw.next().await else {
            panic!("a receipt");
        };
        assert_eq!(bytes[..4], place.to_le_bytes());
    }
    until("all are dropped", || {
        upstream.game.dropped.load(SeqCst) == 190
    })
    .await;
    // An answer that crosses the cancelling was the last word.
    raw.send(&[
        request(tag(0, 5), NOW),
        Frame::Cancel(tag(0, 5)),
        request(tag(0, 6), NOW),
    ])
    .await;
    for serial in [5, 6] {
        assert!(matches!(raw.next().await, Got::Answer(t, 200, _) if t == tag(0, serial)));
    }
    // When the link ends, what it holds is dropped.
    raw.send(&[request(tag(10, 2), HELD)]).await;
    until("it is held", || upstream.game.called.load(SeqCst) == 191).await;
    drop(raw);
    until("it is dropped", || {
        upstream.game.dropped.load(SeqCst) == 191
    })
    .await;
}

#[tokio::test]
async fn a_server_closes_a_link_that_breaks_the_rules() {
    let limits = LinkLimits {
        requests_max: 100,
        ..LinkLimits::default()
    };
    let upstream = upstream(1, limits).await;
    let frames = |frames: &[Frame<'_>]| {
        let mut bytes = Vec::new();
        frames
            .iter()
            .for_each(|frame| frame::push(&mut bytes, frame));
        bytes
    };
    let chunked = "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let length = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n";
    let expect =
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n";
    let too_long = [(41 * 1024u32).to_le_bytes().to_vec(), vec![2; 10]].concat();
    let hello = Hello {
        version: VERSION,
        requests_max: 1,
        request_bytes_max: 1,
        answer_bytes_max: 1,
    };
    for (what, bytes) in [
        (
            "the serial before the next",
            frames(&[request(tag(0, 0), NOW)]),
        ),
        ("a serial left out", frames(&[request(tag(0, 2), NOW)])),
        (
            "a serial again",
            frames(&[request(tag(0, 1), NOW), request(tag(0, 1), NOW)]),
        ),
        (
            "a place taken",
            frames(&[request(tag(0, 1), HELD), request(tag(0, 2), NOW)]),
        ),
        (
            "a place out of bounds",
            frames(&[request(tag(100, 1), NOW)]),
        ),
        (
            "a cancelled tag that never was",
            frames(&[Frame::Cancel(tag(3, 1))]),
        ),
        (
            "another's place cancelled",
            frames(&[request(tag(0, 1), HELD), Frame::Cancel(tag(0, 2))]),
        ),
        ("an answer", frames(&[answer(tag(0, 1), "")])),
        ("a hello", frames(&[Frame::Hello(hello)])),
        ("leaving", frames(&[Frame::Leaving])),
        (
            "a head that is not all there",
            frames(&[request(tag(0, 1), "GET / HTTP/1.1\r\nhost: x\r\n")]),
        ),
        (
            "bytes behind the head",
            frames(&[request(tag(0, 1), "GET / HTTP/1.1\r\nhost: x\r\n\r\nGET")]),
        ),
        (
            "a body without length",
            frames(&[request_with(tag(0, 1), NOW, b"abc")]),
        ),
        (
            "a body too short",
            frames(&[request_with(tag(0, 1), length, b"abc")]),
        ),
        (
            "a body too long",
            frames(&[request_with(tag(0, 1), length, b"abcde")]),
        ),
        (
            "a chunked body",
            frames(&[request_with(tag(0, 1), chunked, b"0\r\n\r\n")]),
        ),
        (
            "an expectation",
            frames(&[request_with(tag(0, 1), expect, b"abc")]),
        ),
        ("a frame over the bound", too_long),
        ("an empty frame", vec![0; 4]),
        ("an unknown kind", vec![1, 0, 0, 0, 99]),
        ("a ping that says something", vec![2, 0, 0, 0, 8, 0]),
        ("HTTP", NOW.as_bytes().to_vec()),
    ] {
        let mut raw = Raw::client(upstream.address).await;
        raw.stream.write_all(&bytes).await.expect("sending");
        loop {
            match raw.next().await {
                Got::End => break,
                Got::Answer(t, 200, _) if t == tag(0, 1) => {}
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    // Nobody else has noticed.
    let mut asker = Asker::connect(upstream.address).await;
    assert_eq!(
        asker
            .ask("GET", "/now/b", "t")
            .await
            .expect("an answer")
            .status,
        200
    );
    until("no held call is left", || {
        upstream.game.called.load(SeqCst) == upstream.game.dropped.load(SeqCst)
    })
    .await;
}

#[tokio::test]
async fn what_the_front_would_refuse_is_refused_for_that_request_alone() {
    let upstream = upstream(1, LinkLimits::default()).await;
    let mut raw = Raw::client(upstream.address).await;
    let mut serial = 0;
    for (head, body, status) in [
        ("GET / HTTP/1.1\r\n\r\n", &b""[..], 400),
        ("GET / HTTP/9.9\r\nhost: x\r\n\r\n", b"", 505),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", b"", 400),
        ("GET / HTTP/1.1\r\nhost: x\r\n a: b\r\n\r\n", b"", 400),
        (
            "POST /little HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n",
            b"four",
            413,
        ),
        ("GET /panic-now HTTP/1.1\r\nhost: x\r\n\r\n", b"", 500),
        ("GET /panic-call HTTP/1.1\r\nhost: x\r\n\r\n", b"", 500),
        ("GET /panic-poll HTTP/1.1\r\nhost: x\r\n\r\n", b"", 500),
        ("GET /broken HTTP/1.1\r\nhost: x\r\n\r\n", b"", 500),
        ("GET /none HTTP/1.1\r\nhost: x\r\n\r\n", b"", 204),
        (
            "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n",
            b"four",
            200,
        ),
        (
            "POST /now/a HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n",
            b"four",
            200,
        ),
    ] {
        serial += 1;
        raw.send(&[request_with(tag(0, serial), head, body)]).await;
        match raw.next().await {
            Got::Answer(t, got, text) => {
                assert_eq!((t, got), (tag(0, serial), status), "{head:?}");
                assert!(status != 200 || text == "four");
            }
            other => panic!("{head:?}: {other:?}"),
        }
    }
    // Deadlines.
    let mut bytes = Vec::new();
    let mut late = RequestFrame {
        tag: tag(1, 1),
        deadline_ms: 20,
        client: ([0, 0, 0, 0, 0, 0, 0, 1], 7).into(),
        is_secure: true,
        head: HELD.as_bytes(),
        body: b"",
    };
    frame::push_whole_request(&mut bytes, &late);
    late.tag = tag(2, 1);
    late.head = b"GET /big/70000 HTTP/1.1\r\nhost: x\r\n\r\n";
    late.deadline_ms = 20_000;
    frame::push_whole_request(&mut bytes, &late);
    raw.stream.write_all(&bytes).await.expect("sending");
    let Got::Other(6, first) = raw.next().await else {
        panic!("a refusal")
    };
    assert_eq!((first[0], first[1]), (Refused::AnswerTooLarge as u8, 2));
    let Got::Other(6, second) = raw.next().await else {
        panic!("a refusal")
    };
    assert_eq!((second[0], second[1]), (Refused::DeadlinePassed as u8, 1));
}

#[tokio::test]
async fn links_are_taken_from_known_peers_alone() {
    let peers = LinkPeers::parse(["192.0.2.0/24"]).expect("networks");
    let upstream = upstream_for(1, LinkLimits::default(), peers).await;
    let shim = shim().await;
    let error = shim
        .try_link(upstream.address, 0, LinkLimits::default())
        .await
        .expect_err("no link");
    assert!(error.plain_http_works(), "{error}");
}

#[tokio::test]
async fn a_link_whose_client_does_not_read_is_bounded_and_closed() {
    let limits = LinkLimits {
        output_bytes_max: 100_000,
        ping_interval_ms: 100,
        ..LinkLimits::default()
    };
    let upstream = upstream(1, limits).await;
    let mut raw = Raw::client(upstream.address).await;
    let socket = socket2::SockRef::from(&raw.stream);
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut bytes = Vec::new();
    for place in 0..16_000 {
        frame::push(
            &mut bytes,
            &request(tag(place, 1), "GET /big/9000 HTTP/1.1\r\nhost: x\r\n\r\n"),
        );
    }
    // It stops reading long before all of it, and then ends the link.
    let writing = tokio::time::timeout(PATIENCE, raw.stream.write_all(&bytes)).await;
    assert!(writing.is_ok(), "it ends or is read");
    until("it is closed", || upstream.front.connections() == 0).await;
    let called = upstream.game.called.load(SeqCst);
    assert!(
        called < 8_000,
        "{called} calls for a client that reads nothing"
    );
}
