//! The trace that a request belongs to (W3C Trace Context), so that what is said of it can be found with what others say.

use serde::{Serialize, Serializer};
use std::fmt;

/// The number of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// From the value of a `traceparent` field: `VERSION-TRACE-PARENT-FLAGS`. `None` where it is not well-formed: it is then
    /// as if there were none.
    #[must_use]
    pub fn of_traceparent(value: &[u8]) -> Option<Self> {
        let hex = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let (known, rest) = value.split_at_checked(55)?;
        let [version, trace, parent, flags] =
            [&known[..2], &known[3..35], &known[36..52], &known[53..]];
        let dashes = [known[2], known[35], known[52]].iter().all(|b| *b == b'-');
        // Version 00 ends here; a later one may go on behind another dash; ff is none.
        let ends = rest.is_empty() || (version != b"00" && rest[0] == b'-');
        let well = dashes
            && ends
            && version != b"ff"
            && [version, trace, parent, flags].into_iter().all(hex)
            && parent.iter().any(|b| *b != b'0');
        if !well {
            return None;
        }
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(trace.chunks_exact(2)) {
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
        (id != [0; 16]).then_some(Self(id))
    }
}

fn digit(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        _ => hex - b'a' + 10,
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_from_a_well_formed_field_only() {
        let id = |value: &str| TraceId::of_traceparent(value.as_bytes()).map(|id| id.to_string());
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let whole = format!("00-{trace}-00f067aa0ba902b7-01");
        assert_eq!(id(&whole).as_deref(), Some(trace));
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
