//! What books and ledger say of one find, gathered from their rows.

use super::ledger::{Change, LedgerRow};
use super::segment::{self, ENTRY_BYTES};
use super::sort::Row;
use super::{Entry, Told};
use std::io;

/// An entry, ordered by user and find, then as it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BookRow {
    pub(super) user: u32,
    pub(super) find: u64,
    pub(super) at_ms: u64,
    pub(super) told: Told,
    pub(super) coins: u64,
    pub(super) found_at: u64,
    pub(super) seq: u64,
}

/// The bytes of a row in a file.
pub(super) struct BookBytes([u8; ENTRY_BYTES]);

impl Default for BookBytes {
    fn default() -> Self {
        Self([0; ENTRY_BYTES])
    }
}

impl AsRef<[u8]> for BookBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for BookBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Row for BookRow {
    type Bytes = BookBytes;

    fn encode(&self) -> BookBytes {
        BookBytes(segment::encode(&Entry {
            user: self.user,
            find: self.find,
            told: self.told,
            coins: self.coins,
            found_at: self.found_at,
            seq: self.seq,
            at_ms: self.at_ms,
        }))
    }

    fn decode(BookBytes(bytes): &BookBytes) -> io::Result<Self> {
        segment::decode(bytes).map(Self::from)
    }
}

impl From<Entry> for BookRow {
    fn from(entry: Entry) -> Self {
        Self {
            user: entry.user,
            find: entry.find,
            at_ms: entry.at_ms,
            told: entry.told,
            coins: entry.coins,
            found_at: entry.found_at,
            seq: entry.seq,
        }
    }
}

/// Everything about one find.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) user: u32,
    pub(super) find: u64,
    pub(super) sent: u64,
    pub(super) sent_last_ms: u64,
    pub(super) refused_last_ms: Option<u64>,
    pub(super) acknowledged: u64,
    pub(super) told_credited: u64,
    pub(super) told_credited_first_ms: u64,
    pub(super) told_expired: u64,
    pub(super) told_last_ms: u64,
    /// Coins as sent or told, the least and the most.
    pub(super) told_coins: Option<(u64, u64)>,
    pub(super) told_found_at: u64,
    pub(super) finds: u64,
    pub(super) credits: u64,
    pub(super) reinstated: bool,
    pub(super) expired: Option<LedgerRow>,
    pub(super) expiries: u64,
    pub(super) revoked: bool,
    pub(super) credit: Option<LedgerRow>,
    pub(super) coins: Option<(u64, u64)>,
    pub(super) first: Option<LedgerRow>,
}

impl Fate {
    pub(super) fn new(user: u32, find: u64) -> Self {
        Self {
            user,
            find,
            sent: 0,
            sent_last_ms: 0,
            refused_last_ms: None,
            acknowledged: 0,
            told_credited: 0,
            told_credited_first_ms: 0,
            told_expired: 0,
            told_last_ms: 0,
            told_coins: None,
            told_found_at: 0,
            finds: 0,
            credits: 0,
            reinstated: false,
            expired: None,
            expiries: 0,
            revoked: false,
            credit: None,
            coins: None,
            first: None,
        }
    }

    pub(super) fn told(&mut self, row: &BookRow) {
        let at_ms = row.at_ms;
        match row.told {
            Told::Sent => {
                self.sent += 1;
                self.sent_last_ms = at_ms;
            }
            Told::Acknowledged => {
                self.acknowledged += 1;
                self.told_found_at = row.found_at;
            }
            Told::Refused => self.refused_last_ms = Some(at_ms),
            Told::Credited => {
                if self.told_credited == 0 {
                    self.told_credited_first_ms = at_ms;
                }
                self.told_credited += 1;
            }
            Told::Expired => self.told_expired += 1,
        }
        self.told_last_ms = self.told_last_ms.max(at_ms);
        // An expiry's coins need not be told.
        if row.coins > 0 {
            widen(&mut self.told_coins, row.coins);
        }
    }

    pub(super) fn recorded(&mut self, row: &LedgerRow) {
        match row.change {
            Change::Find => self.finds += 1,
            Change::Credit => {
                self.credits += 1;
                self.credit = Some(*row);
            }
            Change::Reinstate => {
                self.credits += 1;
                self.reinstated = true;
            }
            Change::Expire | Change::ExpireByOutage => {
                self.expiries += 1;
                self.expired = Some(*row);
            }
            Change::Revoke => self.revoked = true,
        }
        self.first.get_or_insert(*row);
        widen(&mut self.coins, row.coins);
    }
}

fn widen(range: &mut Option<(u64, u64)>, value: u64) {
    let (least, most) = range.unwrap_or((value, value));
    *range = Some((least.min(value), most.max(value)));
}
