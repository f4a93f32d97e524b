//! What is promised of an answer, and of what the feed tells: that replicas, or the disk, have it.

use super::*;
use crate::redis_server::cluster::wait_until;
use std::sync::Arc;
use trove::game::rules::Decision;
use trove::store::redis::{ConnectError, Durability};

const WINDOW_MS: u64 = 300_000;
const ADA: PlayerId = PlayerId(7);

fn promising(durability: Durability) -> Options {
    Options {
        durability,
        durability_wait: Duration::from_millis(1_500),
        response_timeout: Duration::from_secs(10),
        ..quick()
    }
}

fn replicated() -> Options {
    promising(Durability::Replicated { replicas_min: 1 })
}

fn replica_of(primary: &Server) -> Server {
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = Server::of(&primary.binary, &["--replicaof", &of]);
    wait_until("the replica follows", || {
        let info: String = primary.run(&["INFO", "replication"]);
        info.contains("state=online")
    });
    replica
}

fn primary() -> Server {
    Server::with(&["--repl-diskless-sync-delay", "0"])
}

fn calls(server: &Server, command: &str) -> u64 {
    let text: String = server.run(&["INFO", "commandstats"]);
    let line = format!("cmdstat_{command}:calls=");
    let calls = text.lines().find_map(|text| text.strip_prefix(&line));
    calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn what_no_replica_has_is_not_answered_and_asking_again_gets_the_truth() {
    let server = primary();
    let replica = replica_of(&server);
    let store = connect_with(&server, replicated()).await;
    open_hunt(&store, WINDOW_MS).await;
    find(&store, ADA, with_id("1")).await.unwrap().unwrap();
    let mut feed = store.feed().unwrap();
    replica.pause();
    let asked = find(&store, ADA, with_id("2")).await;
    assert!(matches!(asked, Err(StoreError::NotDurable(_))), "{asked:?}");
    let credit = store.credit(&hunt(), ADA).await;
    assert!(
        matches!(credit, Err(StoreError::NotDurable(_))),
        "{credit:?}"
    );
    let wallet = store.wallet(&hunt(), ADA).await;
    assert!(
        matches!(wallet, Err(StoreError::NotDurable(_))),
        "what may be lost is not read either: {wallet:?}"
    );
    // The feed is read all the while, and tells of none of it.
    until("the feed counts as silent", async || {
        store.feed_silent_ms().filter(|silent_ms| *silent_ms > 600)
    })
    .await;
    while let Ok(events) = feed.try_recv() {
        let shown =
            |event: &FeedEvent| matches!(event, FeedEvent::Wallet { wallet, .. } if wallet.seq > 1);
        assert!(!events.iter().any(shown), "{events:?}");
    }
    replica.go_on();
    let again = until("the find is answered", async || {
        find(&store, ADA, with_id("2")).await.ok()
    })
    .await;
    assert!(matches!(again, Ok(Decision::Duplicate(_))), "{again:?}");
    let wallet = store.wallet(&hunt(), ADA).await.unwrap();
    assert_eq!((wallet.balance, wallet.pending_finds), (20, 0));
    told(
        &mut feed,
        "the credit",
        |event| matches!(event, FeedEvent::Wallet { wallet, .. } if wallet.balance == 20),
    )
    .await;
    verify(&store).await;
}

#[tokio::test]
async fn what_a_fence_covered_is_read_also_without_replicas() {
    let bob = PlayerId(8);
    let server = primary();
    let replica = replica_of(&server);
    let writer = connect_with(&server, replicated()).await;
    open_hunt(&writer, WINDOW_MS).await;
    for player in [ADA, bob] {
        find(&writer, player, with_id("1")).await.unwrap().unwrap();
        writer.credit(&hunt(), player).await.unwrap();
    }
    let ann = open(&writer, "ann", 1).await.unwrap();
    // An instance that has covered what it reads.
    let store = connect_with(&server, replicated()).await;
    assert_eq!(store.wallet(&hunt(), ADA).await.unwrap().balance, 10);
    replica.pause();
    let before = calls(&server, "wait");
    assert_eq!(store.wallet(&hunt(), ADA).await.unwrap().balance, 10);
    let history = store.history(&hunt(), ADA, u64::MAX, 10).await.unwrap();
    assert_eq!(history.len(), 2);
    let nobody = store.wallet(&hunt(), PlayerId(9)).await.unwrap();
    assert_eq!(nobody.seq, 0);
    assert_eq!(open(&store, "ann", 1).await.unwrap(), ann);
    assert_eq!(calls(&server, "wait"), before, "no replica was asked");
    // It has everything else that is there covered by itself.
    replica.go_on();
    until("what nobody read is covered too", async || {
        replica.pause();
        let read = store.wallet(&hunt(), bob).await.ok();
        replica.go_on();
        read.filter(|wallet| wallet.balance == 10)
    })
    .await;
    // What no replica has is not read, and a name that no replica has is none.
    replica.pause();
    let asked = find(&writer, bob, with_id("2")).await;
    assert!(matches!(asked, Err(StoreError::NotDurable(_))), "{asked:?}");
    for reader in [&store, &writer] {
        let wallet = reader.wallet(&hunt(), bob).await;
        assert!(
            matches!(wallet, Err(StoreError::NotDurable(_))),
            "{wallet:?}"
        );
    }
    let opening = Opening {
        name: PlayerName::new("new").unwrap(),
        issued_at: Some(1),
        known: None,
    };
    let opened = store.open_players(vec![opening]).await;
    assert!(
        matches!(opened, Err(StoreError::NotDurable(_))),
        "{opened:?}"
    );
    replica.go_on();
    until("the find is read", async || {
        let wallet = store.wallet(&hunt(), bob).await.ok()?;
        (wallet.pending_finds == 1).then_some(())
    })
    .await;
    verify(&store).await;
}

#[tokio::test]
async fn one_fence_covers_many_finds() {
    let server = primary();
    let _replica = replica_of(&server);
    let options = Options {
        durability_wait: PATIENCE,
        ..replicated()
    };
    let store = Arc::new(connect_with(&server, options).await);
    open_hunt(&store, WINDOW_MS).await;
    let before = calls(&server, "wait");
    let finds = 500;
    let asked: Vec<_> = (0..finds)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { find(&store, PlayerId(n), of("a")).await })
        })
        .collect();
    for answer in asked {
        answer.await.unwrap().unwrap().unwrap();
    }
    let fences = calls(&server, "wait") - before;
    println!("{finds} finds, {fences} fences");
    assert!(fences > 0 && fences < finds / 4, "{fences}");
    verify(&store).await;
}

#[tokio::test]
async fn what_another_instance_wrote_is_covered_before_it_is_shown() {
    let server = primary();
    let replica = replica_of(&server);
    let careless = connect(&server).await;
    open_hunt(&careless, WINDOW_MS).await;
    let store = connect_with(&server, replicated()).await;
    let mut feed = store.feed().unwrap();
    let before = calls(&server, "wait");
    find(&careless, ADA, of("a")).await.unwrap().unwrap();
    let pending = |event: &FeedEvent| matches!(event, FeedEvent::Wallet { wallet, .. } if wallet.pending_finds == 1);
    told(&mut feed, "the find", pending).await;
    assert!(calls(&server, "wait") > before);
    // And what the replica does not have is not.
    replica.pause();
    careless.credit(&hunt(), ADA).await.unwrap();
    until("the feed counts as silent", async || {
        store.feed_silent_ms().filter(|silent_ms| *silent_ms > 600)
    })
    .await;
    while let Ok(events) = feed.try_recv() {
        let credited = |event: &FeedEvent| matches!(event, FeedEvent::Wallet { wallet, .. } if wallet.balance > 0);
        assert!(!events.iter().any(credited), "{events:?}");
    }
    replica.go_on();
    let credited = |event: &FeedEvent| matches!(event, FeedEvent::Wallet { wallet, .. } if wallet.balance == 10);
    told(&mut feed, "the credit", credited).await;
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_replica_takes_over() {
    let mut server = primary();
    let replica = replica_of(&server);
    let store = connect_with(&server, replicated()).await;
    open_hunt(&store, WINDOW_MS).await;
    let mut acknowledged = Vec::new();
    for n in 0..200 {
        let id = format!("f{n}");
        if matches!(find(&store, ADA, with_id(&id)).await, Ok(Ok(_))) {
            acknowledged.push(id);
        }
        if n == 150 {
            // From here on the primary's word is worth nothing.
            replica.pause();
            let lost = find(&store, ADA, with_id("lost")).await;
            assert!(matches!(lost, Err(StoreError::NotDurable(_))), "{lost:?}");
            break;
        }
    }
    server.kill();
    replica.go_on();
    let () = replica.run(&["REPLICAOF", "NO", "ONE"]);
    let promoted = connect(&replica).await;
    for id in &acknowledged {
        let again = find(&promoted, ADA, with_id(id)).await.unwrap();
        assert!(
            matches!(again, Ok(Decision::Duplicate(_))),
            "{id}: {again:?}"
        );
    }
    assert_eq!(acknowledged.len(), 151);
    verify(&promoted).await;
}

async fn refused(server: &Server) -> String {
    let options = Options {
        connect_wait: Duration::from_secs(10),
        ..promising(Durability::Fsync)
    };
    match RedisStore::connect(&server.url(), options).await {
        Err(ConnectError::Durability(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[tokio::test]
async fn fsync_is_refused_by_a_server_that_cannot_and_the_reason_is_said() {
    let server = Server::with(&["--appendonly", "yes"]);
    if server.version() < (7, 2) {
        assert!(refused(&server).await.contains("WAITAOF came with 7.2.0"));
    }
    let Some(binary) = redis_server::with_waitaof() else {
        return;
    };
    let server = Server::of(&binary, &[]);
    let why = refused(&server).await;
    assert!(why.contains("set appendonly yes"), "{why}");
    let args = ["--appendonly", "yes", "--appendfsync"];
    let server = Server::of(&binary, &[&args[..], &["no"]].concat());
    let why = refused(&server).await;
    assert!(why.contains("never syncs"), "{why}");
    let () = server.run(&["CONFIG", "SET", "appendfsync", "everysec"]);
    let why = refused(&server).await;
    assert!(why.contains("durability_wait_ms = 1500"), "{why}");
}

#[tokio::test]
async fn with_fsync_what_was_answered_is_on_disk() {
    let Some(binary) = redis_server::with_waitaof() else {
        return;
    };
    let args = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let mut server = Server::of(&binary, &args);
    let options = Options {
        durability_wait: PATIENCE,
        ..promising(Durability::Fsync)
    };
    let store = connect_with(&server, options).await;
    open_hunt(&store, WINDOW_MS).await;
    let before = calls(&server, "waitaof");
    for n in 0..5 {
        let id = format!("f{n}");
        find(&store, ADA, with_id(&id)).await.unwrap().unwrap();
    }
    assert!(calls(&server, "waitaof") >= before + 5);
    server.start_again();
    let credited = until("the credit is answered", async || {
        store.credit(&hunt(), ADA).await.ok()
    })
    .await;
    assert_eq!(credited.wallet.balance, 50);
    // A file that is not written any more is noticed by the next find.
    let () = server.run(&["CONFIG", "SET", "appendonly", "no"]);
    let asked = find(&store, ADA, with_id("last")).await;
    assert!(matches!(asked, Err(StoreError::NotDurable(_))), "{asked:?}");
    verify(&connect(&server).await).await;
}
