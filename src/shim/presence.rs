//! Who is online: the players whose heartbeats came lately. The event loop marks them; a thread counts and forgets them.

use super::balance::PlayerKey;
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the thread counts.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// When each player was last heard of. Players are known by their key: two that share one of its 2^64 values count once.
pub(super) struct Presence {
    /// In ticks of [`COUNT_EVERY`] since the start.
    seen: DashMap<u64, u32, ahash::RandomState>,
    /// How many there are in `seen`; its own count would lock all its shards.
    known: AtomicUsize,
    online: AtomicUsize,
    tick: AtomicU32,
    players_max: usize,
    ticks_online: u32,
    started: Instant,
}

impl Presence {
    /// Remembers `players_max` players, each for `online` after a heartbeat, and starts the thread that counts them. It
    /// ends when nobody else holds this.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(players_max: usize, online: Duration) -> std::io::Result<Arc<Self>> {
        let presence = Arc::new(Self::new(players_max, online));
        let counted = Arc::downgrade(&presence);
        std::thread::Builder::new()
            .name("presence".into())
            .spawn(move || {
                while let Some(presence) = counted.upgrade() {
                    presence.count();
                    drop(presence);
                    std::thread::sleep(COUNT_EVERY);
                }
            })?;
        Ok(presence)
    }

    fn new(players_max: usize, online: Duration) -> Self {
        let ticks = online.as_millis().div_ceil(COUNT_EVERY.as_millis());
        Self {
            seen: DashMap::default(),
            known: AtomicUsize::new(0),
            online: AtomicUsize::new(0),
            tick: AtomicU32::new(0),
            players_max,
            ticks_online: u32::try_from(ticks).unwrap_or(u32::MAX),
            started: Instant::now(),
        }
    }

    /// The current tick: marking a player twice in one changes nothing.
    pub(super) fn tick(&self) -> u32 {
        self.tick.load(Relaxed)
    }

    /// A heartbeat came. Past the bound, players that are not known yet are not remembered.
    pub(super) fn mark(&self, player: PlayerKey) {
        let tick = self.tick();
        if let Some(mut seen) = self.seen.get_mut(&player.bits()) {
            *seen = tick;
            return;
        }
        if self.known.load(Relaxed) < self.players_max
            && self.seen.insert(player.bits(), tick).is_none()
        {
            self.known.fetch_add(1, Relaxed);
        }
    }

    /// Players online when last counted.
    pub(super) fn online(&self) -> usize {
        self.online.load(Relaxed)
    }

    fn count(&self) {
        let ticks = self.started.elapsed().as_millis() / COUNT_EVERY.as_millis();
        let tick = u32::try_from(ticks).unwrap_or(u32::MAX);
        self.tick.store(tick, Relaxed);
        let mut online = 0;
        self.seen.retain(|_, seen| {
            let stays = tick.saturating_sub(*seen) <= self.ticks_online;
            online += usize::from(stays);
            if !stays {
                self.known.fetch_sub(1, Relaxed);
            }
            stays
        });
        self.online.store(online, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::balance::player_key;
    use super::*;

    #[test]
    fn the_bound_holds_and_a_player_counts_once() {
        let presence = Presence::new(3, Duration::from_secs(60));
        for player in ["a", "b", "a", "c", "d", "a"] {
            presence.mark(player_key(player.as_bytes()));
        }
        presence.count();
        assert_eq!((presence.online(), presence.seen.len()), (3, 3));
    }
}
