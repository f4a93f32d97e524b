//! What is due by itself: finds that run out, ids that are forgotten.

use super::Batch;
use crate::game::entry::Change;
use crate::game::ids::PlayerId;
use crate::store::embedded::keys::{
    Fault, Row, decode, due_key, meta, parse_due_key, prefix, row_key,
};
use crate::store::embedded::writer::{BATCH_ENTRIES_MAX, FORGET_ENTRIES_MAX, SWEEP_WALLETS_MAX};
use redb::ReadableTable;

impl Batch<'_, '_> {
    /// What is due by itself: expiry and forgetting, each up to its limit. Says whether more of it is due.
    pub(in crate::store::embedded) fn keep_house(&mut self) -> Result<bool, Fault> {
        let swept_all = self.sweep(SWEEP_WALLETS_MAX, BATCH_ENTRIES_MAX)?;
        let passed = self.forget_ids(FORGET_ENTRIES_MAX)?;
        Ok(!swept_all || passed == FORGET_ENTRIES_MAX)
    }

    /// Expires finds that have run out, of up to `wallets_max` wallets, and no more once the batch has written
    /// `entries_max` entries. Says whether none is left.
    fn sweep(&mut self, wallets_max: usize, entries_max: usize) -> Result<bool, Fault> {
        let to = due_key(self.now, 0, PlayerId(0));
        let mut due = Vec::new();
        for row in self.due.range::<&[u8]>(..to.as_slice())?.take(wallets_max) {
            due.extend(parse_due_key(row?.0.value()));
        }
        for (visited, (_, number, player)) in due.iter().enumerate() {
            // At least one, so that a batch full of jobs does not put expiry off for good.
            if visited > 0 && self.entries_written() >= entries_max {
                return Ok(false);
            }
            let id = self
                .state
                .hunt_id(*number)
                .ok_or(Fault::Missing("a hunt is missing"))?;
            let prefix = prefix(*number, *player);
            let before = self.wallet(prefix)?;
            let mut after = before;
            let mut entries = Vec::new();
            after.expire(
                &mut self.pending(prefix)?,
                self.now,
                &self.state.outages,
                &mut entries,
            );
            self.write(&id, *player, &before, &after, &entries)?;
        }
        Ok(due.len() < wallets_max)
    }

    /// Forgets clients' find ids past their time, by walking the feed from where the last walk ended, at most
    /// `entries_max` entries. Says how many it passed.
    fn forget_ids(&mut self, entries_max: u64) -> Result<u64, Fault> {
        let from = self.state.forgotten_to;
        let to = self.state.feed_position.min(from + entries_max);
        for position in from + 1..=to {
            let Some((number, player, seq)) = self.feed.get(position)?.map(|row| row.value())
            else {
                continue;
            };
            let prefix = prefix(number, PlayerId(player));
            let entry = self.entry(prefix, seq)?;
            if self.now.saturating_sub(entry.at) <= self.limits.find_id_ttl_ms {
                self.state.forget_at = entry.at + self.limits.find_id_ttl_ms + 1;
                break;
            }
            self.state.forgotten_to = position;
            if let Change::Find(find) = &entry.change
                && find.repeatable
            {
                let key = row_key(prefix, Row::Client(&find.id));
                // The id may have been used again since; then the row belongs to the later find.
                let same = self
                    .rows
                    .get(key.as_slice())?
                    .map(|v| decode::<u64>(v.value()))
                    .transpose()?
                    == Some(seq);
                if same {
                    self.rows.remove(key.as_slice())?;
                }
            }
        }
        let passed = self.state.forgotten_to - from;
        if passed > 0 {
            self.set_meta(meta::FORGOTTEN_TO, &self.state.forgotten_to.clone())?;
        }
        Ok(passed)
    }
}
