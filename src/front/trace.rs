//! The trace that a request belongs to (W3C Trace Context), so that what is said of it can be found with what others say.

use serde::{Serialize, Serializer};
use std::fmt;

/// Where a request belongs, as its client says, or whoever passes it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The number of the trace.
    pub trace: [u8; 16],
    /// The number of the client's span.
    pub span: [u8; 8],
    /// Whether the client records its part of the trace.
    pub is_sampled: bool,
    /// It begins in this process, because the client named none: the span is this process's own.
    pub is_own: bool,
}

impl TraceParent {
    /// From the value of a `traceparent` field: `VERSION-TRACE-PARENT-FLAGS`. `None` where it is not well-formed: it is then
    /// as if there were none.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let is_hex = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let (known, rest) = value.split_at_checked(55)?;
        let [version, trace, parent, flags] =
            [&known[..2], &known[3..35], &known[36..52], &known[53..]];
        let dashes = [known[2], known[35], known[52]].iter().all(|b| *b == b'-');
        // Version 00 ends here; a later one may go on behind another dash; ff is none.
        let ends = rest.is_empty() || (version != b"00" && rest[0] == b'-');
        let well = dashes
            && ends
            && version != b"ff"
            && [version, trace, parent, flags].into_iter().all(is_hex);
        let found = Self {
            trace: bytes(trace),
            span: bytes(parent),
            is_sampled: digit(flags[1]) & 1 == 1,
            is_own: false,
        };
        (well && found.trace != [0; 16] && found.span != [0; 8]).then_some(found)
    }
}

/// The bytes that hexadecimal digits stand for.
fn bytes<const N: usize>(digits: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0]) << 4 | digit(pair[1]);
    }
    bytes
}

fn digit(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        b'a'..=b'f' => hex - b'a' + 10,
        _ => 0,
    }
}

/// The number of the trace.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trace
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_from_a_well_formed_field_only() {
        let id = |value: &str| TraceParent::parse(value.as_bytes()).map(|id| id.to_string());
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let whole = format!("00-{trace}-00f067aa0ba902b7-01");
        assert_eq!(id(&whole).as_deref(), Some(trace));
        let parsed = TraceParent::parse(whole.as_bytes()).unwrap();
        assert_eq!(parsed.span, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(parsed.is_sampled);
        let unsampled = format!("{}00", &whole[..53]);
        assert!(!TraceParent::parse(unsampled.as_bytes()).unwrap().is_sampled);
        assert_eq!(
            id(&format!("cc-{trace}-00f067aa0ba902b7-01-more")).as_deref(),
            Some(trace)
        );
        for wrong in [
            String::new(),
            whole[..54].to_owned(),
            format!("{whole}-more"),
            format!("ff-{trace}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{trace}-0000000000000000-01"),
            whole.to_uppercase(),
            whole.replace('-', "_"),
        ] {
            assert_eq!(id(&wrong), None, "{wrong}");
        }
    }
}
