//! Verified tokens, so that a player's polls verify the same token once.
//!
//! Two generations bound it: what is used moves to the young one; when that is full it becomes the old one, and what the
//! old one still held, which nobody asked for since, is forgotten, a few at a time so that no poll waits for it. The key is
//! the whole token. A hash alone would let whoever finds a collision speak for another player.

use super::token::Claims;
use hashbrown::hash_table::{Entry as Place, HashTable, IntoIter};
use std::hash::BuildHasher;

/// What is known of a verified token.
#[derive(Debug, Clone)]
pub struct Entry<T> {
    /// What it says.
    pub claims: Claims,
    /// What its user adds.
    pub slot: T,
}

struct Known<T> {
    /// Kept so that a growing table hashes no token again.
    hash: u64,
    token: Box<[u8]>,
    entry: Entry<T>,
}

/// A bounded set of verified tokens.
pub struct TokenCache<T> {
    /// The most tokens in each generation.
    generation_max: usize,
    hasher: hashbrown::DefaultHashBuilder,
    young: HashTable<Known<T>>,
    old: HashTable<Known<T>>,
    /// What is forgotten but still in memory.
    forgotten: IntoIter<Known<T>>,
}

impl<T> TokenCache<T> {
    /// Holds at most `tokens_max` tokens, those that it is forgetting included; three at least.
    #[must_use]
    pub fn new(tokens_max: usize) -> Self {
        Self {
            generation_max: (tokens_max / 3).max(1),
            hasher: hashbrown::DefaultHashBuilder::default(),
            young: HashTable::new(),
            old: HashTable::new(),
            forgotten: HashTable::new().into_iter(),
        }
    }

    /// The token's entry, if it was verified before and has not expired at `now_ms`.
    pub fn get(&mut self, token: &[u8], now_ms: u64) -> Option<&mut Entry<T>> {
        self.make_room();
        let hash = self.hasher.hash_one(token);
        let is_it = |known: &Known<T>| *known.token == *token;
        match self.young.entry(hash, is_it, |known| known.hash) {
            Place::Occupied(place) if place.get().entry.claims.expires_at_ms <= now_ms => {
                place.remove();
                None
            }
            Place::Occupied(place) => Some(&mut place.into_mut().entry),
            Place::Vacant(place) => {
                let (known, _) = self.old.find_entry(hash, is_it).ok()?.remove();
                if known.entry.claims.expires_at_ms <= now_ms {
                    return None;
                }
                Some(&mut place.insert(known).into_mut().entry)
            }
        }
    }

    /// Remembers a token that was just verified; in place of what was known of it.
    pub fn insert(&mut self, token: &[u8], claims: Claims, slot: T) -> &mut Entry<T> {
        self.make_room();
        let hash = self.hasher.hash_one(token);
        let is_it = |known: &Known<T>| *known.token == *token;
        if let Ok(place) = self.old.find_entry(hash, is_it) {
            place.remove();
        }
        let entry = Entry { claims, slot };
        let place = match self.young.entry(hash, is_it, |known| known.hash) {
            Place::Occupied(mut place) => {
                place.get_mut().entry = entry;
                place
            }
            Place::Vacant(place) => place.insert(Known {
                hash,
                token: token.into(),
                entry,
            }),
        };
        &mut place.into_mut().entry
    }

    /// Leaves room for one more in the young generation, and frees two of the forgotten tokens: all of them are gone before
    /// the next generation is forgotten.
    fn make_room(&mut self) {
        self.forgotten.by_ref().take(2).for_each(drop);
        if self.young.len() >= self.generation_max {
            let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            self.forgotten = old.into_iter();
        }
    }

    /// Forgets everything, as when the keys change.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.forgotten = HashTable::new().into_iter();
    }

    /// How many tokens are in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len() + self.forgotten.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::ids::PlayerName;

    fn claims(expires_at_ms: u64) -> Claims {
        Claims {
            player: PlayerName::new("p").unwrap(),
            issued_at_ms: 0,
            expires_at_ms,
        }
    }

    #[test]
    fn it_never_holds_more_than_its_bound() {
        for tokens_max in [3, 4, 10, 101] {
            let mut cache = TokenCache::new(tokens_max);
            for n in 0..1_000u32 {
                cache.insert(&n.to_le_bytes(), claims(9), n);
                assert!(cache.len() <= tokens_max, "{} of {tokens_max}", cache.len());
                cache.get(&(n / 2).to_le_bytes(), 1);
                assert!(cache.len() <= tokens_max, "{} of {tokens_max}", cache.len());
            }
        }
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_is_forgotten() {
        let mut cache = TokenCache::new(15);
        cache.insert(b"used", claims(9), 1);
        cache.insert(b"unused", claims(9), 2);
        for n in 0..100u32 {
            cache.insert(&n.to_le_bytes(), claims(9), 0);
            let entry = cache.get(b"used", 1).unwrap();
            entry.slot += 1;
        }
        assert_eq!(cache.get(b"used", 1).unwrap().slot, 101);
        assert!(cache.get(b"unused", 1).is_none());
    }

    #[test]
    fn an_expired_token_is_forgotten_in_either_generation() {
        let mut cache = TokenCache::new(6);
        cache.insert(b"a", claims(5), ());
        assert!(cache.get(b"a", 4).is_some());
        assert!(cache.get(b"a", 5).is_none());
        assert!(cache.is_empty());
        cache.insert(b"a", claims(5), ());
        cache.insert(b"b", claims(50), ());
        cache.insert(b"c", claims(50), ());
        assert!(cache.get(b"a", 5).is_none());
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn a_token_verified_again_replaces_what_was_known() {
        let mut cache = TokenCache::new(6);
        cache.insert(b"a", claims(5), 1);
        cache.insert(b"b", claims(5), 1);
        cache.insert(b"a", claims(6), 2);
        let entry = cache.get(b"a", 5).unwrap();
        assert_eq!((entry.claims.expires_at_ms, entry.slot), (6, 2));
        assert_eq!(cache.len(), 2);
        cache.clear();
        assert!(cache.is_empty());
    }
}
