//! The hunts as this instance last read them. Scripts compare the generation, so an old copy decides nothing.

use crate::game::hunt::Hunt;
use crate::game::ids::{HuntId, TreasureId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A hunt, and its treasures by number.
#[derive(Debug)]
pub(super) struct CachedHunt {
    pub(super) hunt: Arc<Hunt>,
    by_number: HashMap<u32, TreasureId>,
}

impl CachedHunt {
    pub(super) fn new(hunt: Hunt) -> Self {
        let by_number = hunt
            .treasure_numbers
            .iter()
            .map(|(id, number)| (*number, id.clone()))
            .collect();
        Self {
            hunt: Arc::new(hunt),
            by_number,
        }
    }

    /// The id of the treasure with this number, also of one that the document no longer has.
    pub(super) fn treasure_id(&self, number: u32) -> Option<&TreasureId> {
        self.by_number.get(&number)
    }

    /// The number as keys and scripts have it.
    pub(super) fn number_text(&self) -> String {
        self.hunt.number.to_string()
    }
}

/// Hunts by id and number, and which treasures are known to be noted as found.
#[derive(Debug, Default)]
pub(super) struct HuntCache {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<HuntId, Arc<CachedHunt>>,
    by_number: HashMap<u32, Arc<CachedHunt>>,
    /// Hunt, partition, treasure. Bounded by what the documents hold.
    noted: HashSet<(u32, u16, u32)>,
}

impl HuntCache {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &HuntId) -> Option<Arc<CachedHunt>> {
        self.lock().by_id.get(id).cloned()
    }

    pub(super) fn by_number(&self, number: u32) -> Option<Arc<CachedHunt>> {
        self.lock().by_number.get(&number).cloned()
    }

    /// Takes a hunt that was read, unless a later one is here. Gives the one that is here then.
    pub(super) fn put(&self, hunt: Hunt) -> Arc<CachedHunt> {
        let mut inner = self.lock();
        if let Some(cached) = inner.by_id.get(&hunt.spec.id)
            && cached.hunt.generation >= hunt.generation
        {
            return cached.clone();
        }
        let cached = Arc::new(CachedHunt::new(hunt));
        inner
            .by_id
            .insert(cached.hunt.spec.id.clone(), cached.clone());
        inner.by_number.insert(cached.hunt.number, cached.clone());
        cached
    }

    /// Forgets everything: the store's history may be another one.
    pub(super) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Whether the treasure must still be noted as found in the partition.
    pub(super) fn must_note(&self, hunt: u32, partition: u16, treasure: u32) -> bool {
        !self.lock().noted.contains(&(hunt, partition, treasure))
    }

    /// The treasure is noted as found in the partition.
    pub(super) fn noted(&self, hunt: u32, partition: u16, treasure: u32) {
        self.lock().noted.insert((hunt, partition, treasure));
    }
}
