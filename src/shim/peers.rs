//! What is believed of what a request says about where it came from, and what its upstream is told.

use super::trace::{self, TRACE_LINE_BYTES, is_trace};
use crate::config::Network;
use crate::front::{Head, TraceParent};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
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
    /// Of the traces that begin here, one in so many is to be recorded; 0 for none.
    pub(super) traces_every: u64,
}

impl Peers {
    /// Puts right what a request says of its origin. Gives the trace that it belongs to.
    pub(super) fn tell(&self, fields: &mut HeaderMap, peer: SocketAddr) -> TraceParent {
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
        trace::settle(fields, self.traces_every)
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
    /// The trace that it belongs to then.
    pub(super) trace: TraceParent,
}

impl Peers {
    /// The same as [`Peers::tell`] for a link, which names the client itself: it is what a peer's address is to a server.
    pub(super) fn tell_on_link(&self, head: &Head<'_>) -> LinkFields {
        let address = head.peer().ip().to_canonical();
        let distrusts =
            head.fields().any(|(name, _)| is_claim(name)) && !is_among(&self.trusted, address);
        let (given, has_any) = trace::of_head(head);
        let retraces = given.is_none() && has_any;
        let trace = given.unwrap_or_else(|| trace::begin(self.traces_every));
        LinkFields {
            leaves_out: match (distrusts, retraces) {
                (false, false) => None,
                (true, false) => Some(is_claim),
                (false, true) => Some(is_trace),
                (true, true) => Some(|name| is_claim(name) || is_trace(name)),
            },
            extra: given.is_none().then(|| trace::line(&trace)),
            trace,
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

/// Whether an address is among networks.
pub(super) fn is_among(networks: &[Network], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(trusted: &[&str], tells_address: bool, given: &[(&str, &str)]) -> HeaderMap {
        let peers = Peers {
            trusted: trusted.iter().map(|text| text.parse().unwrap()).collect(),
            tells_address,
            traces_every: 0,
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
}
