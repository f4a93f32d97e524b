use std::time::Instant;

use super::*;

fn origin() -> Origin {
    Origin {
        peer: ([127, 0, 0, 1], 9).into(),
        arrived: Instant::now(),
    }
}

const POLL: &[u8] = b"GET /treasure/demo?since=1.2 HTTP/1.1\r\nHost: trove.example:80\r\nAuthorization: Bearer a.b.c\r\n\
    If-None-Match: W/\"1.2\"\r\nPrefer: wait=20\r\nTraceparent: 00-1-2-03\r\nX-Other: y\r\nPrefer: later\r\n\r\n";

#[test]
fn every_prefix_of_a_head_is_incomplete() {
    for end in 0..POLL.len() {
        let mut slots = field_slots();
        let parsed = Head::parse(&POLL[..end], &mut slots, &Limits::default(), origin());
        assert!(matches!(parsed, Ok(None)), "at {end}");
    }
}

#[test]
fn the_fields_of_a_poll_are_found() {
    let mut slots = field_slots();
    let input = [POLL, b"GET /next"].concat();
    let head = Head::parse(&input, &mut slots, &Limits::default(), origin())
        .expect("a good head")
        .expect("a whole head");
    assert_eq!(head.bytes(), POLL.len());
    assert_eq!((head.method(), head.minor_version()), ("GET", 1));
    assert_eq!(
        (head.path(), head.query()),
        ("/treasure/demo", Some("since=1.2"))
    );
    assert_eq!(head.host(), Some(&b"trove.example:80"[..]));
    assert_eq!(head.authorization(), Some(&b"Bearer a.b.c"[..]));
    assert_eq!(head.if_none_match(), Some(&b"W/\"1.2\""[..]));
    assert_eq!(head.prefer(), Some(&b"wait=20"[..]), "the first of two");
    assert_eq!(head.traceparent(), Some(&b"00-1-2-03"[..]));
    assert_eq!(head.field("x-OTHER"), Some(&b"y"[..]));
    assert_eq!(head.field("x-missing"), None);
    assert_eq!(head.fields().count(), 7);
    assert_eq!(head.framing(), Framing::Empty);
    assert!(head.keep_alive() && !head.expects_continue());
}

#[test]
fn line_ends_are_pairs() {
    for good in [&b"a\r\n"[..], b"\r\n\r\n", b"a\r\nb\r\n\r\n"] {
        assert!(lines_end_in_crlf(good), "{}", good.escape_ascii());
    }
    for bad in [
        &b"a\n"[..],
        b"\n",
        b"a\r\nb\n",
        b"a\rb\r\n",
        b"\n\r\n",
        b"\r\r\n",
        b"\r\n\n",
    ] {
        assert!(!lines_end_in_crlf(bad), "{}", bad.escape_ascii());
    }
}

#[test]
fn a_field_can_be_written_if_it_stays_one() {
    assert!(is_writable_field("x-a", b"a b\t\xc3\xa4"));
    for (name, value) in [
        ("", &b"a"[..]),
        ("x a", b"a"),
        ("x", b"a\r"),
        ("x", b"\na"),
        ("x", b"\0"),
        ("x", b"\x7f"),
    ] {
        assert!(
            !is_writable_field(name, value),
            "{name:?} {}",
            value.escape_ascii()
        );
    }
}
