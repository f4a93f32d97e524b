use super::*;
use rand::{RngExt, SeedableRng};

fn events(count: u64) -> Vec<Event> {
    let seed = 11;
    println!("seed {seed}");
    let mut random = rand_pcg::Mcg128Xsl64::seed_from_u64(seed);
    let mut at_us = 3_000_000;
    let mut next = |_| {
        at_us += random.random_range(0..200_000);
        Event {
            at_us,
            user: random.random_range(1..20_000),
            kind: kind(random.random_range(0..=OTHER)),
        }
    };
    (0..count).map(&mut next).collect()
}

fn write(events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), 1_796_000_000_000).unwrap();
    for event in events {
        writer.event(*event).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> (Vec<Event>, bool) {
    let mut reader = Reader::open(bytes).unwrap();
    let mut events = Vec::new();
    while let Some(event) = reader.event().unwrap() {
        events.push(event);
    }
    (events, reader.torn)
}

#[test]
fn what_is_written_is_read() {
    let events = events(50_000);
    let bytes = write(&events);
    assert_eq!(read(&bytes), (events, false));
    assert!(bytes.len() < 50_000 * 7, "{} bytes", bytes.len());
    assert_eq!(
        Reader::open(bytes.as_slice()).unwrap().started_ms,
        1_796_000_000_000
    );
}

#[test]
fn a_file_that_is_cut_off_is_read_up_to_its_last_whole_block_and_says_so() {
    let mut writer = Writer::begin(Vec::new(), 0).unwrap();
    let events = events(30);
    let mut ends = Vec::new();
    for ten in events.chunks(10) {
        for event in ten {
            writer.event(*event).unwrap();
        }
        writer.flush().unwrap();
        ends.push(writer.finish().map(|bytes| bytes.len()).unwrap());
        // Begin again up to here: a writer that is finished is gone.
        writer = Writer::begin(Vec::new(), 0).unwrap();
        for (nth, event) in events.iter().enumerate().take(ends.len() * 10) {
            writer.event(*event).unwrap();
            if nth % 10 == 9 {
                writer.flush().unwrap();
            }
        }
    }
    let bytes = writer.finish().unwrap();
    for cut in ends[0]..bytes.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let (got, torn) = read(&bytes[..cut]);
        assert_eq!(got, events[..whole * 10], "cut at {cut}");
        assert_eq!(torn, !ends.contains(&cut), "cut at {cut}");
    }
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(read(&damaged), (events[..20].to_vec(), true));
}

#[test]
fn what_is_no_recording_is_refused() {
    for (bytes, says) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "TROVEREC"),
        (b"TROVEREC\x02\0\0\0\0", "version 2"),
        (b"TROVEREC\x01\xFF\xFF\xFF\xFF", "header"),
    ] {
        let error = Reader::open(bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(files(std::path::Path::new("/nowhere")).is_err());
}

#[test]
fn a_directory_is_replayed_in_the_order_of_its_files_from_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    assert!(files(dir.path()).is_err());
    let events = events(20_000);
    let (first, second) = events.split_at(9_000);
    std::fs::write(dir.path().join("b.troverec"), write(second)).unwrap();
    std::fs::write(dir.path().join("a.troverec"), write(first)).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "no recording").unwrap();
    let from_us = events[5_000].at_us;
    let mut replay = Replay::start(dir.path(), from_us).unwrap();
    let mut got = Vec::new();
    while !replay.ended {
        got.extend(replay.take(u64::MAX));
    }
    let expected: Vec<Event> = events
        .into_iter()
        .filter(|event| event.at_us >= from_us)
        .collect();
    assert_eq!(got, expected);
    assert_eq!(replay.broken, None);
}
