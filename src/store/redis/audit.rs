//! Exports and audits. Each partition is read as of one entry of its feed: the ledger up to that entry, the wallets as
//! the entries say they were, and the totals that stood beside it.

use super::cache::CachedHunt;
use super::entry::{FeedEntry, Ledger};
use super::jobs::{Job, Reader};
use super::shared::Core;
use super::state::{PartitionState, packed};
use super::wallets::ledger;
use crate::game::audit::{Sums, WalletAudit};
use crate::game::entry::Entry;
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::game::wallet::Wallet;
use crate::store::{DISCREPANCIES_MAX, ExportRow, HuntAudit, StoreError};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use trove_streams::keys::base62;
use trove_streams::redis::{Value, cmd, from_redis_value};
use trove_streams::{EntryId, Partition};

/// Wallets whose keys are read at a time.
const WALLETS_A_READ: usize = 100;
/// Entries of a history taken with the first read of an export.
const EXPORT_FIRST_PAGE: u64 = 200;
/// Rows of an export handed on at a time.
const EXPORT_ROWS: usize = 512;

/// One wallet as the audit walks its ledger. Those of one partition are in memory at a time, because the entries of a wallet
/// lie anywhere in the partition's feed, and to walk it once for every part of its wallets would take as many times as long:
/// some 700 bytes for each wallet that was ever written to. Of a million players in 16 partitions that is 44 MB, in a process
/// that an operator starts and that ends with the answer.
#[derive(Default)]
struct Walked {
    audit: WalletAudit,
    last: Wallet,
    broken: bool,
}

fn report(audit: &mut HuntAudit, what: String) {
    audit.discrepancy_count += 1;
    if audit.discrepancies.len() < DISCREPANCIES_MAX {
        audit.discrepancies.push(what);
    }
}

impl Core {
    /// See [`crate::store::Store::verify`].
    pub(super) async fn verify(&self, only: Option<&HuntId>) -> Result<Vec<HuntAudit>, StoreError> {
        if let Some(id) = only {
            self.load_hunt(id).await?;
        }
        let mut audits: BTreeMap<u32, HuntAudit> = BTreeMap::new();
        for partition in self.shared.partitions() {
            let state = self.state_of(partition).await?;
            // After the state: these know every treasure that its entries name.
            let hunts: HashMap<u32, Arc<CachedHunt>> = self
                .all_hunts()
                .await?
                .into_iter()
                .filter(|hunt| only.is_none_or(|id| hunt.hunt.spec.id == *id))
                .map(|hunt| (hunt.hunt.number, hunt))
                .collect();
            self.verify_partition(partition, &state, &hunts, &mut audits)
                .await?;
        }
        for audit in audits.values_mut() {
            if !audit.sums.conserve() {
                report(
                    audit,
                    "recorded is not credited + expired + pending + revoked".into(),
                );
            }
        }
        Ok(audits.into_values().collect())
    }

    async fn state_of(&self, partition: Partition) -> Result<PartitionState, StoreError> {
        let state = self
            .partition_states()
            .await?
            .into_iter()
            .nth(usize::from(partition.index()));
        state.ok_or_else(|| StoreError::Damaged("a partition has no state".into()))
    }

    async fn verify_partition(
        &self,
        partition: Partition,
        state: &PartitionState,
        hunts: &HashMap<u32, Arc<CachedHunt>>,
        audits: &mut BTreeMap<u32, HuntAudit>,
    ) -> Result<(), StoreError> {
        for (number, hunt) in hunts {
            audits.entry(*number).or_insert_with(|| HuntAudit {
                hunt: hunt.hunt.spec.id.clone(),
                feed_position: 0,
                wallets: 0,
                entries: 0,
                sums: Sums::default(),
                discrepancies: Vec::new(),
                discrepancy_count: 0,
            });
        }
        let mut wallets: BTreeMap<(u32, PlayerId), Walked> = BTreeMap::new();
        let mut position = EntryId::ZERO;
        self.walk_feed(partition, state.last(), |id, entry| {
            let gap = id.seq != position.seq + 1;
            position = id;
            let FeedEntry::Ledger(line) = entry else {
                return;
            };
            let (Some(hunt), Some(audit)) = (hunts.get(&line.hunt), audits.get_mut(&line.hunt))
            else {
                return;
            };
            if gap {
                report(
                    audit,
                    format!("partition {partition}: entries are missing before {id}"),
                );
            }
            audit.entries += 1;
            let walked = wallets.entry((line.hunt, line.player)).or_default();
            walk(audit, walked, hunt, &line);
        })
        .await?;
        if position != state.last() {
            for audit in audits.values_mut() {
                report(
                    audit,
                    format!(
                        "partition {partition}: the feed ends at {position}, not at {}",
                        state.last()
                    ),
                );
            }
        }
        let mut sums: HashMap<u32, (Sums, u64)> = HashMap::new();
        for ((number, player), walked) in &wallets {
            let Some(audit) = audits.get_mut(number) else {
                continue;
            };
            audit.wallets += 1;
            if walked.broken {
                continue;
            }
            match walked.audit.close(&walked.last) {
                Ok(own) => {
                    let (sum, pending) = sums.entry(*number).or_default();
                    sum.add(&own);
                    *pending += walked.last.pending_finds;
                }
                Err(discrepancy) => report(audit, format!("player {player}: {discrepancy}")),
            }
        }
        for (number, audit) in audits.iter_mut() {
            let (sum, pending) = sums.remove(number).unwrap_or_default();
            let (totals, pending_finds) = state.totals(*number);
            for discrepancy in sum.discrepancies(&totals) {
                report(audit, format!("partition {partition}: {discrepancy}"));
            }
            if pending != pending_finds {
                let what =
                    format!("counts {pending_finds} pending finds, its wallets have {pending}");
                report(audit, format!("partition {partition} {what}"));
            }
            audit.sums.add(&sum);
            audit.feed_position += state.last().seq;
        }
        self.verify_keys(partition, &wallets, audits).await
    }

    /// Compares what the ledger comes to with the wallets' keys, but for those that have moved on since.
    async fn verify_keys(
        &self,
        partition: Partition,
        wallets: &BTreeMap<(u32, PlayerId), Walked>,
        audits: &mut BTreeMap<u32, HuntAudit>,
    ) -> Result<(), StoreError> {
        let keys = self.shared.keys.partition(partition);
        let all: Vec<_> = wallets.iter().collect();
        for part in all.chunks(WALLETS_A_READ) {
            let mut asks = Vec::with_capacity(3 * part.len());
            for ((number, player), walked) in part {
                let number = number.to_string();
                let mut fields = cmd("HMGET");
                fields.arg(keys.wallet(&number, player.0)).arg("w").arg("z");
                for slot in 1..=walked.last.pending_finds {
                    fields.arg(format!("p{slot}"));
                }
                asks.push(fields);
                let mut score = cmd("ZSCORE");
                score
                    .arg(keys.due())
                    .arg(format!("{number}:{}", base62(player.0)));
                asks.push(score);
                let mut again = cmd("HGET");
                again.arg(keys.wallet(&number, player.0)).arg("z");
                asks.push(again);
            }
            let mut replies = self.read_all(asks).await?.into_iter();
            for ((number, player), walked) in part {
                let (Some(fields), Some(score), Some(again)) =
                    (replies.next(), replies.next(), replies.next())
                else {
                    break;
                };
                let Some(audit) = audits.get_mut(number) else {
                    continue;
                };
                let fields: Vec<Option<Vec<u8>>> = from_redis_value(fields)
                    .map_err(|error| StoreError::Damaged(error.to_string()))?;
                let again: Option<Vec<u8>> = from_redis_value(again)
                    .map_err(|error| StoreError::Damaged(error.to_string()))?;
                for what in compare(walked, &fields, &score, again.as_deref()) {
                    report(audit, format!("player {player}: {what}"));
                }
            }
        }
        Ok(())
    }

    /// Hands the rows of an export on, until nobody listens.
    pub(super) async fn export(
        &self,
        id: &HuntId,
        rows: &mpsc::Sender<Result<Vec<ExportRow>, StoreError>>,
    ) -> Result<(), StoreError> {
        let number = self.hunt(id).await?.hunt.number;
        for partition in self.shared.partitions() {
            let last = self.state_of(partition).await?.last();
            let hunt = self.load_hunt(id).await?;
            let mut wallets: BTreeMap<PlayerId, Wallet> = BTreeMap::new();
            self.walk_feed(partition, last, |_, entry| {
                if let FeedEntry::Ledger(line) = entry
                    && line.hunt == number
                {
                    wallets.insert(line.player, line.wallet);
                }
            })
            .await?;
            let wallets: Vec<(PlayerId, Wallet)> = wallets.into_iter().collect();
            for part in wallets.chunks(WALLETS_A_READ) {
                if !self.export_part(&hunt, part, rows).await? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn export_part(
        &self,
        hunt: &CachedHunt,
        part: &[(PlayerId, Wallet)],
        rows: &mpsc::Sender<Result<Vec<ExportRow>, StoreError>>,
    ) -> Result<bool, StoreError> {
        let name = |(player, _): &(PlayerId, Wallet)| {
            let mut ask = cmd("HGET");
            ask.arg(self.shared.keys.players_by_number(player.0))
                .arg(base62(player.0));
            ask
        };
        let names = self.read_all(part.iter().map(name).collect()).await?;
        let number = hunt.number_text();
        let first_page = |(player, wallet): &(PlayerId, Wallet)| {
            let keys = self.shared.keys.player(player.0);
            let keys = vec![keys.state(), keys.feed(), keys.wallet(&number, player.0)];
            Job::new(&self.shared.scripts.history, keys)
                .arg(&number)
                .number(wallet.seq + 1)
                .number(EXPORT_FIRST_PAGE)
                .arg("-")
        };
        let jobs: Vec<Job<'_>> = part.iter().map(first_page).collect();
        let pages = self.run_all(&jobs).await;
        let mut batch = Vec::new();
        for (((player, wallet), name), page) in part.iter().zip(names).zip(pages) {
            let name = match name {
                Value::BulkString(name) => String::from_utf8(name)
                    .ok()
                    .and_then(|name| PlayerName::new(&name).ok()),
                _ => None,
            };
            batch.push(ExportRow::Wallet {
                player: *player,
                name,
                wallet: *wallet,
            });
            let entries = match page {
                super::jobs::Answer::Reply(value) => {
                    self.whole_history(hunt, *player, wallet, value).await?
                }
                super::jobs::Answer::Generation => return Err(StoreError::Busy),
                super::jobs::Answer::Failed(error) => return Err(super::jobs::read_failed(error)),
            };
            batch.extend(entries.into_iter().map(|entry| ExportRow::Entry {
                player: *player,
                entry,
            }));
            if batch.len() >= EXPORT_ROWS
                && rows.send(Ok(std::mem::take(&mut batch))).await.is_err()
            {
                return Ok(false);
            }
        }
        Ok(batch.is_empty() || rows.send(Ok(batch)).await.is_ok())
    }

    /// A history up to the wallet, oldest first, of which the newest entries are read.
    async fn whole_history(
        &self,
        hunt: &CachedHunt,
        player: PlayerId,
        wallet: &Wallet,
        first_page: Value,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut reader = Reader::new(first_page)?;
        let _from = reader.text()?;
        let mut lines: Vec<Ledger> = Vec::new();
        while !reader.is_done() {
            let (id, text) = (reader.text()?, reader.text()?);
            let id = id
                .parse()
                .map_err(|_| StoreError::Damaged(format!("{id} is no entry")))?;
            lines.push(ledger(id, &text)?);
        }
        let oldest = lines.last().map_or(wallet.seq + 1, |line| line.wallet.seq);
        if oldest > 1 {
            let rest = self
                .history_lines(hunt.hunt.number, player, oldest, usize::MAX)
                .await?;
            lines.extend(rest);
        }
        let unknown = || StoreError::Damaged("an entry names an unknown treasure".into());
        lines
            .iter()
            .rev()
            .map(|line| line.named(hunt).ok_or_else(unknown))
            .collect()
    }
}

/// Takes one entry of a wallet's ledger.
fn walk(audit: &mut HuntAudit, walked: &mut Walked, hunt: &CachedHunt, line: &Ledger) {
    walked.last = line.wallet;
    if walked.broken {
        // What follows the first break would only repeat it.
        return;
    }
    let player = line.player;
    let Some(entry) = line.named(hunt) else {
        walked.broken = true;
        report(
            audit,
            format!(
                "player {player}: entry {} names an unknown treasure",
                line.wallet.seq
            ),
        );
        return;
    };
    if let Err(discrepancy) = walked.audit.entry(&entry) {
        walked.broken = true;
        report(audit, format!("player {player}: {discrepancy}"));
    }
}

/// What does not agree between a wallet's ledger and its keys: the fields `w` and `z` and the pending finds, the wallet's
/// score in what is due, and `z` once more, read after it: the sweeper changes both, but not the wallet's sequence.
fn compare(
    walked: &Walked,
    fields: &[Option<Vec<u8>>],
    score: &Value,
    again: Option<&[u8]>,
) -> Vec<String> {
    let numbers = fields
        .first()
        .and_then(Option::as_ref)
        .and_then(|bytes| packed(bytes));
    let wallet = match numbers.as_deref() {
        Some(
            [
                balance,
                seq,
                shown_seq,
                pending_coins,
                pending_finds,
                due_at,
            ],
        ) => Wallet {
            balance: *balance,
            seq: *seq,
            shown_seq: *shown_seq,
            pending_coins: *pending_coins,
            pending_finds: *pending_finds,
            due_at: *due_at,
        },
        _ => Wallet::default(),
    };
    if wallet.seq > walked.last.seq {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    if wallet != walked.last {
        wrong.push(format!(
            "the wallet is {wallet:?}, its last entry says {:?}",
            walked.last
        ));
    }
    let slots: HashSet<u64> = fields
        .iter()
        .skip(2)
        .flatten()
        .filter_map(|slot| first_packed(slot))
        .collect();
    if !walked.broken && slots != walked.audit.pending().collect() {
        wrong.push("the pending finds are not those that the history leaves".into());
    }
    let due = match score {
        Value::BulkString(score) => std::str::from_utf8(score)
            .ok()
            .and_then(|score| score.parse::<f64>().ok()),
        Value::Double(score) => Some(*score),
        _ => None,
    };
    let links = fields.get(1).and_then(Option::as_deref);
    let noted = links
        .and_then(packed)
        .and_then(|links| links.get(4).copied());
    #[expect(clippy::cast_precision_loss, reason = "times are far below 2^53")]
    let expected = noted.filter(|noted| *noted != 0).map(|noted| noted as f64);
    let late = wallet.due_at != 0 && noted.is_none_or(|noted| noted == 0 || noted > wallet.due_at);
    if late || (links == again && due != expected) {
        wrong.push("what says when the pending finds run out is not the wallet's".into());
    }
    wrong
}

/// The first number of what the scripts pack: the sequence number of a pending find.
fn first_packed(bytes: &[u8]) -> Option<u64> {
    let size = match *bytes.first()? {
        kind @ 0xcc..=0xcf => 1 + (1 << (kind - 0xcc)),
        _ => 1,
    };
    packed(bytes.get(..size)?)?.first().copied()
}
