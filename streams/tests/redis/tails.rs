//! Following feeds.

use std::time::Duration;

use trove_streams::feed::{self, Precision};
use trove_streams::{Connection, Continuity, EntryId, Error, Event, Tail};

use crate::feeds::{fill, id};
use crate::harness::{
    Random, Server, connect_with, connected, next_up, quick, quick_blocking, run, until, up,
};

const BLOCK: Duration = Duration::from_millis(50);

fn tail(server: &Server, positions: &[(&str, EntryId)], count: usize) -> Tail {
    let connection = connect_with(server, quick_blocking());
    let feeds = positions
        .iter()
        .map(|(key, position)| ((*key).to_owned(), *position));
    Tail::new(connection, feeds, BLOCK, count).expect("the connection is made for such reads")
}

/// The next events, through errors and silence.
async fn events(tail: &mut Tail) -> Vec<Event> {
    let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
    loop {
        match tail.next().await {
            Ok(events) if !events.is_empty() => return events,
            Ok(_) | Err(_) => {}
        }
        assert!(
            std::time::Instant::now() < deadline,
            "waited for events in vain"
        );
    }
}

fn broken(feed: usize, how: Continuity) -> Vec<Event> {
    vec![Event::Broken { feed, how }]
}

#[tokio::test]
async fn a_tail_hands_out_every_entry_of_every_feed_once_and_in_order() {
    let mut random = Random::seeded();
    let server = Server::start();
    let writer = connected(&server).await;
    let keys = ["a", "b", "c"];
    let total = 3000;
    let mut tail = tail(&server, &keys.map(|key| (key, EntryId::ZERO)), 64);
    let write = async {
        let mut written = [0u64; 3];
        while written.iter().any(|written| *written < total) {
            let feed = usize::try_from(random.below(3)).unwrap();
            let to = (written[feed] + 1 + random.below(40)).min(total);
            if written[feed] < to {
                fill(&writer, keys[feed], written[feed] + 1, to).await;
                written[feed] = to;
            }
            // The link is cut now and then; the tail must not notice.
            if random.below(60) == 0 {
                run::<u64>(
                    &writer,
                    &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
                )
                .await;
            }
        }
    };
    let read = async {
        let mut seen = [0u64; 3];
        while seen.iter().any(|seen| *seen < total) {
            for event in events(&mut tail).await {
                let Event::Entry { feed, entry } = event else {
                    panic!("{event:?}");
                };
                seen[feed] += 1;
                assert_eq!(entry.id, id(seen[feed]));
                assert_eq!(entry.field("n"), Some(seen[feed].to_string().as_bytes()));
            }
        }
    };
    tokio::join!(write, read);
    assert_eq!(tail.next().await.unwrap(), []);
}

#[tokio::test]
async fn one_read_is_bounded_by_its_count() {
    let server = Server::start();
    fill(&connected(&server).await, "a", 1, 100).await;
    let mut tail = tail(&server, &[("a", EntryId::ZERO)], 7);
    assert_eq!(events(&mut tail).await.len(), 7);
    assert_eq!(tail.position(0), id(7));
}

#[tokio::test]
async fn a_read_that_would_block_longer_than_its_connection_allows_is_refused() {
    let server = Server::start();
    let commands = connect_with(&server, quick());
    let error = Tail::new(commands, [("a".to_owned(), EntryId::ZERO)], BLOCK, 10).unwrap_err();
    assert!(matches!(error, Error::BlocksTooLong { .. }), "{error:?}");
}

#[tokio::test]
async fn an_idle_tail_costs_nothing_but_its_blocked_reads() {
    let server = Server::start();
    let watcher = connect_with(
        &server,
        trove_streams::Config {
            probe_interval: Duration::from_secs(3600),
            ..quick()
        },
    );
    up(&watcher).await;
    let config = trove_streams::Config {
        probe_interval: Duration::from_secs(3600),
        ..quick_blocking()
    };
    let connection = connect_with(&server, config);
    let mut tail = Tail::new(
        connection,
        [
            ("a".to_owned(), EntryId::ZERO),
            ("b".to_owned(), EntryId::ZERO),
        ],
        BLOCK,
        10,
    )
    .unwrap();
    assert_eq!(tail.next().await.unwrap(), []);
    let processed = async || {
        let stats: String = run(&watcher, &["INFO", "stats"]).await;
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"))
            .unwrap();
        line.parse::<u64>().unwrap()
    };
    let before = processed().await;
    for _ in 0..10 {
        assert_eq!(tail.next().await.unwrap(), []);
    }
    assert_eq!(
        processed().await - before,
        10 + 1,
        "ten reads and the question before"
    );
}

#[tokio::test]
async fn entries_that_vanish_before_they_are_read_are_a_gap_and_the_feed_is_held() {
    let server = Server::start();
    let writer = connected(&server).await;
    fill(&writer, "a", 1, 10).await;
    fill(&writer, "b", 1, 1).await;
    let mut tail = tail(&server, &[("a", EntryId::ZERO), ("b", EntryId::ZERO)], 100);
    assert_eq!(events(&mut tail).await.len(), 11);
    // In one go, so that the tail sees only what is left.
    let mut vanish = redis::cmd("EVAL");
    vanish.arg("for n = 11, 20 do redis.call('XADD', KEYS[1], '1002-' .. n, 'n', n) end redis.call('XDEL', KEYS[1], '1002-11', '1002-12')").arg(1).arg("a");
    writer.query(&vanish).await.unwrap();
    assert_eq!(
        events(&mut tail).await,
        broken(0, Continuity::Gap { lost: 2 })
    );
    assert!(tail.is_held(0));
    assert_eq!(tail.position(0), id(10));
    // The other feed goes on.
    fill(&writer, "b", 2, 2).await;
    let next = events(&mut tail).await;
    assert!(
        matches!(next.as_slice(), [Event::Entry { feed: 1, .. }]),
        "{next:?}"
    );
    tail.resume(0, EntryId::new(1002, 12));
    let next = events(&mut tail).await;
    assert_eq!(next.len(), 8);
    assert!(!tail.is_held(0));
}

#[tokio::test]
async fn a_trim_past_a_tail_that_was_away_is_a_gap() {
    let server = Server::start();
    let writer = connected(&server).await;
    fill(&writer, "a", 1, 50).await;
    feed::trim(&writer, "a", id(31), &[], Precision::Exact)
        .await
        .unwrap();
    let mut tail = tail(&server, &[("a", id(20))], 100);
    assert_eq!(
        events(&mut tail).await,
        broken(0, Continuity::Gap { lost: 10 })
    );
}

#[tokio::test]
async fn a_server_that_restarts_empty_is_noticed_and_nothing_is_handed_out() {
    let mut server = Server::start();
    let writer = connected(&server).await;
    fill(&writer, "a", 1, 10).await;
    let mut tail = tail(&server, &[("a", EntryId::ZERO), ("b", EntryId::ZERO)], 100);
    assert_eq!(events(&mut tail).await.len(), 10);
    server.start_again();
    assert_eq!(events(&mut tail).await, broken(0, Continuity::Missing));
    // What is written after that belongs to another history.
    next_up(&writer, 1).await;
    fill(&writer, "a", 1, 3).await;
    fill(&writer, "b", 1, 1).await;
    let next = events(&mut tail).await;
    assert!(
        matches!(next.as_slice(), [Event::Entry { feed: 1, .. }]),
        "{next:?}"
    );
    tail.resume(0, EntryId::ZERO);
    assert_eq!(events(&mut tail).await.len(), 3);
}

#[tokio::test]
async fn a_feed_that_is_made_anew_under_a_tail_is_a_rollback() {
    let server = Server::start();
    let writer = connected(&server).await;
    fill(&writer, "a", 1, 10).await;
    let mut tail = tail(&server, &[("a", EntryId::ZERO)], 100);
    assert_eq!(events(&mut tail).await.len(), 10);
    run::<u64>(&writer, &["DEL", "a"]).await;
    let again = EntryId::new(9000, 1);
    feed::append(&writer, "a", again, &[("x", 1)])
        .await
        .unwrap();
    assert_eq!(
        events(&mut tail).await,
        broken(0, Continuity::RolledBack { last: again })
    );
}

#[tokio::test]
async fn a_failover_that_lost_entries_is_a_rollback() {
    let server = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let writer = connected(&server).await;
    fill(&writer, "a", 1, 10).await;
    until("the replica to have all", async || {
        (run::<u64>(&writer, &["WAIT", "1", "50"]).await == 1).then_some(())
    })
    .await;
    // The replica falls behind, then takes over.
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", replica.port)).unwrap();
    let mut plain = client.get_multiplexed_async_connection().await.unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .query_async(&mut plain)
        .await
        .unwrap();
    let history = up(&writer).await.server.history.clone();
    fill(&writer, "a", 11, 15).await;
    let promoted: Connection = connected(&replica).await;
    let promoted_server = up(&promoted).await.server;
    assert!(promoted_server.was_promoted_from(&history) || promoted_server.history != history);
    let mut tail = tail(&replica, &[("a", id(15))], 100);
    assert_eq!(
        events(&mut tail).await,
        broken(0, Continuity::RolledBack { last: id(10) })
    );
}

#[tokio::test]
async fn a_tail_whose_server_falls_silent_goes_on_when_it_is_back() {
    let server = Server::start();
    let writer = connected(&server).await;
    fill(&writer, "a", 1, 5).await;
    let mut tail = tail(&server, &[("a", EntryId::ZERO)], 100);
    assert_eq!(events(&mut tail).await.len(), 5);
    server.pause();
    while tail.next().await.is_ok() {}
    server.go_on();
    until("an append", async || {
        let next = id(6);
        feed::append(&writer, "a", next, &[("n", 6)]).await.ok()
    })
    .await;
    let next = events(&mut tail).await;
    assert!(
        matches!(next.as_slice(), [Event::Entry { entry, .. }] if entry.id == id(6)),
        "{next:?}"
    );
}
