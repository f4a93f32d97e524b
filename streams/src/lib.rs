//! Event feeds and rolling windows over Redis Streams.
mod continuity;
mod entry_id;
pub mod keys;
mod partition;
pub mod slot;
pub use continuity::*;
pub use entry_id::*;
pub use partition::*;
