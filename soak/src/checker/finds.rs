//! Checks of the answers to finds, single and in bulk.

use super::wallet::{Open, Wallet};
use super::{Checker, kind};
use crate::books::{Told, ids};
use serde::Deserialize;
use std::borrow::Cow;

/// A find as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Find {
    /// Its number.
    pub number: u64,
    /// The index of its treasure; none: coins without one.
    pub treasure: Option<u16>,
    /// Its coins.
    pub coins: u64,
}

/// An acknowledgment.
#[derive(Debug, Deserialize)]
pub struct Acknowledgment<'a> {
    #[serde(borrow)]
    find: Cow<'a, str>,
    coins: u64,
    found_at: u64,
    expires_at: u64,
    duplicate: bool,
}

/// One outcome of a bulk request.
#[derive(Debug, Deserialize)]
pub struct Outcome<'a> {
    status: u16,
    #[serde(borrow, default)]
    find: Option<Cow<'a, str>>,
    #[serde(default)]
    coins: Option<u64>,
    #[serde(default)]
    expires_at: Option<u64>,
    #[serde(borrow, default)]
    expired: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct BulkBody<'a> {
    #[serde(borrow)]
    outcomes: Vec<Outcome<'a>>,
}

/// What became of a find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Recorded.
    Acknowledged,
    /// Not recorded, and it will not be.
    Refused,
    /// It is to be sent again with the same id.
    Unknown,
}

/// What an acknowledgment says, of either kind.
struct Said<'a> {
    status: u16,
    id: &'a str,
    coins: u64,
    found_at: u64,
    overtaken: bool,
}

impl Checker {
    /// A find is about to leave for the first time. `poll_under_way`: a poll of the user is, which may credit it.
    pub fn find_leaves(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        find: Find,
        poll_under_way: bool,
    ) {
        wallet.begin(Open {
            number: find.number,
            coins: find.coins,
            found_at: 0,
            poll_in_window: poll_under_way,
            had_to_be_credited: false,
            lost: false,
        });
        self.enter(user, find.number, Told::Sent, (find.coins, 0, 0));
    }

    /// An answer to a single find. `overtaken`: a poll of the user may have been sent after it and answered before.
    pub fn find_answered(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        (find, overtaken): (Find, bool),
        (status, body): (u16, &[u8]),
    ) -> Fate {
        match status {
            200 | 201 => {
                let told: Acknowledgment<'_> = match serde_json::from_slice(body) {
                    Ok(told) => told,
                    Err(error) => {
                        self.found(user, kind::MALFORMED, format!("an acknowledgment: {error}"));
                        return Fate::Unknown;
                    }
                };
                if told.duplicate != (status == 200) {
                    let text = format!(
                        "{} is {status} with duplicate {}",
                        told.find, told.duplicate
                    );
                    self.found(user, kind::ACKNOWLEDGMENT, text);
                }
                if told.expires_at != told.found_at + self.window_ms {
                    let text = format!(
                        "{} found at {} expires at {}, which is not the window of {} ms",
                        told.find, told.found_at, told.expires_at, self.window_ms
                    );
                    self.found(user, kind::ACKNOWLEDGMENT, text);
                }
                let said = Said {
                    status,
                    id: &told.find,
                    coins: told.coins,
                    found_at: told.found_at,
                    overtaken,
                };
                self.acknowledged(user, wallet, find, &said)
            }
            400..500 if status != 408 && status != 429 => self.refused(user, wallet, find),
            _ => Fate::Unknown,
        }
    }

    /// The outcomes in an answer to `count` finds in bulk; none: the fate of all is unknown.
    pub fn bulk_outcomes<'a>(
        &mut self,
        status: u16,
        body: &'a [u8],
        count: usize,
    ) -> Option<Vec<Outcome<'a>>> {
        if status != 200 {
            return None;
        }
        let told: BulkBody<'_> = match serde_json::from_slice(body) {
            Ok(told) => told,
            Err(error) => {
                self.found(
                    0,
                    kind::MALFORMED,
                    format!("outcomes of finds in bulk: {error}"),
                );
                return None;
            }
        };
        if told.outcomes.len() != count {
            let text = format!("{} outcomes of {count} finds", told.outcomes.len());
            self.found(0, kind::ACKNOWLEDGMENT, text);
            return None;
        }
        Some(told.outcomes)
    }

    /// The outcome of one find in bulk.
    pub fn bulk_answered(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        find: Find,
        outcome: &Outcome<'_>,
    ) -> Fate {
        match (outcome, &outcome.find, outcome.coins, outcome.expires_at) {
            (
                Outcome {
                    status: 200 | 201,
                    expired,
                    ..
                },
                Some(id),
                Some(coins),
                Some(expires_at),
            ) => {
                if let Some(reason) = expired {
                    // None is dated back.
                    let text = format!("{id} expired at once by {reason}");
                    self.found(user, kind::EXPIRED_UNLAWFULLY, text);
                }
                let said = Said {
                    status: outcome.status,
                    id,
                    coins,
                    found_at: expires_at.saturating_sub(self.window_ms),
                    overtaken: true,
                };
                self.acknowledged(user, wallet, find, &said)
            }
            (
                Outcome {
                    status: 400..500, ..
                },
                ..,
            ) if outcome.status != 429 => self.refused(user, wallet, find),
            _ => Fate::Unknown,
        }
    }

    fn acknowledged(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        find: Find,
        said: &Said<'_>,
    ) -> Fate {
        if ids::find_number(said.id) != Some(find.number) {
            let text = format!("{} acknowledged as {}", ids::find_id(find.number), said.id);
            self.found(user, kind::ACKNOWLEDGMENT, text);
            return Fate::Unknown;
        }
        if said.coins != find.coins {
            let text = format!(
                "{} acknowledged with {} coins, sent with {}",
                said.id, said.coins, find.coins
            );
            self.found(user, kind::COINS, text);
        }
        let mut contradicts = None;
        let mut first = false;
        match wallet.find(find.number) {
            Some(open) if open.is_acknowledged() => {
                if said.status == 201 {
                    contradicts = Some("recorded a second time".to_owned());
                } else if open.found_at != said.found_at {
                    contradicts = Some(format!(
                        "found at {}, then at {}",
                        open.found_at, said.found_at
                    ));
                }
            }
            Some(open) => {
                open.found_at = said.found_at.max(1);
                first = true;
            }
            // Its end has been told: a poll of the player can be faster than the answer to the back end, and than one on
            // another connection.
            None if said.status == 201 && said.overtaken => first = true,
            None if said.status == 201 => {
                contradicts = Some("recorded anew after its end was told".to_owned())
            }
            None => {}
        }
        if let Some(how) = contradicts {
            self.found(user, kind::ACKNOWLEDGMENT, format!("{} {how}", said.id));
        }
        if first {
            self.counts.finds += 1;
        }
        self.enter(
            user,
            find.number,
            Told::Acknowledged,
            (said.coins, said.found_at, 0),
        );
        Fate::Acknowledged
    }

    fn refused(&mut self, user: u32, wallet: &mut Wallet, find: Find) -> Fate {
        let acknowledged = wallet
            .find(find.number)
            .is_none_or(|open| open.is_acknowledged());
        if acknowledged {
            let text = format!(
                "{} refused after it was acknowledged",
                ids::find_id(find.number)
            );
            self.found(user, kind::ACKNOWLEDGMENT, text);
            return Fate::Acknowledged;
        }
        wallet.finish(find.number);
        self.enter(user, find.number, Told::Refused, (find.coins, 0, 0));
        Fate::Refused
    }
}
