//! Finding the master through Sentinel.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::cmd;
use trove_streams::{
    Connection, Credentials, DownReason, Endpoint, Error, ResolveError, Resolver, Sentinel, TcpDial,
};

use crate::harness::{
    PATIENCE, Server, Watcher, down_because, free_port, next_up, quick, run, sentinel, until, up,
};

/// Waits until the sentinel knows the master's replica and the replica has all that was written.
async fn replicated(connection: &Connection, watcher: &Watcher) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", watcher.port)).unwrap();
    let plain = client.get_multiplexed_async_connection().await.unwrap();
    until(
        "the replica to have all, and the sentinel to know it",
        async || {
            let mut replicas = cmd("SENTINEL");
            replicas.arg("REPLICAS").arg("hunt");
            let replicas: Vec<redis::Value> =
                replicas.query_async(&mut plain.clone()).await.ok()?;
            let copied: u64 = run(connection, &["WAIT", "1", "50"]).await;
            (replicas.len() == 1 && copied == 1).then_some(())
        },
    )
    .await;
}

/// Finds the master `hunt` through one sentinel.
fn resolver(watcher: &Watcher) -> Sentinel {
    let sentinels = vec![Endpoint::new("127.0.0.1", watcher.port)];
    Sentinel::new(sentinels, "hunt", Credentials::default(), Arc::new(TcpDial))
}

/// The sentinel cuts all links of a server that it promotes, which may hit one that was made a moment before.
async fn value_of_a(connection: &Connection) -> u64 {
    let mut get = cmd("GET");
    get.arg("a");
    until("an answer", async || connection.query_as(&get).await.ok()).await
}

#[tokio::test]
async fn after_a_failover_the_new_master_is_found_and_the_change_reported() {
    let mut master = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let watcher = sentinel("hunt", master.port);
    // One of the two sentinels in the URL is not there.
    let url = format!(
        "redis+sentinel://127.0.0.1:{},127.0.0.1:{}/hunt",
        free_port(),
        watcher.port
    );
    let connection = Connection::to(&url.parse().unwrap(), quick())
        .unwrap()
        .start();
    let before = up(&connection).await;
    assert_eq!(
        before.server.endpoint,
        Some(Endpoint::new("127.0.0.1", master.port))
    );
    run::<()>(&connection, &["SET", "a", "1"]).await;
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", watcher.port)).unwrap();
    let plain = client.get_multiplexed_async_connection().await.unwrap();
    replicated(&connection, &watcher).await;
    // By command, so that the old master answers all the way and would go on taking commands.
    until("a failover to begin", async || {
        cmd("SENTINEL")
            .arg("FAILOVER")
            .arg("hunt")
            .query_async::<()>(&mut plain.clone())
            .await
            .ok()
    })
    .await;
    let after = until("the promoted replica", async || {
        let to_replica = Some(Endpoint::new("127.0.0.1", replica.port));
        connection
            .state()
            .up()
            .filter(|up| up.server.endpoint == to_replica)
            .cloned()
    })
    .await;
    let history = after
        .changed_from
        .clone()
        .expect("another server is another history");
    assert_eq!(history.run_id, before.server.history.run_id);
    assert!(after.server.was_promoted_from(&history), "{after:?}");
    assert_eq!(value_of_a(&connection).await, 1);
    // What becomes of the old master is of no concern now.
    master.kill();
    assert_eq!(value_of_a(&connection).await, 1);
}

#[tokio::test]
async fn a_master_that_dies_is_replaced_by_its_replica() {
    let mut master = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let watcher = sentinel("hunt", master.port);
    let url = format!("redis+sentinel://127.0.0.1:{}/hunt", watcher.port);
    let connection = Connection::to(&url.parse().unwrap(), quick())
        .unwrap()
        .start();
    let before = up(&connection).await;
    run::<()>(&connection, &["SET", "a", "1"]).await;
    replicated(&connection, &watcher).await;
    master.kill();
    let after = next_up(&connection, before.link).await;
    assert_eq!(
        after.server.endpoint,
        Some(Endpoint::new("127.0.0.1", replica.port))
    );
    let history = after
        .changed_from
        .expect("another server is another history");
    assert_eq!(history.run_id, before.server.history.run_id);
    assert_eq!(value_of_a(&connection).await, 1);
}

#[tokio::test]
async fn whoever_has_found_the_promoted_replica_is_not_sent_away_by_the_announcement() {
    let master = Server::start();
    // A second replica has to be turned round before the new master is announced.
    let replicas =
        [(); 2].map(|()| Server::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]));
    let watcher = sentinel("hunt", master.port);
    let resolver = resolver(&watcher);
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", watcher.port)).unwrap();
    let plain = client.get_multiplexed_async_connection().await.unwrap();
    let mut announcements = client.get_async_pubsub().await.unwrap();
    announcements.subscribe("+switch-master").await.unwrap();
    until("a failover to begin", async || {
        let mut known = cmd("SENTINEL");
        known.arg("REPLICAS").arg("hunt");
        let known: Vec<redis::Value> = known.query_async(&mut plain.clone()).await.ok()?;
        let mut failover = cmd("SENTINEL");
        failover.arg("FAILOVER").arg("hunt");
        let begun = known.len() == replicas.len()
            && failover.query_async::<()>(&mut plain.clone()).await.is_ok();
        begun.then_some(())
    })
    .await;
    let promoted = until("the promoted replica", async || {
        let found = resolver.resolve().await.ok()?;
        (found.port != master.port).then_some(found)
    })
    .await;
    let announced = async {
        let mut announcements = announcements.on_message();
        let announced = tokio::time::timeout(PATIENCE, announcements.next()).await;
        let payload: String = announced.unwrap().unwrap().get_payload().unwrap();
        assert!(payload.ends_with(&promoted.port.to_string()), "{payload}");
        // Long enough to hear of it.
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    tokio::select! {
        () = resolver.moved(&promoted) => panic!("it is where it should be"),
        () = announced => {}
    }
}

#[tokio::test]
async fn a_failover_is_announced_without_a_link_to_the_old_master() {
    let master = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let watcher = sentinel("hunt", master.port);
    let resolver = resolver(&watcher);
    let current = resolver.resolve().await.unwrap();
    assert_eq!(current.port, master.port);
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", watcher.port)).unwrap();
    let plain = client.get_multiplexed_async_connection().await.unwrap();
    let fail_over = until("a failover to begin", async || {
        let mut failover = cmd("SENTINEL");
        failover
            .arg("FAILOVER")
            .arg("hunt")
            .query_async::<()>(&mut plain.clone())
            .await
            .ok()
    });
    let both = async { tokio::join!(resolver.moved(&current), fail_over) };
    tokio::time::timeout(PATIENCE, both)
        .await
        .expect("the failover is announced");
    assert_eq!(resolver.resolve().await.unwrap().port, replica.port);
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_and_sentinels_that_are_not_there_are_told_apart() {
    let master = Server::start();
    let watcher = sentinel("hunt", master.port);
    let url = format!("redis+sentinel://127.0.0.1:{}/other", watcher.port);
    let connection = Connection::to(&url.parse().unwrap(), quick())
        .unwrap()
        .start();
    down_because(&connection, |reason| matches!(reason, DownReason::Resolve(ResolveError::UnknownMaster { master }) if master == "other")).await;
    let url = format!("redis+sentinel://127.0.0.1:{}/hunt", free_port());
    let connection = Connection::to(&url.parse().unwrap(), quick())
        .unwrap()
        .start();
    down_because(&connection, |reason| {
        matches!(
            reason,
            DownReason::Resolve(ResolveError::NoAnswer { asked: 1, .. })
        )
    })
    .await;
    let error = connection
        .wait_up(Duration::from_millis(1))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotConnected { .. }));
}

#[tokio::test]
async fn a_sentinel_itself_is_no_server() {
    let server = Server::start();
    let watcher = sentinel("hunt", server.port);
    let connection = crate::harness::connect_to(watcher.port, quick());
    down_because(
        &connection,
        |reason| matches!(reason, DownReason::NotMaster { role } if role == "sentinel"),
    )
    .await;
}
