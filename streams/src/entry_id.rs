//! Entry ids of a stream, as a type.

use std::fmt;
use std::str::FromStr;

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The id of a stream entry, `ms-seq`.
///
/// Redis orders entries by this pair and refuses one that is not above the last. In the feeds of this crate `ms` is the
/// store's time and `seq` a **counter of the feed that grows by one with each entry** and never starts again, so that a
/// reader sees from two ids alone whether entries are missing or history was rewritten (see
/// [`GapDetector`](crate::GapDetector)). A plain stream, whose `seq` counts within one millisecond, can be read with this
/// type but says nothing about gaps.
///
/// The order is Redis's: first `ms`, then `seq`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since the epoch, by the store's clock.
    pub ms: u64,
    /// The feed's counter: the first entry has 1.
    pub seq: u64,
}

impl EntryId {
    /// Before every entry: the position of a reader that has seen nothing. Redis refuses it as the id of an entry.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };
    /// After every possible entry.
    pub const MAX: Self = Self {
        ms: u64::MAX,
        seq: u64::MAX,
    };

    /// The id `ms-seq`; `ms` in milliseconds since the epoch.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// The id of the entry that follows this one in a feed: the counter grows by one and time never runs backwards,
    /// whatever `now_ms` says. `None` when the counter is used up.
    pub const fn following(self, now_ms: u64) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self {
                ms: if now_ms > self.ms { now_ms } else { self.ms },
                seq,
            }),
            None => None,
        }
    }

    /// The smallest id above this one in Redis's order: what a range that excludes this entry starts with. `None` for
    /// [`EntryId::MAX`].
    pub const fn successor(self) -> Option<Self> {
        match (self.seq.checked_add(1), self.ms.checked_add(1)) {
            (Some(seq), _) => Some(Self { ms: self.ms, seq }),
            (None, Some(ms)) => Some(Self { ms, seq: 0 }),
            (None, None) => None,
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// A text that is no entry id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseEntryIdError {
    /// There is no `-` between two numbers. (Redis reads `5` as `5-0`; a position that lost its counter is refused here.)
    #[error("an entry id is two numbers with a dash between them, like 1700000000000-42")]
    NoDash,
    /// One of the two is not a plain decimal number of 64 bits.
    #[error("{part} is not a number between 0 and 18446744073709551615")]
    NotANumber {
        /// The part of the text that was not understood.
        part: String,
    },
    /// The bytes are not text.
    #[error("an entry id is ASCII text")]
    NotText,
}

fn parse_part(part: &str) -> Result<u64, ParseEntryIdError> {
    // `u64::from_str` takes a leading plus, which Redis does not write and does not read.
    if part.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(number) = part.parse()
    {
        return Ok(number);
    }
    Err(ParseEntryIdError::NotANumber {
        part: part.to_owned(),
    })
}

impl FromStr for EntryId {
    type Err = ParseEntryIdError;

    fn from_str(text: &str) -> Result<Self, ParseEntryIdError> {
        let (ms, seq) = text.split_once('-').ok_or(ParseEntryIdError::NoDash)?;
        Ok(Self {
            ms: parse_part(ms)?,
            seq: parse_part(seq)?,
        })
    }
}

impl TryFrom<&[u8]> for EntryId {
    type Error = ParseEntryIdError;

    fn try_from(bytes: &[u8]) -> Result<Self, ParseEntryIdError> {
        std::str::from_utf8(bytes)
            .map_err(|_| ParseEntryIdError::NotText)?
            .parse()
    }
}

impl ToRedisArgs for EntryId {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

impl ToSingleRedisArg for EntryId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_it_was_written() {
        for id in [
            EntryId::ZERO,
            EntryId::MAX,
            EntryId::new(1_700_000_000_000, 42),
        ] {
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(EntryId::try_from(id.to_string().as_bytes()), Ok(id));
        }
    }

    #[test]
    fn what_redis_would_not_write_is_refused() {
        assert_eq!("5".parse::<EntryId>(), Err(ParseEntryIdError::NoDash));
        for text in [
            "-",
            "1-",
            "-1",
            "+1-2",
            "1-2-3",
            " 1-2",
            "1-18446744073709551616",
            "1-*",
            "0x1-2",
        ] {
            assert!(
                matches!(
                    text.parse::<EntryId>(),
                    Err(ParseEntryIdError::NotANumber { .. })
                ),
                "{text}"
            );
        }
        assert_eq!(
            EntryId::try_from(&[0xff, b'-', 0xfe][..]),
            Err(ParseEntryIdError::NotText)
        );
    }

    #[test]
    fn ids_are_ordered_by_time_then_counter() {
        let mut ids = [EntryId::new(2, 1), EntryId::new(1, 9), EntryId::new(1, 10)];
        ids.sort();
        assert_eq!(
            ids,
            [EntryId::new(1, 9), EntryId::new(1, 10), EntryId::new(2, 1)]
        );
    }

    #[test]
    fn the_counter_grows_and_time_never_runs_backwards() {
        let id = EntryId::new(100, 7);
        assert_eq!(id.following(90), Some(EntryId::new(100, 8)));
        assert_eq!(id.following(101), Some(EntryId::new(101, 8)));
        assert_eq!(EntryId::new(1, u64::MAX).following(2), None);
    }

    #[test]
    fn the_successor_is_the_next_id_in_redis_order() {
        assert_eq!(EntryId::new(5, 6).successor(), Some(EntryId::new(5, 7)));
        assert_eq!(
            EntryId::new(5, u64::MAX).successor(),
            Some(EntryId::new(6, 0))
        );
        assert_eq!(EntryId::MAX.successor(), None);
    }
}
