//! What a partition's state says, and numbers as the scripts pack them.

use crate::game::entry::Totals;
use crate::store::StoreError;
use std::collections::HashMap;
use trove_streams::EntryId;
use trove_streams::redis::{Value, from_redis_value};

/// What a partition's state says.
#[derive(Debug, Default)]
pub(super) struct PartitionState(HashMap<String, Vec<u8>>);

impl PartitionState {
    pub(super) fn read(value: Value) -> Result<Self, StoreError> {
        from_redis_value(value)
            .map(Self)
            .map_err(|error| StoreError::Damaged(error.to_string()))
    }

    fn text(&self, field: &str) -> Option<&str> {
        std::str::from_utf8(self.0.get(field)?).ok()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.text("epoch")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default()
    }

    /// The last entry of the feed.
    pub(super) fn last(&self) -> EntryId {
        match self.0.get("at").and_then(|bytes| packed(bytes)).as_deref() {
            Some([n, ms]) => EntryId::new(*ms, *n),
            _ => EntryId::ZERO,
        }
    }

    /// How far ids were forgotten.
    pub(super) fn forgotten(&self) -> EntryId {
        self.text("forgotten")
            .and_then(|text| text.parse().ok())
            .unwrap_or(EntryId::ZERO)
    }

    /// A hunt's generation in this partition; none while it is frozen, or was never heard of here.
    pub(super) fn generation(&self, hunt: u32) -> Option<u64> {
        self.text(&format!("g{hunt}"))?.parse().ok()
    }

    /// A hunt's totals in this partition, and its pending finds.
    pub(super) fn totals(&self, hunt: u32) -> (Totals, u64) {
        let numbers = self
            .0
            .get(&format!("h{hunt}"))
            .and_then(|bytes| packed(bytes));
        match numbers.as_deref() {
            Some([recorded, credited, expired, pending, revoked, finds, ..]) => {
                let [recorded, credited, expired, pending, revoked] =
                    [*recorded, *credited, *expired, *pending, *revoked];
                (
                    Totals {
                        recorded,
                        credited,
                        expired,
                        pending,
                        revoked,
                    },
                    *finds,
                )
            }
            _ => (Totals::default(), 0),
        }
    }
}

/// Whole numbers as the scripts pack them (MessagePack). Negative ones, which only what is lent can be, are given as 0.
pub(super) fn packed(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut numbers = Vec::with_capacity(8);
    while let Some((kind, rest)) = bytes.split_first() {
        let (size, negative) = match kind {
            0..=0x7f | 0xe0.. => (0, *kind >= 0xe0),
            0xcc..=0xcf => (1 << (kind - 0xcc), false),
            0xd0..=0xd3 => (1 << (kind - 0xd0), true),
            _ => return None,
        };
        let (digits, rest) = rest.split_at_checked(size)?;
        let number = digits
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        numbers.push(match (size, negative) {
            (_, true) => 0,
            (0, false) => u64::from(*kind),
            (_, false) => number,
        });
        bytes = rest;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_are_read() {
        assert_eq!(
            packed(&[5, 0xcd, 1, 2, 0xff, 0xd0, 0x80, 0xcc, 200]),
            Some(vec![5, 258, 0, 0, 200])
        );
        assert_eq!(
            packed(&[0xcf, 0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            Some(vec![(1 << 53) - 1])
        );
        assert_eq!(packed(&[0xa0]), None);
        assert_eq!(packed(&[0xcd, 1]), None);
    }
}
