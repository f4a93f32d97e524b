//! The one thread that writes: takes whatever waits, runs it as one transaction, makes it durable, and only then lets
//! the answers go.

use super::batch::{Answer, Batch};
use super::beside::Beside;
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
/// The most ledger entries of one transaction: past it, jobs wait for the next one. A job that is begun is finished.
pub const BATCH_ENTRIES_MAX: usize = 8_192;
/// The most wallets that one sweep visits; the next follows at once while there are more.
pub const SWEEP_WALLETS_MAX: usize = 1_000;
/// The most feed entries that one walk for ids to forget passes; the next follows at once while there are more.
pub const FORGET_ENTRIES_MAX: u64 = 2_000;
/// How long the writer waits before it tries again to tell a watcher that lags.
const FEED_RETRY: Duration = Duration::from_millis(1);
/// How often the writer looks for what is due when nothing else happens.
const TICK: Duration = Duration::from_millis(500);
/// A store that could write nothing for longer than this, because its disk hung or was full or the process was stopped,
/// was out of reach: that goes on record as an outage, in milliseconds (rule 3).
const HUNG_MS: u64 = 1_000;
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
    /// Whether the last housekeeping ended at its limit, so that the next is due at once.
    pub(super) more_due: bool,
    /// When the store last was as it should be: by its own clock, and for measuring how long ago that is.
    pub(super) well_at: (Millis, Instant),
    /// What lies beside the file, if it is one.
    pub(super) beside: Option<Beside>,
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
        // A panic within a batch is caught there. One elsewhere would leave a store that looks alive and answers nobody.
        let shared = self.shared.clone();
        let ran = catch_unwind(AssertUnwindSafe(|| self.work()));
        if ran.is_err() {
            shared.fatal("the store's thread panicked");
        }
        let closed = catch_unwind(AssertUnwindSafe(|| shared.close()));
        let healthy = !matches!(shared.health(), Health::Down(_));
        if let (Some(beside), Some((incarnation, ..))) = (&self.beside, self.state.incarnation)
            && closed.is_ok()
            && healthy
        {
            beside.say_stopped(incarnation);
        }
        if closed.is_ok()
            && let Ok(Some(done)) = ran
        {
            let _ = done.send(());
        }
    }

    fn work(&mut self) -> Option<oneshot::Sender<()>> {
        let mut stopped = None;
        while stopped.is_none() {
            let mut jobs: Vec<Box<dyn Job>> = Vec::new();
            let mut weight = 0;
            let wait = if self.more_due { Duration::ZERO } else { TICK };
            let mut next = match self.commands.recv_timeout(wait) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(command) = next {
                match command {
                    Command::Job(job) => {
                        let added = job.weight();
                        weight += added;
                        self.shared
                            .queued_weight
                            .fetch_sub(added, Ordering::Relaxed);
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
            let hung = self.note_hang();
            let housekeeping = self.tick() || hung;
            if !jobs.is_empty() || housekeeping {
                self.commit(jobs, housekeeping);
            } else {
                self.well_at = (self.shared.clock.now(), Instant::now());
            }
        }
        // The last mark makes the outage on record begin here.
        self.commit(Vec::new(), true);
        stopped
    }

    /// Puts on record that the store could do nothing since it last was well, if that is long ago. Says whether it did.
    fn note_hang(&mut self) -> bool {
        let (well_at, since) = self.well_at;
        if self.shared.clock.elapsed_ms(since) <= HUNG_MS {
            return false;
        }
        let now = self.shared.clock.now();
        let new = self.state.outages.record(well_at, now);
        self.state.outages_unsaved |= new;
        new
    }

    /// Steers the clock, and says whether the housekeeping of a batch is due.
    fn tick(&mut self) -> bool {
        if self.last_tick.elapsed() < TICK {
            return self.more_due;
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
                self.state.outages_unsaved |= self.state.outages.record(from, to);
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
        if self.shared.health() == Health::Full {
            // Somebody must find out that there is room again, also when nobody asks for anything.
            return true;
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

    /// Runs jobs, in as few transactions as the limits allow. If that fails for a reason that lies in one of them, runs
    /// them one by one, so that only that one fails.
    fn commit(&mut self, mut jobs: Vec<Box<dyn Job>>, mut housekeeping: bool) {
        self.more_due = false;
        while housekeeping || !jobs.is_empty() {
            if let Some(error) = self.refusal() {
                return answer_all(jobs, &error);
            }
            match self.transact(&mut jobs, housekeeping) {
                Ok(ran) => {
                    let rest = jobs.split_off(ran);
                    self.shared.answer(jobs);
                    jobs = rest;
                    housekeeping = false;
                }
                Err(failure) => match self.recover(&failure) {
                    Some(error) => return answer_all(jobs, &error),
                    None if jobs.len() > 1 || (housekeeping && !jobs.is_empty()) => {
                        for job in jobs {
                            self.commit(vec![job], false);
                        }
                        return;
                    }
                    None => {
                        let why = match failure {
                            Failure::Fault(fault) => fault.to_string(),
                            Failure::Panic => "the operation panicked".into(),
                        };
                        return answer_all(jobs, &StoreError::Damaged(why));
                    }
                },
            }
        }
    }

    /// Runs one transaction. Says how many of the jobs were part of it, in their order: at least one.
    fn transact(
        &mut self,
        jobs: &mut [Box<dyn Job>],
        housekeeping: bool,
    ) -> Result<usize, Failure> {
        let began = Instant::now();
        let shared = self.shared.clone();
        let db = clone_db(&shared).ok_or(Fault::Missing("the store is closed"))?;
        let now = shared.clock.now();
        let (events, ran, more_due) = catch_unwind(AssertUnwindSafe(|| -> Result<_, Fault> {
            let mut txn = db.begin_write()?;
            // Costs a second sync a commit, and saves walking the whole file after a crash.
            txn.set_quick_repair(true);
            let mut batch = Batch::open(&txn, &mut self.state, self.limits, now)?;
            let mut ran = 0;
            for job in jobs.iter_mut() {
                job.run(&mut batch)?;
                ran += 1;
                if batch.entries_written() >= BATCH_ENTRIES_MAX {
                    break;
                }
            }
            let more_due = housekeeping && batch.keep_house()?;
            let events = batch.finish()?;
            txn.commit()?;
            Ok((events, ran, more_due))
        }))
        .map_err(|_| Failure::Panic)??;
        drop(db);
        shared.publish(&self.state);
        shared.set_health(Health::Up);
        self.note_hang();
        self.well_at = (shared.clock.now(), Instant::now());
        shared.stats.committed(ran, began.elapsed());
        self.more_due = more_due;
        self.tell(events);
        Ok(ran)
    }

    /// Tells the watcher, if there is one. One that lags holds the writer, never the other way round; one that has gone
    /// does not, nor does any once the store is to stop.
    fn tell(&self, mut events: Vec<FeedEvent>) {
        if events.is_empty() || !self.shared.watched.load(Ordering::Acquire) {
            return;
        }
        while let Err(mpsc::error::TrySendError::Full(back)) = self.feed.try_send(events) {
            if self.shared.stopping.load(Ordering::Acquire) {
                return;
            }
            events = back;
            std::thread::sleep(FEED_RETRY);
        }
    }

    /// Brings memory back to what the file says. Gives the answer for all jobs when the cause was the disk.
    fn recover(&mut self, failure: &Failure) -> Option<StoreError> {
        let counters = &self.shared.counters;
        let out_of_space = counters.out_of_space.swap(false, Ordering::Relaxed);
        // After a panic redb may hold a poisoned lock, so the file is opened again as well.
        let (text, io, reopen) = match failure {
            Failure::Panic => ("an operation panicked".to_owned(), false, true),
            Failure::Fault(fault @ Fault::Redb(_)) => (fault.to_string(), true, true),
            Failure::Fault(fault) => (fault.to_string(), false, false),
        };
        tracing::error!(error = text, "a batch was not committed");
        if counters.sync_failed.load(Ordering::Relaxed) {
            self.shared
                .fatal(&format!("the disk failed to sync: {text}"));
            return Some(StoreError::Unknown(text));
        }
        if reopen && let Err(error) = self.shared.reopen() {
            self.shared
                .fatal(&format!("the store cannot be opened again: {error}"));
            return Some(StoreError::Unknown(text));
        }
        let down = match clone_db(&self.shared).map(|db| State::read(&db)) {
            Some(Ok(mut state)) => {
                // What is not stored yet of an outage must not be lost with the batch that would have stored it.
                for (from, to) in self.state.outages.spans() {
                    state.outages_unsaved |= state.outages.record(*from, *to);
                }
                self.state = state;
                None
            }
            Some(Err(error)) => Some(format!("the store cannot be read: {error}")),
            None => Some("the store is closed".to_owned()),
        };
        if let Some(reason) = down {
            self.shared.fatal(&reason);
            return Some(StoreError::Unknown(reason));
        }
        if io && out_of_space {
            self.shared.set_health(Health::Full);
            return Some(StoreError::Full);
        }
        io.then_some(StoreError::Unknown(text))
    }

    /// Why nothing can be written now, if so.
    fn refusal(&self) -> Option<StoreError> {
        if let Health::Down(reason) = self.shared.health() {
            return Some(StoreError::Unavailable(reason));
        }
        let free = self.shared.free_bytes()?;
        (free < self.shared.min_free_bytes).then(|| {
            self.shared.set_health(Health::Full);
            StoreError::Full
        })
    }
}

fn answer_all(jobs: Vec<Box<dyn Job>>, error: &StoreError) {
    jobs.into_iter()
        .for_each(|job| job.answer(Some(error.clone())));
}

/// How long to wait before a clean stop is given up.
pub(super) const STOP_WAIT_MS: Millis = 30_000;
