//! What every part of the store has in hand: keys, scripts, the clock, what is known of the store, and its connection.

use super::cache::HuntCache;
use super::fenced::FencedCounts;
use super::options::{Options, Time};
use super::recent::Recent;
use super::replay::Replay;
use super::replay::journal::{Journal, Line};
use super::scripts::Scripts;
use crate::game::Millis;
use crate::game::coins::COINS_MAX;
use crate::game::ids::PlayerId;
use crate::store::clock::{STEP_MS, SystemTimeSource, TimeSource};
use crate::store::clock::{Steered, StoreClock};
use crate::store::{Health, ServerFigures, StoreError};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trove_streams::keys::Keys;
use trove_streams::{EntryId, Error, ErrorCode, Outcome, Partition, Router, ServerError, State};

/// How far behind the server's time a script may find itself to have been sent, in milliseconds: beyond it the clock has
/// stepped, or the call waited so long that whoever sent it has given it up. Nothing is done then.
const LATE_MS_MAX: u64 = 2_000;
/// A time without any answer from the server that is an outage on record (rule 3), in milliseconds.
pub(super) const CUT_OFF_MS: u64 = 1_000;

/// The server's clock, as this process reckons it between two looks.
pub(super) struct ServerTime {
    own: SystemTimeSource,
    /// What to add to this process's monotonic clock.
    offset: AtomicI64,
}

impl ServerTime {
    fn signed(ms: u64) -> i64 {
        i64::try_from(ms).unwrap_or(i64::MAX)
    }

    /// Takes what the server's clock said at some moment between two of this process's monotonic clock, all in milliseconds.
    ///
    /// Moves only as far as that proves: an answer that took long says little, and half of how long it took, during a failover
    /// hundreds of milliseconds, would put this clock ahead of the server's.
    pub(super) fn measured(&self, server_ms: Millis, (before_ms, after_ms): (Millis, Millis)) {
        let server = Self::signed(server_ms);
        // It is cut to the millisecond.
        let (least, most) = (
            server - Self::signed(after_ms),
            server + 1 - Self::signed(before_ms),
        );
        let offset = self.offset.load(Ordering::Relaxed);
        self.offset
            .store(offset.max(least).min(most.max(least)), Ordering::Relaxed);
    }
}

impl TimeSource for ServerTime {
    fn wall_ms(&self) -> Millis {
        let now = Self::signed(self.own.monotonic_ms()) + self.offset.load(Ordering::Relaxed);
        u64::try_from(now).unwrap_or(0)
    }

    fn monotonic_ms(&self) -> Millis {
        self.own.monotonic_ms()
    }
}

/// What this instance knows of the store since it connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) identity: String,
    pub(super) secret: Vec<u8>,
    pub(super) created_ms: Millis,
    pub(super) schema: u32,
    pub(super) version: String,
}

/// See the module.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) keys: Keys,
    pub(super) scripts: Scripts,
    pub(super) hunts: HuntCache,
    pub(super) clock: StoreClock,
    /// Where the clock's time comes from.
    source: Arc<dyn TimeSource>,
    /// The server's clock, unless a test's stands in for it.
    pub(super) server_time: Option<Arc<ServerTime>>,
    epoch: AtomicU64,
    /// The epoch that those who follow the feed of a cluster know; 0 before anybody does.
    pub(super) told_epoch: AtomicU64,
    known: Mutex<Option<Known>>,
    /// The last entry of each partition's feed that this instance knows to be there.
    positions: Mutex<Vec<EntryId>>,
    /// When the server last answered, by `started`.
    heard_ms: AtomicU64,
    started: Instant,
    /// Feeds hold as many bytes as they may.
    pub(super) feed_full: AtomicBool,
    pub(super) feed_bytes: AtomicU64,
    pub(super) figures: Mutex<Arc<ServerFigures>>,
    /// The server's memory is full, or its disk.
    server_full: AtomicBool,
    /// Commands that were held back.
    pub(super) fenced: FencedCounts,
    /// Why the store on the server is not used, though the server answers.
    disowned: Mutex<Option<String>>,
    /// Whether there is such a reason.
    is_disowned: AtomicBool,
    /// When the feed's tail last heard from the server, by `started`; 0 before it began. Of a cluster, from the primary that
    /// has been silent for longest.
    pub(super) tail_heard_ms: AtomicU64,
    /// The same of each partition's feed.
    pub(super) feeds_heard_ms: Box<[AtomicU64]>,
    /// What this instance executed lately.
    pub(super) replay: Replay,
    /// The ends of the feeds, after a failover.
    pub(super) recent: Recent,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is replaced whole, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        options: Options,
        keys: Keys,
        scripts: Scripts,
        journal: Option<(Journal, Vec<Line>)>,
    ) -> Self {
        let server_time = match &options.time {
            Time::Server => {
                let own = SystemTimeSource::default();
                let offset = AtomicI64::new(
                    ServerTime::signed(own.wall_ms()) - ServerTime::signed(own.monotonic_ms()),
                );
                Some(Arc::new(ServerTime { own, offset }))
            }
            Time::Manual { .. } | Time::ManualBeside { .. } => None,
        };
        let source: Arc<dyn TimeSource> = match (&server_time, &options.time) {
            (Some(server), _) => server.clone(),
            (None, Time::Manual { time, .. } | Time::ManualBeside { time, .. }) => time.clone(),
            (None, Time::Server) => Arc::new(SystemTimeSource::default()),
        };
        let partitions = usize::from(options.partitions);
        let replay = Replay::new(
            (options.replay_bytes_max, options.replay_age_max),
            options.recovery,
            partitions,
            journal,
        );
        Self {
            options,
            keys,
            scripts,
            hunts: HuntCache::default(),
            clock: StoreClock::new(source.clone(), 0),
            source,
            server_time,
            epoch: AtomicU64::new(0),
            told_epoch: AtomicU64::new(0),
            known: Mutex::default(),
            positions: Mutex::new(vec![EntryId::ZERO; partitions]),
            heard_ms: AtomicU64::new(0),
            started: Instant::now(),
            feed_full: AtomicBool::new(false),
            feed_bytes: AtomicU64::new(0),
            figures: Mutex::default(),
            server_full: AtomicBool::new(false),
            fenced: FencedCounts::default(),
            disowned: Mutex::default(),
            is_disowned: AtomicBool::new(false),
            tail_heard_ms: AtomicU64::new(0),
            feeds_heard_ms: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            replay,
            recent: Recent::default(),
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Takes the store's epoch. A later one says that history may have been cut: what was derived from it goes.
    pub(super) fn set_epoch(&self, epoch: u64) {
        let before = self.epoch.fetch_max(epoch, Ordering::AcqRel);
        if before != 0 && before < epoch {
            tracing::warn!(
                before,
                epoch,
                "a new epoch of the store begins; wallets are read again"
            );
            self.hunts.clear();
            self.replay.hold_writes();
        }
    }

    /// Takes the epoch of a store that was accepted in another one's place, which may be lower.
    pub(super) fn replace_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
        self.hunts.clear();
        self.replay.hold_writes();
    }

    pub(super) fn known(&self) -> Option<Known> {
        lock(&self.known).clone()
    }

    pub(super) fn set_known(&self, known: Known) {
        *lock(&self.known) = Some(known);
    }

    /// Says why the store on the server is not used, or that it is.
    pub(super) fn set_disowned(&self, why: Option<String>) {
        let mut disowned = lock(&self.disowned);
        if *disowned != why {
            match &why {
                Some(why) => tracing::error!(
                    why,
                    "the store is not used: answers are stale until somebody acts"
                ),
                None => tracing::info!("the store is used again"),
            }
            self.is_disowned.store(why.is_some(), Ordering::Relaxed);
            *disowned = why;
        }
    }

    pub(super) fn disowned(&self) -> Option<String> {
        lock(&self.disowned).clone()
    }

    /// Whether the store on the server is not used, at the cost of a look.
    pub(super) fn is_disowned(&self) -> bool {
        self.is_disowned.load(Ordering::Relaxed)
    }

    pub(super) fn position(&self, partition: Partition) -> EntryId {
        lock(&self.positions)[usize::from(partition.index())]
    }

    pub(super) fn set_position(&self, partition: Partition, id: EntryId) {
        lock(&self.positions)[usize::from(partition.index())] = id;
    }

    /// The latest time at which a call that is sent now may find itself run.
    pub(super) fn latest_possible(&self) -> Millis {
        self.clock.now() + LATE_MS_MAX
    }

    pub(super) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// For how long it is since then, in milliseconds; `None` before it was.
    pub(super) fn silent_ms(&self, heard_ms: &AtomicU64) -> Option<u64> {
        match heard_ms.load(Ordering::Relaxed) {
            0 => None,
            heard_ms => Some(self.elapsed_ms().saturating_sub(heard_ms)),
        }
    }

    /// The server answered.
    pub(super) fn heard(&self) {
        self.heard_ms
            .store(self.elapsed_ms().max(1), Ordering::Relaxed);
    }

    /// Whether the server has answered at all.
    pub(super) fn has_heard(&self) -> bool {
        self.heard_ms.load(Ordering::Relaxed) != 0
    }

    /// For how long the server has not answered, in milliseconds.
    pub(super) fn unheard_ms(&self) -> u64 {
        self.elapsed_ms()
            .saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }

    /// The keyed digest under which an erased name is kept: enough to know it again, not enough to learn it.
    pub(super) fn name_digest(&self, name: &str) -> Result<[u8; 32], StoreError> {
        let known = self
            .known()
            .ok_or_else(|| StoreError::Unavailable("its identity is not known yet".into()))?;
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&known.secret).expect("HMAC takes a key of any length");
        mac.update(name.as_bytes());
        Ok(mac.finalize().into_bytes().into())
    }

    pub(super) fn partition_of(&self, player: PlayerId) -> Partition {
        self.keys.partitions().of_player(player.0)
    }

    pub(super) fn partitions(&self) -> Vec<Partition> {
        self.keys.partitions().iter().collect()
    }

    /// The coins that a partition may record of a hunt without any lent by others. All shares together are 2^53 − 1.
    pub(super) fn share(&self, partition: Partition) -> u64 {
        let partitions = u64::from(self.options.partitions);
        let rest = if partition.index() == 0 {
            COINS_MAX % partitions
        } else {
            0
        };
        COINS_MAX / partitions + rest
    }

    /// What a connection's error means to whoever asked.
    pub(super) fn failed(&self, error: &Error) -> StoreError {
        match error {
            Error::Server(error) => self.refused(error),
            Error::NotConnected { .. } => match self.disowned() {
                Some(why) => StoreError::Unavailable(why),
                None => failed(error),
            },
            error => failed(error),
        }
    }

    /// What a server's refusal means to whoever asked.
    pub(super) fn refused(&self, error: &ServerError) -> StoreError {
        if matches!(error.code, ErrorCode::Oom | ErrorCode::Misconf)
            && !self.server_full.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "the server takes no writes; finds are refused until it does");
        }
        failed(&error.clone().into())
    }

    /// A write went through.
    pub(super) fn wrote(&self) {
        self.server_full.store(false, Ordering::Relaxed);
    }

    pub(super) fn health(&self, state: &State) -> Health {
        if let Some(why) = self.disowned() {
            return Health::Down(why);
        }
        match state {
            State::Up(_) if self.replay.is_recovering() => Health::Recovering,
            State::Up(_) if self.server_full.load(Ordering::Relaxed) => Health::Full,
            State::Up(_) => Health::Up,
            State::Connecting => Health::Down("the first connection is under way".into()),
            State::Down { reason, .. } => Health::Down(describe(reason)),
        }
    }
}

/// An error and what is behind it.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

/// See [`Shared::failed`].
pub(super) fn failed(error: &Error) -> StoreError {
    match error {
        Error::TooManyInFlight { .. } => return StoreError::Busy,
        Error::Server(server) => match server.code {
            // The server cannot write its file: what is asked is refused before anything is done.
            ErrorCode::Oom | ErrorCode::Misconf => return StoreError::Full,
            ErrorCode::Busy => return StoreError::Busy,
            _ => {}
        },
        _ => {}
    }
    let why = describe(error);
    match error.outcome() {
        Outcome::NotExecuted => StoreError::Unavailable(why),
        Outcome::Unknown | Outcome::Executed => StoreError::Unknown(why),
        Outcome::Failed => StoreError::Damaged(why),
    }
}

/// The digest under which a client's id or an adjustment's key is remembered: 16 bytes of SHA-256.
pub(super) fn id_digest(id: &str) -> [u8; 16] {
    let digest = Sha256::digest(id.as_bytes());
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

/// Random bytes as hexadecimal digits.
pub(super) fn random_hex<const N: usize>() -> Result<String, StoreError> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes)
        .map_err(|_| StoreError::Unavailable("the system has no randomness".into()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What operations work with; cheap to clone.
#[derive(Clone)]
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) commands: Router,
    /// What has to cover what is answered, if anything.
    pub(super) fences: Option<Arc<super::durable::Fences>>,
    /// Held while the clock is met.
    pub(super) clock_gate: Arc<tokio::sync::Mutex<()>>,
}

impl Core {
    /// Follows the server's clock, and puts a step of it on record, as well as a time in which nothing was heard. The
    /// outage is on record before this instance's calls can pass it.
    pub(super) async fn meet_clock(&self) -> Result<(), StoreError> {
        let silent_ms = self.shared.unheard_ms();
        let _one_at_a_time = self.clock_gate.lock().await;
        self.measure_clock().await?;
        let (wall, now) = (self.shared.source.wall_ms(), self.shared.clock.now());
        if wall > now + STEP_MS {
            tracing::warn!(
                now,
                wall,
                "the server's clock stepped forward; what ran out meanwhile expires by an outage"
            );
            self.record_outage(now, wall).await?;
        }
        if silent_ms > CUT_OFF_MS {
            self.record_outage(wall.saturating_sub(silent_ms), wall)
                .await?;
        }
        if let Steered::Behind(ms) = self.shared.clock.steer() {
            tracing::warn!(
                ms,
                "the server's clock is behind; time stands still until it has caught up"
            );
        }
        Ok(())
    }

    /// Asks the server what time it is.
    async fn measure_clock(&self) -> Result<(), StoreError> {
        let Some(server_time) = &self.shared.server_time else {
            return Ok(());
        };
        let before = server_time.monotonic_ms();
        let mut reader =
            super::jobs::Reader::new(self.read(&trove_streams::redis::cmd("TIME")).await?)?;
        let parse = |text: String| {
            text.parse::<u64>()
                .map_err(|_| StoreError::Damaged("TIME is no number".into()))
        };
        let (seconds, micros) = (parse(reader.text()?)?, parse(reader.text()?)?);
        let after = server_time.monotonic_ms();
        server_time.measured(seconds * 1_000 + micros / 1_000, (before, after));
        Ok(())
    }

    /// Puts an outage on record in every partition.
    pub(super) async fn record_outage(&self, from: Millis, to: Millis) -> Result<(), StoreError> {
        let shared = &self.shared;
        let mut batch = trove_streams::Batch::new();
        for partition in shared.partitions() {
            let call = shared
                .scripts
                .outage
                .call(&[shared.keys.partition(partition).outages()]);
            batch = batch.call(call.arg(from).arg(to).arg(crate::game::wallet::OUTAGES_MAX));
        }
        for reply in self
            .commands
            .batch(batch)
            .await
            .map_err(|error| shared.failed(&error))?
        {
            reply.map_err(|error| shared.refused(&error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_took_long_moves_the_clock_only_as_far_as_it_proves() {
        let time = ServerTime {
            own: SystemTimeSource::default(),
            offset: AtomicI64::new(0),
        };
        let measured = |server, around| {
            time.measured(server, around);
            time.offset.load(Ordering::Relaxed)
        };
        // It took a millisecond: the server is 9,000 ahead, give or take that.
        assert_eq!(measured(10_000, (999, 1_000)), 9_000);
        // Asked at 2,000, answered at 2,480, and the server said what it does at 2,001, or at 2,479.
        assert_eq!(measured(11_001, (2_000, 2_480)), 9_000);
        assert_eq!(measured(11_479, (2_000, 2_480)), 9_000);
        // Both clocks cannot have been right: it has stepped, by 5,000 and by -3,000, or as much less as the answer took.
        assert_eq!(measured(17_000, (3_000, 3_100)), 13_900);
        assert_eq!(measured(14_000, (4_000, 4_100)), 10_001);
        // Milliseconds are whole ones.
        assert_eq!(measured(15_001, (5_000, 5_000)), 10_001);
        assert_eq!(measured(15_002, (5_000, 5_000)), 10_002);
    }
}
