//! The recovery that a new epoch begins with: what this instance executed is offered until everything has an answer.

use super::item::{Item, Kind};
use super::offer::{Numbered, Offered};
use super::uncovered::Uncovered;
use super::{Dropped, Phase, Replay};
use crate::game::ids::PlayerId;
use crate::store::StoreError;
use crate::store::redis::shared::{Core, lock};
use std::time::{Duration, Instant};

/// Items offered in one write, so that the new primary has turns for others in between.
const OFFERED_AT_ONCE: usize = 128;
/// The pause after each write in the first half of a recovery, in times that it took. What was lost comes back in time all the
/// same, and polls do not wait for it.
const OFFER_PAUSE: u32 = 2;
/// The pause before what had no answer, or could not be done yet, is offered again.
const OFFER_AGAIN: Duration = Duration::from_millis(50);
/// How long before the recovery's end the ends of the feeds are read: most of what comes back is there by then, and there is
/// time to do it by and by.
const READ_RECENT_AHEAD: Duration = Duration::from_secs(1);
/// For how long after the recovery what had no answer is still offered.
const LATE: Duration = Duration::from_secs(30);

/// Runs a recovery whenever one begins, until it is aborted.
pub(in crate::store::redis) async fn run(core: Core) {
    loop {
        core.shared.replay.begun.notified().await;
        // Another epoch may begin meanwhile: then everything is judged anew.
        while core.shared.replay.is_recovering() && core.recover().await {}
    }
}

impl Core {
    /// One recovery. Says whether another epoch has begun meanwhile.
    async fn recover(&self) -> bool {
        let replay = &self.shared.replay;
        let began = Instant::now();
        if let Err(error) = self.bring_all().await {
            tracing::debug!(%error, "not all partitions are brought to the epoch yet");
        }
        let epoch = self.shared.epoch();
        replay.judge(epoch, |player| self.shared.partition_of(player).index());
        let open = lock(&replay.ring).open_count();
        tracing::info!(
            epoch,
            open,
            "a recovery begins: what the store may have lost is offered"
        );
        let before = replay.counts().replayed;
        let (mut recovering, mut has_read) = (true, false);
        let reads_at = replay.recovery.saturating_sub(READ_RECENT_AHEAD);
        let mut uncovered = Uncovered::default();
        loop {
            let reached = self.offer_all(epoch, began, &mut uncovered).await;
            // Fences that wait for a replica must not hold up what is next.
            let next = match (has_read, recovering) {
                (false, _) => reads_at,
                (_, true) => replay.recovery,
                (_, false) => Duration::MAX,
            };
            let left = next.saturating_sub(began.elapsed());
            self.settle_covered(epoch, &mut uncovered, left).await;
            if self.shared.epoch() != epoch {
                return true;
            }
            if reached && !has_read && began.elapsed() >= reads_at {
                has_read = true;
                self.read_recent(epoch, began + replay.recovery).await;
            }
            let over = began.elapsed() >= replay.recovery;
            let open = lock(&replay.ring).open_count();
            if reached && over && recovering {
                recovering = false;
                self.end_recovery(epoch, began).await;
            }
            if open == 0 && !recovering {
                break;
            }
            if began.elapsed() >= replay.recovery + LATE && reached {
                self.give_up(epoch, uncovered);
                break;
            }
            let pause = if open == 0 {
                let next = if has_read { replay.recovery } else { reads_at };
                next.saturating_sub(began.elapsed())
            } else {
                OFFER_AGAIN
            };
            tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
        }
        let after = replay.counts().replayed;
        let returned: u64 = after.iter().sum::<u64>() - before.iter().sum::<u64>();
        tracing::info!(epoch, returned, "the recovery is over");
        false
    }

    /// From here on finds run out again, and wallets are read anew.
    async fn end_recovery(&self, epoch: u64, began: Instant) {
        let now = self.shared.clock.now();
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        // What ran out while nobody could be sure of anything did so by an outage.
        if took > 0
            && let Err(error) = self.record_outage(now.saturating_sub(took), now).await
        {
            tracing::warn!(%error, "the recovery could not be put on record as an outage");
        }
        if self.shared.epoch() == epoch {
            self.shared.replay.phase.send_replace(Phase::Over);
        }
    }

    /// What still cannot come back never will. What is there, though no fence has covered it yet, is kept like all that this
    /// instance has executed lately.
    fn give_up(&self, epoch: u64, uncovered: Uncovered) {
        let replay = &self.shared.replay;
        for (number, kind, offered) in uncovered.into_all() {
            self.take(epoch, (number, kind), Ok(offered));
        }
        let open = lock(&replay.ring).open(|_| true);
        for (number, item) in open {
            let why = match &*item {
                Item::Adjustment { .. } => Dropped::Coins,
                _ => Dropped::Missing,
            };
            lock(&replay.ring).remove(number);
            replay.lost(why, 1);
        }
    }

    /// Offers everything that has no answer yet in a recovery that began then. Says whether the store could be reached. What
    /// was executed counts once it is covered; what comes next does not wait for that.
    async fn offer_all(&self, epoch: u64, began: Instant, uncovered: &mut Uncovered) -> bool {
        let replay = &self.shared.replay;
        let pause = async |sent: Instant| {
            // Not longer, when the store is slow: writes wait for the names.
            let left = (replay.recovery / 2).saturating_sub(began.elapsed());
            let pause = (sent.elapsed() * OFFER_PAUSE).min(left);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        };
        let names = replay.to_offer(uncovered, |kind| kind == Kind::Player);
        for part in names.chunks(OFFERED_AT_ONCE) {
            lock(&replay.ring).offers(part);
            let sent = Instant::now();
            if self.offer_names(part, uncovered).await.is_err() || self.shared.epoch() != epoch {
                return false;
            }
            pause(sent).await;
        }
        self.reach(epoch, Phase::Hunts);
        let hunts = replay.to_offer(uncovered, |kind| kind == Kind::Hunt);
        for (number, item) in hunts {
            lock(&replay.ring).offers(&[(number, item.clone())]);
            if let Item::Hunt(hunt) = &*item {
                let offer = self.offer_hunt(hunt).await;
                if !self.note_offer(epoch, (number, Kind::Hunt), offer, uncovered) {
                    return false;
                }
            }
        }
        self.reach(epoch, Phase::Rest);
        let erasures = replay.to_offer(uncovered, |kind| kind == Kind::Erasure);
        for (number, item) in erasures {
            lock(&replay.ring).offers(&[(number, item.clone())]);
            if let Item::Erasure { name, player, at } = &*item {
                let offer = self.offer_erasure(name, *player, *at).await;
                if !self.note_offer(epoch, (number, Kind::Erasure), offer, uncovered) {
                    return false;
                }
            }
        }
        let rest = replay.to_offer(uncovered, |kind| kind > Kind::Erasure);
        for part in rest.chunks(OFFERED_AT_ONCE) {
            lock(&replay.ring).offers(part);
            let sent = Instant::now();
            let offered = self.offer_finds(part, epoch, uncovered).await;
            if offered.is_err() || self.shared.epoch() != epoch {
                return false;
            }
            pause(sent).await;
        }
        let adjustments = rest
            .iter()
            .filter(|(_, item)| item.kind() == Kind::Adjustment);
        for (number, item) in adjustments {
            if let Item::Adjustment {
                hunt,
                player,
                adjustment,
                ..
            } = &**item
            {
                let offer = self.offer_adjustment(hunt, *player, adjustment).await;
                let of = (*number, Kind::Adjustment);
                if !self.note_offer(epoch, of, offer, uncovered) {
                    return false;
                }
            }
        }
        true
    }

    fn reach(&self, epoch: u64, phase: Phase) {
        if self.shared.epoch() == epoch {
            self.shared.replay.phase.send_if_modified(|is| {
                let later = *is < phase;
                if later {
                    *is = phase;
                }
                later
            });
        }
    }

    /// Notes what became of an offer. Says whether to go on.
    pub(super) fn take(
        &self,
        epoch: u64,
        (number, kind): (u64, Kind),
        offered: Result<Offered, StoreError>,
    ) -> bool {
        let replay = &self.shared.replay;
        if self.shared.epoch() != epoch {
            return false;
        }
        match offered {
            Ok(Offered::Back(at)) => {
                lock(&replay.ring).settle(number, epoch, at, true);
                replay.returned(kind);
            }
            Ok(Offered::Kept(at)) => lock(&replay.ring).settle(number, epoch, at, false),
            Ok(Offered::Later) => {}
            Ok(Offered::Not(why)) => {
                lock(&replay.ring).remove(number);
                replay.lost(why, 1);
            }
            // It is done, and says so once enough servers have it.
            Err(StoreError::NotDurable(_)) => {}
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => return false,
            Err(error) => {
                tracing::warn!(%error, kind = kind.as_str(), "an offer after a failover failed; it is repeated");
            }
        }
        true
    }
}

impl Replay {
    /// What is to be offered: all that is not settled, but for what was executed and only waits for a fence.
    fn to_offer(&self, uncovered: &Uncovered, kinds: impl Fn(Kind) -> bool) -> Vec<Numbered> {
        let mut open = lock(&self.ring).open(kinds);
        open.retain(|(number, _)| !uncovered.has(*number));
        open
    }

    fn judge(&self, epoch: u64, partition_of: impl Fn(PlayerId) -> u16) {
        let cuts = lock(&self.cuts).clone();
        let cut_of = |player| {
            let at = usize::from(partition_of(player));
            cuts.get(at).copied().unwrap_or_default()
        };
        lock(&self.ring).judge(epoch, cut_of);
    }
}
