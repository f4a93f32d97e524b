//! The embedded store: one file, nothing to install.
//!
//! - `keys`: what the file holds.
//! - `writer`: the one thread that writes, a batch at a time; `batch` is what it does within a transaction, `state`
//!   what it keeps in memory.
//! - `read`: reads, on threads of their own, each of one committed moment.
//! - `open`: opening: locks, identity, outages.
//! - `beside`: how a file that was put back from a copy is known.
//! - `backend`: the file itself.
//!
//! An answer is given once the batch that it belongs to is synced to disk. redb's quick repair is on, so that a start
//! after a crash does not walk the file.

mod backend;
mod batch;
mod beside;
mod keys;
mod open;
mod read;
mod shared;
mod state;
mod writer;

pub use backend::DiskCounters;
pub use open::{
    AuditStore, CACHE_BYTES_DEFAULT, FILE_NAME, MIN_FREE_BYTES_DEFAULT, OpenError, Options,
};
pub use shared::{OnFatal, WriterStats};
pub use writer::{
    BATCH_ENTRIES_MAX, BATCH_JOBS_MAX, BATCH_WEIGHT_MAX, FORGET_ENTRIES_MAX, SWEEP_WALLETS_MAX,
};

use super::{
    Adjusted, Credited, Erased, Erasure, ExportRow, FeedEvent, Health, HuntAudit, Opening, Put,
    Recorded, Reinstated, Reply, Store, StoreError,
};
use crate::game::Millis;
use crate::game::entry::{Adjustment, Entry, Totals};
use crate::game::hunt::{Hunt, HuntError, HuntSpec, LifeStep};
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::game::rules::NewFind;
use crate::game::wallet::Wallet;
use batch::{Answer, Batch};
use keys::Fault;
use redb::{ReadTransaction, ReadableDatabase};
use shared::{Shared, clone_db};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot};
use writer::{Command, Work};

/// The most jobs that wait for the writer; one more is refused as busy.
pub const QUEUE_JOBS_MAX: usize = 16_384;
/// The most finds (or things of that size) in the jobs that wait; a job that would bring more is refused as busy, unless
/// it is the only one.
pub const QUEUE_WEIGHT_MAX: usize = 131_072;
/// The most short reads at a time; more wait for their turn.
pub const READS_MAX: usize = 16;
/// The most exports and audits at a time.
pub const LONG_READS_MAX: usize = 4;
/// Batches of events on their way to the mirror; the writer waits when there are more.
pub const FEED_BATCHES_MAX: usize = 256;
/// Batches of answers on their way to the event loop; when there are more, the writer's thread answers itself.
const ANSWER_BATCHES_MAX: usize = 16;
/// Finds reinstated in one transaction.
const REINSTATE_STEP: usize = 500;
/// Batches of rows on their way out of an export.
const EXPORT_BATCHES_MAX: usize = 4;
/// How long an export waits for its reader before it ends with an error. While it lasts, no page that was in use when it
/// began can be used again, so the file grows by everything that is written.
pub const EXPORT_PATIENCE: Duration = Duration::from_secs(10);
/// How often an export looks whether its reader has taken something.
const EXPORT_RETRY: Duration = Duration::from_millis(5);

/// The embedded store.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    identity: [u8; 16],
    queue: Queue,
    feed: Mutex<Option<mpsc::Receiver<Vec<FeedEvent>>>>,
    reads: Arc<Semaphore>,
    long_reads: Arc<Semaphore>,
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("it is stopped".into())
}

fn read_error(fault: &Fault) -> StoreError {
    match fault {
        Fault::Redb(redb::Error::PreviousIo | redb::Error::DatabaseClosed) => unavailable(),
        Fault::Redb(redb::Error::Io(error)) => StoreError::Unavailable(error.to_string()),
        fault => StoreError::Damaged(fault.to_string()),
    }
}

/// The way to the writer.
#[derive(Clone)]
struct Queue {
    commands: SyncSender<Command>,
    shared: Arc<Shared>,
}

impl Queue {
    /// Hands work to the writer. The future gives its answer; dropping the future does not undo the work.
    fn write<T, F>(&self, weight: usize, work: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Batch<'_, '_>) -> Answer<T> + Send + 'static,
    {
        let queued = &self.shared.queued_weight;
        let before = queued.fetch_add(weight, Ordering::Relaxed);
        if before > 0 && before + weight > QUEUE_WEIGHT_MAX {
            queued.fetch_sub(weight, Ordering::Relaxed);
            return failed(StoreError::Busy);
        }
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Work {
            work,
            weight,
            result: None,
            reply,
        });
        match self.commands.try_send(Command::Job(job)) {
            Ok(()) => Box::pin(async move { answer.await.unwrap_or_else(|_| Err(unavailable())) }),
            Err(error) => {
                queued.fetch_sub(weight, Ordering::Relaxed);
                failed(match error {
                    TrySendError::Full(_) => StoreError::Busy,
                    TrySendError::Disconnected(_) => unavailable(),
                })
            }
        }
    }
}

impl EmbeddedStore {
    fn write<T, F>(&self, weight: usize, work: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Batch<'_, '_>) -> Answer<T> + Send + 'static,
    {
        self.queue.write(weight, work)
    }

    /// Reads one moment on a thread that may block.
    fn read<T, F>(&self, gate: &Arc<Semaphore>, work: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(&ReadTransaction) -> Result<T, Fault> + Send + 'static,
    {
        let (shared, gate) = (self.shared.clone(), gate.clone());
        Box::pin(async move {
            let Ok(permit) = gate.acquire_owned().await else {
                return Err(unavailable());
            };
            let read = move || {
                // Kept until the read is done, also when nobody waits for it any more.
                let _permit = permit;
                let db = clone_db(&shared).ok_or_else(unavailable)?;
                let txn = db.begin_read().map_err(|error| read_error(&error.into()))?;
                drop(db);
                work(&txn).map_err(|fault| read_error(&fault))
            };
            crate::blocking::spawn(read)
                .await
                .unwrap_or_else(|_| Err(StoreError::Damaged("a read panicked".into())))
        })
    }

    fn hunt_number(&self, hunt: &HuntId) -> Result<u32, StoreError> {
        self.shared
            .hunt(hunt)
            .map(|(hunt, _)| hunt.number)
            .ok_or(StoreError::NoSuchHunt)
    }

    /// Random bytes, written once: which store this is.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        self.identity
    }

    /// What the disk did.
    #[must_use]
    pub fn disk(&self) -> &DiskCounters {
        &self.shared.counters
    }

    /// What the writer did.
    #[must_use]
    pub fn writer_stats(&self) -> &WriterStats {
        &self.shared.stats
    }

    /// Lets answers go on this event loop from now on, a batch at a time. Without it the writer's thread wakes the loop
    /// once for every answer, a system call each: measured, 1 to 3 of the 17 µs that it spends on a find. The loop must be
    /// running for as long as answers are awaited; once it has been shut down the writer's thread answers again.
    pub fn answer_on(&self, event_loop: &tokio::runtime::Handle) {
        let (sender, receiver) = mpsc::channel(ANSWER_BATCHES_MAX);
        let mut answering = Answering(receiver);
        event_loop.spawn(async move {
            while let Some(jobs) = answering.0.recv().await {
                jobs.into_iter().for_each(|job| job.answer(None));
            }
        });
        let current = self.shared.answers.lock();
        *current.unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    /// Finishes what waits for the writer and closes the file. What comes later is answered `Unavailable`.
    ///
    /// # Errors
    /// When that took longer than half a minute; everything acknowledged is on disk all the same.
    pub async fn stop(&self) -> Result<(), StoreError> {
        self.shared.stopping.store(true, Ordering::Release);
        let (done, stopped) = oneshot::channel();
        let mut command = Command::Stop(done);
        let wait = Duration::from_millis(writer::STOP_WAIT_MS);
        let stop = async {
            loop {
                match self.queue.commands.try_send(command) {
                    Ok(()) => break,
                    Err(TrySendError::Disconnected(_)) => return,
                    Err(TrySendError::Full(back)) => command = back,
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let _ = stopped.await;
        };
        tokio::time::timeout(wait, stop)
            .await
            .map_err(|_| StoreError::Unavailable("it did not stop in time".into()))
    }
}

/// Hands rows to an export's reader, who may be slow, but not for ever.
fn send_rows(
    rows: &mpsc::Sender<Result<Vec<ExportRow>, StoreError>>,
    batch: Vec<ExportRow>,
) -> Result<(), StoreError> {
    let began = Instant::now();
    let mut batch = Ok(batch);
    loop {
        match rows.try_send(batch) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(unavailable()),
            Err(mpsc::error::TrySendError::Full(_)) if began.elapsed() > EXPORT_PATIENCE => {
                let why = "the export's reader took nothing for too long";
                return Err(StoreError::Unavailable(why.into()));
            }
            Err(mpsc::error::TrySendError::Full(back)) => batch = back,
        }
        std::thread::sleep(EXPORT_RETRY);
    }
}

/// Answers on their way to an event loop. One that is shut down lets go what was under way.
struct Answering(mpsc::Receiver<shared::Answers>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.close();
        while let Ok(jobs) = self.0.try_recv() {
            jobs.into_iter().for_each(|job| job.answer(None));
        }
    }
}

fn failed<T: Send + 'static>(error: StoreError) -> Reply<T> {
    Box::pin(std::future::ready(Err(error)))
}

impl Store for EmbeddedStore {
    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    fn health(&self) -> Health {
        self.shared.health()
    }

    fn open_players(&self, players: Vec<Opening>) -> Reply<Vec<Result<PlayerId, Erased>>> {
        let names: Vec<PlayerName> = players.iter().map(|opening| opening.name.clone()).collect();
        let known = self.read(&self.reads, move |txn| read::known_players(txn, &names));
        let queue = self.queue.clone();
        Box::pin(async move {
            if let Some(numbers) = known.await? {
                return Ok(numbers.into_iter().map(Ok).collect());
            }
            let weight = players.len();
            queue
                .write(weight, move |batch| batch.open_players(&players).map(Ok))
                .await
        })
    }

    fn wallet(&self, hunt: &HuntId, player: PlayerId) -> Reply<Wallet> {
        match self.hunt_number(hunt) {
            Ok(number) => self.read(&self.reads, move |txn| read::wallet(txn, number, player)),
            Err(error) => failed(error),
        }
    }

    fn record(&self, hunt: &HuntId, finds: Vec<(PlayerId, NewFind)>) -> Reply<Recorded> {
        let hunt = hunt.clone();
        self.write(finds.len(), move |batch| batch.record(&hunt, &finds))
    }

    fn credit(&self, hunt: &HuntId, player: PlayerId) -> Reply<Credited> {
        let hunt = hunt.clone();
        self.write(1, move |batch| batch.credit(&hunt, player))
    }

    fn adjust(&self, hunt: &HuntId, player: PlayerId, adjustment: Adjustment) -> Reply<Adjusted> {
        let hunt = hunt.clone();
        self.write(1, move |batch| {
            batch.adjust(&hunt, player, adjustment.clone())
        })
    }

    fn history(
        &self,
        hunt: &HuntId,
        player: PlayerId,
        before: u64,
        limit: usize,
    ) -> Reply<Vec<Entry>> {
        match self.hunt_number(hunt) {
            Ok(number) => self.read(&self.reads, move |txn| {
                read::history(txn, number, player, before, limit)
            }),
            Err(error) => failed(error),
        }
    }

    fn reinstate(&self, hunt: &HuntId, from: Millis, to: Millis) -> Reply<Reinstated> {
        let number = match self.hunt_number(hunt) {
            Ok(number) => number,
            Err(error) => return failed(error),
        };
        let lost = self.read(&self.long_reads, move |txn| {
            read::lost_to_outage(txn, number, from, to)
        });
        let (hunt, queue) = (hunt.clone(), self.queue.clone());
        Box::pin(async move {
            let mut sum = Reinstated::default();
            for step in lost.await?.chunks(REINSTATE_STEP) {
                let (hunt, step) = (hunt.clone(), step.to_vec());
                let done = queue
                    .write(step.len(), move |batch| batch.reinstate(&hunt, &step))
                    .await?;
                sum.finds += done.finds;
                sum.coins += done.coins;
                sum.refused += done.refused;
            }
            Ok(sum)
        })
    }

    fn erase(&self, name: &PlayerName) -> Reply<Erasure> {
        let name = name.clone();
        self.write(1, move |batch| batch.erase(&name))
    }

    fn put_hunt(&self, spec: HuntSpec) -> Reply<Result<(Arc<Hunt>, Put), HuntError>> {
        let weight = spec.treasures.len() / 10;
        self.write(weight, move |batch| batch.put_hunt(spec.clone()))
    }

    fn step_hunt(&self, hunt: &HuntId, step: LifeStep) -> Reply<Result<Arc<Hunt>, HuntError>> {
        let hunt = hunt.clone();
        self.write(1, move |batch| batch.step_hunt(&hunt, step))
    }

    fn hunts(&self) -> Reply<Vec<(Arc<Hunt>, Totals)>> {
        let hunts = self.shared.hunts();
        Box::pin(std::future::ready(Ok(hunts)))
    }

    fn export(&self, hunt: &HuntId) -> Reply<mpsc::Receiver<Result<Vec<ExportRow>, StoreError>>> {
        let number = match self.hunt_number(hunt) {
            Ok(number) => number,
            Err(error) => return failed(error),
        };
        let (sender, receiver) = mpsc::channel(EXPORT_BATCHES_MAX);
        let rows = sender.clone();
        let export = self.read(&self.long_reads, move |txn| {
            let mut sent = Ok(());
            read::export(txn, number, |batch| {
                sent = send_rows(&rows, batch);
                sent.is_ok()
            })?;
            Ok(sent)
        });
        Box::pin(async move {
            tokio::spawn(async move {
                if let Err(error) = export.await.and_then(|sent| sent) {
                    let _ = sender.send(Err(error)).await;
                }
            });
            Ok(receiver)
        })
    }

    fn verify(&self, hunt: Option<&HuntId>) -> Reply<Vec<HuntAudit>> {
        let hunts: Vec<Arc<Hunt>> = match hunt {
            Some(id) => match self.shared.hunt(id) {
                Some((hunt, _)) => vec![hunt],
                None => return failed(StoreError::NoSuchHunt),
            },
            None => self
                .shared
                .hunts()
                .into_iter()
                .map(|(hunt, _)| hunt)
                .collect(),
        };
        self.read(&self.long_reads, move |txn| {
            hunts.iter().map(|hunt| read::audit(txn, hunt)).collect()
        })
    }

    fn feed(&self) -> Option<mpsc::Receiver<Vec<FeedEvent>>> {
        let feed = self
            .feed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.shared.watched.store(true, Ordering::Release);
        feed
    }
}
