//! Wallets for those who answer requests: from memory, from the store into memory, or as they were before.

use super::app::{App, looked_up};
use super::catalogue::LiveHunt;
use super::waits::waited;
use crate::game::ids::PlayerId;
use crate::game::wallet::Wallet;
use crate::metrics::StoreCommand;
use crate::mirror::{History, Key, Turn};
use crate::store::{Credited, StoreError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The epoch of cursors for wallets from before the last reset: none, so that the next poll that knows better is a reset.
pub(super) const EPOCH_BEFORE: u64 = 0;

/// A wallet as a poll sees it.
#[derive(Debug, Clone, Copy)]
pub struct Sighting {
    /// The wallet.
    pub wallet: Wallet,
    /// The epoch that its cursor is of.
    pub epoch: u64,
    /// Whether it may be out of date.
    pub unsure: bool,
}

impl Sighting {
    /// A wallet as it is.
    pub fn sure(wallet: Wallet, epoch: u64) -> Self {
        Self {
            wallet,
            epoch,
            unsure: false,
        }
    }
}

impl App {
    /// The wallet from memory, or from the store into memory.
    async fn wallet(
        self: &Arc<Self>,
        live: &LiveHunt,
        key: Key,
        until: Option<Instant>,
    ) -> Result<Sighting, StoreError> {
        let epoch = self.epoch();
        if let Some(wallet) = self.hot().mirror.get(key) {
            return Ok(Sighting::sure(wallet, epoch));
        }
        let is_known = self.hot().mirror.from_before(key).is_some();
        if is_known && let Some(wallet) = self.known_again(key) {
            return Ok(Sighting::sure(wallet, epoch));
        }
        let read = self.read_wallet(live, key);
        let read = if let Some(until) = until.filter(|_| is_known) {
            // After a failover all wallets are read anew at about the same time. Who was known before does not wait for
            // that longer than for a credit; the reading goes on, and the next poll has it.
            let late = |_| {
                Err(StoreError::Unavailable(
                    "the wallet is still being read".into(),
                ))
            };
            tokio::time::timeout_at(until.into(), read)
                .await
                .unwrap_or_else(late)
        } else {
            read.await
        };
        match read {
            Ok(wallet) => Ok(Sighting {
                // Every wallet may have become out of date while this one was read.
                unsure: self.epoch() != epoch,
                ..Sighting::sure(wallet, epoch)
            }),
            Err(error) => self.wallet_of_before(key).ok_or(error),
        }
    }

    /// What a wallet from before a failover is now, if the store knows that by heart. One that has changed since the store looked
    /// is not taken: it was told of, before all was void or since.
    fn known_again(&self, key: Key) -> Option<Wallet> {
        if self.is_recovering() {
            return None;
        }
        let wallet = self.store.recent_wallet(key.hunt, key.player)?;
        self.hot().mirror.revive(key, wallet).then_some(wallet)
    }

    /// Until when a poll that begins now waits for what the store has to tell, where it can be answered without.
    pub fn patience(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.settings().poll.credit_wait_ms)
    }

    /// The wallet from before the last reset, if it has not been read since.
    pub fn wallet_of_before(&self, key: Key) -> Option<Sighting> {
        let wallet = self.hot().mirror.from_before(key)?;
        Some(Sighting {
            wallet,
            epoch: EPOCH_BEFORE,
            unsure: true,
        })
    }

    /// The wallet as now. It may be from memory although that may be behind the store: while the feed is silent,
    /// the store is asked, until `until` ([`Self::patience`]); if it does not answer, what is in memory must do. `None`: the
    /// poll is to be held anyway, and has time until its wallet has been read anew after a failover.
    ///
    /// # Errors
    /// The store's, when it is needed.
    pub async fn wallet_now(
        self: &Arc<Self>,
        live: &LiveHunt,
        key: Key,
        until: Option<Instant>,
    ) -> Result<Sighting, StoreError> {
        let epoch = self.epoch();
        let known = self.hot().mirror.get(key);
        let Some(known) = known.filter(|_| self.is_behind(key.player)) else {
            return self.wallet(live, key, until).await;
        };
        let until = until.unwrap_or_else(|| self.patience());
        match tokio::time::timeout_at(until.into(), self.read_wallet(live, key)).await {
            Ok(Ok(read)) => {
                let later = if read.seq >= known.seq { read } else { known };
                Ok(Sighting {
                    unsure: self.epoch() != epoch,
                    ..Sighting::sure(later, epoch)
                })
            }
            Ok(Err(_)) | Err(_) => Ok(Sighting {
                unsure: true,
                ..Sighting::sure(known, epoch)
            }),
        }
    }

    async fn read_wallet(
        self: &Arc<Self>,
        live: &LiveHunt,
        key: Key,
    ) -> Result<Wallet, StoreError> {
        let turn = self.hot().mirror.load(key);
        let receiver = match turn {
            Turn::Joined(receiver) => receiver,
            Turn::Yours(receiver) => {
                let read = self.store.wallet(&live.hunt.spec.id, key.player);
                let app = self.clone();
                // A task of its own: whoever asked first may go while others wait.
                tokio::spawn(async move {
                    let result = app.ask(StoreCommand::Wallet, read).await;
                    app.hot().mirror.loaded(key, result);
                });
                receiver
            }
        };
        waited(StoreCommand::Wallet.as_str(), receiver)
            .await
            .map_err(looked_up)
    }

    /// Runs a credit, or joins the one that is under way. Goes on when the caller stops waiting.
    ///
    /// # Errors
    /// The store's.
    pub async fn credit(
        self: &Arc<Self>,
        live: &LiveHunt,
        key: Key,
    ) -> Result<Arc<Credited>, StoreError> {
        let turn = self.hot().mirror.credit(key);
        let receiver = match turn {
            Turn::Joined(receiver) => receiver,
            Turn::Yours(receiver) => {
                let credit = self.store.credit(&live.hunt.spec.id, key.player);
                let app = self.clone();
                tokio::spawn(async move {
                    let result = app.ask(StoreCommand::Credit, credit).await;
                    if let Ok(credited) = &result {
                        app.metrics.credited(&credited.entries);
                    }
                    // Of the new history, its numbers stand for other entries than those that the wallets in memory and
                    // cursors are of: what was shown before would be shown again, as what came since.
                    let result = result.and_then(|credited| {
                        if app.is_recovering() {
                            Err(StoreError::Busy)
                        } else {
                            Ok(credited)
                        }
                    });
                    app.hot().mirror.credited(key, result);
                });
                receiver
            }
        };
        waited(StoreCommand::Credit.as_str(), receiver).await
    }

    /// Takes the wallets that an operation gave which was asked for in `asked_in`: see [`crate::mirror::Mirror::answered`]. While the store
    /// recovers from a failover those in memory stay as they were, for the same reason as with [`App::credit`].
    pub fn answered(
        &self,
        asked_in: History,
        hunt: u32,
        wallets: impl IntoIterator<Item = (PlayerId, Wallet)>,
    ) {
        let is_recovering = self.is_recovering();
        let mut hot = self.hot();
        for (player, wallet) in wallets {
            let key = Key { hunt, player };
            if is_recovering {
                hot.mirror.doubt(key);
            } else {
                hot.mirror.answered(asked_in, key, wallet);
            }
        }
    }
}
