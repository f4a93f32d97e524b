//! The Redis servers of a run: one; or a primary, its replicas and three Sentinels; or a cluster of three primaries and
//! their replicas. Their append-only files are on, so that a killed server comes back with what it had acknowledged.

use super::processes::{PATIENCE, Processes, Spec};
use super::state::State;
use crate::case::{StoreKind, System as Asked};
use crate::refusal::Refusal;
use redis::{FromRedisValue, RedisError};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What Sentinels call the primary.
pub const MASTER: &str = "soak";
const SENTINELS: u32 = 3;
const CLUSTER_PRIMARIES: u32 = 3;
/// A cluster's nodes speak to each other on a port so far above the one for clients.
const BUS_ABOVE: u16 = 10_000;
/// After so long without an answer a primary counts as down.
///
/// Sentinel sends the first PING to a primary it has just switched to as late as this, or after a second where that is less:
/// with a second or below, a new primary is down for it before it was asked, and the next failover begins.
const DOWN_AFTER_MS: u32 = 1500;
/// From where servers and Sentinels speak to each other, so that a road knows them from the instances.
pub const INNER_ADDRESS: [u8; 4] = [127, 0, 0, 2];
/// Between two looks at Redis servers and Sentinels that are waited for; the times that a report tells are true to so much.
/// Each look is a connection or some, of which what is measured meanwhile is to notice nothing: every 5 ms they took an
/// eighth of a core.
pub const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long the harness waits for a server's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The servers, by their numbers: `redis-0` …
pub struct RedisNodes {
    kind: StoreKind,
    /// Where each listens.
    pub nodes: Vec<SocketAddr>,
    /// Where instances reach each: its road, or itself.
    pub reached: Vec<SocketAddr>,
    /// The Sentinels.
    pub sentinels: Vec<SocketAddr>,
}

/// Its name in the record.
#[must_use]
pub fn node_name(nth: usize) -> String {
    format!("redis-{nth}")
}

/// How many servers a case asks for.
#[must_use]
pub fn count(asked: &Asked) -> u32 {
    match asked.store {
        StoreKind::Embedded => 0,
        StoreKind::Redis => 1,
        StoreKind::RedisSentinel => 1 + asked.replicas,
        StoreKind::RedisCluster => CLUSTER_PRIMARIES * (1 + asked.replicas),
    }
}

/// A connection with time-outs.
///
/// # Errors
/// When the server does not take it.
pub fn connect(server: SocketAddr) -> Result<redis::Connection, RedisError> {
    let client = redis::Client::open(format!("redis://{server}"))?;
    let connection = client.get_connection_with_timeout(ANSWER_WAIT)?;
    connection.set_read_timeout(Some(ANSWER_WAIT))?;
    connection.set_write_timeout(Some(ANSWER_WAIT))?;
    Ok(connection)
}

/// Asks on a connection.
///
/// # Errors
/// When the server does not answer in time, or refuses.
pub fn ask_on<T: FromRedisValue>(
    connection: &mut redis::Connection,
    words: &[&str],
) -> Result<T, RedisError> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query(connection)
}

/// Asks a server once.
///
/// # Errors
/// When it does not answer in time, or refuses.
pub fn ask<T: FromRedisValue>(server: SocketAddr, words: &[&str]) -> Result<T, RedisError> {
    ask_on(&mut connect(server)?, words)
}

/// A field of `INFO`.
#[must_use]
pub fn info(server: SocketAddr, section: &str, field: &str) -> Option<String> {
    let text: String = ask(server, &["INFO", section]).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

impl RedisNodes {
    /// Starts them; `reached` are the roads to them, if there are any.
    ///
    /// # Errors
    /// When one is missing or does not come up.
    pub fn start(
        asked: &Asked,
        dir: &Path,
        disk: Option<&Path>,
        state: &mut State,
        processes: &Processes,
        roads: Option<Vec<SocketAddr>>,
    ) -> Result<Self, Refusal> {
        let mut nodes = Vec::new();
        for nth in 0..count(asked) as usize {
            nodes.push(address(asked, state, nth)?);
        }
        let is_on_roads = roads.is_some();
        let reached = roads.unwrap_or_else(|| nodes.clone());
        let mut all = Self {
            kind: asked.store,
            nodes,
            reached,
            sentinels: Vec::new(),
        };
        let root = disk.unwrap_or(dir);
        for nth in 0..all.nodes.len() {
            let name = node_name(nth);
            let home = root.join(&name);
            let conf = home.join("redis.conf");
            if !conf.exists() {
                std::fs::create_dir_all(&home).map_err(|error| cannot_write(&home, &error))?;
                let text = all.conf(nth, &home, is_on_roads);
                std::fs::write(&conf, text).map_err(|error| cannot_write(&conf, &error))?;
            }
            processes.start(spec("redis-server", &name, conf, dir, all.nodes[nth], &[]))?;
        }
        for (nth, node) in all.nodes.iter().enumerate() {
            all.wait_for(processes, nth, *node)?;
        }
        match asked.store {
            StoreKind::RedisSentinel => all.start_sentinels(dir, state, processes, is_on_roads)?,
            StoreKind::RedisCluster => all.join_cluster(asked.replicas)?,
            StoreKind::Embedded | StoreKind::Redis => {}
        }
        Ok(all)
    }

    fn wait_for(
        &self,
        processes: &Processes,
        nth: usize,
        node: SocketAddr,
    ) -> Result<Duration, Refusal> {
        let name = node_name(nth);
        processes.wait(&name, "answering", || {
            info(node, "persistence", "loading").is_some_and(|loading| loading == "0")
        })
    }

    fn conf(&self, nth: usize, home: &Path, is_on_roads: bool) -> String {
        let mut text = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsave \"\"\nappendonly yes\nappendfsync everysec\n\
             maxmemory-policy noeviction\nrepl-diskless-sync-delay 0\n",
            self.nodes[nth].port(),
            home.display()
        );
        let own = self.reached[nth].port();
        // Writing to a String does not fail.
        if is_on_roads {
            let [a, b, c, d] = INNER_ADDRESS;
            let _ = writeln!(text, "bind-source-addr {a}.{b}.{c}.{d}");
        }
        match self.kind {
            StoreKind::RedisSentinel => {
                let _ = writeln!(
                    text,
                    "replica-announce-ip 127.0.0.1\nreplica-announce-port {own}"
                );
                if nth > 0 {
                    let _ = writeln!(text, "replicaof 127.0.0.1 {}", self.reached[0].port());
                }
            }
            StoreKind::RedisCluster => {
                let bus = self.nodes[nth].port() + BUS_ABOVE;
                let _ = writeln!(
                    text,
                    "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout 2000\n\
                     cluster-announce-ip 127.0.0.1\ncluster-announce-port {own}\ncluster-announce-bus-port {bus}"
                );
            }
            StoreKind::Embedded | StoreKind::Redis => {}
        }
        text
    }

    fn start_sentinels(
        &mut self,
        dir: &Path,
        state: &mut State,
        processes: &Processes,
        is_on_roads: bool,
    ) -> Result<(), Refusal> {
        for nth in 0..SENTINELS {
            let name = format!("sentinel-{nth}");
            let at = state.address(&name, None)?;
            let home = dir.join(&name);
            let conf = home.join("sentinel.conf");
            if !conf.exists() {
                let mut text = format!(
                    "bind 127.0.0.1\nport {}\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {} 2\n\
                     sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
                     sentinel failover-timeout {MASTER} 5000\nsentinel parallel-syncs {MASTER} 1\n\
                     sentinel announce-ip 127.0.0.1\nsentinel announce-port {}\n",
                    at.port(),
                    home.display(),
                    self.reached[0].port(),
                    at.port()
                );
                if is_on_roads {
                    let [a, b, c, d] = INNER_ADDRESS;
                    let _ = writeln!(text, "bind-source-addr {a}.{b}.{c}.{d}");
                }
                std::fs::create_dir_all(&home).map_err(|error| cannot_write(&home, &error))?;
                std::fs::write(&conf, text).map_err(|error| cannot_write(&conf, &error))?;
            }
            processes.start(spec("redis-server", &name, conf, dir, at, &["--sentinel"]))?;
            self.sentinels.push(at);
        }
        let replicas = self.nodes.len() - 1;
        for (nth, at) in self.sentinels.iter().enumerate() {
            let knows = |command: &str, least: usize| {
                let known: Result<Vec<redis::Value>, _> = ask(*at, &["SENTINEL", command, MASTER]);
                known.is_ok_and(|known| known.len() >= least)
            };
            let others = SENTINELS as usize - 1;
            processes.wait(&format!("sentinel-{nth}"), "knowing the others", || {
                knows("replicas", replicas) && knows("sentinels", others)
            })?;
        }
        Ok(())
    }

    /// Makes a cluster of them, unless they are one, and waits until all slots are served.
    fn join_cluster(&self, replicas: u32) -> Result<(), Refusal> {
        let serves = || {
            self.nodes.iter().all(|node| {
                let info: Result<String, _> = ask(*node, &["CLUSTER", "INFO"]);
                info.is_ok_and(|info| info.contains("cluster_state:ok"))
            })
        };
        let known: Result<String, _> = ask(self.nodes[0], &["CLUSTER", "NODES"]);
        if known.map_or(0, |known| known.lines().count()) < self.nodes.len() {
            let output = std::process::Command::new("redis-cli")
                .args(["--cluster", "create"])
                .args(self.nodes.iter().map(ToString::to_string))
                .args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"])
                .output()
                .map_err(|error| {
                    Refusal::unreachable(format!("redis-cli: {error}; install redis-tools"))
                })?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stdout);
                let last = said.lines().last().unwrap_or_default();
                return Err(Refusal::unreachable(format!(
                    "no cluster came about: {last}"
                )));
            }
        }
        wait_until("the cluster to serve all slots", ASK_AGAIN, serves)?;
        let wanted = CLUSTER_PRIMARIES as usize * replicas as usize;
        wait_until("the cluster's replicas to follow", ASK_AGAIN, || {
            let role = |node: &SocketAddr| info(*node, "replication", "master_link_status");
            self.nodes
                .iter()
                .filter_map(role)
                .filter(|status| status == "up")
                .count()
                >= wanted
        })
        .map(drop)
    }

    /// As `--store` wants it.
    #[must_use]
    pub fn url(&self) -> String {
        let list = |addresses: &[SocketAddr]| -> String {
            let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            shown.join(",")
        };
        match self.kind {
            StoreKind::RedisSentinel => {
                format!("redis+sentinel://{}/{MASTER}", list(&self.sentinels))
            }
            StoreKind::RedisCluster => format!("redis+cluster://{}", list(&self.reached)),
            StoreKind::Embedded | StoreKind::Redis => format!("redis://{}", list(&self.reached)),
        }
    }

    /// The numbers of those that say that they are primaries and, where there are Sentinels, that these agree on.
    #[must_use]
    pub fn primaries(&self) -> Vec<usize> {
        if let Some(named) = self.named_by_sentinels() {
            return vec![named];
        }
        let is_primary = |nth: &usize| {
            info(self.nodes[*nth], "replication", "role").is_some_and(|role| role == "master")
        };
        (0..self.nodes.len()).filter(is_primary).collect()
    }

    /// The primary by the word of the most Sentinels.
    fn named_by_sentinels(&self) -> Option<usize> {
        let mut votes = vec![0; self.nodes.len()];
        for sentinel in &self.sentinels {
            let named: Result<Vec<String>, _> =
                ask(*sentinel, &["SENTINEL", "get-master-addr-by-name", MASTER]);
            let port = named.ok()?.get(1)?.parse::<u16>().ok()?;
            let nth = self.reached.iter().position(|at| at.port() == port)?;
            votes[nth] += 1;
        }
        let (nth, most) = votes.iter().enumerate().max_by_key(|(_, votes)| **votes)?;
        (*most > SENTINELS / 2).then_some(nth)
    }

    /// Whether every Sentinel knows the same primary and sees all others follow, none of them away and no failover under way.
    /// Without Sentinels: yes.
    #[must_use]
    pub fn sentinels_agree(&self) -> bool {
        let Some(primary) = self
            .sentinels
            .first()
            .map_or(Some(0), |_| self.named_by_sentinels())
        else {
            return false;
        };
        let port = self.reached[primary].port().to_string();
        let is = |of: &HashMap<String, String>, what: &str, value: &str| {
            of.get(what).is_some_and(|found| found == value)
        };
        self.sentinels.iter().all(|at| {
            let of: Result<HashMap<String, String>, _> = ask(*at, &["SENTINEL", "MASTER", MASTER]);
            let others: Result<Vec<HashMap<String, String>>, _> =
                ask(*at, &["SENTINEL", "REPLICAS", MASTER]);
            of.is_ok_and(|of| is(&of, "flags", "master") && is(&of, "port", &port))
                && others.is_ok_and(|others| {
                    let follows = |of| is(of, "flags", "slave") && is(of, "role-reported", "slave");
                    others.len() == self.nodes.len() - 1 && others.iter().all(follows)
                })
        })
    }

    /// Whether a server follows a primary and has caught up.
    #[must_use]
    pub fn follows(&self, nth: usize) -> bool {
        info(self.nodes[nth], "replication", "master_link_status")
            .is_some_and(|status| status == "up")
    }
}

fn address(asked: &Asked, state: &mut State, nth: usize) -> Result<SocketAddr, Refusal> {
    let bus = (asked.store == StoreKind::RedisCluster).then_some(BUS_ABOVE);
    state.address(&node_name(nth), bus)
}

fn spec(
    program: &str,
    name: &str,
    conf: PathBuf,
    dir: &Path,
    at: SocketAddr,
    args: &[&str],
) -> Spec {
    let args = std::iter::once(OsString::from(conf)).chain(args.iter().map(OsString::from));
    Spec {
        name: name.to_owned(),
        program: program.into(),
        args: args.collect(),
        env: std::collections::BTreeMap::new(),
        log: dir.join("logs").join(format!("{name}.log")),
        address: at,
        ops: None,
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::unreachable(format!("{} cannot be written: {error}", path.display()))
}

/// Waits for what depends on several processes, with a pause of `look_again` between two looks.
///
/// # Errors
/// After [`PATIENCE`].
pub fn wait_until(
    what: &str,
    look_again: Duration,
    mut holds: impl FnMut() -> bool,
) -> Result<Duration, Refusal> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > PATIENCE {
            return Err(Refusal::unreachable(format!(
                "{what}: not within {PATIENCE:?}"
            )));
        }
        std::thread::sleep(look_again);
    }
    Ok(began.elapsed())
}
