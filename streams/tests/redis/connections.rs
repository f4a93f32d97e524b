//! What a connection finds out about a server before it uses it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use trove_streams::{
    BoxFuture, Config, Connection, Credentials, Dial, DownReason, Duplex, Endpoint, Error, Fixed,
    Fresh, History, Outcome, Prepare, StoreUrl, UrlError, Version,
};

use crate::harness::{Server, connect_with, connected, down_because, next_up, quick, run, up};

#[tokio::test]
async fn a_connection_says_what_its_server_is() {
    let server = Server::start();
    let connection = connect_with(&server, quick());
    let up = up(&connection).await;
    assert_eq!(up.link, 1);
    assert_eq!(up.changed_from, None);
    assert!(up.server.version >= Version::new(6, 2, 0));
    assert_eq!(
        up.server.endpoint,
        Some(Endpoint::new("127.0.0.1", server.port))
    );
    assert_eq!(
        (
            up.server.history.run_id.len(),
            up.server.history.replid.len()
        ),
        (40, 40)
    );
    assert_eq!(up.server.maxmemory_policy.as_deref(), Some("noeviction"));
    assert_eq!(up.server.mode, "standalone");
}

#[tokio::test]
async fn a_replica_is_refused() {
    let master = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let connection = connect_with(&replica, quick());
    down_because(
        &connection,
        |reason| matches!(reason, DownReason::NotMaster { role } if role == "slave"),
    )
    .await;
    let refused = connection.query(&redis::cmd("PING")).await.unwrap_err();
    assert!(matches!(refused, Error::NotConnected { .. }), "{refused:?}");
    assert_eq!(refused.outcome(), Outcome::NotExecuted);
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_at_once() {
    let server = Server::start();
    let config = Config {
        version_min: Version::new(99, 0, 0),
        ..quick()
    };
    let connection = connect_with(&server, config);
    let Err(Error::NotConnected {
        reason: Some(reason),
    }) = connection.wait_up(Duration::from_secs(3600)).await
    else {
        panic!("a server of version 99 is not there");
    };
    assert!(
        matches!(*reason, DownReason::TooOld { needed, .. } if needed == Version::new(99, 0, 0)),
        "{reason}"
    );
}

#[tokio::test]
async fn a_password_is_needed_where_the_server_asks_for_one() {
    let server = Server::with(&["--requirepass", "open/sesame"]);
    for wrong in [
        format!("redis://127.0.0.1:{}", server.port),
        format!("redis://:wrong@127.0.0.1:{}", server.port),
    ] {
        let connection = Connection::to(&wrong.parse().unwrap(), quick())
            .unwrap()
            .start();
        let Err(Error::NotConnected {
            reason: Some(reason),
        }) = connection.wait_up(Duration::from_secs(3600)).await
        else {
            panic!("{wrong} must not do");
        };
        assert!(matches!(*reason, DownReason::Login(_)), "{reason:?}");
    }
    let right: StoreUrl = format!("redis://default:open%2Fsesame@127.0.0.1:{}/5", server.port)
        .parse()
        .unwrap();
    let config = Config {
        client_name: Some("trove-test".into()),
        ..quick()
    };
    let connection = Connection::to(&right, config).unwrap().start();
    up(&connection).await;
    let client: String = run(&connection, &["CLIENT", "INFO"]).await;
    assert!(
        client.contains(" db=5 ") && client.contains(" name=trove-test "),
        "{client}"
    );
}

#[tokio::test]
async fn urls_that_need_what_is_not_there_are_refused_with_the_reason() {
    for url in ["rediss://127.0.0.1", "redis+cluster://127.0.0.1:7000"] {
        let Err(error) = Connection::to(&url.parse().unwrap(), quick()) else {
            panic!("{url} must be refused");
        };
        assert!(matches!(error, UrlError::Unsupported { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused() {
    let node = Server::with(&["--cluster-enabled", "yes"]);
    let connection = connect_with(&node, quick());
    down_because(&connection, |reason| {
        matches!(reason, DownReason::ClusterNode)
    })
    .await;
}

#[derive(Default)]
struct Remember {
    seen: Mutex<Vec<(u64, Option<History>)>>,
}

impl Prepare for Remember {
    fn prepare<'a>(
        &'a self,
        fresh: Fresh<'a>,
    ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            fresh.query(redis::cmd("INCR").arg("epoch")).await?;
            let up = fresh.up();
            self.seen
                .lock()
                .unwrap()
                .push((up.link, up.changed_from.clone()));
            Ok(())
        })
    }
}

#[tokio::test]
async fn each_new_link_is_prepared_before_any_command_is_sent() {
    let mut server = Server::start();
    let remember = Arc::new(Remember::default());
    let connection = Connection::builder(
        Arc::new(Fixed(Endpoint::new("127.0.0.1", server.port))),
        quick(),
    )
    .login(Credentials::default(), 0)
    .prepare(remember.clone())
    .start();
    let first = up(&connection).await;
    assert_eq!(run::<u64>(&connection, &["GET", "epoch"]).await, 1);
    server.start_again();
    let second = next_up(&connection, first.link).await;
    assert_eq!(run::<u64>(&connection, &["GET", "epoch"]).await, 1);
    assert_eq!(second.changed_from, Some(first.server.history.clone()));
    let seen = remember.seen.lock().unwrap().clone();
    assert_eq!(seen, [(1, None), (2, Some(first.server.history.clone()))]);
}

#[tokio::test]
async fn a_link_that_cannot_be_prepared_is_not_used() {
    struct Fail;
    impl Prepare for Fail {
        fn prepare<'a>(
            &'a self,
            _: Fresh<'a>,
        ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
            Box::pin(async { Err("not today".into()) })
        }
    }
    let server = Server::start();
    let connection = Connection::builder(
        Arc::new(Fixed(Endpoint::new("127.0.0.1", server.port))),
        quick(),
    )
    .prepare(Arc::new(Fail))
    .start();
    down_because(&connection, |reason| {
        matches!(reason, DownReason::Prepare(_))
    })
    .await;
}

#[tokio::test]
async fn the_link_ends_with_the_last_handle() {
    let server = Server::start();
    let watcher = connected(&server).await;
    let connection = connected(&server).await;
    let clone = connection.clone();
    let clients = async || {
        run::<String>(&watcher, &["CLIENT", "LIST"])
            .await
            .lines()
            .count()
    };
    drop(connection);
    assert_eq!(run::<String>(&clone, &["PING"]).await, "PONG");
    assert_eq!(clients().await, 2);
    drop(clone);
    crate::harness::until("one client", async || (clients().await == 1).then_some(())).await;
}

#[tokio::test]
async fn slots_are_those_that_the_server_computes() {
    // CLUSTER KEYSLOT needs a server in cluster mode, which a supervised connection refuses.
    let node = Server::with(&["--cluster-enabled", "yes"]);
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", node.port)).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for count in [1, 2, 3, 16, 17, 100, 256] {
        let partitions = trove_streams::Partitions::new(count).unwrap();
        let keys = trove_streams::keys::Keys::new("t", partitions.clone()).unwrap();
        for partition in partitions.iter() {
            let feed = keys.partition(partition).feed();
            let slot: u16 = redis::cmd("CLUSTER")
                .arg("KEYSLOT")
                .arg(&feed)
                .query_async(&mut connection)
                .await
                .unwrap();
            assert_eq!(slot, trove_streams::slot::slot(feed.as_bytes()), "{feed}");
        }
    }
}

/// Streams that are opened and then say nothing.
#[derive(Default)]
struct Silence {
    dialled_at: Mutex<Vec<tokio::time::Instant>>,
    kept: Mutex<Vec<tokio::io::DuplexStream>>,
}

impl Dial for Silence {
    fn dial<'a>(&'a self, _: &'a Endpoint) -> BoxFuture<'a, std::io::Result<Box<dyn Duplex>>> {
        let (ours, theirs) = tokio::io::duplex(1024);
        self.dialled_at
            .lock()
            .unwrap()
            .push(tokio::time::Instant::now());
        self.kept.lock().unwrap().push(theirs);
        Box::pin(async { Ok(Box::new(ours) as Box<dyn Duplex>) })
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_to_connect_slow_down_to_the_cap_and_never_stop() {
    let silence = Arc::new(Silence::default());
    let config = Config {
        seed: Some(7),
        ..Config::commands()
    };
    let connection = Connection::builder(Arc::new(Fixed(Endpoint::new("nowhere", 1))), config)
        .dial(silence.clone())
        .start();
    let error = connection
        .wait_up(Duration::from_secs(60))
        .await
        .unwrap_err();
    let Error::NotConnected {
        reason: Some(reason),
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(
        matches!(*reason, DownReason::ConnectTimedOut(_)),
        "{reason:?}"
    );
    let dialled_at = silence.dialled_at.lock().unwrap().clone();
    let pauses: Vec<Duration> = dialled_at
        .windows(2)
        .map(|pair| pair[1] - pair[0] - Duration::from_secs(1))
        .collect();
    // A minute of attempts of a second each and pauses of up to half a second.
    assert!(pauses.len() > 38 && pauses.len() < 52, "{pauses:?}");
    assert!(pauses[0] <= Duration::from_millis(21), "{pauses:?}");
    assert!(
        pauses[6..]
            .iter()
            .all(|pause| (250..=501).contains(&pause.as_millis())),
        "{pauses:?}"
    );
}
