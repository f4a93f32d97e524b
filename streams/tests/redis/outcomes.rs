//! That a failed command is told rightly whether it was carried out, whatever happens to its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use trove_streams::{Batch, Connection, Outcome, Script};

use crate::harness::{Random, Server, connect_with, quick, run, until, up};

#[derive(Default)]
struct Counts {
    done: AtomicU64,
    unknown: AtomicU64,
    not_executed: AtomicU64,
}

impl Counts {
    fn add(&self, outcome: Option<Outcome>, count: u64) {
        let counter = match outcome {
            None => &self.done,
            Some(Outcome::Unknown) => &self.unknown,
            Some(Outcome::NotExecuted) => &self.not_executed,
            Some(other) => panic!("no command of this test ends with {other:?}"),
        };
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Counts up by single calls and by batches until told to stop.
async fn count_up(connection: Connection, script: Script, batch: usize, counts: Arc<Counts>) {
    loop {
        let call = script.call(&["counter"]);
        if batch == 1 {
            let result = connection.run(&call).await;
            counts.add(result.err().map(|error| error.outcome()), 1);
        } else {
            let calls = (0..batch).fold(Batch::new(), |calls, _| calls.call(call.clone()));
            match connection.batch(calls).await {
                Ok(replies) => {
                    for reply in replies {
                        counts.add(reply.err().map(|error| error.outcome()), 1);
                    }
                }
                Err(error) => counts.add(Some(error.outcome()), u64::try_from(batch).unwrap()),
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_was_done_is_done_and_what_was_certainly_not_done_never_is() {
    let mut random = Random::seeded();
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let connection = connect_with(&server, quick());
    let script = Script::new("count-1.lua", "return redis.call('INCR', KEYS[1])").unwrap();
    up(&connection).await;
    let counts = Arc::new(Counts::default());
    let counters: Vec<_> = [1, 1, 3, 10]
        .map(|batch| {
            tokio::spawn(count_up(
                connection.clone(),
                script.clone(),
                batch,
                Arc::clone(&counts),
            ))
        })
        .into();
    for _ in 0..12 {
        let before = counts.done.load(Ordering::Relaxed);
        until("some work", async || {
            (counts.done.load(Ordering::Relaxed) > before + 20).then_some(())
        })
        .await;
        match random.below(5) {
            0 => server.start_again(),
            1 => {
                server.pause();
                tokio::time::sleep(Duration::from_millis(random.below(600))).await;
                server.go_on();
            }
            2 => connection.reconnect(),
            3 => drop(connection.query(redis::cmd("SCRIPT").arg("FLUSH")).await),
            _ => drop(
                connection
                    .query(redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal"))
                    .await,
            ),
        }
    }
    for counter in &counters {
        counter.abort();
    }
    for counter in counters {
        // A counter that was stopped in the middle of a command leaves one more unknown.
        assert!(counter.await.unwrap_err().is_cancelled());
    }
    counts.unknown.fetch_add(1 + 1 + 3 + 10, Ordering::Relaxed);
    let total = until("the total", async || {
        let value = connection
            .query(redis::cmd("GET").arg("counter"))
            .await
            .ok()?;
        match value {
            Value::BulkString(bytes) => std::str::from_utf8(&bytes).ok()?.parse::<u64>().ok(),
            _ => None,
        }
    })
    .await;
    let (done, unknown) = (
        counts.done.load(Ordering::Relaxed),
        counts.unknown.load(Ordering::Relaxed),
    );
    println!(
        "{done} done, {unknown} unknown, {} not executed, counted {total}",
        counts.not_executed.load(Ordering::Relaxed)
    );
    assert!(total >= done, "{done} were acknowledged, {total} are there");
    assert!(
        total <= done + unknown,
        "{done} were acknowledged, {unknown} may have been, {total} are there"
    );
    run::<String>(&connection, &["PING"]).await;
}
