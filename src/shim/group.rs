//! A group of instances that stand for one another: every request gets its instance here, whatever carries it there.
//!
//! [`Group::pick`] does not wait, so that whoever answers a connection's turn can call it; [`Group::admit`] waits in the
//! group's queue when every instance has as many requests as it may. Both give a [`Ticket`], which counts as one request
//! under way at its instance until it is dropped. What became of the request is told to the ticket: [`Ticket::answered`]
//! or [`Ticket::failed`]; one that is dropped without either says nothing about its instance.
//!
//! Requests on links need no ticket: [`Links`](super::links::Links) count theirs.

use super::balance::{self, Candidate, PlayerKey};
use super::instance::{Instance, lock};
use super::queue::{Queue, Shed, Waiting};
use crate::config::{ShimHealthSettings, ShimUpstreamSettings};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How a request failed at its instance. Each is a label of `trove_shim_upstream_failures_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection came about: nothing was sent.
    Connect,
    /// The connection ended before the first byte of the answer.
    Closed,
    /// The answer broke off, or was none.
    Broken,
    /// The answer did not come, or not go on, in time.
    Timeout,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Connect, Self::Closed, Self::Broken, Self::Timeout];

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Closed => "closed",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }
}

/// The least share of an instance that has just come back.
const SLOW_START_WEIGHT_MIN: f32 = 0.1;

/// A group of instances.
#[derive(Debug)]
pub struct Group {
    name: String,
    instances: Vec<Instance>,
    queue: Mutex<Queue>,
    pub(super) limits: ShimUpstreamSettings,
    pub(super) health: ShimHealthSettings,
    started: Instant,
    /// Decides between instances of equal load.
    turn: AtomicU64,
}

impl Group {
    pub(super) fn new(
        name: String,
        instances: Vec<Instance>,
        limits: ShimUpstreamSettings,
        health: ShimHealthSettings,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            instances,
            queue: Mutex::default(),
            limits,
            health,
            started: Instant::now(),
            turn: AtomicU64::new(0),
        })
    }

    /// What operators call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its instances; tickets name them by their place here.
    #[must_use]
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Requests that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        lock(&self.queue).len()
    }

    /// Milliseconds since its start, from 1.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX) + 1
    }

    /// An instance for a request, at once: with a key the player's, without one the least loaded. `avoid` is the place of
    /// one that just failed; it is only chosen if there is no other.
    ///
    /// `None` if every instance has as many requests as it may, or others wait already.
    #[must_use]
    pub fn pick(self: &Arc<Self>, key: Option<PlayerKey>, avoid: Option<usize>) -> Option<Ticket> {
        if !lock(&self.queue).is_empty() {
            return None;
        }
        self.take(key, avoid)
    }

    /// The same, waiting in the queue if need be.
    ///
    /// # Errors
    /// The queue is full, or the wait took too long.
    pub async fn admit(
        self: &Arc<Self>,
        key: Option<PlayerKey>,
        avoid: Option<usize>,
    ) -> Result<Ticket, Shed> {
        if let Some(ticket) = self.pick(key, avoid) {
            return Ok(ticket);
        }
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = lock(&self.queue);
            if !queue.has_room(self.limits.queue_max) {
                return Err(Shed::QueueFull);
            }
            queue.push(Waiting { key, avoid, sender });
        }
        // Whoever was before this one may have left since.
        self.serve_queue();
        let deadline = Duration::from_millis(self.limits.queue_ms);
        match tokio::time::timeout(deadline, receiver).await {
            Ok(Ok(ticket)) => Ok(ticket),
            Ok(Err(_)) | Err(_) => Err(Shed::QueueDeadline),
        }
    }

    /// The place of the instance that a request goes to whose link is open; `None` if it travels better over plain HTTP.
    ///
    /// How many requests a link takes is its own affair: places for plain HTTP are not looked at, nor its queue.
    pub(super) fn pick_linked(
        &self,
        key: Option<PlayerKey>,
        avoid: Option<usize>,
    ) -> Option<usize> {
        // What a choice costs is seen in a poll's price, and of one there is none to make. Whether a link takes the request
        // is seen when it is sent.
        if let [only] = &self.instances[..]
            && only.recovering_since_ms.load(Relaxed) == 0
        {
            return only.links.are_spoken().then_some(0);
        }
        let first = self.choose(key, avoid, |_| true)?;
        let links = &self.instances[first].links;
        if links.is_open() {
            return Some(first);
        }
        // An instance whose links have just ended is likely to be gone: whoever asks it learns that the hard way.
        let second = if links.are_lost() {
            self.choose(key, Some(first), |_| true)
        } else {
            None
        };
        second.filter(|index| self.instances[*index].links.is_open())
    }

    /// Whether a request could go to one instance or another.
    pub(super) fn has_choice(&self) -> bool {
        self.instances.len() > 1
    }

    /// Whether any of its instances speaks links.
    pub(super) fn speaks_links(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|instance| instance.links.are_spoken())
    }

    fn take(self: &Arc<Self>, key: Option<PlayerKey>, avoid: Option<usize>) -> Option<Ticket> {
        let requests_max = self.limits.requests_max;
        let has_room = |instance: &Instance| instance.plain.load(Relaxed) < requests_max;
        let index = self.choose(key, avoid, has_room)?;
        self.instances[index].plain.fetch_add(1, Relaxed);
        Some(Ticket {
            group: self.clone(),
            index,
            is_over: false,
        })
    }

    fn choose(
        &self,
        key: Option<PlayerKey>,
        avoid: Option<usize>,
        has_room: impl Fn(&Instance) -> bool,
    ) -> Option<usize> {
        let mut candidates = [Candidate {
            seed: 0,
            outstanding: 0,
            weight: 0.0,
            has_room: false,
        }; crate::config::INSTANCES_MAX];
        let candidates = &mut candidates[..self.instances.len()];
        let mut usable = 0;
        for (index, (slot, instance)) in candidates.iter_mut().zip(&self.instances).enumerate() {
            let is_usable = instance.is_usable() && avoid != Some(index);
            usable += usize::from(is_usable);
            *slot = Candidate {
                seed: instance.seed(),
                outstanding: instance.outstanding(),
                weight: if is_usable {
                    self.weight(instance)
                } else {
                    0.0
                },
                has_room: has_room(instance),
            };
        }
        if usable == 0 {
            // All unhealthy: use all. The one to avoid comes before those that are known to be unwell only if it is not.
            let fallback = avoid.filter(|index| self.instances[*index].is_usable());
            let only_one = candidates.len() == 1;
            for (index, slot) in candidates.iter_mut().enumerate() {
                let is_it = match fallback {
                    Some(fallback) => index == fallback,
                    None => avoid != Some(index) || only_one,
                };
                slot.weight = if is_it { 1.0 } else { 0.0 };
            }
        }
        let turn = self.turn.fetch_add(1, Relaxed);
        balance::choose(candidates, key, self.limits.spill_min, balance::mix(turn))
    }

    /// The share of an instance: it grows from a tenth to the whole over the slow start.
    fn weight(&self, instance: &Instance) -> f32 {
        let since = instance.recovering_since_ms.load(Relaxed);
        if since == 0 {
            return 1.0;
        }
        let elapsed = self.now_ms().saturating_sub(since);
        if elapsed >= self.health.slow_start_ms {
            instance.recovering_since_ms.store(0, Relaxed);
            return 1.0;
        }
        #[allow(clippy::cast_precision_loss)] // Both are below 600,000.
        let share = elapsed as f32 / self.health.slow_start_ms as f32;
        share.max(SLOW_START_WEIGHT_MIN)
    }

    /// An instance has answered. 500, 502 and 504 count against it; 503 does not: it is how a server says that its store is
    /// away, which another instance does not mend.
    pub(super) fn answered(&self, index: usize, status: u16) {
        if matches!(status, 500 | 502 | 504) {
            self.note_failure(index);
        } else if self.instances[index].failures_in_row.load(Relaxed) != 0 {
            self.note_success(index);
        }
    }

    /// An instance has not answered, or not well.
    pub(super) fn failed(&self, index: usize, failure: Failure) {
        self.instances[index].counters.failures[failure as usize].inc();
        self.note_failure(index);
    }

    /// Gives tickets to those that wait, as far as there is room.
    pub(super) fn serve_queue(self: &Arc<Self>) {
        loop {
            let (waiting, ticket) = {
                let mut queue = lock(&self.queue);
                let Some(first) = queue.first() else {
                    return;
                };
                let Some(ticket) = self.take(first.key, first.avoid) else {
                    return;
                };
                (queue.pop(), ticket)
            };
            // One who left in this moment gives the ticket back; dropped here it would serve the queue again from within.
            if let Some(waiting) = waiting
                && let Err(ticket) = waiting.sender.send(ticket)
            {
                ticket.cancel();
            }
        }
    }
}

/// One request under way at an instance.
#[derive(Debug)]
pub struct Ticket {
    group: Arc<Group>,
    index: usize,
    is_over: bool,
}

impl Ticket {
    /// The instance's place in its group.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The instance.
    #[must_use]
    pub fn instance(&self) -> &Instance {
        &self.group.instances[self.index]
    }

    /// The request was sent.
    pub fn sent(&self) {
        self.instance().counters.forwarded.inc();
    }

    /// The head of an answer has arrived.
    pub fn answered(&self, status: u16) {
        self.group.answered(self.index, status);
    }

    /// No answer, or a broken one.
    pub fn failed(&self, failure: Failure) {
        self.group.failed(self.index, failure);
    }

    /// The same for a failure that says nothing about the instance: a connection that it had closed while idle.
    pub fn raced(&self, failure: Failure) {
        self.instance().counters.failures[failure as usize].inc();
    }

    /// Gives the place back without looking whether anybody waits for it.
    fn cancel(mut self) {
        self.is_over = true;
        self.instance().plain.fetch_sub(1, Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_over {
            self.instance().plain.fetch_sub(1, Relaxed);
            self.group.serve_queue();
        }
    }
}
