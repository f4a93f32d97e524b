//! The partitions' feeds, followed on one server with one blocking read or on a cluster's primaries each by itself.

use super::durable::Sent;
use std::time::Duration;
use trove_streams::{ClusterTail, EntryId, Event, Router, Tail};

/// Entries a stream and read.
const ENTRIES_A_READ: usize = 500;

/// The feeds of one server, or of a cluster's primaries.
pub(super) enum Feeds {
    One(Tail),
    Many(ClusterTail),
}

impl Feeds {
    pub(super) fn new(
        reads: Router,
        feeds: impl Iterator<Item = (String, EntryId)>,
        block: Duration,
    ) -> Result<Self, trove_streams::Error> {
        let feeds: Vec<(String, EntryId)> = feeds.collect();
        if reads.is_cluster() {
            let tail = ClusterTail::new(reads, feeds, block, ENTRIES_A_READ);
            return Ok(Self::Many(tail));
        }
        let Some(connection) = feeds.first().and_then(|(key, _)| reads.server_of(key)) else {
            return Err(trove_streams::Error::NotConnected { reason: None });
        };
        let tail = Tail::new(connection, feeds, block, ENTRIES_A_READ)?;
        Ok(Self::One(tail))
    }

    pub(super) async fn next(&mut self) -> Result<Vec<Event>, trove_streams::Error> {
        match self {
            Self::One(tail) => tail.next().await,
            Self::Many(tail) => Ok(tail.next().await),
        }
    }

    pub(super) fn position(&self, feed: usize) -> EntryId {
        match self {
            Self::One(tail) => tail.position(feed),
            Self::Many(tail) => tail.position(feed),
        }
    }

    /// Reads nothing more of a feed until it is resumed. Of one server's, nothing is read meanwhile anyway.
    pub(super) fn hold(&mut self, feed: usize) {
        if let Self::Many(tail) = self {
            tail.hold(feed);
        }
    }

    /// What was handed out of a feed has been dealt with.
    pub(super) fn taken(&mut self, feed: usize) {
        if let Self::Many(tail) = self {
            tail.taken(feed);
        }
    }

    pub(super) fn resume(&mut self, feed: usize, position: EntryId) {
        match self {
            Self::One(tail) => tail.resume(feed, position),
            Self::Many(tail) => tail.resume(feed, position),
        }
    }

    /// The link over which a feed was last read.
    pub(super) fn read_over(&self, feed: usize) -> Option<Sent> {
        let (link, history, endpoint) = match self {
            Self::One(tail) => tail
                .read_over()
                .map(|(link, history)| (link, history, None))?,
            Self::Many(tail) => {
                let (endpoint, link, history) = tail.read_over(feed)?;
                (*link, history, endpoint.clone())
            }
        };
        Some(Sent::over(link, endpoint, history.clone()))
    }

    /// For how long a feed has been silent, after a read.
    pub(super) fn silent_ms(&self, feed: usize) -> u64 {
        match self {
            Self::One(..) => 0,
            Self::Many(tail) => tail.silent_for(feed).map_or(u64::MAX, |silent| {
                u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)
            }),
        }
    }
}
