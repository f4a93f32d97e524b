//! The numbers of players for whom back ends recorded finds lately, so that the store is not asked for the same again with
//! each find.
//!
//! A name keeps its number until its player is erased, and a find for an erased number is refused: so a number from here is
//! right, or is found out. Whoever is refused forgets the name and asks the store.

use crate::game::ids::{PlayerId, PlayerName};
use ahash::AHashMap;

/// The most players remembered; about 100 bytes each.
pub const KNOWN_PLAYERS_MAX: usize = 16_384;

/// A bounded set of players, of whom those asked for lately stay: two generations, as of the verified tokens.
#[derive(Debug)]
pub struct KnownPlayers {
    generation_max: usize,
    /// The store's epoch that the numbers are of.
    epoch: u64,
    young: AHashMap<PlayerName, PlayerId>,
    old: AHashMap<PlayerName, PlayerId>,
}

impl KnownPlayers {
    /// Remembers at most `players_max`, and two at least.
    #[must_use]
    pub fn new(players_max: usize) -> Self {
        Self {
            generation_max: (players_max / 2).max(1),
            epoch: 0,
            young: AHashMap::new(),
            old: AHashMap::new(),
        }
    }

    /// The player's number, if it is known. One of another epoch is not: it may have been lost with the store's history.
    pub fn get(&mut self, name: &PlayerName, epoch: u64) -> Option<PlayerId> {
        if self.epoch != epoch {
            self.clear();
            return None;
        }
        if let Some(player) = self.young.get(name) {
            return Some(*player);
        }
        let (name, player) = self.old.remove_entry(name)?;
        self.insert(name, player, epoch);
        Some(player)
    }

    /// Remembers what the store said while `epoch` was its epoch.
    pub fn insert(&mut self, name: PlayerName, player: PlayerId, epoch: u64) {
        if self.epoch != epoch {
            self.clear();
            self.epoch = epoch;
        }
        if self.young.len() >= self.generation_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, player);
    }

    /// Forgets a player.
    pub fn forget(&mut self, name: &PlayerName) {
        self.young.remove(name);
        self.old.remove(name);
    }

    /// Forgets everybody.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nobody is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> PlayerName {
        PlayerName::new(&format!("p{n}")).unwrap()
    }

    #[test]
    fn no_more_are_remembered_than_the_bound_and_those_asked_for_stay() {
        let mut known = KnownPlayers::new(10);
        for n in 0..1_000 {
            known.insert(name(n), PlayerId(n), 1);
            assert!(known.len() <= 10, "{}", known.len());
            assert_eq!(known.get(&name(0), 1), Some(PlayerId(0)));
        }
        assert_eq!(known.get(&name(500), 1), None);
    }

    #[test]
    fn another_epoch_knows_nobody() {
        let mut known = KnownPlayers::new(10);
        known.insert(name(1), PlayerId(1), 1);
        assert_eq!(known.get(&name(1), 2), None);
        assert!(known.is_empty());
        known.insert(name(1), PlayerId(2), 2);
        assert_eq!(known.get(&name(1), 2), Some(PlayerId(2)));
        known.forget(&name(1));
        assert_eq!(known.get(&name(1), 2), None);
    }
}
