//! What is believed of what a request says about where it came from, and what its upstream is told.

use crate::config::Network;
use crate::front::Head;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Fields in which a client could make itself out to be another.
const CLAIMS: [HeaderName; 6] = [
    FORWARDED_FOR,
    FORWARDED_PROTO,
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("forwarded"),
    HeaderName::from_static("x-real-ip"),
];

/// Who is believed.
#[derive(Debug)]
pub(super) struct Peers {
    /// Those whose `X-Forwarded-*` is passed on.
    pub(super) trusted: Vec<Network>,
    /// Whether the client's address is told to the upstream.
    pub(super) tells_address: bool,
}

impl Peers {
    /// Puts right what a request says of its origin.
    pub(super) fn tell(&self, fields: &mut HeaderMap, peer: SocketAddr) {
        let address = peer.ip().to_canonical();
        if !is_among(&self.trusted, address) {
            for claim in &CLAIMS {
                fields.remove(claim);
            }
        }
        if self.tells_address {
            let mut all: Vec<u8> = Vec::with_capacity(40);
            for value in fields.get_all(FORWARDED_FOR) {
                all.extend_from_slice(value.as_bytes());
                all.extend_from_slice(b", ");
            }
            all.extend_from_slice(address.to_string().as_bytes());
            if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(all)) {
                fields.insert(FORWARDED_FOR, value);
            }
            fields
                .entry(FORWARDED_PROTO)
                .or_insert(HeaderValue::from_static("http"));
        }
        trace(fields);
    }
}

/// What a request that travels on a link says beside what its client said.
pub(super) struct LinkFields {
    /// Fields of the client's that are left out.
    pub(super) leaves_out: Option<fn(&str) -> bool>,
    /// A line to be added.
    pub(super) extra: Option<[u8; TRACE_LINE_BYTES]>,
    /// Whom the upstream is told that it is from.
    pub(super) client: SocketAddr,
}

/// `traceparent: 00-…-…-00` and CRLF.
const TRACE_LINE_BYTES: usize = 70;

impl Peers {
    /// The same as [`Peers::tell`] for a link, which names the client itself: it is what a peer's address is to a server.
    pub(super) fn tell_on_link(&self, head: &Head<'_>) -> LinkFields {
        let address = head.peer().ip().to_canonical();
        let distrusts =
            head.fields().any(|(name, _)| is_claim(name)) && !is_among(&self.trusted, address);
        let is_traced = head.traceparent().is_some_and(is_traceparent) && {
            let all = head.fields().filter(|(name, _)| is_trace(name));
            all.count() == 1
        };
        let retraces = !is_traced && head.traceparent().is_some();
        LinkFields {
            leaves_out: match (distrusts, retraces) {
                (false, false) => None,
                (true, false) => Some(is_claim),
                (false, true) => Some(is_trace),
                (true, true) => Some(|name| is_claim(name) || is_trace(name)),
            },
            extra: (!is_traced).then(trace_line),
            client: if self.tells_address {
                head.peer()
            } else {
                (Ipv4Addr::UNSPECIFIED, 0).into()
            },
        }
    }
}

fn is_claim(name: &str) -> bool {
    // The length tells nearly every field from one of these.
    (9..=17).contains(&name.len())
        && matches!(name.as_bytes()[0] | 0x20, b'x' | b'f')
        && CLAIMS
            .iter()
            .any(|claim| claim.as_str().eq_ignore_ascii_case(name))
}

fn is_trace(name: &str) -> bool {
    name.eq_ignore_ascii_case(TRACEPARENT.as_str())
}

thread_local! {
    /// Makes the ids of traces, which shall be unlike each other and need not be secret: the thread's usual generator costs
    /// several times as much.
    static TRACE_IDS: RefCell<Pcg64Mcg> = RefCell::new(Pcg64Mcg::seed_from_u64(rand::random()));
}

fn trace_line() -> [u8; TRACE_LINE_BYTES] {
    let mut line = *b"traceparent: 00-00000000000000000000000000000000-0000000000000000-00\r\n";
    // None of the three is 0, so neither id is.
    let [high, low, span] =
        TRACE_IDS.with_borrow_mut(|ids| [(); 3].map(|()| ids.next_u64().max(1)));
    for (from, number) in [(16, high), (32, low), (49, span)] {
        line[from..from + 8].copy_from_slice(&hex(number >> 32));
        line[from + 8..from + 16].copy_from_slice(&hex(number & 0xffff_ffff));
    }
    line
}

/// The eight digits of a number of 32 bits, all at once: one byte of a word for each.
fn hex(number: u64) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let spread = (number << 16 | number) & 0x0000_ffff_0000_ffff;
    let spread = (spread << 8 | spread) & 0x00ff_00ff_00ff_00ff;
    let digits = (spread << 4 | spread) & (ONES * 0x0f);
    // 1 in each byte that is 10 or more.
    let letters = ((digits + ONES * 6) >> 4) & ONES;
    (digits + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

/// Whether an address is among networks.
pub(super) fn is_among(networks: &[Network], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// Leaves one well-formed `traceparent` (W3C Trace Context): the client's, or a new one.
fn trace(fields: &mut HeaderMap) {
    let mut given = fields.get_all(&TRACEPARENT).iter();
    let first = given.next();
    if given.next().is_none() && first.is_some_and(|value| is_traceparent(value.as_bytes())) {
        return;
    }
    let trace = rand::random_range(1..=u128::MAX);
    let span = rand::random_range(1..=u64::MAX);
    if let Ok(value) = HeaderValue::from_str(&format!("00-{trace:032x}-{span:016x}-00")) {
        fields.insert(TRACEPARENT, value);
    }
}

fn is_traceparent(value: &[u8]) -> bool {
    let lower_hex = |part: &[u8]| part.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&[u8]> = value.split(|byte| *byte == b'-').collect();
    let is_zero = |part: &[u8]| part.iter().all(|b| *b == b'0');
    match parts[..] {
        [version, trace, span, flags, ref more @ ..] => {
            [version, trace, span, flags].into_iter().all(lower_hex)
                && [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2]
                && version != b"ff"
                && (more.is_empty() || version != b"00")
                && !is_zero(trace)
                && !is_zero(span)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(trusted: &[&str], tells_address: bool, given: &[(&str, &str)]) -> HeaderMap {
        let peers = Peers {
            trusted: trusted.iter().map(|text| text.parse().unwrap()).collect(),
            tells_address,
        };
        let mut fields = HeaderMap::new();
        for (name, value) in given {
            let name: HeaderName = name.parse().unwrap();
            fields.append(name, value.parse().unwrap());
        }
        peers.tell(&mut fields, "10.0.0.9:1".parse().unwrap());
        fields
    }

    #[test]
    fn only_trusted_peers_are_believed() {
        let claims = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.1.1.1"),
        ];
        let fields = told(&[], true, &claims);
        assert_eq!(fields["x-forwarded-for"], "10.0.0.9");
        assert_eq!(fields["x-forwarded-proto"], "http");
        assert!(!fields.contains_key("forwarded"));
        let fields = told(&["10.0.0.0/8"], true, &claims);
        assert_eq!(fields["x-forwarded-for"], "1.1.1.1, 2.2.2.2, 10.0.0.9");
        assert_eq!(fields.get_all("x-forwarded-for").iter().count(), 1);
        assert_eq!(fields["x-forwarded-proto"], "https");
        let fields = told(&["10.0.0.0/8"], false, &claims);
        assert_eq!(fields.get_all("x-forwarded-for").iter().count(), 2);
        let fields = told(&["11.0.0.0/8"], false, &claims);
        assert!(!fields.contains_key("x-forwarded-for"));
    }

    #[test]
    fn a_trace_made_for_a_link_is_well_formed_and_no_two_are_alike() {
        let lines: Vec<_> = (0..100).map(|_| trace_line()).collect();
        for line in &lines {
            let value = line.strip_prefix(b"traceparent: ").unwrap();
            let value = value.strip_suffix(b"\r\n").unwrap();
            assert!(is_traceparent(value), "{}", value.escape_ascii());
        }
        assert!((1..lines.len()).all(|n| !lines[n..].contains(&lines[n - 1])));
    }

    #[test]
    fn a_number_has_the_digits_that_the_standard_library_gives_it() {
        for number in [0, 1, 0x9abc_def0, 0x0123_4567, 0xffff_ffff, 0xa000_0009] {
            assert_eq!(hex(number), *format!("{number:08x}").as_bytes());
        }
    }

    #[test]
    fn a_well_formed_traceparent_passes_and_any_other_is_made_anew() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let fields = told(&[], true, &[("traceparent", good)]);
        assert_eq!(fields["traceparent"], good);
        let future = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what";
        let fields = told(&[], true, &[("traceparent", future)]);
        assert_eq!(fields["traceparent"], future);
        for wrong in [
            &[][..],
            &[("traceparent", "")],
            &[(
                "traceparent",
                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            )],
            &[(
                "traceparent",
                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            )],
            &[(
                "traceparent",
                "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            )],
            &[("traceparent", good), ("traceparent", good)],
        ] {
            let fields = told(&[], true, wrong);
            let made = fields.get_all("traceparent").iter();
            let made: Vec<_> = made.collect();
            assert_eq!(made.len(), 1);
            assert!(is_traceparent(made[0].as_bytes()) && made[0] != good);
        }
    }
}
