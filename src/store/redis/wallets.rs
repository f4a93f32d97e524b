//! Wallets: loading, crediting, adjusting, reinstating, and their histories.

use super::cache::CachedHunt;
use super::entry::{AdjustmentNote, FeedEntry, Kind, Ledger, RawFind, What, parse};
use super::jobs::{Answer, Job, Reader, read_failed};
use super::replay::item::Item;
use super::shared::{Core, id_digest};
use crate::game::Millis;
use crate::game::coins::COINS_MAX;
use crate::game::entry::{Adjustment, Change, Entry, ExpiryReason};
use crate::game::hunt::HuntState;
use crate::game::ids::{HuntId, PlayerId};
use crate::game::rules::{AdjustDecision, AdjustRefusal};
use crate::game::wallet::{Wallet, WalletError};
use crate::store::{Adjusted, Credited, Reinstated, StoreError};
use std::collections::BTreeMap;
use std::time::Instant;
use trove_streams::keys::base62;
use trove_streams::redis::Value;
use trove_streams::{EntryId, Partition, feed};

/// Entries of the feed read at a time.
pub(super) const ENTRIES_A_READ: usize = 500;
/// Entries of a history that one call of the script gives.
const HISTORY_A_CALL: usize = 200;
/// Finds reinstated in one write.
const REINSTATE_A_WRITE: usize = 200;

impl Core {
    /// See [`crate::store::Store::wallet`].
    pub(super) async fn wallet(&self, id: &HuntId, player: PlayerId) -> Result<Wallet, StoreError> {
        let number = self.hunt(id).await?.number_text();
        let keys = self.shared.keys.player(player.0);
        let keys = vec![keys.state(), keys.wallet(&number, player.0)];
        let job = Job::new(&self.shared.scripts.wallet, keys).arg(&number);
        let partition = self.shared.partition_of(player);
        let read = |value| {
            let mut reader = Reader::new(value)?;
            let _now = reader.number()?;
            let wallet = reader.wallet()?;
            let _feed = (reader.number()?, reader.number()?);
            // What it depends on is its own last entry.
            Ok((wallet, EntryId::new(reader.number()?, reader.number()?)))
        };
        self.look_up(partition, job, read)
            .await
            .map_err(read_failed)
    }

    pub(super) fn settle_job(&self, number: &str, player: PlayerId, what: &str) -> Job<'_> {
        let keys = self.shared.keys.player(player.0);
        let keys = vec![
            keys.state(),
            keys.feed(),
            keys.wallet(number, player.0),
            keys.due(),
            keys.outages(),
        ];
        Job::new(&self.shared.scripts.settle, keys)
            .arg(number)
            .arg(base62(player.0))
            .arg(what)
    }

    /// See [`crate::store::Store::credit`].
    pub(super) async fn credit(
        &self,
        id: &HuntId,
        player: PlayerId,
    ) -> Result<Credited, StoreError> {
        let hunt = self.hunt(id).await?;
        let replay = &self.shared.replay;
        let player = replay.settled_player(player).await?;
        let epoch = self.shared.epoch();
        let what = if replay.is_recovering() {
            "keep"
        } else {
            "credit"
        };
        let job = self.settle_job(&hunt.number_text(), player, what);
        let mut reader = Reader::new(self.ask(job).await?)?;
        self.shared.wrote();
        let at = reader.number()?;
        let mut entries = Vec::new();
        let wallet = if reader.is_text() {
            let mut wallet = Wallet::default();
            while !reader.is_done() {
                let ledger = ledger(EntryId::new(at, 0), &reader.text()?)?;
                wallet = ledger.wallet;
                entries.push(self.name(&hunt, &ledger).await?);
            }
            wallet
        } else {
            reader.wallet()?
        };
        let credit = |entry: &Entry| match &entry.change {
            Change::Credit(find) => Some(Item::Credit {
                hunt: id.clone(),
                player,
                find: find.clone(),
                at,
            }),
            _ => None,
        };
        let items = entries.iter().filter_map(credit).collect();
        replay.keep(items, epoch).await?;
        Ok(Credited { wallet, entries })
    }

    /// The entry with its treasure's name; the hunt is read again if the treasure is newer than this instance's copy.
    async fn name(&self, hunt: &CachedHunt, ledger: &Ledger) -> Result<Entry, StoreError> {
        if let Some(entry) = ledger.named(hunt) {
            return Ok(entry);
        }
        let hunt = self
            .load_hunt(&hunt.hunt.spec.id)
            .await
            .map_err(|error| StoreError::Unknown(error.to_string()))?;
        ledger
            .named(&hunt)
            .ok_or_else(|| StoreError::Damaged("an entry names an unknown treasure".into()))
    }

    /// See [`crate::store::Store::adjust`].
    pub(super) async fn adjust(
        &self,
        id: &HuntId,
        player: PlayerId,
        new: &Adjustment,
    ) -> Result<Adjusted, StoreError> {
        let began = Instant::now();
        let player = self.shared.replay.settled_player(player).await?;
        loop {
            let hunt = self.hunt(id).await?;
            let epoch = self.shared.epoch();
            let job = self.adjust_job(&hunt, player, new)?;
            match self.run(job).await {
                Answer::Reply(value) => {
                    self.shared.wrote();
                    match adjusted(&hunt, new, Reader::new(value)?)? {
                        Outcome::Is(adjusted) => {
                            let item = match &adjusted.outcome {
                                // One made before may never have been answered: it is this answer that is relied on.
                                Ok(
                                    AdjustDecision::Recorded(entry)
                                    | AdjustDecision::Duplicate(entry),
                                ) => vec![Item::Adjustment {
                                    hunt: id.clone(),
                                    player,
                                    adjustment: new.clone(),
                                    at: entry.at,
                                }],
                                Err(_) => Vec::new(),
                            };
                            self.shared.replay.keep(item, epoch).await?;
                            return Ok(adjusted);
                        }
                        Outcome::Needs(coins, wallet) => {
                            if !self
                                .borrow(&hunt, self.shared.partition_of(player), coins)
                                .await?
                            {
                                let outcome = Err(WalletError::CoinsOutOfRange.into());
                                return Ok(Adjusted { outcome, wallet });
                            }
                        }
                    }
                }
                Answer::Generation => self.catch_up(&hunt, began).await?,
                Answer::Failed(error) => return Err(error),
            }
        }
    }

    pub(super) fn adjust_job(
        &self,
        hunt: &CachedHunt,
        player: PlayerId,
        new: &Adjustment,
    ) -> Result<Job<'_>, StoreError> {
        let number = hunt.number_text();
        let keys = self.shared.keys.player(player.0);
        let keys = vec![
            keys.state(),
            keys.feed(),
            keys.wallet(&number, player.0),
            keys.erased(),
        ];
        let note = AdjustmentNote {
            reason: new.reason.clone(),
            key: new.key.clone(),
            by: new.by.clone(),
        };
        let note =
            serde_json::to_string(&note).map_err(|error| StoreError::Damaged(error.to_string()))?;
        let amount = new.coins.unsigned_abs();
        let out_of_range = amount == 0 || amount > COINS_MAX;
        let mut field = [b'a'; 17];
        field[1..].copy_from_slice(&id_digest(&new.key));
        let archived = hunt.hunt.operator == Some(HuntState::Archived);
        Ok(Job::new(&self.shared.scripts.adjust, keys)
            .arg(&number)
            .arg(base62(player.0))
            .number(hunt.hunt.generation)
            .arg(field)
            .arg(new.coins.to_string())
            .arg(if archived {
                "2"
            } else if out_of_range {
                "1"
            } else {
                "0"
            })
            .number(self.shared.share(self.shared.partition_of(player)))
            .arg(note))
    }

    /// See [`crate::store::Store::history`].
    pub(super) async fn history(
        &self,
        id: &HuntId,
        player: PlayerId,
        before: u64,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let hunt = self.hunt(id).await?;
        let lines = self
            .history_lines(hunt.hunt.number, player, before, limit)
            .await?;
        let mut entries = Vec::with_capacity(lines.len());
        for line in &lines {
            entries.push(self.name(&hunt, line).await?);
        }
        Ok(entries)
    }

    /// A history as the feed has it, newest first.
    pub(super) async fn history_lines(
        &self,
        hunt: u32,
        player: PlayerId,
        before: u64,
        limit: usize,
    ) -> Result<Vec<Ledger>, StoreError> {
        let number = hunt.to_string();
        let partition = self.shared.partition_of(player);
        let keys = self.shared.keys.player(player.0);
        let keys = vec![keys.state(), keys.feed(), keys.wallet(&number, player.0)];
        // Lua's numbers are exact below this, and no sequence gets there.
        let before = before.min(1 << 53);
        let mut lines = Vec::new();
        let mut from = "-".to_owned();
        while lines.len() < limit && !from.is_empty() {
            let job = Job::new(&self.shared.scripts.history, keys.clone())
                .arg(&number)
                .number(before)
                .number((limit - lines.len()).min(HISTORY_A_CALL) as u64)
                .arg(&from);
            let page = self.look_up(partition, job, history_page).await;
            let (next, page) = page.map_err(read_failed)?;
            from = next;
            lines.extend(page);
        }
        Ok(lines)
    }

    /// See [`crate::store::Store::reinstate`].
    pub(super) async fn reinstate(
        &self,
        id: &HuntId,
        from: Millis,
        to: Millis,
    ) -> Result<Reinstated, StoreError> {
        let hunt = self.hunt(id).await?;
        let mut sum = Reinstated::default();
        for partition in self.shared.partitions() {
            let lost = self
                .lost_to_outage(partition, hunt.hunt.number, from, to)
                .await?;
            let lost: Vec<_> = lost.into_iter().collect();
            let epoch = self.shared.epoch();
            for part in lost.chunks(REINSTATE_A_WRITE) {
                let number = hunt.number_text();
                let job = |((player, _), (entry, _)): &((PlayerId, u64), (EntryId, RawFind))| {
                    let keys = self.shared.keys.player(player.0);
                    let keys = vec![keys.state(), keys.feed(), keys.wallet(&number, player.0)];
                    Job::new(&self.shared.scripts.reinstate, keys)
                        .arg(&number)
                        .arg(base62(player.0))
                        .arg(entry.to_string())
                };
                let jobs: Vec<Job<'_>> = part.iter().map(job).collect();
                let mut items = Vec::new();
                for (((player, _), (_, raw)), answer) in part.iter().zip(self.run_all(&jobs).await)
                {
                    let mut reader = match answer {
                        Answer::Reply(value) => Reader::new(value)?,
                        Answer::Generation => return Err(StoreError::Busy),
                        Answer::Failed(error) => return Err(error),
                    };
                    let (now, _wallet) = (reader.number()?, reader.wallet()?);
                    let mut answer = reader.list()?;
                    match answer.text()?.as_str() {
                        "f" => {
                            sum.finds += 1;
                            sum.coins += answer.number()?;
                            items.extend(raw.named(&hunt).map(|find| Item::Reinstatement {
                                hunt: id.clone(),
                                player: *player,
                                find,
                                at: now,
                            }));
                        }
                        "d" => {}
                        _ if answer.text()? == "range" => sum.refused += 1,
                        _ => {
                            return Err(StoreError::Damaged("an expiry's entry is missing".into()));
                        }
                    }
                }
                self.shared.replay.keep(items, epoch).await?;
            }
        }
        Ok(sum)
    }

    /// The expiries by outage of a hunt in a partition whose window ended within `from..=to`, less those reinstated: by
    /// player and find, in their order.
    async fn lost_to_outage(
        &self,
        partition: Partition,
        hunt: u32,
        from: Millis,
        to: Millis,
    ) -> Result<BTreeMap<(PlayerId, u64), (EntryId, RawFind)>, StoreError> {
        let mut lost = BTreeMap::new();
        self.walk_feed(partition, EntryId::MAX, |id, entry| {
            let FeedEntry::Ledger(Ledger {
                hunt: of,
                player,
                what: What::Find(kind, find),
                ..
            }) = entry
            else {
                return;
            };
            if of != hunt || !(from..=to).contains(&find.expires_at) {
                return;
            }
            match kind {
                Kind::Expired(ExpiryReason::StoreOutage) => {
                    lost.insert((player, find.seq), (id, find));
                }
                Kind::Reinstated => {
                    lost.remove(&(player, find.seq));
                }
                _ => {}
            }
        })
        .await?;
        Ok(lost)
    }

    /// Hands every entry of a partition's feed, up to one, to `each`.
    pub(super) async fn walk_feed(
        &self,
        partition: Partition,
        to: EntryId,
        mut each: impl FnMut(EntryId, FeedEntry),
    ) -> Result<(), StoreError> {
        let key = self.shared.keys.partition(partition).feed();
        let mut position = EntryId::ZERO;
        while let Some(from) = position.successor().filter(|from| *from <= to) {
            let read = feed::read_range(&self.commands, &key, from, to, ENTRIES_A_READ).await;
            let entries = read.map_err(|error| read_failed(self.shared.failed(&error)))?;
            self.shared.heard();
            let Some(last) = entries.last() else { break };
            position = last.id;
            for entry in &entries {
                let text = entry
                    .field("e")
                    .and_then(|text| std::str::from_utf8(text).ok())
                    .unwrap_or_default();
                match parse(entry.id, text) {
                    Ok(known) => each(entry.id, known),
                    Err(error) => {
                        return Err(StoreError::Damaged(format!("{}: {error}", entry.id)));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads a piece of a history: from where to go on, and its entries; and the newest of them.
fn history_page(value: Value) -> Result<((String, Vec<Ledger>), EntryId), StoreError> {
    let mut reader = Reader::new(value)?;
    let from = reader.text()?;
    if from == "lost" {
        return Err(StoreError::Damaged(format!(
            "entry {} of a history is missing",
            reader.text()?
        )));
    }
    let (mut lines, mut newest) = (Vec::new(), EntryId::ZERO);
    while !reader.is_done() {
        let (id, text) = (reader.text()?, reader.text()?);
        let id: EntryId = id
            .parse()
            .map_err(|_| StoreError::Damaged(format!("{id} is no entry")))?;
        newest = newest.max(id);
        lines.push(ledger(id, &text)?);
    }
    Ok(((from, lines), newest))
}

/// Reads an entry that is one of a history.
pub(super) fn ledger(id: EntryId, text: &str) -> Result<Ledger, StoreError> {
    match parse(id, text) {
        Ok(FeedEntry::Ledger(ledger)) => Ok(ledger),
        _ => Err(StoreError::Damaged(format!(
            "entry {id} cannot be read: {text}"
        ))),
    }
}

/// What a script says of an adjustment.
pub(super) enum Outcome {
    Is(Adjusted),
    /// Other partitions would have to lend so many coins; the wallet is as it was.
    Needs(u64, Wallet),
}

pub(super) fn adjusted(
    hunt: &CachedHunt,
    new: &Adjustment,
    mut reader: Reader,
) -> Result<Outcome, StoreError> {
    let at = reader.number()?;
    let wallet = reader.wallet()?;
    let mut answer = reader.list()?;
    let outcome = match answer.text()?.as_str() {
        "f" => {
            let entry = Entry {
                seq: answer.number()?,
                at,
                change: Change::Adjust(new.clone()),
            };
            Ok(AdjustDecision::Recorded(entry))
        }
        "d" => {
            let (id, text) = (answer.text()?, answer.text()?);
            let id = id
                .parse()
                .map_err(|_| StoreError::Damaged(format!("{id} is no entry")))?;
            let prior = ledger(id, &text)?.named(hunt);
            let prior =
                prior.ok_or_else(|| StoreError::Damaged("an adjustment's entry is none".into()))?;
            match &prior.change {
                Change::Adjust(made) if made.coins == new.coins && made.reason == new.reason => {
                    Ok(AdjustDecision::Duplicate(prior))
                }
                _ => Err(AdjustRefusal::Conflict),
            }
        }
        _ => match answer.text()?.as_str() {
            "archived" => Err(AdjustRefusal::HuntArchived),
            "share" => return Ok(Outcome::Needs(answer.number()?, wallet)),
            "range" => Err(WalletError::CoinsOutOfRange.into()),
            "insufficient" => Err(WalletError::InsufficientCoins.into()),
            _ => {
                return Err(StoreError::Damaged(
                    "the entry of an adjustment is missing".into(),
                ));
            }
        },
    };
    Ok(Outcome::Is(Adjusted { outcome, wallet }))
}
