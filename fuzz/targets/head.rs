//! Heads of requests: whatever the bytes, what the front accepts has one reading, which is checked against a second,
//! slower one that shares no code with it.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::time::Instant;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trove_fuzz::front::{
    Framing, Head, Limits, Origin, Refusal, field_slots, is_framing, whole_request,
};

fuzz_target!(|input: &[u8]| {
    let limits = limits();
    let mut slots = field_slots();
    let parsed = Head::parse(input, &mut slots, limits, origin());
    // A head that was refused is never accepted because more has come.
    for cut in cuts(input) {
        if let Err(refusal) = status(&input[..cut], limits) {
            assert!(parsed.is_err(), "{refusal:?} at {cut} is taken back");
        }
    }
    let Ok(Some(head)) = parsed else { return };
    let raw = &input[..head.bytes()];
    assert_eq!(
        status(raw, limits),
        Ok(Some(raw.len())),
        "what follows a head changes it"
    );
    for cut in cuts(raw).filter(|cut| *cut < raw.len()) {
        assert_eq!(
            status(&raw[..cut], limits),
            Ok(None),
            "complete or refused at {cut}"
        );
    }
    assert_eq!(Reading::of(raw), Reading::from_head(&head));
    if let Ok(request) = whole_request(&head, raw, Bytes::new()) {
        assert!(request.uri().path().starts_with('/') || request.uri().path() == "*");
        for name in request.headers().keys() {
            assert!(
                name == "content-length" || !is_framing(name.as_str()),
                "{name} goes on"
            );
        }
    }
});

/// A head as the grammar of RFC 9112 has it, without anything that its writers allow for the sake of old programs.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    method: Vec<u8>,
    target: Vec<u8>,
    minor: u8,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    framing: Framing,
}

impl Reading {
    fn from_head(head: &Head<'_>) -> Reading {
        let fields = head.fields();
        Reading {
            method: head.method().into(),
            target: head.target().into(),
            minor: head.minor_version(),
            fields: fields
                .map(|(name, value)| (name.into(), value.to_vec()))
                .collect(),
            framing: head.framing(),
        }
    }

    fn of(mut raw: &[u8]) -> Reading {
        while let Some(rest) = raw.strip_prefix(b"\r\n") {
            raw = rest;
        }
        let text = raw
            .strip_suffix(b"\r\n\r\n")
            .expect("a head ends in an empty line");
        let mut lines = Vec::new();
        let mut line = Vec::new();
        let mut bytes = text.iter();
        while let Some(&byte) = bytes.next() {
            match byte {
                b'\r' => {
                    assert_eq!(bytes.next(), Some(&b'\n'), "a bare CR");
                    lines.push(std::mem::take(&mut line));
                }
                b'\n' => panic!("a bare LF"),
                byte => line.push(byte),
            }
        }
        lines.push(line);
        let first = lines.remove(0);
        let words: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
        let [method, target, version] = words[..] else {
            panic!("{} words in the request line", words.len());
        };
        assert!(is_token(method) && !target.is_empty());
        let minor = match version {
            b"HTTP/1.1" => 1,
            b"HTTP/1.0" => 0,
            _ => panic!("another version"),
        };
        let fields: Vec<_> = lines.iter().map(|line| field(line)).collect();
        let values = |name: &str| {
            let mut all = fields
                .iter()
                .filter(|(have, _)| have.eq_ignore_ascii_case(name.as_bytes()));
            let first = all.next().map(|(_, value)| value.clone());
            assert!(all.next().is_none(), "{name} twice");
            first
        };
        assert!(values("host").is_some() || minor == 0, "no host");
        let framing = match (values("content-length"), values("transfer-encoding")) {
            (Some(_), Some(_)) => panic!("two framings"),
            (None, None) => Framing::Empty,
            (None, Some(coding)) => {
                assert!(minor == 1 && coding.eq_ignore_ascii_case(b"chunked"));
                Framing::Chunked
            }
            (Some(digits), None) => {
                assert!(!digits.is_empty());
                let length = digits.iter().fold(0u128, |sum, digit| {
                    assert!(digit.is_ascii_digit());
                    sum.saturating_mul(10)
                        .saturating_add(u128::from(digit - b'0'))
                });
                match u64::try_from(length).expect("a length that u64 holds") {
                    0 => Framing::Empty,
                    length => Framing::Length(length),
                }
            }
        };
        Reading {
            method: method.to_vec(),
            target: target.to_vec(),
            minor,
            fields,
            framing,
        }
    }
}

fn field(line: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let colon = line.iter().position(|byte| *byte == b':').expect("a colon");
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    assert!(is_token(name), "a field's name");
    assert!(
        value
            .iter()
            .all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f)
    );
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value
        .iter()
        .position(|byte| !blank(byte))
        .unwrap_or(value.len());
    let to = value
        .iter()
        .rposition(|byte| !blank(byte))
        .map_or(from, |at| at + 1);
    (name.to_vec(), value[from..to].to_vec())
}

fn is_token(word: &[u8]) -> bool {
    let is_one = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !word.is_empty() && word.iter().all(is_one)
}

fn status(input: &[u8], limits: &Limits) -> Result<Option<usize>, Refusal> {
    let mut slots = field_slots();
    let parsed = Head::parse(input, &mut slots, limits, origin());
    parsed.map(|head| head.map(|head| head.bytes()))
}

/// A few places to cut the input at: its last bytes, and some that depend on it.
fn cuts(input: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let len = input.len();
    let sum = input.iter().fold(7usize, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
    });
    let spread = [sum, sum / 3, sum / 7].map(|at| at % (len + 1));
    [len.saturating_sub(1), len.saturating_sub(2)]
        .into_iter()
        .chain(spread)
}

/// Small limits, so that inputs of a few hundred bytes reach them.
fn limits() -> &'static Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    LIMITS.get_or_init(|| Limits {
        head_bytes_max: 512,
        target_bytes_max: 128,
        method_bytes_max: 8,
        fields_max: 12,
        ..Limits::default()
    })
}

fn origin() -> Origin {
    static ARRIVED: OnceLock<Instant> = OnceLock::new();
    Origin {
        peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        arrived: *ARRIVED.get_or_init(Instant::now),
    }
}
