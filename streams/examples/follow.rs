//! Writes finds into a feed, follows it, and keeps the sum of the last five seconds: a rolling window over a Redis stream
//! that survives a restart of the server, and notices when the server lost its data.
//!
//! ```sh
//! redis-server --port 6399 --save '' &
//! cargo run -p trove-streams --example follow -- redis://127.0.0.1:6399 20
//! ```
//! Kill and restart the server while it runs: `redis-server` restarts empty, and the feed is reported as missing.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;
use trove_streams::feed::{self, Entry};
use trove_streams::{
    Config, Connection, Continuity, EntryId, Error, Event, Outcome, State, StoreUrl, Tail,
};

const KEY: &str = "example:finds";
const WINDOW_MS: u64 = 5_000;
const BLOCK: Duration = Duration::from_millis(200);

fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn coins(entry: &Entry) -> u64 {
    let text = entry
        .field("coins")
        .and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Appends a find every 200 ms. It is the feed's only writer, so it may read the last id and write the next; several writers
/// do both in one script.
async fn write(connection: Connection, count: u64) {
    for number in 1..=count {
        let appended = async {
            let last = feed::last_id(&connection, KEY).await?;
            let id = last
                .following(now_ms())
                .expect("a counter of 64 bits is not used up");
            feed::append(&connection, KEY, id, &[("coins", number)]).await
        };
        match appended.await {
            Ok(()) => {}
            Err(error) if error.outcome() == Outcome::NotExecuted => {
                println!("find {number} was not written: {error}")
            }
            Err(error) => println!("find {number} may have been written: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Prints each change of the connection.
async fn watch(connection: Connection) {
    let mut states = connection.states();
    while states.changed().await.is_ok() {
        match &*states.borrow_and_update() {
            State::Up(up) if up.changed_from.is_some() => {
                println!("up again, but with another history: link {}", up.link)
            }
            State::Up(up) => println!("up: link {}, version {}", up.link, up.server.version),
            State::Down { reason, .. } => println!("down: {reason}"),
            State::Connecting => {}
        }
    }
}

async fn follow(
    mut tail: Tail,
    commands: &Connection,
    writer: JoinHandle<()>,
) -> Result<(), Error> {
    let mut window: VecDeque<(u64, u64)> = VecDeque::new();
    loop {
        let no_more = writer.is_finished();
        let events = match tail.next().await {
            Ok(events) => events,
            Err(error) => {
                println!("waiting: {error}");
                continue;
            }
        };
        if events.is_empty() && no_more {
            return Ok(());
        }
        for event in events {
            match event {
                Event::Entry { entry, .. } => {
                    window.push_back((entry.id.ms, coins(&entry)));
                    while window
                        .front()
                        .is_some_and(|(ms, _)| ms + WINDOW_MS < entry.id.ms)
                    {
                        window.pop_front();
                    }
                    let sum: u64 = window.iter().map(|(_, coins)| coins).sum();
                    println!("{}: {} coins in the last five seconds", entry.id, sum);
                }
                Event::Broken { how, .. } => {
                    // What was derived from the feed is no longer true: begin again with what is there.
                    println!("the feed does not go on from {}: {how:?}", tail.position(0));
                    window.clear();
                    let from = match how {
                        Continuity::Gap { .. } => feed::last_id(commands, KEY).await?,
                        _ => EntryId::ZERO,
                    };
                    tail.resume(0, from);
                }
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url: StoreUrl = args
        .next()
        .as_deref()
        .unwrap_or("redis://127.0.0.1:6379")
        .parse()?;
    let count: u64 = args.next().as_deref().unwrap_or("20").parse()?;

    let commands = Connection::to(&url, Config::commands())?.start();
    let reads = Connection::to(&url, Config::blocking(BLOCK))?.start();
    tokio::spawn(watch(commands.clone()));
    commands.wait_up(Duration::from_secs(5)).await?;

    let start = feed::last_id(&commands, KEY).await?;
    let tail = Tail::new(reads, [(KEY.to_owned(), start)], BLOCK, 100)?;
    let writer = tokio::spawn(write(commands.clone(), count));
    follow(tail, &commands, writer).await?;

    // What the window no longer needs goes; this reader has read all.
    let before = EntryId::new(now_ms() - WINDOW_MS, 0);
    let removed = feed::trim(&commands, KEY, before, &[], feed::Precision::Exact).await?;
    println!("{removed} entries trimmed");
    Ok(())
}
