//! What all requests share.

use super::beside;
use super::callers::OPENINGS_MAX;
use super::catalogue::LiveHunt;
use super::known_players::{KNOWN_PLAYERS_MAX, KnownPlayers};
use super::load::LoopLoad;
use super::players::WAITED_FINDS_MAX;
use super::problem::Problem;
use super::waits::StoreWait;
use crate::auth::{Keys, TokenCache, TokenError};
use crate::config::Settings;
use crate::game::Millis;
use crate::game::hunt::{Hunt, HuntState};
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::metrics::redis::RedisFigures;
use crate::metrics::{Metrics, Route, StoreCommand};
use crate::mirror::{Key, Mirror};
use crate::ops::LatestFinds;
use crate::sla::{SLOW_REQUESTS, Sla};
use crate::store::{FeedEvent, Store, StoreError};
use crate::telemetry::Telemetry;
use http::{HeaderMap, HeaderValue, header};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The most exports at a time. Each takes a thread of those that also read wallets, and one of the store's long reads,
/// of which `verify` must find one free.
pub const EXPORTS_MAX: usize = 3;
/// The most events of the store that are taken in one turn of the event loop: some 100 µs.
const EVENTS_PER_TURN: usize = 256;
/// Over how long held polls are woken, in random order, when every wallet must be read again: at once, they would all ask
/// a store that has just come back.
const WAKE_SPREAD: Duration = Duration::from_secs(1);
/// In how many steps.
const WAKE_STEPS: u32 = 20;

/// The player of a verified token.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The number.
    pub player: PlayerId,
    /// Where in the mirror the wallet of the player's last poll was.
    pub place: u32,
    /// How often tokens had been doubted when the store gave the number.
    pub as_of: u64,
}

/// What the poll needs at each request, behind one lock that is never held over an await: the loop is one thread, so
/// nobody ever waits for it.
pub struct Hot {
    /// Verified tokens; the slot is the player once the store has given the number.
    pub tokens: TokenCache<Option<Seen>>,
    /// Wallets in memory.
    pub mirror: Mirror,
    /// Players of whom back ends record finds.
    pub known_players: KnownPlayers,
    /// Hunts by id.
    pub hunts: HashMap<HuntId, Arc<LiveHunt>>,
    /// How often all tokens were forgotten or doubted. What was asked about a player before must not be noted after.
    forgotten: u64,
    random: SmallRng,
    poll_interval_ms: u64,
    poll_jitter: f64,
}

impl Hot {
    /// Forgets every verified token, because one of them may open nothing any more, and what else leads to a player.
    pub fn forget_tokens(&mut self) {
        self.tokens.clear();
        self.known_players.clear();
        self.forgotten += 1;
    }

    /// Has every token's player asked for again, though while the store cannot be asked the number is still taken.
    fn doubt_tokens(&mut self) {
        self.forgotten += 1;
    }

    /// How often tokens were forgotten or doubted so far.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// When a client should poll next: jittered, and longer when the loop is behind.
    pub fn next_poll_ms(&mut self, load: &LoopLoad) -> u64 {
        let spread = 1.0 + self.poll_jitter * (self.random.random::<f64>() * 2.0 - 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let ms = (self.poll_interval_ms as f64 * spread * load.factor()) as u64;
        ms.max(1)
    }
}

/// A feed that has been silent for longer, in milliseconds, makes polls ask the store.
pub const FEED_SILENT_MS_MAX: u64 = 250;

/// The application.
pub struct App {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What is measured.
    pub metrics: Metrics,
    /// Whether the promise holds, and what made requests slow.
    pub sla: Arc<Sla>,
    /// How far the event loop is behind.
    pub load: LoopLoad,
    /// Sent as `x-instance-id`.
    pub instance_id: HeaderValue,
    /// A turn for each export that is being written.
    pub exports: Arc<Semaphore>,
    /// A turn for each player who is looked up while a poll that was waiting for it has been answered.
    pub openings: Arc<Semaphore>,
    /// A turn for each find that has waited for the store.
    pub waited_finds: Semaphore,
    /// What is told of single requests.
    pub telemetry: Telemetry,
    /// The latest finds, for the page of operators.
    pub latest_finds: LatestFinds,
    settings: RwLock<Arc<Settings>>,
    keys: RwLock<Arc<Keys>>,
    hot: Mutex<Hot>,
    draining: AtomicBool,
    /// The epoch that the wallets in memory are of, and cursors with them. It follows the store's when they are read anew.
    epoch: AtomicU64,
}

impl App {
    /// The application on a store.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        keys: Keys,
        instance_id: HeaderValue,
    ) -> Arc<Self> {
        let hot = Hot {
            tokens: TokenCache::new(settings.auth.token_cache_max),
            mirror: Mirror::new(settings.limits.wallets_max, settings.poll.held_max),
            known_players: KnownPlayers::new(KNOWN_PLAYERS_MAX),
            hunts: HashMap::new(),
            forgotten: 0,
            random: SmallRng::seed_from_u64(rand::random()),
            poll_interval_ms: settings.poll.interval_ms,
            poll_jitter: settings.poll.jitter,
        };
        let epoch = AtomicU64::new(store.epoch());
        let name = instance_id.to_str().unwrap_or_default();
        let mut metrics = Metrics::new(name, settings.sla.buckets(), Some(beside::depth));
        let own_dir = settings.store.dir().map(ToOwned::to_owned);
        let watched = metrics.watch(&settings.sla.objectives);
        let sla = Sla::new(&settings.sla, "serve", name, own_dir, watched);
        metrics.add(SLOW_REQUESTS.0, SLOW_REQUESTS.1, sla.slow.metric());
        let routes: Vec<&str> = Route::ALL.iter().map(|route| route.as_str()).collect();
        let telemetry = Telemetry::new(&settings, "serve", name, &routes);
        for ((series, help), counter) in telemetry.counters() {
            metrics.add(series, help, counter);
        }
        metrics.add_collector(Box::new(RedisFigures(store.clone())));
        Arc::new(Self {
            store,
            metrics,
            sla,
            load: LoopLoad::default(),
            instance_id,
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            openings: Arc::new(Semaphore::new(OPENINGS_MAX)),
            waited_finds: Semaphore::new(WAITED_FINDS_MAX),
            telemetry,
            latest_finds: LatestFinds::default(),
            settings: RwLock::new(Arc::new(settings)),
            keys: RwLock::new(Arc::new(keys)),
            hot: Mutex::new(hot),
            draining: AtomicBool::new(false),
            epoch,
        })
    }

    /// The state behind the poll. Not to be held over an await (the compiler sees to that).
    pub fn hot(&self) -> MutexGuard<'_, Hot> {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings now.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn keys(&self) -> Arc<Keys> {
        self.keys
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes settings and keys that were read again. What was built from the old ones at start stays.
    pub fn reload(&self, settings: Settings, keys: Keys) {
        let mut hot = self.hot();
        hot.poll_interval_ms = settings.poll.interval_ms;
        hot.poll_jitter = settings.poll.jitter;
        // A token that a removed key signed must not stay verified.
        hot.forget_tokens();
        drop(hot);
        *self
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Whether the process is on its way out.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Begins draining: held polls are answered, readiness ends.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.hot().mirror.wake_all();
    }

    /// Whether what is in memory of a player may be behind the store, because the feed that tells of the player is silent.
    #[inline]
    pub fn is_behind(&self, player: PlayerId) -> bool {
        let is_long = |silent_ms: Option<u64>| silent_ms.is_some_and(|ms| ms > FEED_SILENT_MS_MAX);
        // All are heard, but for rare moments: then nothing is asked about the player.
        is_long(self.store.feed_silent_ms()) && is_long(self.store.feed_silent_ms_for(player))
    }

    /// Whether answers to a player may be out of date: only while the player's part of the store is out of reach, or the store
    /// has just failed over and may get back what it lost.
    #[inline]
    pub fn is_stale(&self, player: PlayerId) -> bool {
        self.is_recovering() || self.store.is_down() && self.store.is_down_for(player)
    }

    /// Whether the store has failed over and the wallets in memory are still those from before.
    pub fn is_recovering(&self) -> bool {
        self.epoch() != self.store.epoch() || self.store.is_recovering()
    }

    /// The epoch that the wallets in memory are of.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The store's feed is followed from now on, and will tell of every epoch after this one.
    pub fn follows(&self) {
        self.epoch.store(self.store.epoch(), Ordering::Release);
    }

    /// Takes what the store tells. A batch may tell of thousands of wallets, so polls come in between.
    pub async fn follow(self: &Arc<Self>, mut events: Vec<FeedEvent>) {
        while events.len() > EVENTS_PER_TURN {
            let rest = events.split_off(EVENTS_PER_TURN);
            self.take_events(events);
            events = rest;
            tokio::task::yield_now().await;
        }
        self.take_events(events);
    }

    fn take_events(self: &Arc<Self>, events: Vec<FeedEvent>) {
        let mut hot = self.hot();
        for event in events {
            match event {
                FeedEvent::Wallet {
                    hunt,
                    player,
                    wallet,
                } => hot.mirror.apply(Key { hunt, player }, wallet),
                FeedEvent::Hunt(hunt) => put_hunt(&mut hot, hunt),
                FeedEvent::Reload { hunt, player } => hot.mirror.reload(Key { hunt, player }),
                FeedEvent::Reset { epoch } => {
                    // Numbers of players and hunts may be others now, too.
                    hot.doubt_tokens();
                    self.metrics.store_failed_over();
                    self.epoch.store(epoch, Ordering::Release);
                    let mut held = hot.mirror.reset();
                    held.shuffle(&mut hot.random);
                    tokio::spawn(self.clone().wake_gradually(held));
                }
                FeedEvent::Erased { player } => {
                    // The cache holds numbers of players; the next request of each asks the store again.
                    hot.forget_tokens();
                    let numbers: Vec<u32> =
                        hot.hunts.values().map(|live| live.hunt.number).collect();
                    hot.mirror.erase(player, numbers.into_iter());
                }
            }
        }
    }

    /// Wakes held polls a few at a time.
    async fn wake_gradually(self: Arc<Self>, held: Vec<Key>) {
        let step = held.len().div_ceil(WAKE_STEPS as usize).max(1);
        for keys in held.chunks(step) {
            {
                let mut hot = self.hot();
                keys.iter().for_each(|key| hot.mirror.wake(*key));
            }
            tokio::time::sleep(WAKE_SPREAD / WAKE_STEPS).await;
        }
    }

    /// Takes a hunt that changed.
    pub fn take_hunt(&self, hunt: Arc<Hunt>) {
        put_hunt(&mut self.hot(), hunt);
    }

    /// The hunt with this id, whatever its state.
    ///
    /// # Errors
    /// 404.
    pub fn hunt(&self, id: &str) -> Result<Arc<LiveHunt>, Problem> {
        self.hot()
            .hunts
            .get(id)
            .cloned()
            .ok_or_else(Problem::no_such_hunt)
    }

    /// The hunt with this id, unless it is archived.
    ///
    /// # Errors
    /// 404, or 410 for an archived one.
    pub fn playable_hunt(&self, id: &str) -> Result<Arc<LiveHunt>, Problem> {
        let live = self.hunt(id)?;
        if live.hunt.operator == Some(HuntState::Archived) {
            Err(Problem::hunt_archived())
        } else {
            Ok(live)
        }
    }

    /// Waits for a store operation, and notes how long.
    ///
    /// # Errors
    /// The operation's.
    pub async fn ask<T>(
        &self,
        command: StoreCommand,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let _wait = StoreWait::begin(command.as_str());
        let began = Instant::now();
        let result = operation.await;
        self.metrics.store_command(command, began.elapsed());
        result
    }

    /// The name of the admin key that the request carries.
    ///
    /// # Errors
    /// 401 without a key, 403 for a bearer that is none.
    pub fn admin(&self, headers: &HeaderMap) -> Result<Arc<str>, Problem> {
        let bearer = bearer(headers)?;
        let named = self.keys().admin(bearer);
        named.ok_or_else(|| {
            Problem::new(
                403,
                "admin_key_needed",
                "this needs an admin key as the bearer token",
            )
        })
    }

    /// Signs a token.
    pub fn sign(&self, player: &PlayerName, ttl_s: u64) -> (String, Millis) {
        let now = self.store.now();
        (
            self.keys().sign(player, now, ttl_s),
            (now / 1_000 + ttl_s) * 1_000,
        )
    }
}

fn put_hunt(hot: &mut Hot, hunt: Arc<Hunt>) {
    let id = hunt.spec.id.clone();
    // The feed and an operation's answer both tell of it, in either order.
    if hot
        .hunts
        .get(&id)
        .is_none_or(|live| live.hunt.generation < hunt.generation)
    {
        hot.hunts.insert(id, Arc::new(LiveHunt::new(hunt)));
    }
}

/// A look-up moves no coins: whether it was done or not, it can be done again.
pub(super) fn looked_up(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(why) => StoreError::Unavailable(why),
        error => error,
    }
}

/// The bearer token of a request.
///
/// # Errors
/// 401 without one.
pub fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let missing = || {
        Problem::unauthorized(
            "token_missing",
            "this needs an Authorization header with a bearer token",
        )
    };
    let value = headers.get(header::AUTHORIZATION).ok_or_else(missing)?;
    strip_bearer(value.as_bytes()).ok_or_else(missing)
}

/// The token behind `Bearer `, whose case does not matter.
#[inline]
pub fn strip_bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = value.split_at_checked(7)?;
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return None;
    }
    std::str::from_utf8(token.trim_ascii())
        .ok()
        .filter(|token| !token.is_empty())
}

pub(super) fn token_problem(error: TokenError) -> Problem {
    Problem::unauthorized(error.code(), error.to_string())
}
