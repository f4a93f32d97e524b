//! Rules 1 and 2: the window, and crediting once.

use super::world::*;
use trove::game::entry::{Change, ExpiryReason};
use trove::game::hunt::HuntSpec;
use trove::game::ids::HuntId;

pub(crate) async fn a_poll_credits_what_was_found_and_says_the_new_balance<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let outcome = world.find(ada, of("a")).await;
    let (find, duplicate) = recorded(&outcome);
    assert_eq!((find.coins, find.found_at), (10, START));
    assert_eq!(find.expires_at, START + WINDOW_MS);
    assert!(!duplicate);
    let pending = world.wallet(ada).await;
    assert_eq!((pending.balance, pending.pending_coins), (0, 10));
    assert_eq!(pending.due_at, START + WINDOW_MS);
    let credited = world.poll(ada).await;
    assert_eq!((credited.wallet.balance, credited.wallet.seq), (10, 2));
    assert_eq!(words(&credited.entries), ["credit"]);
    assert_eq!(world.wallet(ada).await, credited.wallet);
    world.verify().await;
}

pub(crate) async fn a_find_on_the_last_millisecond_is_credited<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    world.verify().await;
}

pub(crate) async fn a_find_one_millisecond_past_its_window_expires<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS + 1);
    let wallet = world.poll(ada).await.wallet;
    assert_eq!((wallet.balance, wallet.pending_finds), (0, 0));
    let history = world.history(ada).await;
    assert_eq!(words(&history), ["find", "expire"]);
    assert!(matches!(
        history[1].change,
        Change::Expire(_, ExpiryReason::Window)
    ));
    let totals = world.totals().await;
    assert_eq!(
        (totals.expired, totals.credited, totals.pending),
        (10, 0, 0)
    );
    world.verify().await;
}

pub(crate) async fn a_find_is_credited_once_however_often_is_polled<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    assert_eq!(world.poll(ada).await.entries.len(), 1);
    for _ in 0..3 {
        let again = world.poll(ada).await;
        assert_eq!((again.entries.len(), again.wallet.balance), (0, 10));
    }
    assert_eq!(world.totals().await.credited, 10);
}

pub(crate) async fn one_poll_credits_all_finds_in_their_order<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    for id in ["c", "a", "b"] {
        world.find(ada, of(id)).await.unwrap();
        world.fixture.advance(1);
    }
    let credited = world.poll(ada).await;
    let coins: Vec<u64> = credited
        .entries
        .iter()
        .map(|entry| match &entry.change {
            Change::Credit(find) => find.coins,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(coins, [30, 10, 20]);
    assert_eq!((credited.wallet.seq, credited.wallet.shown_seq), (6, 6));
    world.verify().await;
}

pub(crate) async fn a_poll_with_nothing_to_collect_changes_nothing<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let credited = world.poll(ada).await;
    assert_eq!(credited.wallet, world.wallet(ada).await);
    assert_eq!((credited.wallet.seq, credited.entries.len()), (0, 0));
    assert!(world.history(ada).await.is_empty());
}

pub(crate) async fn the_windows_of_two_hunts_are_their_own<F: Fixture>() {
    let world = World::<F>::new().await;
    let short = HuntId::new("short").unwrap();
    world
        .open_hunt(HuntSpec {
            window_ms: 1_000,
            ..spec("short")
        })
        .await;
    let ada = world.player("ada").await;
    let store = world.store();
    store.record(&short, vec![(ada, of("a"))]).await.unwrap();
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(1_001);
    assert_eq!(store.credit(&short, ada).await.unwrap().wallet.balance, 0);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    world.verify().await;
}

pub(crate) async fn players_do_not_see_one_anothers_finds<F: Fixture>() {
    let world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, of("a")).await.unwrap();
    assert_eq!(world.poll(bob).await.wallet.balance, 0);
    world.find(bob, of("a")).await.unwrap();
    assert_eq!(world.poll(bob).await.wallet.balance, 10);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    world.verify().await;
}
