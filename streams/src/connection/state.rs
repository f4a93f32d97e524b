//! What is known of a connection from outside.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::time::Instant;

use super::server::{History, ServerInfo, Version};
use crate::endpoint::{Endpoint, ResolveError};
use crate::error::ServerError;

/// The state of a [`Connection`](super::Connection).
#[derive(Clone, Debug)]
pub enum State {
    /// The first attempt to connect is under way.
    Connecting,
    /// There is a link to a master.
    Up(Up),
    /// There is no link; attempts go on.
    Down {
        /// Since when.
        since: Instant,
        /// Why the link was lost, or why the last attempt to make one failed.
        reason: Arc<DownReason>,
    },
}

/// A link that is up.
#[derive(Clone, Debug)]
pub struct Up {
    /// Its number: the first has 1, each new one is one higher.
    pub link: u64,
    /// What the server said of itself.
    pub server: Arc<ServerInfo>,
    /// The history that the server before this one had, if it was **another one**: writes may have been lost between the
    /// two. `None` for the first server, and for one whose history is unchanged. A reader of the states that remembers the
    /// last [`ServerInfo::history`] it saw cannot miss a change.
    pub changed_from: Option<History>,
}

impl State {
    /// The link, if it is up.
    pub fn up(&self) -> Option<&Up> {
        match self {
            Self::Up(up) => Some(up),
            _ => None,
        }
    }
}

/// Why there is no link.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownReason {
    /// The server's address was not found.
    #[error("the server's address was not found")]
    Resolve(#[from] ResolveError),
    /// No byte stream could be opened.
    #[error("dialling failed")]
    Dial(#[source] Arc<io::Error>),
    /// Dialling, authenticating or looking at the server took too long.
    #[error("connecting took longer than {0:?}")]
    ConnectTimedOut(Duration),
    /// The stream broke while the link was set up.
    #[error("the link broke while it was set up")]
    Setup(#[source] RedisError),
    /// User or password are not right, or the user may not look at the server.
    #[error("the server refused the login")]
    Login(#[source] RedisError),
    /// The server is a replica (`slave`) or something else that takes no writes.
    #[error("the server is not a master but says its role is {role}")]
    NotMaster {
        /// What it says.
        role: String,
    },
    /// The server is older than [`Config::version_min`](crate::Config::version_min).
    #[error("the server has version {found}, but at least {needed} is needed")]
    TooOld {
        /// Its version.
        found: Version,
        /// The oldest that will do.
        needed: Version,
    },
    /// The server is a node of a cluster: it holds only some of the keys.
    #[error("the server is a node of a cluster, which needs a redis+cluster:// URL")]
    ClusterNode,
    /// The server is reading its data from disk.
    #[error("the server is loading its data")]
    Loading,
    /// What the caller does with each new link failed.
    #[error("preparing the link failed")]
    Prepare(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// There was no answer so many times in a row.
    #[error("{0} time-outs in a row")]
    TimedOut(u32),
    /// A command was answered with an error that says this server is not to be talked to: `READONLY`, `MASTERDOWN`,
    /// `LOADING`, `UNBLOCKED`.
    #[error("the server is not a usable master")]
    Refused(#[source] ServerError),
    /// A probe was answered with something that was not understood.
    #[error("the server's description of itself was not understood")]
    NotUnderstood,
    /// The server is no node of a cluster, though the URL says that it is.
    #[error("the server is no node of a cluster: use redis:// for it")]
    NotACluster,
    /// Some slots of the cluster have no primary that can be reached.
    #[error("some slots of the cluster have no primary that is known")]
    NotCovered,
    /// A primary of the cluster is out of reach.
    #[error("the primary at {endpoint}")]
    Node {
        /// Where it is.
        endpoint: Endpoint,
        /// Why.
        #[source]
        reason: Arc<DownReason>,
    },
    /// The server closed the link, or the network did.
    #[error("the link was closed")]
    Closed,
    /// The resolver says that the master is elsewhere now.
    #[error("the master moved to another address")]
    Moved,
    /// [`Connection::reconnect`](super::Connection::reconnect) was called.
    #[error("a new link was asked for")]
    Asked,
}

impl DownReason {
    /// Whether a new attempt will fail in the same way until somebody changes the settings or the server. Attempts go on
    /// all the same, but a program that starts should end here.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self.root(),
            Self::Login(_) | Self::TooOld { .. } | Self::ClusterNode | Self::NotACluster
        )
    }

    /// The reason itself, whichever of a cluster's primaries it is about.
    pub fn root(&self) -> &Self {
        match self {
            Self::Node { reason, .. } => reason.root(),
            reason => reason,
        }
    }
}
