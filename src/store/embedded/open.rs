//! Opening the store: who may, what state the file is in, how long it was away, and whether it is still the same file.

use super::backend::{CountingBackend, DiskCounters};
use super::batch::Batch;
use super::beside::Beside;
use super::keys::{
    DUE, ERASED, ERASED_NAMES, FEED, FOUND, Fault, HUNTS, META, NAMES, PLAYERS, ROWS,
    SCHEMA_VERSION, TOTALS, decode, encode, meta,
};
use super::shared::{OnFatal, Opener, Shared};
use super::state::State;
use super::writer::Writer;
use super::{
    EmbeddedStore, FEED_BATCHES_MAX, LONG_READS_MAX, QUEUE_JOBS_MAX, Queue, READS_MAX, read,
};
use crate::game::hunt::Hunt;
use crate::game::ids::HuntId;
use crate::game::rules::Limits;
use crate::store::clock::{StoreClock, SystemTimeSource, TimeSource};
use crate::store::{ExportRow, HuntAudit};
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend,
};
use rustix::fs::FlockOperation;
use std::any::Any;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc};

/// The store's file in its directory.
pub const FILE_NAME: &str = "trove.redb";
/// Where the file is made before it has that name, so that a crash while it is made leaves no broken store.
const NEW_FILE_NAME: &str = "trove.redb.new";

/// How to open a store.
pub struct Options {
    /// The directory; made if it is missing.
    pub dir: PathBuf,
    /// The rules' limits.
    pub limits: Limits,
    /// Memory for pages of the file, in bytes.
    pub cache_bytes: usize,
    /// Below so much free space on the file system, writes are refused.
    pub min_free_bytes: u64,
    /// The machine's clocks, or a test's.
    pub time: Arc<dyn TimeSource>,
    /// Called when the store can no longer be trusted.
    pub on_fatal: OnFatal,
}

/// Memory for pages of the file unless set otherwise.
pub const CACHE_BYTES_DEFAULT: usize = 256 << 20;
/// Free space below which writes are refused unless set otherwise.
pub const MIN_FREE_BYTES_DEFAULT: u64 = 64 << 20;

impl Options {
    /// The usual options for a directory. A store that can no longer be trusted says so in the log only.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            limits: Limits::default(),
            cache_bytes: CACHE_BYTES_DEFAULT,
            min_free_bytes: MIN_FREE_BYTES_DEFAULT,
            time: Arc::new(SystemTimeSource::default()),
            on_fatal: Box::new(|reason| tracing::error!(reason, "the store cannot go on")),
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another process is using the store in {}; stop it, or use another directory", .0.display())]
    InUse(PathBuf),
    /// There is no store there.
    #[error("there is no store in {}", .0.display())]
    Missing(PathBuf),
    /// A newer version of Trove wrote it.
    #[error(
        "the store has schema version {found}, this version of Trove knows {known}; use a newer one"
    )]
    TooNew {
        /// The file's.
        found: u32,
        /// This version's.
        known: u32,
    },
    /// The file is damaged, or no store at all.
    #[error("{} is damaged or not a store: {why}; restore it from a backup, nothing was changed", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// The file system refused.
    #[error("cannot open the store in {}: {source}", .path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// Its error.
        source: std::io::Error,
    },
}

fn open_error(path: &Path, error: DatabaseError) -> OpenError {
    let damaged = |why: String| OpenError::Damaged {
        path: path.to_owned(),
        why,
    };
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            OpenError::InUse(path.parent().unwrap_or(path).to_owned())
        }
        DatabaseError::Storage(redb::StorageError::Io(source)) => match source.kind() {
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => damaged(source.to_string()),
            ErrorKind::NotFound => OpenError::Missing(path.parent().unwrap_or(path).to_owned()),
            _ => OpenError::Io {
                path: path.to_owned(),
                source,
            },
        },
        other => damaged(other.to_string()),
    }
}

/// redb checks what it reads, but a file cut or overwritten in the wrong place can still make it panic; to whoever
/// opens the store that is one more way of being damaged.
fn without_panic<T>(
    path: &Path,
    open: impl FnOnce() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(open)).unwrap_or_else(|_| {
        Err(OpenError::Damaged {
            path: path.to_owned(),
            why: "it cannot be read".into(),
        })
    })
}

impl EmbeddedStore {
    /// Opens the store in a directory, or makes one there.
    ///
    /// # Errors
    /// Says whether somebody else has it, whether it is damaged, too new, or out of reach.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let dir = options.dir.clone();
        let io = |source| OpenError::Io {
            path: dir.clone(),
            source,
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(io)?;
        let path = dir.join(FILE_NAME);
        create_file(&dir, &path)?;
        let counters = Arc::new(DiskCounters::default());
        let (file, shared_counters, cache_bytes) =
            (path.clone(), counters.clone(), options.cache_bytes);
        let opener: Opener = Box::new(move || {
            let backend = CountingBackend::file(&file, shared_counters.clone())?;
            Builder::new()
                .set_cache_size(cache_bytes)
                .create_with_backend(backend)
        });
        without_panic(&path, || {
            Self::start(options, opener, counters, Some(&path))
        })
    }

    /// Opens a store on something other than a file. For tests of what a real disk cannot be made to do.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub fn open_backend<B: StorageBackend>(
        options: Options,
        backend: impl Fn() -> B + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let counters = Arc::new(DiskCounters::default());
        let (shared_counters, cache_bytes) = (counters.clone(), options.cache_bytes);
        let opener: Opener = Box::new(move || {
            let backend = CountingBackend::around(backend(), shared_counters.clone());
            Builder::new()
                .set_cache_size(cache_bytes)
                .create_with_backend(backend)
        });
        Self::start(options, opener, counters, None)
    }

    fn start(
        options: Options,
        opener: Opener,
        counters: Arc<DiskCounters>,
        path: Option<&Path>,
    ) -> Result<Self, OpenError> {
        let shown = path.unwrap_or(Path::new(FILE_NAME)).to_owned();
        let damaged = |fault: Fault| OpenError::Damaged {
            path: shown.clone(),
            why: fault.to_string(),
        };
        // Before redb writes to it.
        let beside = path.map(Beside::new);
        let db = opener().map_err(|error| open_error(&shown, error))?;
        check_schema(&db, &shown)?;
        let (state, clock) = set_up(&db, &options, beside.as_ref()).map_err(damaged)?;
        if let (Some(beside), Some((incarnation, ..))) = (&beside, state.incarnation) {
            beside
                .say_running(incarnation)
                .map_err(|source| OpenError::Io {
                    path: beside.path.clone(),
                    source,
                })?;
        }
        let dir = path.and_then(Path::parent).map(Path::to_owned);
        let shared = Arc::new(Shared::new(
            db,
            opener,
            clock,
            state.epoch,
            dir,
            options.min_free_bytes,
            counters,
            options.on_fatal,
        ));
        shared.publish(&state);
        let identity = state.identity;
        let (commands, receiver) = std_mpsc::sync_channel(QUEUE_JOBS_MAX);
        let (feed, feed_receiver) = mpsc::channel(FEED_BATCHES_MAX);
        let well_at = (shared.clock.now(), Instant::now());
        let writer = Writer {
            well_at,
            commands: receiver,
            shared: shared.clone(),
            state,
            limits: options.limits,
            feed,
            last_tick: Instant::now(),
            warned_behind: false,
            more_due: false,
            beside,
        };
        std::thread::Builder::new()
            .name("trove-store".into())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Io {
                path: shown.clone(),
                source,
            })?;
        Ok(Self {
            identity,
            queue: Queue {
                commands,
                shared: shared.clone(),
            },
            shared,
            feed: Mutex::new(Some(feed_receiver)),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            long_reads: Arc::new(Semaphore::new(LONG_READS_MAX)),
        })
    }
}

/// Makes an empty file if there is none: under another name, synced, then renamed, and the directory synced too.
fn create_file(dir: &Path, path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io {
        path: dir.to_owned(),
        source,
    };
    match std::fs::metadata(path) {
        // redb takes an empty file for a new one; this one was a store, or is none.
        Ok(file) if file.len() == 0 => {
            return Err(OpenError::Damaged {
                path: path.to_owned(),
                why: "it is empty".into(),
            });
        }
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let locked = File::open(dir).map_err(io)?;
    match rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::InUse(dir.to_owned())),
        Err(error) => return Err(io(error.into())),
    }
    if path.exists() {
        return Ok(());
    }
    let new = dir.join(NEW_FILE_NAME);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let db = Builder::new()
        .create(&new)
        .map_err(|error| open_error(&new, error))?;
    db.close().map_err(|error| open_error(&new, error))?;
    File::open(&new)
        .and_then(|file| file.sync_all())
        .map_err(io)?;
    std::fs::rename(&new, path).map_err(io)?;
    locked.sync_all().map_err(io)
}

/// Refuses a file of a newer layout before anything is written to it.
fn check_schema(db: &Database, path: &Path) -> Result<(), OpenError> {
    let damaged = |fault: Fault| OpenError::Damaged {
        path: path.to_owned(),
        why: fault.to_string(),
    };
    let txn = db.begin_read().map_err(|error| damaged(error.into()))?;
    let table = match txn.open_table(META) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(damaged(error.into())),
    };
    let version = table
        .get(meta::SCHEMA)
        .map_err(|error| damaged(error.into()))?;
    let Some(version) = version else {
        return Ok(());
    };
    let found = decode(version.value()).map_err(damaged)?;
    if found > SCHEMA_VERSION {
        Err(OpenError::TooNew {
            found,
            known: SCHEMA_VERSION,
        })
    } else {
        Ok(())
    }
}

fn random<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| Fault::Missing("the system has no randomness"))?;
    Ok(bytes)
}

/// Writes what a new store needs, and for any store: the tables, this start's incarnation, the outage since the store
/// was last known to be up, and a new epoch if the file is not the one that the last start left.
fn set_up(
    db: &Database,
    options: &Options,
    beside: Option<&Beside>,
) -> Result<(State, StoreClock), Fault> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    let fresh = {
        let mut table = txn.open_table(META)?;
        let fresh = table.get(meta::SCHEMA)?.is_none();
        if fresh {
            // From the clock, so that a cursor of another store that had this place says `reset` rather than nothing.
            let epoch: u64 = options.time.wall_ms().max(1);
            table.insert(meta::SCHEMA, encode(&SCHEMA_VERSION)?.as_slice())?;
            table.insert(meta::IDENTITY, encode(&random::<16>()?)?.as_slice())?;
            table.insert(meta::SECRET, encode(&random::<32>()?)?.as_slice())?;
            table.insert(meta::EPOCH, encode(&epoch)?.as_slice())?;
        }
        fresh
    };
    txn.open_table(HUNTS)?;
    txn.open_table(TOTALS)?;
    txn.open_table(FOUND)?;
    txn.open_table(PLAYERS)?;
    txn.open_table(NAMES)?;
    txn.open_table(ERASED_NAMES)?;
    txn.open_table(ERASED)?;
    txn.open_table(ROWS)?;
    txn.open_table(DUE)?;
    txn.open_table(FEED)?;
    txn.commit()?;

    let mut state = State::read(db)?;
    let clock = StoreClock::new(options.time.clone(), state.alive_at);
    let now = clock.now();
    if !fresh {
        if beside.is_some_and(|beside| beside.is_restored(&state)) {
            // From the clock, so that a second restore of the same copy does not use the same epoch again.
            state.epoch = (state.epoch + 1).max(now);
            tracing::warn!(
                epoch = state.epoch,
                "the store's file was restored or moved; a new epoch begins"
            );
        }
        state.outages_unsaved = state.outages.record(state.alive_at, now);
    }
    let (device, inode) = beside.map_or((0, 0), |beside| beside.inode);
    state.incarnation = Some((u64::from_le_bytes(random::<8>()?), device, inode));
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    let (epoch, incarnation) = (state.epoch, state.incarnation);
    let mut batch = Batch::open(&txn, &mut state, options.limits, now)?;
    batch.set_meta(meta::EPOCH, &epoch)?;
    if let Some(incarnation) = incarnation {
        batch.set_meta(meta::INCARNATION, &incarnation)?;
    }
    batch.finish()?;
    txn.commit()?;
    Ok((state, clock))
}

/// A store that nobody serves, opened to be audited or exported.
pub struct AuditStore {
    txn: ReadTransaction,
    /// Kept open: closing a database ends its reads.
    _db: Box<dyn Any + Send>,
}

impl AuditStore {
    /// Opens the store in a directory without changing it, unless a crash left it in need of repair.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`]; [`OpenError::InUse`] when a server has it, which can be asked instead.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE_NAME);
        without_panic(&path, || {
            let damaged = |fault: Fault| OpenError::Damaged {
                path: path.clone(),
                why: fault.to_string(),
            };
            let (txn, db): (_, Box<dyn Any + Send>) = match Builder::new().open_read_only(&path) {
                Ok(db) => (db.begin_read(), Box::new(db)),
                Err(DatabaseError::RepairAborted) => {
                    let db = Builder::new()
                        .open(&path)
                        .map_err(|error| open_error(&path, error))?;
                    (db.begin_read(), Box::new(db))
                }
                Err(error) => return Err(open_error(&path, error)),
            };
            Ok(Self {
                txn: txn.map_err(|error| damaged(error.into()))?,
                _db: db,
            })
        })
    }

    /// Reads, and takes a panic of redb over what it reads for the damage it is.
    fn read<T>(&self, read: impl FnOnce(&Self) -> Result<T, Fault>) -> Result<T, String> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(self)))
            .unwrap_or(Err(Fault::Missing("the file is damaged")))
            .map_err(|fault| fault.to_string())
    }

    fn hunts(&self) -> Result<Vec<Hunt>, Fault> {
        let table = self.txn.open_table(HUNTS)?;
        table
            .iter()?
            .map(|row| {
                let mut hunt: Hunt = decode(row?.1.value())?;
                hunt.index();
                Ok(hunt)
            })
            .collect()
    }

    /// Audits one hunt or all; `None` when there is no such hunt.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn verify(&self, hunt: Option<&HuntId>) -> Result<Option<Vec<HuntAudit>>, String> {
        self.read(|store| {
            let mut audits = Vec::new();
            for each in store.hunts()? {
                if hunt.is_none_or(|id| *id == each.spec.id) {
                    audits.push(read::audit(&store.txn, &each)?);
                }
            }
            Ok((hunt.is_none() || !audits.is_empty()).then_some(audits))
        })
    }

    /// Hands the rows of an export to `send` until it says that nobody listens; `false` when there is no such hunt.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn export(
        &self,
        hunt: &HuntId,
        send: impl FnMut(Vec<ExportRow>) -> bool,
    ) -> Result<bool, String> {
        self.read(|store| {
            let hunts = store.hunts()?;
            let Some(hunt) = hunts.iter().find(|each| each.spec.id == *hunt) else {
                return Ok(false);
            };
            read::export(&store.txn, hunt.number, send)?;
            Ok(true)
        })
    }
}
