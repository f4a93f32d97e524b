//! The poll's answer, written by hand: it is most of what is ever answered.

use super::cursor::Cursor;
use crate::game::Millis;
use crate::game::entry::{Change, Entry, ExpiryReason, Find};
use crate::game::wallet::Wallet;

/// What an answer shows besides the wallet.
#[derive(Default)]
pub(super) struct Shown<'a> {
    pub(super) credits: Vec<&'a Find>,
    pub(super) expiries: Vec<(&'a Find, ExpiryReason)>,
    pub(super) reset: bool,
    pub(super) gap: bool,
    pub(super) stale: bool,
}

impl<'a> Shown<'a> {
    /// Takes what a poll shows of `entries`.
    pub(super) fn take(&mut self, entries: impl Iterator<Item = &'a Entry>) {
        for entry in entries {
            match &entry.change {
                Change::Credit(find) | Change::Reinstate(find) | Change::Replay(find, _) => {
                    self.credits.push(find);
                }
                Change::Expire(find, reason) => self.expiries.push((find, *reason)),
                Change::Find(_) | Change::Revoke(_) | Change::Adjust(_) => {}
            }
        }
    }
}

/// What both ways of answering know.
pub(super) struct Facts<'a> {
    pub(super) hunt: &'a str,
    pub(super) player: &'a str,
    pub(super) wallet: Wallet,
    pub(super) cursor: Cursor,
    pub(super) now: Millis,
    pub(super) next_poll_ms: u64,
}

/// Writes the answer's body. Ids and names consist of characters that JSON needs no escape for.
pub(super) fn write_body(out: &mut Vec<u8>, facts: &Facts<'_>, shown: &Shown<'_>) {
    let mut digits = itoa::Buffer::new();
    let mut number = |out: &mut Vec<u8>, n: u64| out.extend_from_slice(digits.format(n).as_bytes());
    out.extend_from_slice(b"{\"hunt\":\"");
    out.extend_from_slice(facts.hunt.as_bytes());
    out.extend_from_slice(b"\",\"player\":\"");
    out.extend_from_slice(facts.player.as_bytes());
    out.extend_from_slice(b"\",\"balance\":");
    number(out, facts.wallet.balance);
    out.extend_from_slice(b",\"credited\":");
    number(out, shown.credits.iter().map(|find| find.coins).sum());
    out.extend_from_slice(b",\"finds\":[");
    for (nth, find) in shown.credits.iter().enumerate() {
        write_find(out, nth, find);
        out.push(b'}');
    }
    out.extend_from_slice(b"],\"expired\":[");
    for (nth, (find, reason)) in shown.expiries.iter().enumerate() {
        write_find(out, nth, find);
        out.extend_from_slice(match reason {
            ExpiryReason::Window => b",\"reason\":\"window\"}".as_slice(),
            ExpiryReason::StoreOutage => b",\"reason\":\"store_outage\"}".as_slice(),
        });
    }
    out.extend_from_slice(b"],\"pending\":");
    number(out, facts.wallet.pending_coins);
    out.extend_from_slice(b",\"cursor\":\"");
    facts.cursor.write(out);
    out.extend_from_slice(b"\",\"server_time\":");
    number(out, facts.now);
    out.extend_from_slice(b",\"next_poll_ms\":");
    number(out, facts.next_poll_ms);
    for (flag, name) in [
        (shown.reset, "reset"),
        (shown.gap, "gap"),
        (shown.stale, "stale"),
    ] {
        if flag {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":true");
        }
    }
    out.push(b'}');
}

fn write_find(out: &mut Vec<u8>, nth: usize, find: &Find) {
    let mut digits = itoa::Buffer::new();
    if nth > 0 {
        out.push(b',');
    }
    out.extend_from_slice(b"{\"id\":\"");
    out.extend_from_slice(find.id.as_str().as_bytes());
    match &find.treasure {
        Some(treasure) => {
            out.extend_from_slice(b"\",\"treasure\":\"");
            out.extend_from_slice(treasure.as_str().as_bytes());
            out.push(b'"');
        }
        None => out.extend_from_slice(b"\",\"treasure\":null"),
    }
    out.extend_from_slice(b",\"coins\":");
    out.extend_from_slice(digits.format(find.coins).as_bytes());
    out.extend_from_slice(b",\"found_at\":");
    out.extend_from_slice(digits.format(find.found_at).as_bytes());
}
