//! Rule 9: coins are 0 to 2^53 − 1, and what would leave that range is refused whole.

use super::world::*;
use trove::game::coins::COINS_MAX;
use trove::game::rules::{Limits, Refusal};
use trove::store::{RecordOutcome, RecordRefusal};

fn out_of_range(outcome: &RecordOutcome) -> bool {
    matches!(outcome, Err(RecordRefusal::Rule(Refusal::CoinsOutOfRange)))
}

pub(crate) async fn the_largest_balance_is_two_to_the_53_less_one<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    for over in [COINS_MAX + 1, u64::MAX] {
        assert!(out_of_range(&world.find(ada, coins(over, "x")).await));
    }
    world.find(ada, coins(COINS_MAX, "x")).await.unwrap();
    assert_eq!(world.poll(ada).await.wallet.balance, COINS_MAX);
    assert!(out_of_range(&world.find(ada, coins(1, "y")).await));
    world.find(ada, coins(0, "z")).await.unwrap();
    assert_eq!(world.poll(ada).await.wallet.balance, COINS_MAX);
    world.verify().await;
}

pub(crate) async fn what_is_pending_counts_against_the_limit<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, coins(COINS_MAX - 10, "x")).await.unwrap();
    assert!(out_of_range(&world.find(ada, coins(11, "y")).await));
    world.find(ada, coins(10, "y")).await.unwrap();
    let grant = world.adjust(ada, adjustment(1, "k")).await;
    assert!(grant.outcome.is_err());
    assert_eq!(world.poll(ada).await.wallet.balance, COINS_MAX);
    world.verify().await;
}

pub(crate) async fn the_hunts_total_is_limited_too<F: Fixture>() {
    let world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, coins(COINS_MAX - 3, "x")).await.unwrap();
    assert!(out_of_range(&world.find(bob, coins(4, "x")).await));
    assert!(world.adjust(bob, adjustment(4, "k")).await.outcome.is_err());
    world.find(bob, coins(3, "x")).await.unwrap();
    assert_eq!(world.totals().await.recorded, COINS_MAX);
    // What expires or is revoked stays recorded.
    world.fixture.advance(WINDOW_MS + 1);
    world.poll(ada).await;
    assert!(out_of_range(&world.find(bob, coins(1, "y")).await));
    world.verify().await;
}

pub(crate) async fn a_refused_find_leaves_nothing_behind<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, coins(COINS_MAX, "x")).await.unwrap();
    let rows = world.fixture.rows().await;
    let wallet = world.wallet(ada).await;
    assert!(out_of_range(&world.find(ada, of("a")).await));
    assert!(out_of_range(&world.find(ada, coins(7, "y")).await));
    assert_eq!(world.wallet(ada).await, wallet);
    assert_eq!(world.fixture.rows().await, rows);
    // The ids were not taken: once there is room, they are new.
    world.poll(ada).await;
    world.adjust(ada, adjustment(-100, "k")).await;
    assert_eq!(world.totals().await.revoked, 100);
    assert!(out_of_range(&world.find(ada, coins(7, "y")).await));
    world.verify().await;
}

pub(crate) async fn a_treasure_worth_nothing_can_be_found<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("nothing")).await.unwrap();
    assert_eq!(world.wallet(ada).await.pending_finds, 1);
    let credited = world.poll(ada).await;
    assert_eq!(words(&credited.entries), ["credit"]);
    assert_eq!((credited.wallet.balance, credited.wallet.seq), (0, 2));
    world.verify().await;
}

pub(crate) async fn a_player_has_so_many_pending_finds_and_no_more<F: Fixture>() {
    let world = World::<F>::with(Limits {
        pending_finds_max: 3,
        ..Limits::default()
    })
    .await;
    let ada = world.player("ada").await;
    let batch = (0..5)
        .map(|n| (ada, coins(1, &format!("id-{n}"))))
        .collect();
    let answer = world.record(batch).await;
    let refused = |outcome: &RecordOutcome| {
        matches!(outcome, Err(RecordRefusal::Rule(Refusal::TooManyPending)))
    };
    let which: Vec<bool> = answer.outcomes.iter().map(refused).collect();
    assert_eq!(which, [false, false, false, true, true]);
    assert!(recorded(&world.find(ada, coins(1, "id-0")).await).1);
    assert_eq!(world.poll(ada).await.wallet.balance, 3);
    world.find(ada, coins(1, "id-3")).await.unwrap();
    world.verify().await;
}
