//! What the store costs its server: memory, which does not depend on the machine and is asserted, and time, which is only
//! reported: `cargo test --test store_redis -- --ignored --nocapture`.

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

/// Microseconds of processor time that the server has used.
fn cpu_us(server: &Server) -> f64 {
    let info: String = server.run(&["INFO", "cpu"]);
    let seconds = |name: &str| -> f64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim_start_matches(':').trim().parse().unwrap()
    };
    (seconds("used_cpu_sys:") + seconds("used_cpu_user:")) * 1e6
}

/// Microseconds a call of a script took within the server, since the last time.
fn script_us(server: &Server) -> f64 {
    let info: String = server.run(&["INFO", "commandstats"]);
    let line = info
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let part = line.and_then(|line| {
        line.split(',')
            .find_map(|part| part.strip_prefix("usec_per_call="))
    });
    let () = server.run(&["CONFIG", "RESETSTAT"]);
    part.map_or(0.0, |part| part.parse().unwrap())
}

#[tokio::test]
#[ignore = "reports times, which depend on the machine"]
async fn what_a_find_and_a_credit_cost() {
    let server = Server::start();
    let hour = Duration::from_secs(3_600);
    let options = Options {
        partitions: 16,
        sweep_interval: hour,
        measure_interval: hour,
        ..quick()
    };
    let store = connect_with(&server, options).await;
    open_hunt(&store, WINDOW_MS).await;
    let (players, rounds) = (10_000, 4);
    #[expect(clippy::cast_precision_loss)]
    let operations = (players * rounds) as f64;
    let mut connection = server.connection();
    let began = cpu_us(&server);
    for _ in 0..100 {
        let mut pipe = trove_streams::redis::pipe();
        for n in 0..200 {
            let script = "return redis.call('HMGET', KEYS[1], 'a', 'b', 'c')";
            pipe.cmd("EVAL")
                .arg(script)
                .arg(1)
                .arg("{x}calibration")
                .arg(n)
                .ignore();
        }
        let () = pipe.query(&mut connection).unwrap();
    }
    println!(
        "calibration, a script that reads three fields: {:.1} us",
        (cpu_us(&server) - began) / 20_000.0
    );
    let (mut find_cpu, mut credit_cpu, mut load_cpu) = (0.0, 0.0, 0.0);
    let (mut find_us, mut credit_us, mut load_us) = (0.0, 0.0, 0.0);
    for round in 0..rounds {
        let _ = script_us(&server);
        let began = cpu_us(&server);
        for from in (0..players).step_by(200) {
            let finds = (from..from + 200)
                .map(|n| (PlayerId(n), with_id(&round.to_string())))
                .collect();
            store.record(&hunt(), finds).await.unwrap();
        }
        find_cpu += cpu_us(&server) - began;
        find_us += script_us(&server);
        let began = cpu_us(&server);
        for from in (0..players).step_by(200) {
            let id = hunt();
            let loads = (from..from + 200).map(|n| store.wallet(&id, PlayerId(n)));
            assert!(
                futures_util::future::join_all(loads)
                    .await
                    .iter()
                    .all(Result::is_ok)
            );
        }
        load_cpu += cpu_us(&server) - began;
        load_us += script_us(&server);
        let began = cpu_us(&server);
        for from in (0..players).step_by(200) {
            let id = hunt();
            let credits = (from..from + 200).map(|n| store.credit(&id, PlayerId(n)));
            for credited in futures_util::future::join_all(credits).await {
                assert_eq!(credited.unwrap().entries.len(), 1);
            }
        }
        credit_cpu += cpu_us(&server) - began;
        credit_us += script_us(&server);
    }
    #[expect(clippy::cast_precision_loss)]
    let rounds = rounds as f64;
    println!(
        "a find:   {:.1} us in the script, {:.1} us of processor in all",
        find_us / rounds,
        find_cpu / operations
    );
    println!(
        "a credit: {:.1} us in the script, {:.1} us of processor in all",
        credit_us / rounds,
        credit_cpu / operations
    );
    println!(
        "a load:   {:.1} us in the script, {:.1} us of processor in all",
        load_us / rounds,
        load_cpu / operations
    );
    verify(&store).await;
}
