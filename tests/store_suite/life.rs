//! Rule 10: drafts, open, closed and archived hunts, and what a new document may change.

use super::world::*;
use std::sync::Arc;
use trove::game::hunt::{Hunt, HuntError, HuntSpec, HuntState, LifeStep};
use trove::game::ids::{HuntId, TreasureId};
use trove::game::rules::{AdjustRefusal, Refusal};
use trove::store::{Put, RecordOutcome, RecordRefusal, StoreError};

fn not_open(outcome: &RecordOutcome) -> HuntState {
    match outcome {
        Err(RecordRefusal::Rule(Refusal::HuntNotOpen(state))) => *state,
        other => panic!("{other:?}"),
    }
}

async fn step<F: Fixture>(world: &World<F>, step: LifeStep) -> Result<Arc<Hunt>, HuntError> {
    world.store().step_hunt(&world.hunt, step).await.unwrap()
}

async fn put<F: Fixture>(world: &World<F>, spec: HuntSpec) -> Result<(Arc<Hunt>, Put), HuntError> {
    world.store().put_hunt(spec).await.unwrap()
}

pub(crate) async fn a_draft_takes_no_finds<F: Fixture>() {
    let mut world = World::<F>::new().await;
    world.hunt = HuntId::new("draft").unwrap();
    let (hunt, created) = put(&world, spec("draft")).await.unwrap();
    assert_eq!((created, hunt.generation), (Put::Created, 1));
    assert_eq!(hunt.state(START), HuntState::Draft);
    let ada = world.player("ada").await;
    let outcome = world.find(ada, of("a")).await;
    assert_eq!(not_open(&outcome), HuntState::Draft);
    step(&world, LifeStep::Open).await.unwrap();
    world.find(ada, of("a")).await.unwrap();
}

pub(crate) async fn the_times_open_and_close_a_hunt<F: Fixture>() {
    let mut world = World::<F>::new().await;
    world.hunt = HuntId::new("timed").unwrap();
    let timed = HuntSpec {
        opens_at: Some(START + 10),
        closes_at: Some(START + 20),
        ..spec("timed")
    };
    put(&world, timed).await.unwrap();
    let ada = world.player("ada").await;
    world.fixture.advance(9);
    let early = world.find(ada, of("a")).await;
    assert_eq!(not_open(&early), HuntState::Draft);
    world.fixture.advance(1);
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(9);
    world.find(ada, of("b")).await.unwrap();
    world.fixture.advance(1);
    let late = world.find(ada, of("c")).await;
    assert_eq!(not_open(&late), HuntState::Closed);
    assert_eq!(
        step(&world, LifeStep::Open).await.err(),
        Some(HuntError::ClosesAtPassed)
    );
    assert_eq!(world.poll(ada).await.wallet.balance, 30);
}

pub(crate) async fn a_closed_hunt_takes_no_finds_and_polls_go_on<F: Fixture>() {
    let world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, of("a")).await.unwrap();
    world.find(bob, of("a")).await.unwrap();
    step(&world, LifeStep::Close).await.unwrap();
    let outcome = world.find(ada, of("b")).await;
    assert_eq!(not_open(&outcome), HuntState::Closed);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    world.fixture.advance(WINDOW_MS + 1);
    let history = world.until_settled(bob).await;
    assert_eq!(words(&history), ["find", "expire"]);
    world.verify().await;
}

pub(crate) async fn a_closed_hunt_can_be_opened_again<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    step(&world, LifeStep::Close).await.unwrap();
    step(&world, LifeStep::Open).await.unwrap();
    world.find(ada, of("a")).await.unwrap();
}

pub(crate) async fn a_hunt_with_something_pending_cannot_be_archived<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let open = step(&world, LifeStep::Archive).await;
    assert_eq!(open.err(), Some(HuntError::NotClosed(HuntState::Open)));
    world.find(ada, of("a")).await.unwrap();
    step(&world, LifeStep::Close).await.unwrap();
    let pending = step(&world, LifeStep::Archive).await;
    assert_eq!(pending.err(), Some(HuntError::Pending(10)));
    world.poll(ada).await;
    let archived = step(&world, LifeStep::Archive).await.unwrap();
    assert_eq!(archived.state(START), HuntState::Archived);
    let again = step(&world, LifeStep::Archive).await.unwrap();
    assert_eq!(again.generation, archived.generation);
}

pub(crate) async fn a_pending_find_worth_nothing_holds_back_archiving<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, of("nothing")).await.unwrap();
    world.find(bob, of("nothing")).await.unwrap();
    step(&world, LifeStep::Close).await.unwrap();
    world.poll(bob).await;
    world.fixture.restart(0).await;
    let pending = step(&world, LifeStep::Archive).await;
    assert_eq!(pending.err(), Some(HuntError::Pending(1)));
    world.poll(ada).await;
    step(&world, LifeStep::Archive).await.unwrap();
    world.verify().await;
}

pub(crate) async fn an_archived_hunt_is_over<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.poll(ada).await;
    step(&world, LifeStep::Close).await.unwrap();
    step(&world, LifeStep::Archive).await.unwrap();
    for treasure in ["a", "b", "nowhere"] {
        let outcome = world.find(ada, of(treasure)).await;
        assert!(matches!(
            outcome,
            Err(RecordRefusal::Rule(Refusal::HuntArchived))
        ));
    }
    for wanted in [LifeStep::Open, LifeStep::Close] {
        assert_eq!(step(&world, wanted).await.err(), Some(HuntError::Archived));
    }
    assert_eq!(
        put(&world, spec("h")).await.err(),
        Some(HuntError::Archived)
    );
    let adjusted = world.adjust(ada, adjustment(1, "k")).await;
    assert_eq!(adjusted.outcome.err(), Some(AdjustRefusal::HuntArchived));
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    assert_eq!(world.history(ada).await.len(), 2);
    world.verify().await;
}

pub(crate) async fn every_change_moves_the_generation_and_nothing_else_does<F: Fixture>() {
    let world = World::<F>::new().await;
    let generation = || async { world.hunts().await["h"].0.generation };
    let opened = generation().await;
    step(&world, LifeStep::Open).await.unwrap();
    let (_, replaced) = put(&world, spec("h")).await.unwrap();
    assert_eq!(replaced, Put::Replaced);
    assert_eq!(generation().await, opened, "neither changed anything");
    let renamed = HuntSpec {
        name: "Other".into(),
        ..spec("h")
    };
    let (hunt, _) = put(&world, renamed).await.unwrap();
    assert_eq!(hunt.generation, opened + 1);
    assert_eq!(hunt.state(START), HuntState::Open, "it stays open");
    let closed = step(&world, LifeStep::Close).await.unwrap();
    assert_eq!(closed.generation, opened + 2);
    assert_eq!(generation().await, opened + 2);
}

pub(crate) async fn a_found_treasure_cannot_be_removed_or_change_its_kind<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS + 1);
    world.poll(ada).await;
    world.fixture.restart(0).await;
    let before = world.hunts().await["h"].0.clone();
    let mut without = spec("h");
    without.treasures.remove(0);
    let mut kind = spec("h");
    kind.treasures[0].repeatable = true;
    let a = TreasureId::new("a").unwrap();
    assert_eq!(
        put(&world, without).await.err(),
        Some(HuntError::TreasureFound(a.clone()))
    );
    assert_eq!(
        put(&world, kind).await.err(),
        Some(HuntError::RepeatableFound(a))
    );
    assert_eq!(world.hunts().await["h"].0, before);
    // What nobody found may go.
    let mut smaller = spec("h");
    smaller.treasures.truncate(1);
    put(&world, smaller).await.unwrap();
    let gone = world.find(ada, of("b")).await;
    assert!(matches!(
        gone,
        Err(RecordRefusal::Rule(Refusal::NoSuchTreasure))
    ));
    assert!(recorded(&world.find(ada, of("a")).await).1);
}

pub(crate) async fn a_changed_treasure_leaves_finds_already_made_alone<F: Fixture>() {
    let world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, of("a")).await.unwrap();
    let mut changed = spec("h");
    changed.window_ms = 1_000;
    changed.treasures[0].coins = 99;
    changed.treasures.swap(0, 2);
    put(&world, changed).await.unwrap();
    world.find(bob, of("a")).await.unwrap();
    let repeat = world.find(ada, of("a")).await;
    assert_eq!(recorded(&repeat).0.coins, 10);
    world.fixture.advance(2_000);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    assert_eq!(world.poll(bob).await.wallet.balance, 0);
    assert_eq!(world.totals().await.expired, 99);
    world.verify().await;
}

pub(crate) async fn a_hunt_survives_a_restart<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.poll(ada).await;
    world.open_hunt(spec("second")).await;
    let before = world.hunts().await;
    world.fixture.restart(1_000).await;
    assert_eq!(world.hunts().await, before);
    // A new hunt does not get the number of an old one.
    let third = world.open_hunt(spec("third")).await;
    assert!(before.values().all(|(hunt, _)| hunt.number != third.number));
}

pub(crate) async fn an_unknown_hunt_is_said_to_be_unknown<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let (store, unknown) = (world.store(), HuntId::new("unknown").unwrap());
    let no = Some(StoreError::NoSuchHunt);
    assert_eq!(store.wallet(&unknown, ada).await.err(), no);
    assert_eq!(store.credit(&unknown, ada).await.err(), no);
    let adjusted = store.adjust(&unknown, ada, adjustment(1, "k")).await;
    assert_eq!(adjusted.err(), no);
    assert_eq!(store.history(&unknown, ada, 1, 1).await.err(), no);
    assert_eq!(store.reinstate(&unknown, 0, 1).await.err(), no);
    let stepped = store.step_hunt(&unknown, LifeStep::Open).await;
    assert_eq!(stepped.err(), no);
    assert_eq!(store.export(&unknown).await.err(), no);
    assert!(matches!(
        store.verify(Some(&unknown)).await,
        Err(StoreError::NoSuchHunt)
    ));
}
