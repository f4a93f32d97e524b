//! What the writer keeps in memory of the store: hunts, their sums, outages, counters. Players are not among it, so
//! that a start takes no longer for a million of them.

use super::keys::{ERASED_NAMES, FEED, FOUND, Fault, HUNTS, META, TOTALS, decode, meta};
use crate::game::Millis;
use crate::game::entry::Totals;
use crate::game::hunt::Hunt;
use crate::game::ids::HuntId;
use crate::game::wallet::Outages;
use hmac::{Hmac, KeyInit, Mac};
use redb::{Database, ReadableDatabase, ReadableTable};
use serde::de::DeserializeOwned;
use sha2::Sha256;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A hunt as the writer holds it.
#[derive(Debug)]
pub(super) struct HuntSlot {
    pub(super) hunt: Arc<Hunt>,
    pub(super) totals: Totals,
    /// Finds that are pending, in all wallets: those worth nothing do not show in the totals.
    pub(super) pending_finds: u64,
    pub(super) totals_changed: bool,
    pub(super) found: BTreeSet<u32>,
}

impl HuntSlot {
    pub(super) fn new(hunt: Hunt) -> Self {
        Self {
            hunt: Arc::new(hunt),
            totals: Totals::default(),
            pending_finds: 0,
            totals_changed: true,
            found: BTreeSet::new(),
        }
    }
}

/// The state after the last commit, or while a batch runs, within it.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) identity: [u8; 16],
    secret: [u8; 32],
    pub(super) epoch: u64,
    pub(super) incarnation: Option<(u64, u64, u64)>,
    pub(super) hunts: HashMap<HuntId, HuntSlot>,
    pub(super) next_hunt: u32,
    pub(super) outages: Outages,
    /// Whether the file does not have all of them yet.
    pub(super) outages_unsaved: bool,
    pub(super) feed_position: u64,
    pub(super) forgotten_to: u64,
    /// When the next id may have to be forgotten; 0 to look.
    pub(super) forget_at: Millis,
    pub(super) alive_at: Millis,
    pub(super) any_erased: bool,
    numbers: HashMap<u32, HuntId>,
}

impl State {
    /// Reads the state. Fails when the file was never set up.
    pub(super) fn read(db: &Database) -> Result<Self, Fault> {
        let txn = db.begin_read()?;
        let meta_table = txn.open_table(META)?;
        fn value<T: DeserializeOwned>(
            table: &impl ReadableTable<&'static str, &'static [u8]>,
            name: &str,
        ) -> Result<Option<T>, Fault> {
            table
                .get(name)?
                .map(|bytes| decode(bytes.value()))
                .transpose()
        }
        let missing = Fault::Missing("the store was never set up");
        let mut state = Self {
            identity: value(&meta_table, meta::IDENTITY)?.ok_or(missing)?,
            secret: value(&meta_table, meta::SECRET)?
                .ok_or(Fault::Missing("the store has no secret"))?,
            epoch: value(&meta_table, meta::EPOCH)?
                .ok_or(Fault::Missing("the store has no epoch"))?,
            incarnation: value(&meta_table, meta::INCARNATION)?,
            next_hunt: value(&meta_table, meta::NEXT_HUNT)?.unwrap_or(1),
            outages: value(&meta_table, meta::OUTAGES)?.unwrap_or_default(),
            forgotten_to: value(&meta_table, meta::FORGOTTEN_TO)?.unwrap_or(0),
            alive_at: value(&meta_table, meta::ALIVE_AT)?.unwrap_or(0),
            feed_position: txn
                .open_table(FEED)?
                .last()?
                .map_or(0, |(position, _)| position.value()),
            any_erased: txn.open_table(ERASED_NAMES)?.first()?.is_some(),
            ..Self::default()
        };
        let totals = txn.open_table(TOTALS)?;
        let found = txn.open_table(FOUND)?;
        for row in txn.open_table(HUNTS)?.iter()? {
            let (number, bytes) = row?;
            let mut hunt: Hunt = decode(bytes.value())?;
            hunt.index();
            let number = number.value();
            let mut slot = HuntSlot::new(hunt);
            if let Some(bytes) = totals.get(number)? {
                (slot.totals, slot.pending_finds) = decode(bytes.value())?;
            }
            slot.totals_changed = false;
            for row in found.range((number, 0)..=(number, u32::MAX))? {
                slot.found.insert(row?.0.value().1);
            }
            state.numbers.insert(number, slot.hunt.spec.id.clone());
            state.hunts.insert(slot.hunt.spec.id.clone(), slot);
        }
        Ok(state)
    }

    /// The id of the hunt with this number.
    pub(super) fn hunt_id(&mut self, number: u32) -> Option<HuntId> {
        if !self.numbers.contains_key(&number) {
            self.numbers = self
                .hunts
                .iter()
                .map(|(id, slot)| (slot.hunt.number, id.clone()))
                .collect();
        }
        self.numbers.get(&number).cloned()
    }

    /// See [`digest`].
    pub(super) fn digest(&self, name: &str) -> [u8; 32] {
        digest(&self.secret, name)
    }
}

/// What is kept of an erased name under the store's secret: enough to know it again, not enough to learn it.
pub(super) fn digest(secret: &[u8; 32], name: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    mac.update(name.as_bytes());
    mac.finalize().into_bytes().into()
}
