//! Several instances on one server.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trove::game::entry::{Adjustment, Change};
use trove::game::hunt::HuntState;
use trove::game::rules::{Decision, Refusal};
use trove::store::RecordRefusal;
use trove::store::clock::ManualTime;
use trove::store::redis::Time;

const WINDOW_MS: u64 = 300_000;

async fn two() -> (Server, RedisStore, RedisStore) {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    open_hunt(&one, WINDOW_MS).await;
    (server, one, other)
}

#[tokio::test]
async fn a_find_through_one_is_credited_through_the_other() {
    let (_server, one, other) = two().await;
    let ada = open(&one, "ada", one.now()).await.unwrap();
    assert_eq!(open(&other, "ada", other.now()).await, Ok(ada));
    find(&one, ada, of("a")).await.unwrap().unwrap();
    let credited = other.credit(&hunt(), ada).await.unwrap();
    assert_eq!((credited.wallet.balance, credited.entries.len()), (10, 1));
    assert!(one.credit(&hunt(), ada).await.unwrap().entries.is_empty());
    let repeat = find(&other, ada, of("a")).await.unwrap().unwrap();
    assert!(matches!(repeat, Decision::Duplicate(_)));
    let (mine, theirs) = (
        one.history(&hunt(), ada, 9, 9).await,
        other.history(&hunt(), ada, 9, 9).await,
    );
    assert_eq!(mine.unwrap(), theirs.unwrap());
    verify(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_player_polled_through_two_at_once_is_credited_once() {
    let (_server, one, other) = two().await;
    for n in 0..200 {
        let player = PlayerId(n);
        find(&one, player, of("a")).await.unwrap().unwrap();
        let id = hunt();
        let (mine, theirs) = tokio::join!(one.credit(&id, player), other.credit(&id, player));
        let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
        assert_eq!(mine.entries.len() + theirs.entries.len(), 1, "player {n}");
        assert_eq!((mine.wallet, mine.wallet.balance), (theirs.wallet, 10));
    }
    verify(&one).await;
}

#[tokio::test]
async fn an_erasure_holds_for_both() {
    let (_server, one, other) = two().await;
    let mut feed = other.feed().unwrap();
    let issued_at = one.now();
    let ada = open(&other, "ada", issued_at).await.unwrap();
    find(&other, ada, of("a")).await.unwrap().unwrap();
    let erasure = one.erase(&PlayerName::new("ada").unwrap()).await.unwrap();
    assert_eq!((erasure.revoked, erasure.existed), (10, true));
    let late = find(&other, ada, of("b")).await.unwrap();
    assert_eq!(late, Err(RecordRefusal::Erased(Erased)));
    assert_eq!(open(&other, "ada", issued_at).await, Err(Erased));
    told(
        &mut feed,
        "the erasure",
        |event| matches!(event, FeedEvent::Erased { player } if *player == ada),
    )
    .await;
    // Also in a hunt that comes later.
    let later = HuntSpec {
        id: HuntId::new("later").unwrap(),
        ..spec(WINDOW_MS)
    };
    one.put_hunt(later.clone()).await.unwrap().unwrap();
    one.step_hunt(&later.id, LifeStep::Open)
        .await
        .unwrap()
        .unwrap();
    let recorded = other.record(&later.id, vec![(ada, of("a"))]).await.unwrap();
    assert_eq!(recorded.outcomes, [Err(RecordRefusal::Erased(Erased))]);
    verify(&one).await;
}

#[tokio::test]
async fn opening_and_closing_hold_everywhere_when_they_are_answered() {
    let (_server, one, other) = two().await;
    for round in 0..30 {
        one.step_hunt(&hunt(), LifeStep::Close)
            .await
            .unwrap()
            .unwrap();
        for player in 0..6 {
            let outcome = find(&other, PlayerId(player), with_id(&round.to_string()))
                .await
                .unwrap();
            assert_eq!(
                outcome,
                Err(Refusal::HuntNotOpen(HuntState::Closed).into()),
                "round {round}"
            );
        }
        other
            .step_hunt(&hunt(), LifeStep::Open)
            .await
            .unwrap()
            .unwrap();
        for player in 0..6 {
            find(&one, PlayerId(player), with_id(&round.to_string()))
                .await
                .unwrap()
                .unwrap();
        }
    }
    // So do a new treasure and one that is gone.
    let mut new = spec(WINDOW_MS);
    new.treasures[1].id = TreasureId::new("new").unwrap();
    one.put_hunt(new).await.unwrap().unwrap();
    find(&other, PlayerId(1), of("new")).await.unwrap().unwrap();
    assert_eq!(
        find(&other, PlayerId(1), of("b")).await.unwrap(),
        Err(Refusal::NoSuchTreasure.into())
    );
    assert_eq!(
        other.hunts().await.unwrap()[0].0.generation,
        one.hunts().await.unwrap()[0].0.generation
    );
    verify(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hunt_that_two_change_at_once_takes_both_changes() {
    let (_server, one, other) = two().await;
    let began = one.hunts().await.unwrap()[0].0.generation;
    let changes = AtomicU64::new(0);
    let change = async |store: &RedisStore, name: &str| {
        for n in 0..10 {
            let renamed = HuntSpec {
                name: format!("{name} {n}"),
                ..spec(WINDOW_MS)
            };
            store.put_hunt(renamed).await.unwrap().unwrap();
            changes.fetch_add(1, Ordering::Relaxed);
            find(store, PlayerId(n), with_id(name))
                .await
                .unwrap()
                .unwrap();
        }
    };
    tokio::join!(change(&one, "one"), change(&other, "other"));
    let generation = one.hunts().await.unwrap()[0].0.generation;
    assert_eq!(generation, began + changes.load(Ordering::Relaxed));
    verify(&one).await;
}

#[tokio::test]
async fn the_feed_of_each_tells_what_the_other_did() {
    let (_server, one, other) = two().await;
    let (mut mine, mut theirs) = (one.feed().unwrap(), other.feed().unwrap());
    let ada = PlayerId(7);
    find(&one, ada, of("a")).await.unwrap().unwrap();
    other.credit(&hunt(), ada).await.unwrap();
    other
        .put_hunt(HuntSpec {
            name: "Renamed".into(),
            ..spec(WINDOW_MS)
        })
        .await
        .unwrap()
        .unwrap();
    for feed in [&mut mine, &mut theirs] {
        let credited = |event: &FeedEvent| matches!(event, FeedEvent::Wallet { player, wallet, .. } if *player == ada && wallet.balance == 10);
        told(feed, "the credit", credited).await;
    }
    let renamed =
        |event: &FeedEvent| matches!(event, FeedEvent::Hunt(hunt) if hunt.spec.name == "Renamed");
    other
        .put_hunt(HuntSpec {
            name: "Again".into(),
            ..spec(WINDOW_MS)
        })
        .await
        .unwrap()
        .unwrap();
    let again =
        |event: &FeedEvent| matches!(event, FeedEvent::Hunt(hunt) if hunt.spec.name == "Again");
    told(&mut mine, "the hunt", |event| {
        renamed(event) || again(event)
    })
    .await;
    told(&mut theirs, "the hunt", |event| {
        renamed(event) || again(event)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_out_expires_once_though_two_believe_to_hold_the_lease() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    open_hunt(&one, 300).await;
    let players = 300;
    let stop = Arc::new(AtomicBool::new(false));
    let thief = std::thread::spawn({
        let (stop, mut connection) = (stop.clone(), server.connection());
        move || {
            while !stop.load(Ordering::Relaxed) {
                let () = trove_streams::redis::cmd("DEL")
                    .arg("{store}lease:sweeper")
                    .query(&mut connection)
                    .unwrap();
            }
        }
    });
    let finds = (0..players).map(|n| (PlayerId(n), of("a"))).collect();
    one.record(&hunt(), finds).await.unwrap();
    until("all have expired", async || {
        let (_, totals) = &other.hunts().await.unwrap()[0];
        (totals.pending == 0).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    thief.join().unwrap();
    for n in 0..players {
        let history = one.history(&hunt(), PlayerId(n), 9, 9).await.unwrap();
        assert_eq!(history.len(), 2, "player {n}: {history:?}");
        assert!(matches!(history[0].change, Change::Expire(..)));
    }
    verify(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_hunt_that_broke_off_is_ended_by_whoever_meets_it() {
    let (server, one, other) = two().await;
    // As an instance leaves it that was killed after it froze the partitions.
    for tag in server.run::<Vec<String>>(&["KEYS", "*}s"]) {
        let () = server.run(&["HSET", &tag, "g1", "~somebody"]);
    }
    let till = (one.now() + 2_000).to_string();
    let () = server.run(&["HSET", "{hunts}all", "l:h", &format!("somebody {till}")]);
    let (mine, theirs) = tokio::join!(
        find(&one, PlayerId(1), of("a")),
        find(&other, PlayerId(2), of("a"))
    );
    mine.unwrap().unwrap();
    theirs.unwrap().unwrap();
    verify(&one).await;
}

#[tokio::test]
async fn an_idle_instance_costs_ten_commands_a_second_at_most() {
    let server = Server::start();
    let store = connect_with(
        &server,
        Options {
            partitions: 16,
            ..Options::default()
        },
    )
    .await;
    open_hunt(&store, WINDOW_MS).await;
    let _feed = store.feed();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let count = || {
        let stats: String = server.run(&["INFO", "commandstats"]);
        let calls = |line: &str| -> Option<(String, u64)> {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split_once(',')?.0.parse().ok()?))
        };
        let own = |(name, _): &(String, u64)| {
            !["xread", "info", "hget", "hset", "exists"].contains(&name.as_str())
        };
        // What scripts call counts too there; a script is one command to whoever sends it. INFO is counted by itself:
        // this test asks as well.
        stats
            .lines()
            .filter_map(calls)
            .filter(own)
            .collect::<Vec<_>>()
    };
    let before = count();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = count();
    let seconds = began.elapsed().as_secs_f64();
    let mut sent = 0;
    for (name, calls) in after {
        let earlier = before
            .iter()
            .find(|(other, _)| *other == name)
            .map_or(0, |(_, calls)| *calls);
        // Within a script.
        if !["time", "hmget", "zrevrangebyscore", "get", "set"].contains(&name.as_str()) {
            sent += calls - earlier;
        }
    }
    // Both links look at the server's role once a second.
    let probes = 2.0;
    #[expect(clippy::cast_precision_loss)]
    let each_second = sent as f64 / seconds + probes;
    println!("{each_second:.1} commands a second");
    assert!(each_second <= 10.0, "{each_second:.1} commands a second");
}

#[tokio::test]
async fn an_adjustment_after_the_erasure_does_not_open_the_wallet_for_finds() {
    let (_server, one, other) = two().await;
    let ada = open(&one, "ada", one.now()).await.unwrap();
    one.erase(&PlayerName::new("ada").unwrap()).await.unwrap();
    let adjustment = Adjustment {
        coins: 5,
        reason: "late".into(),
        key: "k".into(),
        by: "ops".into(),
    };
    let adjusted = one.adjust(&hunt(), ada, adjustment).await.unwrap();
    assert_eq!(adjusted.wallet.balance, 5);
    let late = find(&other, ada, of("a")).await.unwrap();
    assert_eq!(late, Err(RecordRefusal::Erased(Erased)));
}

/// Members of what is due, with their scores, in all partitions.
fn due(server: &Server) -> Vec<(String, u64)> {
    let keys: Vec<String> = server.run(&["KEYS", "*}due"]);
    let members = |key: &String| -> Vec<(String, u64)> {
        server.run(&["ZRANGE", key, "0", "-1", "WITHSCORES"])
    };
    keys.iter().flat_map(members).collect()
}

#[tokio::test]
async fn what_is_due_stays_for_the_next_find_and_goes_when_nothing_is_pending_by_then() {
    let server = Server::start();
    let start = 1_800_000_000_000;
    let time = Arc::new(ManualTime::new(start));
    let () = server.run(&["SET", "now", &start.to_string()]);
    // The store's reckoning first: the server may never be ahead of it.
    let advance = |ms: u64| {
        time.advance(ms);
        let _: u64 = server.run(&["INCRBY", "now", &ms.to_string()]);
    };
    let options = Options {
        time: Time::Manual {
            key: "now".into(),
            time: time.clone(),
        },
        ..quick()
    };
    let store = connect_with(&server, options).await;
    open_hunt(&store, WINDOW_MS).await;
    let ada = PlayerId(7);
    find(&store, ada, of("a")).await.unwrap().unwrap();
    let first = due(&server);
    assert_eq!(first.len(), 1);
    store.credit(&hunt(), ada).await.unwrap();
    assert_eq!(due(&server), first, "it is not written at each find");
    advance(1_000);
    find(&store, ada, of("b")).await.unwrap().unwrap();
    assert_eq!(due(&server), first, "the sweeper comes early enough");
    verify(&store).await;
    advance(WINDOW_MS - 500);
    until(
        "the sweeper has passed and found nothing to settle",
        async || (due(&server)[0].1 == first[0].1 + 1_000).then_some(()),
    )
    .await;
    assert_eq!(store.wallet(&hunt(), ada).await.unwrap().pending_finds, 1);
    advance(501);
    until("the second find has expired", async || {
        let wallet = store.wallet(&hunt(), ada).await.unwrap();
        (wallet.pending_finds == 0).then_some(())
    })
    .await;
    assert!(due(&server).is_empty());
    find(&store, ada, with_id("1")).await.unwrap().unwrap();
    store.credit(&hunt(), ada).await.unwrap();
    assert_eq!(due(&server).len(), 1);
    verify(&store).await;
    advance(WINDOW_MS + 1);
    until("nothing is due", async || {
        due(&server).is_empty().then_some(())
    })
    .await;
    let wallet = store.wallet(&hunt(), ada).await.unwrap();
    assert_eq!((wallet.balance, wallet.seq), (20, 6));
    verify(&store).await;
}
