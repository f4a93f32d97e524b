//! The primaries of a cluster behind one face: each command goes to the primary that holds its key.
//!
//! - [`slots`]: who holds which slot. [`key`]: which key a command is about.
//! - [`send`]: a batch, taken apart by primary, sent, and sent on where `MOVED` and `ASK` point to.
//! - [`learn`]: asking the nodes who holds what. [`tail`]: following feeds.
//!
//! Every primary has a [`Connection`] of its own, supervised like any other: it is prepared before anything is sent over
//! it, and noticed when it falls silent. The map of slots is asked for when something does not fit it any more (a
//! redirection, a primary that is gone), and now and then. Of several claims to a slot the one with the newest
//! configuration is believed.

mod key;
mod learn;
mod send;
mod slots;
mod tail;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::Config;
use crate::connection::{
    AbortOnDrop, Backoff, Connection, DownReason, Prepare, State, Up, build_node,
};
use crate::endpoint::{Credentials, Dial, Endpoint};
use crate::slot::slot;
pub(crate) use key::key_of;
use slots::SlotMap;
pub use tail::ClusterTail;

/// The most nodes that one has connections to.
pub const NODES_MAX: usize = 128;
/// How often the map is asked for while all is well.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Two looks that redirections and lost links ask for are at least so far apart: all instances look during a failover.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// A node that a redirection named is kept for so long, although the map does not show it yet.
const NEWCOMER: Duration = Duration::from_secs(30);

/// What one node's connection is, and who watches it.
struct Node {
    connection: Connection,
    since: Instant,
    _watch: AbortOnDrop,
}

/// A cluster; cheap to clone. It is left when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) inner: Arc<Inner>,
    _looks: Arc<AbortOnDrop>,
}

/// See the module. Held weakly by the links, whose preparation asks other primaries.
pub(crate) struct Inner {
    seeds: Vec<Endpoint>,
    dial: Arc<dyn Dial>,
    credentials: Credentials,
    pub(crate) config: Config,
    prepare: Option<Arc<dyn Prepare>>,
    /// Where commands go that are about no key.
    home: u16,
    map: Mutex<Arc<SlotMap>>,
    nodes: Mutex<HashMap<Endpoint, Node>>,
    /// When the primary that a slot had before last answered, for slots that have another one now.
    left_at: Mutex<HashMap<u16, Instant>>,
    look: Notify,
    state: watch::Sender<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is replaced whole, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Starts connecting to the cluster that the nodes `seeds` are of. Commands without a key go to the primary of
    /// `home`. Must be called within a tokio runtime.
    pub(crate) fn start(
        seeds: Vec<Endpoint>,
        dial: Arc<dyn Dial>,
        credentials: Credentials,
        config: Config,
        prepare: Option<Arc<dyn Prepare>>,
        home: &str,
    ) -> Self {
        let inner = Arc::new(Inner {
            seeds,
            dial,
            credentials,
            config,
            prepare,
            home: slot(home.as_bytes()),
            map: Mutex::default(),
            nodes: Mutex::default(),
            left_at: Mutex::default(),
            look: Notify::new(),
            state: watch::Sender::new(State::Connecting),
        });
        let looks = tokio::spawn(keep_looking(Arc::clone(&inner)));
        Self {
            inner,
            _looks: Arc::new(AbortOnDrop(looks)),
        }
    }

    pub(crate) fn states(&self) -> watch::Receiver<State> {
        self.inner.state.subscribe()
    }

    pub(crate) fn state(&self) -> State {
        self.inner.state.borrow().clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.inner.state.borrow().up().is_some()
    }
}

async fn keep_looking(inner: Arc<Inner>) {
    let config = &inner.config;
    let mut backoff = Backoff::new(config.backoff_min, config.backoff_max, config.seed);
    loop {
        match learn::learn(&inner).await {
            Ok(map) => inner.apply(map),
            Err(reason) => inner.failed(reason),
        }
        inner.publish();
        let pause = if inner.state.borrow().up().is_some() {
            backoff.reset();
            LOOK_INTERVAL
        } else {
            backoff.next()
        };
        let _ = timeout(pause, inner.look.notified()).await;
        sleep(LOOK_PAUSE).await;
    }
}

impl Inner {
    fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&lock(&self.map))
    }

    /// The slot of a command: its key's, or that of the commands without one.
    pub(crate) fn slot_of(&self, key: Option<&[u8]>) -> u16 {
        key.map_or(self.home, slot)
    }

    /// Whether `slot` is, as far as is known, the node's at `endpoint`.
    pub(crate) fn is_at(&self, slot: u16, endpoint: Option<&Endpoint>) -> bool {
        endpoint.is_some() && self.map().primary(slot) == endpoint
    }

    /// The connection to the primary of `slot`, if there is one.
    pub(crate) fn connection_of(self: &Arc<Self>, slot: u16) -> Option<Connection> {
        let map = self.map();
        self.node(map.primary(slot)?)
    }

    /// The primaries' links that are up.
    pub(crate) fn ups(&self) -> Vec<Up> {
        let map = self.map();
        let nodes = lock(&self.nodes);
        let primaries = map.shards.iter().filter_map(|shard| {
            let node = nodes.get(&shard.primary)?;
            node.connection.state().up().cloned()
        });
        primaries.collect()
    }

    /// When a primary of `slot` last answered; `None` if none ever did.
    pub(crate) fn answered_at(&self, slot: u16) -> Option<Instant> {
        let map = self.map();
        let now_its = map.primary(slot).and_then(|endpoint| {
            let nodes = lock(&self.nodes);
            nodes.get(endpoint)?.connection.answered_at()
        });
        now_its.max(lock(&self.left_at).get(&slot).copied())
    }

    /// The connection to the node at `endpoint`, which is made if there is none. `None` when there are too many.
    pub(crate) fn node(self: &Arc<Self>, endpoint: &Endpoint) -> Option<Connection> {
        let mut nodes = lock(&self.nodes);
        if let Some(node) = nodes.get(endpoint) {
            return Some(node.connection.clone());
        }
        if nodes.len() >= NODES_MAX {
            return None;
        }
        let connection = build_node(
            endpoint.clone(),
            Arc::clone(&self.dial),
            &self.credentials,
            self.config.clone(),
            self.prepare.clone(),
            Arc::downgrade(self),
        );
        let watch = tokio::spawn(watch_node(Arc::downgrade(self), connection.states()));
        nodes.insert(
            endpoint.clone(),
            Node {
                connection: connection.clone(),
                since: Instant::now(),
                _watch: AbortOnDrop(watch),
            },
        );
        Some(connection)
    }

    /// Asks for the map to be looked at.
    fn look_soon(&self) {
        self.look.notify_one();
    }

    /// Takes a map.
    fn apply(self: &Arc<Self>, map: SlotMap) {
        let before = self.map();
        if *before != map {
            self.note_leaving(&before, &map);
            *lock(&self.map) = Arc::new(map);
        }
        let map = self.map();
        for shard in &map.shards {
            self.node(&shard.primary);
        }
        let is_primary = |endpoint: &Endpoint| map.shards.iter().any(|s| s.primary == *endpoint);
        let gone: Vec<Node> = {
            let mut nodes = lock(&self.nodes);
            let leaving: Vec<Endpoint> = nodes
                .iter()
                .filter(|(endpoint, node)| {
                    !is_primary(endpoint) && node.since.elapsed() > NEWCOMER
                        || !is_primary(endpoint)
                            && before.shards.iter().any(|s| s.primary == **endpoint)
                })
                .map(|(endpoint, _)| endpoint.clone())
                .collect();
            leaving
                .iter()
                .filter_map(|endpoint| nodes.remove(endpoint))
                .collect()
        };
        // Dropped without the lock: their commands fail, and may look at the nodes.
        drop(gone);
    }

    /// Takes a node's word that `slot` is at `to`, until the map is looked at.
    fn moved(self: &Arc<Self>, slot: u16, to: &Endpoint) {
        let before = self.map();
        if before.primary(slot) != Some(to) {
            let mut map = (*before).clone();
            map.moved(slot, to.clone());
            self.note_leaving(&before, &map);
            *lock(&self.map) = Arc::new(map);
            self.node(to);
        }
        self.look_soon();
    }

    /// Remembers when the primaries that lose slots last answered.
    fn note_leaving(&self, before: &SlotMap, after: &SlotMap) {
        let nodes = lock(&self.nodes);
        let mut left_at = lock(&self.left_at);
        for slot in 0..crate::slot::SLOTS {
            let old = before.primary(slot);
            if old == after.primary(slot) {
                continue;
            }
            let answered = old
                .and_then(|endpoint| nodes.get(endpoint))
                .and_then(|node| node.connection.answered_at());
            if let Some(at) = answered {
                let known = left_at.entry(slot).or_insert(at);
                *known = at.max(*known);
            }
        }
    }

    fn failed(&self, reason: DownReason) {
        self.down(Arc::new(reason));
    }

    fn down(&self, reason: Arc<DownReason>) {
        self.state.send_modify(|state| {
            let since = match state {
                State::Down { since, .. } => *since,
                _ => Instant::now(),
            };
            *state = State::Down { since, reason };
        });
    }

    /// Says how all primaries are together.
    fn publish(&self) {
        let map = self.map();
        if map.shards.is_empty() {
            return;
        }
        let mut home = None;
        let mut connecting = false;
        let states: Vec<(Endpoint, State)> = {
            let nodes = lock(&self.nodes);
            let state = |endpoint: &Endpoint| {
                Some((endpoint.clone(), nodes.get(endpoint)?.connection.state()))
            };
            map.shards
                .iter()
                .filter_map(|s| state(&s.primary))
                .collect()
        };
        for (endpoint, state) in states {
            match state {
                State::Up(up) if map.primary(self.home) == Some(&endpoint) => home = Some(up),
                State::Up(_) => {}
                State::Connecting => connecting = true,
                State::Down { reason, .. } => {
                    return self.down(Arc::new(DownReason::Node { endpoint, reason }));
                }
            }
        }
        match home {
            Some(up) if map.is_whole() && !connecting => {
                self.state.send_replace(State::Up(up));
            }
            _ if connecting && matches!(*self.state.borrow(), State::Connecting) => {}
            _ => self.down(Arc::new(DownReason::NotCovered)),
        }
    }
}

/// Tells the cluster of each change of a node's link.
async fn watch_node(inner: Weak<Inner>, mut states: watch::Receiver<State>) {
    while states.changed().await.is_ok() {
        let Some(inner) = inner.upgrade() else { return };
        if matches!(*states.borrow_and_update(), State::Down { .. }) {
            inner.look_soon();
        }
        inner.publish();
    }
}
