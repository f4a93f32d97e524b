//! The wallets themselves: slots in one vector, found through a map, put out by the clock algorithm when full.

use crate::game::ids::PlayerId;
use crate::game::wallet::Wallet;
use ahash::AHashMap;

/// A player in a hunt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The hunt's number.
    pub hunt: u32,
    /// The player.
    pub player: PlayerId,
}

/// The most slots that are looked at to put one out. A million wallets that were all used would take as long as a
/// thousand polls.
const PROBES_MAX: usize = 64;
/// Room in the map that is made at the start, in wallets, so that it never moves them all while polls wait: 2 MB touched.
const ROOM_AT_START: usize = 1 << 20;

#[derive(Debug)]
struct Slot {
    key: Key,
    wallet: Wallet,
    /// Whether it was used since the hand last passed.
    used: bool,
    /// Whether something happened to it since it was put in that it does not show.
    has_changed: bool,
    /// The generation in which it was put in.
    generation: u32,
}

/// A bounded set of wallets.
#[derive(Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    by_key: AHashMap<Key, u32>,
    hand: usize,
    slots_max: usize,
    /// Wallets of an earlier generation are kept until their place is needed, for when there is nothing better.
    generation: u32,
    current: usize,
}

impl Slots {
    /// At most `slots_max` wallets, and at least one.
    #[must_use]
    pub fn new(slots_max: usize) -> Self {
        let slots_max = slots_max.clamp(1, u32::MAX as usize);
        Self {
            slots: Vec::new(),
            by_key: AHashMap::with_capacity(slots_max.min(ROOM_AT_START)),
            hand: 0,
            slots_max,
            generation: 0,
            current: 0,
        }
    }

    /// The wallet, which counts as used.
    #[inline]
    pub fn get(&mut self, key: Key) -> Option<Wallet> {
        let slot = &mut self.slots[*self.by_key.get(&key)? as usize];
        if slot.generation != self.generation {
            return None;
        }
        slot.used = true;
        Some(slot.wallet)
    }

    /// The wallet as it was before [`Slots::age`], if it was not put in since.
    #[must_use]
    pub fn aged(&self, key: Key) -> Option<Wallet> {
        let slot = &self.slots[*self.by_key.get(&key)? as usize];
        (slot.generation != self.generation).then_some(slot.wallet)
    }

    /// The wallet, as [`Slots::get`] gives it, looked for where it was last: `place` is any number at first, and is then where
    /// it was found. This saves a look into the map, whose memory is as cold as the wallet's own.
    #[inline]
    pub fn get_at(&mut self, key: Key, place: &mut u32) -> Option<Wallet> {
        if let Some(slot) = self.slots.get_mut(*place as usize)
            && slot.key == key
            && slot.generation == self.generation
        {
            slot.used = true;
            return Some(slot.wallet);
        }
        *place = *self.by_key.get(&key)?;
        self.get(key)
    }

    /// Whether the wallet is here.
    #[must_use]
    pub fn contains(&self, key: Key) -> bool {
        let slot = self.by_key.get(&key).map(|at| &self.slots[*at as usize]);
        slot.is_some_and(|slot| slot.generation == self.generation)
    }

    /// Takes a later state of a wallet that is here. Says whether it was later.
    pub fn update(&mut self, key: Key, wallet: Wallet) -> bool {
        let Some(index) = self.by_key.get(&key) else {
            return false;
        };
        let slot = &mut self.slots[*index as usize];
        if slot.generation != self.generation {
            slot.has_changed = true;
            return false;
        }
        let later = wallet.seq > slot.wallet.seq;
        if later {
            slot.wallet = wallet;
        }
        later
    }

    /// Takes what an [aged](Slots::aged) wallet is known to have become, unless it has been changed since, or was later. Says
    /// whether it took it.
    pub fn revive(&mut self, key: Key, wallet: Wallet) -> bool {
        let Some(index) = self.by_key.get(&key) else {
            return false;
        };
        let slot = &mut self.slots[*index as usize];
        let takes = slot.generation != self.generation
            && !slot.has_changed
            && wallet.seq >= slot.wallet.seq;
        if takes {
            slot.wallet = wallet;
            slot.generation = self.generation;
            slot.used = true;
            self.current += 1;
        }
        takes
    }

    /// Something is known to have happened to an [aged](Slots::aged) wallet.
    pub fn doubt(&mut self, key: Key) {
        if let Some(index) = self.by_key.get(&key) {
            self.slots[*index as usize].has_changed = true;
        }
    }

    /// Puts a wallet in; when full, in the place of one that was not used lately and that `keep` does not name.
    pub fn insert(&mut self, key: Key, wallet: Wallet, keep: impl Fn(Key) -> bool) {
        let slot = Slot {
            key,
            wallet,
            used: true,
            has_changed: false,
            generation: self.generation,
        };
        if let Some(index) = self.by_key.get(&key) {
            let known = &mut self.slots[*index as usize];
            if known.generation == self.generation {
                self.update(key, wallet);
            } else {
                *known = slot;
                self.current += 1;
            }
            return;
        }
        self.current += 1;
        let index = if self.slots.len() < self.slots_max {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let index = self.victim(keep);
            self.by_key.remove(&self.slots[index].key);
            self.current -= usize::from(self.slots[index].generation == self.generation);
            self.slots[index] = slot;
            index
        };
        // The vector is never longer than slots_max, which fits.
        self.by_key
            .insert(key, u32::try_from(index).unwrap_or(u32::MAX));
    }

    /// The next slot that was not used since the hand last passed; if there is none among the next [`PROBES_MAX`], the
    /// first of those that is not kept, and if all are kept, one of them.
    fn victim(&mut self, keep: impl Fn(Key) -> bool) -> usize {
        let mut spare = None;
        for _ in 0..PROBES_MAX {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[index];
            let used = std::mem::take(&mut slot.used);
            if keep(slot.key) {
                continue;
            }
            if !used {
                return index;
            }
            spare = spare.or(Some(index));
        }
        spare.unwrap_or(self.hand)
    }

    /// Takes a wallet out.
    pub fn remove(&mut self, key: Key) {
        let Some(index) = self.by_key.remove(&key) else {
            return;
        };
        let index = index as usize;
        let removed = self.slots.swap_remove(index);
        self.current -= usize::from(removed.generation == self.generation);
        if let Some(moved) = self.slots.get(index) {
            self.by_key
                .insert(moved.key, u32::try_from(index).unwrap_or(u32::MAX));
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
    }

    /// Takes every wallet out, but for [`Slots::aged`].
    pub fn age(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.current = 0;
    }

    /// Wallets here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.current
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key {
            hunt: 1,
            player: PlayerId(n),
        }
    }

    fn with(n: u64) -> Slots {
        let mut slots = Slots::new(3);
        (0..n).for_each(|i| {
            slots.insert(
                key(i),
                Wallet {
                    balance: i,
                    ..Wallet::default()
                },
                |_| false,
            )
        });
        slots
    }

    #[test]
    fn a_full_set_puts_out_what_was_not_used_lately() {
        let mut slots = with(4);
        assert_eq!(slots.len(), 3);
        assert_eq!(
            slots.get(key(0)),
            None,
            "all were used alike: the oldest goes"
        );
        assert!(slots.get(key(1)).is_some());
        slots.insert(key(9), Wallet::default(), |_| false);
        assert_eq!(slots.get(key(2)), None);
        assert!(
            slots.get(key(1)).is_some()
                && slots.get(key(3)).is_some()
                && slots.get(key(9)).is_some()
        );
    }

    #[test]
    fn a_large_set_that_was_all_used_is_not_walked_to_put_one_out() {
        let mut slots = Slots::new(10_000);
        (0..10_000).for_each(|n| slots.insert(key(n), Wallet::default(), |_| false));
        slots.insert(key(10_000), Wallet::default(), |_| false);
        let unused = slots.slots.iter().filter(|slot| !slot.used).count();
        assert!(unused < PROBES_MAX, "{unused} slots were looked at");
        assert_eq!(slots.len(), 10_000);
    }

    #[test]
    fn what_is_kept_stays() {
        let mut slots = with(3);
        slots.insert(key(9), Wallet::default(), |kept| kept == key(0));
        assert!(slots.get(key(0)).is_some());
        assert_eq!(slots.get(key(1)), None);
    }

    #[test]
    fn removing_leaves_the_others_where_they_are_found() {
        let mut slots = with(3);
        slots.remove(key(0));
        assert_eq!(slots.get(key(0)), None);
        assert_eq!(slots.get(key(2)).map(|w| w.balance), Some(2));
        assert_eq!(slots.get(key(1)).map(|w| w.balance), Some(1));
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn what_has_aged_is_there_until_something_better_is() {
        let mut slots = with(3);
        slots.age();
        assert_eq!((slots.get(key(1)), slots.len()), (None, 0));
        assert_eq!(slots.aged(key(1)).map(|w| w.balance), Some(1));
        let later = Wallet {
            seq: 9,
            ..Wallet::default()
        };
        assert!(!slots.update(key(1), later), "it is of another history");
        assert!(!slots.revive(key(1), later), "it has changed since");
        slots.insert(key(1), Wallet::default(), |_| false);
        assert_eq!(slots.get(key(1)), Some(Wallet::default()));
        assert_eq!((slots.aged(key(1)), slots.len()), (None, 1));
        slots.remove(key(0));
        slots.insert(key(5), Wallet::default(), |_| false);
        slots.insert(key(6), Wallet::default(), |_| false);
        assert_eq!((slots.len(), slots.slots.len()), (3, 3));
    }

    #[test]
    fn a_wallet_is_found_where_it_was_and_where_it_went() {
        let mut slots = with(3);
        let (mut place, mut gone) = (u32::MAX, 0);
        assert_eq!(slots.get_at(key(2), &mut place).map(|w| w.balance), Some(2));
        assert_eq!(place, 2);
        slots.remove(key(0));
        assert_eq!(slots.get_at(key(0), &mut gone), None);
        assert_eq!(slots.get_at(key(2), &mut place).map(|w| w.balance), Some(2));
        assert_eq!(place, 0, "it took the place of the one that went");
        slots.age();
        assert_eq!(slots.get_at(key(2), &mut place), None);
    }

    #[test]
    fn a_slot_is_72_bytes() {
        assert_eq!(size_of::<Slot>(), 72);
    }
}
