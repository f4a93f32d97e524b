//! What the client's end of a link does with a server that breaks the rules, and with requests that do not fit.

mod link_site;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use link_site::raw::*;
use link_site::{Asker, shim, until, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use trove::link::frame::{self, AnswerFrame, Frame, Hello, VERSION};
use trove::link::{LinkEnd, LinkLimits, Refused, Rejected};

#[tokio::test]
async fn a_client_closes_a_link_whose_server_breaks_the_rules_and_gives_back_what_is_under_way() {
    // (what, the frames, whether the first request was answered before)
    for (what, frames, answered) in [
        (
            "a place never used",
            vec![answer(tag(2, 1), "wrong")],
            false,
        ),
        ("a serial before", vec![answer(tag(0, 0), "wrong")], false),
        ("a serial to come", vec![answer(tag(0, 2), "wrong")], false),
        (
            "a tag twice",
            vec![answer(tag(0, 1), "right"), answer(tag(0, 1), "wrong")],
            true,
        ),
        (
            "a receipt for what was not cancelled",
            vec![Frame::Cancelled(tag(0, 1))],
            false,
        ),
        (
            "a refusal of nothing",
            vec![Frame::Refused(Refused::Leaving, tag(3, 1))],
            false,
        ),
        ("a request", vec![request(tag(0, 1), NOW)], false),
        ("a cancelling", vec![Frame::Cancel(tag(0, 1))], false),
    ] {
        let (shim, mut raw) = evil().await;
        let mut askers = Vec::new();
        for n in 0..2 {
            let mut asker = Asker::connect(shim.address).await;
            asker
                .send(format!("GET /{n} HTTP/1.1\r\nhost: x\r\n\r\n"))
                .await;
            let Got::Request(t, text) = raw.next().await else {
                panic!("a request")
            };
            assert!(text.starts_with(&format!("GET /{n} ")));
            assert_eq!(t, tag(n, 1));
            askers.push(asker);
        }
        raw.send(&frames).await;
        let mut replies = Vec::new();
        for asker in &mut askers {
            replies.push(asker.reply_to("GET").await.expect("an answer"));
        }
        if answered {
            assert_eq!(replies.remove(0).text(), "right", "{what}");
        }
        for reply in &replies {
            assert_eq!(reply.status, 299, "{what}: no answer is another's");
        }
        until("the link has ended", || {
            shim.pass.ends.lock().unwrap().len() == 1
        })
        .await;
        let end = shim.pass.ends.lock().unwrap().pop();
        assert!(matches!(end, Some(LinkEnd::Protocol(_))), "{what}: {end:?}");
        assert_eq!(shim.pass.returned.load(SeqCst), replies.len(), "{what}");
        assert!(matches!(raw.next().await, Got::End));
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_sent_is_a_502_and_the_link_goes_on() {
    let (shim, mut raw) = evil().await;
    let mut asker = Asker::connect(shim.address).await;
    for (serial, fields) in (1..).zip([
        "a: b\r\n\r\nHTTP/1.1 200 OK\r\n",
        "content-length: 9\r\n",
        "a: b",
    ]) {
        asker.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        raw.next().await;
        raw.send(&[Frame::Answer(AnswerFrame {
            tag: tag(0, serial),
            status: 200,
            fields: fields.as_bytes(),
            body: b"",
            length: None,
        })])
        .await;
        assert_eq!(
            asker.reply_to("GET").await.expect("an answer").status,
            502,
            "{fields:?}"
        );
    }
    assert_eq!(shim.pass.links(), 1);
}

#[tokio::test]
async fn the_place_of_an_overdue_request_is_kept_until_the_servers_last_word() {
    let (shim, mut raw) = evil().await;
    let mut askers = Vec::new();
    // The first has the longer time: the second is overdue alone.
    for (n, deadline_ms) in [(0, 60_000), (1, 50)] {
        let mut asker = Asker::connect(shim.address).await;
        asker
            .send(format!(
                "GET /{n} HTTP/1.1\r\nhost: x\r\nx-deadline-ms: {deadline_ms}\r\n\r\n"
            ))
            .await;
        assert!(matches!(raw.next().await, Got::Request(t, _) if t == tag(n, 1)));
        askers.push(asker);
    }
    let late = askers[1].reply_to("GET").await.expect("an answer");
    assert_eq!(late.status, 504);
    // The server is told that nobody waits for it.
    let cancel = [1u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    assert_eq!(raw.next().await, Got::Other(4, cancel));
    assert_eq!(shim.pass.in_flight(), 2);
    // What its client asks next has another place, and what the server says to the first is for nobody.
    askers[1].send("GET /2 HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(matches!(raw.next().await, Got::Request(t, _) if t == tag(2, 1)));
    raw.send(&[answer(tag(1, 1), "late"), answer(tag(2, 1), "third")])
        .await;
    let third = askers[1].reply_to("GET").await.expect("an answer");
    assert_eq!((third.status, third.text()), (200, "third".to_owned()));
    raw.send(&[answer(tag(0, 1), "first")]).await;
    let first = askers[0].reply_to("GET").await.expect("an answer");
    assert_eq!((first.status, first.text()), (200, "first".to_owned()));
    assert_eq!((shim.pass.links(), shim.pass.in_flight()), (1, 0));
    // Now the place is free, and has its next serial.
    askers[0].send("GET /3 HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(matches!(raw.next().await, Got::Request(t, _) if t.serial == 2 || t.place == 3));
}

#[tokio::test]
async fn a_cancelled_place_is_kept_until_the_servers_last_word() {
    let (shim, mut raw) = evil().await;
    // Four requests are all that this server takes.
    let mut askers = Vec::new();
    for n in 0..4 {
        let mut asker = Asker::connect(shim.address).await;
        asker
            .send(format!("GET /{n} HTTP/1.1\r\nhost: x\r\n\r\n"))
            .await;
        assert!(matches!(raw.next().await, Got::Request(t, _) if t == tag(n, 1)));
        askers.push(asker);
    }
    let mut fifth = Asker::connect(shim.address).await;
    assert_eq!(
        fifth.ask("GET", "/5", "t").await.expect("an answer").status,
        299
    );
    assert_eq!(*shim.pass.rejected.lock().unwrap(), [Rejected::Full]);
    let gone = askers.remove(0);
    let socket = socket2::SockRef::from(&gone.stream);
    socket
        .set_linger(Some(Duration::ZERO))
        .expect("a reset at close");
    drop(gone);
    assert_eq!(
        raw.next().await,
        Got::Other(4, [0u32.to_le_bytes(), 1u32.to_le_bytes()].concat())
    );
    assert_eq!(
        fifth.ask("GET", "/5", "t").await.expect("an answer").status,
        299,
        "still full"
    );
    // The answer crossed the cancelling: dropped, and the place is free.
    raw.send(&[answer(tag(0, 1), "for the one that left")])
        .await;
    until("the place is free", || shim.pass.in_flight() == 3).await;
    fifth.send("GET /5 HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(matches!(raw.next().await, Got::Request(t, _) if t == tag(0, 2)));
    raw.send(&[answer(tag(0, 2), "for the fifth")]).await;
    assert_eq!(
        fifth.reply_to("GET").await.expect("an answer").text(),
        "for the fifth"
    );
    assert_eq!(shim.pass.links(), 1);
}

#[tokio::test]
async fn a_leaving_server_is_left_when_it_owes_nothing() {
    let upstream = upstream(1, LinkLimits::default()).await;
    let shim = shim().await;
    let client = shim.link(upstream.address, 0, LinkLimits::default()).await;
    let mut asker = Asker::connect(shim.address).await;
    asker
        .send("GET /slow/last HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    until("it is under way", || upstream.game.called.load(SeqCst) == 1).await;
    upstream.drain();
    let reply = asker.reply_to("GET").await.expect("an answer");
    assert_eq!(reply.text(), "/slow/last nobody 127.0.0.1");
    until("the link was left", || {
        shim.pass.ends.lock().unwrap().len() == 1
    })
    .await;
    assert!(matches!(shim.pass.ends.lock().unwrap()[0], LinkEnd::Left));
    assert!(!client.is_open());
    until("the server has ended", || upstream.front.connections() == 0).await;
}

#[tokio::test]
async fn heads_travel_without_what_concerns_the_connection() {
    let upstream = upstream(1, LinkLimits::default()).await;
    let shim = shim().await;
    shim.link(upstream.address, 0, LinkLimits::default()).await;
    let mut asker = Asker::connect(shim.address).await;
    asker
        .send(
            "POST /echo/a HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, X-Own\r\nX-Own: 1\r\nTE: trailers\r\n\
             Keep-Alive: 3\r\nX-Secret: 1\r\nX-Kept:2\r\nContent-Length: 4\r\n\r\nbody",
        )
        .await;
    let reply = asker.reply_to("POST").await.expect("an answer");
    assert_eq!(reply.text(), "body");
    assert!(
        reply
            .head
            .contains("x-names: host,x-kept,content-length\r\n"),
        "{reply:?}"
    );
    // Too large for a link, either way.
    asker
        .send("GET /big/70000 HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert_eq!(asker.reply_to("GET").await.expect("an answer").status, 299);
    asker
        .send("GET /big/60000 HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert_eq!(
        asker.reply_to("GET").await.expect("an answer").body.len(),
        60_000
    );
    // A request of a version without Host, and one with empty lines before it.
    let mut old = Asker::connect(shim.address).await;
    old.send("\r\n\r\nGET /now/old HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        .await;
    let reply = old.reply_to("GET").await.expect("an answer");
    assert_eq!(reply.text(), "/now/old nobody 127.0.0.1");
    assert!(
        reply.head.contains("connection: keep-alive\r\n"),
        "{reply:?}"
    );
    old.send("\r\nHEAD /slow/old HTTP/1.0\r\n\r\n").await;
    let reply = old.reply_to("HEAD").await.expect("an answer");
    assert!(reply.head.contains("content-length: 26\r\n"), "{reply:?}");
    // Not safe to repeat: 64 KiB is not the bound then.
    asker
        .send("POST /big/70000 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(
        asker.reply_to("POST").await.expect("an answer").body.len(),
        70_000
    );
    asker
        .send("HEAD /big/70000 HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    let reply = asker.reply_to("HEAD").await.expect("an answer");
    assert!(
        reply.head.contains("content-length: 70000\r\n"),
        "{reply:?}"
    );
}

#[tokio::test]
async fn a_handshake_says_whether_plain_http_works() {
    let shim = shim().await;
    let limits = LinkLimits {
        handshake_timeout_ms: 300,
        ..LinkLimits::default()
    };
    let mut hello = Vec::new();
    frame::push_hello(
        &mut hello,
        &Hello {
            version: VERSION + 1,
            requests_max: 4,
            request_bytes_max: 8192,
            answer_bytes_max: 65_536,
        },
    );
    let newer = [SWITCHED.as_bytes(), &hello].concat();
    let ping = [SWITCHED.as_bytes(), &[1, 0, 0, 0, 8]].concat();
    let huge = [
        b"HTTP/1.1 101 Switching Protocols\r\n",
        "a: b\r\n".repeat(3000).as_bytes(),
    ]
    .concat();
    let other = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n".to_vec();
    for (what, said, plain_http_works) in [
        (
            "404",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
            true,
        ),
        ("a newer version", newer, true),
        ("no hello", ping, true),
        ("another protocol", other, true),
        ("no end", huge, false),
        ("not HTTP", b"220 mail.example ESMTP\r\n".to_vec(), false),
        ("nothing", Vec::new(), false),
        ("half a head", b"HTTP/1.1 101 Sw".to_vec(), false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let stays = what == "nothing";
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(&said).await;
            if stays {
                std::future::pending::<()>().await;
            }
        });
        let error = shim
            .try_link(address, 0, limits.clone())
            .await
            .expect_err(what);
        assert_eq!(
            error.plain_http_works(),
            plain_http_works,
            "{what}: {error}"
        );
    }
    // What follows the hello in the same packet is acted on.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.read(&mut [0; 4096]).await;
        let mut said = SWITCHED.as_bytes().to_vec();
        let hello = Hello {
            version: VERSION,
            requests_max: 4,
            request_bytes_max: 8192,
            answer_bytes_max: 65_536,
        };
        frame::push_hello(&mut said, &hello);
        frame::push(&mut said, &Frame::Leaving);
        let _ = stream.write_all(&said).await;
        std::future::pending::<()>().await;
    });
    shim.link(address, 0, limits).await;
    until("it is left", || shim.pass.ends.lock().unwrap().len() == 1).await;
    assert!(matches!(shim.pass.ends.lock().unwrap()[0], LinkEnd::Left));
}
