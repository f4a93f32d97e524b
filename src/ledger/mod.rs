//! The ledger as people and programs outside see it: exports and the verdict of an audit. The server and the command line
//! share it, so that an export of a stopped store is the same, byte for byte, as one of a running one.
//!
//! An export is a sequence of rows of several kinds. A player's `wallet` comes first, then the player's entries, oldest
//! first. As JSON, one object a line, a row has only the fields that its kind has; as CSV it leaves the others empty. The
//! fields, in the CSV's order:
//!
//! | field | of | what it is |
//! |---|---|---|
//! | `kind` | all | `wallet`, or what the entry records: `find`, `credit`, `expire`, `reinstate`, `revoke`, `adjust` |
//! | `player` | all | the player's random number, 16 hexadecimal digits |
//! | `name` | wallet | the player's name, unless the player was erased |
//! | `seq` | all | the entry's sequence number; a wallet's last one |
//! | `at` | entries | when it became true, in milliseconds since the epoch by the store's clock |
//! | `balance` | wallet | coins that the player owns |
//! | `pending` | wallet | coins that wait for a poll |
//! | `pending_finds` | wallet | finds that wait for a poll |
//! | `find` | entries about a find | the find's id |
//! | `find_seq` | entries about a find | the sequence number of the entry that recorded it |
//! | `treasure` | entries about a find | the treasure, unless a back end recorded coins without one |
//! | `repeatable` | entries about a find | whether the find's id is the client's rather than the treasure's own |
//! | `coins` | entries | the find's coins; an adjustment's, negative where it takes them |
//! | `found_at` | entries about a find | when the treasure was found |
//! | `expires_at` | entries about a find | the last millisecond at which it could be credited |
//! | `reason` | expire, adjust | `window` or `store_outage`; the operator's words |
//! | `key` | adjust | the idempotency key |
//! | `by` | adjust | the name of the admin key that asked |
//! | `credited_at` | credit, reinstate | when it was credited first, where the store lost that and the window had run out when it came back |

mod verdict;

pub use verdict::{HuntVerdict, SumsReport, VerifyReport};

use crate::game::Millis;
use crate::game::entry::{Change, Entry, ExpiryReason, Find};
use crate::game::ids::{PlayerId, PlayerName};
use crate::store::ExportRow;
use serde::{Serialize, Serializer};

/// The formats of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// One JSON object a line.
    Jsonl,
    /// Comma-separated values (RFC 4180) with a line of names first.
    Csv,
}

/// The columns of the CSV, in order.
pub const COLUMNS: [&str; 19] = [
    "kind",
    "player",
    "name",
    "seq",
    "at",
    "balance",
    "pending",
    "pending_finds",
    "find",
    "find_seq",
    "treasure",
    "repeatable",
    "coins",
    "found_at",
    "expires_at",
    "reason",
    "key",
    "by",
    "credited_at",
];

const CSV_HEADER: &str = "kind,player,name,seq,at,balance,pending,pending_finds,find,find_seq,\
    treasure,repeatable,coins,found_at,expires_at,reason,key,by,credited_at\n";

/// A row that cannot be written. Writing into memory has no reason to fail.
#[derive(Debug, thiserror::Error)]
#[error("a row cannot be written: {0}")]
pub struct RowError(String);

/// A row before it has a format.
#[derive(Default)]
struct Row<'a> {
    kind: &'static str,
    player: String,
    name: Option<&'a str>,
    seq: u64,
    at: Option<Millis>,
    balance: Option<u64>,
    pending: Option<u64>,
    pending_finds: Option<u64>,
    find: Option<&'a Find>,
    coins: Option<i64>,
    reason: Option<&'a str>,
    key: Option<&'a str>,
    by: Option<&'a str>,
    credited_at: Option<Millis>,
}

/// A field's value.
#[derive(Serialize)]
#[serde(untagged)]
enum Field<'a> {
    Text(&'a str),
    Number(u64),
    Coins(i64),
    Flag(bool),
}

impl<'a> Row<'a> {
    fn new(row: &'a ExportRow) -> Self {
        match row {
            ExportRow::Wallet {
                player,
                name,
                wallet,
            } => Self {
                kind: "wallet",
                player: player.to_string(),
                name: name.as_ref().map(PlayerName::as_str),
                seq: wallet.seq,
                balance: Some(wallet.balance),
                pending: Some(wallet.pending_coins),
                pending_finds: Some(wallet.pending_finds),
                ..Self::default()
            },
            ExportRow::Entry { player, entry } => Self::entry(*player, entry),
        }
    }

    fn entry(player: PlayerId, entry: &'a Entry) -> Self {
        let bare = Self {
            player: player.to_string(),
            seq: entry.seq,
            at: Some(entry.at),
            ..Self::default()
        };
        match &entry.change {
            Change::Find(find) => bare.about("find", find),
            Change::Credit(find) => bare.about("credit", find),
            Change::Expire(find, reason) => Self {
                reason: Some(match reason {
                    ExpiryReason::Window => "window",
                    ExpiryReason::StoreOutage => "store_outage",
                }),
                ..bare.about("expire", find)
            },
            Change::Reinstate(find) => bare.about("reinstate", find),
            Change::Replay(find, replayed) => Self {
                credited_at: Some(replayed.credited_at),
                ..bare.about(
                    if replayed.reinstates {
                        "reinstate"
                    } else {
                        "credit"
                    },
                    find,
                )
            },
            Change::Revoke(find) => bare.about("revoke", find),
            Change::Adjust(adjustment) => Self {
                kind: "adjust",
                coins: Some(adjustment.coins),
                reason: Some(&adjustment.reason),
                key: Some(&adjustment.key),
                by: Some(&adjustment.by),
                ..bare
            },
        }
    }

    fn about(self, kind: &'static str, find: &'a Find) -> Self {
        Self {
            kind,
            find: Some(find),
            // Coins are at most 2^53 - 1.
            coins: i64::try_from(find.coins).ok(),
            ..self
        }
    }

    /// The fields in the order of [`COLUMNS`].
    fn fields(&self) -> [Option<Field<'_>>; COLUMNS.len()] {
        use Field::{Coins, Flag, Number, Text};
        let find = self.find;
        let treasure = find.and_then(|find| find.treasure.as_ref());
        [
            Some(Text(self.kind)),
            Some(Text(&self.player)),
            self.name.map(Text),
            Some(Number(self.seq)),
            self.at.map(Number),
            self.balance.map(Number),
            self.pending.map(Number),
            self.pending_finds.map(Number),
            find.map(|find| Text(find.id.as_str())),
            find.map(|find| Number(find.seq)),
            treasure.map(|id| Text(id.as_str())),
            find.map(|find| Flag(find.repeatable)),
            self.coins.map(Coins),
            find.map(|find| Number(find.found_at)),
            find.map(|find| Number(find.expires_at)),
            self.reason.map(Text),
            self.key.map(Text),
            self.by.map(Text),
            self.credited_at.map(Number),
        ]
    }
}

/// As a JSON object: the fields that are there.
impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let fields = COLUMNS.iter().zip(self.fields());
        to.collect_map(fields.filter_map(|(name, field)| Some((name, field?))))
    }
}

impl ExportFormat {
    /// The format of this name: `jsonl` or `csv`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "jsonl" => Some(Self::Jsonl),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
        }
    }

    /// Its media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Jsonl => "application/x-ndjson",
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    /// What an export begins with.
    #[must_use]
    pub fn header(self) -> &'static str {
        match self {
            Self::Jsonl => "",
            Self::Csv => CSV_HEADER,
        }
    }

    /// Appends rows to `out`, each with its line's end.
    ///
    /// # Errors
    /// When a row cannot be written.
    pub fn write_rows(self, out: &mut Vec<u8>, rows: &[ExportRow]) -> Result<(), RowError> {
        match self {
            Self::Jsonl => rows.iter().try_for_each(|row| {
                serde_json::to_writer(&mut *out, &Row::new(row))
                    .map_err(|error| RowError(error.to_string()))?;
                out.push(b'\n');
                Ok(())
            }),
            Self::Csv => {
                let mut writer = csv::WriterBuilder::new()
                    .has_headers(false)
                    .from_writer(out);
                rows.iter()
                    .try_for_each(|row| writer.serialize(Row::new(row).fields()))
                    .map_err(|error| RowError(error.to_string()))?;
                writer.flush().map_err(|error| RowError(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::entry::Adjustment;
    use crate::game::ids::{FindId, TreasureId};
    use crate::game::wallet::Wallet;

    fn rows() -> Vec<ExportRow> {
        let player = PlayerId(0xAB);
        let find = Find {
            seq: 1,
            id: FindId::new("f").unwrap(),
            treasure: Some(TreasureId::new("oak").unwrap()),
            coins: 5,
            found_at: 10,
            expires_at: 20,
            repeatable: true,
        };
        let bare = Find {
            treasure: None,
            ..find.clone()
        };
        let entry = |seq, at, change| ExportRow::Entry {
            player,
            entry: Entry { seq, at, change },
        };
        let adjustment = Adjustment {
            coins: -3,
            reason: "a \"typo\", twice".into(),
            key: "k".into(),
            by: "anna".into(),
        };
        vec![
            ExportRow::Wallet {
                player,
                name: Some(PlayerName::new("bob").unwrap()),
                wallet: Wallet {
                    balance: 2,
                    seq: 6,
                    ..Wallet::default()
                },
            },
            entry(1, 11, Change::Find(find.clone())),
            entry(2, 12, Change::Credit(find.clone())),
            entry(
                3,
                13,
                Change::Expire(bare.clone(), ExpiryReason::StoreOutage),
            ),
            entry(4, 14, Change::Reinstate(bare)),
            entry(5, 15, Change::Revoke(find)),
            entry(6, 16, Change::Adjust(adjustment)),
        ]
    }

    fn written(format: ExportFormat) -> String {
        let mut out = format.header().as_bytes().to_vec();
        let rows = rows();
        format.write_rows(&mut out, &rows[..2]).unwrap();
        format.write_rows(&mut out, &rows[2..]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_of_json_has_the_fields_of_its_kind() {
        assert_eq!(
            written(ExportFormat::Jsonl).lines().collect::<Vec<_>>(),
            [
                r#"{"kind":"wallet","player":"00000000000000ab","name":"bob","seq":6,"balance":2,"pending":0,"pending_finds":0}"#,
                r#"{"kind":"find","player":"00000000000000ab","seq":1,"at":11,"find":"f","find_seq":1,"treasure":"oak","repeatable":true,"coins":5,"found_at":10,"expires_at":20}"#,
                r#"{"kind":"credit","player":"00000000000000ab","seq":2,"at":12,"find":"f","find_seq":1,"treasure":"oak","repeatable":true,"coins":5,"found_at":10,"expires_at":20}"#,
                r#"{"kind":"expire","player":"00000000000000ab","seq":3,"at":13,"find":"f","find_seq":1,"repeatable":true,"coins":5,"found_at":10,"expires_at":20,"reason":"store_outage"}"#,
                r#"{"kind":"reinstate","player":"00000000000000ab","seq":4,"at":14,"find":"f","find_seq":1,"repeatable":true,"coins":5,"found_at":10,"expires_at":20}"#,
                r#"{"kind":"revoke","player":"00000000000000ab","seq":5,"at":15,"find":"f","find_seq":1,"treasure":"oak","repeatable":true,"coins":5,"found_at":10,"expires_at":20}"#,
                r#"{"kind":"adjust","player":"00000000000000ab","seq":6,"at":16,"coins":-3,"reason":"a \"typo\", twice","key":"k","by":"anna"}"#,
            ]
        );
    }

    #[test]
    fn a_row_of_csv_has_every_column_and_quotes_what_needs_it() {
        let text = written(ExportFormat::Csv);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], COLUMNS.join(","));
        assert_eq!(lines[1], "wallet,00000000000000ab,bob,6,,2,0,0,,,,,,,,,,,");
        assert_eq!(
            lines[4],
            "expire,00000000000000ab,,3,13,,,,f,1,,true,5,10,20,store_outage,,,"
        );
        assert_eq!(
            lines[7],
            "adjust,00000000000000ab,,6,16,,,,,,,,-3,,,\"a \"\"typo\"\", twice\",k,anna,"
        );
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert!(
            reader
                .records()
                .all(|record| record.unwrap().len() == COLUMNS.len())
        );
    }

    #[test]
    fn a_format_is_known_by_its_name() {
        for format in [ExportFormat::Jsonl, ExportFormat::Csv] {
            assert_eq!(ExportFormat::parse(format.as_str()), Some(format));
        }
        assert_eq!(ExportFormat::parse("xml"), None);
    }
}
