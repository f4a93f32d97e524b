//! Appending, reading, trimming, and what is left of a feed.

use trove_streams::feed::{self, Precision};
use trove_streams::{Connection, Continuity, EntryId};

use crate::harness::{Random, Server, connected, next_up, run, up};

/// Appends entries `from..=to`, ten in a millisecond.
pub(crate) async fn fill(connection: &Connection, key: &str, from: u64, to: u64) {
    let mut batch = trove_streams::Batch::new();
    for seq in from..=to {
        let mut add = redis::cmd("XADD");
        add.arg(key).arg(id(seq)).arg("n").arg(seq);
        batch = batch.cmd(add);
    }
    for reply in connection.batch(batch).await.unwrap() {
        reply.unwrap();
    }
}

/// The id that [`fill`] gives to entry number `seq`.
pub(crate) fn id(seq: u64) -> EntryId {
    EntryId::new(1000 + seq / 10, seq)
}

#[tokio::test]
async fn a_feed_is_read_from_a_position_and_by_time() {
    let server = Server::start();
    let connection = connected(&server).await;
    assert_eq!(
        feed::read_after(&connection, "feed", EntryId::ZERO, 10)
            .await
            .unwrap(),
        []
    );
    assert_eq!(feed::extent(&connection, "feed").await.unwrap(), None);
    assert_eq!(
        feed::last_id(&connection, "feed").await.unwrap(),
        EntryId::ZERO
    );
    fill(&connection, "feed", 1, 100).await;
    let read = feed::read_after(&connection, "feed", id(41), 3)
        .await
        .unwrap();
    assert_eq!(
        read.iter().map(|entry| entry.id).collect::<Vec<_>>(),
        [id(42), id(43), id(44)]
    );
    assert_eq!(read[0].field("n"), Some(&b"42"[..]));
    assert_eq!(read[0].field("m"), None);
    let window = feed::read_range(
        &connection,
        "feed",
        EntryId::new(1005, 0),
        EntryId::new(1005, u64::MAX),
        1000,
    )
    .await
    .unwrap();
    assert_eq!((window.len(), window[0].id), (10, id(50)));
    for (before, from, count, expected) in [
        (EntryId::MAX, id(1), 2, vec![id(100), id(99)]),
        (id(41), id(39), 9, vec![id(40), id(39)]),
        (id(41), id(41), 9, vec![]),
    ] {
        let read = feed::read_back(&connection, "feed", before, from, count);
        let read = read.await.unwrap();
        let ids: Vec<EntryId> = read.iter().map(|entry| entry.id).collect();
        assert_eq!(ids, expected);
    }
    assert_eq!(feed::last_id(&connection, "feed").await.unwrap(), id(100));
}

#[tokio::test]
async fn an_entry_is_appended_only_above_the_last() {
    let server = Server::start();
    let connection = connected(&server).await;
    feed::append(&connection, "feed", EntryId::new(5, 1), &[("a", 1)])
        .await
        .unwrap();
    for not_above in [EntryId::new(5, 1), EntryId::new(4, 2)] {
        assert!(
            feed::append(&connection, "feed", not_above, &[("a", 1)])
                .await
                .is_err()
        );
    }
    let next = EntryId::new(5, 1).following(4).unwrap();
    feed::append(&connection, "feed", next, &[("a", 1)])
        .await
        .unwrap();
    let extent = feed::extent(&connection, "feed").await.unwrap().unwrap();
    assert_eq!((extent.length, extent.last), (2, EntryId::new(5, 2)));
}

#[tokio::test]
async fn a_trim_never_passes_the_slowest_reader() {
    let mut random = Random::seeded();
    let server = Server::start();
    let connection = connected(&server).await;
    fill(&connection, "feed", 1, 2000).await;
    let mut first = 1;
    for _ in 0..30 {
        let before = 1 + random.below(2100);
        let readers: Vec<EntryId> = (0..random.below(4))
            .map(|_| id(first + random.below(2001 - first)))
            .collect();
        let precision = match random.below(2) {
            0 => Precision::Exact,
            _ => Precision::Nodes { entries_max: 500 },
        };
        let removed = feed::trim(&connection, "feed", id(before), &readers, precision)
            .await
            .unwrap();
        let slowest = readers
            .iter()
            .map(|reader| reader.seq)
            .min()
            .unwrap_or(u64::MAX);
        let bound = before.min(slowest.saturating_add(1)).min(2001);
        let extent = feed::extent(&connection, "feed").await.unwrap().unwrap();
        let now_first = extent.first.map_or(2001, |first| first.seq);
        assert_eq!(
            now_first,
            first + removed,
            "before {before}, readers {readers:?}"
        );
        match precision {
            Precision::Exact => assert_eq!(
                now_first,
                first.max(bound),
                "before {before}, readers {readers:?}"
            ),
            Precision::Nodes { .. } => assert!(
                now_first <= first.max(bound),
                "before {before}, readers {readers:?}"
            ),
        }
        assert_eq!(extent.last, id(2000), "the last id survives");
        first = now_first;
        if first > 1900 {
            break;
        }
    }
}

#[tokio::test]
async fn continuity_is_found_in_what_is_left_of_a_feed() {
    let server = Server::start();
    let connection = connected(&server).await;
    let at = async |position| {
        feed::continuity(&connection, "feed", position)
            .await
            .unwrap()
    };
    assert_eq!(at(EntryId::ZERO).await, Continuity::Intact { behind: 0 });
    assert_eq!(at(id(5)).await, Continuity::Missing);
    fill(&connection, "feed", 1, 20).await;
    assert_eq!(at(id(5)).await, Continuity::Intact { behind: 15 });
    assert_eq!(at(id(20)).await, Continuity::Intact { behind: 0 });
    assert_eq!(at(id(25)).await, Continuity::RolledBack { last: id(20) });
    feed::trim(&connection, "feed", id(10), &[], Precision::Exact)
        .await
        .unwrap();
    assert_eq!(at(id(9)).await, Continuity::Intact { behind: 11 });
    assert_eq!(at(id(5)).await, Continuity::Gap { lost: 4 });
    assert_eq!(at(EntryId::ZERO).await, Continuity::Gap { lost: 9 });
    feed::trim(&connection, "feed", EntryId::MAX, &[], Precision::Exact)
        .await
        .unwrap();
    assert_eq!(at(id(20)).await, Continuity::Intact { behind: 0 });
    assert_eq!(at(id(18)).await, Continuity::Gap { lost: 2 });
    run::<u64>(&connection, &["DEL", "feed"]).await;
    let again = EntryId::new(5000, 1);
    feed::append(&connection, "feed", again, &[("a", 1)])
        .await
        .unwrap();
    assert_eq!(at(id(20)).await, Continuity::Recreated { last: again });
}

#[tokio::test]
async fn another_entry_in_place_of_the_last_one_read_is_a_rollback() {
    let server = Server::start();
    let connection = connected(&server).await;
    fill(&connection, "feed", 1, 5).await;
    // Entry 6 was read and lost; the new primary gave its number to a later one, and went on.
    for seq in 6..9 {
        feed::append(&connection, "feed", EntryId::new(3000, seq), &[("a", 1)])
            .await
            .unwrap();
    }
    let continuity = feed::continuity(&connection, "feed", id(6)).await.unwrap();
    assert_eq!(
        continuity,
        Continuity::RolledBack {
            last: EntryId::new(3000, 8)
        }
    );
}

#[tokio::test]
async fn a_server_that_restarts_from_its_append_only_file_is_continuous_and_an_empty_one_is_not() {
    let mut kept = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut emptied = Server::start();
    for (server, expected) in [
        (&mut kept, Continuity::Intact { behind: 7 }),
        (&mut emptied, Continuity::Missing),
    ] {
        let connection = connected(server).await;
        let link = up(&connection).await.link;
        fill(&connection, "feed", 1, 27).await;
        server.start_again();
        next_up(&connection, link).await;
        assert_eq!(
            feed::continuity(&connection, "feed", id(20)).await.unwrap(),
            expected
        );
    }
}
