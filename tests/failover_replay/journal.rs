//! The ring on disk: an instance and the primary lost together.

use super::*;

const ADA: PlayerId = PlayerId(7);

#[tokio::test]
async fn an_instance_and_the_primary_lost_together_lose_nothing_with_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let options = Options {
        journal_dir: Some(dir.path().to_owned()),
        ..world.options()
    };
    let store = world.connect_with(options.clone()).await;
    open_hunt(&store, "h").await;
    let ada = open(&store, "ada", START).await.unwrap();
    world.save();
    find(&store, ada, of("a")).await;
    find(&store, ADA, with_id("x")).await;
    assert_eq!(credit(&store, ada).await.balance, 10);
    let lost = open(&store, "ben", START).await.unwrap();
    step(&store, "h", LifeStep::Close).await;
    drop(store);
    world.lose();
    let store = until("the journal is let go", async || {
        RedisStore::connect(&world.server.url(), options.clone())
            .await
            .ok()
    })
    .await;
    until("the recovery is over", async || {
        (store.health() == Health::Up).then_some(())
    })
    .await;
    assert_eq!(wallet(&store, ada).await.balance, 10);
    assert_eq!(wallet(&store, ADA).await.pending_coins, 3);
    assert_eq!(open(&store, "ben", START).await.unwrap(), lost);
    assert_eq!(returned(&store, ReplayKind::Hunt), 1);
    verify(&store).await;
}

#[tokio::test]
async fn a_journal_of_a_store_that_lost_nothing_brings_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new();
    let options = Options {
        journal_dir: Some(dir.path().to_owned()),
        ..world.options()
    };
    let store = world.connect_with(options.clone()).await;
    open_hunt(&store, "h").await;
    find(&store, ADA, of("a")).await;
    credit(&store, ADA).await;
    drop(store);
    let store = until("the journal is let go", async || {
        RedisStore::connect(&world.server.url(), options.clone())
            .await
            .ok()
    })
    .await;
    until("the recovery is over", async || {
        (store.health() == Health::Up).then_some(())
    })
    .await;
    assert_eq!(store.replay_counts().replayed, [0; 7]);
    assert_eq!(kinds(&store, ADA).await, "fc");
    verify(&store).await;
}
