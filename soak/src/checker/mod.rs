//! The online checker: holds what each user is told against what that user knows, in bounded memory a user. It knows
//! nothing but answers, as a phone does.
//!
//! What it cannot decide alone (a credit told 40 hours ago, a find whose answer never came) it enters in the [books](crate::books),
//! which are held against the ledger at the end. Kinds of findings are listed in [`kind`].
//!
//! - [`poll_body`]: a poll's body, read without a document.
//! - [`wallet`]: what a user knows of its wallet.
//! - [`polls`], [`finds`], [`history`]: the checks of each kind of answer.

pub mod finds;
pub mod history;
pub mod poll_body;
pub mod polls;
pub mod wallet;

#[cfg(test)]
mod tests;

use crate::books::{Entry, Told, ids};
use crate::record::Finding;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Findings that are written; further ones are only counted.
pub const FINDINGS_MAX: u64 = 10_000;
/// The longest that an expiry may take to be recorded after the window, by the rules of the game.
pub const EXPIRY_LATE_MS: u64 = 10_000;
/// Allowed on top of [`EXPIRY_LATE_MS`] for what lies between the store and the user.
pub const EXPIRY_SLACK_MS: u64 = 2_000;
/// From a find to when every instance must have heard of it, unless it says that it is stale.
pub const HEARD_MS: u64 = 2_000;

/// Kinds of [`Finding`].
pub mod kind {
    /// An answer of another player or hunt.
    pub const WRONG_PLAYER: &str = "wrong_player";
    /// A find shown as credited that had been credited before, or that nobody sent.
    pub const CREDITED_TWICE: &str = "credited_twice";
    /// A find that was acknowledged and is neither credited nor expired long after its window.
    pub const CREDIT_LOST: &str = "credit_lost";
    /// A credit that cannot have been made within the find's window.
    pub const OUTSIDE_WINDOW: &str = "outside_window";
    /// An expiry that is not lawful.
    pub const EXPIRED_UNLAWFULLY: &str = "expired_unlawfully";
    /// A balance that is not what the credits that were told come to.
    pub const BALANCE: &str = "balance";
    /// A cursor that went backwards, or moved otherwise than its entries.
    pub const SEQUENCE: &str = "sequence";
    /// Coins other than the find's.
    pub const COINS: &str = "coins";
    /// An acknowledgment that is not the find's, or contradicts an earlier one.
    pub const ACKNOWLEDGMENT: &str = "acknowledgment";
    /// A 304 that nobody asked for, or of another cursor.
    pub const NOT_MODIFIED: &str = "not_modified";
    /// A body that cannot be read.
    pub const MALFORMED: &str = "malformed";
}

/// A place in a wallet's history: `EPOCH.SEQ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// Of the store's history.
    pub epoch: u64,
    /// Of the wallet.
    pub seq: u64,
}

impl Cursor {
    /// Reads `EPOCH.SEQ`.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let dot = memchr::memchr(b'.', text)?;
        Some(Self {
            epoch: crate::generator::number(&text[..dot])?,
            seq: crate::generator::number(&text[dot + 1..])?,
        })
    }

    /// Reads `W/"EPOCH.SEQ"`.
    #[must_use]
    pub fn from_etag(value: &[u8]) -> Option<Self> {
        let value = value.strip_prefix(b"W/").unwrap_or(value);
        Self::parse(value.strip_prefix(b"\"")?.strip_suffix(b"\"")?)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(text.as_bytes()).ok_or_else(|| D::Error::custom("a cursor is EPOCH.SEQ"))
    }
}

pub use crate::books::Books;

/// What users were told meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Finds acknowledged for the first time.
    pub finds: u64,
    /// Credits told for the first time.
    pub credits: u64,
    /// Expiries told for the first time.
    pub expiries: u64,
    /// Stale answers.
    pub stale: u64,
}

/// What all users share.
pub struct Checker {
    hunt: String,
    window_ms: u64,
    /// Numbers of finds below this were sent before this process began, by whom is only in the books.
    first_find: u64,
    books: Box<dyn Books + Send>,
    /// Entries that the books did not take.
    pub books_refused: u64,
    /// Findings since they were last taken.
    findings: Vec<Finding>,
    /// Findings in all.
    pub findings_total: u64,
    counts: Counts,
    /// The greatest known lower bound of the server's clock minus the run's, milliseconds.
    offset_ms: i64,
    /// The run's clock, milliseconds.
    now_ms: u64,
}

impl Checker {
    /// For a hunt with this window. `first_find`: the number of the first find that this process sends.
    #[must_use]
    pub fn new(
        hunt: String,
        window_ms: u64,
        first_find: u64,
        books: Box<dyn Books + Send>,
    ) -> Self {
        Self {
            hunt,
            window_ms,
            first_find,
            books,
            books_refused: 0,
            findings: Vec::new(),
            findings_total: 0,
            counts: Counts::default(),
            offset_ms: i64::MIN,
            now_ms: 0,
        }
    }

    /// Sets the run's clock.
    pub fn at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Takes what has been counted.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Takes what has been found.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    fn found(&mut self, user: u32, kind: &str, text: String) {
        self.findings_total += 1;
        if self.findings_total <= FINDINGS_MAX {
            self.findings.push(Finding {
                at_ms: self.now_ms,
                kind: kind.to_owned(),
                player: ids::player_name(user),
                text,
            });
        }
    }

    fn enter(&mut self, user: u32, find: u64, told: Told, (coins, found_at, seq): (u64, u64, u64)) {
        let taken = self.books.enter(Entry {
            user,
            find,
            told,
            coins,
            found_at,
            seq,
            at_ms: self.now_ms,
        });
        if !taken {
            self.books_refused += 1;
        }
    }

    /// Learns from a `server_time` that was seen now.
    fn learn_clock(&mut self, server_time: u64) {
        let offset = signed(server_time).saturating_sub(signed(self.now_ms));
        self.offset_ms = self.offset_ms.max(offset);
    }

    /// The least that the server's clock can have said at this moment of the run; 0 where nothing is known.
    fn server_time_least(&self, run_ms: u64) -> u64 {
        u64::try_from(signed(run_ms).saturating_add(self.offset_ms)).unwrap_or(0)
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
