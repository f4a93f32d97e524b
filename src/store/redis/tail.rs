//! The feed for those who watch: every partition's stream followed with one blocking read.
//!
//! Order holds within a partition. A hunt's change stands in every partition's stream; it is told when the first of them
//! shows it, after what stands before it in the others, and once. Where a stream does not go on from where this reader is,
//! or the epoch is another one, what was derived from it is void: that is told as [`FeedEvent::Reset`].

use super::durable::{Fences, Sent};
use super::entry::{Told, parse_told};
use super::feeds::Feeds;
use super::shared::Core;
use super::state::PartitionState;
use crate::store::{FeedEvent, StoreError};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trove_streams::{EntryId, Event, Partition, Router};

/// The pause after a read that failed at once.
const PAUSE: Duration = Duration::from_millis(20);

fn feed_of(event: &Event) -> usize {
    match event {
        Event::Entry { feed, .. } | Event::Broken { feed, .. } => *feed,
    }
}

/// Entries that were read over one link and wait for a fence.
struct Cover {
    fences: Arc<Fences>,
    key: String,
    sent: Sent,
    /// The feeds, and where each was before and after the read.
    feeds: Vec<(usize, EntryId, EntryId)>,
    events: Vec<Event>,
    is_safe: bool,
}

impl Cover {
    /// Waits for the fence.
    async fn reached(mut self) -> Self {
        match self.fences.cover(&self.key, &self.sent).await {
            Ok(()) => self.is_safe = true,
            Err(error) => {
                tracing::debug!(%error, "what the feed tells is not safe yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
        self
    }
}

/// What was read, taken apart.
#[derive(Default)]
struct Covers {
    events: Vec<Event>,
    waiting: Vec<Cover>,
}

/// For how long a new epoch is not told while a primary of a cluster is away.
const UNTOLD_MAX: Duration = Duration::from_secs(10);

/// Follows the feeds until nobody listens.
pub(super) struct Follower {
    core: Core,
    partitions: Vec<Partition>,
    tail: Feeds,
    /// Entries of a cluster that wait for a fence.
    covers: JoinSet<Cover>,
    sender: mpsc::Sender<Vec<FeedEvent>>,
    /// The epoch that was told last.
    epoch: u64,
    /// Since when there has been a later one.
    untold_since: Option<Instant>,
    /// The generation of each hunt that was told last.
    told: HashMap<u32, u64>,
    /// Streams that do not go on from where this reader is.
    broken: Vec<usize>,
}

impl Follower {
    /// Follows from the positions that this instance knows now.
    pub(super) fn new(
        core: Core,
        reads: Router,
        sender: mpsc::Sender<Vec<FeedEvent>>,
    ) -> Result<Self, trove_streams::Error> {
        let shared = core.shared.clone();
        let partitions = shared.partitions();
        let feeds = partitions.iter().map(|partition| {
            (
                shared.keys.partition(*partition).feed(),
                shared.position(*partition),
            )
        });
        let tail = Feeds::new(reads, feeds, shared.options.feed_block)?;
        // Of a store that is recovering the wallets that are read meanwhile are read again afterwards.
        let epoch = if shared.replay.is_recovering() {
            0
        } else {
            shared.epoch()
        };
        // It is silent from now on, until it is heard.
        let now_ms = shared.elapsed_ms().max(1);
        shared.tail_heard_ms.store(now_ms, Ordering::Relaxed);
        for heard_ms in &shared.feeds_heard_ms {
            heard_ms.store(now_ms, Ordering::Relaxed);
        }
        shared.told_epoch.store(epoch, Ordering::Release);
        Ok(Self {
            core,
            partitions,
            tail,
            covers: JoinSet::new(),
            sender,
            epoch,
            untold_since: None,
            told: HashMap::new(),
            broken: Vec::new(),
        })
    }

    pub(super) async fn run(mut self) {
        let gather = self.core.shared.options.feed_gather;
        while !self.sender.is_closed() {
            let Some(events) = self.read().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            self.note_heard();
            let shared = &self.core.shared;
            let mut out = Vec::new();
            let recovering = shared.replay.is_recovering();
            let mut told_before = None;
            if !recovering && self.tells_epoch() {
                told_before = Some(self.epoch);
                self.epoch = self.core.shared.epoch();
                self.core
                    .shared
                    .told_epoch
                    .store(self.epoch, Ordering::Release);
                self.told.clear();
                out.push(FeedEvent::Reset { epoch: self.epoch });
            }
            self.take(events, &mut out).await;
            if !recovering {
                if let Some(before) = told_before {
                    self.note_followed(before);
                }
                self.mend(&mut out).await;
            }
            if out.is_empty() {
                continue;
            }
            if self.sender.send(out).await.is_err() {
                return;
            }
            tokio::time::sleep(gather).await;
        }
    }

    /// A new epoch is told, after this one: notes of which partitions what was read before can be relied on.
    fn note_followed(&self, before: u64) {
        let shared = &self.core.shared;
        let is_broken = |partition| {
            let mut broken = self.broken.iter();
            broken.any(|feed| self.partitions[*feed] == partition)
        };
        let (mut broken, mut unknown) = (0, 0);
        shared.recent.follows(self.epoch, |partition| {
            let cut = shared.replay.cut(usize::from(partition.index()));
            let (goes_on, vouches) = (!is_broken(partition), cut.of == before);
            broken += usize::from(!goes_on);
            unknown += usize::from(!vouches);
            (goes_on, vouches)
        });
        tracing::info!(
            epoch = self.epoch,
            before,
            broken,
            unknown,
            "a new epoch is followed"
        );
    }

    /// Notes when each partition's feed was last heard, and so the one that has been silent for longest.
    fn note_heard(&self) {
        let shared = &self.core.shared;
        let now_ms = shared.elapsed_ms();
        let mut first_ms = now_ms;
        for (feed, heard_ms) in shared.feeds_heard_ms.iter().enumerate() {
            let at_ms = now_ms.saturating_sub(self.tail.silent_ms(feed));
            heard_ms.fetch_max(at_ms, Ordering::Relaxed);
            first_ms = first_ms.min(at_ms);
        }
        shared.tail_heard_ms.fetch_max(first_ms, Ordering::Relaxed);
    }

    /// Whether a new epoch is to be told now. What is in memory is void then, and read again: of a cluster whose primaries are
    /// not all there, some of it could not be. It is shown, marked stale, until they are, but not for ever.
    fn tells_epoch(&mut self) -> bool {
        if self.core.shared.epoch() == self.epoch {
            self.untold_since = None;
            return false;
        }
        let commands = &self.core.commands;
        let since = *self.untold_since.get_or_insert_with(Instant::now);
        let all_there = !commands.is_cluster() || commands.state().up().is_some();
        all_there || since.elapsed() > UNTOLD_MAX
    }

    /// Where each feed is read from, if what is read has to be covered.
    fn positions(&self) -> Vec<EntryId> {
        match self.core.fences {
            None => Vec::new(),
            Some(_) => (0..self.partitions.len())
                .map(|feed| self.tail.position(feed))
                .collect(),
        }
    }

    /// What the feeds tell and is as durable as the store promises. `None` if there is nothing but what is not, or the store
    /// is away: the feed counts as silent then.
    async fn read(&mut self) -> Option<Vec<Event>> {
        let before = self.positions();
        let events = tokio::select! {
            Some(covered) = self.covers.join_next(), if !self.covers.is_empty() => {
                return covered.ok().and_then(|cover| self.covered(cover));
            }
            read = self.tail.next() => read.ok()?,
        };
        let Some(fences) = self.core.fences.clone() else {
            for event in &events {
                self.tail.taken(feed_of(event));
            }
            return Some(events);
        };
        let covers = self.covers_of(&fences, events, &before);
        if let Feeds::Many(_) = &self.tail {
            // A primary without replicas must not hold up what the others' feeds tell.
            for cover in covers.waiting {
                self.covers.spawn(cover.reached());
            }
            return Some(covers.events);
        }
        let mut events = covers.events;
        let mut unsafe_only = events.is_empty() && !covers.waiting.is_empty();
        for cover in covers.waiting {
            if let Some(safe) = self.covered(cover.reached().await) {
                events.extend(safe);
                unsafe_only = false;
            }
        }
        (!unsafe_only).then_some(events)
    }

    /// Goes on with feeds whose entries are safe, or reads them again from where they were read if they are not.
    fn covered(&mut self, cover: Cover) -> Option<Vec<Event>> {
        for (feed, before, after) in &cover.feeds {
            if cover.is_safe {
                self.core
                    .note_shown(self.partitions[*feed], &cover.sent, *after);
                self.tail.resume(*feed, *after);
                self.tail.taken(*feed);
            } else {
                self.tail.resume(*feed, *before);
            }
        }
        cover.is_safe.then_some(cover.events)
    }

    /// Takes apart what was read: what can be told now, and what a fence has to cover first. Feeds of the latter are held.
    fn covers_of(
        &mut self,
        fences: &Arc<Fences>,
        events: Vec<Event>,
        before: &[EntryId],
    ) -> Covers {
        let mut covers = Covers::default();
        for event in events {
            let feed = feed_of(&event);
            let Event::Entry { .. } = &event else {
                covers.events.push(event);
                continue;
            };
            let known = covers
                .waiting
                .iter()
                .position(|cover| cover.feeds.iter().any(|(of, ..)| *of == feed));
            if let Some(known) = known {
                covers.waiting[known].events.push(event);
                continue;
            }
            let Some(sent) = self.tail.read_over(feed) else {
                self.tail.resume(feed, before[feed]);
                continue;
            };
            self.tail.hold(feed);
            let span = (feed, before[feed], self.tail.position(feed));
            match covers.waiting.iter_mut().find(|cover| cover.sent == sent) {
                // One fence for all feeds that were read over one link.
                Some(cover) => {
                    cover.feeds.push(span);
                    cover.events.push(event);
                }
                None => covers.waiting.push(Cover {
                    fences: fences.clone(),
                    key: self
                        .core
                        .shared
                        .keys
                        .partition(self.partitions[feed])
                        .feed(),
                    sent,
                    feeds: vec![span],
                    events: vec![event],
                    is_safe: false,
                }),
            }
        }
        covers
    }

    async fn take(&mut self, events: Vec<Event>, out: &mut Vec<FeedEvent>) {
        let mut queues: Vec<VecDeque<Told>> =
            self.partitions.iter().map(|_| VecDeque::new()).collect();
        for event in events {
            match event {
                Event::Entry { feed, entry } => {
                    let text = entry
                        .field("e")
                        .and_then(|text| std::str::from_utf8(text).ok())
                        .unwrap_or_default();
                    match parse_told(entry.id, text) {
                        Ok(Told::Erased { player }) => {
                            self.core.shared.replay.purge(player);
                            queues[feed].push_back(Told::Erased { player });
                        }
                        Ok(entry) => queues[feed].push_back(entry),
                        // Whatever it is about: what was derived from the feed may be wrong from here on.
                        Err(_) => {
                            tracing::warn!(id = %entry.id, text, "an entry of the feed is not understood");
                            self.core.shared.recent.forget();
                            out.push(FeedEvent::Reset { epoch: self.epoch });
                        }
                    }
                }
                Event::Broken { feed, how } => {
                    tracing::warn!(partition = %self.partitions[feed], ?how, "the feed does not go on from here");
                    self.core.shared.recent.broke(self.partitions[feed]);
                    self.broken.push(feed);
                }
            }
        }
        // A hunt's change is a barrier: what stands before it in any stream is told first.
        while queues.iter().any(|queue| !queue.is_empty()) {
            for queue in &mut queues {
                while !matches!(queue.front(), None | Some(Told::Hunt { .. })) {
                    if let Some(entry) = queue.pop_front() {
                        tell(entry, out);
                    }
                }
            }
            let barrier = queues.iter().find_map(|queue| queue.front().cloned());
            let Some(Told::Hunt { hunt, generation }) = barrier else {
                continue;
            };
            for queue in &mut queues {
                if queue.front() == Some(&Told::Hunt { hunt, generation }) {
                    queue.pop_front();
                }
            }
            self.tell_hunt(hunt, generation, out).await;
        }
    }

    async fn tell_hunt(&mut self, hunt: u32, generation: u64, out: &mut Vec<FeedEvent>) {
        if self.told.get(&hunt).is_some_and(|told| *told >= generation) {
            return;
        }
        match self.core.hunt_by_number(hunt, generation).await {
            Ok(cached) => {
                self.told.insert(hunt, cached.hunt.generation);
                out.push(FeedEvent::Hunt(cached.hunt.clone()));
            }
            // The next change tells it; until then the scripts refuse what this instance's copy would get wrong.
            Err(error) => {
                tracing::warn!(hunt, generation, %error, "a hunt that changed cannot be read")
            }
        }
    }

    /// Goes on with streams that broke, from where they are now.
    async fn mend(&mut self, out: &mut Vec<FeedEvent>) {
        if self.broken.is_empty() {
            return;
        }
        // The feed's link may be back before that of the commands is: until it is, answers are stale anyway.
        let commands = &self.core.commands;
        if commands.is_cluster() {
            // Waiting for one primary would hold up what the others' feeds tell.
            if !commands.is_up() {
                return;
            }
        } else if commands
            .wait_up(commands.config().response_timeout)
            .await
            .is_err()
        {
            return;
        }
        // The link may have brought a new epoch: until its recovery is over, what was told last is the best there is.
        if self.core.shared.replay.is_recovering() {
            return;
        }
        let shared = self.core.shared.clone();
        let epoch = shared.epoch();
        let (mut mended, mut known) = (Vec::new(), Vec::new());
        for feed in &self.broken {
            if let Some(end) = shared.recent.end(epoch, self.partitions[*feed]) {
                mended.push((*feed, end));
                known.push(self.partitions[*feed]);
                continue;
            }
            match self.position(self.partitions[*feed]).await {
                Ok(position) => mended.push((*feed, position)),
                // The store is away, or another one; tried again after the next read.
                Err(_) => return,
            }
        }
        self.told.clear();
        // One is enough, and it is this one: what is read from the store from now on is as of these positions or later. The
        // epoch is the history's that the positions are of, for it is raised before a new history is read.
        self.epoch = self.core.shared.epoch();
        self.core
            .shared
            .told_epoch
            .store(self.epoch, Ordering::Release);
        out.retain(|event| !matches!(event, FeedEvent::Reset { .. }));
        out.push(FeedEvent::Reset { epoch: self.epoch });
        for (feed, position) in mended {
            self.tail.resume(feed, position);
        }
        for partition in known {
            if self.epoch == epoch {
                shared.recent.mended(epoch, partition);
            }
        }
        self.broken.clear();
        if let Ok(hunts) = self.core.all_hunts().await {
            for cached in hunts {
                self.told.insert(cached.hunt.number, cached.hunt.generation);
                out.push(FeedEvent::Hunt(cached.hunt.clone()));
            }
        }
    }

    /// The last entry of a partition's feed, by its state.
    async fn position(&self, partition: Partition) -> Result<EntryId, StoreError> {
        self.core.check_identity().await?;
        let states = self.core.partition_states().await?;
        let state = states.get(usize::from(partition.index()));
        state
            .map(PartitionState::last)
            .ok_or_else(|| StoreError::Damaged("a partition has no state".into()))
    }
}

/// Tells an entry; of several in a row about one wallet the last is enough.
fn tell(entry: Told, out: &mut Vec<FeedEvent>) {
    let event = match entry {
        Told::Wallet {
            hunt,
            player,
            wallet,
        } => {
            if let Some(FeedEvent::Wallet {
                hunt: of,
                player: who,
                wallet: last,
            }) = out.last_mut()
                && (*of, *who) == (hunt, player)
            {
                *last = wallet;
                return;
            }
            FeedEvent::Wallet {
                hunt,
                player,
                wallet,
            }
        }
        Told::Erased { player } => FeedEvent::Erased { player },
        Told::Unknown { hunt, player } => FeedEvent::Reload { hunt, player },
        // Told by `tell_hunt`.
        Told::Hunt { .. } => return,
    };
    out.push(event);
}
