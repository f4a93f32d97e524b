//! Servers that die, fall silent, or are no longer the master.

use std::time::{Duration, Instant};

use redis::cmd;
use trove_streams::{DownReason, Error, ErrorCode, Outcome};

use crate::harness::{
    Server, connect_with, connected, down_because, next_up, quick, run, until, up,
};

#[tokio::test]
async fn a_killed_server_is_found_again_when_it_is_back() {
    let mut server = Server::start();
    let connection = connected(&server).await;
    let before = up(&connection).await;
    run::<()>(&connection, &["SET", "a", "1"]).await;
    server.kill();
    down_because(&connection, |reason| {
        matches!(reason, DownReason::Closed | DownReason::Dial(_))
    })
    .await;
    let refused = connection.query(&cmd("PING")).await.unwrap_err();
    assert_eq!(refused.outcome(), Outcome::NotExecuted, "{refused:?}");
    server.start_again();
    let started = Instant::now();
    let after = next_up(&connection, before.link).await;
    // Pauses are at most 100 ms here.
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(after.changed_from.as_ref(), Some(&before.server.history));
    assert_ne!(after.server.history.run_id, before.server.history.run_id);
    assert_eq!(run::<Option<u64>>(&connection, &["GET", "a"]).await, None);
}

#[tokio::test]
async fn a_closed_link_to_the_same_server_is_no_change_of_history() {
    let server = Server::start();
    let connection = connected(&server).await;
    let link = up(&connection).await.link;
    let killer = connected(&server).await;
    run::<u64>(
        &killer,
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    )
    .await;
    let after = next_up(&connection, link).await;
    assert_eq!(after.changed_from, None);
}

#[tokio::test]
async fn the_link_to_a_silent_server_is_replaced_whatever_the_traffic() {
    let server = Server::start();
    let idle = connected(&server).await;
    let busy = connected(&server).await;
    let (idle_link, busy_link) = (up(&idle).await.link, up(&busy).await.link);
    server.pause();
    let unknown = busy.query(&cmd("PING")).await.unwrap_err();
    assert!(matches!(unknown, Error::TimedOut { .. }), "{unknown:?}");
    assert_eq!(unknown.outcome(), Outcome::Unknown);
    for connection in [&idle, &busy] {
        let silent = |reason: &DownReason| {
            matches!(
                reason,
                DownReason::TimedOut(3) | DownReason::ConnectTimedOut(_)
            )
        };
        down_because(connection, silent).await;
    }
    server.go_on();
    next_up(&idle, idle_link).await;
    next_up(&busy, busy_link).await;
    assert_eq!(run::<String>(&busy, &["PING"]).await, "PONG");
}

#[tokio::test]
async fn commands_under_way_are_told_when_their_link_is_given_up() {
    let server = Server::start();
    let config = trove_streams::Config {
        response_timeout: Duration::from_secs(3600),
        ..quick()
    };
    let connection = connect_with(&server, config);
    up(&connection).await;
    let mut blocked = cmd("BLPOP");
    blocked.arg("nothing").arg(0);
    let (lost, ()) = tokio::join!(connection.query(&blocked), async {
        until("the command under way", async || {
            (connection.in_flight() == 1).then_some(())
        })
        .await;
        connection.reconnect();
    });
    let lost = lost.unwrap_err();
    assert!(matches!(lost, Error::LinkLost { .. }), "{lost:?}");
    assert_eq!(lost.outcome(), Outcome::Unknown);
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test]
async fn many_time_outs_at_once_count_as_one() {
    let server = Server::start();
    let connection = connected(&server).await;
    let link = up(&connection).await.link;
    server.pause();
    let queries: Vec<_> = (0..20)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.query(&cmd("PING")).await })
        })
        .collect();
    for query in queries {
        let result = query.await.unwrap();
        assert!(matches!(result, Err(Error::TimedOut { .. })), "{result:?}");
    }
    server.go_on();
    until("an answer", async || {
        connection.query(&cmd("PING")).await.ok()
    })
    .await;
    assert_eq!(
        up(&connection).await.link,
        link,
        "one slow turn of the server must not cost the link"
    );
}

#[tokio::test]
async fn a_demoted_master_is_left_by_the_first_refused_write() {
    let (server, other) = (Server::start(), Server::start());
    // No probe comes first.
    let config = trove_streams::Config {
        probe_interval: Duration::from_secs(3600),
        ..quick()
    };
    let connection = connect_with(&server, config);
    up(&connection).await;
    let admin = connected(&server).await;
    run::<()>(&admin, &["REPLICAOF", "127.0.0.1", &other.port.to_string()]).await;
    let mut set = cmd("SET");
    set.arg("a").arg(1);
    let refused = connection.query(&set).await.unwrap_err();
    assert_eq!(
        refused.server().map(|error| &error.code),
        Some(&ErrorCode::ReadOnly),
        "{refused:?}"
    );
    assert_eq!(refused.outcome(), Outcome::NotExecuted);
    down_because(&connection, |reason| {
        matches!(reason, DownReason::NotMaster { .. })
    })
    .await;
    // `admin` was dropped as well; a plain client makes it a master again.
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut plain = client.get_multiplexed_async_connection().await.unwrap();
    let () = cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .query_async(&mut plain)
        .await
        .unwrap();
    let after = up(&connection).await;
    assert!(
        after.changed_from.is_some(),
        "a promotion is another history"
    );
}

#[tokio::test]
async fn a_demoted_master_is_left_without_any_write() {
    let (server, other) = (Server::start(), Server::start());
    let connection = connected(&server).await;
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut plain = client.get_multiplexed_async_connection().await.unwrap();
    let () = cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(other.port)
        .query_async(&mut plain)
        .await
        .unwrap();
    down_because(
        &connection,
        |reason| matches!(reason, DownReason::NotMaster { role } if role == "slave"),
    )
    .await;
}

#[tokio::test]
async fn a_new_replication_id_on_a_live_link_is_reported() {
    let server = Server::start();
    let connection = connected(&server).await;
    let before = up(&connection).await;
    // The first replica of a master without a backlog gives it a new id.
    let _replica = Server::with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let after = until("another history", async || {
        connection
            .state()
            .up()
            .filter(|up| up.server.history != before.server.history)
            .cloned()
    })
    .await;
    assert_eq!(after.link, before.link);
    assert_eq!(after.changed_from.as_ref(), Some(&before.server.history));
    assert_eq!(after.server.history.run_id, before.server.history.run_id);
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_waited_for() {
    // Loading 4.5 MB takes 0.6 s; the server answers in between each 2 MB.
    let mut server = Server::with(&[
        "--appendonly",
        "yes",
        "--aof-use-rdb-preamble",
        "no",
        "--key-load-delay",
        "200",
    ]);
    let connection = connected(&server).await;
    let mut fill = cmd("EVAL");
    fill.arg("for i = 1, 3000 do redis.call('SET', 'key' .. i, string.rep('x', 1500)) end")
        .arg(0);
    connection.query(&fill).await.unwrap();
    let link = up(&connection).await.link;
    server.start_again();
    let after = next_up(&connection, link).await;
    assert!(!after.server.loading);
    assert_eq!(run::<u64>(&connection, &["DBSIZE"]).await, 3000);
}
