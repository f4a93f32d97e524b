//! Recomputes a wallet and its hunt's sums from ledger entries alone, and checks the invariants on the way.
//!
//! This is the product's own accountant: it shares no code with [`super::wallet`] or [`Totals::apply`], and trusts no
//! total.

use super::Millis;
use super::entry::{Change, Entry, ExpiryReason, Find, Totals};
use super::wallet::Wallet;
use std::collections::HashMap;

/// A way in which a ledger does not add up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Discrepancy {
    /// I4: sequence numbers must grow by one.
    #[error(
        "entry {found} follows entry {expected} less one: the sequence has a gap or goes backwards"
    )]
    Sequence {
        /// The number that was due.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// Time must not run backwards within a wallet.
    #[error("entry {seq} is older than the one before it")]
    Time {
        /// The entry.
        seq: u64,
    },
    /// I2: an outcome of a find that is not pending: credited twice, or never made.
    #[error("entry {seq} settles find {find}, which is not pending")]
    NotPending {
        /// The entry.
        seq: u64,
        /// The find's entry.
        find: u64,
    },
    /// I3: a credit outside its window, or an expiry inside it.
    #[error("entry {seq} settles find {find} on the wrong side of its window")]
    Window {
        /// The entry.
        seq: u64,
        /// The find's entry.
        find: u64,
    },
    /// A reinstatement of a find that did not expire by an outage, or was reinstated before; or a credit that came back to
    /// a find that had not expired.
    #[error(
        "entry {seq} reinstates find {find}, which did not expire by a store outage or was reinstated before"
    )]
    Reinstated {
        /// The entry.
        seq: u64,
        /// The find's entry.
        find: u64,
    },
    /// An entry that takes more than there is.
    #[error("entry {seq} takes more coins than there are")]
    Negative {
        /// The entry.
        seq: u64,
    },
    /// The wallet is not the sum of its history.
    #[error("the wallet says {field} {wallet}, its history says {history}")]
    Wallet {
        /// Which figure.
        field: &'static str,
        /// The wallet's.
        wallet: u64,
        /// The history's.
        history: u64,
    },
    /// I1: the hunt's totals are not the sum of its ledger.
    #[error("the totals say {field} {totals}, the ledger says {ledger}")]
    Totals {
        /// Which figure.
        field: &'static str,
        /// The totals'.
        totals: u64,
        /// The ledger's.
        ledger: u64,
    },
}

/// The sums of a ledger, wide enough never to overflow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Coins recorded.
    pub recorded: u128,
    /// Coins in wallets.
    pub credited: u128,
    /// Coins expired.
    pub expired: u128,
    /// Coins pending.
    pub pending: u128,
    /// Coins revoked.
    pub revoked: u128,
}

impl Sums {
    /// Adds another ledger's sums.
    pub fn add(&mut self, other: &Sums) {
        self.recorded += other.recorded;
        self.credited += other.credited;
        self.expired += other.expired;
        self.pending += other.pending;
        self.revoked += other.revoked;
    }

    /// Whether recorded = credited + expired + pending + revoked (I1).
    #[must_use]
    pub fn conserve(&self) -> bool {
        self.recorded == self.credited + self.expired + self.pending + self.revoked
    }

    /// Compares with the totals that a store keeps.
    #[must_use]
    pub fn discrepancies(&self, totals: &Totals) -> Vec<Discrepancy> {
        let wide = u64::try_from;
        [
            ("recorded", totals.recorded, self.recorded),
            ("credited", totals.credited, self.credited),
            ("expired", totals.expired, self.expired),
            ("pending", totals.pending, self.pending),
            ("revoked", totals.revoked, self.revoked),
        ]
        .into_iter()
        .map(|(field, totals, ledger)| (field, totals, wide(ledger).unwrap_or(u64::MAX)))
        .filter(|(_, totals, ledger)| totals != ledger)
        .map(|(field, totals, ledger)| Discrepancy::Totals {
            field,
            totals,
            ledger,
        })
        .collect()
    }
}

/// Walks one wallet's history.
#[derive(Debug, Default)]
pub struct WalletAudit {
    seq: u64,
    at: Millis,
    balance: u128,
    pending: HashMap<u64, Find>,
    lost_to_outage: HashMap<u64, Find>,
    ran_out: HashMap<u64, Find>,
    sums: Sums,
}

impl WalletAudit {
    /// Takes the next entry.
    ///
    /// # Errors
    /// The first thing about it that cannot be true.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), Discrepancy> {
        let seq = entry.seq;
        if seq != self.seq + 1 {
            return Err(Discrepancy::Sequence {
                expected: self.seq + 1,
                found: seq,
            });
        }
        if entry.at < self.at {
            return Err(Discrepancy::Time { seq });
        }
        self.seq = seq;
        self.at = entry.at;
        match &entry.change {
            Change::Find(find) => {
                if find.seq != seq || find.found_at > entry.at {
                    return Err(Discrepancy::Window {
                        seq,
                        find: find.seq,
                    });
                }
                self.sums.recorded += u128::from(find.coins);
                self.sums.pending += u128::from(find.coins);
                self.pending.insert(seq, find.clone());
            }
            Change::Credit(find) => {
                let coins = self.take(seq, find)?;
                if entry.at < find.found_at || entry.at > find.expires_at {
                    return Err(Discrepancy::Window {
                        seq,
                        find: find.seq,
                    });
                }
                self.sums.credited += coins;
                self.balance += coins;
            }
            Change::Expire(find, reason) => {
                self.sums.expired += self.take(seq, find)?;
                if entry.at <= find.expires_at {
                    return Err(Discrepancy::Window {
                        seq,
                        find: find.seq,
                    });
                }
                match reason {
                    ExpiryReason::StoreOutage => &mut self.lost_to_outage,
                    ExpiryReason::Window => &mut self.ran_out,
                }
                .insert(find.seq, find.clone());
            }
            Change::Revoke(find) => self.sums.revoked += self.take(seq, find)?,
            Change::Reinstate(find) => {
                if self.lost_to_outage.remove(&find.seq).as_ref() != Some(find) {
                    return Err(Discrepancy::Reinstated {
                        seq,
                        find: find.seq,
                    });
                }
                let coins = u128::from(find.coins);
                self.sums.expired -= coins;
                self.sums.credited += coins;
                self.balance += coins;
            }
            Change::Replay(find, replayed) => {
                let at = replayed.credited_at;
                if at < find.found_at || at > find.expires_at || at > entry.at {
                    return Err(Discrepancy::Window {
                        seq,
                        find: find.seq,
                    });
                }
                let coins = if replayed.reinstates {
                    let of = find.seq;
                    let expired = self
                        .lost_to_outage
                        .remove(&of)
                        .or_else(|| self.ran_out.remove(&of));
                    if expired.as_ref() != Some(find) {
                        return Err(Discrepancy::Reinstated { seq, find: of });
                    }
                    self.sums.expired -= u128::from(find.coins);
                    u128::from(find.coins)
                } else {
                    self.take(seq, find)?
                };
                self.sums.credited += coins;
                self.balance += coins;
            }
            Change::Adjust(adjustment) => {
                let coins = u128::from(adjustment.coins.unsigned_abs());
                if adjustment.coins > 0 {
                    self.sums.recorded += coins;
                    self.sums.credited += coins;
                    self.balance += coins;
                } else {
                    self.balance = self
                        .balance
                        .checked_sub(coins)
                        .ok_or(Discrepancy::Negative { seq })?;
                    self.sums.credited -= coins;
                    self.sums.revoked += coins;
                }
            }
        }
        Ok(())
    }

    /// The entries of the finds that the history leaves pending.
    pub fn pending(&self) -> impl Iterator<Item = u64> {
        self.pending.keys().copied()
    }

    /// Removes a find from what is pending, if it is there with this content.
    fn take(&mut self, seq: u64, find: &Find) -> Result<u128, Discrepancy> {
        match self.pending.remove(&find.seq) {
            Some(made) if made == *find => {
                self.sums.pending -= u128::from(find.coins);
                Ok(u128::from(find.coins))
            }
            _ => Err(Discrepancy::NotPending {
                seq,
                find: find.seq,
            }),
        }
    }

    /// Compares what the history comes to with the wallet as it is stored, and gives the history's sums.
    ///
    /// # Errors
    /// The first figure that differs.
    pub fn close(&self, wallet: &Wallet) -> Result<Sums, Discrepancy> {
        let pending_coins: u128 = self.pending.values().map(|f| u128::from(f.coins)).sum();
        let due_at = self
            .pending
            .values()
            .map(|f| f.expires_at)
            .min()
            .unwrap_or(0);
        for (field, wallet, history) in [
            ("seq", wallet.seq, u128::from(self.seq)),
            ("balance", wallet.balance, self.balance),
            ("pending coins", wallet.pending_coins, pending_coins),
            (
                "pending finds",
                wallet.pending_finds,
                self.pending.len() as u128,
            ),
            ("due_at", wallet.due_at, u128::from(due_at)),
        ] {
            if u128::from(wallet) != history {
                let history = u64::try_from(history).unwrap_or(u64::MAX);
                return Err(Discrepancy::Wallet {
                    field,
                    wallet,
                    history,
                });
            }
        }
        Ok(self.sums)
    }
}
