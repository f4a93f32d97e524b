//! What a failover took comes back: each instance keeps what it executed lately, and offers it again in a new epoch.
//!
//! - [`item`]: a piece of what was executed, enough by itself to do it again.
//! - [`ring`]: the pieces, bounded in bytes, entries and age.
//! - [`journal`]: the pieces on disk, for an instance that is lost together with the primary (off unless set).
//! - [`recovery`]: what a new epoch begins with: everything is [offered](offer). Names come first, then hunts, erasures and the rest; each
//!   until it has an answer. The order does not matter beyond that: the scripts leave what survived as it is.
//!
//! During the recovery this instance expires nothing, its feed tells no reset yet (the wallets in memory are the last that
//! were true, and are marked stale), and its writes wait until the names are known: a player whose name was lost may have
//! got another number through another instance, and what is written to the old one is written to that instead.

pub(super) mod item;
pub(super) mod journal;
mod offer;
mod recovery;
pub(super) mod ring;
mod uncovered;

pub use item::Kind;
pub(super) use recovery::run;

use super::shared::lock;
use crate::game::Millis;
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::store::StoreError;
use item::Item;
use journal::Journal;
use ring::{Cut, Ring};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Finds acknowledged again that are known to be kept; past them all are forgotten, and kept once more.
const REPEATED_MAX: usize = 16_384;
/// The longest that a write waits for names and hunts to be offered.
const HELD_MAX: Duration = Duration::from_secs(5);

/// Why something that was lost does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// The hunt is archived.
    Archived,
    /// The player was erased.
    Erased,
    /// The find's id, or the adjustment's key, was used for something else since.
    Conflict,
    /// The coins are not there, or would leave their range.
    Coins,
    /// The hunt or the treasure is not there.
    Missing,
    /// The ring was full.
    Full,
}

impl Dropped {
    /// Every reason, in order.
    pub const ALL: [Self; 6] = [
        Self::Archived,
        Self::Erased,
        Self::Conflict,
        Self::Coins,
        Self::Missing,
        Self::Full,
    ];

    /// The metric's label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Archived => "archived",
            Self::Erased => "erased",
            Self::Conflict => "conflict",
            Self::Coins => "coins",
            Self::Missing => "missing",
            Self::Full => "full",
        }
    }
}

/// What replay did since this process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCounts {
    /// What was lost and came back, by [`Kind::ALL`].
    pub replayed: [u64; Kind::ALL.len()],
    /// What was lost and did not, by [`Dropped::ALL`].
    pub dropped: [u64; Dropped::ALL.len()],
    /// Items that the ring holds.
    pub items: usize,
    /// And their bytes.
    pub bytes: usize,
}

/// How far a recovery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Players' names are offered.
    Names,
    /// Then hunts.
    Hunts,
    /// Then the rest, until the recovery's time is over.
    Rest,
    /// There is none.
    Over,
}

/// See the module.
pub(super) struct Replay {
    ring: Mutex<Ring>,
    journal: Option<Journal>,
    phase: watch::Sender<Phase>,
    begun: Notify,
    /// Writes wait for a recovery that has not begun.
    held: AtomicBool,
    /// Where each partition's epoch began.
    cuts: Mutex<Vec<Cut>>,
    /// Numbers of players whose names have got others.
    moved: Mutex<HashMap<PlayerId, PlayerId>>,
    any_moved: AtomicBool,
    replayed: [AtomicU64; Kind::ALL.len()],
    dropped: [AtomicU64; Dropped::ALL.len()],
    /// Finds that were kept when they were acknowledged again.
    repeated: Mutex<HashSet<(HuntId, PlayerId, u64)>>,
    /// For how long what was executed may not have reached the replicas.
    age_max: Duration,
    /// How long a recovery is.
    recovery: Duration,
}

impl Replay {
    /// A ring with what a journal still held.
    pub(super) fn new(
        (bytes_max, age_max): (usize, Duration),
        recovery: Duration,
        partitions: usize,
        journal: Option<(Journal, Vec<journal::Line>)>,
    ) -> Self {
        let mut ring = Ring::new(bytes_max, age_max);
        let (journal, lines) = journal.map_or((None, Vec::new()), |(journal, lines)| {
            (Some(journal), lines)
        });
        let mut lost = 0;
        for line in lines {
            lost += ring.push(Arc::new(line.item), line.epoch, true);
        }
        let replay = Self {
            ring: Mutex::new(ring),
            journal,
            phase: watch::channel(Phase::Over).0,
            begun: Notify::new(),
            held: AtomicBool::new(false),
            cuts: Mutex::new(vec![Cut::default(); partitions]),
            moved: Mutex::default(),
            any_moved: AtomicBool::new(false),
            replayed: Default::default(),
            dropped: Default::default(),
            repeated: Mutex::default(),
            age_max,
            recovery,
        };
        replay.lost(Dropped::Full, lost);
        replay
    }

    /// Whether an epoch is so young that what it lost may still come back.
    pub(super) fn is_recovering(&self) -> bool {
        *self.phase.borrow() != Phase::Over
    }

    /// A new epoch begins: writes wait from now on until [`Replay::begin`] has let the names be offered.
    pub(super) fn hold_writes(&self) {
        self.held.store(true, Ordering::Release);
        self.phase.send_replace(Phase::Names);
    }

    /// Whether writes wait for [`Replay::begin`].
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// The new epoch's cuts are known; the recovery goes on from here.
    pub(super) fn begin(&self) {
        self.held.store(false, Ordering::Release);
        self.phase.send_replace(Phase::Names);
        self.begun.notify_one();
    }

    pub(super) fn set_cut(&self, partition: usize, cut: Cut) {
        if let Some(place) = lock(&self.cuts).get_mut(partition) {
            *place = cut;
        }
    }

    /// Where a partition's epoch began.
    pub(super) fn cut(&self, partition: usize) -> Cut {
        lock(&self.cuts).get(partition).copied().unwrap_or_default()
    }

    /// Whether the ring holds anything at all.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.ring).holds().0 == 0
    }

    /// Keeps what was executed in an epoch: the one that the caller believed in before it asked. Returns when it is on disk,
    /// where there is a journal.
    ///
    /// # Errors
    /// When the journal cannot be written: the store has it, but the answer must not promise it.
    pub(super) async fn keep(&self, items: Vec<Item>, epoch: u64) -> Result<(), StoreError> {
        if items.is_empty() {
            return Ok(());
        }
        let items: Vec<Arc<Item>> = items.into_iter().map(Arc::new).collect();
        let written = self
            .journal
            .as_ref()
            .map(|journal| journal.write(epoch, items.clone()));
        let mut lost = 0;
        {
            let mut ring = lock(&self.ring);
            for item in items {
                lost += ring.push(item, epoch, true);
            }
        }
        self.lost(Dropped::Full, lost);
        match written {
            None => Ok(()),
            Some(written) => written.await.map_err(|error| {
                StoreError::Unknown(format!("the replay journal cannot be written: {error}"))
            }),
        }
    }

    /// Whether a find that was recorded at `at`, and is acknowledged again now, is to be kept: once, and only while it may not
    /// have reached the replicas yet. Whoever sends a find over and over must not drive everybody else's out of the ring.
    pub(super) fn keeps_repeated(
        &self,
        (hunt, player, seq): (&HuntId, PlayerId, u64),
        at: Millis,
        now: Millis,
    ) -> bool {
        let age_ms = now.saturating_sub(at);
        if u128::from(age_ms) > self.age_max.as_millis() {
            return false;
        }
        let mut repeated = lock(&self.repeated);
        if repeated.len() >= REPEATED_MAX {
            repeated.clear();
        }
        repeated.insert((hunt.clone(), player, seq))
    }

    /// A player was erased: nothing of what is kept may bring anything of it back.
    pub(super) fn purge(&self, player: PlayerId) {
        let (purged, open) = lock(&self.ring).purge(player);
        self.lost(Dropped::Erased, open);
        if let Some(journal) = &self.journal
            && purged
        {
            journal.rewrite(lock(&self.ring).all());
        }
    }

    /// Puts out what is too old, also where nothing new comes. The name that an erasure holds goes from the disk with it.
    pub(super) fn age(&self, epoch: u64) {
        let mut ring = lock(&self.ring);
        let before = ring.erasures();
        let lost = ring.evict(epoch);
        if let Some(journal) = &self.journal
            && ring.erasures() < before
        {
            journal.rewrite(ring.all());
        }
        drop(ring);
        self.lost(Dropped::Full, lost);
    }

    /// Another store is used from now on, in which none of this ever was.
    pub(super) fn clear(&self) {
        lock(&self.ring).clear();
        lock(&self.repeated).clear();
        if let Some(journal) = &self.journal {
            journal.rewrite(Vec::new());
        }
    }

    /// The number that this instance knows a name by.
    pub(super) fn number_of(&self, name: &PlayerName) -> Option<PlayerId> {
        lock(&self.ring).number_of(name)
    }

    /// The number under which a player is written to: waits while names are being offered after a failover.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) async fn settled_player(&self, player: PlayerId) -> Result<PlayerId, StoreError> {
        self.wait_past(Phase::Names).await?;
        Ok(self.moved(player))
    }

    /// Waits while hunts are being offered after a failover.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) async fn hunts_known(&self) -> Result<(), StoreError> {
        self.wait_past(Phase::Hunts).await
    }

    /// Waits for the end of the recovery, so much longer than it should be at most.
    pub(super) async fn over(&self, patience: Duration) {
        let mut phases = self.phase.subscribe();
        let over = phases.wait_for(|is| *is == Phase::Over);
        // Whoever goes on without it goes on as if a recovery had begun since.
        let _ = tokio::time::timeout(self.recovery + patience, over).await;
    }

    async fn wait_past(&self, phase: Phase) -> Result<(), StoreError> {
        if *self.phase.borrow() > phase {
            return Ok(());
        }
        let mut phases = self.phase.subscribe();
        let past = phases.wait_for(|is| *is > phase);
        match tokio::time::timeout(HELD_MAX, past).await {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Unavailable(
                "it has failed over, and what it lost is still being brought back".into(),
            )),
        }
    }

    /// Whether any player's name has got another number since it was lost.
    pub(super) fn any_moved(&self) -> bool {
        self.any_moved.load(Ordering::Acquire)
    }

    pub(super) fn moved(&self, player: PlayerId) -> PlayerId {
        if !self.any_moved() {
            return player;
        }
        lock(&self.moved).get(&player).copied().unwrap_or(player)
    }

    fn returned(&self, kind: Kind) {
        self.replayed[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn lost(&self, why: Dropped, count: u64) {
        if count > 0 {
            tracing::warn!(
                why = why.as_str(),
                count,
                "what a failover took does not come back"
            );
            self.dropped[why as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> ReplayCounts {
        let (items, bytes) = lock(&self.ring).holds();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReplayCounts {
            replayed: std::array::from_fn(|at| read(&self.replayed[at])),
            dropped: std::array::from_fn(|at| read(&self.dropped[at])),
            items,
            bytes,
        }
    }
}
