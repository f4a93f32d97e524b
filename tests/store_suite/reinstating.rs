//! Rule 3: what an outage took can be given back, once.

use super::world::*;
use trove::game::coins::COINS_MAX;
use trove::game::ids::PlayerId;
use trove::store::Reinstated;

/// A world in which the clock stepped over the windows of finds; `None` where the store has no such clock.
async fn after_an_outage<F: Fixture>(
    finds: Vec<(PlayerId, trove::game::rules::NewFind)>,
) -> Option<World<F>> {
    let world = World::<F>::new().await;
    world.record(finds).await;
    if !world.fixture.step_clock(WINDOW_MS + 6_000) {
        return None;
    }
    world
        .until("all have expired", || async {
            world.totals().await.pending == 0
        })
        .await;
    Some(world)
}

pub(crate) async fn what_was_lost_to_an_outage_is_credited_once<F: Fixture>() {
    let (ada, bob) = (PlayerId(1), PlayerId(2));
    let finds = vec![(ada, of("a")), (ada, of("b")), (bob, of("c"))];
    let Some(mut world) = after_an_outage::<F>(finds).await else {
        return;
    };
    let all = world.store().reinstate(&world.hunt, 0, u64::MAX);
    let expected = Reinstated {
        finds: 3,
        coins: 60,
        refused: 0,
    };
    assert_eq!(all.await.unwrap(), expected);
    assert_eq!(world.wallet(ada).await.balance, 30);
    let history = world.history(bob).await;
    assert_eq!(words(&history), ["find", "expire", "reinstate"]);
    assert_eq!(world.wallet(bob).await.shown_seq, 3);
    world.fixture.restart(0).await;
    let again = world.store().reinstate(&world.hunt, 0, u64::MAX);
    assert_eq!(again.await.unwrap(), Reinstated::default());
    let totals = world.totals().await;
    assert_eq!((totals.credited, totals.expired), (60, 0));
    world.verify().await;
}

pub(crate) async fn only_what_ran_out_within_the_range_is_reinstated<F: Fixture>() {
    let ada = PlayerId(1);
    let finds = vec![
        (ada, of("a")),
        (ada, of("b").at(START - 1)),
        (ada, of("c").at(START - 2)),
    ];
    let Some(world) = after_an_outage::<F>(finds).await else {
        return;
    };
    let end = START + WINDOW_MS;
    let none = world.store().reinstate(&world.hunt, end + 1, u64::MAX);
    assert_eq!(none.await.unwrap().finds, 0);
    let empty = world.store().reinstate(&world.hunt, end, 0);
    assert_eq!(empty.await.unwrap().finds, 0);
    let one = world.store().reinstate(&world.hunt, end - 1, end - 1);
    assert_eq!(one.await.unwrap().coins, 20);
    let rest = world.store().reinstate(&world.hunt, end - 2, end);
    assert_eq!(rest.await.unwrap().coins, 40);
    assert_eq!(world.wallet(ada).await.balance, 60);
    world.verify().await;
}

pub(crate) async fn what_expired_by_its_window_is_not_reinstated<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS + 1);
    world.poll(ada).await;
    let reinstated = world.store().reinstate(&world.hunt, 0, u64::MAX);
    assert_eq!(reinstated.await.unwrap(), Reinstated::default());
    assert_eq!(world.wallet(ada).await.balance, 0);
}

pub(crate) async fn a_balance_out_of_range_is_refused_and_can_be_tried_again<F: Fixture>() {
    let ada = PlayerId(1);
    let half = COINS_MAX / 2;
    let Some(world) = after_an_outage::<F>(vec![(ada, coins(half, "x"))]).await else {
        return;
    };
    let grant = adjustment(i64::try_from(half).unwrap() + 1, "k");
    world.adjust(ada, grant).await.outcome.unwrap();
    let room = world.wallet(ada).await;
    let reinstated = world.store().reinstate(&world.hunt, 0, u64::MAX).await;
    // The hunt's total cannot hold more than the limit, so neither can the wallet.
    assert_eq!(reinstated.unwrap().finds, 1);
    assert_eq!(world.wallet(ada).await.balance, room.balance + half);
    world.verify().await;
}

pub(crate) async fn hundreds_of_finds_are_reinstated_in_one_go<F: Fixture>() {
    let finds = (0..1_200)
        .map(|n| (PlayerId(n % 300), coins(1, &format!("id-{n}"))))
        .collect();
    let Some(world) = after_an_outage::<F>(finds).await else {
        return;
    };
    let reinstated = world.store().reinstate(&world.hunt, 0, u64::MAX).await;
    assert_eq!(reinstated.unwrap().finds, 1_200);
    assert_eq!(world.wallet(PlayerId(7)).await.balance, 4);
    world.verify().await;
}
