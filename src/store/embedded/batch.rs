//! One write transaction: the operations that change the store, run one after the other and committed together.
//!
//! Every operation decides by [`crate::game`] before it writes anything, so that a refusal leaves nothing behind. A
//! [`Fault`] ends the whole batch: the transaction is dropped and nobody gets an answer but the fault.

mod housekeeping;
mod managing;

use super::keys::{
    DUE, ERASED, ERASED_NAMES, FEED, FOUND, Fault, HUNTS, KIND_PENDING, META, NAMES, PLAYERS,
    PREFIX_BYTES, ROWS, Row, TOTALS, decode, due_key, encode, meta, parse_row_key, prefix, row_key,
};
use super::state::{HuntSlot, State};
use crate::game::Millis;
use crate::game::entry::{Adjustment, Change, Entry, ExpiryReason, Find};
use crate::game::ids::{HuntId, PlayerId};
use crate::game::rules::{
    self, AdjustDecision, Circumstances, Decision, Identity, Limits, NewFind,
};
use crate::game::wallet::Wallet;
use crate::store::{
    Adjusted, Credited, Erased, FeedEvent, Opening, RecordOutcome, Recorded, Reinstated, StoreError,
};
use redb::{ReadableTable, Table, WriteTransaction};
use std::collections::HashMap;

/// What an operation gives: an answer (which may be a refusal), or a fault that ends the batch.
pub(super) type Answer<T> = Result<Result<T, StoreError>, Fault>;

/// The tables of one transaction, and what they change in memory.
pub(super) struct Batch<'txn, 'state> {
    meta: Table<'txn, &'static str, &'static [u8]>,
    hunts: Table<'txn, u32, &'static [u8]>,
    totals: Table<'txn, u32, &'static [u8]>,
    found: Table<'txn, (u32, u32), ()>,
    players: Table<'txn, &'static str, u64>,
    names: Table<'txn, u64, &'static str>,
    erased_names: Table<'txn, &'static [u8], u64>,
    erased: Table<'txn, u64, u64>,
    rows: Table<'txn, &'static [u8], &'static [u8]>,
    due: Table<'txn, &'static [u8], ()>,
    feed: Table<'txn, u64, (u32, u64, u64)>,
    state: &'state mut State,
    limits: Limits,
    now: Millis,
    events: Vec<FeedEvent>,
    feed_before: u64,
}

impl<'txn, 'state> Batch<'txn, 'state> {
    /// Opens the tables. `now` is the time of everything the batch does.
    pub(super) fn open(
        txn: &'txn WriteTransaction,
        state: &'state mut State,
        limits: Limits,
        now: Millis,
    ) -> Result<Self, Fault> {
        Ok(Self {
            meta: txn.open_table(META)?,
            hunts: txn.open_table(HUNTS)?,
            totals: txn.open_table(TOTALS)?,
            found: txn.open_table(FOUND)?,
            players: txn.open_table(PLAYERS)?,
            names: txn.open_table(NAMES)?,
            erased_names: txn.open_table(ERASED_NAMES)?,
            erased: txn.open_table(ERASED)?,
            rows: txn.open_table(ROWS)?,
            due: txn.open_table(DUE)?,
            feed: txn.open_table(FEED)?,
            feed_before: state.feed_position,
            state,
            limits,
            now,
            events: Vec::new(),
        })
    }

    /// Ledger entries that this batch has written so far.
    pub(super) fn entries_written(&self) -> usize {
        usize::try_from(self.state.feed_position - self.feed_before).unwrap_or(usize::MAX)
    }

    /// Writes what is written once a batch, and gives the events to tell once it is committed.
    pub(super) fn finish(mut self) -> Result<Vec<FeedEvent>, Fault> {
        for slot in self
            .state
            .hunts
            .values_mut()
            .filter(|slot| slot.totals_changed)
        {
            self.totals.insert(
                slot.hunt.number,
                encode(&(slot.totals, slot.pending_finds))?.as_slice(),
            )?;
            slot.totals_changed = false;
        }
        if self.state.outages_unsaved {
            self.meta
                .insert(meta::OUTAGES, encode(&self.state.outages)?.as_slice())?;
            self.state.outages_unsaved = false;
        }
        self.state.alive_at = self.now;
        self.meta
            .insert(meta::ALIVE_AT, encode(&self.now)?.as_slice())?;
        Ok(self.events)
    }

    /// Writes a value of [`META`].
    pub(super) fn set_meta<T: serde::Serialize>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        self.meta.insert(name, encode(value)?.as_slice())?;
        Ok(())
    }

    /// See [`crate::store::Store::open_players`].
    pub(super) fn open_players(
        &mut self,
        players: &[Opening],
    ) -> Result<Vec<Result<PlayerId, Erased>>, Fault> {
        players
            .iter()
            .map(|opening| self.open_player(opening))
            .collect()
    }

    fn open_player(&mut self, opening: &Opening) -> Result<Result<PlayerId, Erased>, Fault> {
        let name = opening.name.as_str();
        let known = self
            .players
            .get(name)?
            .map(|number| PlayerId(number.value()));
        let erased_at = if self.state.any_erased {
            self.erased_names
                .get(self.state.digest(name).as_slice())?
                .map(|at| at.value())
        } else {
            None
        };
        if let Some(erased_at) = erased_at
            && (known.is_none() || opening.issued_at.is_some())
            && opening
                .issued_at
                .is_none_or(|issued_at| issued_at <= erased_at)
        {
            return Ok(Err(Erased));
        }
        if let Some(player) = known {
            return Ok(Ok(player));
        }
        let player = loop {
            let number =
                getrandom::u64().map_err(|_| Fault::Missing("the system has no randomness"))?;
            if self.names.get(number)?.is_none() && self.erased.get(number)?.is_none() {
                break PlayerId(number);
            }
        };
        self.players.insert(name, player.0)?;
        self.names.insert(player.0, name)?;
        Ok(Ok(player))
    }

    fn wallet(&self, prefix: [u8; PREFIX_BYTES]) -> Result<Wallet, Fault> {
        match self.rows.get(row_key(prefix, Row::Wallet).as_slice())? {
            Some(bytes) => decode(bytes.value()),
            None => Ok(Wallet::default()),
        }
    }

    /// The entry whose sequence number a row holds.
    fn remembered(&self, prefix: [u8; PREFIX_BYTES], row: Row<'_>) -> Result<Option<Entry>, Fault> {
        let Some(seq) = self.rows.get(row_key(prefix, row).as_slice())? else {
            return Ok(None);
        };
        let seq = decode(seq.value())?;
        self.entry(prefix, seq).map(Some)
    }

    fn entry(&self, prefix: [u8; PREFIX_BYTES], seq: u64) -> Result<Entry, Fault> {
        let bytes = self
            .rows
            .get(row_key(prefix, Row::Ledger(seq)).as_slice())?;
        decode(
            bytes
                .ok_or(Fault::Missing("a ledger entry is missing"))?
                .value(),
        )
    }

    fn pending(&self, prefix: [u8; PREFIX_BYTES]) -> Result<Vec<Find>, Fault> {
        let from = row_key(prefix, Row::Pending(0));
        let to = row_key(prefix, Row::Pending(u64::MAX));
        let mut seqs = Vec::new();
        for row in self.rows.range::<&[u8]>(from.as_slice()..=to.as_slice())? {
            if let Some((_, _, KIND_PENDING, seq)) = parse_row_key(row?.0.value()) {
                seqs.push(seq);
            }
        }
        let find = |seq| match self.entry(prefix, seq)?.change {
            Change::Find(find) => Ok(find),
            _ => Err(Fault::Missing("a pending find's entry is none")),
        };
        seqs.into_iter().map(find).collect()
    }

    /// Writes a wallet that `entries` changed, and all that follows from them.
    fn write(
        &mut self,
        hunt: &HuntId,
        player: PlayerId,
        before: &Wallet,
        after: &Wallet,
        entries: &[Entry],
    ) -> Result<(), Fault> {
        if entries.is_empty() {
            return Ok(());
        }
        let slot = self
            .state
            .hunts
            .get_mut(hunt)
            .ok_or(Fault::Missing("a hunt is missing"))?;
        let number = slot.hunt.number;
        let prefix = prefix(number, player);
        self.rows.insert(
            row_key(prefix, Row::Wallet).as_slice(),
            encode(after)?.as_slice(),
        )?;
        if before.due_at != after.due_at {
            if before.due_at != 0 {
                self.due
                    .remove(due_key(before.due_at, number, player).as_slice())?;
            }
            if after.due_at != 0 {
                self.due
                    .insert(due_key(after.due_at, number, player).as_slice(), ())?;
            }
        }
        for entry in entries {
            let key = row_key(prefix, Row::Ledger(entry.seq));
            self.rows
                .insert(key.as_slice(), encode(entry)?.as_slice())?;
            self.state.feed_position += 1;
            self.feed
                .insert(self.state.feed_position, (number, player.0, entry.seq))?;
            slot.totals
                .apply(&entry.change)
                .map_err(|_| Fault::Missing("an entry does not fit the totals"))?;
            slot.totals_changed = true;
            match &entry.change {
                Change::Find(find) => {
                    slot.pending_finds += 1;
                    self.rows.insert(
                        row_key(prefix, Row::Pending(find.seq)).as_slice(),
                        [].as_slice(),
                    )?;
                    let number = find
                        .treasure
                        .as_ref()
                        .and_then(|id| slot.hunt.treasure(id))
                        .map(|(_, n)| n);
                    if let Some(number) = number
                        && slot.found.insert(number)
                    {
                        self.found.insert((slot.hunt.number, number), ())?;
                    }
                }
                Change::Credit(find) | Change::Expire(find, _) | Change::Revoke(find) => {
                    slot.pending_finds = slot
                        .pending_finds
                        .checked_sub(1)
                        .ok_or(Fault::Missing("a pending find is not counted"))?;
                    self.rows
                        .remove(row_key(prefix, Row::Pending(find.seq)).as_slice())?;
                }
                Change::Reinstate(find) => {
                    self.rows.insert(
                        row_key(prefix, Row::Reinstated(find.seq)).as_slice(),
                        [].as_slice(),
                    )?;
                }
                // Only a store that can lose what it answered has such a thing.
                Change::Adjust(_) | Change::Replay(..) => {}
            }
        }
        self.events.push(FeedEvent::Wallet {
            hunt: number,
            player,
            wallet: *after,
        });
        Ok(())
    }

    fn slot(&self, hunt: &HuntId) -> Result<&HuntSlot, StoreError> {
        self.state.hunts.get(hunt).ok_or(StoreError::NoSuchHunt)
    }

    fn circumstances<'a>(&'a self, slot: &'a HuntSlot) -> Circumstances<'a> {
        Circumstances {
            hunt: &slot.hunt,
            totals: &slot.totals,
            outages: &self.state.outages,
            limits: self.limits,
            now: self.now,
        }
    }

    /// See [`crate::store::Store::record`].
    pub(super) fn record(
        &mut self,
        hunt: &HuntId,
        finds: &[(PlayerId, NewFind)],
    ) -> Answer<Recorded> {
        if let Err(error) = self.slot(hunt) {
            return Ok(Err(error));
        }
        let mut outcomes = Vec::with_capacity(finds.len());
        let mut wallets = HashMap::new();
        for (player, new) in finds {
            outcomes.push(self.record_one(hunt, *player, new, &mut wallets)?);
        }
        Ok(Ok(Recorded {
            outcomes,
            wallets: wallets.into_iter().collect(),
        }))
    }

    fn record_one(
        &mut self,
        hunt: &HuntId,
        player: PlayerId,
        new: &NewFind,
        wallets: &mut HashMap<PlayerId, Wallet>,
    ) -> Result<RecordOutcome, Fault> {
        let slot = &self.state.hunts[hunt];
        let identity = match rules::identify(&slot.hunt, new, self.now) {
            Ok(identity) => identity,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if self.state.any_erased && self.erased.get(player.0)?.is_some() {
            return Ok(Err(Erased.into()));
        }
        let prefix = prefix(slot.hunt.number, player);
        let row = match &identity {
            Identity::Once(number) => Row::Once(*number),
            Identity::Client(id) => Row::Client(id),
        };
        let prior = self.remembered(prefix, row)?;
        let before = self.wallet(prefix)?;
        let mut after = before;
        let decision = match rules::decide(
            self.circumstances(slot),
            &mut after,
            new,
            &identity,
            prior.as_ref(),
        ) {
            Ok(decision) => decision,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        if let Decision::Recorded(made, expired) = &decision {
            self.rows.insert(
                row_key(prefix, row).as_slice(),
                encode(&made.seq)?.as_slice(),
            )?;
            let entries: Vec<Entry> = std::iter::once(made).chain(expired).cloned().collect();
            self.write(hunt, player, &before, &after, &entries)?;
            wallets.insert(player, after);
        }
        Ok(Ok(decision))
    }

    /// See [`crate::store::Store::credit`].
    pub(super) fn credit(&mut self, hunt: &HuntId, player: PlayerId) -> Answer<Credited> {
        let number = match self.slot(hunt) {
            Ok(slot) => slot.hunt.number,
            Err(error) => return Ok(Err(error)),
        };
        let prefix = prefix(number, player);
        let before = self.wallet(prefix)?;
        let mut wallet = before;
        let mut entries = Vec::new();
        if wallet.pending_finds > 0 {
            let mut pending = self.pending(prefix)?;
            wallet.collect(&mut pending, self.now, &self.state.outages, &mut entries);
            self.write(hunt, player, &before, &wallet, &entries)?;
        }
        Ok(Ok(Credited { wallet, entries }))
    }

    /// See [`crate::store::Store::adjust`].
    pub(super) fn adjust(
        &mut self,
        hunt: &HuntId,
        player: PlayerId,
        new: Adjustment,
    ) -> Answer<Adjusted> {
        let slot = match self.slot(hunt) {
            Ok(slot) => slot,
            Err(error) => return Ok(Err(error)),
        };
        let prefix = prefix(slot.hunt.number, player);
        let key = new.key.clone();
        let prior = self.remembered(prefix, Row::Adjustment(&key))?;
        let before = self.wallet(prefix)?;
        let mut wallet = before;
        let outcome =
            rules::decide_adjustment(self.circumstances(slot), &mut wallet, new, prior.as_ref());
        if let Ok(AdjustDecision::Recorded(entry)) = &outcome {
            self.rows.insert(
                row_key(prefix, Row::Adjustment(&key)).as_slice(),
                encode(&entry.seq)?.as_slice(),
            )?;
            self.write(hunt, player, &before, &wallet, std::slice::from_ref(entry))?;
        }
        Ok(Ok(Adjusted { outcome, wallet }))
    }

    /// Reinstates finds of one hunt, named by player and entry; those reinstated before are passed over.
    pub(super) fn reinstate(
        &mut self,
        hunt: &HuntId,
        finds: &[(PlayerId, u64)],
    ) -> Answer<Reinstated> {
        let number = match self.slot(hunt) {
            Ok(slot) => slot.hunt.number,
            Err(error) => return Ok(Err(error)),
        };
        let mut sum = Reinstated::default();
        for (player, expiry_seq) in finds {
            let prefix = prefix(number, *player);
            let Change::Expire(find, ExpiryReason::StoreOutage) =
                self.entry(prefix, *expiry_seq)?.change
            else {
                continue;
            };
            if self
                .rows
                .get(row_key(prefix, Row::Reinstated(find.seq)).as_slice())?
                .is_some()
            {
                continue;
            }
            let before = self.wallet(prefix)?;
            let mut after = before;
            let coins = find.coins;
            match after.reinstate(find, self.now) {
                Ok(entry) => {
                    self.write(hunt, *player, &before, &after, &[entry])?;
                    sum.finds += 1;
                    sum.coins += coins;
                }
                Err(_) => sum.refused += 1,
            }
        }
        Ok(Ok(sum))
    }
}
