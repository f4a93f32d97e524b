//! What the embedded store's file holds: every table and key, in one place.
//!
//! Everything about one player in one hunt lies side by side in [`ROWS`], under the same 12-byte prefix, so that
//! recording a find or a credit touches one or two pages of it however many players there are.

use crate::game::Millis;
use crate::game::ids::{FindId, PlayerId};
use redb::TableDefinition;
use serde::{Serialize, de::DeserializeOwned};

/// The layout that this version writes. A file with a higher one is refused.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// Single values, by name, in postcard's encoding. See [`meta`].
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// Hunt number → the hunt (postcard).
pub(super) const HUNTS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("hunts");
/// Hunt number → its totals and the number of its pending finds (postcard).
pub(super) const TOTALS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("totals");
/// Hunt and treasure number of each treasure that was found at least once.
pub(super) const FOUND: TableDefinition<'_, (u32, u32), ()> = TableDefinition::new("found");
/// Player's name → number. With [`NAMES`] the only place that knows names (rule 12).
pub(super) const PLAYERS: TableDefinition<'_, &str, u64> = TableDefinition::new("players");
/// Player's number → name: the same map the other way round, for exports.
pub(super) const NAMES: TableDefinition<'_, u64, &str> = TableDefinition::new("names");
/// Digest of an erased name under the store's secret → when it was erased.
pub(super) const ERASED_NAMES: TableDefinition<'_, &[u8], u64> =
    TableDefinition::new("erased_names");
/// Numbers of erased players → when.
pub(super) const ERASED: TableDefinition<'_, u64, u64> = TableDefinition::new("erased");
/// Wallets, pending finds, the ledger and remembered ids; see [`Row`].
pub(super) const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// When a wallet's earliest pending find runs out; see [`due_key`]. Drives expiry.
pub(super) const DUE: TableDefinition<'_, &[u8], ()> = TableDefinition::new("due");
/// Feed position (from 1, without gaps) → hunt number, player, sequence number of the ledger entry.
pub(super) const FEED: TableDefinition<'_, u64, (u32, u64, u64)> = TableDefinition::new("feed");

/// Names in [`META`].
pub(super) mod meta {
    /// `u32`: the layout's version.
    pub(in super::super) const SCHEMA: &str = "schema";
    /// `[u8; 16]`: random, written once.
    pub(in super::super) const IDENTITY: &str = "identity";
    /// `[u8; 32]`: random, written once; keys the digests of erased names.
    pub(in super::super) const SECRET: &str = "secret";
    /// `u64`: the epoch that cursors carry; the millisecond at which it began.
    pub(in super::super) const EPOCH: &str = "epoch";
    /// `(u64, u64, u64)`: a random number made at each start, device and inode of the file; see `beside`.
    pub(in super::super) const INCARNATION: &str = "incarnation";
    /// `u64`: the latest time at which the store is known to have been up.
    pub(in super::super) const ALIVE_AT: &str = "alive_at";
    /// `Outages`.
    pub(in super::super) const OUTAGES: &str = "outages";
    /// `u32`: the number of the next hunt.
    pub(in super::super) const NEXT_HUNT: &str = "next_hunt";
    /// `u64`: the feed position up to which ids past their time have been forgotten.
    pub(in super::super) const FORGOTTEN_TO: &str = "forgotten_to";
}

/// Bytes of the prefix that all rows of one player in one hunt share.
pub(super) const PREFIX_BYTES: usize = 12;

/// What a row of [`ROWS`] is. Its key is the prefix, this kind as one byte, and what tells rows of the kind apart.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    /// The wallet (postcard).
    Wallet,
    /// A pending find, by the sequence number of its entry. The value is empty: the ledger has the find.
    Pending(u64),
    /// A ledger entry (postcard), by its sequence number.
    Ledger(u64),
    /// A once-only treasure that was found, by its number → the entry's sequence number.
    Once(u32),
    /// A client's find id → the entry's sequence number.
    Client(&'a FindId),
    /// An adjustment's key → the entry's sequence number.
    Adjustment(&'a str),
    /// A find that was reinstated, by the sequence number of its entry. The value is empty.
    Reinstated(u64),
}

pub(super) const KIND_WALLET: u8 = 0;
pub(super) const KIND_PENDING: u8 = 1;
pub(super) const KIND_LEDGER: u8 = 2;

/// The prefix of a player's rows in a hunt.
pub(super) fn prefix(hunt: u32, player: PlayerId) -> [u8; PREFIX_BYTES] {
    let mut prefix = [0; PREFIX_BYTES];
    prefix[..4].copy_from_slice(&hunt.to_be_bytes());
    prefix[4..].copy_from_slice(&player.0.to_be_bytes());
    prefix
}

/// A row's key.
pub(super) fn row_key(prefix: [u8; PREFIX_BYTES], row: Row<'_>) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_BYTES + 9);
    key.extend_from_slice(&prefix);
    match row {
        Row::Wallet => key.push(KIND_WALLET),
        Row::Pending(seq) => {
            key.push(KIND_PENDING);
            key.extend_from_slice(&seq.to_be_bytes());
        }
        Row::Ledger(seq) => {
            key.push(KIND_LEDGER);
            key.extend_from_slice(&seq.to_be_bytes());
        }
        Row::Once(treasure) => {
            key.push(3);
            key.extend_from_slice(&treasure.to_be_bytes());
        }
        Row::Client(id) => {
            key.push(4);
            key.extend_from_slice(id.as_str().as_bytes());
        }
        Row::Adjustment(name) => {
            key.push(5);
            key.extend_from_slice(name.as_bytes());
        }
        Row::Reinstated(seq) => {
            key.push(6);
            key.extend_from_slice(&seq.to_be_bytes());
        }
    }
    key
}

/// Takes a row's key apart: hunt, player, kind, and the rest as a big-endian number where it is 8 bytes long.
pub(super) fn parse_row_key(key: &[u8]) -> Option<(u32, PlayerId, u8, u64)> {
    let hunt = u32::from_be_bytes(key.get(..4)?.try_into().ok()?);
    let player = u64::from_be_bytes(key.get(4..PREFIX_BYTES)?.try_into().ok()?);
    let kind = *key.get(PREFIX_BYTES)?;
    let number = key[PREFIX_BYTES + 1..]
        .try_into()
        .map_or(0, u64::from_be_bytes);
    Some((hunt, PlayerId(player), kind, number))
}

/// The key of a [`DUE`] row: time, hunt, player, so that what falls due first comes first.
pub(super) fn due_key(due_at: Millis, hunt: u32, player: PlayerId) -> [u8; 20] {
    let mut key = [0; 20];
    key[..8].copy_from_slice(&due_at.to_be_bytes());
    key[8..].copy_from_slice(&prefix(hunt, player));
    key
}

/// Takes a [`DUE`] key apart.
pub(super) fn parse_due_key(key: &[u8]) -> Option<(Millis, u32, PlayerId)> {
    let due_at = u64::from_be_bytes(key.get(..8)?.try_into().ok()?);
    let hunt = u32::from_be_bytes(key.get(8..12)?.try_into().ok()?);
    let player = u64::from_be_bytes(key.get(12..20)?.try_into().ok()?);
    Some((due_at, hunt, PlayerId(player)))
}

/// Encodes a value.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Fault> {
    Ok(postcard::to_stdvec(value)?)
}

/// Decodes a value.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    Ok(postcard::from_bytes(bytes)?)
}

/// Why the file could not be read or written. Ends the batch: nothing of it is kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// From redb.
    #[error(transparent)]
    Redb(#[from] redb::Error),
    /// A value that cannot be decoded.
    #[error("a stored value cannot be decoded: {0}")]
    Codec(#[from] postcard::Error),
    /// Something that must be there is not.
    #[error("{0}")]
    Missing(&'static str),
}

macro_rules! fault_from {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for Fault {
            fn from(error: redb::$error) -> Self {
                Self::Redb(error.into())
            }
        })*
    };
}
fault_from!(StorageError, TableError, TransactionError, CommitError);
