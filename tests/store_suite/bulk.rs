//! Finds that a back end records: many at once, coins without a treasure, other times than now.

use super::world::*;
use trove::game::ids::{HuntId, PlayerId};
use trove::game::rules::Refusal;
use trove::store::{RecordOutcome, RecordRefusal, StoreError};

fn refused(outcome: &RecordOutcome, with: Refusal) -> bool {
    matches!(outcome, Err(RecordRefusal::Rule(refusal)) if *refusal == with)
}

pub(crate) async fn coins_without_a_treasure_need_an_id_and_share_their_content<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let mut nameless = coins(40, "x");
    nameless.id = None;
    let outcome = world.find(ada, nameless).await;
    assert!(refused(&outcome, Refusal::IdRequired));
    let first = world.find(ada, coins(40, "x")).await;
    assert_eq!(recorded(&first).0.treasure, None);
    assert!(recorded(&world.find(ada, coins(40, "x")).await).1);
    let other = world.find(ada, coins(41, "x")).await;
    assert!(refused(&other, Refusal::FindConflict));
    let treasure = world.find(ada, of("r").with_id("x")).await;
    assert!(refused(&treasure, Refusal::FindConflict));
    assert_eq!(world.poll(ada).await.wallet.balance, 40);
    world.verify().await;
}

pub(crate) async fn each_find_of_a_batch_has_its_own_outcome<F: Fixture>() {
    let world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    let answer = world
        .record(vec![
            (ada, of("a")),
            (ada, of("r")),
            (bob, of("nowhere")),
            (bob, of("b")),
            (ada, coins(1, "x")),
            (ada, coins(2, "x")),
        ])
        .await;
    assert_eq!(answer.outcomes.len(), 6);
    assert!(!recorded(&answer.outcomes[0]).1);
    assert!(refused(&answer.outcomes[1], Refusal::IdRequired));
    assert!(refused(&answer.outcomes[2], Refusal::NoSuchTreasure));
    assert!(!recorded(&answer.outcomes[3]).1);
    assert!(!recorded(&answer.outcomes[4]).1);
    assert!(refused(&answer.outcomes[5], Refusal::FindConflict));
    let mut changed = answer.wallets.clone();
    changed.sort_by_key(|(player, _)| *player);
    let mut expected = vec![
        (ada, world.wallet(ada).await),
        (bob, world.wallet(bob).await),
    ];
    expected.sort_by_key(|(player, _)| *player);
    assert_eq!(changed, expected);
    assert_eq!(world.wallet(ada).await.pending_coins, 11);
    world.verify().await;
}

pub(crate) async fn the_same_find_twice_in_a_batch_is_recorded_once<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let twice = vec![(ada, of("a")), (ada, of("a"))];
    let answer = world.record(twice).await;
    assert!(!recorded(&answer.outcomes[0]).1);
    assert!(recorded(&answer.outcomes[1]).1);
    assert_eq!(answer.wallets.len(), 1);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
}

pub(crate) async fn a_back_dated_find_keeps_its_own_window<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    let dated = of("b").at(START - WINDOW_MS + 100);
    let outcome = world.find(ada, dated).await;
    assert_eq!(recorded(&outcome).0.expires_at, START + 100);
    assert_eq!(world.wallet(ada).await.due_at, START + 100);
    world.fixture.advance(101);
    let wallet = world.poll(ada).await.wallet;
    assert_eq!(wallet.balance, 10);
    assert_eq!(world.totals().await.expired, 20);
    world.verify().await;
}

pub(crate) async fn a_find_dated_past_its_window_is_recorded_as_expired<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let late = of("a").at(START - WINDOW_MS - 1);
    let outcome = world.find(ada, late.clone()).await;
    assert!(!recorded(&outcome).1);
    let history = world.history(ada).await;
    assert_eq!(words(&history), ["find", "expire"]);
    let wallet = world.poll(ada).await.wallet;
    assert_eq!((wallet.balance, wallet.due_at, wallet.seq), (0, 0, 2));
    assert!(recorded(&world.find(ada, late).await).1);
    assert_eq!(world.totals().await.expired, 10);
    world.verify().await;
}

pub(crate) async fn a_late_find_leaves_the_other_pending_finds_alone<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.find(ada, of("b").at(0)).await.unwrap();
    let wallet = world.wallet(ada).await;
    assert_eq!((wallet.pending_finds, wallet.pending_coins), (1, 10));
    assert_eq!(wallet.due_at, START + WINDOW_MS);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    world.verify().await;
}

pub(crate) async fn a_find_a_second_ahead_is_taken_as_now_and_further_ahead_is_refused<
    F: Fixture,
>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let ahead = world.find(ada, of("a").at(START + 1_000)).await;
    assert_eq!(recorded(&ahead).0.found_at, START);
    let too_far = world.find(ada, of("b").at(START + 1_001)).await;
    assert!(refused(&too_far, Refusal::FoundAtAhead));
    assert_eq!(world.wallet(ada).await.seq, 1);
}

pub(crate) async fn a_batch_sent_again_adds_nothing<F: Fixture>() {
    let world = World::<F>::new().await;
    let batch: Vec<(PlayerId, _)> = (0..200)
        .map(|n| (PlayerId(1 + n % 7), coins(n, &format!("id-{n}"))))
        .collect();
    let first = world.record(batch.clone()).await;
    assert!(first.outcomes.iter().all(|outcome| !recorded(outcome).1));
    let totals = world.totals().await;
    let again = world.record(batch).await;
    assert!(again.outcomes.iter().all(|outcome| recorded(outcome).1));
    assert!(again.wallets.is_empty());
    assert_eq!(world.totals().await, totals);
    world.verify().await;
}

pub(crate) async fn an_empty_batch_is_answered<F: Fixture>() {
    let world = World::<F>::new().await;
    let answer = world.record(Vec::new()).await;
    assert!(answer.outcomes.is_empty() && answer.wallets.is_empty());
}

pub(crate) async fn a_find_of_an_unknown_hunt_is_refused<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let unknown = HuntId::new("unknown").unwrap();
    let answer = world.store().record(&unknown, vec![(ada, of("a"))]).await;
    assert_eq!(answer.err(), Some(StoreError::NoSuchHunt));
}
