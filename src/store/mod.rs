//! Where the truth is kept: a trait of few operations, each atomic, that every store implements and one conformance
//! suite (`tests/store_conformance.rs`) checks.
//!
//! A store applies the rules of [`crate::game`] under its own clock. What an operation answered with `Ok` is as durable
//! as the store promises before the answer is given; what it answered with `Err` changed nothing, but for
//! [`StoreError::Unknown`] and [`StoreError::NotDurable`].

pub mod clock;
pub mod embedded;
pub mod redis;

use crate::game::Millis;
use crate::game::audit::Sums;
use crate::game::entry::{Adjustment, Entry, Totals};
use crate::game::hunt::{Hunt, HuntError, HuntSpec, LifeStep};
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::game::rules::{AdjustDecision, AdjustRefusal, Decision, NewFind, Refusal};
use crate::game::wallet::Wallet;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a store operation gives back, some time later.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Why a store could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No hunt has this id.
    #[error("there is no hunt with this id")]
    NoSuchHunt,
    /// More waits for the store than it may hold; nothing was done.
    #[error("the store has too much to do; try again")]
    Busy,
    /// The disk is full; nothing was done.
    #[error("the store's disk is full")]
    Full,
    /// The store's event log holds as much as it may; no new finds are taken until some of it is archived or the cap is
    /// raised. Nothing was done.
    #[error("the store's feed holds as many bytes as it may")]
    FeedFull,
    /// The store cannot be reached; nothing was done.
    #[error("the store is out of reach: {0}")]
    Unavailable(String),
    /// The store broke off while it worked; what was asked may or may not have been done, and can be asked again.
    #[error("the store broke off; what was asked may or may not have been done: {0}")]
    Unknown(String),
    /// What was asked may or may not have been done, and where it was, too few have it for it to be safe: it may be lost with
    /// one of them. It can be asked again, with the same id.
    #[error("not safe in time: {0}")]
    NotDurable(String),
    /// What is stored cannot be read.
    #[error("the store is damaged: {0}")]
    Damaged(String),
}

/// The player was erased, and the token or the name is from before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the player was erased")]
pub struct Erased;

/// A player's name, and since when somebody vouches for it.
#[derive(Debug, Clone)]
pub struct Opening {
    /// The name.
    pub name: PlayerName,
    /// When the token was issued; `None` when no token speaks for the player (a bulk find, an adjustment): an erased
    /// player then stays erased.
    pub issued_at: Option<Millis>,
    /// The number that this process was told before and asks to be told again, as all are after a failover. Where it is the
    /// same, the name is as old as it was: it need not be remembered anew for the next failover.
    pub known: Option<PlayerId>,
}

/// What became of one find.
pub type RecordOutcome = Result<Decision, RecordRefusal>;

/// Why one find was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordRefusal {
    /// By the rules.
    #[error(transparent)]
    Rule(#[from] Refusal),
    /// The player was erased.
    #[error(transparent)]
    Erased(#[from] Erased),
}

/// What recording finds gave.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// One outcome a find, in the order in which they were asked for.
    pub outcomes: Vec<RecordOutcome>,
    /// Each wallet that changed, as it is now.
    pub wallets: Vec<(PlayerId, Wallet)>,
}

/// What a credit gave.
#[derive(Debug, Clone)]
pub struct Credited {
    /// The wallet now.
    pub wallet: Wallet,
    /// The entries that this credit added, in order: credits and expiries.
    pub entries: Vec<Entry>,
}

/// What an adjustment gave.
#[derive(Debug, Clone)]
pub struct Adjusted {
    /// The adjustment, new or repeated, or why it was refused.
    pub outcome: Result<AdjustDecision, AdjustRefusal>,
    /// The wallet now.
    pub wallet: Wallet,
}

/// What reinstating gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reinstated {
    /// Finds credited after all.
    pub finds: u64,
    /// Their coins.
    pub coins: u64,
    /// Finds left as they are because the balance would have left its range.
    pub refused: u64,
}

/// What erasing gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Erasure {
    /// Pending coins that were revoked, in all hunts.
    pub revoked: u64,
    /// Whether there was anybody to erase.
    pub existed: bool,
}

/// One line of an export.
#[derive(Debug, Clone)]
pub enum ExportRow {
    /// A player's wallet; the player's entries follow.
    Wallet {
        /// The random number.
        player: PlayerId,
        /// The name, unless the player was erased.
        name: Option<PlayerName>,
        /// The wallet.
        wallet: Wallet,
    },
    /// An entry of the ledger.
    Entry {
        /// The random number.
        player: PlayerId,
        /// The entry.
        entry: Entry,
    },
}

/// What auditing one hunt found.
#[derive(Debug, Clone)]
pub struct HuntAudit {
    /// The hunt.
    pub hunt: HuntId,
    /// The last entry of the store's feed that the audit covers.
    pub feed_position: u64,
    /// Wallets walked.
    pub wallets: u64,
    /// Ledger entries walked.
    pub entries: u64,
    /// What the ledger comes to.
    pub sums: Sums,
    /// What does not add up, the first [`DISCREPANCIES_MAX`] of it.
    pub discrepancies: Vec<String>,
    /// How many discrepancies there are.
    pub discrepancy_count: u64,
}

/// How many discrepancies an audit spells out.
pub const DISCREPANCIES_MAX: usize = 20;

impl HuntAudit {
    /// Whether everything adds up.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.discrepancy_count == 0 && self.sums.conserve()
    }
}

/// What a store tells those who watch it, in the order in which it became true; what different primaries of a Redis Cluster
/// hold is told in no order among them.
#[derive(Debug, Clone)]
pub enum FeedEvent {
    /// A wallet changed.
    Wallet {
        /// The hunt's number.
        hunt: u32,
        /// The player.
        player: PlayerId,
        /// The wallet after the change.
        wallet: Wallet,
    },
    /// A hunt came to be, or changed.
    Hunt(Arc<Hunt>),
    /// A player was erased.
    Erased {
        /// The number that the player had.
        player: PlayerId,
    },
    /// Something happened to a wallet that this version does not understand: it must be read again.
    Reload {
        /// The hunt's number.
        hunt: u32,
        /// The player.
        player: PlayerId,
    },
    /// What was told before may no longer be so: history may have been cut, or some of it was missed. Every wallet must be
    /// read again.
    Reset {
        /// The epoch now.
        epoch: u64,
    },
}

/// A store's state as far as those who answer requests need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Everything works.
    Up,
    /// Reads work; what would write is refused because the disk is full.
    Full,
    /// Everything works, but what the store lost in a failover may still come back: balances may be too low.
    Recovering,
    /// Nothing works.
    Down(String),
}

/// How a document came to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The hunt is new.
    Created,
    /// The hunt existed.
    Replaced,
}

/// What a server behind the store says of itself, as last asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerFigures {
    /// Commands that it has run.
    pub commands: u64,
    /// Connections to it.
    pub clients: u64,
    /// Memory that it uses.
    pub memory_bytes: u64,
    /// Memory that it may use; 0: all that there is.
    pub memory_bytes_max: u64,
    /// Keys that it has thrown away.
    pub evicted_keys: u64,
    /// Replicas connected to it.
    pub replicas: u64,
    /// What the replica furthest behind has not received.
    pub replication_lag_bytes: u64,
    /// Since when the replica furthest behind has not been heard from, in seconds.
    pub replication_lag_s: u64,
    /// Entries of each partition's feed.
    pub stream_entries: Vec<u64>,
    /// Memory of all feeds.
    pub feed_bytes: u64,
    /// Commands of this process that the store's fences held back, in the order of [`redis::Fenced::ALL`].
    pub fenced: [u64; redis::Fenced::ALL.len()],
    /// How long ago this was asked; `None` if it was not yet.
    pub age_ms: Option<u64>,
    /// When, by the store's own clock.
    pub(crate) sampled_ms: Option<u64>,
}

/// A store. Futures own what they need, so that an operation goes on when nobody waits for it any more.
pub trait Store: Send + Sync + 'static {
    /// The store's clock: never runs backwards. Costs no more than a clock.
    fn now(&self) -> Millis;

    /// The epoch that cursors carry: another one says that the history may have been cut.
    fn epoch(&self) -> u64;

    /// The state now, from memory.
    fn health(&self) -> Health;

    /// Whether the state is [`Health::Down`], which every poll asks.
    fn is_down(&self) -> bool {
        matches!(self.health(), Health::Down(_))
    }

    /// Whether it is [down](Store::is_down) as far as one player is concerned: of a store on several servers the player's may
    /// be there while others are away.
    fn is_down_for(&self, _player: PlayerId) -> bool {
        self.is_down()
    }

    /// Whether the store has just failed over and may get back what it lost: balances may be too low.
    fn is_recovering(&self) -> bool {
        false
    }

    /// The numbers of players, who come to be when they are first opened. One result a player, in order.
    fn open_players(&self, players: Vec<Opening>) -> Reply<Vec<Result<PlayerId, Erased>>>;

    /// A wallet as of now; an empty one for a player without a history in the hunt.
    fn wallet(&self, hunt: &HuntId, player: PlayerId) -> Reply<Wallet>;

    /// Records finds, each for itself: some may be refused while others are recorded.
    fn record(&self, hunt: &HuntId, finds: Vec<(PlayerId, NewFind)>) -> Reply<Recorded>;

    /// Credits all creditable finds of the player in one step, and expires those that have run out.
    fn credit(&self, hunt: &HuntId, player: PlayerId) -> Reply<Credited>;

    /// Grants or revokes coins.
    fn adjust(&self, hunt: &HuntId, player: PlayerId, adjustment: Adjustment) -> Reply<Adjusted>;

    /// Up to `limit` entries of the history before the sequence number `before`, newest first.
    fn history(
        &self,
        hunt: &HuntId,
        player: PlayerId,
        before: u64,
        limit: usize,
    ) -> Reply<Vec<Entry>>;

    /// The entries of a history since `since`, newest first, as far as the store has them in memory: an unbroken row, to which
    /// only later ones may be missing. `None` if it has not, which is nearly always. Those of a wallet may be shown that was
    /// shown itself, up to its sequence number.
    fn recent(&self, _hunt: &HuntId, _player: PlayerId, _since: Millis) -> Option<Vec<Entry>> {
        None
    }

    /// A wallet as it is, if the store has it in memory and tells of all its changes since, which is so for a while after a
    /// failover for those that changed lately.
    fn recent_wallet(&self, _hunt: u32, _player: PlayerId) -> Option<Wallet> {
        None
    }

    /// Whether the store knows, without being asked, that a name which had this number before a failover still has it.
    fn vouches_for(&self, _player: PlayerId) -> bool {
        false
    }

    /// Credits what expired by a store outage with its window ending within `from..=to`. Asking again reinstates
    /// nothing twice. Large amounts are done in several steps; one that broke off is taken up by asking again.
    fn reinstate(&self, hunt: &HuntId, from: Millis, to: Millis) -> Reply<Reinstated>;

    /// Erases the player in all hunts.
    fn erase(&self, name: &PlayerName) -> Reply<Erasure>;

    /// Creates or replaces a hunt.
    fn put_hunt(&self, spec: HuntSpec) -> Reply<Result<(Arc<Hunt>, Put), HuntError>>;

    /// Takes a step of a hunt's life, which holds everywhere when the answer is given.
    fn step_hunt(&self, hunt: &HuntId, step: LifeStep) -> Reply<Result<Arc<Hunt>, HuntError>>;

    /// Every hunt with its totals.
    fn hunts(&self) -> Reply<Vec<(Arc<Hunt>, Totals)>>;

    /// Streams a hunt's wallets and ledger as of one moment: batches of rows, or the error that ended it.
    fn export(&self, hunt: &HuntId) -> Reply<mpsc::Receiver<Result<Vec<ExportRow>, StoreError>>>;

    /// Proves conservation from the ledger and the wallets, of one hunt or of all, each as of one moment.
    fn verify(&self, hunt: Option<&HuntId>) -> Reply<Vec<HuntAudit>>;

    /// For how long the feed has not been heard from, in milliseconds, where that can happen. While that is long and the
    /// store answers, what is in memory may be behind it.
    fn feed_silent_ms(&self) -> Option<u64> {
        None
    }

    /// The same of what the feed tells of one player: of a store on several servers those of others may be silent while the
    /// player's is not.
    fn feed_silent_ms_for(&self, _player: PlayerId) -> Option<u64> {
        self.feed_silent_ms()
    }

    /// What the server behind the store says of itself, from memory, if the store has one.
    fn server_figures(&self) -> Option<ServerFigures> {
        None
    }

    /// What changes from now on, in batches, in the order in which it became true. Of several states of a wallet or a hunt in
    /// a row, only the last need be told. There is one feed; it is handed out once. Whoever takes it must keep reading
    /// (or drop it), and must not await a write of the store while it does not: a feed that is full holds up all writes.
    fn feed(&self) -> Option<mpsc::Receiver<Vec<FeedEvent>>>;
}
