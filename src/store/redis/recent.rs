//! The ends of the feeds, read in one go after a failover.
//!
//! Everybody names a cursor of before then, and is shown what happened lately. Looked up player by player, by the links of
//! each entry to the one before, that costs Redis some 4 µs an entry; read as it lies in the feed, 0.25 µs. And who has an entry
//! there is known: the wallet is the one after the newest, the name still has that number.
//!
//! A wallet is known only if this instance learns of all that happens to it after the feed was read: its feed has to go on
//! from where this instance was, or is followed from where the reading ended. That is said by [`super::tail`] when it tells that
//! all is void, and taken back when a feed turns out to be broken.

use super::cache::CachedHunt;
use super::durable::Sent;
use super::entry::{FeedEntry, Ledger, Told, parse};
use super::shared::{Core, lock};
use crate::game::Millis;
use crate::game::entry::Entry;
use crate::game::hunt::HuntState;
use crate::game::ids::PlayerId;
use crate::game::wallet::Wallet;
use futures_util::future::join_all;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use trove_streams::{EntryId, Partition, feed};

/// The most entries that are kept, of all partitions together: some 50 MB, for as long as they are kept.
pub const RECENT_ENTRIES_MAX: usize = 262_144;
/// For how long they are kept: everybody has polled by then.
pub const RECENT_KEPT: Duration = Duration::from_secs(15);
/// How far back a cursor of before is shown what happened, where the hunt's window is shorter: as far as what a failover took
/// may be brought back.
pub const RECENT_SPAN_MIN: Duration = Duration::from_secs(60);
/// How long there is to read them at the least, also where what this instance executed was offered for longer than planned.
const CALM_MIN: Duration = Duration::from_millis(500);
/// How long reading them may take after the time that there is. Of partitions that were not read by then everything is looked up.
const READ_LATE_MAX: Duration = Duration::from_millis(500);
/// How long fences may take to cover what was read where reading it took all the time that there was.
const COVER_LATE_MAX: Duration = Duration::from_millis(200);
/// The pause before a fence that did not cover what was read is asked for again.
const COVER_AGAIN: Duration = Duration::from_millis(50);
/// Entries that are read at a time: taking them apart holds the event loop half a millisecond.
const ENTRIES_A_READ: usize = 256;
/// The pause after each read while there is time, in times that it took, for each server that is read at the same time. 40,000
/// entries in one go held up the slowest 1 % of 10,000 players' polls for 100 ms.
const READ_PAUSE: u32 = 4;
/// … and the longest, likewise: one read that something held up is not to use up the time of all others.
const READ_PAUSE_MAX: Duration = Duration::from_millis(20);

/// What leaves polls time between the reads.
#[derive(Clone, Copy)]
struct Pace {
    /// There is time until then.
    calm_until: Instant,
    /// So many servers are read at the same time, by one event loop.
    servers: u32,
}

impl Pace {
    async fn pause(self, read_took: Duration) {
        let pause = (read_took * READ_PAUSE).min(READ_PAUSE_MAX) * self.servers;
        if Instant::now() + pause < self.calm_until {
            tokio::time::sleep(pause).await;
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Recent(Mutex<Option<Kept>>);

struct Kept {
    epoch: u64,
    until: Instant,
    partitions: HashMap<Partition, Ends>,
}

/// The end of one partition's feed.
struct Ends {
    /// All entries since then are here.
    since: Millis,
    /// The last entry that is.
    to: Option<EntryId>,
    /// By hunt and player, newest first: an unbroken row of sequence numbers each.
    wallets: HashMap<(u32, PlayerId), Vec<Ledger>>,
    /// Who has an entry here from before the epoch, and was not erased since. One from after it could be of a number that the
    /// name no longer has.
    players: HashSet<PlayerId>,
    /// Erased by an entry here.
    erased: HashSet<PlayerId>,
    /// Whether it is as durable as the store promises.
    is_covered: bool,
    /// Whether the feed goes on from where this instance was.
    goes_on: bool,
    /// Whether the numbers that this instance knew were of the epoch before.
    vouches: bool,
}

impl Recent {
    /// Keeps what was read in `epoch`, in place of what was.
    fn keep(&self, kept: Kept) {
        let before = lock(&self.0).replace(kept);
        discard(before);
    }

    /// All that was told before is void, and feeds are followed on from here: of which partitions, and whether what was told
    /// before was of the epoch before this one.
    pub(super) fn follows(&self, epoch: u64, mut follows: impl FnMut(Partition) -> (bool, bool)) {
        if let Some(kept) = lock(&self.0).as_mut().filter(|kept| kept.epoch == epoch) {
            for (partition, ends) in &mut kept.partitions {
                (ends.goes_on, ends.vouches) = follows(*partition);
            }
        }
    }

    /// Nothing is known any more.
    pub(super) fn forget(&self) {
        discard(lock(&self.0).take());
    }

    fn forget_old(&self) {
        let old = lock(&self.0).take_if(|kept| kept.until <= Instant::now());
        discard(old);
    }

    /// A feed does not go on from where this instance was.
    pub(super) fn broke(&self, partition: Partition) {
        let mut kept = lock(&self.0);
        if let Some(ends) = kept
            .as_mut()
            .and_then(|kept| kept.partitions.get_mut(&partition))
        {
            ends.goes_on = false;
        }
    }

    /// Where a broken feed can be followed from on, so that nothing is missed that happens after it was read.
    pub(super) fn end(&self, epoch: u64, partition: Partition) -> Option<EntryId> {
        self.look(epoch, partition, |ends| ends.to)
    }

    /// A broken feed is followed from its [end](Self::end).
    pub(super) fn mended(&self, epoch: u64, partition: Partition) {
        let mut kept = lock(&self.0);
        let of = kept.as_mut().filter(|kept| kept.epoch == epoch);
        if let Some(ends) = of.and_then(|kept| kept.partitions.get_mut(&partition)) {
            ends.goes_on = true;
        }
    }

    fn look<T>(
        &self,
        epoch: u64,
        partition: Partition,
        look: impl FnOnce(&Ends) -> Option<T>,
    ) -> Option<T> {
        let kept = lock(&self.0);
        let kept = kept
            .as_ref()
            .filter(|kept| kept.epoch == epoch && Instant::now() < kept.until)?;
        look(kept.partitions.get(&partition)?)
    }

    fn known<T>(
        &self,
        epoch: u64,
        partition: Partition,
        look: impl FnOnce(&Ends) -> Option<T>,
    ) -> Option<T> {
        let known = |ends: &Ends| {
            let is_known = ends.is_covered && ends.goes_on;
            is_known.then(|| look(ends)).flatten()
        };
        self.look(epoch, partition, known)
    }

    /// The wallet, if it is known and has changed lately: as of when its feed was read.
    pub(super) fn wallet(
        &self,
        epoch: u64,
        (hunt, partition, player): (u32, Partition, PlayerId),
    ) -> Option<Wallet> {
        self.known(epoch, partition, |ends| {
            let newest = ends.wallets.get(&(hunt, player))?.first()?;
            Some(newest.wallet)
        })
    }

    /// Whether the player is known to be who it was in the epoch before: a name gets its number before the first entry, so a
    /// history that has kept the entry has the name too.
    pub(super) fn vouches(&self, epoch: u64, partition: Partition, player: PlayerId) -> bool {
        let known = |ends: &Ends| (ends.vouches && ends.players.contains(&player)).then_some(());
        self.known(epoch, partition, known).is_some()
    }

    /// The entries of a wallet since then, newest first, as far as they were there when the feed was read. `None`: not known.
    pub(super) fn of(
        &self,
        epoch: u64,
        (hunt, partition, player): (&CachedHunt, Partition, PlayerId),
        since: Millis,
    ) -> Option<Vec<Entry>> {
        self.look(epoch, partition, |ends| {
            if ends.since > since {
                return None;
            }
            let Some(entries) = ends.wallets.get(&(hunt.hunt.number, player)) else {
                return Some(Vec::new());
            };
            let since = entries.iter().take_while(|entry| entry.at >= since);
            since.map(|entry| entry.named(hunt)).collect()
        })
    }
}

/// Lets go of so much elsewhere: it takes its time.
fn discard(kept: Option<Kept>) {
    if kept.is_some() {
        drop(crate::blocking::spawn(move || drop(kept)));
    }
}

impl Core {
    /// Reads the ends of the feeds, as far back as the longest window of a hunt, and keeps them for a while. There is time until
    /// `calm_until`, or for a little if that is soon.
    pub(super) async fn read_recent(&self, epoch: u64, calm_until: Instant) {
        let began = Instant::now();
        let calm_until = calm_until.max(began + CALM_MIN);
        let until = calm_until + READ_LATE_MAX;
        let span_min = u64::try_from(RECENT_SPAN_MIN.as_millis()).unwrap_or(u64::MAX);
        let span = self.longest_window_ms().await.max(span_min);
        let since = self.shared.clock.now().saturating_sub(span);
        let all = self.shared.partitions();
        let share = self.shared.options.recent_entries_max / all.len().max(1);
        // Nothing read would look like nothing there.
        let share = share.max(1);
        let keys: Vec<String> = all
            .iter()
            .map(|partition| self.shared.keys.partition(*partition).feed())
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // Each primary's one after the other: one that is away or slow holds up only its own.
        let mut by_server: Vec<(Option<Sent>, Vec<usize>)> = Vec::new();
        for (nth, key) in keys.iter().enumerate() {
            let server = Sent::to(&self.commands, key);
            match by_server.iter_mut().find(|(known, _)| *known == server) {
                Some((_, of)) => of.push(nth),
                None => by_server.push((server, vec![nth])),
            }
        }
        let pace = Pace {
            calm_until,
            servers: u32::try_from(by_server.len()).unwrap_or(u32::MAX),
        };
        let ends: Mutex<Vec<(Partition, Ends, Option<Sent>)>> = Mutex::default();
        let reads = by_server.iter().map(|(_, of)| async {
            for nth in of.iter().copied() {
                let (partition, key) = (all[nth], keys[nth]);
                match self.ends_of(partition, key, (since, share), pace).await {
                    Ok((read, sent)) => lock(&ends).push((partition, read, sent)),
                    Err(error) => {
                        tracing::info!(%partition, %error, "the feed's end is not read: its players are looked up");
                    }
                }
            }
        });
        // What was read by then counts.
        let _ = tokio::time::timeout_at(until.into(), join_all(reads)).await;
        let mut ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        let covered_by = calm_until.max(Instant::now() + COVER_LATE_MAX);
        self.cover_ends(&mut ends, covered_by).await;
        let read = ends.len();
        let covered = ends.iter().filter(|(_, ends, _)| ends.is_covered).count();
        tracing::info!(
            epoch,
            read,
            covered,
            of = all.len(),
            took_ms = began.elapsed().as_millis(),
            "the feeds' ends are read"
        );
        let kept_for = self.shared.options.recent_kept;
        self.shared.recent.keep(Kept {
            epoch,
            until: Instant::now() + kept_for,
            partitions: ends
                .into_iter()
                .map(|(partition, ends, _)| (partition, ends))
                .collect(),
        });
        let shared = self.shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(kept_for).await;
            shared.recent.forget_old();
        });
    }

    /// Lets fences cover what was read, until then: a fence whose own link is still on its way to the new primary does not reach it
    /// at once, and one whose replicas are away not at all.
    async fn cover_ends(&self, ends: &mut [(Partition, Ends, Option<Sent>)], until: Instant) {
        let covers = ends.iter_mut().map(|(partition, ends, sent)| async move {
            let key = self.shared.keys.partition(*partition).feed();
            let sent = std::slice::from_ref(sent);
            while self.covered(&[&key], sent).await.iter().any(Result::is_err) {
                tokio::time::sleep(COVER_AGAIN).await;
            }
            ends.is_covered = true;
        });
        let _ = tokio::time::timeout_at(until.into(), join_all(covers)).await;
    }

    async fn longest_window_ms(&self) -> Millis {
        let hunts = self.all_hunts().await.unwrap_or_default();
        let played = hunts
            .iter()
            .filter(|hunt| hunt.hunt.operator != Some(HuntState::Archived));
        played
            .map(|hunt| hunt.hunt.spec.window_ms)
            .max()
            .unwrap_or_default()
    }

    /// As [`Core::ends`], with where they were read. Where the link breaks there may soon be a new one, after a failover even at
    /// once: then they are read again over that.
    async fn ends_of(
        &self,
        partition: Partition,
        key: &str,
        (since, entries_max): (Millis, usize),
        pace: Pace,
    ) -> Result<(Ends, Option<Sent>), trove_streams::Error> {
        let read = async || {
            let sent = self.sending(std::iter::once(key)).pop().flatten();
            let ends = self.ends(partition, since, entries_max, pace).await?;
            Ok((ends, sent))
        };
        match read().await {
            Err(_) if !self.commands.is_cluster() => {
                self.commands.wait_up(READ_LATE_MAX).await?;
                read().await
            }
            read => read,
        }
    }

    /// The entries of a partition's feed since then, the newest `entries_max` at most.
    async fn ends(
        &self,
        partition: Partition,
        since: Millis,
        entries_max: usize,
        pace: Pace,
    ) -> Result<Ends, trove_streams::Error> {
        let key = self.shared.keys.partition(partition).feed();
        let mut ends = Ends {
            since,
            to: None,
            wallets: HashMap::new(),
            players: HashSet::new(),
            erased: HashSet::new(),
            is_covered: false,
            goes_on: false,
            vouches: false,
        };
        let cut = self.shared.replay.cut(usize::from(partition.index()));
        let (mut before, mut left) = (EntryId::MAX, entries_max);
        loop {
            let count = ENTRIES_A_READ.min(left);
            let from = EntryId::new(since, 0);
            let asked = Instant::now();
            let read = feed::read_back(&self.commands, &key, before, from, count).await?;
            self.shared.heard();
            for entry in &read {
                let text = entry
                    .field("e")
                    .and_then(|text| std::str::from_utf8(text).ok());
                match parse(entry.id, text.unwrap_or_default()) {
                    Ok(FeedEntry::Ledger(ledger)) => {
                        if entry.id.ms < cut.ms && !ends.erased.contains(&ledger.player) {
                            ends.players.insert(ledger.player);
                        }
                        let wallet = ends.wallets.entry((ledger.hunt, ledger.player));
                        wallet.or_default().push(ledger);
                    }
                    Ok(FeedEntry::Other(Told::Erased { player })) => {
                        ends.erased.insert(player);
                    }
                    Ok(FeedEntry::Other(Told::Hunt { .. })) => {}
                    Ok(FeedEntry::Other(_)) | Err(_) => {
                        // Whosever it is, that wallet's row is broken here.
                        ends.since = entry.id.ms + 1;
                        return Ok(ends);
                    }
                }
            }
            ends.to = ends.to.or_else(|| read.first().map(|entry| entry.id));
            left -= read.len();
            pace.pause(asked.elapsed()).await;
            match read.last() {
                Some(last) if left == 0 => {
                    // Others may have the same time.
                    ends.since = last.id.ms + 1;
                    return Ok(ends);
                }
                Some(last) if read.len() == count => before = last.id,
                _ => return Ok(ends),
            }
        }
    }
}
