//! Reading: each read sees one committed moment, and neither waits for the writer nor holds it up.

use super::keys::{
    DUE, ERASED_NAMES, FEED, Fault, KIND_LEDGER, KIND_PENDING, KIND_WALLET, META, NAMES, PLAYERS,
    ROWS, Row, TOTALS, decode, due_key, meta, parse_due_key, parse_row_key, prefix, row_key,
};
use super::state::digest;
use crate::game::Millis;
use crate::game::audit::{Sums, WalletAudit};
use crate::game::entry::{Change, Entry, ExpiryReason, Totals};
use crate::game::hunt::Hunt;
use crate::game::ids::{PlayerId, PlayerName};
use crate::game::wallet::Wallet;
use crate::store::{DISCREPANCIES_MAX, ExportRow, HuntAudit};
use redb::{ReadTransaction, ReadableTable};
use std::collections::HashSet;

/// How many rows of an export are gathered before they are handed on.
const EXPORT_BATCH_ROWS: usize = 512;

/// Numbers of players whose names are known and were never erased; `None` where the writer must decide.
pub(super) fn known_players(
    txn: &ReadTransaction,
    names: &[PlayerName],
) -> Result<Option<Vec<PlayerId>>, Fault> {
    let erased = txn.open_table(ERASED_NAMES)?;
    let secret: Option<[u8; 32]> = match erased.first()? {
        Some(_) => match txn.open_table(META)?.get(meta::SECRET)? {
            Some(bytes) => Some(decode(bytes.value())?),
            None => return Ok(None),
        },
        None => None,
    };
    let players = txn.open_table(PLAYERS)?;
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        // For a name that was ever erased the writer compares times.
        if let Some(secret) = &secret
            && erased
                .get(digest(secret, name.as_str()).as_slice())?
                .is_some()
        {
            return Ok(None);
        }
        match players.get(name.as_str())? {
            Some(number) => numbers.push(PlayerId(number.value())),
            None => return Ok(None),
        }
    }
    Ok(Some(numbers))
}

/// A wallet; empty where there is none.
pub(super) fn wallet(txn: &ReadTransaction, hunt: u32, player: PlayerId) -> Result<Wallet, Fault> {
    let rows = txn.open_table(ROWS)?;
    match rows.get(row_key(prefix(hunt, player), Row::Wallet).as_slice())? {
        Some(bytes) => decode(bytes.value()),
        None => Ok(Wallet::default()),
    }
}

/// Up to `limit` entries before `before`, newest first.
pub(super) fn history(
    txn: &ReadTransaction,
    hunt: u32,
    player: PlayerId,
    before: u64,
    limit: usize,
) -> Result<Vec<Entry>, Fault> {
    let rows = txn.open_table(ROWS)?;
    let prefix = prefix(hunt, player);
    let from = row_key(prefix, Row::Ledger(0));
    let to = row_key(prefix, Row::Ledger(before));
    let newest = rows
        .range::<&[u8]>(from.as_slice()..to.as_slice())?
        .rev()
        .take(limit);
    newest.map(|row| decode(row?.1.value())).collect()
}

/// Calls `each` with every row of a hunt, in the order of players and kinds, until it says stop.
fn walk(
    txn: &ReadTransaction,
    hunt: u32,
    mut each: impl FnMut(PlayerId, u8, u64, &[u8]) -> Result<bool, Fault>,
) -> Result<(), Fault> {
    let rows = txn.open_table(ROWS)?;
    let from = hunt.to_be_bytes();
    let to = (hunt + 1).to_be_bytes();
    for row in rows.range::<&[u8]>(from.as_slice()..to.as_slice())? {
        let (key, value) = row?;
        let parts = parse_row_key(key.value()).ok_or(Fault::Missing("a row's key is malformed"))?;
        if !each(parts.1, parts.2, parts.3, value.value())? {
            break;
        }
    }
    Ok(())
}

/// The expiries by store outage of a hunt whose window ended within `from..=to`: player and sequence number of the
/// expiry, except where a reinstatement follows.
pub(super) fn lost_to_outage(
    txn: &ReadTransaction,
    hunt: u32,
    from: Millis,
    to: Millis,
) -> Result<Vec<(PlayerId, u64)>, Fault> {
    let mut lost = Vec::new();
    let mut of_player: Vec<(PlayerId, u64, u64)> = Vec::new();
    let mut take = |of_player: &mut Vec<(PlayerId, u64, u64)>| {
        // In the order in which they were made, as the model does: it decides which are refused when not all fit.
        of_player.sort_unstable_by_key(|(_, _, made)| *made);
        lost.extend(of_player.drain(..).map(|(player, seq, _)| (player, seq)));
    };
    walk(txn, hunt, |player, kind, seq, value| {
        if of_player.first().is_some_and(|(last, ..)| *last != player) {
            take(&mut of_player);
        }
        if kind == KIND_LEDGER {
            match decode::<Entry>(value)?.change {
                Change::Expire(find, ExpiryReason::StoreOutage)
                    if (from..=to).contains(&find.expires_at) =>
                {
                    of_player.push((player, seq, find.seq));
                }
                Change::Reinstate(find) => of_player.retain(|(_, _, made)| *made != find.seq),
                _ => {}
            }
        }
        Ok(true)
    })?;
    take(&mut of_player);
    Ok(lost)
}

/// Hands the rows of an export to `send`, in batches, until it says that nobody listens.
pub(super) fn export(
    txn: &ReadTransaction,
    hunt: u32,
    mut send: impl FnMut(Vec<ExportRow>) -> bool,
) -> Result<(), Fault> {
    let names = txn.open_table(NAMES)?;
    let mut batch = Vec::with_capacity(EXPORT_BATCH_ROWS);
    let mut listening = true;
    walk(txn, hunt, |player, kind, _, value| {
        match kind {
            KIND_WALLET => {
                let name = names
                    .get(player.0)?
                    .and_then(|name| PlayerName::new(name.value()).ok());
                batch.push(ExportRow::Wallet {
                    player,
                    name,
                    wallet: decode(value)?,
                });
            }
            KIND_LEDGER => batch.push(ExportRow::Entry {
                player,
                entry: decode(value)?,
            }),
            _ => return Ok(true),
        }
        if batch.len() >= EXPORT_BATCH_ROWS {
            listening = send(std::mem::take(&mut batch));
        }
        Ok(listening)
    })?;
    if listening && !batch.is_empty() {
        send(batch);
    }
    Ok(())
}

/// One player's rows as the audit walks them. Rows come in the order of their kinds: wallet, pending, ledger.
#[derive(Default)]
struct PlayerRows {
    wallet: Option<Wallet>,
    pending: HashSet<u64>,
    audit: WalletAudit,
    broken: bool,
}

/// Audits one hunt: every wallet against its ledger, every pending find, and the sums against the totals.
pub(super) fn audit(txn: &ReadTransaction, hunt: &Hunt) -> Result<HuntAudit, Fault> {
    let mut audit = HuntAudit {
        hunt: hunt.spec.id.clone(),
        feed_position: txn
            .open_table(FEED)?
            .last()?
            .map_or(0, |(position, _)| position.value()),
        wallets: 0,
        entries: 0,
        sums: Sums::default(),
        discrepancies: Vec::new(),
        discrepancy_count: 0,
    };
    let mut current: Option<(PlayerId, PlayerRows)> = None;
    let mut pending_rows = 0;
    let due = txn.open_table(DUE)?;
    let mut due_wallets: u64 = 0;
    walk(txn, hunt.number, |player, kind, seq, value| {
        if current.as_ref().is_none_or(|(last, _)| *last != player) {
            if let Some((player, rows)) = current.take() {
                close(&mut audit, player, rows);
            }
            current = Some((player, PlayerRows::default()));
        }
        let Some((_, rows)) = &mut current else {
            return Ok(true);
        };
        match kind {
            KIND_WALLET => {
                let wallet: Wallet = decode(value)?;
                if wallet.due_at != 0 {
                    due_wallets += 1;
                    let key = due_key(wallet.due_at, hunt.number, player);
                    if due.get(key.as_slice())?.is_none() {
                        let what = "nothing says when the pending finds run out";
                        report(&mut audit, format!("player {player}: {what}"));
                    }
                }
                rows.wallet = Some(wallet);
            }
            KIND_PENDING => {
                pending_rows += 1;
                rows.pending.insert(seq);
            }
            KIND_LEDGER => {
                let entry: Entry = decode(value)?;
                audit.entries += 1;
                if !rows.broken
                    && let Err(discrepancy) = rows.audit.entry(&entry)
                {
                    // What follows the first break would only repeat it.
                    rows.broken = true;
                    report(&mut audit, format!("player {player}: {discrepancy}"));
                }
            }
            _ => {}
        }
        Ok(true)
    })?;
    if let Some((player, rows)) = current.take() {
        close(&mut audit, player, rows);
    }
    let mut due_rows = 0;
    for row in due.iter()? {
        let of = parse_due_key(row?.0.value()).map(|(_, number, _)| number);
        due_rows += u64::from(of == Some(hunt.number));
    }
    if due_rows != due_wallets {
        let what = "wallets with something pending, and as many times at which it runs out:";
        report(&mut audit, format!("{what} {due_wallets}, not {due_rows}"));
    }
    let (totals, pending_finds): (Totals, u64) = match txn.open_table(TOTALS)?.get(hunt.number)? {
        Some(bytes) => decode(bytes.value())?,
        None => Default::default(),
    };
    if pending_finds != pending_rows {
        report(
            &mut audit,
            format!(
                "the hunt counts {pending_finds} pending finds, its wallets have {pending_rows}"
            ),
        );
    }
    for discrepancy in audit.sums.discrepancies(&totals) {
        report(&mut audit, discrepancy.to_string());
    }
    if !audit.sums.conserve() {
        report(
            &mut audit,
            "recorded is not credited + expired + pending + revoked".into(),
        );
    }
    Ok(audit)
}

fn close(audit: &mut HuntAudit, player: PlayerId, rows: PlayerRows) {
    audit.wallets += 1;
    if rows.broken {
        return;
    }
    match rows.audit.close(&rows.wallet.unwrap_or_default()) {
        Ok(sums) => audit.sums.add(&sums),
        Err(discrepancy) => report(audit, format!("player {player}: {discrepancy}")),
    }
    if rows.pending != rows.audit.pending().collect() {
        report(
            audit,
            format!("player {player}: the pending finds are not those that the history leaves"),
        );
    }
}

fn report(audit: &mut HuntAudit, what: String) {
    audit.discrepancy_count += 1;
    if audit.discrepancies.len() < DISCREPANCIES_MAX {
        audit.discrepancies.push(what);
    }
}
