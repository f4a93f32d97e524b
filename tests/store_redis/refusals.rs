//! Servers and settings that are refused at the start.

use super::*;
use trove::store::redis::{ConnectError, Info};

async fn refused(server: &Server, options: Options) -> ConnectError {
    match RedisStore::connect(&server.url(), options).await {
        Ok(_) => panic!("it was taken"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn another_number_of_partitions_is_refused() {
    let server = Server::start();
    drop(connect(&server).await);
    let error = refused(
        &server,
        Options {
            partitions: 8,
            ..quick()
        },
    )
    .await;
    assert!(
        matches!(
            error,
            ConnectError::Partitions {
                found: 4,
                wanted: 8
            }
        ),
        "{error}"
    );
    drop(connect(&server).await);
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let server = Server::with(&["--maxmemory-policy", "allkeys-lru"]);
    let error = refused(&server, quick()).await;
    assert!(
        matches!(&error, ConnectError::Evicts(policy) if policy == "allkeys-lru"),
        "{error}"
    );
    assert!(error.to_string().contains("noeviction"));
}

#[tokio::test]
async fn an_empty_server_is_no_store_unless_it_may_become_one() {
    let server = Server::start();
    let error = refused(
        &server,
        Options {
            create: false,
            ..quick()
        },
    )
    .await;
    assert!(matches!(error, ConnectError::Identity(_)), "{error}");
    drop(connect(&server).await);
    drop(
        connect_with(
            &server,
            Options {
                create: false,
                ..quick()
            },
        )
        .await,
    );
}

#[tokio::test]
async fn a_store_of_a_later_version_is_refused() {
    let server = Server::start();
    drop(connect(&server).await);
    let () = server.run(&["HSET", "{store}identity", "schema", "2"]);
    let error = refused(&server, quick()).await;
    assert!(
        matches!(error, ConnectError::Schema { found: 2, known: 1 }),
        "{error}"
    );
}

#[tokio::test]
async fn nobody_there_and_nonsense_are_told_apart() {
    let mut server = Server::start();
    server.kill();
    let error = refused(
        &server,
        Options {
            connect_wait: Duration::from_millis(300),
            ..quick()
        },
    )
    .await;
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error}");
    let nonsense = RedisStore::connect("http://x", quick()).await;
    assert!(matches!(nonsense.err(), Some(ConnectError::Url(_))));
    let mut options = quick();
    options.limits.pending_finds_max = 1_000_000;
    assert!(matches!(
        refused(&server, options).await,
        ConnectError::Options(_)
    ));
}

#[tokio::test]
async fn info_tells_what_is_there() {
    let server = Server::start();
    let store = connect(&server).await;
    let Info {
        identity,
        known,
        schema,
        partitions,
        epoch,
        version,
        ..
    } = store.info().await.unwrap();
    assert_eq!(identity.unwrap().len(), 32);
    assert_eq!(
        (known, schema, partitions, epoch),
        (true, 1, 4, store.epoch())
    );
    assert!(version.contains('.'));
}
