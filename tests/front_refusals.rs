//! Requests that two servers could read differently, or that are above a bound: each is refused with its status and
//! code, and the connection is closed. And what is random is never answered as if it were well formed.

mod front_site;

use front_site::{Running, large};
use trove::front::{FIELDS_CAPACITY, Head, Limits, Origin, Refusal, field_slots};

const NOW: &[u8] = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n";

/// `(request, status, code)`
const REFUSED: &[(&[u8], u16, &str)] = &[
    // Two framings, or none that can be relied on.
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "length_and_coding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, "length_and_coding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400, "length_and_coding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", 400, "length_and_coding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5 5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5.0\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: \xd9\xa5\r\n\r\nhello", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400, "bad_content_length"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n", 413, "body_too_large"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "unknown_transfer_coding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", 501, "unknown_transfer_coding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked;x=y\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400, "bad_field"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400, "bad_field"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400, "bad_field"),
    (b"POST /echo HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello", 400, "bad_connection"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: close, Host\r\n\r\n", 400, "bad_connection"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: authorization\r\nAuthorization: b\r\n\r\n", 400, "bad_connection"),
    // Line ends and fields.
    (b"GET /now HTTP/1.1\nHost: x\n\n", 400, "bare_line_break"),
    (b"GET /now HTTP/1.1\r\nHost: x\n\r\n", 400, "bare_line_break"),
    (b"GET /now HTTP/1.1\nHost: x\r\n\r\n", 400, "bare_line_break"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\n\n", 400, "bare_line_break"),
    (b"\nGET /now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bare_line_break"),
    (b"GET /now HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\rHost: x\r\n\r\n", 400, "bare_line_break"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\n Host: x\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost : x\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost\t: x\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nA: b\x7f\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nA: b\x1bc\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\n\xc3\xa4: b\r\n\r\n", 400, "bad_field"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\n(a): b\r\n\r\n", 400, "bad_field"),
    // Host.
    (b"GET /now HTTP/1.1\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.1\r\nHost: x, y\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.1\r\nHost: x/y\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.1\r\nHost: a@x\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.1\r\nHost: x#y\r\n\r\n", 400, "bad_host"),
    (b"GET /now HTTP/1.1\r\nHost: \xff\r\n\r\n", 400, "bad_host"),
    // Request lines and targets.
    (b"GET /now#part HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET /now?a#part HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET ftp://x/now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET http:///now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET http://a@x/now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET http://y/now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "target_host_mismatch"),
    (b"GET /now\\..\\x HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET /n\xc3\xb6w HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_target"),
    (b"GET /now\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now\x7f HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now a HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET  /now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now  HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now HTTP/1.1 \r\nHost: x\r\n\r\n", 400, "bare_line_break"),
    (b"GET\t/now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b" GET /now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"G@T /now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now http/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now HTCPCP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
    (b"GET /now HTTP/1.2\r\nHost: x\r\n\r\n", 505, "unknown_version"),
    (b"GET /now HTTP/2.0\r\nHost: x\r\n\r\n", 505, "unknown_version"),
    (b"GET /now HTTP/0.9\r\nHost: x\r\n\r\n", 505, "unknown_version"),
    (b"GET /now HTTP/1.1.1\r\nHost: x\r\n\r\n", 400, "bare_line_break"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "unknown_version"),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", 501, "unknown_method"),
    (b"ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGH / HTTP/1.1\r\nHost: x\r\n\r\n", 501, "unknown_method"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request_line"),
    (b"{\"jsonrpc\":\"2.0\"}\r\n", 400, "bad_request_line"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue, x\r\n\r\n", 417, "unknown_expectation"),
    // Bodies.
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a\x00b\r\nhello\r\n0\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length : 5\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nGET /now HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_chunk"),
    (b"POST /count?little HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nhello world", 413, "body_too_large"),
    (b"POST /count?little HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", 413, "body_too_large"),
];

#[test]
fn what_is_ambiguous_is_refused_and_nothing_behind_it_is_read() {
    let server = Running::start();
    for (request, status, code) in REFUSED {
        let shown = request.escape_ascii().to_string();
        let mut client = server.connect();
        // In front of it, a request that is answered; behind it, one that must never be.
        client.send(&[NOW, request, NOW].concat());
        assert_eq!(client.reply().status, 200, "{shown}");
        let reply = client.reply();
        assert_eq!((reply.status, reply.code()), (*status, *code), "{shown}");
        assert!(reply.closes() && reply.field("date").is_some(), "{shown}");
        client.expect_end();
    }
    assert_eq!(
        server.counter(|counters| &counters.refused_requests),
        REFUSED.len() as u64
    );
}

#[test]
fn refusals_come_also_byte_by_byte() {
    let server = Running::start();
    for (request, status, code) in REFUSED {
        let shown = request.escape_ascii().to_string();
        let mut client = server.connect();
        for byte in *request {
            client.try_send(&[*byte]);
        }
        client.half_close();
        let reply = client.reply();
        assert_eq!((reply.status, reply.code()), (*status, *code), "{shown}");
        client.expect_end();
    }
}

#[test]
fn what_only_looks_odd_is_answered() {
    let server = Running::start();
    for request in [
        &b"GET /now HTTP/1.1\r\nhOsT:x\r\n\r\n"[..],
        b"\r\n\r\nGET /now HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        b"GET http://X:80/now HTTP/1.1\r\nHost: x:80\r\n\r\n",
        b"GET /now HTTP/1.0\r\n\r\n",
        b"GET /now?[a]={b}|^ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, TE, Upgrade\r\nTE: trailers\r\nUpgrade: h2c\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: x\r\nA: \xc3\xa4\tb \t\r\nA:\r\n\r\n",
        b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 005\r\n\r\nhello",
        b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:  CHUNKED\t\r\n\r\n05;a=\"b c\"\r\nhello\r\n000\r\nA: b\r\n\r\n",
        b"POST /count?little HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello worl",
        b"GET /call/bob HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    ] {
        let reply = server.ask(request);
        assert_eq!(reply.status, 200, "{} {reply:?}", request.escape_ascii());
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
        let (request, ..) = REFUSED[random.below(REFUSED.len())];
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
        let (request, ..) = REFUSED[random.below(REFUSED.len())];
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
