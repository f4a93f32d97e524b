//! Work that would hold the event loop: parsing and judging large bodies, making catalogues and metrics, freeing what is
//! large. It runs on two threads of low priority, for on a machine with few cores a thread that computes for a tenth of a
//! second would otherwise make the event loop wait its turn, and every poll with it.

use super::problem::Problem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use tokio::sync::oneshot;

/// Two, so that a catalogue that is being made does not hold up bulk finds.
const THREADS: usize = 2;
/// How much the threads stand back, in steps of `nice`.
const NICE: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// Work that waits, and work that is being done.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// How much work waits for the threads, and how much they are doing.
pub fn depth() -> (usize, usize) {
    (WAITING.load(Relaxed), RUNNING.load(Relaxed))
}

fn send(work: Work) {
    WAITING.fetch_add(1, Relaxed);
    if BESIDE.send(work).is_err() {
        WAITING.fetch_sub(1, Relaxed);
    }
}

static BESIDE: LazyLock<mpsc::Sender<Work>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<Work>();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..THREADS {
        let receiver = receiver.clone();
        let run = move || {
            // Of this thread only, on Linux. Where it is refused the work is done all the same.
            let _ = rustix::process::nice(NICE);
            loop {
                let next = receiver
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .recv();
                let Ok(work) = next else { return };
                WAITING.fetch_sub(1, Relaxed);
                RUNNING.fetch_add(1, Relaxed);
                // Whoever waits for it learns of a panic from the answer that does not come.
                let _ = catch_unwind(AssertUnwindSafe(work));
                RUNNING.fetch_sub(1, Relaxed);
            }
        };
        // Without a thread the channel is closed once `receiver` is dropped, and callers are told.
        let _ = std::thread::Builder::new()
            .name("trove-beside".into())
            .spawn(run);
    }
    sender
});

/// Runs work beside the event loop.
///
/// # Errors
/// 500 when it panics.
pub async fn off_loop<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let (sender, done) = oneshot::channel();
    send(Box::new(move || drop(sender.send(work()))));
    done.await
        .map_err(|_| Problem::new(500, "internal_error", "the request could not be worked on"))
}

/// Frees something large beside the event loop.
pub fn free<T: Send + 'static>(large: T) {
    send(Box::new(move || drop(large)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_panics_is_told_and_the_next_goes_on() {
        for _ in 0..THREADS * 2 {
            assert_eq!(
                off_loop(|| panic!("on purpose"))
                    .await
                    .map(|()| 1)
                    .unwrap_err()
                    .status,
                500
            );
        }
        assert_eq!(off_loop(|| 7).await.ok(), Some(7));
    }
}
