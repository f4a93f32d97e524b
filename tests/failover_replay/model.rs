//! Many seeded histories, each cut at a random place: what was acknowledged is there afterwards, once.

use super::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// What a client outside was told: finds by their ids, and which of them were credited.
#[derive(Default)]
struct Told {
    found: BTreeMap<PlayerId, BTreeSet<String>>,
    credited: BTreeMap<PlayerId, BTreeSet<String>>,
    granted: BTreeMap<PlayerId, u64>,
}

#[tokio::test]
async fn whatever_the_history_and_wherever_it_is_cut_each_acknowledged_thing_is_there_once() {
    let seed = std::env::var("TROVE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    println!("TROVE_TEST_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..4 {
        history_with_cuts(&mut random).await;
    }
}

async fn history_with_cuts(random: &mut SmallRng) {
    let mut world = World::new();
    let stores = [world.connect().await, world.connect().await];
    open_hunt(&stores[0], "h").await;
    until("both know the hunt", async || {
        stores[1].wallet(&hunt(), PlayerId(1)).await.ok()
    })
    .await;
    let mut told = Told::default();
    world.save();
    for round in 0..3 {
        for step in 0..random.random_range(20..80) {
            let store = &stores[random.random_range(0..2)];
            let player = PlayerId(random.random_range(1..6));
            match random.random_range(0..10) {
                0..5 => {
                    let id = format!("{round}-{step}");
                    if let Ok(Ok(_)) = try_find(store, &hunt(), player, with_id(&id)).await {
                        told.found.entry(player).or_default().insert(id);
                    }
                }
                5..8 => {
                    if let Ok(credited) = store.credit(&hunt(), player).await {
                        for entry in credited.entries {
                            if let Change::Credit(find) = entry.change {
                                let id = find.id.as_str().to_owned();
                                told.credited.entry(player).or_default().insert(id);
                            }
                        }
                    }
                }
                8 => {
                    let key = format!("{round}-{step}");
                    let made = store.adjust(&hunt(), player, adjustment(2, &key)).await;
                    if made.is_ok_and(|made| made.outcome.is_ok()) {
                        *told.granted.entry(player).or_default() += 2;
                    }
                }
                _ => world.advance(random.random_range(1..2_000)),
            }
            if random.random_range(0..20) == 0 {
                world.save();
            }
        }
        let epoch = stores[0].epoch();
        world.lose();
        // Some go on writing while others still offer.
        for store in &stores {
            let id = format!("{round}-after");
            let player = PlayerId(random.random_range(1..6));
            if let Ok(Ok(_)) = try_find(store, &hunt(), player, with_id(&id)).await {
                told.found.entry(player).or_default().insert(id);
            }
        }
        for store in &stores {
            recovered(store, epoch).await;
        }
    }
    for player in (1..6).map(PlayerId) {
        let entries = until("nothing more comes back", async || {
            let entries = history(&stores[0], player).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            (entries == history(&stores[1], player).await).then_some(entries)
        })
        .await;
        let (mut found, mut credited, mut granted) = (Vec::new(), Vec::new(), 0);
        for entry in &entries {
            match &entry.change {
                Change::Find(find) => found.push(find.id.as_str().to_owned()),
                Change::Credit(find) | Change::Replay(find, _) => {
                    credited.push(find.id.as_str().to_owned());
                }
                Change::Adjust(adjustment) => granted += adjustment.coins.unsigned_abs(),
                _ => {}
            }
        }
        for list in [&found, &credited] {
            let once: BTreeSet<_> = list.iter().collect();
            assert_eq!(once.len(), list.len(), "twice: {list:?}");
        }
        for id in told.found.get(&player).into_iter().flatten() {
            assert!(found.contains(id), "player {player}: find {id} is lost");
        }
        for id in told.credited.get(&player).into_iter().flatten() {
            assert!(
                credited.contains(id),
                "player {player}: credit {id} is lost"
            );
        }
        assert_eq!(granted, told.granted.get(&player).copied().unwrap_or(0));
    }
    verify(&stores[0]).await;
}
