//! Rule 11: grants and revocations, once a key.

use super::world::*;
use trove::game::coins::COINS_MAX;
use trove::game::hunt::LifeStep;
use trove::game::rules::{AdjustDecision, AdjustRefusal};
use trove::game::wallet::WalletError;

pub(crate) async fn a_grant_and_a_revocation_move_the_balance_and_the_sums<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let granted = world.adjust(ada, adjustment(100, "k1")).await;
    assert_eq!((granted.wallet.balance, granted.wallet.seq), (100, 1));
    let totals = world.totals().await;
    assert_eq!((totals.recorded, totals.credited), (100, 100));
    let revoked = world.adjust(ada, adjustment(-30, "k2")).await;
    assert_eq!(revoked.wallet.balance, 70);
    let totals = world.totals().await;
    assert_eq!((totals.credited, totals.revoked), (70, 30));
    assert_eq!(words(&world.history(ada).await), ["adjust", "adjust"]);
    assert_eq!(world.wallet(ada).await, revoked.wallet);
    world.verify().await;
}

pub(crate) async fn the_same_key_is_the_same_adjustment<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let first = world.adjust(ada, adjustment(100, "k")).await;
    let Ok(AdjustDecision::Recorded(entry)) = first.outcome else {
        panic!("{first:?}")
    };
    world.fixture.restart(1_000).await;
    let mut by_another = adjustment(100, "k");
    by_another.by = "somebody else".into();
    for again in [adjustment(100, "k"), by_another] {
        let again = world.adjust(ada, again).await;
        assert_eq!(again.outcome, Ok(AdjustDecision::Duplicate(entry.clone())));
        assert_eq!(again.wallet, first.wallet);
    }
    world.verify().await;
}

pub(crate) async fn the_same_key_for_another_adjustment_is_a_conflict<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let first = world.adjust(ada, adjustment(100, "k")).await;
    let mut reason = adjustment(100, "k");
    reason.reason = "another".into();
    for other in [adjustment(101, "k"), adjustment(-100, "k"), reason] {
        let refused = world.adjust(ada, other).await;
        assert_eq!(refused.outcome, Err(AdjustRefusal::Conflict));
        assert_eq!(refused.wallet, first.wallet);
    }
}

pub(crate) async fn keys_are_scoped_to_the_player<F: Fixture>() {
    let world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.adjust(ada, adjustment(1, "k")).await;
    let bobs = world.adjust(bob, adjustment(2, "k")).await;
    assert_eq!(bobs.wallet.balance, 2);
    // Neither is a find's id.
    world.find(ada, coins(3, "k")).await.unwrap();
    assert_eq!(world.poll(ada).await.wallet.balance, 4);
}

pub(crate) async fn a_revocation_of_more_than_the_balance_is_refused<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.adjust(ada, adjustment(10, "k1")).await;
    world.find(ada, of("a")).await.unwrap();
    let refused = world.adjust(ada, adjustment(-11, "k2")).await;
    let insufficient = AdjustRefusal::Wallet(WalletError::InsufficientCoins);
    assert_eq!(refused.outcome, Err(insufficient));
    assert_eq!(refused.wallet, world.wallet(ada).await);
    // A refused adjustment does not take its key.
    world.poll(ada).await;
    let now = world.adjust(ada, adjustment(-11, "k2")).await;
    assert_eq!(now.wallet.balance, 9);
    world.verify().await;
}

pub(crate) async fn adjustments_out_of_range_are_refused<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let max = i64::try_from(COINS_MAX).unwrap();
    let range = Err(AdjustRefusal::Wallet(WalletError::CoinsOutOfRange));
    for bad in [0, max + 1, -max - 1, i64::MAX, i64::MIN] {
        let refused = world.adjust(ada, adjustment(bad, "k")).await;
        assert_eq!(refused.outcome, range, "{bad}");
    }
    world
        .adjust(ada, adjustment(max, "k"))
        .await
        .outcome
        .unwrap();
    let over = world.adjust(ada, adjustment(1, "k2")).await;
    assert_eq!(over.outcome, range);
    world
        .adjust(ada, adjustment(-max, "k3"))
        .await
        .outcome
        .unwrap();
    assert_eq!(world.wallet(ada).await.balance, 0);
    world.verify().await;
}

pub(crate) async fn a_key_is_remembered_for_the_hunts_whole_life<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.adjust(ada, adjustment(10, "k")).await;
    world.fixture.advance(400 * 24 * 3_600_000);
    let again = world.adjust(ada, adjustment(10, "k")).await;
    assert!(matches!(again.outcome, Ok(AdjustDecision::Duplicate(_))));
}

pub(crate) async fn a_closed_hunt_can_be_adjusted_and_an_archived_one_cannot<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let close = world.store().step_hunt(&world.hunt, LifeStep::Close);
    close.await.unwrap().unwrap();
    world.adjust(ada, adjustment(5, "k")).await.outcome.unwrap();
    let archive = world.store().step_hunt(&world.hunt, LifeStep::Archive);
    archive.await.unwrap().unwrap();
    let refused = world.adjust(ada, adjustment(5, "k2")).await;
    assert_eq!(refused.outcome, Err(AdjustRefusal::HuntArchived));
    assert_eq!(refused.wallet.balance, 5);
}
