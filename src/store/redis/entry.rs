//! The feed's entries, as `lua/ledger.lua` writes them.

use super::cache::CachedHunt;
use crate::game::Millis;
use crate::game::entry::{Adjustment, Change, Entry, ExpiryReason, Find, Replayed};
use crate::game::ids::{FindId, PlayerId, TreasureId};
use crate::game::wallet::Wallet;
use serde::{Deserialize, Serialize};
use trove_streams::EntryId;
use trove_streams::keys::parse_base62;

/// An entry of the feed, as far as it is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FeedEntry {
    /// A wallet changed.
    Ledger(Ledger),
    /// Anything else.
    Other(Told),
}

/// What an entry tells those who follow the feed: of a wallet that changed what it is now, and not why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// A wallet changed.
    Wallet {
        hunt: u32,
        player: PlayerId,
        wallet: Wallet,
    },
    /// A hunt changed.
    Hunt { hunt: u32, generation: u64 },
    /// A player was erased.
    Erased { player: PlayerId },
    /// Of a kind that this version does not know, about a wallet.
    Unknown { hunt: u32, player: PlayerId },
}

/// An entry of a wallet's history, and the wallet after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) hunt: u32,
    pub(super) player: PlayerId,
    pub(super) wallet: Wallet,
    pub(super) what: What,
    pub(super) at: Millis,
}

/// What a ledger entry records; treasures by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Find(Kind, RawFind),
    Adjust(Adjustment),
}

/// What became of a find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Found,
    Credited,
    Expired(ExpiryReason),
    Reinstated,
    Revoked,
}

/// A find with its treasure's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawFind {
    pub(super) seq: u64,
    pub(super) treasure: Option<u32>,
    pub(super) coins: u64,
    pub(super) found_at: Millis,
    pub(super) expires_at: Millis,
    /// The client's id; `None` for a treasure that can be found once.
    pub(super) id: Option<FindId>,
    /// When it was credited first, if that was lost and came back after its window.
    pub(super) credited_at: Option<Millis>,
}

/// What an adjustment's entry says besides the coins.
#[derive(Serialize, Deserialize)]
pub(super) struct AdjustmentNote {
    pub(super) reason: String,
    pub(super) key: String,
    pub(super) by: String,
}

/// An entry that cannot be read. What it is about is reloaded whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry of the feed cannot be read")]
pub(super) struct NotUnderstood;

/// Reads the entry with this id and text.
pub(super) fn parse(id: EntryId, text: &str) -> Result<FeedEntry, NotUnderstood> {
    parse_entry(id, text).ok_or(NotUnderstood)
}

/// Reads of the entry with this id and text what it tells. Every instance does for every entry there is, so it reads no further.
pub(super) fn parse_told(id: EntryId, mut text: &str) -> Result<Told, NotUnderstood> {
    parse_head(id, &mut text)
        .map(|(told, _)| told)
        .ok_or(NotUnderstood)
}

fn player(word: &str) -> Option<PlayerId> {
    parse_base62(word.as_bytes()).map(PlayerId)
}

/// The next word; the rest stays.
fn word<'a>(text: &mut &'a str) -> Option<&'a str> {
    let (word, rest) = match text.split_once(' ') {
        Some(parts) => parts,
        None if text.is_empty() => return None,
        None => (*text, ""),
    };
    *text = rest;
    Some(word)
}

fn number(text: &mut &str) -> Option<u64> {
    word(text)?.parse().ok()
}

/// Reads what an entry tells, and of a ledger entry the kind of find that it is about, if it is. The rest stays.
fn parse_head(id: EntryId, rest: &mut &str) -> Option<(Told, Option<Kind>)> {
    let kind = word(rest)?;
    match kind {
        "h" => {
            let hunt = word(rest)?.parse().ok()?;
            let generation = number(rest)?;
            return Some((Told::Hunt { hunt, generation }, None));
        }
        "x" => {
            let player = player(word(rest)?)?;
            return Some((Told::Erased { player }, None));
        }
        _ => {}
    }
    let hunt = word(rest)?.parse().ok()?;
    let player = player(word(rest)?)?;
    let of = match kind {
        "f" => Some(Kind::Found),
        "c" => Some(Kind::Credited),
        "e" => Some(Kind::Expired(ExpiryReason::Window)),
        "o" => Some(Kind::Expired(ExpiryReason::StoreOutage)),
        "r" => Some(Kind::Reinstated),
        "v" => Some(Kind::Revoked),
        "g" => None,
        _ => return Some((Told::Unknown { hunt, player }, None)),
    };
    let seq = number(rest)?;
    let mut wallet = Wallet {
        seq,
        balance: number(rest)?,
        shown_seq: number(rest)?,
        pending_coins: number(rest)?,
        pending_finds: number(rest)?,
        due_at: 0,
    };
    let due = word(rest)?;
    if due != "-" {
        wallet.due_at = id.ms.checked_add_signed(due.parse().ok()?)?;
    }
    let told = Told::Wallet {
        hunt,
        player,
        wallet,
    };
    Some((told, of))
}

fn parse_entry(id: EntryId, mut text: &str) -> Option<FeedEntry> {
    let rest = &mut text;
    let (told, of) = parse_head(id, rest)?;
    let Told::Wallet {
        hunt,
        player,
        wallet,
    } = told
    else {
        return Some(FeedEntry::Other(told));
    };
    let (_prev_ms, _prev_n, _skip) = (word(rest)?, word(rest)?, word(rest)?);
    let what = match of {
        Some(kind) => What::Find(kind, parse_find(id.ms, rest)?),
        None => {
            let coins = word(rest)?.parse().ok()?;
            let AdjustmentNote { reason, key, by } = serde_json::from_str(rest).ok()?;
            What::Adjust(Adjustment {
                coins,
                reason,
                key,
                by,
            })
        }
    };
    Some(FeedEntry::Ledger(Ledger {
        hunt,
        player,
        wallet,
        what,
        at: id.ms,
    }))
}

fn parse_find(at: Millis, rest: &mut &str) -> Option<RawFind> {
    let seq = number(rest)?;
    let treasure = match word(rest)? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let coins = number(rest)?;
    let found_at = at.checked_sub(number(rest)?)?;
    let expires_at = found_at.checked_add(number(rest)?)?;
    let id = match (word(rest)?, word(rest)?) {
        ("0", _) => None,
        (_, id) => Some(FindId::new(id).ok()?),
    };
    let credited_at = match word(rest) {
        Some(ago) => Some(at.checked_sub(ago.parse().ok()?)?),
        None => None,
    };
    Some(RawFind {
        seq,
        treasure,
        coins,
        found_at,
        expires_at,
        id,
        credited_at,
    })
}

impl RawFind {
    /// The find, with the treasure's name. `None` when the hunt never had the treasure.
    pub(super) fn named(&self, hunt: &CachedHunt) -> Option<Find> {
        let treasure: Option<TreasureId> = match self.treasure {
            Some(number) => Some(hunt.treasure_id(number)?.clone()),
            None => None,
        };
        let id = match (&self.id, &treasure) {
            (Some(id), _) => id.clone(),
            (None, Some(treasure)) => FindId::new(treasure.as_str()).ok()?,
            (None, None) => return None,
        };
        Some(Find {
            seq: self.seq,
            id,
            treasure,
            coins: self.coins,
            found_at: self.found_at,
            expires_at: self.expires_at,
            repeatable: self.id.is_some(),
        })
    }
}

impl Ledger {
    /// The entry of the history, with the treasure's name. `None` when the hunt never had the treasure.
    pub(super) fn named(&self, hunt: &CachedHunt) -> Option<Entry> {
        let change = match &self.what {
            What::Find(kind, raw) => {
                let find = raw.named(hunt)?;
                let replayed = |reinstates| {
                    raw.credited_at.map(|credited_at| Replayed {
                        credited_at,
                        reinstates,
                    })
                };
                match kind {
                    Kind::Found => Change::Find(find),
                    Kind::Credited => match replayed(false) {
                        Some(replayed) => Change::Replay(find, replayed),
                        None => Change::Credit(find),
                    },
                    Kind::Expired(reason) => Change::Expire(find, *reason),
                    Kind::Reinstated => match replayed(true) {
                        Some(replayed) => Change::Replay(find, replayed),
                        None => Change::Reinstate(find),
                    },
                    Kind::Revoked => Change::Revoke(find),
                }
            }
            What::Adjust(adjustment) => Change::Adjust(adjustment.clone()),
        };
        Some(Entry {
            seq: self.wallet.seq,
            at: self.at,
            change,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: EntryId = EntryId::new(1_800_000_000_000, 9);

    #[test]
    fn a_find_is_read_with_the_wallet_after_it() {
        let entry = parse(
            ID,
            "f 3 A 4 100 2 5 1 300000 12 3 - 4 7 5 10 300010 1 uuid-1",
        )
        .unwrap();
        let FeedEntry::Ledger(ledger) = entry else {
            panic!("{entry:?}")
        };
        let told = Told::Wallet {
            hunt: 3,
            player: PlayerId(10),
            wallet: ledger.wallet,
        };
        assert_eq!(parse_told(ID, "f 3 A 4 100 2 5 1 300000"), Ok(told));
        assert_eq!((ledger.hunt, ledger.player), (3, PlayerId(10)));
        assert_eq!(
            (
                ledger.wallet.seq,
                ledger.wallet.balance,
                ledger.wallet.shown_seq
            ),
            (4, 100, 2)
        );
        assert_eq!(ledger.wallet.due_at, ID.ms + 300_000);
        let What::Find(Kind::Found, find) = ledger.what else {
            panic!()
        };
        assert_eq!(
            (find.treasure, find.coins, find.found_at),
            (Some(7), 5, ID.ms - 10)
        );
        assert_eq!(find.expires_at, ID.ms + 300_000);
        assert_eq!(find.id.unwrap().as_str(), "uuid-1");
    }

    #[test]
    fn what_a_later_version_writes_is_known_to_be_unknown() {
        let unknown = Told::Unknown {
            hunt: 3,
            player: PlayerId(10),
        };
        let text = "z 3 A something else";
        assert_eq!(parse_told(ID, text), Ok(unknown.clone()));
        assert_eq!(parse(ID, text), Ok(FeedEntry::Other(unknown)));
        for text in [
            "",
            "z",
            "z x A",
            "f 3 A 4 100",
            "f 3 A 4 100 2 5 1 9 - - - 4 7 5 10 300010 1 a/b",
        ] {
            assert_eq!(parse(ID, text), Err(NotUnderstood), "{text}");
        }
    }

    #[test]
    fn an_adjustment_keeps_its_words() {
        let text = r#"g 3 A 5 70 2 0 0 - 1 1 - -30 {"reason":"a  \"typo\"","key":"k","by":"ops"}"#;
        let FeedEntry::Ledger(ledger) = parse(ID, text).unwrap() else {
            panic!()
        };
        assert_eq!(ledger.wallet.due_at, 0);
        let What::Adjust(adjustment) = ledger.what else {
            panic!()
        };
        assert_eq!(
            (adjustment.coins, adjustment.reason.as_str()),
            (-30, "a  \"typo\"")
        );
    }
}
