//! What the Redis store costs its server (target T5): a find, a credit and a load, in the script and in all. Prints figures,
//! asserts none.
//!
//! ```text
//! cargo bench -p trove --bench redis
//! ```
//!
//! Starts its own `redis-server`; `TROVE_TEST_REDIS` names the directory of another binary. `TROVE_BENCH_PLAYERS` says how
//! many players there are, `TROVE_BENCH_ROUNDS` how many finds each collects.

#![allow(clippy::unwrap_used, reason = "a measurement that fails ends there")]

#[path = "../tests/redis_server/mod.rs"]
mod redis_server;

use redis_server::Server;
use std::time::Duration;
use trove::game::hunt::{HuntSpec, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, TreasureId};
use trove::game::rules::{NewFind, What};
use trove::store::Store;
use trove::store::redis::{Options, RedisStore};

/// Operations under way at a time, which travel in one write.
const AT_ONCE: u64 = 200;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn spec() -> HuntSpec {
    HuntSpec {
        id: HuntId::new("h").unwrap(),
        name: "Hunt".into(),
        window_ms: 300_000,
        opens_at: None,
        closes_at: None,
        treasures: vec![Treasure {
            id: TreasureId::new("r").unwrap(),
            name: None,
            coins: 10,
            place: None,
            repeatable: true,
        }],
    }
}

fn find(id: &str) -> NewFind {
    NewFind {
        what: What::Treasure(TreasureId::new("r").unwrap()),
        id: Some(FindId::new(id).unwrap()),
        found_at: None,
    }
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

/// What one kind of operation has cost, round by round: in the script, and in all.
struct Cost(&'static str, Vec<(f64, f64)>);

impl Cost {
    fn print(&mut self) {
        let mut median = |of: fn(&(f64, f64)) -> f64| {
            self.1.sort_by(|a, b| of(a).total_cmp(&of(b)));
            of(&self.1[self.1.len() / 2])
        };
        let (script, all) = (median(|cost| cost.0), median(|cost| cost.1));
        println!(
            "a {:<7} {script:>5.1} us in the script, {all:>5.1} us of processor in all",
            self.0
        );
    }
}

/// What a script costs that only reads three fields: how fast the machine is just now.
fn calibration_us(server: &Server) -> f64 {
    let mut connection = server.connection();
    let began = cpu_us(server);
    for _ in 0..100 {
        let mut pipe = trove_streams::redis::pipe();
        for n in 0..AT_ONCE {
            let script = "return redis.call('HMGET', KEYS[1], 'a', 'b', 'c')";
            let eval = pipe.cmd("EVAL").arg(script).arg(1);
            eval.arg("{x}calibration").arg(n).ignore();
        }
        let () = pipe.query(&mut connection).unwrap();
    }
    (cpu_us(server) - began) / 20_000.0
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (players, rounds) = (
        setting("TROVE_BENCH_PLAYERS", 10_000),
        setting("TROVE_BENCH_ROUNDS", 5),
    );
    let server = Server::start();
    let hour = Duration::from_secs(3_600);
    let options = Options {
        sweep_interval: hour,
        measure_interval: hour,
        response_timeout: Duration::from_secs(10),
        connect_wait: Duration::from_secs(60),
        ..Options::default()
    };
    let store = RedisStore::connect(&server.url(), options).await.unwrap();
    let id = spec().id;
    store.put_hunt(spec()).await.unwrap().unwrap();
    store.step_hunt(&id, LifeStep::Open).await.unwrap().unwrap();
    println!(
        "calibration, a script that reads three fields: {:.1} us",
        calibration_us(&server)
    );
    let mut costs = ["find", "load", "credit"].map(|kind| Cost(kind, Vec::new()));
    for round in 0..=rounds {
        for cost in &mut costs {
            let _ = script_us(&server);
            let began = cpu_us(&server);
            for first in (0..players).step_by(usize::try_from(AT_ONCE).unwrap()) {
                let some = (first..first + AT_ONCE).map(PlayerId);
                match cost.0 {
                    "find" => {
                        let finds = some.map(|player| (player, find(&round.to_string())));
                        let recorded = store.record(&id, finds.collect()).await.unwrap();
                        assert!(recorded.outcomes.iter().all(Result::is_ok));
                    }
                    "load" => {
                        let loads = some.map(|player| store.wallet(&id, player));
                        let wallets = futures_util::future::join_all(loads).await;
                        assert!(
                            wallets
                                .into_iter()
                                .all(|wallet| wallet.unwrap().pending_finds == 1)
                        );
                    }
                    _ => {
                        let credits = some.map(|player| store.credit(&id, player));
                        for credited in futures_util::future::join_all(credits).await {
                            assert_eq!(credited.unwrap().entries.len(), 1);
                        }
                    }
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "there are few players")]
            let each = (cpu_us(&server) - began) / players as f64;
            let script = script_us(&server);
            // The first round makes the wallets.
            if round > 0 {
                cost.1.push((script, each));
            }
        }
    }
    costs.iter_mut().for_each(Cost::print);
    for audit in store.verify(None).await.unwrap() {
        assert!(audit.holds(), "{audit:#?}");
    }
}
