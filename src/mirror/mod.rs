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

/// The wallets in memory, and who waits for what about them.
#[derive(Debug)]
pub struct Mirror {
    slots: Slots,
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

    /// Takes a state of a wallet that is in memory, or is being read; of others it takes nothing. Wakes held polls when
    /// it is news.
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
        if let Ok(credited) = &result
            && !void
        {
            self.apply(key, credited.wallet);
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
mod tests {
    use super::*;

    const KEY: Key = Key {
        hunt: 1,
        player: PlayerId(7),
    };

    fn at(seq: u64) -> Wallet {
        Wallet {
            seq,
            balance: seq * 10,
            ..Wallet::default()
        }
    }

    fn loaded(wallet: Wallet) -> Mirror {
        let mut mirror = Mirror::new(10, 2);
        let Turn::Yours(_) = mirror.load(KEY) else {
            panic!("nobody else asked")
        };
        mirror.loaded(KEY, Ok(wallet));
        mirror
    }

    #[test]
    fn a_wallet_never_goes_backwards() {
        let mut mirror = loaded(at(5));
        mirror.apply(KEY, at(4));
        assert_eq!(mirror.get(KEY), Some(at(5)));
        mirror.apply(KEY, at(6));
        assert_eq!(mirror.get(KEY), Some(at(6)));
    }

    #[test]
    fn a_change_during_the_read_is_not_lost() {
        let mut mirror = Mirror::new(10, 2);
        let Turn::Yours(mut first) = mirror.load(KEY) else {
            panic!("nobody else asked")
        };
        let Turn::Joined(mut second) = mirror.load(KEY) else {
            panic!("somebody asked")
        };
        mirror.apply(KEY, at(6));
        mirror.loaded(KEY, Ok(at(5)));
        assert_eq!(mirror.get(KEY), Some(at(6)));
        assert_eq!(first.try_recv().unwrap(), Ok(at(6)));
        assert_eq!(second.try_recv().unwrap(), Ok(at(6)));
    }

    #[test]
    fn what_nobody_loaded_is_not_kept() {
        let mut mirror = Mirror::new(10, 2);
        mirror.apply(KEY, at(6));
        assert_eq!(mirror.get(KEY), None);
        let Turn::Yours(_) = mirror.load(KEY) else {
            panic!("nobody else asked")
        };
        mirror.loaded(KEY, Err(StoreError::Busy));
        assert!(mirror.is_empty());
        assert!(
            matches!(mirror.load(KEY), Turn::Yours(_)),
            "a read that failed is tried again"
        );
    }

    #[test]
    fn after_a_reset_nothing_that_was_known_or_is_being_read_stays() {
        let mut mirror = loaded(at(5));
        let mut held = mirror.hold(KEY).unwrap();
        let other = Key { hunt: 2, ..KEY };
        let Turn::Yours(mut read) = mirror.load(other) else {
            panic!("nobody else asked")
        };
        assert_eq!(mirror.reset(), [KEY]);
        assert!(held.try_recv().is_err(), "they are not all woken at once");
        mirror.wake(KEY);
        assert_eq!(held.try_recv(), Ok(()));
        assert_eq!(mirror.get(KEY), None);
        mirror.loaded(other, Ok(at(9)));
        assert_eq!(read.try_recv().unwrap(), Ok(at(9)));
        assert_eq!(
            mirror.get(other),
            None,
            "it may have been read before the reset"
        );
        mirror.load(KEY);
        mirror.loaded(KEY, Ok(at(3)));
        assert_eq!(
            mirror.get(KEY),
            Some(at(3)),
            "a sequence may be lower than before"
        );
        mirror.reload(KEY);
        assert_eq!(mirror.get(KEY), None);
    }

    #[test]
    fn a_credit_of_a_history_that_was_cut_is_not_kept() {
        let mut mirror = loaded(at(5));
        let Turn::Yours(mut credit) = mirror.credit(KEY) else {
            panic!("nobody else asked")
        };
        assert!(mirror.reset().is_empty());
        mirror.load(KEY);
        mirror.loaded(KEY, Ok(at(3)));
        let credited = Credited {
            wallet: at(7),
            entries: Vec::new(),
        };
        mirror.credited(KEY, Ok(credited));
        assert_eq!(credit.try_recv().unwrap().unwrap().wallet, at(7));
        assert_eq!(
            mirror.get(KEY),
            Some(at(3)),
            "the store has said so since the reset"
        );
    }

    #[test]
    fn held_polls_are_woken_by_news_and_bounded() {
        let mut mirror = loaded(at(5));
        let mut held = mirror.hold(KEY).unwrap();
        mirror.apply(KEY, at(5));
        assert!(held.try_recv().is_err(), "the same state is no news");
        let mut other = mirror.hold(KEY).unwrap();
        assert!(mirror.hold(KEY).is_none(), "two are held at most");
        other.close();
        mirror.release(KEY);
        assert_eq!(mirror.held(), 1);
        let mut again = mirror
            .hold(KEY)
            .expect("a poll that has gone leaves its place");
        again.close();
        mirror.release(KEY);
        assert_eq!(mirror.held(), 1);
        mirror.apply(KEY, at(6));
        assert_eq!(held.try_recv(), Ok(()));
        assert_eq!(mirror.held(), 0);
    }

    #[test]
    fn one_wallet_holds_a_bounded_number_of_polls() {
        let mut mirror = Mirror::new(10, 1_000);
        let Turn::Yours(_) = mirror.load(KEY) else {
            panic!("nobody else asked")
        };
        mirror.loaded(KEY, Ok(at(5)));
        let held: Vec<_> = (0..1_000).map_while(|_| mirror.hold(KEY)).collect();
        assert_eq!(held.len(), HOLDS_PER_WALLET_MAX);
    }

    #[test]
    fn a_held_poll_of_a_wallet_that_was_put_out_is_woken() {
        let mut mirror = Mirror::new(1, 10);
        for key in [KEY, Key { hunt: 2, ..KEY }] {
            let Turn::Yours(_) = mirror.load(key) else {
                panic!("nobody else asked")
            };
            mirror.loaded(key, Ok(at(5)));
            if key == KEY {
                std::mem::forget(mirror.hold(KEY));
            }
        }
        assert_eq!((mirror.get(KEY), mirror.held()), (None, 1));
        mirror.apply(KEY, at(6));
        assert_eq!(mirror.held(), 0);
    }

    #[test]
    fn one_credit_runs_for_all_who_ask() {
        let mut mirror = loaded(at(5));
        let Turn::Yours(mut first) = mirror.credit(KEY) else {
            panic!("nobody else asked")
        };
        let Turn::Joined(mut second) = mirror.credit(KEY) else {
            panic!("somebody asked")
        };
        mirror.credited(
            KEY,
            Ok(Credited {
                wallet: at(7),
                entries: Vec::new(),
            }),
        );
        assert_eq!(first.try_recv().unwrap().unwrap().wallet, at(7));
        assert_eq!(second.try_recv().unwrap().unwrap().wallet, at(7));
        assert_eq!(mirror.get(KEY), Some(at(7)));
        assert!(matches!(mirror.credit(KEY), Turn::Yours(_)));
    }
}
