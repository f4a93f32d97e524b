//! Requests that two servers could read differently, or that are above a bound: each is refused with its status and
//! code, and the connection is closed. And what is random is never answered as if it were well formed.

mod front_site;
mod front_table;

use front_site::{Running, large};
use front_table::{ODD, REFUSED};
use trove::front::{FIELDS_CAPACITY, Head, Limits, Origin, Refusal, field_slots};

const NOW: &[u8] = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n";

/// Bodies above what the site behind the front takes: `(request, status, code)`.
const TOO_MUCH: &[(&[u8], u16, &str)] = &[
    (b"POST /count?little HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nhello world", 413, "body_too_large"),
    (b"POST /count?little HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", 413, "body_too_large"),
];

fn all() -> impl Iterator<Item = (&'static [u8], u16, &'static str)> {
    let rows = REFUSED
        .iter()
        .map(|row| (row.request, row.status, row.code));
    rows.chain(TOO_MUCH.iter().copied())
}

#[test]
fn what_is_ambiguous_is_refused_and_nothing_behind_it_is_read() {
    let server = Running::start();
    for (request, status, code) in all() {
        let shown = request.escape_ascii().to_string();
        let mut client = server.connect();
        // In front of it, a request that is answered; behind it, one that must never be.
        client.send(&[NOW, request, NOW].concat());
        assert_eq!(client.reply().status, 200, "{shown}");
        let reply = client.reply();
        assert_eq!((reply.status, reply.code()), (status, code), "{shown}");
        assert!(reply.closes() && reply.field("date").is_some(), "{shown}");
        assert_eq!(reply.field("x-site"), Some("1"), "{shown}");
        client.expect_end();
    }
    assert_eq!(
        server.counter(|counters| &counters.refused_requests),
        all().count() as u64
    );
}

#[test]
fn refusals_come_also_byte_by_byte() {
    let server = Running::start();
    for (request, status, code) in all() {
        let shown = request.escape_ascii().to_string();
        let mut client = server.connect();
        for byte in request {
            client.try_send(&[*byte]);
        }
        client.half_close();
        let reply = client.reply();
        assert_eq!((reply.status, reply.code()), (status, code), "{shown}");
        client.expect_end();
    }
}

#[test]
fn what_only_looks_odd_is_answered() {
    let server = Running::start();
    let most: (&str, &[u8]) = (
        "as much as is taken",
        b"POST /count?little HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello worl",
    );
    for (name, request) in ODD.iter().chain([&most]) {
        let reply = server.ask(request);
        assert_eq!(reply.status, 200, "{name}: {reply:?}");
    }
    let mut client = server.connect();
    client.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\nget /call/bob HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((client.reply().status, client.reply().status), (404, 405));
}

#[test]
fn heads_are_bounded_in_target_bytes_and_fields() {
    let server = Running::start();
    let cases: [(Vec<u8>, u16, &str); 9] = [
        (target(8192), 200, ""),
        (target(8193), 414, "target_too_long"),
        (target(60_000), 414, "target_too_long"),
        // No end of the line in sight.
        (
            [b"GET /now?".to_vec(), vec![b'a'; 8300]].concat(),
            414,
            "target_too_long",
        ),
        (fields(99, 10), 200, ""),
        (fields(100, 10), 431, "too_many_fields"),
        (fields(1, 16_000), 200, ""),
        (fields(1, 16_400), 431, "head_too_large"),
        (
            [
                &b"GET /now HTTP/1.1\r\nHost: x\r\nA: "[..],
                &vec![b'a'; 16_400],
            ]
            .concat(),
            431,
            "head_too_large",
        ),
    ];
    for (request, status, code) in cases {
        let reply = server.ask(&request);
        assert_eq!(reply.status, status, "{} bytes", request.len());
        if status != 200 {
            assert_eq!(reply.code(), code);
        }
    }
}

fn target(bytes: usize) -> Vec<u8> {
    let target = format!("/now?{}", "a".repeat(bytes - 5));
    format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()
}

/// A head with `count` fields of `bytes` bytes each, beside the host.
fn fields(count: usize, bytes: usize) -> Vec<u8> {
    let field = format!("A: {}\r\n", "a".repeat(bytes));
    format!(
        "GET /now HTTP/1.1\r\nHost: x\r\n{}\r\n",
        field.repeat(count)
    )
    .into_bytes()
}

#[test]
fn a_client_that_sends_on_still_reads_its_refusal() {
    let server = Running::start();
    let mut client = server.connect();
    client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n");
    // Were the connection closed at once, these bytes would draw a reset, and it the answer.
    for _ in 0..10 {
        client.try_send(&large(50_000));
    }
    assert_eq!(client.reply().code(), "body_too_large");
    client.expect_end();
}

#[test]
fn a_body_that_ends_early_is_refused() {
    let server = Running::start();
    for request in [
        &b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhello"[..],
        b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let mut client = server.connect();
        client.send(request);
        client.half_close();
        let reply = client.reply();
        assert_eq!((reply.status, reply.code()), (400, "incomplete_body"));
        client.expect_end();
    }
}

/// xorshift64*, so that a seed makes the same bytes everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }
}

fn seed() -> u64 {
    let seed = std::env::var("FRONT_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("a clock");
        u64::from(since.subsec_nanos()) << 20 | since.as_secs() | 1
    });
    println!("FRONT_SEED={seed}");
    seed
}

/// A few bytes of a request changed, removed, doubled or put in.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const TELLING: &[u8] = b"\r\n\0 \t:;,#?/\\HTC150\x7f\xff";
    for _ in 0..=random.below(4) {
        let at = random
            .below(bytes.len().max(1))
            .min(bytes.len().saturating_sub(1));
        match random.below(5) {
            _ if bytes.is_empty() => bytes.push(b'G'),
            0 => bytes[at] = random.next().to_le_bytes()[7],
            1 => bytes[at] = TELLING[random.below(TELLING.len())],
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, TELLING[random.below(TELLING.len())]),
            _ => {
                let end = (at + random.below(20)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

#[test]
fn a_mutated_head_is_never_read_beyond_the_rules() {
    let mut random = Random(seed());
    let limits = Limits::default();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..200_000 {
        let request = REFUSED[random.below(REFUSED.len())].request;
        let mut bytes = if round % 2 == 0 {
            NOW.to_vec()
        } else {
            request.to_vec()
        };
        mutate(&mut bytes, &mut random);
        let mut slots = field_slots();
        let origin = Origin {
            peer: ([127, 0, 0, 1], 1).into(),
            arrived: std::time::Instant::now(),
        };
        match Head::parse(&bytes, &mut slots, &limits, origin) {
            Ok(Some(head)) => {
                accepted += 1;
                let raw = &bytes[..head.bytes()];
                let shown = raw.escape_ascii();
                // By plain means, what the front promises about every head that it accepts.
                let text = String::from_utf8_lossy(raw);
                let lines: Vec<&str> = text.trim_start_matches("\r\n").split("\r\n").collect();
                assert!(
                    lines.iter().all(|line| !line.contains(['\r', '\n', '\0'])),
                    "{shown}"
                );
                let named = |name: &str| {
                    let of = |line: &&&str| {
                        line.split(':')
                            .next()
                            .is_some_and(|n| n.eq_ignore_ascii_case(name))
                    };
                    lines[1..].iter().filter(of).count()
                };
                assert!(
                    named("content-length") + named("transfer-encoding") <= 1,
                    "{shown}"
                );
                assert!(
                    named("host") == 1 || head.minor_version() == 0 && named("host") == 0,
                    "{shown}"
                );
                assert!(
                    lines[1..].iter().all(|line| !line.starts_with([' ', '\t'])),
                    "{shown}"
                );
                assert!(
                    head.path().starts_with('/') || head.path() == "*",
                    "{shown}"
                );
                assert!(!head.target().contains(['#', '\\', ' ']), "{shown}");
                assert!(head.fields().count() <= FIELDS_CAPACITY);
            }
            Ok(None) => {}
            Err(Refusal::Internal) => panic!("an internal error for {}", bytes.escape_ascii()),
            Err(_) => refused += 1,
        }
    }
    assert!(
        accepted > 1000 && refused > 1000,
        "{accepted} accepted, {refused} refused"
    );
}

#[test]
fn the_loop_survives_mutated_connections() {
    let server = Running::start();
    let mut random = Random(seed());
    for _ in 0..1500 {
        let request = REFUSED[random.below(REFUSED.len())].request;
        let mut bytes = [NOW, request].concat();
        mutate(&mut bytes, &mut random);
        let cut = random.below(bytes.len() + 1);
        let mut client = server.connect();
        client.try_send(&bytes[..cut]);
        client.try_send(&bytes[cut..]);
        if random.below(3) > 0 {
            // Every answer is one, and the connection ends with the client's half.
            let _ = client.stream.shutdown(std::net::Shutdown::Write);
            let answers = client.rest_or_reset();
            assert!(
                answers.is_empty() || answers.starts_with(b"HTTP/1.1 "),
                "{}",
                bytes.escape_ascii()
            );
        }
    }
    assert_eq!(server.ask(NOW).status, 200);
    assert_eq!(server.counter(|counters| &counters.panics), 0);
}
