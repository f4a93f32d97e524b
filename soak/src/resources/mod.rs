//! What every process costs over time: read once an interval, on the run's thread, never on the generator's.
//!
//! - [`metrics`]: what servers and the shim say of themselves. [`leak`]: whether a resource leaks, a pure function.

pub mod leak;
pub mod metrics;

use crate::record::Sample;
use crate::system::System;
use crate::system::http::Client;
use crate::system::processes::Running;
use crate::system::redis_nodes::{ask, ask_on, connect};
use metrics::Counters;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a process may take to tell its metrics; one that is stopped never does.
const METRICS_WAIT: Duration = Duration::from_secs(1);
/// What the feeds hold is looked at once in so many intervals.
const FEEDS_EVERY: u32 = 6;
/// Which keys are feeds (streams) is looked up once in so many intervals, by scanning the keys: there are few, they stay,
/// and a scan takes Redis's time.
const SCAN_EVERY: u32 = 720;
/// The most steps of a scan, and about how many keys each looks at: few, so that none holds up a player's request.
const SCAN_STEPS_MAX: u32 = 10_000;
const SCAN_STEP: &str = "500";
/// The harness's own name.
pub const OWN: &str = "soak";

/// What one process said.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its name.
    pub process: String,
    /// Its incarnation: counters of another one start anew.
    pub incarnation: u32,
    /// When, by the harness's clock.
    pub at: Instant,
    /// Its series; `None`: it did not say.
    pub counters: Option<Counters>,
}

/// Reads what processes cost.
pub struct Sampler {
    client: Client,
    segment: u32,
    rounds: u32,
    /// Per Redis server, its feeds' keys.
    feed_keys: BTreeMap<String, Vec<String>>,
    /// Per Redis server, what they held when it was last looked.
    feeds: BTreeMap<String, [f64; 2]>,
}

impl Sampler {
    /// One for a segment of the run.
    #[must_use]
    pub fn new(segment: u32) -> Self {
        Self {
            client: Client::new(METRICS_WAIT),
            segment,
            rounds: 0,
            feed_keys: BTreeMap::new(),
            feeds: BTreeMap::new(),
        }
    }

    /// What servers and the shim tell now.
    #[must_use]
    pub fn tell(&self, system: &System, external: &[SocketAddr]) -> Vec<Told> {
        let mut asked: Vec<(String, u32, SocketAddr)> = system
            .processes
            .running()
            .into_iter()
            .filter_map(|one| Some((one.name, one.incarnation, one.ops?)))
            .collect();
        for (nth, ops) in external.iter().enumerate() {
            // The first one is the shim's, by the case's definition.
            let name = if nth == 0 {
                "shim".to_owned()
            } else {
                format!("serve-{}", nth - 1)
            };
            asked.push((name, 0, *ops));
        }
        // At once, so that one that is slow or stopped makes no other's counts late.
        std::thread::scope(|scope| {
            let asking: Vec<_> = asked
                .into_iter()
                .map(|(process, incarnation, ops)| {
                    scope.spawn(move || {
                        let counters = Counters::read(&self.client, ops).ok();
                        Told {
                            process,
                            incarnation,
                            at: Instant::now(),
                            counters,
                        }
                    })
                })
                .collect();
            asking
                .into_iter()
                .filter_map(|one| one.join().ok())
                .collect()
        })
    }

    /// A sample of every process, the harness among them.
    #[must_use]
    pub fn sample(&mut self, system: &System, told: &[Told], at_ms: u64) -> Vec<Sample> {
        let looks_at_feeds = self.rounds.is_multiple_of(FEEDS_EVERY);
        if self.rounds.is_multiple_of(SCAN_EVERY) {
            self.feed_keys.clear();
        }
        self.rounds = self.rounds.wrapping_add(1);
        let own = Sample {
            at_ms,
            process: OWN.into(),
            incarnation: self.segment,
            values: of_process(std::process::id()),
        };
        let mut samples = vec![own];
        for one in system.processes.running() {
            let mut values = of_process(one.pid);
            if one.name.starts_with("redis-") {
                self.of_redis(&one, looks_at_feeds, &mut values);
            }
            let counters = told.iter().find(|told| told.process == one.name);
            if let Some(counters) = counters.and_then(|told| told.counters.as_ref()) {
                of_metrics(counters, &mut values);
            }
            samples.push(Sample {
                at_ms,
                process: one.name,
                incarnation: one.incarnation,
                values,
            });
        }
        samples
    }

    fn of_redis(&mut self, one: &Running, looks: bool, values: &mut BTreeMap<String, f64>) {
        // A server that is stopped or away does not answer: what is not known is left out.
        let Ok(info) = ask::<String>(one.address, &["INFO"]) else {
            return;
        };
        let field = |name: &str| -> Option<f64> {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line?.trim().parse().ok()
        };
        for (name, of_redis) in [
            ("used_memory_bytes", "used_memory"),
            ("clients", "connected_clients"),
        ] {
            values.extend(field(of_redis).map(|value| (name.to_owned(), value)));
        }
        if let Ok(keys) = ask::<u64>(one.address, &["DBSIZE"]) {
            values.insert("keys".into(), keys as f64);
        }
        if looks {
            let known = self.feed_keys.entry(one.name.clone()).or_default();
            if known.is_empty() {
                *known = scan(one.address).unwrap_or_default();
            }
            if let Some(found) = feeds(one.address, known) {
                self.feeds.insert(one.name.clone(), found);
            }
        }
        if let Some([entries, bytes]) = self.feeds.get(&one.name) {
            values.insert("feed_entries".into(), *entries);
            values.insert("feed_bytes".into(), *bytes);
        }
    }
}

/// The keys of all streams.
fn scan(server: SocketAddr) -> Option<Vec<String>> {
    let mut connection = connect(server).ok()?;
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    for _ in 0..SCAN_STEPS_MAX {
        let words = ["SCAN", &cursor, "TYPE", "stream", "COUNT", SCAN_STEP];
        let (next, keys): (String, Vec<String>) = ask_on(&mut connection, &words).ok()?;
        found.extend(keys);
        cursor = next;
        if cursor == "0" {
            return Some(found);
        }
    }
    None
}

/// Entries and bytes of streams.
fn feeds(server: SocketAddr, keys: &[String]) -> Option<[f64; 2]> {
    let mut connection = connect(server).ok()?;
    let mut total = [0.0, 0.0];
    for key in keys {
        let entries: u64 = ask_on(&mut connection, &["XLEN", key]).ok()?;
        let bytes: Option<u64> = ask_on(&mut connection, &["MEMORY", "USAGE", key]).ok()?;
        total[0] += entries as f64;
        total[1] += bytes.unwrap_or(0) as f64;
    }
    Some(total)
}

fn of_metrics(counters: &Counters, values: &mut BTreeMap<String, f64>) {
    for (name, series) in [
        ("connections", "trove_connections"),
        ("connections", "trove_shim_connections"),
        ("wallets", "trove_mirror_wallets"),
        ("players_online", "trove_shim_players_online"),
        ("replayed", "trove_replayed_total"),
    ] {
        if counters.has(series) {
            values.insert(name.into(), counters.sum(series, &[]));
        }
    }
}

/// What `/proc` says of a process.
fn of_process(pid: u32) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let process = i32::try_from(pid)
        .ok()
        .and_then(|pid| procfs::process::Process::new(pid).ok());
    let Some(process) = process else {
        return values;
    };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        values.insert("cpu_s".into(), (stat.utime + stat.stime) as f64 / ticks);
        values.insert("rss_bytes".into(), (stat.rss * procfs::page_size()) as f64);
        values.insert("threads".into(), stat.num_threads as f64);
    }
    if let Ok(fds) = process.fd_count() {
        values.insert("fds".into(), fds as f64);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_time_descriptors_and_threads() {
        let own = of_process(std::process::id());
        for name in ["cpu_s", "rss_bytes", "threads", "fds"] {
            assert!(own.contains_key(name), "{name} in {own:?}");
        }
        assert!(own["rss_bytes"] > 1e6);
    }
}
