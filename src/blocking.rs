//! Work that blocks, on the runtime's threads for it. The runtime does not say how much of it waits and how much is under way,
//! so all of it goes through here and is counted.
//!
//! `serve::beside` has threads of its own for work that computes; its depth is measured apart.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use tokio::task::JoinHandle;

/// The jobs of this process.
static JOBS: LazyLock<Jobs> = LazyLock::new(Jobs::default);

/// Runs `work` on one of the runtime's threads for blocking.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    JOBS.spawn(work)
}

/// How many jobs wait for a thread, and how many have one.
#[must_use]
pub fn jobs() -> [usize; 2] {
    JOBS.counts()
}

/// Counts jobs.
#[derive(Debug, Clone, Default)]
struct Jobs(Arc<[AtomicUsize; 2]>);

/// Where in [`Jobs`] a job is counted.
const QUEUED: usize = 0;
const RUNNING: usize = 1;

/// One job, counted in one place until it is dropped: also when it panics, or is thrown away with its runtime.
struct Counted(Jobs, usize);

impl Jobs {
    fn count(&self, place: usize) -> Counted {
        self.0[place].fetch_add(1, Relaxed);
        Counted(self.clone(), place)
    }

    fn counts(&self) -> [usize; 2] {
        [QUEUED, RUNNING].map(|place| self.0[place].load(Relaxed))
    }

    #[expect(clippy::disallowed_methods, reason = "here it is counted")]
    fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let queued = self.count(QUEUED);
        tokio::task::spawn_blocking(move || {
            let jobs = queued.0.clone();
            drop(queued);
            let _running = jobs.count(RUNNING);
            work()
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0[self.1].fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_job_is_counted_where_it_is_and_nowhere_when_it_is_over() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let jobs = Jobs::default();
        let (began, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        runtime.block_on(async {
            let first = jobs.spawn(move || {
                began.send(()).unwrap();
                may_go.recv().unwrap();
            });
            has_begun.recv().unwrap();
            let second = jobs.spawn(|| panic!("on purpose"));
            assert_eq!(jobs.counts(), [1, 1]);
            go.send(()).unwrap();
            first.await.unwrap();
            assert!(second.await.unwrap_err().is_panic());
            assert_eq!(jobs.counts(), [0, 0]);
        });
    }

    #[test]
    fn a_job_that_its_runtime_throws_away_is_not_counted_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let jobs = Jobs::default();
        let (began, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        runtime.block_on(async {
            drop(jobs.spawn(move || {
                began.send(()).unwrap();
                may_go.recv().unwrap();
            }));
            has_begun.recv().unwrap();
            drop(jobs.spawn(|| ()));
        });
        assert_eq!(jobs.counts(), [1, 1]);
        runtime.shutdown_background();
        go.send(()).unwrap();
        let began = std::time::Instant::now();
        while jobs.counts() != [0, 0] {
            assert!(began.elapsed().as_secs() < 60, "{:?}", jobs.counts());
            std::thread::yield_now();
        }
    }
}
