//! What the writer's thread, the readers and those who ask share.

use super::backend::DiskCounters;
use super::state::State;
use super::writer::Job;
use crate::game::entry::Totals;
use crate::game::hunt::Hunt;
use crate::game::ids::HuntId;
use crate::store::Health;
use crate::store::clock::StoreClock;
use redb::Database;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};

/// Opens the file, the same way each time.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, redb::DatabaseError> + Send + Sync>;

/// How many batches were committed, what was in them, and how long they took.
#[derive(Debug, Default)]
pub struct WriterStats {
    /// Batches committed.
    pub batches: AtomicU64,
    /// Jobs committed.
    pub jobs: AtomicU64,
    /// Time spent on batches, in microseconds.
    pub busy_us: AtomicU64,
}

impl WriterStats {
    pub(super) fn committed(&self, jobs: usize, took: Duration) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.jobs.fetch_add(jobs as u64, Ordering::Relaxed);
        self.busy_us.fetch_add(
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }
}

/// Jobs that are done and not answered yet.
pub(super) type Answers = Vec<Box<dyn Job>>;

/// Called when the store can no longer be trusted, with the reason: the process is to end.
pub type OnFatal = Box<dyn Fn(&str) + Send + Sync>;

/// See the module.
pub(super) struct Shared {
    pub(super) db: RwLock<Option<Arc<Database>>>,
    pub(super) opener: Opener,
    pub(super) clock: StoreClock,
    pub(super) epoch: u64,
    pub(super) dir: Option<PathBuf>,
    pub(super) min_free_bytes: u64,
    pub(super) counters: Arc<DiskCounters>,
    pub(super) stats: WriterStats,
    pub(super) on_fatal: OnFatal,
    /// Whether somebody took the feed; events that nobody reads must not hold the writer.
    pub(super) watched: AtomicBool,
    /// Whether the store was asked to stop: a watcher that lags no longer holds the writer then.
    pub(super) stopping: AtomicBool,
    /// Where answers are let go, if somewhere else than on the writer's thread; see `EmbeddedStore::answer_on`.
    pub(super) answers: Mutex<Option<mpsc::Sender<Answers>>>,
    /// What the jobs that wait weigh together.
    pub(super) queued_weight: AtomicUsize,
    health: Mutex<Health>,
    hunts: Mutex<BTreeMap<HuntId, (Arc<Hunt>, Totals)>>,
}

/// The open file, if it is.
pub(super) fn clone_db(shared: &Shared) -> Option<Arc<Database>> {
    shared
        .db
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is replaced whole, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, each argument of another type"
    )]
    pub(super) fn new(
        db: Database,
        opener: Opener,
        clock: StoreClock,
        epoch: u64,
        dir: Option<PathBuf>,
        min_free_bytes: u64,
        counters: Arc<DiskCounters>,
        on_fatal: OnFatal,
    ) -> Self {
        Self {
            db: RwLock::new(Some(Arc::new(db))),
            opener,
            clock,
            epoch,
            dir,
            min_free_bytes,
            counters,
            stats: WriterStats::default(),
            on_fatal,
            watched: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            answers: Mutex::new(None),
            queued_weight: AtomicUsize::new(0),
            health: Mutex::new(Health::Up),
            hunts: Mutex::default(),
        }
    }

    /// Shows what was committed.
    pub(super) fn publish(&self, state: &State) {
        let mut hunts = lock(&self.hunts);
        for (id, slot) in &state.hunts {
            match hunts.get_mut(id) {
                Some((hunt, totals)) => {
                    *totals = slot.totals;
                    if !Arc::ptr_eq(hunt, &slot.hunt) {
                        *hunt = slot.hunt.clone();
                    }
                }
                None => {
                    hunts.insert(id.clone(), (slot.hunt.clone(), slot.totals));
                }
            }
        }
    }

    pub(super) fn hunts(&self) -> Vec<(Arc<Hunt>, Totals)> {
        lock(&self.hunts).values().cloned().collect()
    }

    pub(super) fn hunt(&self, id: &HuntId) -> Option<(Arc<Hunt>, Totals)> {
        lock(&self.hunts).get(id).cloned()
    }

    pub(super) fn health(&self) -> Health {
        lock(&self.health).clone()
    }

    /// Says what the state is now. From `Down` nothing leads back.
    pub(super) fn set_health(&self, health: Health) {
        self.change_health(health);
    }

    fn change_health(&self, health: Health) -> bool {
        let mut now = lock(&self.health);
        if *now == health || matches!(*now, Health::Down(_)) {
            return false;
        }
        tracing::warn!(from = ?*now, to = ?health, "the store's state changed");
        *now = health;
        true
    }

    /// Gives the store up, once.
    pub(super) fn fatal(&self, reason: &str) {
        if self.change_health(Health::Down(reason.to_owned())) {
            (self.on_fatal)(reason);
        }
    }

    /// Bytes that an unprivileged process may still write to the store's file system; `None` where that is unknown.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(self.dir.as_ref()?).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Lets the answers of a batch go.
    pub(super) fn answer(&self, mut jobs: Answers) {
        if jobs.len() > 1
            && let Some(answers) = &*lock(&self.answers)
        {
            match answers.try_send(jobs) {
                Ok(()) => return,
                Err(TrySendError::Full(back) | TrySendError::Closed(back)) => jobs = back,
            }
        }
        jobs.into_iter().for_each(|job| job.answer(None));
    }

    /// Closes the file for good.
    pub(super) fn close(&self) {
        Self::close_slot(&mut self.db.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for those who are about to begin a read, which takes them no lock; reads under way fail from then on.
    fn close_slot(slot: &mut Option<Arc<Database>>) {
        let Some(mut db) = slot.take() else { return };
        loop {
            match Arc::try_unwrap(db) {
                Ok(db) => {
                    if let Err(error) = db.close() {
                        tracing::error!(%error, "the store's file was not closed cleanly");
                    }
                    return;
                }
                Err(shared) => db = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes and opens the file, which clears redb's memory of a failed write. New reads wait meanwhile.
    pub(super) fn reopen(&self) -> Result<(), redb::DatabaseError> {
        let mut slot = self.db.write().unwrap_or_else(PoisonError::into_inner);
        Self::close_slot(&mut slot);
        *slot = Some(Arc::new((self.opener)()?));
        Ok(())
    }
}
