//! The product's ledger as `trove export --format jsonl` writes it, read line by line: each player's wallet, then the
//! player's entries from the oldest. What can be judged of a player alone is judged here: the sequence, the balance, and
//! finds that a poll of the player passed over.

use super::ids;
use super::sort::Row;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// The most finds of one player that may be pending at a time before the export is refused as none of a sane hunt.
pub(super) const PENDING_FINDS_MAX: usize = 100_000;
/// The longest line of an export.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What an entry of the ledger says of a find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Find,
    Credit,
    Expire,
    ExpireByOutage,
    Reinstate,
    Revoke,
}

/// An entry of the ledger about a find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LedgerRow {
    pub(super) user: u32,
    pub(super) find: u64,
    pub(super) seq: u64,
    pub(super) change: Change,
    pub(super) coins: u64,
    pub(super) at: u64,
    pub(super) found_at: u64,
    pub(super) expires_at: u64,
    /// Whether a failover of the store took the credit and it came back when its window had run out; `at` is then when it
    /// was credited first.
    pub(super) came_back: bool,
    /// When a poll of the player credited others and not this one, though it could have; 0: never.
    pub(super) passed_over_at: u64,
}

/// The bytes of a row in a file.
#[derive(Debug)]
pub(super) struct RowBytes([u8; 64]);

impl Default for RowBytes {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl AsRef<[u8]> for RowBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for RowBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Row for LedgerRow {
    type Bytes = RowBytes;

    fn encode(&self) -> RowBytes {
        let mut bytes = [0; 64];
        bytes[0..4].copy_from_slice(&self.user.to_le_bytes());
        bytes[4] = self.change as u8;
        bytes[5] = u8::from(self.came_back);
        let words = [
            self.find,
            self.seq,
            self.coins,
            self.at,
            self.found_at,
            self.expires_at,
            self.passed_over_at,
        ];
        for (word, place) in words.iter().zip(bytes[8..].chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        RowBytes(bytes)
    }

    fn decode(RowBytes(bytes): &RowBytes) -> io::Result<Self> {
        const CHANGES: [Change; 6] = [
            Change::Find,
            Change::Credit,
            Change::Expire,
            Change::ExpireByOutage,
            Change::Reinstate,
            Change::Revoke,
        ];
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let change = CHANGES
            .into_iter()
            .find(|change| *change as u8 == bytes[4])
            .ok_or_else(|| io::Error::other("a sorted row is damaged"))?;
        Ok(Self {
            user: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            change,
            find: word(1),
            seq: word(2),
            coins: word(3),
            at: word(4),
            found_at: word(5),
            expires_at: word(6),
            came_back: bytes[5] != 0,
            passed_over_at: word(7),
        })
    }
}

/// A line of the export.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    kind: &'a str,
    name: Option<String>,
    seq: u64,
    #[serde(default)]
    at: u64,
    #[serde(default)]
    balance: i64,
    #[serde(default)]
    find: Option<String>,
    #[serde(default)]
    coins: i64,
    #[serde(default)]
    found_at: u64,
    #[serde(default)]
    expires_at: u64,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    credited_at: Option<u64>,
}

/// What is wrong in the ledger by itself: the player, and the words.
pub(super) struct Wrong {
    pub(super) kind: &'static str,
    pub(super) player: String,
    pub(super) text: String,
}

/// The player whose entries are being read.
struct Player {
    name: String,
    user: Option<u32>,
    wallet_seq: u64,
    wallet_balance: i64,
    seq: u64,
    balance: i64,
    /// Pending finds by their number, each with its entry.
    pending: BTreeMap<u64, LedgerRow>,
    /// When the credits of the poll that is being read were made, and the first of their sequence numbers.
    poll: Option<(u64, u64)>,
}

/// Reads an export. Rows about finds go to `row`, what is wrong to `wrong`. `returns`: when what a failover took may have been
/// brought back, in milliseconds since the epoch.
pub(super) fn read(
    mut export: impl BufRead,
    returns: &[(u64, u64)],
    mut row: impl FnMut(LedgerRow) -> io::Result<()>,
    mut wrong: impl FnMut(Wrong),
) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut number = 0_u64;
    let mut player: Option<Player> = None;
    loop {
        bytes.clear();
        number += 1;
        let limit = LINE_BYTES_MAX as u64 + 1;
        if io::Read::take(&mut export, limit).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let bad = |why: &dyn std::fmt::Display| {
            io::Error::other(format!("line {number} of the export: {why}"))
        };
        if bytes.last() != Some(&b'\n') {
            return Err(bad(&"it is cut off, or too long"));
        }
        let line: Line<'_> = serde_json::from_slice(&bytes).map_err(|error| bad(&error))?;
        if line.kind == "wallet" {
            if let Some(player) = player.take() {
                player.close(&mut wrong);
            }
            player = Some(Player::open(line, &mut wrong));
            continue;
        }
        let player = player
            .as_mut()
            .ok_or_else(|| bad(&"an entry before any wallet"))?;
        player
            .entry(&line, returns, &mut row, &mut wrong)
            .map_err(|error| bad(&error))?;
    }
    if let Some(player) = player {
        player.close(&mut wrong);
    }
    Ok(())
}

impl Player {
    fn open(line: Line<'_>, wrong: &mut impl FnMut(Wrong)) -> Self {
        let name = line.name.unwrap_or_else(|| "(erased)".to_owned());
        let user = ids::user_of(&name);
        if user.is_none() {
            wrong(Wrong {
                kind: "ledger",
                player: name.clone(),
                text: "a wallet of a player whom the harness does not have".to_owned(),
            });
        }
        Self {
            name,
            user,
            wallet_seq: line.seq,
            wallet_balance: line.balance,
            seq: 0,
            balance: 0,
            pending: BTreeMap::new(),
            poll: None,
        }
    }

    fn wrong(&self, kind: &'static str, text: String) -> Wrong {
        Wrong {
            kind,
            player: self.name.clone(),
            text,
        }
    }

    fn entry(
        &mut self,
        line: &Line<'_>,
        returns: &[(u64, u64)],
        row: &mut impl FnMut(LedgerRow) -> io::Result<()>,
        wrong: &mut impl FnMut(Wrong),
    ) -> io::Result<()> {
        if line.seq != self.seq + 1 {
            let text = format!(
                "entry {} of the ledger follows entry {}",
                line.seq, self.seq
            );
            wrong(self.wrong("sequence", text));
        }
        self.seq = line.seq;
        let change = match (line.kind, line.reason.as_deref()) {
            ("find", _) => Change::Find,
            ("credit", _) => Change::Credit,
            ("expire", Some("window")) => Change::Expire,
            ("expire", Some("store_outage")) => Change::ExpireByOutage,
            ("reinstate", _) => Change::Reinstate,
            ("revoke", _) => Change::Revoke,
            ("adjust", _) => {
                self.balance += line.coins;
                let text = format!(
                    "an adjustment of {:+} coins that the harness did not ask for",
                    line.coins
                );
                wrong(self.wrong("ledger", text));
                return Ok(());
            }
            (kind, reason) => {
                let text = format!(
                    "an entry of an unknown kind: {kind} {}",
                    reason.unwrap_or_default()
                );
                wrong(self.wrong("ledger", text));
                return Ok(());
            }
        };
        match change {
            Change::Credit | Change::Reinstate => self.balance += line.coins,
            Change::Find | Change::Expire | Change::ExpireByOutage | Change::Revoke => {}
        }
        let id = line.find.as_deref().unwrap_or_default();
        let (Some(user), Some(find)) = (self.user, ids::find_number(id)) else {
            if self.user.is_some() {
                let text = format!("a find {id:?} that is none of the harness's");
                wrong(self.wrong("ledger", text));
            }
            return Ok(());
        };
        let mut entry = LedgerRow {
            user,
            find,
            seq: line.seq,
            change,
            coins: u64::try_from(line.coins).map_err(io::Error::other)?,
            at: line.credited_at.unwrap_or(line.at),
            found_at: line.found_at,
            expires_at: line.expires_at,
            came_back: line.credited_at.is_some(),
            passed_over_at: 0,
        };
        self.follow_polls(&mut entry, returns)?;
        row(entry)
    }

    /// Keeps what is pending. Credits of one time are one poll, which has to credit all that it can: what was pending
    /// before its first credit, could be credited at its time, and still is pending after its last was passed over.
    fn follow_polls(&mut self, entry: &mut LedgerRow, returns: &[(u64, u64)]) -> io::Result<()> {
        let returns_then = || {
            let mut returns = returns.iter();
            returns.any(|(from, until)| (*from..=*until).contains(&entry.at))
        };
        if entry.came_back || entry.change == Change::Credit && returns_then() {
            // No poll, or it may be none: it comes back alone, and passes over nothing.
            self.pending.remove(&entry.find);
            return Ok(());
        }
        let same_poll =
            entry.change == Change::Credit && self.poll.is_some_and(|(at, _)| at == entry.at);
        if !same_poll && let Some((at, first)) = self.poll.take() {
            for row in self.pending.values_mut() {
                let creditable = row.found_at <= at && at <= row.expires_at;
                if row.seq < first && creditable && row.passed_over_at == 0 {
                    row.passed_over_at = at;
                }
            }
        }
        match entry.change {
            Change::Find => {
                if self.pending.len() >= PENDING_FINDS_MAX {
                    return Err(io::Error::other(format!(
                        "more than {PENDING_FINDS_MAX} finds of a player are pending"
                    )));
                }
                self.pending.insert(entry.find, *entry);
            }
            Change::Credit => {
                if !same_poll {
                    self.poll = Some((entry.at, entry.seq));
                }
                self.pending.remove(&entry.find);
            }
            Change::Expire => {
                let passed = self.pending.remove(&entry.find);
                entry.passed_over_at = passed.map_or(0, |row| row.passed_over_at);
            }
            Change::ExpireByOutage | Change::Reinstate | Change::Revoke => {
                self.pending.remove(&entry.find);
            }
        }
        Ok(())
    }

    fn close(self, wrong: &mut impl FnMut(Wrong)) {
        if self.seq != self.wallet_seq {
            let text = format!(
                "the wallet is at {} and its history ends at {}",
                self.wallet_seq, self.seq
            );
            wrong(self.wrong("sequence", text));
        }
        if self.balance != self.wallet_balance {
            let text = format!(
                "the wallet has {} coins and its history adds up to {}",
                self.wallet_balance, self.balance
            );
            wrong(self.wrong("balance", text));
        }
    }
}
