//! A player's wallet in one hunt, and the operations that change it. Each operation yields ledger entries; a store
//! writes those and the wallet in one atomic step.
//!
//! The wallet itself holds sums only; the pending finds stand apart, because recording one more must not cost more for
//! a player who already has many.

use super::Millis;
use super::coins::{self, COINS_MAX};
use super::entry::{Adjustment, Change, Entry, ExpiryReason, Find, Totals};
use serde::{Deserialize, Serialize};

/// A wallet. 48 bytes: it is also what an instance keeps in memory of each player.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wallet {
    /// Coins the player owns.
    pub balance: u64,
    /// The sequence number of the last entry of the history; 0 before the first.
    pub seq: u64,
    /// The sequence number of the last entry that a poll shows (a credit or an expiry). A client whose cursor is not
    /// behind it has missed nothing.
    pub shown_seq: u64,
    /// Coins of the pending finds.
    pub pending_coins: u64,
    /// Number of pending finds.
    pub pending_finds: u64,
    /// When the earliest pending find runs out; 0 when none is pending.
    pub due_at: Millis,
}

/// Stretches of time in which the store could not be reached, as far as it knows. A find whose window ran out inside
/// one expires with the reason `store_outage` (rule 3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outages {
    spans: Vec<(Millis, Millis)>,
}

/// How many outages are remembered; the oldest is forgotten first.
pub const OUTAGES_MAX: usize = 1_000;

impl Outages {
    /// Puts `from..=to` on record. Spans that touch become one. Says whether that changed anything.
    pub fn record(&mut self, from: Millis, to: Millis) -> bool {
        let known = self
            .spans
            .iter()
            .any(|(begin, end)| *begin <= from && to <= *end);
        if to < from || known {
            return false;
        }
        self.spans.push((from, to));
        self.spans.sort_unstable();
        let mut merged: Vec<(Millis, Millis)> = Vec::with_capacity(self.spans.len());
        for (from, to) in self.spans.drain(..) {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        let excess = merged.len().saturating_sub(OUTAGES_MAX);
        self.spans = merged.split_off(excess);
        true
    }

    /// Why a find that ran out at `expires_at` expired.
    #[must_use]
    pub fn reason(&self, expires_at: Millis) -> ExpiryReason {
        let after = self.spans.partition_point(|(from, _)| *from <= expires_at);
        match after.checked_sub(1).map(|i| self.spans[i]) {
            Some((_, to)) if expires_at <= to => ExpiryReason::StoreOutage,
            _ => ExpiryReason::Window,
        }
    }

    /// The spans on record, oldest first.
    #[must_use]
    pub fn spans(&self) -> &[(Millis, Millis)] {
        &self.spans
    }
}

/// Why a wallet refused a change. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WalletError {
    /// The wallet's balance with what is pending, or the hunt's total, would leave the range of coins (rule 9).
    #[error("the coins would leave the range 0 to 2^53 - 1")]
    CoinsOutOfRange,
    /// A revocation of more than the balance.
    #[error("the wallet holds fewer coins than are to be revoked")]
    InsufficientCoins,
}

impl Wallet {
    /// The sum that the wallet would hold if everything pending were credited.
    fn committed(&self) -> u64 {
        // Both are sums that were checked against COINS_MAX together when they grew.
        self.balance + self.pending_coins
    }

    fn next(&mut self, now: Millis, change: Change) -> Entry {
        self.seq += 1;
        Entry {
            seq: self.seq,
            at: now,
            change,
        }
    }

    /// Records a find as pending. `find.seq` is set here. `totals` are the hunt's before the find.
    ///
    /// # Errors
    /// `CoinsOutOfRange` when crediting all that is pending would leave the range, so that no later credit can.
    pub fn record(
        &mut self,
        totals: &Totals,
        mut find: Find,
        now: Millis,
    ) -> Result<Entry, WalletError> {
        let fits = coins::add(self.committed(), find.coins).is_some()
            && coins::add(totals.recorded, find.coins).is_some();
        if !fits {
            return Err(WalletError::CoinsOutOfRange);
        }
        find.seq = self.seq + 1;
        self.pending_coins += find.coins;
        self.pending_finds += 1;
        self.due_at = if self.due_at == 0 {
            find.expires_at
        } else {
            self.due_at.min(find.expires_at)
        };
        Ok(self.next(now, Change::Find(find)))
    }

    /// What a poll does: credits every creditable find of `pending` and expires those that have run out, in their
    /// order. `pending` holds all pending finds of the wallet and keeps those that are neither (found in the future of
    /// `now`, which a store's clock that never runs backwards does not produce).
    pub fn collect(
        &mut self,
        pending: &mut Vec<Find>,
        now: Millis,
        outages: &Outages,
        out: &mut Vec<Entry>,
    ) {
        self.settle(pending, now, outages, true, out);
    }

    /// What the sweeper does: expires the finds of `pending` that have run out, and leaves the others.
    pub fn expire(
        &mut self,
        pending: &mut Vec<Find>,
        now: Millis,
        outages: &Outages,
        out: &mut Vec<Entry>,
    ) {
        self.settle(pending, now, outages, false, out);
    }

    fn settle(
        &mut self,
        pending: &mut Vec<Find>,
        now: Millis,
        outages: &Outages,
        credit: bool,
        out: &mut Vec<Entry>,
    ) {
        debug_assert_eq!(pending.len() as u64, self.pending_finds);
        pending.retain(|find| {
            let change = if find.has_run_out(now) {
                Change::Expire(find.clone(), outages.reason(find.expires_at))
            } else if credit && find.is_creditable(now) {
                self.balance += find.coins;
                Change::Credit(find.clone())
            } else {
                return true;
            };
            self.pending_coins -= find.coins;
            self.pending_finds -= 1;
            out.push(self.next(now, change));
            self.shown_seq = self.seq;
            false
        });
        self.due_at = pending
            .iter()
            .map(|find| find.expires_at)
            .min()
            .unwrap_or(0);
    }

    /// Expires the find that was just recorded, because it was past its window already. `due_at` is the wallet's from
    /// before it was recorded: the other pending finds are untouched.
    pub fn expire_one(
        &mut self,
        find: Find,
        due_at: Millis,
        now: Millis,
        outages: &Outages,
    ) -> Entry {
        self.pending_coins -= find.coins;
        self.pending_finds -= 1;
        self.due_at = due_at;
        let reason = outages.reason(find.expires_at);
        let entry = self.next(now, Change::Expire(find, reason));
        self.shown_seq = self.seq;
        entry
    }

    /// Credits a find that had expired by a store outage. That it did, and that it has not been reinstated before, is
    /// for the caller to know.
    ///
    /// # Errors
    /// `CoinsOutOfRange` when the balance would leave its range.
    pub fn reinstate(&mut self, find: Find, now: Millis) -> Result<Entry, WalletError> {
        coins::add(self.committed(), find.coins).ok_or(WalletError::CoinsOutOfRange)?;
        self.balance += find.coins;
        let entry = self.next(now, Change::Reinstate(find));
        self.shown_seq = self.seq;
        Ok(entry)
    }

    /// Grants or revokes coins (rule 11).
    ///
    /// # Errors
    /// `CoinsOutOfRange` for a grant past the range (or of nothing), `InsufficientCoins` for a revocation of more than
    /// the balance.
    pub fn adjust(
        &mut self,
        totals: &Totals,
        adjustment: Adjustment,
        now: Millis,
    ) -> Result<Entry, WalletError> {
        let amount = adjustment.coins.unsigned_abs();
        if amount == 0 || amount > COINS_MAX {
            return Err(WalletError::CoinsOutOfRange);
        }
        if adjustment.coins > 0 {
            coins::add(self.committed(), amount).ok_or(WalletError::CoinsOutOfRange)?;
            coins::add(totals.recorded, amount).ok_or(WalletError::CoinsOutOfRange)?;
            self.balance += amount;
        } else {
            self.balance = self
                .balance
                .checked_sub(amount)
                .ok_or(WalletError::InsufficientCoins)?;
        }
        Ok(self.next(now, Change::Adjust(adjustment)))
    }

    /// Revokes everything pending, because the player is erased (rule 12).
    pub fn revoke_pending(&mut self, pending: &mut Vec<Find>, now: Millis, out: &mut Vec<Entry>) {
        for find in pending.drain(..) {
            self.pending_coins -= find.coins;
            self.pending_finds -= 1;
            out.push(self.next(now, Change::Revoke(find)));
        }
        self.due_at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::ids::{FindId, TreasureId};

    const WINDOW_MS: u64 = 300_000;

    fn find(id: &str, coins: u64, found_at: Millis) -> Find {
        Find {
            seq: 0,
            id: FindId::new(id).unwrap(),
            treasure: TreasureId::new(id).ok(),
            coins,
            found_at,
            expires_at: found_at + WINDOW_MS,
            repeatable: false,
        }
    }

    fn with_one_find(coins: u64, found_at: Millis) -> (Wallet, Vec<Find>) {
        let mut wallet = Wallet::default();
        let entry = wallet
            .record(&Totals::default(), find("a", coins, found_at), found_at)
            .unwrap();
        let Change::Find(made) = entry.change else {
            panic!()
        };
        (wallet, vec![made])
    }

    #[test]
    fn a_find_on_the_last_millisecond_is_credited() {
        let (mut wallet, mut pending) = with_one_find(7, 1_000);
        let mut out = Vec::new();
        wallet.collect(&mut pending, 301_000, &Outages::default(), &mut out);
        assert!(matches!(
            &out[..],
            [Entry {
                seq: 2,
                change: Change::Credit(_),
                ..
            }]
        ));
        assert_eq!(
            (wallet.balance, wallet.seq, wallet.shown_seq, wallet.due_at),
            (7, 2, 2, 0)
        );
    }

    #[test]
    fn a_find_one_millisecond_past_its_window_expires() {
        let (mut wallet, mut pending) = with_one_find(7, 1_000);
        let mut out = Vec::new();
        wallet.collect(&mut pending, 301_001, &Outages::default(), &mut out);
        assert!(matches!(
            &out[..],
            [Entry {
                change: Change::Expire(_, ExpiryReason::Window),
                ..
            }]
        ));
        assert_eq!(
            (wallet.balance, wallet.pending_coins, wallet.seq),
            (0, 0, 2)
        );
    }

    #[test]
    fn the_sweeper_leaves_what_can_still_be_credited() {
        let (mut wallet, mut pending) = with_one_find(7, 1_000);
        let later = wallet
            .record(&Totals::default(), find("b", 5, 2_000), 2_000)
            .unwrap();
        let Change::Find(later) = later.change else {
            panic!()
        };
        pending.push(later);
        let mut out = Vec::new();
        wallet.expire(&mut pending, 301_500, &Outages::default(), &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(
            (wallet.pending_coins, wallet.pending_finds, wallet.due_at),
            (5, 1, 302_000)
        );
    }

    #[test]
    fn what_runs_out_inside_an_outage_says_so() {
        let mut outages = Outages::default();
        outages.record(1_000, 2_000);
        outages.record(1_500, 3_000);
        outages.record(9_000, 9_000);
        assert_eq!(outages.spans(), &[(1_000, 3_000), (9_000, 9_000)]);
        let reasons: Vec<_> = [999, 1_000, 3_000, 3_001, 8_999, 9_000, 9_001]
            .map(|t| outages.reason(t))
            .into();
        use ExpiryReason::{StoreOutage as S, Window as W};
        assert_eq!(reasons, [W, S, S, W, W, S, W]);
    }

    #[test]
    fn old_outages_are_forgotten_past_the_limit() {
        let mut outages = Outages::default();
        for i in 0..(OUTAGES_MAX as u64 + 5) {
            outages.record(i * 10, i * 10 + 1);
        }
        assert_eq!(outages.spans().len(), OUTAGES_MAX);
        assert_eq!(outages.reason(0), ExpiryReason::Window);
        assert_eq!(outages.reason(50), ExpiryReason::StoreOutage);
    }

    #[test]
    fn a_find_that_could_overflow_the_balance_is_refused_whole() {
        let (mut wallet, _) = with_one_find(COINS_MAX - 1, 1_000);
        let before = wallet;
        let refused = wallet.record(&Totals::default(), find("b", 2, 1_000), 1_000);
        assert_eq!(refused, Err(WalletError::CoinsOutOfRange));
        assert_eq!(wallet, before);
        assert!(
            wallet
                .record(&Totals::default(), find("c", 1, 1_000), 1_000)
                .is_ok()
        );
    }

    #[test]
    fn a_revocation_of_more_than_the_balance_is_refused() {
        let mut wallet = Wallet {
            balance: 10,
            ..Wallet::default()
        };
        let adjustment = |coins| Adjustment {
            coins,
            reason: "r".into(),
            key: "k".into(),
            by: "a".into(),
        };
        let totals = Totals {
            recorded: 10,
            credited: 10,
            ..Totals::default()
        };
        assert_eq!(
            wallet.adjust(&totals, adjustment(-11), 1),
            Err(WalletError::InsufficientCoins)
        );
        assert_eq!(
            wallet.adjust(&totals, adjustment(0), 1),
            Err(WalletError::CoinsOutOfRange)
        );
        assert_eq!(
            wallet.adjust(&totals, adjustment(i64::MIN), 1),
            Err(WalletError::CoinsOutOfRange)
        );
        assert_eq!(
            wallet.adjust(&totals, adjustment(i64::MAX), 1),
            Err(WalletError::CoinsOutOfRange)
        );
        assert!(wallet.adjust(&totals, adjustment(-10), 1).is_ok());
        assert_eq!((wallet.balance, wallet.seq), (0, 1));
    }

    #[test]
    fn erasing_revokes_what_is_pending_and_leaves_the_balance() {
        let (mut wallet, mut pending) = with_one_find(7, 1_000);
        wallet.balance = 3;
        let mut out = Vec::new();
        wallet.revoke_pending(&mut pending, 2_000, &mut out);
        assert!(matches!(
            &out[..],
            [Entry {
                seq: 2,
                change: Change::Revoke(_),
                ..
            }]
        ));
        assert_eq!(
            (
                wallet.balance,
                wallet.pending_coins,
                wallet.pending_finds,
                wallet.due_at
            ),
            (3, 0, 0, 0)
        );
    }
}
