//! Requests that wait because every instance of their group has as many as it may.

use super::balance::PlayerKey;
use super::group::Ticket;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Why a request was turned away. Each is a label of `trove_shim_shed_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shed {
    /// As many wait as may.
    QueueFull,
    /// It waited as long as it may.
    QueueDeadline,
    /// No instance could be connected to.
    Unreachable,
    /// The front had no room for its connection.
    Connections,
}

impl Shed {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::QueueFull,
        Self::QueueDeadline,
        Self::Unreachable,
        Self::Connections,
    ];

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::QueueDeadline => "queue_deadline",
            Self::Unreachable => "unreachable",
            Self::Connections => "connections",
        }
    }
}

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: Option<PlayerKey>,
    pub(super) avoid: Option<usize>,
    pub(super) sender: oneshot::Sender<Ticket>,
}

/// Those that wait, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<Waiting>);

impl Queue {
    /// How many wait still.
    pub(super) fn len(&self) -> usize {
        self.0.iter().filter(|one| !one.sender.is_closed()).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets those who no longer wait: at the front always, everywhere when `max` seems reached. Whether there is room.
    pub(super) fn has_room(&mut self, max: usize) -> bool {
        while self.0.front().is_some_and(|one| one.sender.is_closed()) {
            self.0.pop_front();
        }
        if self.0.len() >= max {
            self.0.retain(|one| !one.sender.is_closed());
        }
        self.0.len() < max
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.0.push_back(waiting);
    }

    /// The first that still waits.
    pub(super) fn first(&mut self) -> Option<&Waiting> {
        while self.0.front().is_some_and(|one| one.sender.is_closed()) {
            self.0.pop_front();
        }
        self.0.front()
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.0.pop_front()
    }
}
