//! The latest finds that this process has recorded, for people to see that something is going on.

use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The finds that are kept.
pub const LATEST_FINDS_MAX: usize = 20;

/// One find. The player is the random number that everything but one map knows: a page needs no names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LatestFind {
    /// When the treasure was found, in milliseconds since the epoch.
    pub found_at: u64,
    /// The hunt's id.
    pub hunt: String,
    /// The treasure's id; `None` for coins that a back end recorded without one.
    pub treasure: Option<String>,
    /// The player's number.
    pub player: String,
    /// Its coins.
    pub coins: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct LatestFinds(Mutex<VecDeque<LatestFind>>);

impl LatestFinds {
    /// Keeps one more, and forgets the oldest beyond [`LATEST_FINDS_MAX`].
    pub fn push(&self, find: LatestFind) {
        let mut finds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if finds.len() >= LATEST_FINDS_MAX {
            finds.pop_front();
        }
        finds.push_back(find);
    }

    /// The latest, the newest first.
    #[must_use]
    pub fn latest(&self) -> Vec<LatestFind> {
        let finds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        finds.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_come_first_and_are_bounded() {
        let finds = LatestFinds::default();
        for coins in 0..100 {
            finds.push(LatestFind {
                found_at: 1,
                hunt: "h".into(),
                treasure: None,
                player: "1".into(),
                coins,
            });
        }
        let coins: Vec<u64> = finds.latest().iter().map(|find| find.coins).collect();
        assert_eq!(coins.len(), LATEST_FINDS_MAX);
        assert_eq!((coins[0], coins[1]), (99, 98));
    }
}
