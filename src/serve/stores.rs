//! Opening the store that the settings name, and what the process does with it besides answering requests.

use super::run::ServeError;
use super::socket;
use crate::config::{Durability, Settings, StorePlace};
use crate::game::rules;
use crate::store::Store;
use crate::store::clock::SystemTimeSource;
use crate::store::embedded::{self, EmbeddedStore};
use crate::store::redis::{self, RedisStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

/// The store of this process.
pub(super) struct Opened {
    /// The store.
    pub(super) store: Arc<dyn Store>,
    /// What it is called in the log; never with a password.
    pub(super) name: String,
    embedded: Option<Arc<EmbeddedStore>>,
    redis: Option<Arc<RedisStore>>,
    /// The socket in an embedded store's directory.
    pub(super) socket: Option<(UnixListener, PathBuf)>,
    /// Says why the store can no longer be trusted, if it comes to that.
    pub(super) broken: mpsc::Receiver<String>,
    /// Keeps `broken` open where nothing is ever said.
    _broke: mpsc::Sender<String>,
}

/// What the store counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskWork {
    /// Transactions committed.
    pub(super) batches: u64,
    /// `fdatasync` calls.
    pub(super) syncs: u64,
    /// What came back after failovers.
    pub(super) replay: redis::ReplayCounts,
}

/// Reads [`DiskWork`]; a store that does none of it says 0.
pub(super) type ReadDiskWork = Arc<dyn Fn() -> DiskWork + Send + Sync>;

pub(super) fn limits(settings: &Settings) -> rules::Limits {
    rules::Limits {
        pending_finds_max: settings.game.pending_finds_max,
        find_id_ttl_ms: settings.game.find_id_ttl_ms,
    }
}

/// The options of a store on Redis, by the settings.
#[must_use]
pub fn redis_options(settings: &Settings) -> redis::Options {
    let store = &settings.store;
    redis::Options {
        partitions: store.partitions,
        prefix: store.key_prefix.clone(),
        instances_expected: store.instances,
        limits: limits(settings),
        feed_bytes_max: Some(store.feed_bytes_max),
        connect_wait: Duration::from_millis(store.connect_wait_ms),
        response_timeout: Duration::from_millis(store.response_timeout_ms),
        recovery: Duration::from_millis(store.recovery_ms),
        replay_bytes_max: store.replay_bytes_max,
        replay_age_max: Duration::from_millis(store.replay_age_ms),
        durability: match store.durability {
            Durability::Async => redis::Durability::Async,
            Durability::Replicated => redis::Durability::Replicated {
                replicas_min: store.replicas_min,
            },
            Durability::Fsync => redis::Durability::Fsync,
        },
        durability_wait: Duration::from_millis(store.durability_wait_ms),
        ..redis::Options::default()
    }
}

impl Opened {
    /// Opens the store.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) async fn open(settings: &Settings) -> Result<Self, ServeError> {
        match settings.store.place() {
            StorePlace::Embedded(dir) => Self::embedded(settings, dir),
            StorePlace::Redis(url) => Self::redis(settings, url).await,
        }
    }

    fn embedded(settings: &Settings, dir: &Path) -> Result<Self, ServeError> {
        let (broke, broken) = mpsc::channel::<String>(1);
        let tell = broke.clone();
        let store = Arc::new(EmbeddedStore::open(embedded::Options {
            dir: dir.to_owned(),
            limits: limits(settings),
            cache_bytes: settings.store.cache_bytes,
            min_free_bytes: settings.store.min_free_bytes,
            time: Arc::new(SystemTimeSource::default()),
            on_fatal: Box::new(move |reason| drop(tell.try_send(reason.to_owned()))),
        })?);
        store.answer_on(&tokio::runtime::Handle::current());
        let path = dir.join(socket::SOCKET_NAME);
        let listener = socket::listen(dir).map_err(|source| ServeError::Socket {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            store: store.clone(),
            name: dir.display().to_string(),
            embedded: Some(store),
            redis: None,
            socket: Some((listener, path)),
            broken,
            _broke: broke,
        })
    }

    async fn redis(settings: &Settings, url: &str) -> Result<Self, ServeError> {
        let (broke, broken) = mpsc::channel(1);
        let journal_dir = &settings.store.journal_dir;
        let options = redis::Options {
            journal_dir: (!journal_dir.as_os_str().is_empty()).then(|| journal_dir.clone()),
            ..redis_options(settings)
        };
        let store = Arc::new(RedisStore::connect(url, options).await?);
        Ok(Self {
            store: store.clone(),
            redis: Some(store),
            name: settings.store.shown(),
            embedded: None,
            socket: None,
            broken,
            _broke: broke,
        })
    }

    /// What to read for the metrics.
    pub(super) fn disk_work(&self) -> ReadDiskWork {
        let (embedded, redis) = (self.embedded.clone(), self.redis.clone());
        Arc::new(move || {
            let replay = redis.as_ref().map(|store| store.replay_counts());
            let none = || DiskWork {
                replay: replay.unwrap_or_default(),
                ..DiskWork::default()
            };
            embedded.as_ref().map_or_else(none, |store| DiskWork {
                replay: redis::ReplayCounts::default(),
                batches: store.writer_stats().batches.load(Ordering::Relaxed),
                syncs: store.disk().syncs.load(Ordering::Relaxed),
            })
        })
    }

    /// Finishes what the store has under way.
    pub(super) async fn stop(&self) {
        if let Some(store) = &self.embedded
            && let Err(error) = store.stop().await
        {
            tracing::error!(%error, "the store did not stop cleanly");
        }
    }
}
