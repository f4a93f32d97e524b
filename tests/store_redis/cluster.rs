//! The store on a cluster whose slots move, whose primaries die, and which loses a part of itself.

#![allow(
    clippy::disallowed_methods,
    reason = "only what the program itself makes wait is counted"
)]

use super::*;
use crate::redis_server::cluster::{Cluster, PRIMARIES};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trove::game::rules::Decision;
use trove::store::Health;
use trove::store::redis::ConnectError;
use trove_streams::keys::Keys;
use trove_streams::slot::slot;
use trove_streams::{Partition, Partitions};

const WINDOW_MS: u64 = 300_000;

fn options() -> Options {
    Options {
        partitions: 8,
        // Nothing falls silent here, and a loaded machine must not look as if it did.
        response_timeout: Duration::from_secs(10),
        ..quick()
    }
}

async fn on(cluster: &Cluster, options: Options) -> RedisStore {
    RedisStore::connect(&cluster.url(), options).await.unwrap()
}

fn keys() -> Keys {
    Keys::new("", Partitions::new(8).unwrap()).unwrap()
}

/// A player whose partition is `partition`.
fn player_in(partition: Partition) -> PlayerId {
    let partitions = Partitions::new(8).unwrap();
    let mut numbers = (0..).filter(|number| partitions.of_player(*number) == partition);
    PlayerId(numbers.next().unwrap())
}

fn slot_of(partition: Partition) -> u16 {
    slot(keys().partition(partition).state().as_bytes())
}

/// How often a node answered with an error.
fn errors(node: &Server, code: &str) -> u64 {
    let text: String = node.run(&["INFO", "errorstats"]);
    let line = format!("errorstat_{code}:count=");
    let count = text.lines().find_map(|text| text.strip_prefix(&line));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Asks for a find until there is an outcome.
async fn find_for_sure(store: &RedisStore, player: PlayerId, id: &str) -> Decision {
    let began = Instant::now();
    loop {
        match find(store, player, with_id(id)).await {
            Ok(outcome) => return outcome.unwrap(),
            Err(
                StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::NotDurable(_),
            ) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(began.elapsed() < PATIENCE, "a find is never answered");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_single_server_is_no_cluster_and_a_cluster_no_single_server() {
    let server = Server::start();
    let options = Options {
        connect_wait: Duration::from_secs(20),
        ..options()
    };
    let url = server.url().replace("redis://", "redis+cluster://");
    let Err(error) = RedisStore::connect(&url, options.clone()).await else {
        panic!("it was not refused");
    };
    let ConnectError::Unreachable(why) = &error else {
        panic!("{error}");
    };
    assert!(why.contains("no node of a cluster"), "{why}");
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(false, 60_000))
        .await
        .unwrap();
    let Err(error) = RedisStore::connect(&cluster.nodes[0].url(), options).await else {
        panic!("it was not refused");
    };
    assert!(error.to_string().contains("cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_under_load_loses_and_doubles_nothing() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(false, 60_000))
        .await
        .unwrap();
    let cluster = Arc::new(cluster);
    let store = Arc::new(on(&cluster, options()).await);
    open_hunt(&store, WINDOW_MS).await;
    let mut feed = store.feed().unwrap();
    let partition = Partitions::new(8).unwrap().get(3).unwrap();
    let moving = player_in(partition);
    let epoch = store.epoch();
    let (done, found) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let players: Vec<PlayerId> = (0..40).map(PlayerId).chain([moving]).collect();
    let load: Vec<_> = players
        .iter()
        .map(|player| {
            let (store, done, found, player) =
                (store.clone(), done.clone(), found.clone(), *player);
            tokio::spawn(async move {
                let mut nth = 0;
                while !done.load(Ordering::Relaxed) {
                    find_for_sure(&store, player, &format!("f{nth}")).await;
                    let _ = store.credit(&hunt(), player).await;
                    found.fetch_add(1, Ordering::Relaxed);
                    nth += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                nth
            })
        })
        .collect();
    let (mover, counted) = (cluster.clone(), found.clone());
    let moved = tokio::task::spawn_blocking(move || {
        let home = mover.primary_of(slot_of(partition));
        for nth in 0..3 {
            let to = (home + 1 + nth % (PRIMARIES - 1)) % PRIMARIES;
            let from = mover.primary_of(slot_of(partition));
            let to = if to == from { home } else { to };
            // Between two steps there is load, on this slot too.
            mover.move_slot(slot_of(partition), to, || {
                let before = counted.load(Ordering::Relaxed);
                let began = Instant::now();
                while counted.load(Ordering::Relaxed) < before + 10
                    && began.elapsed() < Duration::from_secs(2)
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    moved.await.unwrap();
    let before = found.load(Ordering::Relaxed);
    until("the load goes on", async || {
        (found.load(Ordering::Relaxed) > before + 100).then_some(())
    })
    .await;
    done.store(true, Ordering::Relaxed);
    for (player, load) in players.iter().zip(load) {
        let finds: u64 = load.await.unwrap();
        let wallet = until("the last is credited", async || {
            let wallet = store.credit(&hunt(), *player).await.ok()?.wallet;
            (wallet.pending_finds == 0).then_some(wallet)
        })
        .await;
        assert_eq!(
            (wallet.balance, wallet.seq),
            (finds * 10, finds * 2),
            "{player:?}"
        );
    }
    assert_eq!(store.epoch(), epoch, "no history was cut");
    // It was on its way all right.
    for code in ["MOVED", "ASK", "TRYAGAIN"] {
        let refusals: u64 = cluster.nodes.iter().map(|node| errors(node, code)).sum();
        println!("{code}: {refusals}");
        assert!(
            refusals > 0 || code == "ASK",
            "nothing was answered with {code}"
        );
    }
    verify(&store).await;
    // The feed goes on from the new primary.
    find_for_sure(&store, moving, "last").await;
    let news = |event: &FeedEvent| matches!(event, FeedEvent::Wallet { player, wallet, .. } if *player == moving && wallet.pending_finds == 1);
    // What piled up meanwhile is read first.
    told(&mut feed, "the last find", news).await;
}

#[tokio::test]
async fn a_primary_that_comes_back_empty_yields_no_zero_balance_until_it_is_accepted() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(false, 60_000))
        .await
        .unwrap();
    let mut cluster = cluster;
    // It keeps nothing that it could bring back.
    let forgetful = Options {
        replay_bytes_max: 0,
        ..options()
    };
    let store = on(&cluster, forgetful).await;
    open_hunt(&store, WINDOW_MS).await;
    // A partition that does not lie where the identity lies.
    let home = cluster.primary_of(slot(keys().identity().as_bytes()));
    let partitions = Partitions::new(8).unwrap();
    let elsewhere = |partition: &Partition| cluster.primary_of(slot_of(*partition)) != home;
    let partition = partitions.iter().find(elsewhere).unwrap();
    let hunts = cluster.primary_of(slot(keys().hunts().as_bytes()));
    let lost = cluster.primary_of(slot_of(partition));
    let player = player_in(partition);
    find(&store, player, of("a")).await.unwrap().unwrap();
    store.credit(&hunt(), player).await.unwrap();
    cluster.nodes[lost].start_again();
    until("the part is missed", async || {
        matches!(store.health(), Health::Down(why) if why.contains("has lost it")).then_some(())
    })
    .await;
    let wallet = store.wallet(&hunt(), player).await;
    assert!(
        matches!(wallet, Err(StoreError::Unavailable(_))),
        "{wallet:?}"
    );
    store.accept().await.unwrap();
    until("the store is up", async || {
        (store.health() == Health::Up).then_some(())
    })
    .await;
    if hunts != lost {
        let wallet = store.wallet(&hunt(), player).await.unwrap();
        assert_eq!(wallet.balance, 0, "that is what was accepted");
    }
}
