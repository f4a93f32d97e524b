//! The one thread that writes: takes whatever waits, runs it as one transaction, makes it durable, and only then lets
//! the answers go.

use super::batch::{Answer, Batch};
use super::keys::{DUE, Fault, parse_due_key};
use super::shared::{Shared, clone_db};
use super::state::State;
use crate::game::Millis;
use crate::game::rules::Limits;
use crate::store::clock::Steered;
use crate::store::{FeedEvent, Health, StoreError};
use redb::{ReadableDatabase, ReadableTable};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The most jobs in one transaction.
pub const BATCH_JOBS_MAX: usize = 1_024;
/// The most finds (or things of that size) in one transaction, so that one batch stays short.
pub const BATCH_WEIGHT_MAX: usize = 4_096;
/// The most wallets that one sweep visits; the next follows at once while there are more.
pub const SWEEP_WALLETS_MAX: usize = 1_000;
/// The most feed entries that one walk for ids to forget passes.
pub const FORGET_ENTRIES_MAX: u64 = 2_000;
/// How often the writer looks for what is due when nothing else happens.
const TICK: Duration = Duration::from_millis(500);
/// While something is pending, the file says at least this often that the store is up, in milliseconds; so long may an
/// outage on record be longer than it was.
const ALIVE_MARK_MS: u64 = 1_000;

/// Something to do in a batch. It may be run again after a batch that failed, and is answered once.
pub(super) trait Job: Send {
    /// Does it, and keeps the answer.
    fn run(&mut self, batch: &mut Batch<'_, '_>) -> Result<(), Fault>;
    /// Lets the answer go; an error takes its place.
    fn answer(self: Box<Self>, failed: Option<StoreError>);
    /// About how many finds it is worth.
    fn weight(&self) -> usize;
}

/// A job from a closure.
pub(super) struct Work<T, F> {
    pub(super) work: F,
    pub(super) weight: usize,
    pub(super) result: Option<Result<T, StoreError>>,
    pub(super) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&mut Batch<'_, '_>) -> Answer<T> + Send> Job for Work<T, F> {
    fn run(&mut self, batch: &mut Batch<'_, '_>) -> Result<(), Fault> {
        self.result = Some((self.work)(batch)?);
        Ok(())
    }

    fn answer(self: Box<Self>, failed: Option<StoreError>) {
        let Self { result, reply, .. } = *self;
        let lost = || Err(StoreError::Unavailable("the store gave no answer".into()));
        // Whoever asked may have gone; what was done stays done.
        let _ = reply.send(failed.map_or_else(|| result.unwrap_or_else(lost), Err));
    }

    fn weight(&self) -> usize {
        self.weight
    }
}

/// What the thread is told.
pub(super) enum Command {
    Job(Box<dyn Job>),
    /// Finish what waits, close the file, and say so.
    Stop(oneshot::Sender<()>),
}

/// The thread's state.
pub(super) struct Writer {
    pub(super) commands: Receiver<Command>,
    pub(super) shared: Arc<Shared>,
    pub(super) state: State,
    pub(super) limits: Limits,
    pub(super) feed: mpsc::Sender<Vec<FeedEvent>>,
    pub(super) last_tick: Instant,
    pub(super) warned_behind: bool,
}

/// Why a batch came to nothing.
enum Failure {
    Fault(Fault),
    Panic,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Writer {
    /// Runs until it is told to stop, or until everybody who could tell it is gone.
    pub(super) fn run(mut self) {
        let mut stopped = None;
        while stopped.is_none() {
            let mut jobs: Vec<Box<dyn Job>> = Vec::new();
            let mut weight = 0;
            let mut next = match self.commands.recv_timeout(TICK) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(command) = next {
                match command {
                    Command::Job(job) => {
                        weight += job.weight();
                        jobs.push(job);
                    }
                    Command::Stop(done) => stopped = Some(done),
                }
                let full =
                    jobs.len() >= BATCH_JOBS_MAX || weight >= BATCH_WEIGHT_MAX || stopped.is_some();
                next = if full {
                    None
                } else {
                    self.commands.try_recv().ok()
                };
            }
            let housekeeping = self.tick();
            if !jobs.is_empty() || housekeeping {
                self.commit(jobs, housekeeping);
            }
        }
        // The last mark makes the outage on record begin here.
        self.commit(Vec::new(), true);
        self.shared.close();
        if let Some(done) = stopped {
            let _ = done.send(());
        }
    }

    /// Steers the clock, and says whether the housekeeping of a batch is due.
    fn tick(&mut self) -> bool {
        if self.last_tick.elapsed() < TICK {
            return false;
        }
        self.last_tick = Instant::now();
        match self.shared.clock.steer() {
            Steered::Close => self.warned_behind = false,
            Steered::Forward(from, to) => {
                tracing::warn!(
                    from_ms = from,
                    to_ms = to,
                    "the clock stepped forward; on record as an outage"
                );
                self.state.outages.record(from, to);
                return true;
            }
            Steered::Behind(behind_ms) if !self.warned_behind => {
                self.warned_behind = true;
                tracing::warn!(
                    behind_ms,
                    "the wall clock is behind the store's, which does not run backwards"
                );
            }
            Steered::Behind(_) => {}
        }
        let now = self.shared.clock.now();
        if self.state.forgotten_to < self.state.feed_position && self.state.forget_at <= now {
            return true;
        }
        match self.earliest_due() {
            Ok(Some(due_at)) => {
                due_at < now || now.saturating_sub(self.state.alive_at) >= ALIVE_MARK_MS
            }
            Ok(None) => false,
            Err(fault) => {
                tracing::error!(%fault, "cannot read what is due");
                false
            }
        }
    }

    fn earliest_due(&self) -> Result<Option<Millis>, Fault> {
        let Some(db) = clone_db(&self.shared) else {
            return Ok(None);
        };
        let txn = db.begin_read()?;
        let due = txn.open_table(DUE)?;
        let first = due.first()?;
        Ok(first
            .and_then(|(key, _)| parse_due_key(key.value()))
            .map(|(due_at, ..)| due_at))
    }

    /// Runs jobs as one transaction. If that fails for a reason that lies in one of them, runs them one by one, so that
    /// only that one fails.
    fn commit(&mut self, mut jobs: Vec<Box<dyn Job>>, housekeeping: bool) {
        if self.disk_is_full() {
            jobs.into_iter()
                .for_each(|job| job.answer(Some(StoreError::Full)));
            return;
        }
        match self.transact(&mut jobs, housekeeping) {
            Ok(()) => jobs.into_iter().for_each(|job| job.answer(None)),
            Err(failure) => {
                let io = self.recover(&failure);
                if let Some(error) = io {
                    jobs.into_iter()
                        .for_each(|job| job.answer(Some(error.clone())));
                } else if jobs.len() > 1 || (housekeeping && !jobs.is_empty()) {
                    for job in jobs {
                        self.commit(vec![job], false);
                    }
                } else {
                    let error = match failure {
                        Failure::Fault(fault) => StoreError::Damaged(fault.to_string()),
                        Failure::Panic => StoreError::Damaged("the operation panicked".into()),
                    };
                    jobs.into_iter()
                        .for_each(|job| job.answer(Some(error.clone())));
                }
            }
        }
    }

    fn transact(&mut self, jobs: &mut [Box<dyn Job>], housekeeping: bool) -> Result<(), Failure> {
        let began = Instant::now();
        let shared = self.shared.clone();
        let db = clone_db(&shared).ok_or(Fault::Missing("the store is closed"))?;
        let now = shared.clock.now();
        let events = catch_unwind(AssertUnwindSafe(|| -> Result<_, Fault> {
            let mut txn = db.begin_write()?;
            // Costs a second sync a commit, and saves walking the whole file after a crash.
            txn.set_quick_repair(true);
            let mut batch = Batch::open(&txn, &mut self.state, self.limits, now)?;
            for job in jobs.iter_mut() {
                job.run(&mut batch)?;
            }
            if housekeeping {
                batch.keep_house(SWEEP_WALLETS_MAX, FORGET_ENTRIES_MAX)?;
            }
            let events = batch.finish()?;
            txn.commit()?;
            Ok(events)
        }))
        .map_err(|_| Failure::Panic)??;
        drop(db);
        shared.publish(&self.state);
        shared.stats.committed(jobs.len(), began.elapsed());
        if !events.is_empty() && shared.watched.load(Ordering::Acquire) {
            // The watcher may have gone since; and one that lags holds the writer, never the other way round.
            let _ = self.feed.blocking_send(events);
        }
        Ok(())
    }

    /// Brings memory back to what the file says. Gives the answer for all jobs when the cause was the disk.
    fn recover(&mut self, failure: &Failure) -> Option<StoreError> {
        let counters = &self.shared.counters;
        let out_of_space = counters.out_of_space.swap(false, Ordering::Relaxed);
        let (text, io) = match failure {
            Failure::Panic => ("an operation panicked".to_owned(), false),
            Failure::Fault(fault) => (fault.to_string(), matches!(fault, Fault::Redb(_))),
        };
        tracing::error!(error = text, "a batch was not committed");
        if counters.sync_failed.load(Ordering::Relaxed) {
            self.shared
                .fatal(&format!("the disk failed to sync: {text}"));
            return Some(StoreError::Unknown(text));
        }
        if io && let Err(error) = self.shared.reopen() {
            self.shared
                .fatal(&format!("the store cannot be opened again: {error}"));
            return Some(StoreError::Unknown(text));
        }
        match clone_db(&self.shared).map(|db| State::read(&db)) {
            Some(Ok(mut state)) => {
                // What is not stored yet of an outage must not be lost with the batch that would have stored it.
                for (from, to) in self.state.outages.spans() {
                    state.outages.record(*from, *to);
                }
                self.state = state;
            }
            Some(Err(error)) => self
                .shared
                .fatal(&format!("the store cannot be read: {error}")),
            None => self.shared.fatal("the store is closed"),
        }
        io.then_some(if out_of_space {
            StoreError::Full
        } else {
            StoreError::Unknown(text)
        })
    }

    fn disk_is_full(&self) -> bool {
        let full = self
            .shared
            .free_bytes()
            .is_some_and(|free| free < self.shared.min_free_bytes);
        self.shared
            .set_health(if full { Health::Full } else { Health::Up });
        full
    }
}

/// How long to wait before a clean stop is given up.
pub(super) const STOP_WAIT_MS: Millis = 30_000;
