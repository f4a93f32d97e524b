//! Rule 5: which finds are the same find.

use super::world::*;
use trove::game::hunt::{HuntState, LifeStep};
use trove::game::ids::HuntId;
use trove::game::rules::{Limits, Refusal};
use trove::store::{RecordOutcome, RecordRefusal};

const DAY_MS: u64 = 24 * 3_600_000;

fn refusal(outcome: &RecordOutcome) -> Refusal {
    match outcome {
        Err(RecordRefusal::Rule(refusal)) => *refusal,
        other => panic!("not refused: {other:?}"),
    }
}

pub(crate) async fn a_once_only_treasure_is_found_once<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let first = world.find(ada, of("a")).await;
    world.fixture.advance(1_000);
    let again = world.find(ada, of("a")).await;
    assert_eq!(recorded(&again), (recorded(&first).0, true));
    assert_eq!(world.wallet(ada).await.pending_coins, 10);
    assert_eq!(world.history(ada).await.len(), 1);
    world.verify().await;
}

pub(crate) async fn an_id_sent_for_a_once_only_treasure_is_ignored<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let first = world.find(ada, of("a").with_id("one")).await;
    assert_eq!(recorded(&first).0.id.as_str(), "a");
    assert!(recorded(&world.find(ada, of("a").with_id("two")).await).1);
    // The id was not taken.
    assert!(!recorded(&world.find(ada, of("b").with_id("one")).await).1);
    assert!(!recorded(&world.find(ada, of("r").with_id("one")).await).1);
}

pub(crate) async fn a_repeatable_treasure_needs_an_id<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let outcome = world.find(ada, of("r")).await;
    assert_eq!(refusal(&outcome), Refusal::IdRequired);
    assert_eq!(world.wallet(ada).await.seq, 0);
}

pub(crate) async fn the_same_id_is_the_same_find_and_another_id_another<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let first = world.find(ada, of("r").with_id("1")).await;
    let again = world.find(ada, of("r").with_id("1").at(START - 5)).await;
    assert_eq!(recorded(&again), (recorded(&first).0, true));
    assert!(!recorded(&world.find(ada, of("r").with_id("2")).await).1);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
}

pub(crate) async fn the_same_id_for_other_content_is_a_conflict<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("r").with_id("1")).await.unwrap();
    let before = world.wallet(ada).await;
    for other in [of("s").with_id("1"), coins(5, "1")] {
        let outcome = world.find(ada, other).await;
        assert_eq!(refusal(&outcome), Refusal::FindConflict);
    }
    assert_eq!(world.wallet(ada).await, before);
    world.verify().await;
}

pub(crate) async fn the_two_kinds_of_id_are_separate_namespaces<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    assert!(!recorded(&world.find(ada, of("r").with_id("a")).await).1);
    world.find(ada, of("r").with_id("b")).await.unwrap();
    assert!(!recorded(&world.find(ada, of("b")).await).1);
    assert_eq!(world.poll(ada).await.wallet.balance, 40);
}

pub(crate) async fn ids_are_scoped_to_hunt_and_player<F: Fixture>() {
    let world = World::<F>::new().await;
    world.open_hunt(spec("other")).await;
    let other = HuntId::new("other").unwrap();
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    for find in [of("a"), of("r").with_id("1")] {
        world.find(ada, find.clone()).await.unwrap();
        assert!(!recorded(&world.find(bob, find.clone()).await).1);
        let store = world.store();
        let elsewhere = store.record(&other, vec![(ada, find)]).await.unwrap();
        assert!(!recorded(&elsewhere.outcomes[0]).1);
    }
    world.verify().await;
}

pub(crate) async fn a_repeat_is_answered_first_also_after_the_hunt_has_closed<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.find(ada, of("r").with_id("1")).await.unwrap();
    let step = world.store().step_hunt(&world.hunt, LifeStep::Close);
    step.await.unwrap().unwrap();
    assert!(recorded(&world.find(ada, of("a")).await).1);
    assert!(recorded(&world.find(ada, of("r").with_id("1")).await).1);
    let conflict = world.find(ada, of("s").with_id("1")).await;
    assert_eq!(refusal(&conflict), Refusal::FindConflict);
    let new = world.find(ada, of("b")).await;
    assert_eq!(refusal(&new), Refusal::HuntNotOpen(HuntState::Closed));
}

pub(crate) async fn a_repeat_after_the_credit_adds_nothing<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    let credited = world.poll(ada).await.wallet;
    assert!(recorded(&world.find(ada, of("a")).await).1);
    assert_eq!(world.poll(ada).await.wallet, credited);
    // Also after it expired.
    world.find(ada, of("b")).await.unwrap();
    world.fixture.advance(WINDOW_MS + 1);
    let expired = world.poll(ada).await.wallet;
    assert!(recorded(&world.find(ada, of("b")).await).1);
    assert_eq!(world.poll(ada).await.wallet, expired);
    world.verify().await;
}

pub(crate) async fn an_id_is_forgotten_after_its_time_and_a_treasure_never<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    let with_a = world.fixture.rows().await;
    for n in 0..50 {
        let id = format!("id-{n}");
        world.find(ada, of("r").with_id(&id)).await.unwrap();
    }
    world.poll(ada).await;
    world.fixture.advance(DAY_MS);
    assert!(recorded(&world.find(ada, of("r").with_id("id-0")).await).1);
    let before = world.fixture.rows().await;
    assert!(before > with_a + 50);
    world.fixture.advance(1);
    // The rows go by themselves, all fifty of them.
    let mut left = before;
    for _ in 0..600 {
        left = world.fixture.rows().await;
        if left <= before - 50 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(left, before - 50);
    assert!(!recorded(&world.find(ada, of("r").with_id("id-0")).await).1);
    assert!(recorded(&world.find(ada, of("a")).await).1);
    world.fixture.advance(400 * DAY_MS);
    assert!(recorded(&world.find(ada, of("a")).await).1);
    world.verify().await;
}

pub(crate) async fn an_id_used_again_after_its_time_is_remembered_anew<F: Fixture>() {
    let world = World::<F>::with(Limits {
        find_id_ttl_ms: 1_000,
        ..Limits::default()
    })
    .await;
    let ada = world.player("ada").await;
    for round in 0..4 {
        let find = of("r").with_id("1");
        assert!(!recorded(&world.find(ada, find.clone()).await).1, "{round}");
        world.fixture.advance(1_000);
        assert!(recorded(&world.find(ada, find).await).1, "{round}");
        world.fixture.advance(1);
    }
    assert_eq!(world.poll(ada).await.wallet.balance, 20);
    world.verify().await;
}

pub(crate) async fn an_unknown_treasure_is_refused<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let outcome = world.find(ada, of("nowhere").with_id("1")).await;
    assert_eq!(refusal(&outcome), Refusal::NoSuchTreasure);
}

pub(crate) async fn a_repeat_survives_a_restart<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let first = world.find(ada, of("a")).await;
    let by_id = world.find(ada, coins(3, "x")).await;
    world.fixture.restart(1_000).await;
    let again = world.find(ada, of("a")).await;
    assert_eq!(recorded(&again), (recorded(&first).0, true));
    let again = world.find(ada, coins(3, "x")).await;
    assert_eq!(recorded(&again), (recorded(&by_id).0, true));
}
