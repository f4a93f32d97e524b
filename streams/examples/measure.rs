//! What this crate costs on one event loop, against the server named: commands one after the other, commands at once, batches,
//! and a tail that reads a feed.
//!
//! ```sh
//! cargo run --release -p trove-streams --example measure -- redis://127.0.0.1:6399
//! ```
//! It writes to, and removes, the key `example:measure`.

use std::time::{Duration, Instant};

use redis::cmd;
use trove_streams::{Batch, Config, Connection, EntryId, Script, StoreUrl, Tail};

const KEY: &str = "example:measure";
const ENTRIES: u64 = 100_000;

fn report(what: &str, count: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a count of this size is exact")]
    let rate = count as f64 / seconds;
    println!("{what:<50} {rate:>10.0}/s {:>8.2} µs each", 1e6 / rate);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url: StoreUrl = std::env::args()
        .nth(1)
        .as_deref()
        .unwrap_or("redis://127.0.0.1:6379")
        .parse()?;
    let block = Duration::from_millis(200);
    let commands = Connection::to(&url, Config::commands())?.start();
    let reads = Connection::to(&url, Config::blocking(block))?.start();
    commands.wait_up(Duration::from_secs(5)).await?;
    let delete = async || commands.query(cmd("DEL").arg(KEY)).await;
    delete().await?;

    let started = Instant::now();
    for _ in 0..20_000 {
        commands.query(&cmd("PING")).await?;
    }
    report("commands, one after the other", 20_000, started);

    let started = Instant::now();
    let workers: Vec<_> = (0..100)
        .map(|_| {
            let commands = commands.clone();
            tokio::spawn(async move {
                for _ in 0..1_000 {
                    commands.query(&cmd("PING")).await?;
                }
                Ok::<(), trove_streams::Error>(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    report("commands, 100 callers at once", 100_000, started);

    let script = Script::new("one-1.lua", "return 1")?;
    let started = Instant::now();
    for _ in 0..1_000 {
        let calls = (0..100).fold(Batch::new(), |batch, _| batch.call(script.call(&[KEY])));
        commands.batch(calls).await?;
    }
    report("script calls, batches of 100", 100_000, started);

    let mut id = EntryId::ZERO;
    for _ in 0..ENTRIES / 100 {
        let mut batch = Batch::new();
        for _ in 0..100 {
            id = id
                .following(1_700_000_000_000 + id.seq / 100)
                .ok_or("the counter is used up")?;
            let mut add = cmd("XADD");
            add.arg(KEY)
                .arg(id)
                .arg("k")
                .arg("credit")
                .arg("p")
                .arg("4fQ9xLm2Kd")
                .arg("c")
                .arg(25)
                .arg("s")
                .arg(id.seq % 1000);
            batch = batch.cmd(add);
        }
        commands.batch(batch).await?;
    }
    let bytes: u64 = commands
        .query_as(cmd("MEMORY").arg("USAGE").arg(KEY).arg("SAMPLES").arg(0))
        .await?;
    println!(
        "an entry with four small fields takes {} bytes",
        bytes / ENTRIES
    );

    let mut tail = Tail::new(reads, [(KEY.to_owned(), EntryId::ZERO)], block, 500)?;
    let started = Instant::now();
    let mut seen = 0;
    while seen < ENTRIES {
        seen += u64::try_from(tail.next().await?.len())?;
    }
    report("entries read by a tail, 500 at a time", ENTRIES, started);
    delete().await?;
    Ok(())
}
