//! Event feeds and rolling windows over Redis Streams, for servers that must not lose or double an event: what Redis does
//! not tell by itself, this crate finds out.
//!
//! - [`EntryId`]: the id of an entry is a time and a counter that grows by one, so a reader sees gaps and rollbacks
//!   ([`GapDetector`], [`feed::continuity`]).
//! - [`feed`]: append, read from a position or a window of time, trim without passing the slowest reader. [`Tail`] follows
//!   several feeds with one blocking read and never hands out an entry that does not follow the one before.
//! - [`Connection`]: one link that many commands share, supervised: it is replaced when the server falls silent, is
//!   demoted, or moves (by Sentinel), and everything about it is bounded ([`Config`]). A failed command says whether it may
//!   have been carried out ([`Error::outcome`]). [`Prepare`] sees each new server before any command does.
//! - [`Router`]: one server, or the primaries of a cluster, each with such a connection; redirections are followed, also from
//!   within a [`Batch`], and [`ClusterTail`] follows feeds that lie on several primaries.
//! - [`fence`]: waiting until replicas, or the disk, have what was written; one wait for all who ask.
//! - [`Script`]: Lua scripts run by their hash, loaded when a server does not know them, in a [`Batch`] too; tests can
//!   replace their clock.
//! - [`keys`], [`Partitions`], [`slot`]: every key of a store in one file, spread evenly over a cluster's slots.
//!
//! Redis 6.2 or newer, or Valkey. It needs a tokio runtime, of one thread if you like.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use trove_streams::{Config, Connection, EntryId, Event, Tail, feed};
//!
//! let url = "redis://127.0.0.1:6379".parse()?;
//! let commands = Connection::to(&url, Config::commands())?.start();
//! let block = Duration::from_millis(200);
//! let reads = Connection::to(&url, Config::blocking(block))?.start();
//! commands.wait_up(Duration::from_secs(5)).await?;
//!
//! let last = feed::last_id(&commands, "finds").await?;
//! let next = last.following(1_700_000_000_000).ok_or("the counter is used up")?;
//! feed::append(&commands, "finds", next, &[("coins", 5)]).await?;
//!
//! let mut tail = Tail::new(reads, [("finds".to_owned(), last)], block, 100)?;
//! for event in tail.next().await? {
//!     match event {
//!         Event::Entry { entry, .. } => println!("{}: {:?}", entry.id, entry.field("coins")),
//!         Event::Broken { how, .. } => println!("reload what was derived from the feed: {how:?}"),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! # What it does not do
//! It speaks TLS with the feature `tls`
//! (`TlsDial`), or over a [`Dial`] of yours. It does not use consumer groups: readers keep their own positions.
//!
//! # Connections: what is noticed, and how
//!
//! | what happens | noticed by | then |
//! |---|---|---|
//! | the server is killed, or closes the link | the end of the stream | commands under way fail with an unknown outcome, at once; a new link after a jittered pause |
//! | it falls silent (stopped, a network that drops packets) | `timeouts_max` time-outs in a row; the first one starts probes, so traffic is not needed | the link is given up, as above |
//! | it is slow for one moment | time-outs of commands under way together count once | nothing |
//! | it is demoted | `READONLY`, `UNBLOCKED`, or the role in the next probe | the address is resolved again; a replica is refused by `ROLE` |
//! | it loads its data, or is a replica without its master | `LOADING`, `MASTERDOWN` | as above, until it is done |
//! | Sentinel fails over | `+switch-master` to another server than the link's, besides all of the above | the sentinels are asked; the newest `config-epoch` wins |
//! | it is another one, or lost its history | `run_id` and `master_replid`, read before anything is sent | [`Prepare`] runs first; [`Up::changed_from`] is set |
//! | it is too old, a cluster's node where one server was meant (or the reverse), or refuses the login | looking at it after connecting | [`Connection::wait_up`] ends at once with the reason; attempts go on |
//!
//! A replication id also changes without any loss, when a master that has no backlog gets its first replica or has had none for
//! an hour; the crate reports it like any other change, as the two cannot be told apart for certain.

mod cluster;
mod config;
mod connection;
mod continuity;
mod endpoint;
mod entry_id;
mod error;
pub mod feed;
pub mod fence;
pub mod keys;
mod partition;
mod router;
mod script;
pub mod slot;
mod tail;

#[cfg(feature = "tls")]
pub use endpoint::TlsDial;

/// The Redis client whose commands and values this crate takes and gives.
pub use redis;

pub use cluster::{ClusterTail, NODES_MAX};
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
pub use router::{Commands, Router};
pub use script::{Call, Clock, Script, ScriptError};
pub use tail::{Event, Tail};
