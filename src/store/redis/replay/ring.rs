//! The ring of what this instance executed: bounded in bytes, entries and age.
//!
//! An item is **settled** while the store is known to hold it in the epoch that is. A new epoch unsettles everything; what
//! lies before the cut of its partition is settled again without asking ([`Ring::judge`]), the rest is offered. Age puts out
//! only what is settled: a store that was away for long is offered all that it may have lost.

use super::item::{Item, Kind};
use crate::game::Millis;
use crate::game::ids::{PlayerId, PlayerName};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most items, whatever they weigh.
pub(super) const RING_ENTRIES_MAX: usize = 500_000;

/// An item, and what is known of it.
struct Kept {
    item: Arc<Item>,
    /// The epoch in which the store had it; its caller's, so it may be one too low.
    epoch: u64,
    settled: bool,
    pushed: Instant,
    bytes: usize,
}

/// Where a partition's epoch began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct Cut {
    /// The time of the last entry that the epoch before left. What was done before that is there.
    pub(in crate::store::redis) ms: Millis,
    /// The epoch before.
    pub(in crate::store::redis) of: u64,
}

/// See the module.
pub(super) struct Ring {
    /// `None` where an item was purged.
    items: VecDeque<Option<Kept>>,
    /// The number of the first of `items`; numbers are never used again.
    first: u64,
    bytes: usize,
    bytes_max: usize,
    age_max: Duration,
    /// Names that an item is about, with their numbers.
    names: HashMap<PlayerName, PlayerId>,
}

impl Ring {
    pub(super) fn new(bytes_max: usize, age_max: Duration) -> Self {
        Self {
            items: VecDeque::new(),
            first: 0,
            bytes: 0,
            bytes_max,
            age_max,
            names: HashMap::new(),
        }
    }

    /// Keeps an item. Gives how many that were not settled had to go for it.
    pub(super) fn push(&mut self, item: Arc<Item>, epoch: u64, settled: bool) -> u64 {
        if let Item::Player { name, player, .. } = &*item
            && self.names.insert(name.clone(), *player) == Some(*player)
        {
            // It is here already; the earlier one is the surer to survive.
            return 0;
        }
        let bytes = item.bytes();
        self.bytes += bytes;
        self.items.push_back(Some(Kept {
            item,
            epoch,
            settled,
            pushed: Instant::now(),
            bytes,
        }));
        self.evict(epoch)
    }

    fn evict(&mut self, epoch: u64) -> u64 {
        let mut lost = 0;
        while let Some(front) = self.items.front() {
            let over = self.bytes > self.bytes_max || self.items.len() > RING_ENTRIES_MAX;
            let goes = front.as_ref().is_none_or(|kept| {
                over || (kept.settled
                    && kept.epoch >= epoch
                    && kept.pushed.elapsed() > self.age_max)
            });
            if !goes {
                break;
            }
            lost += u64::from(front.as_ref().is_some_and(|kept| !kept.settled));
            self.first += 1;
            if let Some(Some(kept)) = self.items.pop_front() {
                self.forget(&kept);
            }
        }
        lost
    }

    fn forget(&mut self, kept: &Kept) {
        self.bytes -= kept.bytes;
        if let Item::Player { name, player, .. } = &*kept.item
            && self.names.get(name) == Some(player)
        {
            self.names.remove(name);
        }
    }

    /// The number of a name, if an item says so.
    pub(super) fn number_of(&self, name: &PlayerName) -> Option<PlayerId> {
        self.names.get(name).copied()
    }

    /// A new epoch: settles what is known to be there, by the cuts of the partitions, and nothing else.
    pub(super) fn judge(&mut self, epoch: u64, cut_of: impl Fn(PlayerId) -> Cut) {
        for kept in self.items.iter_mut().flatten() {
            if kept.settled && kept.epoch == epoch {
                continue;
            }
            kept.settled = kept.settled
                && kept.item.in_ledger().is_some_and(|(player, at)| {
                    let cut = cut_of(player);
                    kept.epoch == cut.of && at < cut.ms
                });
            if kept.settled {
                kept.epoch = epoch;
            }
        }
    }

    /// What is to be offered, with the numbers that the answers are told by.
    pub(super) fn open(&self, kinds: impl Fn(Kind) -> bool) -> Vec<(u64, Arc<Item>)> {
        let numbered = (self.first..).zip(&self.items);
        numbered
            .filter_map(|(number, kept)| Some((number, kept.as_ref()?)))
            .filter(|(_, kept)| !kept.settled && kinds(kept.item.kind()))
            .map(|(number, kept)| (number, kept.item.clone()))
            .collect()
    }

    /// The store has an item in this epoch.
    pub(super) fn settle(&mut self, number: u64, epoch: u64) {
        let kept = number
            .checked_sub(self.first)
            .and_then(|at| self.items.get_mut(usize::try_from(at).ok()?)?.as_mut());
        if let Some(kept) = kept {
            (kept.settled, kept.epoch, kept.pushed) = (true, epoch, Instant::now());
        }
    }

    /// Forgets an item that cannot come back.
    pub(super) fn remove(&mut self, number: u64) {
        let kept = number
            .checked_sub(self.first)
            .and_then(|at| self.items.get_mut(usize::try_from(at).ok()?)?.take());
        if let Some(kept) = kept {
            self.forget(&kept);
        }
    }

    /// Forgets everything about a player. Says whether there was anything, and how much that was not settled.
    pub(super) fn purge(&mut self, player: PlayerId) -> (bool, u64) {
        let of_player = |kept: &Option<Kept>| {
            let of = kept.as_ref().and_then(|kept| kept.item.player());
            of == Some(player)
        };
        let (mut any, mut open) = (false, 0);
        for at in 0..self.items.len() {
            if of_player(&self.items[at])
                && let Some(kept) = self.items[at].take()
            {
                any = true;
                open += u64::from(!kept.settled);
                self.forget(&kept);
            }
        }
        (any, open)
    }

    /// Everything, with its epochs.
    pub(super) fn all(&self) -> Vec<(u64, Arc<Item>)> {
        let kept = self.items.iter().flatten();
        kept.map(|kept| (kept.epoch, kept.item.clone())).collect()
    }

    /// Forgets everything: another store is used from now on.
    pub(super) fn clear(&mut self) {
        self.first += self.items.len() as u64;
        self.items.clear();
        self.names.clear();
        self.bytes = 0;
    }

    /// Items and bytes held.
    pub(super) fn holds(&self) -> (usize, usize) {
        (self.items.iter().flatten().count(), self.bytes)
    }
}
