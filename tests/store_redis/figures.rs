//! What the store costs its server in memory, which does not depend on the machine. Time is measured by
//! `cargo bench --bench redis`.

use super::*;
use trove_streams::Partitions;
use trove_streams::keys::base62;
use trove_streams::redis::{Connection, cmd};

const WINDOW_MS: u64 = 300_000;

fn memory(connection: &mut Connection, key: &str) -> u64 {
    let used: Option<u64> = cmd("MEMORY")
        .arg("USAGE")
        .arg(key)
        .arg("SAMPLES")
        .arg(0)
        .query(connection)
        .unwrap();
    used.unwrap_or_default()
}

fn encoding(connection: &mut Connection, key: &str) -> String {
    cmd("OBJECT")
        .arg("ENCODING")
        .arg(key)
        .query(connection)
        .unwrap()
}

/// Bytes of all keys but the hunt's document and the store's own.
fn all_keys(connection: &mut Connection) -> u64 {
    let keys: Vec<String> = cmd("KEYS").arg("*").query(connection).unwrap();
    let of_players = keys
        .iter()
        .filter(|key| !key.starts_with("{store}") && !key.starts_with("{hunts}"));
    of_players.map(|key| memory(connection, key)).sum()
}

#[tokio::test]
async fn an_active_player_with_one_pending_find_takes_at_most_600_bytes() {
    let server = Server::start();
    // One partition with 30,000 players is as full as each of 16 with half a million.
    let store = connect_with(
        &server,
        Options {
            partitions: 1,
            ..quick()
        },
    )
    .await;
    open_hunt(&store, WINDOW_MS).await;
    let mut connection = server.connection();
    let before = all_keys(&mut connection);
    let count = 30_000;
    for from in (0..count).step_by(200) {
        let openings = (from..from + 200).map(|n| Opening {
            name: PlayerName::new(&format!("player-{n:06}")).unwrap(),
            issued_at: Some(0),
            known: None,
        });
        let players = store.open_players(openings.collect()).await.unwrap();
        let finds = players
            .into_iter()
            .map(|player| (player.unwrap(), of("a")))
            .collect();
        let recorded = store.record(&hunt(), finds).await.unwrap();
        assert!(recorded.outcomes.iter().all(Result::is_ok));
    }
    let each = (all_keys(&mut connection) - before) / count;
    let mut parts = String::new();
    for (what, pattern) in [
        ("wallet", "*}w:*"),
        ("due", "*}due"),
        ("feed", "*}feed"),
        ("names", "*}n:*"),
        ("numbers", "*}p:*"),
    ] {
        let keys: Vec<String> = cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
        let bytes: u64 = keys.iter().map(|key| memory(&mut connection, key)).sum();
        parts += &format!(", {what} {}", bytes / count);
    }
    println!("a player with one pending find: {each} bytes{parts}");
    assert!(each <= 600, "{each} bytes");
}

#[tokio::test]
async fn a_wallet_stays_compact_up_to_a_hundred_finds() {
    let server = Server::start();
    let store = connect(&server).await;
    let mut many = spec(WINDOW_MS);
    many.treasures = (0..1_000)
        .map(|n| Treasure {
            id: TreasureId::new(&format!("t{n}")).unwrap(),
            ..spec(1).treasures[0].clone()
        })
        .chain(
            spec(1)
                .treasures
                .into_iter()
                .filter(|treasure| treasure.repeatable),
        )
        .collect();
    store.put_hunt(many).await.unwrap().unwrap();
    store
        .step_hunt(&hunt(), LifeStep::Open)
        .await
        .unwrap()
        .unwrap();
    let partitions = Partitions::new(4).unwrap();
    let mut connection = server.connection();
    for (player, kind) in [(PlayerId(1), "once-only"), (PlayerId(2), "repeatable")] {
        let tag = partitions.tag(partitions.of_player(player.0)).to_owned();
        let wallet = format!("{{{tag}}}w:1:{}", base62(player.0));
        for n in 0..1_000_u64 {
            let id = format!("{n:08x}-0000-4000-8000-000000000000");
            let new = if kind == "repeatable" {
                with_id(&id)
            } else {
                of(&format!("t{n}"))
            };
            find(&store, player, new).await.unwrap().unwrap();
            store.credit(&hunt(), player).await.unwrap();
            if [0, 9, 99, 199, 999].contains(&n) {
                let (bytes, encoding) = (
                    memory(&mut connection, &wallet),
                    encoding(&mut connection, &wallet),
                );
                println!(
                    "a wallet after {} {kind} finds: {bytes} bytes, {encoding}",
                    n + 1
                );
                assert!(
                    n > 99 || encoding == "listpack" || encoding == "ziplist",
                    "{n}: {encoding}"
                );
            }
        }
    }
    let feeds: Vec<String> = cmd("KEYS").arg("*}feed").query(&mut connection).unwrap();
    let (mut bytes, mut entries) = (0, 0);
    for feed in feeds {
        bytes += memory(&mut connection, &feed);
        entries += cmd("XLEN")
            .arg(&feed)
            .query::<u64>(&mut connection)
            .unwrap();
    }
    println!("an entry of the feed: {} bytes", bytes / entries);
    assert!(bytes / entries < 160);
}
