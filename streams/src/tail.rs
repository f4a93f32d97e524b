//! Reading several feeds as they grow.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::sleep;

use crate::EntryId;
use crate::connection::{Connection, History, Up};
use crate::continuity::{Continuity, Step, step};
use crate::error::Error;
use crate::feed::{self, Entry};

/// Follows several feeds from given positions with one blocking read.
///
/// **Continuity.** Each entry is compared with the one before it by the feed's counter, and each feed with its position when
/// the link, or the server's history, is a new one. A feed that does not go on from where this reader is gives one
/// [`Event::Broken`] and is **held**: nothing more of it is read until [`Tail::resume`] says from where. So no entry is ever
/// handed out on top of a state that it does not follow.
///
/// **Cost.** While nothing happens there is one read a [`Tail::block`], and nothing else.
///
/// **Bounds.** One call of [`Tail::next`] returns at most `count` entries a feed.
#[derive(Debug)]
pub struct Tail {
    connection: Connection,
    feeds: Vec<Followed>,
    by_key: HashMap<Vec<u8>, usize>,
    block: Duration,
    count: usize,
    /// The link and history with which every feed's position was last compared.
    compared_with: Option<(u64, History)>,
}

#[derive(Debug)]
struct Followed {
    key: String,
    position: EntryId,
    held: bool,
}

/// Something that a [`Tail`] saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next entry of a feed.
    Entry {
        /// The feed's place among those that the tail was made with.
        feed: usize,
        /// The entry.
        entry: Entry,
    },
    /// A feed does not go on from where this reader is; it is held.
    Broken {
        /// The feed's place.
        feed: usize,
        /// What is wrong; never [`Continuity::Intact`].
        how: Continuity,
    },
}

impl Tail {
    /// Follows `feeds`, each by its key and the last id that was seen of it, over `connection`, which should carry nothing
    /// else. Each read blocks for up to `block` (at least 1 ms) and returns up to `count` entries a feed.
    ///
    /// Fails if `block` is longer than the connection's [`Config::block_max`](crate::Config::block_max).
    pub fn new(
        connection: Connection,
        feeds: impl IntoIterator<Item = (String, EntryId)>,
        block: Duration,
        count: usize,
    ) -> Result<Self, Error> {
        let max = connection.config().block_max;
        if block > max {
            return Err(Error::BlocksTooLong { asked: block, max });
        }
        let feeds: Vec<Followed> = feeds
            .into_iter()
            .map(|(key, position)| Followed {
                key,
                position,
                held: false,
            })
            .collect();
        Ok(Self {
            connection,
            by_key: feeds
                .iter()
                .enumerate()
                .map(|(index, feed)| (feed.key.clone().into_bytes(), index))
                .collect(),
            feeds,
            // BLOCK 0 would block without end.
            block: block.max(Duration::from_millis(1)),
            count: count.max(1),
            compared_with: None,
        })
    }

    /// How long one read blocks.
    pub fn block(&self) -> Duration {
        self.block
    }

    /// The last id that was handed out of the feed at place `feed`.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn position(&self, feed: usize) -> EntryId {
        self.feeds[feed].position
    }

    /// Whether the feed at place `feed` is held.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn is_held(&self, feed: usize) -> bool {
        self.feeds[feed].held
    }

    /// The link, by its number, and the history of which the feeds were last read.
    pub fn read_over(&self) -> Option<(u64, &History)> {
        let (link, history) = self.compared_with.as_ref()?;
        Some((*link, history))
    }

    /// Reads the feed at place `feed` on from `position`, whether it was held or not.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn resume(&mut self, feed: usize, position: EntryId) {
        let feed = &mut self.feeds[feed];
        feed.position = position;
        feed.held = false;
    }

    /// What is new. Empty when nothing came within [`Tail::block`], which shows that the link is alive.
    ///
    /// Waits for a link as long as for an answer, then fails; call it again after any error, nothing is lost or handed out
    /// twice. Its future may be dropped likewise.
    pub async fn next(&mut self) -> Result<Vec<Event>, Error> {
        let up = self
            .connection
            .wait_up(self.connection.config().response_timeout)
            .await?;
        let mut events = self.compare_positions(&up).await?;
        if !events.is_empty() {
            return Ok(events);
        }
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT").arg(self.count);
        cmd.arg("BLOCK")
            .arg(u64::try_from(self.block.as_millis()).unwrap_or(u64::MAX));
        cmd.arg("STREAMS");
        let followed = || self.feeds.iter().filter(|feed| !feed.held);
        if followed().next().is_none() {
            sleep(self.block).await;
            return Ok(events);
        }
        for feed in followed() {
            cmd.arg(&feed.key);
        }
        for feed in followed() {
            cmd.arg(feed.position);
        }
        let value = self.connection.query(&cmd).await?;
        let streams =
            feed::parse_streams(value).map_err(|error| Error::unexpected("XREAD", error))?;
        for (key, entries) in streams {
            let Some(index) = self.by_key.get(&key).copied() else {
                continue;
            };
            for entry in entries {
                // What follows a break is not handed out; it is read again after `resume`.
                if self.feeds[index].held {
                    break;
                }
                events.extend(self.take(index, entry));
            }
        }
        Ok(events)
    }

    /// `None` for an entry that was handed out before, which a server that keeps to its protocol never sends.
    fn take(&mut self, index: usize, entry: Entry) -> Option<Event> {
        let feed = &mut self.feeds[index];
        let how = match step(feed.position, entry.id) {
            Step::Next => {
                feed.position = entry.id;
                return Some(Event::Entry { feed: index, entry });
            }
            Step::Duplicate => return None,
            Step::Gap(lost) => Continuity::Gap { lost },
            Step::Rollback => Continuity::RolledBack { last: entry.id },
        };
        feed.held = true;
        Some(Event::Broken { feed: index, how })
    }

    /// Compares every feed with its position if the server may not be the one that they were last compared with.
    async fn compare_positions(&mut self, up: &Up) -> Result<Vec<Event>, Error> {
        let with = (up.link, up.server.history.clone());
        if self.compared_with.as_ref() == Some(&with) {
            return Ok(Vec::new());
        }
        let followed: Vec<usize> = (0..self.feeds.len())
            .filter(|index| !self.feeds[*index].held)
            .collect();
        let questions: Vec<(&str, EntryId)> = followed
            .iter()
            .map(|index| (self.feeds[*index].key.as_str(), self.feeds[*index].position))
            .collect();
        let answers = feed::continuities(&self.connection, &questions).await?;
        let mut events = Vec::new();
        for (index, how) in followed.into_iter().zip(answers) {
            if !how.is_intact() {
                self.feeds[index].held = true;
                events.push(Event::Broken { feed: index, how });
            }
        }
        self.compared_with = Some(with);
        Ok(events)
    }
}
