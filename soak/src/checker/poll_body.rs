//! The body of a poll. Almost every one has the shape that Trove writes, so it is read by comparing with that shape, without a
//! document; any other shape of the same JSON is read by `serde_json`.

use super::Cursor;
use serde::Deserialize;
use std::borrow::Cow;

/// What a poll tells.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PollBody<'a> {
    /// The hunt.
    #[serde(borrow)]
    pub hunt: Cow<'a, str>,
    /// Whose it is.
    #[serde(borrow)]
    pub player: Cow<'a, str>,
    /// Coins owned.
    pub balance: u64,
    /// The coins of `finds`.
    pub credited: u64,
    /// Credited finds.
    #[serde(borrow)]
    pub finds: Vec<TellFind<'a>>,
    /// Expired finds.
    #[serde(borrow)]
    pub expired: Vec<TellFind<'a>>,
    /// Coins that wait.
    pub pending: u64,
    /// Where in the wallet's history.
    pub cursor: Cursor,
    /// The store's clock, milliseconds.
    pub server_time: u64,
    /// When to poll again.
    pub next_poll_ms: u64,
    /// The cursor that was named is of another history.
    #[serde(default)]
    pub reset: bool,
    /// Older than what is kept was named.
    #[serde(default)]
    pub gap: bool,
    /// The store is out of reach.
    #[serde(default)]
    pub stale: bool,
}

/// A find as a poll tells it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TellFind<'a> {
    /// Its id.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// Coins.
    pub coins: u64,
    /// When it was found.
    pub found_at: u64,
    /// Why it expired.
    #[serde(borrow, default)]
    pub reason: Option<Cow<'a, str>>,
}

/// Reads a body.
///
/// # Errors
/// What is wrong with its JSON.
pub fn read(body: &[u8]) -> Result<PollBody<'_>, String> {
    match known_shape(body) {
        Some(poll) => Ok(poll),
        None => serde_json::from_slice(body).map_err(|error| error.to_string()),
    }
}

/// The rest of a body.
struct Scan<'a>(&'a [u8]);

impl<'a> Scan<'a> {
    fn literal(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    fn has(&mut self, text: &[u8]) -> bool {
        self.literal(text).is_some()
    }

    /// Up to the next quote; a text with escapes is not of the known shape.
    fn text(&mut self) -> Option<Cow<'a, str>> {
        let end = memchr::memchr2(b'"', b'\\', self.0)?;
        if self.0[end] == b'\\' {
            return None;
        }
        let text = std::str::from_utf8(&self.0[..end]).ok()?;
        self.0 = &self.0[end + 1..];
        Some(Cow::Borrowed(text))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        let mut digits = 0;
        while let Some(digit) = self
            .0
            .get(digits)
            .and_then(|byte| byte.checked_sub(b'0'))
            .filter(|digit| *digit < 10)
        {
            number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
            digits += 1;
        }
        self.0 = &self.0[digits..];
        (digits > 0).then_some(number)
    }

    fn finds(&mut self) -> Option<Vec<TellFind<'a>>> {
        let mut finds = Vec::new();
        if self.has(b"]") {
            return Some(finds);
        }
        loop {
            self.literal(b"{\"id\":\"")?;
            let id = self.text()?;
            self.literal(b",\"treasure\":")?;
            if !self.has(b"null") {
                self.literal(b"\"")?;
                self.text()?;
            }
            self.literal(b",\"coins\":")?;
            let coins = self.number()?;
            self.literal(b",\"found_at\":")?;
            let found_at = self.number()?;
            let reason = if self.has(b",\"reason\":\"") {
                Some(self.text()?)
            } else {
                None
            };
            self.literal(b"}")?;
            finds.push(TellFind {
                id,
                coins,
                found_at,
                reason,
            });
            if self.has(b"]") {
                return Some(finds);
            }
            self.literal(b",")?;
        }
    }
}

fn known_shape(body: &[u8]) -> Option<PollBody<'_>> {
    let mut scan = Scan(body);
    scan.literal(b"{\"hunt\":\"")?;
    let hunt = scan.text()?;
    scan.literal(b",\"player\":\"")?;
    let player = scan.text()?;
    scan.literal(b",\"balance\":")?;
    let balance = scan.number()?;
    scan.literal(b",\"credited\":")?;
    let credited = scan.number()?;
    scan.literal(b",\"finds\":[")?;
    let finds = scan.finds()?;
    scan.literal(b",\"expired\":[")?;
    let expired = scan.finds()?;
    scan.literal(b",\"pending\":")?;
    let pending = scan.number()?;
    scan.literal(b",\"cursor\":\"")?;
    let epoch = scan.number()?;
    scan.literal(b".")?;
    let seq = scan.number()?;
    scan.literal(b"\",\"server_time\":")?;
    let server_time = scan.number()?;
    scan.literal(b",\"next_poll_ms\":")?;
    let next_poll_ms = scan.number()?;
    let reset = scan.has(b",\"reset\":true");
    let gap = scan.has(b",\"gap\":true");
    let stale = scan.has(b",\"stale\":true");
    scan.literal(b"}")?;
    scan.0.is_empty().then_some(PollBody {
        hunt,
        player,
        balance,
        credited,
        finds,
        expired,
        pending,
        cursor: Cursor { epoch, seq },
        server_time,
        next_poll_ms,
        reset,
        gap,
        stale,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"hunt":"h","player":"u1","balance":50,"credited":12,"finds":[{"id":"f1","treasure":"crane","coins":5,"found_at":17},{"id":"f2","treasure":null,"coins":7,"found_at":18}],"expired":[{"id":"f0","treasure":"crane","coins":5,"found_at":1,"reason":"window"}],"pending":3,"cursor":"1796029000.2","server_time":1796029123470,"next_poll_ms":1253,"gap":true}"#;

    #[test]
    fn the_known_shape_and_any_other_of_the_same_json_read_the_same() {
        let known = known_shape(BODY.as_bytes()).unwrap();
        assert_eq!((known.balance, known.finds.len(), known.gap), (50, 2, true));
        assert_eq!(known.expired[0].reason.as_deref(), Some("window"));
        let spaced = BODY
            .replace(",\"", ", \"")
            .replace("\"h\"", "\"\\u0068\"")
            .replace(", \"gap\":true", "")
            .replacen('{', "{\"gap\":true,\"new\":[1],", 1);
        assert_eq!(known_shape(spaced.as_bytes()), None);
        assert_eq!(read(spaced.as_bytes()).unwrap(), {
            let mut known = known.clone();
            known.gap = read(spaced.as_bytes()).unwrap().gap;
            known
        });
        assert!(read(spaced.as_bytes()).unwrap().gap);
    }

    #[test]
    fn what_lacks_something_is_an_error() {
        assert!(read(b"").is_err());
        assert!(read(b"{}").is_err());
        assert!(read(BODY.replace("\"balance\":50,", "").as_bytes()).is_err());
        assert!(read(BODY.replace("50", "-5").as_bytes()).is_err());
        for cut in 0..BODY.len() {
            assert!(read(&BODY.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
    }
}
