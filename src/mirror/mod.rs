//! What an instance keeps in memory of the players it serves: their wallets, as far as the store has told of them.
//!
//! A wallet comes in when its player is first polled for, changes only on the store's word (an operation's answer, or the
//! feed), and never goes backwards: of two states of a wallet the one with the higher sequence number is the later. An
//! idle wallet is put out when a new one needs its place; the store has it.
//!
//! Memory: 72 bytes a slot and about 28 a map entry.

mod slots;

pub use slots::{Key, Slots};

use crate::game::ids::PlayerId;
use crate::game::wallet::Wallet;
use crate::store::{Credited, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Somebody who waits for a wallet to be read from the store.
type LoadWaiter = oneshot::Sender<Result<Wallet, StoreError>>;
/// Somebody who waits for a credit.
type CreditWaiter = oneshot::Sender<Result<Arc<Credited>, StoreError>>;

/// The most held polls of one wallet: a player has a few phones, and every release looks through them.
pub const HOLDS_PER_WALLET_MAX: usize = 32;

/// A read under way.
#[derive(Debug, Default)]
struct Load {
    /// The latest change that the feed told of meanwhile.
    later: Option<Wallet>,
    /// Whether what is read may be void when it arrives: it answers those who wait and is not kept.
    void: bool,
    waiters: Vec<LoadWaiter>,
}

/// A credit under way.
#[derive(Debug, Default)]
struct Crediting {
    /// Whether the wallet that it gives may be of a history that was cut since: it answers those who wait and is not kept.
    void: bool,
    waiters: Vec<CreditWaiter>,
}

/// Between which two resets something was asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History(u64);

/// The wallets in memory, and who waits for what about them.
#[derive(Debug)]
pub struct Mirror {
    slots: Slots,
    /// How often all was forgotten.
    history: History,
    /// Reads under way. A change that the feed tells of meanwhile is kept here, for the read may have begun before it.
    loads: HashMap<Key, Load>,
    credits: HashMap<Key, Crediting>,
    /// Held polls.
    watchers: HashMap<Key, Vec<oneshot::Sender<()>>>,
    held: usize,
    held_max: usize,
}

/// Whether the caller is the first to ask, and so has to do it, or joins those who wait.
#[derive(Debug)]
pub enum Turn<T> {
    /// Ask the store, then tell the mirror.
    Yours(oneshot::Receiver<T>),
    /// Somebody has asked already.
    Joined(oneshot::Receiver<T>),
}

impl Mirror {
    /// A mirror of at most `wallets_max` wallets, with at most `held_max` held polls.
    #[must_use]
    pub fn new(wallets_max: usize, held_max: usize) -> Self {
        Self {
            slots: Slots::new(wallets_max),
            history: History(0),
            loads: HashMap::new(),
            credits: HashMap::new(),
            watchers: HashMap::new(),
            held: 0,
            held_max,
        }
    }

    /// The wallet, if it is in memory.
    #[inline]
    pub fn get(&mut self, key: Key) -> Option<Wallet> {
        self.slots.get(key)
    }

    /// A wallet from before the last reset, if it was not read since: better than nothing while it cannot be read.
    #[must_use]
    pub fn from_before(&self, key: Key) -> Option<Wallet> {
        self.slots.aged(key)
    }

    /// Takes what a wallet from before the last reset is known to have become, as of a moment since which all changes are told
    /// here: not if it was told to have changed, or was later before. Says whether it took it.
    pub fn revive(&mut self, key: Key, wallet: Wallet) -> bool {
        self.slots.revive(key, wallet)
    }

    /// The wallet, if it is in memory, looked for where it was last: see [`Slots::get_at`].
    #[inline]
    pub fn get_at(&mut self, key: Key, place: &mut u32) -> Option<Wallet> {
        self.slots.get_at(key, place)
    }

    /// Wallets in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no wallet is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Held polls.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// What an operation that is asked of the store now names when its answer comes: see [`Mirror::answered`].
    #[must_use]
    pub fn history(&self) -> History {
        self.history
    }

    /// Takes the wallet that an operation gave which was asked for in `asked_in`, as [`Mirror::apply`] does, unless all was
    /// forgotten since: then the store may have lost what it answered, and what is in memory by now is later.
    pub fn answered(&mut self, asked_in: History, key: Key, wallet: Wallet) {
        if self.history == asked_in {
            self.apply(key, wallet);
        } else {
            self.slots.doubt(key);
        }
    }

    /// Something happened to a wallet that is not to be shown now.
    pub fn doubt(&mut self, key: Key) {
        self.slots.doubt(key);
    }

    /// Takes a state of a wallet that is in memory, or is being read; of others it takes nothing. Wakes held polls when it is news.
    pub fn apply(&mut self, key: Key, wallet: Wallet) {
        if let Some(load) = self.loads.get_mut(&key)
            && load.later.is_none_or(|later| later.seq < wallet.seq)
        {
            load.later = Some(wallet);
        }
        // Of a wallet that was put out in spite of its held polls nobody knows whether this is news.
        if self.slots.update(key, wallet) || !self.slots.contains(key) {
            self.wake(key);
        }
    }

    /// Answers a wallet's held polls.
    pub fn wake(&mut self, key: Key) {
        for watcher in self.watchers.remove(&key).unwrap_or_default() {
            self.held -= 1;
            // One that has given up is not there to be woken.
            let _ = watcher.send(());
        }
    }

    /// Asks for a wallet to be read. The first to ask must read it and call [`Mirror::loaded`].
    pub fn load(&mut self, key: Key) -> Turn<Result<Wallet, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let mut first = false;
        let load = self.loads.entry(key).or_insert_with(|| {
            first = true;
            Load::default()
        });
        load.waiters.push(sender);
        if first {
            Turn::Yours(receiver)
        } else {
            Turn::Joined(receiver)
        }
    }

    /// What reading a wallet gave.
    pub fn loaded(&mut self, key: Key, result: Result<Wallet, StoreError>) {
        let Some(Load {
            later,
            void,
            waiters,
        }) = self.loads.remove(&key)
        else {
            return;
        };
        let result = result.map(|read| later.filter(|later| later.seq > read.seq).unwrap_or(read));
        if let Ok(wallet) = &result
            && !void
        {
            let watchers = &self.watchers;
            self.slots
                .insert(key, *wallet, |key| watchers.contains_key(&key));
        }
        for waiter in waiters {
            let _ = waiter.send(result.clone());
        }
    }

    /// Asks for a credit. The first to ask must run it and call [`Mirror::credited`].
    pub fn credit(&mut self, key: Key) -> Turn<Result<Arc<Credited>, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        match self.credits.get_mut(&key) {
            Some(crediting) => {
                crediting.waiters.push(sender);
                Turn::Joined(receiver)
            }
            None => {
                let waiters = vec![sender];
                self.credits.insert(
                    key,
                    Crediting {
                        void: false,
                        waiters,
                    },
                );
                Turn::Yours(receiver)
            }
        }
    }

    /// What a credit gave.
    pub fn credited(&mut self, key: Key, result: Result<Credited, StoreError>) {
        let Crediting { void, waiters } = self.credits.remove(&key).unwrap_or_default();
        match &result {
            Ok(credited) if !void => self.apply(key, credited.wallet),
            _ => self.slots.doubt(key),
        }
        let result = result.map(Arc::new);
        for waiter in waiters {
            let _ = waiter.send(result.clone());
        }
    }

    /// Holds a poll until its wallet changes. `None` when too many are held, in all or for this wallet, and for a wallet
    /// that is not in memory. Whoever stops waiting closes the receiver and calls [`Mirror::release`].
    pub fn hold(&mut self, key: Key) -> Option<oneshot::Receiver<()>> {
        if self.held >= self.held_max || self.slots.get(key).is_none() {
            return None;
        }
        let watchers = self.watchers.entry(key).or_default();
        if watchers.len() >= HOLDS_PER_WALLET_MAX {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.held += 1;
        watchers.push(sender);
        Some(receiver)
    }

    /// Ends the holds of a wallet's polls that no longer wait.
    pub fn release(&mut self, key: Key) {
        if let Some(watchers) = self.watchers.get_mut(&key) {
            let before = watchers.len();
            watchers.retain(|watcher| !watcher.is_closed());
            self.held -= before - watchers.len();
            if watchers.is_empty() {
                self.watchers.remove(&key);
            }
        }
    }

    /// Answers every held poll.
    pub fn wake_all(&mut self) {
        let keys: Vec<Key> = self.watchers.keys().copied().collect();
        keys.into_iter().for_each(|key| self.wake(key));
    }

    /// Forgets a wallet whose state is not known any more; the next poll reads it.
    pub fn reload(&mut self, key: Key) {
        if let Some(load) = self.loads.get_mut(&key) {
            (load.later, load.void) = (None, true);
        }
        self.slots.remove(key);
        self.wake(key);
    }

    /// Forgets every wallet: what the store told before may no longer be so. Gives those with held polls, which are to be
    /// woken, though not all at once.
    #[must_use]
    pub fn reset(&mut self) -> Vec<Key> {
        for load in self.loads.values_mut() {
            (load.later, load.void) = (None, true);
        }
        for crediting in self.credits.values_mut() {
            crediting.void = true;
        }
        self.history.0 += 1;
        self.slots.age();
        self.watchers.keys().copied().collect()
    }

    /// Forgets an erased player's wallets.
    pub fn erase(&mut self, player: PlayerId, hunts: impl Iterator<Item = u32>) {
        for hunt in hunts {
            let key = Key { hunt, player };
            self.slots.remove(key);
            self.wake(key);
        }
    }
}

#[cfg(test)]
mod tests;
