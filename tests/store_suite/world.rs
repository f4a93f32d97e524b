//! What the facts stand on: a store of some kind, its clock, one hunt, and short words for what players do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trove::game::entry::{Adjustment, Change, Entry, Find, Totals};
use trove::game::hunt::{Hunt, HuntSpec, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, PlayerName, TreasureId};
use trove::game::rules::{Decision, Limits, NewFind, What};
use trove::game::wallet::Wallet;
use trove::store::{Adjusted, Credited, ExportRow, Opening, RecordOutcome, Recorded, Store};

/// When the store's clock begins in every fact.
pub(crate) const START: u64 = 1_800_000_000_000;
/// The window of the hunt that every world has.
pub(crate) const WINDOW_MS: u64 = 300_000;
/// How long a fact waits for something that the store does by itself before it is taken not to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store whose time can be moved.
pub(crate) trait Fixture: Sized + Send + Sync + 'static {
    /// An empty store whose clock says [`START`].
    fn fresh(limits: Limits) -> impl Future<Output = Self> + Send;
    /// The store.
    fn store(&self) -> &dyn Store;
    /// Lets time pass.
    fn advance(&self, ms: u64);
    /// Sets the wall clock forward without time passing; `false` where the store has no such clock.
    fn step_clock(&self, ms: u64) -> bool;
    /// Stops the store, lets time pass, and starts it again; `false` where that is not the store's to do.
    fn restart(&mut self, away_ms: u64) -> impl Future<Output = bool> + Send;
    /// Whether the text stands anywhere in what is stored and live.
    fn holds_text(&mut self, text: &str) -> impl Future<Output = bool> + Send;
    /// Whether all that becomes true is told in one order.
    const HAS_ONE_FEED: bool = true;
    /// Rows or keys that are stored.
    fn rows(&mut self) -> impl Future<Output = u64> + Send;
}

/// A store with one open hunt, `h`.
pub(crate) struct World<F> {
    /// The store and its clock.
    pub(crate) fixture: F,
    /// The hunt.
    pub(crate) hunt: HuntId,
}

/// A treasure.
pub(crate) fn treasure(id: &str, coins: u64, repeatable: bool) -> Treasure {
    Treasure {
        id: TreasureId::new(id).unwrap(),
        name: None,
        coins,
        place: None,
        repeatable,
    }
}

/// A hunt with the treasures that every hunt of the suite has: `a` 10, `b` 20, `c` 30, `nothing` 0, and repeatable `r` 5
/// and `s` 7.
pub(crate) fn spec(id: &str) -> HuntSpec {
    HuntSpec {
        id: HuntId::new(id).unwrap(),
        name: "Hunt".into(),
        window_ms: WINDOW_MS,
        opens_at: None,
        closes_at: None,
        treasures: vec![
            treasure("a", 10, false),
            treasure("b", 20, false),
            treasure("c", 30, false),
            treasure("nothing", 0, false),
            treasure("r", 5, true),
            treasure("s", 7, true),
        ],
    }
}

/// A find of a treasure.
pub(crate) fn of(treasure: &str) -> NewFind {
    NewFind {
        what: What::Treasure(TreasureId::new(treasure).unwrap()),
        id: None,
        found_at: None,
    }
}

/// A find of coins without a treasure.
pub(crate) fn coins(coins: u64, id: &str) -> NewFind {
    NewFind {
        what: What::Coins(coins),
        ..of("a")
    }
    .with_id(id)
}

/// Short words for a find that is asked for.
pub(crate) trait NewFindExt {
    /// With the client's id.
    fn with_id(self, id: &str) -> NewFind;
    /// With a time.
    fn at(self, found_at: u64) -> NewFind;
}

impl NewFindExt for NewFind {
    fn with_id(mut self, id: &str) -> NewFind {
        self.id = Some(FindId::new(id).unwrap());
        self
    }

    fn at(mut self, found_at: u64) -> NewFind {
        self.found_at = Some(found_at);
        self
    }
}

/// The find of an outcome, and whether it is a repeat.
pub(crate) fn recorded(outcome: &RecordOutcome) -> (&Find, bool) {
    match outcome {
        Ok(Decision::Duplicate(find)) => (find, true),
        Ok(Decision::Recorded(
            Entry {
                change: Change::Find(find),
                ..
            },
            _,
        )) => (find, false),
        other => panic!("not recorded: {other:?}"),
    }
}

/// An adjustment.
pub(crate) fn adjustment(coins: i64, key: &str) -> Adjustment {
    Adjustment {
        coins,
        reason: "because".into(),
        key: key.into(),
        by: "ops".into(),
    }
}

/// What an entry does, in one word.
pub(crate) fn word(entry: &Entry) -> &'static str {
    match &entry.change {
        Change::Find(_) => "find",
        Change::Credit(_) => "credit",
        Change::Expire(..) => "expire",
        Change::Reinstate(_) => "reinstate",
        Change::Revoke(_) => "revoke",
        Change::Adjust(_) => "adjust",
        Change::Replay(..) => "replay",
    }
}

/// What entries do.
pub(crate) fn words(entries: &[Entry]) -> Vec<&'static str> {
    entries.iter().map(word).collect()
}

impl<F: Fixture> World<F> {
    /// The usual world.
    pub(crate) async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    /// A world with other limits.
    pub(crate) async fn with(limits: Limits) -> Self {
        let world = Self {
            fixture: F::fresh(limits).await,
            hunt: HuntId::new("h").unwrap(),
        };
        world.open_hunt(spec("h")).await;
        world
    }

    /// The store.
    pub(crate) fn store(&self) -> &dyn Store {
        self.fixture.store()
    }

    /// Puts a hunt and opens it.
    pub(crate) async fn open_hunt(&self, spec: HuntSpec) -> Arc<Hunt> {
        let id = spec.id.clone();
        self.store().put_hunt(spec).await.unwrap().unwrap();
        self.store()
            .step_hunt(&id, LifeStep::Open)
            .await
            .unwrap()
            .unwrap()
    }

    /// A player with a token from now.
    pub(crate) async fn player(&self, name: &str) -> PlayerId {
        self.open(name, Some(self.store().now())).await.unwrap()
    }

    /// Opens a player.
    pub(crate) async fn open(
        &self,
        name: &str,
        issued_at: Option<u64>,
    ) -> Result<PlayerId, trove::store::Erased> {
        let opening = Opening {
            name: PlayerName::new(name).unwrap(),
            issued_at,
            known: None,
        };
        self.store().open_players(vec![opening]).await.unwrap()[0]
    }

    /// Records one find in the hunt.
    pub(crate) async fn find(&self, player: PlayerId, new: NewFind) -> RecordOutcome {
        let recorded = self.record(vec![(player, new)]).await;
        recorded.outcomes.into_iter().next().unwrap()
    }

    /// Records finds in the hunt.
    pub(crate) async fn record(&self, finds: Vec<(PlayerId, NewFind)>) -> Recorded {
        let recorded = self.store().record(&self.hunt, finds).await.unwrap();
        self.conserve().await;
        recorded
    }

    /// Polls.
    pub(crate) async fn poll(&self, player: PlayerId) -> Credited {
        let credited = self.store().credit(&self.hunt, player).await.unwrap();
        self.conserve().await;
        credited
    }

    /// Adjusts.
    pub(crate) async fn adjust(&self, player: PlayerId, adjustment: Adjustment) -> Adjusted {
        let adjusted = self
            .store()
            .adjust(&self.hunt, player, adjustment)
            .await
            .unwrap();
        self.conserve().await;
        adjusted
    }

    /// The player's wallet.
    pub(crate) async fn wallet(&self, player: PlayerId) -> Wallet {
        self.store().wallet(&self.hunt, player).await.unwrap()
    }

    /// The player's whole history, oldest first.
    pub(crate) async fn history(&self, player: PlayerId) -> Vec<Entry> {
        let history = self
            .store()
            .history(&self.hunt, player, u64::MAX, usize::MAX);
        let mut entries = history.await.unwrap();
        entries.reverse();
        entries
    }

    /// The hunt's totals.
    pub(crate) async fn totals(&self) -> Totals {
        self.hunts().await[self.hunt.as_str()].1
    }

    /// All hunts.
    pub(crate) async fn hunts(&self) -> BTreeMap<String, (Arc<Hunt>, Totals)> {
        let hunts = self.store().hunts().await.unwrap();
        hunts
            .into_iter()
            .map(|(hunt, totals)| (hunt.spec.id.to_string(), (hunt, totals)))
            .collect()
    }

    /// Rule 4, by the totals that the store keeps.
    async fn conserve(&self) {
        for (hunt, totals) in self.store().hunts().await.unwrap() {
            assert!(totals.conserve(), "{}: {totals:?}", hunt.spec.id);
        }
    }

    /// Rule 4, recomputed from the ledger; and that the totals say the same.
    pub(crate) async fn verify(&self) {
        for audit in self.store().verify(None).await.unwrap() {
            assert!(audit.holds(), "{audit:#?}");
        }
        self.conserve().await;
    }

    /// Every row of the hunt's export.
    pub(crate) async fn export(&self) -> Vec<ExportRow> {
        let mut receiver = self.store().export(&self.hunt).await.unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = receiver.recv().await {
            rows.extend(batch.unwrap());
        }
        rows
    }

    /// Waits until the store has done something by itself.
    pub(crate) async fn until<Fut: Future<Output = bool>>(
        &self,
        what: &str,
        mut condition: impl FnMut() -> Fut,
    ) {
        let began = Instant::now();
        while !condition().await {
            assert!(began.elapsed() < PATIENCE, "it never came true that {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the player has nothing pending, and gives the history.
    pub(crate) async fn until_settled(&self, player: PlayerId) -> Vec<Entry> {
        self.until("nothing is pending", || async {
            self.wallet(player).await.pending_finds == 0
        })
        .await;
        self.history(player).await
    }
}
