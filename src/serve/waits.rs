//! What a request waits for while it is worked on.

use crate::store::StoreError;
use crate::telemetry::Child;
use crate::telemetry::span::CHILDREN_MAX;
use std::cell::{Cell, RefCell};
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
    /// Whether the request is traced.
    pub(super) is_traced: bool,
    /// Its waits for the store one by one, if it is traced.
    pub(super) children: RefCell<Vec<Child>>,
}

/// A wait for the store of the request at hand. It is noted when it ends, also when it is given up: the request then had
/// waited all the same.
pub(super) struct StoreWait {
    name: &'static str,
    began: Instant,
}

impl StoreWait {
    /// It begins; `name` is what the store is asked for.
    pub(super) fn begin(name: &'static str) -> Self {
        Self {
            name,
            began: Instant::now(),
        }
    }
}

impl Drop for StoreWait {
    fn drop(&mut self) {
        // Outside a request (in a task of its own) there is nobody to tell.
        let _ = WAITS.try_with(|waits| {
            let took = self.began.elapsed();
            waits.store.set(waits.store.get() + took);
            let mut children = waits.children.borrow_mut();
            if waits.is_traced && children.len() < CHILDREN_MAX {
                children.push(Child {
                    name: self.name,
                    began: self.began,
                    took,
                });
            }
        });
    }
}

/// Waits for what another task asks the store; `name` is what that is.
pub(super) async fn waited<T>(
    name: &'static str,
    receiver: tokio::sync::oneshot::Receiver<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let _wait = StoreWait::begin(name);
    let result = receiver.await;
    result.unwrap_or_else(|_| Err(StoreError::Unavailable("the operation was given up".into())))
}
