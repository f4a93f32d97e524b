//! Servers that fail, and what is said meanwhile.

use super::*;
use trove::game::entry::{Change, ExpiryReason};
use trove::game::rules::Decision;
use trove::store::Health;

const WINDOW_MS: u64 = 300_000;
const ADA: PlayerId = PlayerId(7);

/// A wallet with ten coins.
async fn with_coins(store: &RedisStore) {
    open_hunt(store, WINDOW_MS).await;
    find(store, ADA, of("a")).await.unwrap().unwrap();
    assert_eq!(store.credit(&hunt(), ADA).await.unwrap().wallet.balance, 10);
}

async fn up(store: &RedisStore) {
    until("the store is up", async || {
        (store.health() == Health::Up).then_some(())
    })
    .await;
}

async fn down(store: &RedisStore, why: &str) {
    let is = async || match store.health() {
        Health::Down(reason) if reason.contains(why) => Some(()),
        _ => None,
    };
    until(&format!("the store is down: {why}"), is).await;
}

#[tokio::test]
async fn a_server_that_restarts_empty_yields_no_zero_balance_until_it_is_accepted() {
    let mut server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    with_coins(&one).await;
    let mut feed = one.feed().unwrap();
    server.start_again();
    for store in [&one, &other] {
        down(store, "is empty").await;
        let wallet = store.wallet(&hunt(), ADA).await;
        assert!(
            matches!(&wallet, Err(StoreError::Unavailable(why)) if why.contains("is empty")),
            "{wallet:?}"
        );
        assert!(matches!(
            find(store, ADA, of("b")).await,
            Err(StoreError::Unavailable(_))
        ));
        assert!(matches!(
            store.hunts().await,
            Err(StoreError::Unavailable(_))
        ));
        assert!(matches!(
            store.verify(None).await,
            Err(StoreError::Unavailable(_))
        ));
    }
    assert_eq!(one.info().await.unwrap().identity, None);
    let epoch = one.epoch();
    one.accept().await.unwrap();
    up(&one).await;
    up(&other).await;
    assert!(one.epoch() > epoch && one.epoch() == other.epoch());
    told(&mut feed, "that all is void", |event| {
        matches!(event, FeedEvent::Reset { .. })
    })
    .await;
    assert!(one.hunts().await.unwrap().is_empty());
    with_coins(&other).await;
    verify(&one).await;
}

#[tokio::test]
async fn a_store_that_is_flushed_under_a_live_link_is_noticed_by_whatever_asks() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    with_coins(&one).await;
    let () = server.run(&["FLUSHALL"]);
    let wallet = one.wallet(&hunt(), ADA).await;
    assert!(
        matches!(wallet, Err(StoreError::Unavailable(_))),
        "{wallet:?}"
    );
    assert!(matches!(one.health(), Health::Down(_)));
    let unknown = other.wallet(&HuntId::new("unknown").unwrap(), ADA).await;
    assert!(
        matches!(unknown, Err(StoreError::Unavailable(_))),
        "{unknown:?}"
    );
    // Another store there is not taken for the one that was.
    let stranger = connect(&server).await;
    down(&one, "another store").await;
    let accepted = stranger.accept().await;
    accepted.unwrap();
    up(&one).await;
    up(&other).await;
}

#[tokio::test]
async fn scripts_that_a_server_forgot_are_loaded_again() {
    let server = Server::start();
    let store = connect(&server).await;
    with_coins(&store).await;
    let () = server.run(&["SCRIPT", "FLUSH"]);
    let finds = (0..50).map(|n| (PlayerId(n), of("b"))).collect();
    let recorded = store.record(&hunt(), finds).await.unwrap();
    assert!(recorded.outcomes.iter().all(Result::is_ok));
    let () = server.run(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.credit(&hunt(), ADA).await.unwrap().wallet.balance, 20);
    verify(&store).await;
}

#[tokio::test]
async fn a_paused_server_fails_fast_and_nothing_is_done_twice() {
    let server = Server::start();
    let store = connect(&server).await;
    with_coins(&store).await;
    let mut feed = store.feed().unwrap();
    server.pause();
    let began = Instant::now();
    let asked = find(&store, ADA, with_id("1")).await;
    assert!(matches!(asked, Err(StoreError::Unknown(_))), "{asked:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    down(&store, "").await;
    let began = Instant::now();
    let fast = find(&store, ADA, with_id("1")).await;
    assert!(matches!(fast, Err(StoreError::Unavailable(_))), "{fast:?}");
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    assert!(matches!(
        store.wallet(&hunt(), ADA).await,
        Err(StoreError::Unavailable(_))
    ));
    server.go_on();
    up(&store).await;
    let again = until("a find is answered", async || {
        find(&store, ADA, with_id("1")).await.ok()
    })
    .await;
    again.unwrap();
    assert_eq!(store.credit(&hunt(), ADA).await.unwrap().wallet.balance, 20);
    let credited = |event: &FeedEvent| matches!(event, FeedEvent::Wallet { wallet, .. } if wallet.balance == 20);
    told(&mut feed, "the credit", credited).await;
    verify(&store).await;
}

#[tokio::test]
async fn what_runs_out_while_the_server_is_away_expires_by_an_outage() {
    let server = Server::start();
    let store = connect(&server).await;
    open_hunt(&store, 3_000).await;
    find(&store, ADA, of("a")).await.unwrap().unwrap();
    server.pause();
    tokio::time::sleep(Duration::from_millis(6_000)).await;
    server.go_on();
    let history = until("the find has expired", async || {
        let history = store.history(&hunt(), ADA, 9, 9).await.ok()?;
        (history.len() == 2).then_some(history)
    })
    .await;
    let reason = match &history[0].change {
        Change::Expire(_, reason) => *reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, ExpiryReason::StoreOutage);
    let reinstated = store.reinstate(&hunt(), 0, u64::MAX).await.unwrap();
    assert_eq!((reinstated.finds, reinstated.coins), (1, 10));
    verify(&store).await;
}

#[tokio::test]
async fn a_server_restarted_from_its_append_only_file_begins_a_new_epoch_with_all_there() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = connect(&server).await;
    with_coins(&store).await;
    find(&store, ADA, of("b")).await.unwrap().unwrap();
    let mut feed = store.feed().unwrap();
    let epoch = store.epoch();
    server.start_again();
    let credited = until("a credit is answered", async || {
        store.credit(&hunt(), ADA).await.ok()
    })
    .await;
    assert_eq!(credited.wallet.balance, 20);
    assert!(store.epoch() > epoch);
    told(
        &mut feed,
        "the new epoch",
        |event| matches!(event, FeedEvent::Reset { epoch: now } if *now > epoch),
    )
    .await;
    verify(&store).await;
}

#[tokio::test]
async fn a_history_that_was_cut_voids_what_was_derived_from_it() {
    let mut server = Server::start();
    // It keeps nothing that it could bring back.
    let forgetful = Options {
        replay_bytes_max: 0,
        recovery: Duration::ZERO,
        ..quick()
    };
    let store = connect_with(&server, forgetful).await;
    with_coins(&store).await;
    let mut feed = store.feed().unwrap();
    let () = server.run(&["SAVE"]);
    find(&store, ADA, of("b")).await.unwrap().unwrap();
    let lost = store.credit(&hunt(), ADA).await.unwrap().wallet;
    assert_eq!(lost.balance, 20);
    told(
        &mut feed,
        "the credit",
        |event| matches!(event, FeedEvent::Wallet { wallet, .. } if *wallet == lost),
    )
    .await;
    let epoch = store.epoch();
    server.start_again();
    told(&mut feed, "that all is void", |event| {
        matches!(event, FeedEvent::Reset { .. })
    })
    .await;
    up(&store).await;
    assert_eq!(store.wallet(&hunt(), ADA).await.unwrap().balance, 10);
    assert!(store.epoch() > epoch);
    assert_eq!(store.history(&hunt(), ADA, 9, 9).await.unwrap().len(), 2);
    find(&store, ADA, of("b")).await.unwrap().unwrap();
    let again = store.credit(&hunt(), ADA).await.unwrap().wallet;
    // By itself, or by saying once more that all is void, once the feed is found not to go on from where it was read.
    let news = |event: &FeedEvent| match event {
        FeedEvent::Wallet { wallet, .. } => *wallet == again,
        event => matches!(event, FeedEvent::Reset { .. }),
    };
    told(&mut feed, "the next credit", news).await;
    verify(&store).await;
}

#[tokio::test]
async fn a_history_that_was_cut_is_told_once() {
    let mut server = Server::start();
    let store = connect(&server).await;
    with_coins(&store).await;
    let mut feed = store.feed().unwrap();
    let () = server.run(&["SAVE"]);
    let everywhere = |id: &str| (0..32).map(|n| (PlayerId(n), with_id(id))).collect();
    store.record(&hunt(), everywhere("lost")).await.unwrap();
    told(&mut feed, "a find", |event| {
        matches!(event, FeedEvent::Wallet { .. })
    })
    .await;
    server.start_again();
    up(&store).await;
    let (mut resets, mut heard, mut nth) = (0, std::collections::HashSet::new(), 0);
    // Until every partition's stream is known to go on; what they told before the server went is read first.
    while resets == 0 || heard.len() < 32 {
        nth += 1;
        let _ = store.record(&hunt(), everywhere(&nth.to_string())).await;
        let wait = tokio::time::timeout(Duration::from_millis(100), feed.recv());
        for event in wait.await.ok().flatten().unwrap_or_default() {
            match event {
                FeedEvent::Reset { .. } => {
                    resets += 1;
                    heard.clear();
                }
                FeedEvent::Wallet { player, .. } => {
                    heard.insert(player);
                }
                _ => {}
            }
        }
        assert!(nth < 500, "the feed does not go on");
    }
    assert_eq!(resets, 1);
    verify(&store).await;
}

#[tokio::test]
async fn a_full_memory_refuses_writes_and_reads_go_on() {
    let server = Server::start();
    let store = connect(&server).await;
    with_coins(&store).await;
    let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(
        find(&store, ADA, of("b")).await.err(),
        Some(StoreError::Full)
    );
    assert_eq!(store.health(), Health::Full);
    let () = server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    let wallet = store.wallet(&hunt(), ADA).await.unwrap();
    assert_eq!((wallet.balance, wallet.seq), (10, 2), "nothing was changed");
    find(&store, ADA, of("b")).await.unwrap().unwrap();
    assert_eq!(store.health(), Health::Up);
    verify(&store).await;
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_left() {
    let server = Server::start();
    let store = connect(&server).await;
    with_coins(&store).await;
    let () = server.run(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = find(&store, ADA, of("b")).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    down(&store, "").await;
    let () = server.run(&["REPLICAOF", "NO", "ONE"]);
    up(&store).await;
    find(&store, ADA, of("b")).await.unwrap().unwrap();
    assert_eq!(store.credit(&hunt(), ADA).await.unwrap().wallet.balance, 20);
    verify(&store).await;
}

#[tokio::test]
async fn a_full_feed_takes_no_finds_and_polls_go_on() {
    let server = Server::start();
    let store = connect_with(
        &server,
        Options {
            feed_bytes_max: Some(20_000),
            ..quick()
        },
    )
    .await;
    with_coins(&store).await;
    let mut pending = 0;
    let refused = until("a find is refused", async || {
        pending += 1;
        let finds = (0..20)
            .map(|n| (PlayerId(n), with_id(&pending.to_string())))
            .collect();
        store.record(&hunt(), finds).await.err()
    })
    .await;
    assert_eq!(refused, StoreError::FeedFull);
    assert!(store.feed_bytes() >= 20_000);
    assert!(
        !store
            .credit(&hunt(), PlayerId(1))
            .await
            .unwrap()
            .entries
            .is_empty()
    );
    verify(&store).await;
}

#[tokio::test]
async fn an_entry_that_a_later_version_wrote_makes_its_wallet_be_read_again() {
    let server = Server::start();
    let store = connect(&server).await;
    with_coins(&store).await;
    let mut feed = store.feed().unwrap();
    let streams: Vec<String> = server.run(&["KEYS", "*}feed"]);
    let keys = trove_streams::Partitions::new(4).unwrap();
    let tag = keys.tag(keys.of_player(ADA.0)).to_owned();
    let stream = streams
        .iter()
        .find(|key| key.contains(&format!("{{{tag}}}")))
        .unwrap();
    let state = stream.replace("feed", "s");
    let append = "local n, t = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'at'))
        redis.call('HSET', KEYS[1], 'at', cmsgpack.pack(n + 1, t))
        redis.call('XADD', KEYS[2], t .. '-' .. (n + 1), 'e', 'q 1 7 something new')";
    let () = server.run(&["EVAL", append, "2", &state, stream]);
    let reload = |event: &FeedEvent| matches!(event, FeedEvent::Reload { hunt: 1, player } if *player == ADA);
    told(&mut feed, "what is not understood", reload).await;
}

#[tokio::test]
async fn a_find_sent_before_a_crash_is_there_once_after_it() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = connect(&server).await;
    open_hunt(&store, WINDOW_MS).await;
    for round in 0..3_u64 {
        let ids: Vec<String> = (0..40).map(|n| format!("{round}-{n}")).collect();
        let finds = ids
            .iter()
            .map(|id| find(&store, PlayerId(round), with_id(id)));
        let answers = futures_util::future::join_all(finds);
        let (_, answers) = tokio::join!(
            async {
                tokio::task::yield_now().await;
                server.start_again();
            },
            answers
        );
        // Whatever the answer was: asked again, each is there once.
        for (id, first) in ids.iter().zip(answers) {
            let again = until("a find is answered", async || {
                match find(&store, PlayerId(round), with_id(id)).await {
                    Ok(outcome) => Some(outcome.unwrap()),
                    Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => None,
                    Err(error) => panic!("{error}"),
                }
            })
            .await;
            if first.is_ok() {
                assert!(
                    matches!(again, Decision::Duplicate(_)),
                    "{id} was acknowledged"
                );
            }
        }
        assert_eq!(
            store
                .credit(&hunt(), PlayerId(round))
                .await
                .unwrap()
                .wallet
                .balance,
            400
        );
    }
    verify(&store).await;
}
