//! What a client has missed since the cursor that it names.

use super::app::App;
use super::catalogue::LiveHunt;
use super::cursor::Cursor;
use super::poll_body::Shown;
use crate::game::entry::Entry;
use crate::metrics::StoreCommand;
use crate::mirror::Key;
use crate::store::StoreError;
use crate::store::redis::RECENT_SPAN_MIN;
use std::time::Duration;

/// Entries that are looked up first for a cursor of another history; four times as many again while these do not reach back
/// far enough. After a failover everybody names such a cursor, and each entry costs the new primary a look.
const WINDOW_FIRST: usize = 8;

/// When the store does not answer, what a client missed cannot be read: the balance is shown as it is known, with the
/// client's own cursor, so that a later poll shows what was missed. The store may be back a moment later, or be said to be
/// well a moment longer; that it did not answer this poll is enough.
pub(super) fn without_missed(
    error: StoreError,
    named: Cursor,
    cursor: &mut Cursor,
    shown: &mut Shown<'_>,
) -> Result<(), StoreError> {
    match error {
        // Not safe, it is not read either: it may be lost yet.
        StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::NotDurable(_) => {}
        error => return Err(error),
    }
    shown.stale = true;
    *cursor = named;
    Ok(())
}

/// The entries after `between.start` up to `between.end`, oldest first: the newest `limit` of them, and whether there
/// are more. What the store has beyond the wallet in memory waits for the poll that knows it too.
pub(super) async fn recent(
    app: &App,
    live: &LiveHunt,
    key: Key,
    between: std::ops::Range<u64>,
    limit: usize,
) -> Result<(Vec<Entry>, bool), StoreError> {
    let read = app
        .store
        .history(&live.hunt.spec.id, key.player, between.end + 1, limit + 1);
    let mut entries = app.ask(StoreCommand::History, read).await?;
    entries.retain(|entry| entry.seq > between.start);
    let more = entries.len() > limit;
    entries.truncate(limit);
    entries.reverse();
    Ok((entries, more))
}

/// What a client is shown that names a cursor of another history, oldest first: the entries up to `seq` of the hunt's last
/// window, of a minute at least, and of what is older the newest few; at most `limit`.
pub(super) async fn of_window(
    app: &App,
    live: &LiveHunt,
    key: Key,
    seq: u64,
    limit: usize,
) -> Result<Vec<Entry>, StoreError> {
    let spec = &live.hunt.spec;
    let span = Duration::from_millis(spec.window_ms).max(RECENT_SPAN_MIN);
    let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let since = app.store.now().saturating_sub(span);
    let known = app.store.recent(&spec.id, key.player, since);
    // Who is known to have had nothing lately has one entry, if that, to be looked up.
    let mut page = match &known {
        Some(known) if known.is_empty() => 1,
        _ => WINDOW_FIRST,
    };
    let mut known = known.unwrap_or_default();
    known.retain(|entry| entry.seq <= seq);
    // Down to here, what came since is looked up.
    let down_to = known.first().map_or(0, |newest| newest.seq);
    let mut entries: Vec<Entry> = Vec::new();
    let mut before = seq + 1;
    while before > down_to + 1 && entries.len() < limit {
        let missing = usize::try_from(before - down_to - 1).unwrap_or(usize::MAX);
        let asked = page.min(limit - entries.len()).min(missing);
        let read = app.store.history(&spec.id, key.player, before, asked);
        let read = app.ask(StoreCommand::History, read).await?;
        let is_all = read.len() < asked;
        entries.extend(read);
        match entries.last() {
            Some(oldest) if !is_all && oldest.at >= since => {
                before = oldest.seq;
                page *= 4;
            }
            _ => break,
        }
    }
    entries.extend(known);
    entries.truncate(limit);
    entries.reverse();
    Ok(entries)
}
