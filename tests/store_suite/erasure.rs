//! Rule 12: the person is gone, the sums stay.

use super::world::*;
use trove::game::ids::{HuntId, PlayerName};
use trove::store::{Erased, Erasure, ExportRow, RecordRefusal};

async fn erase<F: Fixture>(world: &World<F>, name: &str) -> Erasure {
    let name = PlayerName::new(name).unwrap();
    world.store().erase(&name).await.unwrap()
}

pub(crate) async fn an_erased_name_is_nowhere_in_the_store<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada.lovelace@example.org").await;
    world.find(ada, of("a")).await.unwrap();
    world.poll(ada).await;
    assert!(world.fixture.holds_text("ada.lovelace").await);
    erase(&world, "ada.lovelace@example.org").await;
    assert!(!world.fixture.holds_text("ada.lovelace").await);
    for row in world.export().await {
        if let ExportRow::Wallet { player, name, .. } = row {
            assert_eq!((player, name), (ada, None));
        }
    }
}

pub(crate) async fn an_older_token_opens_nothing<F: Fixture>() {
    let world = World::<F>::new().await;
    world.player("ada").await;
    world.fixture.advance(1_000);
    erase(&world, "ada").await;
    for issued_at in [0, START, START + 1_000] {
        assert_eq!(world.open("ada", Some(issued_at)).await, Err(Erased));
    }
    assert!(world.open("bob", Some(START)).await.is_ok());
}

pub(crate) async fn a_newer_token_opens_a_new_number<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.poll(ada).await;
    erase(&world, "ada").await;
    let newer = world.open("ada", Some(START + 1)).await.unwrap();
    assert_ne!(newer, ada);
    assert_eq!(world.wallet(newer).await.balance, 0);
    assert!(!recorded(&world.find(newer, of("a")).await).1);
    // The older token still opens nothing, and the newer one opens the same number again.
    assert_eq!(world.open("ada", Some(START)).await, Err(Erased));
    assert_eq!(world.open("ada", Some(START + 1)).await, Ok(newer));
    assert_eq!(world.open("ada", None).await, Ok(newer));
    world.verify().await;
}

pub(crate) async fn nobody_else_recreates_an_erased_player<F: Fixture>() {
    let world = World::<F>::new().await;
    world.player("ada").await;
    erase(&world, "ada").await;
    assert_eq!(world.open("ada", None).await, Err(Erased));
    world.fixture.advance(1_000_000);
    assert_eq!(world.open("ada", None).await, Err(Erased));
}

pub(crate) async fn what_is_pending_is_revoked_in_all_hunts_and_the_sums_stay<F: Fixture>() {
    let world = World::<F>::new().await;
    world.open_hunt(spec("other")).await;
    let other = HuntId::new("other").unwrap();
    let ada = world.player("ada").await;
    let store = world.store();
    world.find(ada, of("a")).await.unwrap();
    world.poll(ada).await;
    world.find(ada, of("b")).await.unwrap();
    store.record(&other, vec![(ada, of("c"))]).await.unwrap();
    let erasure = erase(&world, "ada").await;
    let expected = Erasure {
        revoked: 50,
        existed: true,
    };
    assert_eq!(erasure, expected);
    let totals = world.totals().await;
    assert_eq!(
        (totals.credited, totals.revoked, totals.pending),
        (10, 20, 0)
    );
    assert_eq!(
        words(&world.history(ada).await),
        ["find", "credit", "find", "revoke"]
    );
    let wallet = world.wallet(ada).await;
    assert_eq!((wallet.balance, wallet.due_at), (10, 0));
    world.fixture.advance(WINDOW_MS + 1);
    world.verify().await;
}

pub(crate) async fn a_find_for_the_old_number_is_refused<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    erase(&world, "ada").await;
    let outcome = world.find(ada, of("a")).await;
    assert!(matches!(outcome, Err(RecordRefusal::Erased(Erased))));
    assert_eq!(world.wallet(ada).await.seq, 0);
}

pub(crate) async fn erasing_somebody_unknown_is_no_error_and_holds<F: Fixture>() {
    let world = World::<F>::new().await;
    let erasure = erase(&world, "nobody").await;
    assert_eq!(erasure, Erasure::default());
    assert_eq!(world.open("nobody", Some(START)).await, Err(Erased));
    assert!(world.open("nobody", Some(START + 1)).await.is_ok());
}

pub(crate) async fn erasing_survives_a_restart<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    erase(&world, "ada").await;
    world.fixture.restart(5_000).await;
    assert_eq!(world.open("ada", Some(START)).await, Err(Erased));
    let outcome = world.find(ada, of("a")).await;
    assert!(matches!(outcome, Err(RecordRefusal::Erased(Erased))));
}

pub(crate) async fn a_player_is_erased_as_often_as_there_is_a_new_one<F: Fixture>() {
    let world = World::<F>::new().await;
    let mut numbers = vec![world.player("ada").await];
    for round in 1..=3 {
        assert!(erase(&world, "ada").await.existed);
        assert!(!erase(&world, "ada").await.existed, "{round}: already gone");
        world.fixture.advance(1_000);
        let number = world.player("ada").await;
        assert!(!numbers.contains(&number));
        numbers.push(number);
        assert_eq!(world.open("ada", Some(START)).await, Err(Erased));
    }
}
