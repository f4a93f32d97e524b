#![doc = include_str!("../README.md")]

mod config;
mod connection;
mod continuity;
mod endpoint;
mod entry_id;
mod error;
pub mod feed;
pub mod keys;
mod partition;
mod script;
pub mod slot;
mod tail;

/// The Redis client whose commands and values this crate takes and gives.
pub use redis;

pub use config::Config;
pub use connection::{
    Batch, Builder, Connection, DownReason, Fresh, History, ParseVersionError, Prepare, Replies,
    ServerInfo, State, Up, Version,
};
pub use continuity::{Continuity, GapDetector, Step, step};
pub use endpoint::{
    BoxFuture, Credentials, Dial, Duplex, Endpoint, Fixed, ResolveError, Resolver, Sentinel,
    StoreUrl, Target, TcpDial, UrlError,
};
pub use entry_id::{EntryId, ParseEntryIdError};
pub use error::{Error, ErrorCode, Outcome, ServerError};
pub use partition::{
    PARTITIONS_DEFAULT, PARTITIONS_MAX, Partition, PartitionCountError, Partitions,
};
pub use script::{Call, Clock, Script, ScriptError};
pub use tail::{Event, Tail};
