//! The file under redb, with what redb does not tell: how often it was synced, and whether it was a sync that failed.

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use std::fs::File;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the backend counts, shared with those who ask.
#[derive(Debug, Default)]
pub struct DiskCounters {
    /// Calls of `fdatasync` that succeeded.
    pub syncs: AtomicU64,
    /// Writes, mostly of one page.
    pub writes: AtomicU64,
    /// Whether a sync failed. What the kernel then still holds is anyone's guess, so the process must end: a later
    /// sync that succeeds would prove nothing about the earlier pages.
    pub sync_failed: AtomicBool,
    /// Whether a write or an extension failed for want of space.
    pub out_of_space: AtomicBool,
}

/// A backend that counts. Wraps the file, or in tests anything else.
#[derive(Debug)]
pub(super) struct CountingBackend<B> {
    inner: B,
    counters: Arc<DiskCounters>,
}

impl CountingBackend<FileBackend> {
    pub(super) fn file(
        path: &Path,
        counters: Arc<DiskCounters>,
    ) -> Result<Self, redb::DatabaseError> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self {
            inner: FileBackend::new(file)?,
            counters,
        })
    }
}

impl<B> CountingBackend<B> {
    pub(super) fn around(inner: B, counters: Arc<DiskCounters>) -> Self {
        Self { inner, counters }
    }

    fn note_space<T>(&self, result: Result<T, std::io::Error>) -> Result<T, std::io::Error> {
        if let Err(error) = &result
            && matches!(
                error.kind(),
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
            )
        {
            self.counters.out_of_space.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl<B: StorageBackend> StorageBackend for CountingBackend<B> {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.note_space(self.inner.set_len(len))
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        match self.inner.sync_data() {
            Ok(()) => {
                self.counters.syncs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                self.counters.sync_failed.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.note_space(self.inner.write(offset, data))
    }

    fn close(&self) -> Result<(), std::io::Error> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
