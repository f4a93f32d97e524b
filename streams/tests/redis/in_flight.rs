//! The bound on commands under way.

use std::time::Duration;

use redis::cmd;
use trove_streams::{Batch, Config, Error, Outcome};

use crate::harness::{Server, connect_with, quick, run, until, up};

#[tokio::test]
async fn one_command_more_than_the_bound_is_refused_at_once() {
    let server = Server::start();
    let config = Config {
        in_flight_max: 3,
        response_timeout: Duration::from_secs(3600),
        ..quick()
    };
    let connection = connect_with(&server, config);
    up(&connection).await;
    let blocked: Vec<_> = (0..3)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let mut cmd = cmd("BLPOP");
                cmd.arg("list").arg(0);
                connection.query(&cmd).await
            })
        })
        .collect();
    until("three commands under way", async || {
        (connection.in_flight() == 3).then_some(())
    })
    .await;
    let refused = connection.query(&cmd("PING")).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooManyInFlight {
                commands: 1,
                max: 3
            }
        ),
        "{refused:?}"
    );
    assert_eq!(refused.outcome(), Outcome::NotExecuted);
    // A command whose caller went away gives its place back.
    blocked[2].abort();
    until("a free place", async || {
        (connection.in_flight() == 2).then_some(())
    })
    .await;
    drop(blocked);
}

#[tokio::test]
async fn a_batch_counts_with_each_of_its_commands() {
    let server = Server::start();
    let config = Config {
        in_flight_max: 10,
        ..quick()
    };
    let connection = connect_with(&server, config);
    up(&connection).await;
    let batch = |count| (0..count).fold(Batch::new(), |batch, _| batch.cmd(cmd("PING")));
    assert_eq!(connection.batch(batch(10)).await.unwrap().count(), 10);
    let refused = connection.batch(batch(11)).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooManyInFlight {
                commands: 11,
                max: 10
            }
        ),
        "{refused:?}"
    );
    assert_eq!(connection.in_flight(), 0);
    assert_eq!(run::<String>(&connection, &["PING"]).await, "PONG");
}
