//! What a request waits for while it is worked on.

use crate::store::StoreError;
use std::cell::Cell;
use std::time::{Duration, Instant};

tokio::task_local! {
    /// What the request at hand has waited for.
    pub(super) static WAITS: Waits;
}

/// What a request has waited for, for `Server-Timing`, the metrics and the cause of slow requests.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The store.
    pub(super) store: Cell<Duration>,
    /// News: a held poll. Whoever asked wanted to wait, so it counts against nobody.
    pub(super) held: Cell<Duration>,
    /// The client, to send the rest of its body.
    pub(super) client: Cell<Duration>,
}

/// A wait for the store of the request at hand. It is noted when it ends, also when it is given up: the request then had
/// waited all the same.
pub(super) struct StoreWait(Instant);

impl StoreWait {
    /// It begins.
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }
}

impl Drop for StoreWait {
    fn drop(&mut self) {
        // Outside a request (in a task of its own) there is nobody to tell.
        let _ = WAITS.try_with(|waits| waits.store.set(waits.store.get() + self.0.elapsed()));
    }
}

/// Waits for what another task asks the store.
pub(super) async fn waited<T>(
    receiver: tokio::sync::oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let _wait = StoreWait::begin();
    let result = receiver.await;
    result.unwrap_or_else(|_| Err(StoreError::Unavailable("the operation was given up".into())))
}
