//! The store on Redis or Valkey, one server or a cluster, for any number of instances.
//!
//! Everything about one player lies in one **partition**, whose keys share a hash tag; every change is one script that
//! decides by the rules of [`crate::game`], writes the wallet, its history and the partition's sums, and tells the feed.
//! The history of all wallets *is* the feed: an entry holds what happened and the wallet after it, and leads back to the
//! wallet's entry before. `streams/src/keys.rs` explains every key, `lua/` every script.
//!
//! - [`reach`]: the first link to each server. [`gate`]: what is looked at on every new link: is it the known store, does a new
//!   epoch begin, was it out of reach.
//! - [`shared`], [`jobs`]: the clock, the errors, and calls of scripts in batches. [`durable`]: what must have their work
//!   before it is answered; [`shown`]: what is known to have been had.
//! - [`finds`], [`wallets`], [`players`], [`hunts`]: the operations; [`cache`] has the hunts as last read.
//! - [`entry`], [`feeds`], [`tail`]: entries of the feed, following it, and the feed for those who watch; [`state`]: a
//!   partition's counters and sums.
//! - [`turns`]: how many wallets are read at a time, so that one primary that is away holds up nobody else's.
//! - [`replay`]: what a failover took is brought back. [`recent`]: the ends of the feeds, for those who ask anew after one.
//! - [`house`]: expiry, forgetting, measuring. [`figures`]: what the server says of itself. [`audit`]: exports and audits.
//!
//! A partition may record its share of a hunt's 2^53 − 1 coins, as nothing outside it can be looked at in one step; one
//! that needs more has others lend it theirs. What a borrower that broke off leaves is missing, never doubled.

mod audit;
mod cache;
mod durable;
mod entry;
mod feeds;
mod fenced;
mod figures;
mod finds;
mod gate;
mod house;
mod hunts;
mod jobs;
mod options;
mod players;
mod reach;
mod recent;
mod replay;
mod scripts;
mod shared;
mod shown;
mod state;
mod tail;
mod turns;
mod wallets;

pub use fenced::Fenced;
pub use options::{ConnectError, Durability, Info, Options, PENDING_FINDS_MAX, Time};
pub use recent::{RECENT_ENTRIES_MAX, RECENT_KEPT, RECENT_SPAN_MIN};
pub use replay::{Dropped, Kind as ReplayKind, ReplayCounts};
pub use turns::RELOADS_AT_ONCE_MAX;

use super::{
    Adjusted, Credited, Erased, Erasure, ExportRow, FeedEvent, Health, HuntAudit, Opening, Put,
    Recorded, Reinstated, Reply, ServerFigures, Store, StoreError,
};
use crate::game::Millis;
use crate::game::entry::{Adjustment, Entry, Totals};
use crate::game::hunt::{Hunt, HuntError, HuntSpec, LifeStep};
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::game::rules::NewFind;
use crate::game::wallet::Wallet;
use durable::Fences;
use gate::{Gate, Line as Link, identity_fields};
use reach::{route, wait_up, warn_of_clients};
use replay::journal::{Journal, Line};
use scripts::Scripts;
use shared::{Core, Shared, describe, lock};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use trove_streams::keys::Keys;
use trove_streams::{Config, Partitions, Router, State};
use turns::Turns;

/// Batches of events on their way to the mirror; reading the feed pauses when there are more.
pub const FEED_BATCHES_MAX: usize = 256;
/// The most exports and audits at a time.
pub const LONG_READS_MAX: usize = 4;
/// Links that one instance holds to a server: for commands and for reads of the feed. One more is for fences, if there are any.
pub const CONNECTIONS: u32 = 2;
/// Batches of rows on their way out of an export.
const EXPORT_BATCHES_MAX: usize = 4;

/// The store on Redis.
pub struct RedisStore {
    core: Core,
    reads: Router,
    url: String,
    feed_taken: Mutex<bool>,
    long_reads: Arc<Semaphore>,
    reloads: Turns,
    runtime: Handle,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        lock(&self.tasks).iter().for_each(JoinHandle::abort);
    }
}

/// An operation that is under way. When nobody waits for it any more, it goes on by itself.
struct Going<T: Send + 'static> {
    operation: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Future for Going<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(operation) = &mut self.operation else {
            return Poll::Pending;
        };
        let polled = operation.as_mut().poll(context);
        if polled.is_ready() {
            self.operation = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Going<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.runtime.spawn(operation);
        }
    }
}

impl RedisStore {
    /// Connects to the store that `url` names, and makes one on an empty server. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Says what keeps the server from being used.
    pub async fn connect(url: &str, options: Options) -> Result<Self, ConnectError> {
        let (wait, instances) = (options.connect_wait, options.instances_expected);
        let journal = replay::journal::opened(&options).await?;
        let store = Self::assemble(url, options, journal)?;
        let core = &store.core;
        lock(&store.tasks).push(tokio::spawn(replay::run(core.clone())));
        wait_up(&core.commands, wait).await?;
        let connections = CONNECTIONS + u32::from(core.fences.is_some());
        warn_of_clients(&core.commands, connections, instances);
        if let Some(fences) = &core.fences {
            wait_up(fences.router(), wait).await?;
        }
        let failed = |error: StoreError| ConnectError::Unreachable(error.to_string());
        core.all_hunts().await.map_err(failed)?;
        if core.commands.is_cluster() {
            let whole = core.shared.whole_cluster(&core.commands).await;
            whole.map_err(|error| ConnectError::Unreachable(error.to_string()))?;
        }
        // What an instance that starts amid a recovery would read may still change; so may what its journal brings back.
        core.shared.replay.over(wait).await;
        let house = house::House::new(core.clone()).map_err(failed)?;
        lock(&store.tasks).push(tokio::spawn(house.run()));
        lock(&store.tasks).push(tokio::spawn(core.clone().cover_feeds()));
        lock(&store.tasks).push(tokio::spawn(figures::watch(core.clone())));
        Ok(store)
    }

    /// The store with its links on their way; nothing is asked of it yet.
    fn assemble(
        url: &str,
        options: Options,
        journal: Option<(Journal, Vec<Line>)>,
    ) -> Result<Self, ConnectError> {
        if options.limits.pending_finds_max > PENDING_FINDS_MAX {
            let what =
                format!("pending_finds_max may be {PENDING_FINDS_MAX} at most with this store");
            return Err(ConnectError::Options(what));
        }
        let invalid = |error: &dyn std::error::Error| ConnectError::Options(describe(error));
        let store_url = options::parse(url)?;
        let partitions = Partitions::new(options.partitions).map_err(|error| invalid(&error))?;
        let keys =
            Keys::new(options.prefix.clone(), partitions).map_err(|error| invalid(&error))?;
        let scripts = Scripts::new(&options.time).map_err(|error| invalid(&error))?;
        let config = Config {
            response_timeout: options.response_timeout,
            connect_timeout: Duration::from_secs(3),
            client_name: Some("trove".into()),
            preload: scripts.preload(),
            ..Config::commands()
        };
        let reads_config = Config {
            response_timeout: options.response_timeout,
            client_name: Some("trove-feed".into()),
            ..Config::blocking(options.feed_block)
        };
        let fences = Fences::start(
            &store_url,
            options.durability,
            options.durability_wait,
            options.response_timeout,
            &keys.identity(),
        )?;
        let shared = Arc::new(Shared::new(options, keys, scripts, journal));
        let gate = |commands| {
            let shared = shared.clone();
            Arc::new(Gate { shared, commands })
        };
        let commands = route(&shared, &store_url, config, Some(gate(true)))?;
        let reads = route(&shared, &store_url, reads_config, Some(gate(false)))?;
        let core = Core {
            shared,
            commands,
            fences: fences.map(Arc::new),
            clock_gate: Arc::default(),
        };
        let partitions = core.shared.options.partitions;
        Ok(Self {
            reloads: Turns::new(partitions, core.commands.is_cluster()),
            core,
            reads,
            url: url.to_owned(),
            feed_taken: Mutex::new(false),
            long_reads: Arc::new(Semaphore::new(LONG_READS_MAX)),
            runtime: Handle::current(),
            tasks: Mutex::default(),
        })
    }

    /// What `trove store info` shows of a server that may hold no store, or another one than was known. Makes none.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn info_at(url: &str, options: Options) -> Result<Info, ConnectError> {
        let options = Options {
            create: false,
            ..options
        };
        Self::assemble(url, options, None)?.info().await
    }

    /// What `trove store accept` does, see [`RedisStore::accept`]; gives what the store is afterwards.
    ///
    /// # Errors
    /// As [`RedisStore::accept`].
    pub async fn accept_at(url: &str, options: Options) -> Result<Info, ConnectError> {
        let options = Options {
            create: false,
            ..options
        };
        let store = Self::assemble(url, options, None)?;
        store.accept().await?;
        store.info().await
    }

    /// What `trove store info` shows.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn info(&self) -> Result<Info, ConnectError> {
        let (connection, state) = self.beside().await?;
        let shared = &self.core.shared;
        let fields = identity_fields(shared, &Link::Open(&connection)).await;
        let fields = fields.map_err(|error| ConnectError::Unreachable(error.to_string()))?;
        let number = |name: &str| {
            fields
                .get(name)
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap_or_default()
        };
        let identity = fields.get("identity").cloned();
        Ok(Info {
            known: identity.is_some() && shared.known().map(|known| known.identity) == identity,
            identity,
            schema: u32::try_from(number("schema")).unwrap_or_default(),
            partitions: u16::try_from(number("partitions")).unwrap_or_default(),
            epoch: number("epoch"),
            created_ms: number("created_ms"),
            version: state
                .up()
                .map(|up| up.server.version.to_string())
                .unwrap_or_default(),
            feed_bytes: shared.feed_bytes.load(Ordering::Relaxed),
        })
    }

    /// Takes what the server holds, whatever it is, as the store from now on; an empty server becomes a new store. A new
    /// epoch begins. Other instances that lost their store follow within a second.
    ///
    /// # Errors
    /// When the server cannot be reached, or holds what this version cannot use.
    pub async fn accept(&self) -> Result<(), ConnectError> {
        let (connection, state) = self.beside().await?;
        let Some(up) = state.up() else {
            return Err(ConnectError::Unreachable("the link was lost".into()));
        };
        let (replid, version) = (&up.server.history.replid, up.server.version.to_string());
        let accepted = self
            .core
            .shared
            .accept_on(&Link::Open(&connection), replid, &version)
            .await;
        accepted.map_err(|error| match error.downcast::<ConnectError>() {
            Ok(error) => *error,
            Err(error) => ConnectError::Unreachable(error.to_string()),
        })
    }

    /// A connection of its own, which is not kept from a store that is not the known one.
    async fn beside(&self) -> Result<(Router, State), ConnectError> {
        let config = Config {
            client_name: Some("trove-operator".into()),
            ..Config::commands()
        };
        let url = options::parse(&self.url)?;
        let connection = route(&self.core.shared, &url, config, None)?;
        wait_up(&connection, self.core.shared.options.connect_wait).await?;
        let state = connection.state();
        Ok((connection, state))
    }

    /// For how long the feed has not been heard from, in milliseconds; `None` before it is taken. While it is silent and
    /// operations work, what it would have told must be asked for.
    #[must_use]
    pub fn feed_silent_ms(&self) -> Option<u64> {
        let shared = &self.core.shared;
        shared.silent_ms(&shared.tail_heard_ms)
    }

    /// The same of what the feed tells of one player.
    #[must_use]
    pub fn feed_silent_ms_for(&self, player: PlayerId) -> Option<u64> {
        let shared = &self.core.shared;
        let partition = usize::from(shared.partition_of(player).index());
        shared.silent_ms(&shared.feeds_heard_ms[partition])
    }

    /// Whether a new epoch of a cluster is not told yet, so that what is in memory may be of a history that was cut.
    fn is_untold(&self) -> bool {
        let shared = &self.core.shared;
        let told = shared.told_epoch.load(Ordering::Acquire);
        told != 0 && told != shared.epoch()
    }

    /// What replay did since this process began.
    #[must_use]
    pub fn replay_counts(&self) -> ReplayCounts {
        self.core.shared.replay.counts()
    }

    /// Bytes of all feeds together, as last measured.
    #[must_use]
    pub fn feed_bytes(&self) -> u64 {
        self.core.shared.feed_bytes.load(Ordering::Relaxed)
    }

    /// Starts an operation at once, in the order in which operations are called; it goes on when its future is dropped.
    fn start<T, F>(&self, operation: F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let mut operation = Box::pin(operation);
        let _runtime = self.runtime.enter();
        // The first poll hands the command to the link. Whoever awaits the future polls it again, and is woken then.
        match operation
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(result) => Box::pin(std::future::ready(result)),
            Poll::Pending => Box::pin(Going {
                operation: Some(operation),
                runtime: self.runtime.clone(),
            }),
        }
    }
}

impl Store for RedisStore {
    fn now(&self) -> Millis {
        self.core.shared.clock.now()
    }

    fn epoch(&self) -> u64 {
        let shared = &self.core.shared;
        match shared.told_epoch.load(Ordering::Acquire) {
            // What is in memory is of the epoch that was told.
            told if told != 0 && self.core.commands.is_cluster() => told,
            _ => shared.epoch(),
        }
    }

    fn feed_silent_ms(&self) -> Option<u64> {
        Self::feed_silent_ms(self)
    }

    fn feed_silent_ms_for(&self, player: PlayerId) -> Option<u64> {
        Self::feed_silent_ms_for(self, player)
    }

    fn is_recovering(&self) -> bool {
        self.core.shared.replay.is_recovering()
    }

    fn server_figures(&self) -> Option<ServerFigures> {
        Some(self.core.figures())
    }

    fn is_down(&self) -> bool {
        self.core.shared.is_disowned() || !self.core.commands.is_up()
    }

    fn is_down_for(&self, player: PlayerId) -> bool {
        let (shared, commands) = (&self.core.shared, &self.core.commands);
        if shared.is_disowned() || !commands.is_cluster() || self.is_untold() {
            return self.is_down();
        }
        !commands.is_up_for(&shared.keys.player(player.0).state())
    }

    fn health(&self) -> Health {
        self.core.shared.health(&self.core.commands.state())
    }

    fn open_players(&self, players: Vec<Opening>) -> Reply<Vec<Result<PlayerId, Erased>>> {
        let core = self.core.clone();
        let partitions = core.shared.keys.partitions();
        let of = |player: &Opening| partitions.of_name(player.name.as_str().as_bytes());
        let turns = self.reloads.of_all(players.iter().map(of));
        self.start(async move {
            let _turn = turns.acquire().await;
            core.open_players(&players).await
        })
    }

    fn wallet(&self, hunt: &HuntId, player: PlayerId) -> Reply<Wallet> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        let turns = self.reloads.of(core.shared.partition_of(player));
        Box::pin(async move {
            let _turn = turns.acquire().await;
            core.wallet(&hunt, player).await
        })
    }

    fn record(&self, hunt: &HuntId, finds: Vec<(PlayerId, NewFind)>) -> Reply<Recorded> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        self.start(async move { core.record(&hunt, &finds).await })
    }

    fn credit(&self, hunt: &HuntId, player: PlayerId) -> Reply<Credited> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        self.start(async move { core.credit(&hunt, player).await })
    }

    fn adjust(&self, hunt: &HuntId, player: PlayerId, adjustment: Adjustment) -> Reply<Adjusted> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        self.start(async move { core.adjust(&hunt, player, &adjustment).await })
    }

    fn history(
        &self,
        hunt: &HuntId,
        player: PlayerId,
        before: u64,
        limit: usize,
    ) -> Reply<Vec<Entry>> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        Box::pin(async move { core.history(&hunt, player, before, limit).await })
    }

    fn recent(&self, hunt: &HuntId, player: PlayerId, since: Millis) -> Option<Vec<Entry>> {
        let shared = &self.core.shared;
        let hunt = shared.hunts.get(hunt)?;
        let place = (&*hunt, shared.partition_of(player), player);
        shared.recent.of(shared.epoch(), place, since)
    }

    fn recent_wallet(&self, hunt: u32, player: PlayerId) -> Option<Wallet> {
        let shared = &self.core.shared;
        let place = (hunt, shared.partition_of(player), player);
        shared.recent.wallet(Store::epoch(self), place)
    }

    fn vouches_for(&self, player: PlayerId) -> bool {
        let shared = &self.core.shared;
        let partition = shared.partition_of(player);
        shared.recent.vouches(Store::epoch(self), partition, player)
    }

    fn reinstate(&self, hunt: &HuntId, from: Millis, to: Millis) -> Reply<Reinstated> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        self.start(async move { core.reinstate(&hunt, from, to).await })
    }

    fn erase(&self, name: &PlayerName) -> Reply<Erasure> {
        let (core, name) = (self.core.clone(), name.clone());
        self.start(async move { core.erase(&name).await })
    }

    fn put_hunt(&self, spec: HuntSpec) -> Reply<Result<(Arc<Hunt>, Put), HuntError>> {
        let core = self.core.clone();
        self.start(async move { core.put_hunt(spec).await })
    }

    fn step_hunt(&self, hunt: &HuntId, step: LifeStep) -> Reply<Result<Arc<Hunt>, HuntError>> {
        let (core, hunt) = (self.core.clone(), hunt.clone());
        self.start(async move { core.step_hunt(&hunt, step).await })
    }

    fn hunts(&self) -> Reply<Vec<(Arc<Hunt>, Totals)>> {
        let core = self.core.clone();
        Box::pin(async move { core.hunts_with_totals().await })
    }

    fn export(&self, hunt: &HuntId) -> Reply<mpsc::Receiver<Result<Vec<ExportRow>, StoreError>>> {
        let (core, hunt, gate) = (self.core.clone(), hunt.clone(), self.long_reads.clone());
        Box::pin(async move {
            core.hunt(&hunt).await?;
            let (sender, receiver) = mpsc::channel(EXPORT_BATCHES_MAX);
            tokio::spawn(async move {
                let Ok(_permit) = gate.acquire_owned().await else {
                    return;
                };
                if let Err(error) = core.export(&hunt, &sender).await {
                    let _ = sender.send(Err(error)).await;
                }
            });
            Ok(receiver)
        })
    }

    fn verify(&self, hunt: Option<&HuntId>) -> Reply<Vec<HuntAudit>> {
        let (core, hunt, gate) = (self.core.clone(), hunt.cloned(), self.long_reads.clone());
        Box::pin(async move {
            let _permit = gate.acquire_owned().await;
            core.verify(hunt.as_ref()).await
        })
    }

    fn feed(&self) -> Option<mpsc::Receiver<Vec<FeedEvent>>> {
        if std::mem::replace(&mut *lock(&self.feed_taken), true) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(FEED_BATCHES_MAX);
        let follower = tail::Follower::new(self.core.clone(), self.reads.clone(), sender).ok()?;
        lock(&self.tasks).push(self.runtime.spawn(follower.run()));
        Some(receiver)
    }
}
