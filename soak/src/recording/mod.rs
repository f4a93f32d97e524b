//! Recordings of real traffic: when which user asked for what kind of thing, and nothing else. No names, tokens, addresses,
//! bodies or answers: users are numbers in the order in which they first appear.
//!
//! # The format, version 1
//!
//! A recording is a file, or a directory whose `*.troverec` files are read in the order of their names. Integers are
//! little-endian; a *varint* is LEB128, at most 10 bytes.
//!
//! ```text
//! file   = "TROVEREC" version:u8(1) length:u32 header:JSON block*
//! header = {"started_ms": when it began, by the wall clock; the same in all files of a directory}
//! block  = length:u32 crc:u32 payload        length of the payload, 1 to 65,536; CRC-32 (IEEE) of the payload
//! payload = event+
//! event  = time:varint user:varint kind:u8
//! ```
//!
//! - `time`: of the first event of a block, microseconds since the recording's beginning; of the others, since the event
//!   before. Times never go backwards.
//! - `user`: from 1.
//! - `kind`: 0 poll, 1 heartbeat, 2 find, 3 finds in bulk, 4 history, 5 catalogue, 6 anything else.
//!
//! A block stands for itself, so that what was written before a crash can be read: a file ends where a block is cut off or
//! its checksum is wrong, and reading says so. Unknown header members and kinds are skipped. One event takes about 5 bytes,
//! 48,000 requests a second about 240 KB a second.

mod read;
mod replay;
mod write;

#[cfg(test)]
mod tests;

pub use read::{Reader, files};
pub use replay::Replay;
pub use write::Writer;

use crate::case::Kind;

/// Begins every file.
pub const MAGIC: &[u8; 8] = b"TROVEREC";
/// The version of the format.
pub const VERSION: u8 = 1;
/// The longest payload of a block, in bytes.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// The longest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Anything that is no [`Kind`].
const OTHER: u8 = 6;

/// A request of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Microseconds since the recording's beginning.
    pub at_us: u64,
    /// Who, from 1.
    pub user: u64,
    /// What; none: anything else.
    pub kind: Option<Kind>,
}

fn code(kind: Option<Kind>) -> u8 {
    match kind {
        Some(Kind::Poll) => 0,
        Some(Kind::Heartbeat) => 1,
        Some(Kind::Find) => 2,
        Some(Kind::BulkFind) => 3,
        Some(Kind::History) => 4,
        Some(Kind::Catalogue) => 5,
        None => OTHER,
    }
}

fn kind(code: u8) -> Option<Kind> {
    Kind::ALL
        .into_iter()
        .find(|kind| self::code(Some(*kind)) == code)
}
