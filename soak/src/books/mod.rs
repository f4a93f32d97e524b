//! What clients were told, on disk: one append-only file of fixed records, written by a thread of its own through a bounded
//! channel, so that the generator's loop never waits for a disk. At the end they are sorted (externally, in constant memory)
//! by player and find, and held against each other and the exported ledger: a credit told twice 40 hours apart lies side by
//! side then.

//!
//! - [`mod@writer`]: the thread, and going on after a crash.
//! - [`segment`]: the files.
//! - [`sort`]: sorting in constant memory.
//! - [`ledger`]: the product's export, read into the same numbers.
//! - [`mod@compare`]: the two held against each other.
//! - [`ids`]: how users and finds are named.

pub mod compare;
mod fate;
pub mod ids;
mod ledger;
mod segment;
pub mod sort;
#[cfg(test)]
mod tests;
mod writer;

pub use compare::compare;
pub use segment::{BLOCK_ENTRIES_MAX, ENTRY_BYTES, SEGMENT_BYTES_MAX};
pub use writer::{
    LOST_ENTRIES_MAX, OUT_OF_ORDER_MAX, QUEUE_ENTRIES_MAX, UNSYNCED_ENTRIES_MAX, UNSYNCED_MAX,
    Writer, resume, writer,
};

/// Takes what clients are told.
pub trait Books {
    /// Enters it. False: there was no room, or the books cannot be written any more; the interval has no verdict then. Never
    /// blocks.
    fn enter(&mut self, entry: Entry) -> bool;
}

/// Something a client was told, or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// A find was sent (its outcome is not known yet). Every find is entered before it leaves.
    Sent,
    /// A find was acknowledged.
    Acknowledged,
    /// A find was refused, with nothing recorded.
    Refused,
    /// A find was shown as credited, for the first time: not where an answer shows everything again (`reset`).
    Credited,
    /// A find was shown as expired.
    Expired,
}

impl Told {
    const ALL: [Self; 5] = [
        Self::Sent,
        Self::Acknowledged,
        Self::Refused,
        Self::Credited,
        Self::Expired,
    ];

    /// As in files.
    const fn code(self) -> u8 {
        match self {
            Self::Sent => 1,
            Self::Acknowledged => 2,
            Self::Refused => 3,
            Self::Credited => 4,
            Self::Expired => 5,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|told| told.code() == code)
    }
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
