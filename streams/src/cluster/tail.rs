//! Reading the feeds of a cluster as they grow.

use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::{Batch, Connection, History};
use crate::continuity::{Continuity, Step, step};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::feed::{self, Entry};
use crate::tail::Event;
use crate::{EntryId, Router};

/// The pause between two reads of a primary that had nothing new.
const READ_PAUSE: Duration = Duration::from_millis(5);

/// Follows feeds that lie on the primaries of a cluster. Like [`Tail`](crate::Tail), but a blocking read may not name keys
/// of several slots, and one that blocks for one of them holds up the others: each primary is read without blocking, all of
/// its feeds in one write, every few milliseconds. Primaries are read independently, so one that is silent holds up its own
/// feeds only.
#[derive(Debug)]
pub struct ClusterTail {
    router: Router,
    feeds: Vec<Followed>,
    block: Duration,
    count: usize,
    reads: JoinSet<Read>,
}

/// The link and history that a feed's position was last compared with.
type Compared = (Option<Endpoint>, u64, History);

#[derive(Debug)]
struct Followed {
    key: String,
    position: EntryId,
    held: bool,
    /// A read of it is under way.
    reading: bool,
    compared: Option<Compared>,
    heard_at: Option<Instant>,
}

/// What a read of one primary is asked for, and gave, of each of its feeds.
#[derive(Debug)]
struct Read {
    feeds: Vec<(usize, EntryId)>,
    compared: Compared,
    found: Result<Vec<Found>, Error>,
}

#[derive(Debug)]
enum Found {
    Broken(Continuity),
    Entries(Vec<Entry>),
    /// The feed is no longer there, or its slot is moving; read again.
    Elsewhere,
}

impl ClusterTail {
    /// Follows `feeds`, each by its key and the last id that was seen of it. [`ClusterTail::next`] waits for `block` at most,
    /// and one read returns up to `count` entries a feed.
    pub fn new(
        router: Router,
        feeds: impl IntoIterator<Item = (String, EntryId)>,
        block: Duration,
        count: usize,
    ) -> Self {
        let followed = |(key, position)| Followed {
            key,
            position,
            held: false,
            reading: false,
            compared: None,
            heard_at: None,
        };
        Self {
            router,
            feeds: feeds.into_iter().map(followed).collect(),
            block,
            count: count.max(1),
            reads: JoinSet::new(),
        }
    }

    /// The last id that was handed out of the feed at place `feed`.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn position(&self, feed: usize) -> EntryId {
        self.feeds[feed].position
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

    /// Reads nothing more of the feed at place `feed` until [`ClusterTail::resume`].
    ///
    /// # Panics
    /// If there is no such place.
    pub fn hold(&mut self, feed: usize) {
        self.feeds[feed].held = true;
    }

    /// What was handed out of the feed at place `feed` has been dealt with: until this is said, the feed counts as silent.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn taken(&mut self, feed: usize) {
        self.feeds[feed].heard_at = Some(Instant::now());
    }

    /// The primary, the link to it by its number, and the history of which the feed at place `feed` was last read.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn read_over(&self, feed: usize) -> Option<(&Option<Endpoint>, &u64, &History)> {
        let (endpoint, link, history) = self.feeds[feed].compared.as_ref()?;
        Some((endpoint, link, history))
    }

    /// For how long the feed at place `feed` has not been heard from (see also [`ClusterTail::taken`]); `None` before it was.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn silent_for(&self, feed: usize) -> Option<Duration> {
        Some(self.feeds[feed].heard_at?.elapsed())
    }

    /// What is new, of one primary or of several. Empty when nothing came within the time to block. Its future may be
    /// dropped: nothing is lost or handed out twice.
    pub async fn next(&mut self) -> Vec<Event> {
        let deadline = Instant::now() + self.block;
        loop {
            self.start_reads();
            if self.reads.is_empty() {
                sleep(READ_PAUSE.min(self.block)).await;
            }
            let joined = match timeout_at(deadline, self.reads.join_next()).await {
                Ok(Some(Ok(read))) => self.take(read),
                Ok(_) => Vec::new(),
                Err(_) => return Vec::new(),
            };
            if !joined.is_empty() || Instant::now() >= deadline {
                return joined;
            }
        }
    }

    /// Starts a read of each primary that has feeds of which none is being read.
    fn start_reads(&mut self) {
        let mut groups: Vec<(Connection, Compared, Vec<usize>)> = Vec::new();
        for index in 0..self.feeds.len() {
            let feed = &self.feeds[index];
            if feed.held || feed.reading {
                continue;
            }
            let Some(connection) = self.router.server_of(&feed.key) else {
                continue;
            };
            let Some(up) = connection.state().up().cloned() else {
                continue;
            };
            let link = (
                up.server.endpoint.clone(),
                up.link,
                up.server.history.clone(),
            );
            match groups.iter_mut().find(|(_, of, _)| *of == link) {
                Some((_, _, feeds)) => feeds.push(index),
                None => groups.push((connection, link, vec![index])),
            }
        }
        for (connection, compared, feeds) in groups {
            let asked: Vec<(String, EntryId, bool)> = feeds
                .iter()
                .map(|index| {
                    let feed = &mut self.feeds[*index];
                    feed.reading = true;
                    let known = feed.compared.as_ref() == Some(&compared);
                    (feed.key.clone(), feed.position, known)
                })
                .collect();
            let fresh = feeds
                .iter()
                .any(|index| self.feeds[*index].heard_at.is_none());
            let pause = if fresh { Duration::ZERO } else { READ_PAUSE };
            let count = self.count;
            self.reads.spawn(async move {
                sleep(pause).await;
                let found = read(&connection, &asked, count).await;
                let positions = asked.iter().map(|(_, position, _)| *position);
                Read {
                    feeds: feeds.iter().copied().zip(positions).collect(),
                    compared,
                    found,
                }
            });
        }
    }

    fn take(&mut self, read: Read) -> Vec<Event> {
        let mut events = Vec::new();
        let found = match read.found {
            Ok(found) => found,
            Err(_) => {
                for (index, _) in read.feeds {
                    self.feeds[index].reading = false;
                }
                return events;
            }
        };
        for ((index, asked), found) in read.feeds.into_iter().zip(found) {
            let feed = &mut self.feeds[index];
            feed.reading = false;
            // Resumed from elsewhere since: what was read is of before.
            if feed.position != asked || feed.held {
                continue;
            }
            match found {
                Found::Elsewhere => feed.compared = None,
                Found::Broken(how) => {
                    feed.held = true;
                    feed.compared = Some(read.compared.clone());
                    events.push(Event::Broken { feed: index, how });
                }
                Found::Entries(entries) => {
                    feed.compared = Some(read.compared.clone());
                    if entries.is_empty() {
                        feed.heard_at = Some(Instant::now());
                    }
                    for entry in entries {
                        let how = match step(feed.position, entry.id) {
                            Step::Next => {
                                feed.position = entry.id;
                                events.push(Event::Entry { feed: index, entry });
                                continue;
                            }
                            Step::Duplicate => continue,
                            Step::Gap(lost) => Continuity::Gap { lost },
                            Step::Rollback => Continuity::RolledBack { last: entry.id },
                        };
                        feed.held = true;
                        events.push(Event::Broken { feed: index, how });
                        break;
                    }
                }
            }
        }
        events
    }
}

/// Reads feeds of one primary, after comparing those that were not compared with its link.
async fn read(
    connection: &Connection,
    asked: &[(String, EntryId, bool)],
    count: usize,
) -> Result<Vec<Found>, Error> {
    let mut broken: Vec<Option<Continuity>> = vec![None; asked.len()];
    for (index, (key, position, known)) in asked.iter().enumerate() {
        if *known {
            continue;
        }
        match feed::continuity(connection, key, *position).await {
            Ok(how) if how.is_intact() => {}
            Ok(how) => broken[index] = Some(how),
            // The slot is elsewhere: the read below says so too.
            Err(Error::Server(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let mut batch = Batch::new();
    for (key, position, _) in asked {
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT").arg(count).arg("STREAMS");
        batch = batch.cmd(cmd.arg(key).arg(*position).take());
    }
    let replies = connection.batch(batch).await?;
    replies
        .zip(broken)
        .map(|(reply, broken)| match (reply, broken) {
            (Err(_), _) => Ok(Found::Elsewhere),
            (Ok(_), Some(how)) => Ok(Found::Broken(how)),
            (Ok(Value::Nil), None) => Ok(Found::Entries(Vec::new())),
            (Ok(value), None) => {
                let streams = feed::parse_streams(value)
                    .map_err(|error| Error::unexpected("XREAD", error))?;
                let entries = streams.into_iter().next().map(|(_, entries)| entries);
                Ok(Found::Entries(entries.unwrap_or_default()))
            }
        })
        .collect()
}
