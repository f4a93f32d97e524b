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

/// Answers as a Redis of a version does that no package carries any more, and only what a new link asks.
async fn old_server(listener: tokio::net::TcpListener, version: &str) {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    while let Ok((stream, _)) = listener.accept().await {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        // A command is `*N` and N words, each after a line with its length.
        while matches!(stream.read_line(&mut line).await, Ok(bytes) if bytes > 0) {
            let words: usize = line.trim_start_matches('*').trim().parse().unwrap();
            let mut command = String::new();
            for nth in 0..2 * words {
                line.clear();
                if stream.read_line(&mut line).await.is_err() {
                    break;
                }
                if nth == 1 {
                    command = line.trim().to_owned();
                }
            }
            line.clear();
            let answer = match command.as_str() {
                "INFO" => {
                    let info = format!(
                        "redis_version:{version}\r\nredis_mode:standalone\r\nrun_id:a\r\nloading:0\r\nrole:master\r\n\
                         master_replid:b\r\nmaster_repl_offset:0\r\nmaxclients:100\r\n"
                    );
                    format!("${}\r\n{info}\r\n", info.len())
                }
                "ROLE" => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned(),
                "CLIENT" => "+OK\r\n".to_owned(),
                other => format!("-ERR unknown command '{other}'\r\n"),
            };
            if stream.write_all(answer.as_bytes()).await.is_err() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_by_its_version() {
    for (version, is_too_old) in [("6.0.16", true), ("5.0.14", true), ("6.2.0", false)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(old_server(listener, version));
        let options = Options {
            connect_wait: if is_too_old {
                PATIENCE
            } else {
                Duration::from_millis(300)
            },
            ..quick()
        };
        let error = match RedisStore::connect(&url, options).await {
            Ok(_) => panic!("it is no server to be used"),
            Err(error) => error,
        };
        // One that is not too old fails by what it cannot do, later.
        assert_eq!(
            matches!(error, ConnectError::TooOld { .. }),
            is_too_old,
            "{version}: {error}"
        );
        if is_too_old {
            let said = error.to_string();
            assert!(said.contains(version) && said.contains("6.2"), "{said}");
        }
        server.abort();
    }
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
