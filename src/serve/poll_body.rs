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

impl Shown<'_> {
    /// The earliest time at which the answer can be true: no find is credited before it was made, none expires while it can
    /// be credited. An instance estimates the store's clock, and may be a millisecond behind what the store itself went by.
    fn not_before(&self) -> Millis {
        let expired = self.expiries.iter().map(|(find, _)| find.expires_at + 1);
        let credited = self.credits.iter().map(|find| find.found_at);
        credited.chain(expired).max().unwrap_or(0)
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
    number(out, facts.now.max(shown.not_before()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::ids::FindId;

    fn server_time(now: Millis, shown: &Shown<'_>) -> u64 {
        let facts = Facts {
            hunt: "h",
            player: "ann",
            wallet: Wallet::default(),
            cursor: Cursor { epoch: 1, seq: 1 },
            now,
            next_poll_ms: 1200,
        };
        let mut body = Vec::new();
        write_body(&mut body, &facts, shown);
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        body["server_time"].as_u64().expect("a time")
    }

    #[test]
    fn an_answer_is_not_from_before_what_it_shows() {
        let find = Find {
            seq: 1,
            id: FindId::new("f").expect("an id"),
            treasure: None,
            coins: 1,
            found_at: 1_000,
            expires_at: 301_000,
            repeatable: true,
        };
        let credited = Shown {
            credits: vec![&find],
            ..Shown::default()
        };
        assert_eq!(server_time(999, &credited), 1_000);
        assert_eq!(server_time(1_001, &credited), 1_001);
        let expired = Shown {
            expiries: vec![(&find, ExpiryReason::Window)],
            ..Shown::default()
        };
        assert_eq!(server_time(301_000, &expired), 301_001);
        assert_eq!(server_time(5, &Shown::default()), 5);
    }
}
