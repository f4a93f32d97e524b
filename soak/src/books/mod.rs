//! What clients were told, on disk: one append-only file of fixed records, written by a thread of its own through a bounded
//! channel, so that the generator's loop never waits for a disk. At the end they are sorted (externally, in constant memory)
//! by player and find, and held against each other and the exported ledger: a credit told twice 40 hours apart lies side by
//! side then.

pub mod ids;

/// Something a client was told, or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// A find was sent (its outcome is not known yet). Every find is entered before it leaves.
    Sent,
    /// A find was acknowledged.
    Acknowledged,
    /// A find was refused, with nothing recorded.
    Refused,
    /// A find was shown as credited.
    Credited,
    /// A find was shown as expired.
    Expired,
}

/// One entry. Ids of finds are the harness's own numbers (`f` and the number in decimal), unique in the run, so that an entry is of fixed size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The user's number (players are named by it).
    pub user: u32,
    /// The find's number.
    pub find: u64,
    /// What.
    pub told: Told,
    /// Coins, as sent or told.
    pub coins: u64,
    /// By the server's clock, milliseconds since the epoch: `found_at` for finds and credits as told, 0 where not told.
    pub found_at: u64,
    /// The wallet's sequence after the poll that told (from its cursor), 0 for finds.
    pub seq: u64,
    /// The run's clock when it was told, milliseconds.
    pub at_ms: u64,
}
