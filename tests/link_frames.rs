//! Frames, and both ends of a link, under bytes that are nearly right.

mod link_site;

use std::time::Duration;

use link_site::raw::*;
use link_site::{Asker, generator, seed, until, upstream};
use rand::RngExt;
use tokio::io::AsyncWriteExt;
use trove::link::frame::{self, AnswerFrame, Frame, Hello};
use trove::link::{FrameError, LinkLimits, Refused};

/// A second of each end under bytes that are nearly right.
#[tokio::test]
async fn mutated_bytes_end_links_and_nothing_else() {
    let seed = seed();
    let mut random = generator(seed);
    let upstream = upstream(seed, LinkLimits::default()).await;
    let valid = |random: &mut rand_pcg::Pcg64Mcg| {
        let mut bytes = Vec::new();
        for place in 0..random.random_range(1..20) {
            let head = [NOW, HELD][random.random_range(0..2)];
            frame::push(&mut bytes, &request(tag(place, 1), head));
            if random.random_bool(0.3) {
                frame::push(&mut bytes, &Frame::Ping);
                frame::push(&mut bytes, &Frame::Cancel(tag(place, 1)));
            }
        }
        bytes
    };
    let mutate = |random: &mut rand_pcg::Pcg64Mcg, bytes: &mut Vec<u8>| {
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => bytes[at] = random.random(),
                1 => bytes[at] ^= 1 << random.random_range(0..8),
                2 => bytes.insert(at, random.random()),
                _ => drop(bytes.remove(at)),
            }
        }
    };
    let start = std::time::Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(2) {
        let mut raw = Raw::client(upstream.address).await;
        let mut bytes = valid(&mut random);
        mutate(&mut random, &mut bytes);
        let _ = raw.stream.write_all(&bytes).await;
        if random.random_bool(0.5) {
            let _ = raw.stream.shutdown().await;
            while raw.next().await != Got::End {}
        }
        rounds += 1;
    }
    println!("{rounds} rounds of the server's end");
    let start = std::time::Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(2) {
        let (shim, mut raw) = evil().await;
        let mut askers = Vec::new();
        for n in 0..4 {
            let mut asker = Asker::connect(shim.address).await;
            asker
                .send(format!("GET /{n} HTTP/1.1\r\nhost: x\r\n\r\n"))
                .await;
            raw.next().await;
            askers.push(asker);
        }
        let mut bytes = Vec::new();
        for place in 0..4 {
            let frame = match random.random_range(0..4) {
                0 => Frame::Refused(Refused::AnswerBroke, tag(place, 1)),
                1 => Frame::Ping,
                _ => answer(tag(place, 1), "body"),
            };
            frame::push(&mut bytes, &frame);
        }
        mutate(&mut random, &mut bytes);
        let _ = raw.stream.write_all(&bytes).await;
        drop(raw);
        for asker in &mut askers {
            // Each has one answer, whichever.
            let reply = asker.reply_to("GET").await.expect("an answer");
            assert!(reply.status >= 200, "{reply:?}");
        }
        until("the link has ended", || {
            shim.pass.ends.lock().unwrap().len() == 1
        })
        .await;
        shim.front.enter(trove::front::Phase::Ended);
        rounds += 1;
    }
    println!("{rounds} rounds of the client's end");
    let mut asker = Asker::connect(upstream.address).await;
    assert_eq!(
        asker
            .ask("GET", "/now/b", "t")
            .await
            .expect("an answer")
            .status,
        200
    );
}

#[test]
fn frames_are_read_as_they_were_written_and_never_panic() {
    let seed = seed();
    let mut random = generator(seed);
    let hello = Hello {
        version: 1,
        requests_max: 2,
        request_bytes_max: 3,
        answer_bytes_max: 4,
    };
    let length = Frame::Answer(AnswerFrame {
        tag: tag(1, u32::MAX),
        status: 304,
        fields: b"x: y\r\n",
        body: b"",
        length: Some(u64::MAX),
    });
    let all = [
        Frame::Hello(hello),
        request_with(tag(u32::MAX, 0), NOW, b"body"),
        answer(tag(5, 6), "body"),
        length,
        Frame::Cancel(tag(1, 2)),
        Frame::Cancelled(tag(3, 4)),
        Frame::Refused(Refused::DeadlinePassed, tag(5, 6)),
        Frame::Leaving,
        Frame::Ping,
        Frame::Pong,
    ];
    let mut bytes = Vec::new();
    for expected in &all {
        let at = bytes.len();
        frame::push(&mut bytes, expected);
        let (frame, consumed) = frame::split(&bytes[at..], 1000).unwrap().unwrap();
        assert_eq!(frame::parse(frame).unwrap(), *expected);
        assert_eq!(at + consumed, bytes.len());
        for part in at..bytes.len() {
            assert_eq!(frame::split(&bytes[at..part], 1000), Ok(None));
        }
        assert_eq!(
            frame::split(&bytes[at..], frame.len() - 1),
            Err(FrameError::TooLong(frame.len()))
        );
    }
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let mut mutated = bytes.clone();
        for _ in 0..random.random_range(1..20) {
            let at = random.random_range(0..mutated.len());
            mutated[at] = random.random();
        }
        let mut rest = &mutated[..];
        while let Ok(Some((frame, consumed))) = frame::split(rest, 1000) {
            let _ = frame::parse(frame);
            rest = &rest[consumed..];
        }
        let _ = frame::parse(&mutated[random.random_range(0..mutated.len())..]);
    }
}
