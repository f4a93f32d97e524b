//! What operators do: hunts, and erasing players.

use super::{Answer, Batch};
use crate::game::hunt::{Hunt, HuntError, HuntSpec, LifeStep};
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::store::embedded::keys::{Fault, encode, meta, prefix};
use crate::store::embedded::state::HuntSlot;
use crate::store::{Erasure, FeedEvent, Put};
use std::sync::Arc;

impl Batch<'_, '_> {
    /// See [`crate::store::Store::erase`].
    pub(in crate::store::embedded) fn erase(&mut self, name: &PlayerName) -> Answer<Erasure> {
        let digest = self.state.digest(name.as_str());
        self.erased_names.insert(digest.as_slice(), self.now)?;
        self.state.any_erased = true;
        let number = self
            .players
            .remove(name.as_str())?
            .map(|number| number.value());
        let Some(number) = number else {
            return Ok(Ok(Erasure {
                revoked: 0,
                existed: false,
            }));
        };
        self.names.remove(number)?;
        self.erased.insert(number, self.now)?;
        let player = PlayerId(number);
        let mut erasure = Erasure {
            revoked: 0,
            existed: true,
        };
        let hunts: Vec<(HuntId, u32)> = self
            .state
            .hunts
            .iter()
            .map(|(id, slot)| (id.clone(), slot.hunt.number))
            .collect();
        for (hunt, number) in hunts {
            let prefix = prefix(number, player);
            let before = self.wallet(prefix)?;
            if before.pending_finds == 0 {
                continue;
            }
            let mut after = before;
            let mut entries = Vec::new();
            after.revoke_pending(&mut self.pending(prefix)?, self.now, &mut entries);
            erasure.revoked += before.pending_coins;
            self.write(&hunt, player, &before, &after, &entries)?;
        }
        self.events.push(FeedEvent::Erased { player });
        Ok(Ok(erasure))
    }

    /// See [`crate::store::Store::put_hunt`].
    pub(in crate::store::embedded) fn put_hunt(
        &mut self,
        spec: HuntSpec,
    ) -> Answer<Result<(Arc<Hunt>, Put), HuntError>> {
        let id = spec.id.clone();
        let put = if let Some(slot) = self.state.hunts.get_mut(&id) {
            let mut hunt = Hunt::clone(&slot.hunt);
            if let Err(error) = hunt.replace(spec, &slot.found) {
                return Ok(Ok(Err(error)));
            }
            slot.hunt = Arc::new(hunt);
            Put::Replaced
        } else {
            let number = self.state.next_hunt;
            self.state.next_hunt += 1;
            self.set_meta(meta::NEXT_HUNT, &(number + 1))?;
            self.state
                .hunts
                .insert(id.clone(), HuntSlot::new(Hunt::new(number, spec)));
            Put::Created
        };
        Ok(Ok(Ok((self.write_hunt(&id)?, put))))
    }

    /// See [`crate::store::Store::step_hunt`].
    pub(in crate::store::embedded) fn step_hunt(
        &mut self,
        id: &HuntId,
        step: LifeStep,
    ) -> Answer<Result<Arc<Hunt>, HuntError>> {
        let slot = match self.slot(id) {
            Ok(slot) => slot,
            Err(error) => return Ok(Err(error)),
        };
        let mut hunt = Hunt::clone(&slot.hunt);
        let pending = match slot.totals.pending {
            0 => slot.pending_finds,
            coins => coins,
        };
        if let Err(error) = hunt.step(step, self.now, pending) {
            return Ok(Ok(Err(error)));
        }
        if hunt.generation == slot.hunt.generation {
            return Ok(Ok(Ok(slot.hunt.clone())));
        }
        if let Some(slot) = self.state.hunts.get_mut(id) {
            slot.hunt = Arc::new(hunt);
        }
        Ok(Ok(Ok(self.write_hunt(id)?)))
    }

    fn write_hunt(&mut self, id: &HuntId) -> Result<Arc<Hunt>, Fault> {
        let hunt = self.state.hunts[id].hunt.clone();
        self.hunts.insert(hunt.number, encode(&*hunt)?.as_slice())?;
        self.events.push(FeedEvent::Hunt(hunt.clone()));
        Ok(hunt)
    }
}
