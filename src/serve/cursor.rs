//! The cursor `EPOCH.SEQ`, as clients send it back.

use crate::serve::problem::Problem;

/// A place in a wallet's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The store's epoch.
    pub epoch: u64,
    /// The wallet's sequence number.
    pub seq: u64,
}

impl Cursor {
    /// Parses `EPOCH.SEQ`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, seq) = text.split_once('.')?;
        // `parse` would take a sign, which a cursor never has.
        let number = |digits: &str| {
            digits
                .bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| digits.parse().ok())?
        };
        Some(Self {
            epoch: number(epoch)?,
            seq: number(seq)?,
        })
    }

    /// Finds the first cursor in an `If-None-Match` list of our own ETags; others are none of ours.
    #[must_use]
    pub fn from_if_none_match(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        text.split(',').find_map(|tag| {
            let tag = tag.trim();
            let tag = tag.strip_prefix("W/").unwrap_or(tag);
            Self::parse(tag.strip_prefix('"')?.strip_suffix('"')?)
        })
    }

    /// Appends it as text.
    pub fn write(self, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        out.extend_from_slice(digits.format(self.epoch).as_bytes());
        out.push(b'.');
        out.extend_from_slice(digits.format(self.seq).as_bytes());
    }

    /// Appends it as a weak entity tag.
    pub fn write_etag(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"W/\"");
        self.write(out);
        out.push(b'"');
    }
}

/// What a poll's query names.
///
/// # Errors
/// 422 for a cursor that is none.
pub fn since(query: Option<&str>) -> Result<Option<Cursor>, Problem> {
    let Some(query) = query else { return Ok(None) };
    let Some(value) = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("since="))
    else {
        return Ok(None);
    };
    Cursor::parse(value)
        .map(Some)
        .ok_or_else(|| Problem::parameter("since", "must be a cursor from an earlier poll"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_two_numbers() {
        assert_eq!(Cursor::parse("17.4"), Some(Cursor { epoch: 17, seq: 4 }));
        for bad in [
            "",
            ".",
            "1",
            "1.",
            ".1",
            "1.2.3",
            "+1.2",
            "1.-2",
            "a.b",
            "1.18446744073709551616",
        ] {
            assert_eq!(Cursor::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn if_none_match_may_be_a_list() {
        let cursor = Some(Cursor { epoch: 1, seq: 2 });
        assert_eq!(Cursor::from_if_none_match(b"W/\"1.2\""), cursor);
        assert_eq!(Cursor::from_if_none_match(b"\"x\", \"1.2\""), cursor);
        assert_eq!(Cursor::from_if_none_match(b"*"), None);
        assert_eq!(Cursor::from_if_none_match(b"1.2"), None);
    }

    #[test]
    fn since_is_found_among_other_parameters() {
        assert_eq!(
            since(Some("a=b&since=1.2")).unwrap(),
            Some(Cursor { epoch: 1, seq: 2 })
        );
        assert_eq!(since(Some("a=b")).unwrap(), None);
        assert!(since(Some("since=x")).is_err());
    }
}
