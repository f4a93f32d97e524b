//! Many callers at once.

use super::world::*;
use std::sync::Arc;
use trove::game::entry::Change;
use trove::game::ids::PlayerId;

pub(crate) async fn one_treasure_found_by_many_callers_at_once_is_recorded_once<F: Fixture>() {
    let world = Arc::new(World::<F>::new().await);
    let ada = world.player("ada").await;
    let callers = (0..64).map(|_| {
        let world = world.clone();
        tokio::spawn(async move { recorded(&world.find(ada, of("a")).await).1 })
    });
    let mut first = 0;
    for caller in callers.collect::<Vec<_>>() {
        first += u32::from(!caller.await.unwrap());
    }
    assert_eq!(first, 1);
    assert_eq!(world.history(ada).await.len(), 1);
    world.verify().await;
}

pub(crate) async fn many_pollers_of_one_player_credit_each_find_once<F: Fixture>() {
    let world = Arc::new(World::<F>::new().await);
    let ada = world.player("ada").await;
    let callers = (0..32).map(|caller: u64| {
        let world = world.clone();
        tokio::spawn(async move {
            let mut credited = 0;
            for n in 0..5 {
                let find = coins(1, &format!("{caller}-{n}"));
                world.find(ada, find).await.unwrap();
                for entry in world.poll(ada).await.entries {
                    match entry.change {
                        Change::Credit(find) => credited += find.coins,
                        other => panic!("{other:?}"),
                    }
                }
            }
            credited
        })
    });
    let mut credited = 0;
    for caller in callers.collect::<Vec<_>>() {
        credited += caller.await.unwrap();
    }
    assert_eq!(credited, 160);
    assert_eq!(world.wallet(ada).await.balance, 160);
    world.verify().await;
}

pub(crate) async fn many_players_at_once_add_up<F: Fixture>() {
    let world = Arc::new(World::<F>::new().await);
    let callers = (0..100_u64).map(|n| {
        let world = world.clone();
        tokio::spawn(async move {
            let player = world.player(&format!("player-{n}")).await;
            for treasure in ["a", "b", "a", "c"] {
                world.find(player, of(treasure)).await.unwrap();
            }
            if n % 2 == 0 {
                world.poll(player).await;
            }
            if n % 10 == 0 {
                world.adjust(player, adjustment(-10, "k")).await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let totals = world.totals().await;
    assert_eq!((totals.recorded, totals.pending), (6_000, 3_000));
    assert_eq!((totals.credited, totals.revoked), (2_900, 100));
    world.verify().await;
}

pub(crate) async fn dropping_a_future_does_not_undo_the_work<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    drop(world.store().record(&world.hunt, vec![(ada, of("a"))]));
    drop(world.store().credit(&world.hunt, ada));
    drop(world.store().adjust(&world.hunt, ada, adjustment(5, "k")));
    world
        .until("the work is done", || async {
            world.wallet(ada).await.balance == 15
        })
        .await;
    world.verify().await;
}

pub(crate) async fn a_batch_with_a_refusal_does_not_hold_back_the_others<F: Fixture>() {
    let world = World::<F>::new().await;
    let store = world.store();
    let finds: Vec<_> = (0..20)
        .map(|n| {
            let treasure = if n % 2 == 0 { "a" } else { "nowhere" };
            store.record(&world.hunt, vec![(PlayerId(n), of(treasure))])
        })
        .collect();
    for (n, find) in finds.into_iter().enumerate() {
        let answer = find.await.unwrap();
        assert_eq!(answer.outcomes[0].is_ok(), n % 2 == 0);
    }
    world.verify().await;
}
