//! The ledger entry: the only way in which anything about coins changes.
//!
//! A wallet's history is its entries in the order of their sequence numbers, each one more than the last. Entries are
//! self-contained (a credit carries its find), so that one read alone can be shown, replayed or audited.

use super::Millis;
use super::coins;
use super::ids::{FindId, TreasureId};
use serde::{Deserialize, Serialize};

/// A find as it was made. Its coins and its window never change afterwards, whatever becomes of the hunt's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Find {
    /// The sequence number of the wallet's entry that recorded it.
    pub seq: u64,
    /// Its id within hunt and player.
    pub id: FindId,
    /// The treasure; `None` for coins that a back end recorded without one.
    pub treasure: Option<TreasureId>,
    /// Its coins.
    pub coins: u64,
    /// When the treasure was found.
    pub found_at: Millis,
    /// The last millisecond at which it can be credited: `found_at` + the hunt's window at the time.
    pub expires_at: Millis,
    /// Whether the id is the client's (a repeatable treasure, or none) rather than the treasure's own. The two kinds
    /// are separate namespaces.
    pub repeatable: bool,
}

impl Find {
    /// Rule 1: creditable at `now` exactly when 0 ≤ now − found_at ≤ window.
    #[must_use]
    pub fn is_creditable(&self, now: Millis) -> bool {
        self.found_at <= now && now <= self.expires_at
    }

    /// Whether its window has passed at `now`.
    #[must_use]
    pub fn has_run_out(&self, now: Millis) -> bool {
        now > self.expires_at
    }
}

/// Why a find expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpiryReason {
    /// Nobody polled within the window.
    Window,
    /// The window ran out inside an outage that the store has on record; an operator can reinstate it.
    StoreOutage,
}

/// A grant (positive) or a revocation (negative) by an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// Signed coins, never 0.
    pub coins: i64,
    /// Why, in the operator's words.
    pub reason: String,
    /// The idempotency key.
    pub key: String,
    /// The name of the admin key that asked.
    pub by: String,
}

/// What an entry records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A find was made and is pending.
    Find(Find),
    /// A pending find was collected.
    Credit(Find),
    /// A pending find ran out.
    Expire(Find, ExpiryReason),
    /// A find that had expired by a store outage was credited after all.
    Reinstate(Find),
    /// A pending find was revoked because its player was erased.
    Revoke(Find),
    /// An operator granted or revoked coins.
    Adjust(Adjustment),
    /// A credit that the store had lost came back after the find's window had run out.
    Replay(Find, Replayed),
}

/// When a credit that came back was made. The window is judged by that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// When it was credited first.
    pub credited_at: Millis,
    /// Whether the find had expired meanwhile and is reinstated by this; otherwise it was still pending.
    pub reinstates: bool,
}

/// One entry of a wallet's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The wallet's sequence number.
    pub seq: u64,
    /// When it became true, by the store's clock.
    pub at: Millis,
    /// What it records.
    pub change: Change,
}

/// A hunt's sums. Conservation (rule 4): `recorded` = `credited` + `expired` + `pending` + `revoked`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Coins of every find and grant ever recorded.
    pub recorded: u64,
    /// Coins in wallets now.
    pub credited: u64,
    /// Coins of finds that ran out.
    pub expired: u64,
    /// Coins of finds that wait for a poll.
    pub pending: u64,
    /// Coins taken back.
    pub revoked: u64,
}

/// An entry that cannot follow from the totals it is applied to: a sum would become negative or leave its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the entry does not fit the totals")]
pub struct TotalsError;

impl Totals {
    /// Adds what `change` moves.
    ///
    /// # Errors
    /// Leaves the totals as they were when a sum would leave its range.
    pub fn apply(&mut self, change: &Change) -> Result<(), TotalsError> {
        let mut next = *self;
        next.move_coins(change).ok_or(TotalsError)?;
        *self = next;
        Ok(())
    }

    fn move_coins(&mut self, change: &Change) -> Option<()> {
        fn shift(from: &mut u64, to: &mut u64, amount: u64) -> Option<()> {
            *from = from.checked_sub(amount)?;
            *to = coins::add(*to, amount)?;
            Some(())
        }
        match change {
            Change::Find(find) => {
                self.recorded = coins::add(self.recorded, find.coins)?;
                self.pending = coins::add(self.pending, find.coins)?;
            }
            Change::Credit(find) => shift(&mut self.pending, &mut self.credited, find.coins)?,
            Change::Expire(find, _) => shift(&mut self.pending, &mut self.expired, find.coins)?,
            Change::Reinstate(find) => shift(&mut self.expired, &mut self.credited, find.coins)?,
            Change::Replay(find, replayed) => {
                let from = if replayed.reinstates {
                    &mut self.expired
                } else {
                    &mut self.pending
                };
                shift(from, &mut self.credited, find.coins)?;
            }
            Change::Revoke(find) => shift(&mut self.pending, &mut self.revoked, find.coins)?,
            Change::Adjust(adjustment) => {
                let amount = adjustment.coins.unsigned_abs();
                if adjustment.coins >= 0 {
                    self.recorded = coins::add(self.recorded, amount)?;
                    self.credited = coins::add(self.credited, amount)?;
                } else {
                    shift(&mut self.credited, &mut self.revoked, amount)?;
                }
            }
        }
        Some(())
    }

    /// Whether the coins that were recorded are all accounted for.
    #[must_use]
    pub fn conserve(&self) -> bool {
        u128::from(self.recorded)
            == u128::from(self.credited)
                + u128::from(self.expired)
                + u128::from(self.pending)
                + u128::from(self.revoked)
    }

    /// Adds another part's totals.
    ///
    /// # Errors
    /// When a sum leaves the range of coins.
    pub fn add(&mut self, other: &Totals) -> Result<(), TotalsError> {
        let sum = |a, b| coins::add(a, b).ok_or(TotalsError);
        *self = Totals {
            recorded: sum(self.recorded, other.recorded)?,
            credited: sum(self.credited, other.credited)?,
            expired: sum(self.expired, other.expired)?,
            pending: sum(self.pending, other.pending)?,
            revoked: sum(self.revoked, other.revoked)?,
        };
        Ok(())
    }
}
