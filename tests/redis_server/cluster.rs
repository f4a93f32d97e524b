//! A Redis Cluster of a test's own.

#![allow(dead_code, reason = "not every test that has a server needs a cluster")]

use super::{PATIENCE, Server, free_port};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Instant;
use trove_streams::redis::{self, Value};
use trove_streams::slot::SLOTS;

/// Three primaries with equal shares of the slots, and perhaps a replica of each.
pub(crate) struct Cluster {
    /// The primaries it began with, then their replicas.
    pub(crate) nodes: Vec<Server>,
}

/// How many primaries there are.
pub(crate) const PRIMARIES: usize = 3;

/// A port whose bus port, 10,000 above, is free too.
fn port_with_bus() -> u16 {
    for _ in 0..10_000 {
        let port = free_port();
        if let Some(bus) = port.checked_add(10_000)
            && TcpListener::bind((Ipv4Addr::LOCALHOST, bus)).is_ok()
        {
            return port;
        }
    }
    panic!("no port is free together with that of its bus");
}

/// Waits until something holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "it never came true that {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

impl Cluster {
    /// A cluster of three primaries, whose nodes take one another for dead after `node_timeout_ms`.
    pub(crate) fn start(replicas: bool, node_timeout_ms: u32) -> Self {
        let timeout = node_timeout_ms.to_string();
        let args = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
            "--cluster-require-full-coverage",
            "no",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let count = if replicas { 2 * PRIMARIES } else { PRIMARIES };
        let nodes: Vec<Server> = (0..count)
            .map(|_| Server::at(&super::binary(), port_with_bus, &args))
            .collect();
        let cluster = Self { nodes };
        for (index, node) in cluster.nodes.iter().enumerate() {
            let () = node.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            let first = cluster.nodes[0].port.to_string();
            let () = node.run(&["CLUSTER", "MEET", "127.0.0.1", &first]);
            if index < PRIMARIES {
                let share = |of: usize| of * usize::from(SLOTS) / PRIMARIES;
                let slots: Vec<String> = (share(index)..share(index + 1))
                    .map(|slot| slot.to_string())
                    .collect();
                let mut words = vec!["CLUSTER", "ADDSLOTS"];
                words.extend(slots.iter().map(String::as_str));
                let () = node.run(&words);
            }
        }
        wait_until("all nodes know one another", || {
            let knows = |node: &Server| node.run::<String>(&["CLUSTER", "NODES"]).lines().count();
            cluster.nodes.iter().all(|node| knows(node) == count)
        });
        for (index, node) in cluster.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary: String = cluster.nodes[index - PRIMARIES].run(&["CLUSTER", "MYID"]);
            wait_until("a replica knows its primary", || {
                node.try_run(&["CLUSTER", "REPLICATE", &primary]).is_ok()
            });
        }
        cluster.wait_whole();
        cluster
    }

    /// Waits until every node that runs says that the cluster works, and every replica among them follows its primary.
    pub(crate) fn wait_whole(&self) {
        wait_until("the cluster is whole", || {
            self.nodes.iter().all(|node| {
                let says = |words: &[&str], what: &str| {
                    node.try_run(words).is_ok_and(|value| match value {
                        Value::BulkString(text) => String::from_utf8_lossy(&text)
                            .lines()
                            .any(|line| line == what),
                        _ => false,
                    })
                };
                let info = ["INFO", "replication"];
                says(&["CLUSTER", "INFO"], "cluster_state:ok")
                    && (says(&info, "role:master") || says(&info, "master_link_status:up"))
            })
        });
    }

    /// Cuts the replica of a primary off from it for as long as both live: what the primary is told from then on no other
    /// server has. Gives the replica.
    pub(crate) fn cut_off_replica_of(&self, primary: usize) -> usize {
        let port = self.nodes[primary].port;
        let follows = |node: &Server| {
            node.asked::<String>(&["INFO", "replication"])
                .is_some_and(|info| {
                    info.contains("role:slave") && info.contains(&format!("master_port:{port}\r"))
                })
        };
        let replica = self.nodes.iter().position(follows);
        let replica = replica.expect("each primary has a replica");
        // It cannot introduce itself any more, which only its next attempt to connect notices.
        let () = self.nodes[replica].run(&["CONFIG", "SET", "masterauth", "wrong"]);
        let _: i64 = self.nodes[primary].run(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until("the replica is cut off", || {
            let info: String = self.nodes[primary].run(&["INFO", "replication"]);
            info.contains("connected_slaves:0")
        });
        replica
    }

    /// Lets a replica that was cut off, and may be a primary by now, follow again.
    pub(crate) fn let_follow(&self, node: usize) {
        let () = self.nodes[node].run(&["CONFIG", "SET", "masterauth", ""]);
    }

    /// Its URL, by all of its nodes.
    pub(crate) fn url(&self) -> String {
        let addresses: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// The node that is the primary of `slot`, by what `node` says.
    fn primary_by(&self, node: &Server, slot: u16) -> Option<usize> {
        let reply = node.try_run(&["CLUSTER", "SLOTS"]).ok()?;
        let ranges: Vec<Vec<Value>> = redis::from_redis_value(reply).ok()?;
        let port = ranges.iter().find_map(|range| {
            let [Value::Int(from), Value::Int(to), Value::Array(primary), ..] = range.as_slice()
            else {
                return None;
            };
            let port = match primary.as_slice() {
                [_, Value::Int(port), ..] => *port,
                _ => return None,
            };
            (*from..=*to).contains(&i64::from(slot)).then_some(port)
        })?;
        self.nodes
            .iter()
            .position(|node| i64::from(node.port) == port)
    }

    /// The node that is the primary of `slot`, by what the first node that answers says.
    pub(crate) fn primary_of(&self, slot: u16) -> usize {
        let mut found = None;
        wait_until("a slot has a primary", || {
            found = self
                .nodes
                .iter()
                .find_map(|node| self.primary_by(node, slot));
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// Waits until another node than `old`, which may be stopped, is the primary of `slot`, by what the others say.
    pub(crate) fn promoted(&self, slot: u16, old: usize) {
        let others = || self.nodes.iter().enumerate().filter(|(at, _)| *at != old);
        wait_until("a replica takes over", || {
            others().all(|(_, node)| {
                self.primary_by(node, slot)
                    .is_some_and(|primary| primary != old)
            })
        });
    }

    /// Waits until a node that another has replaced as a primary knows it, and follows.
    pub(crate) fn follows(&self, node: usize) {
        wait_until("the node follows another", || {
            let info = self.nodes[node].asked::<String>(&["INFO", "replication"]);
            info.is_some_and(|info| info.contains("role:slave"))
        });
    }

    /// Moves `slot` to another primary as `redis-cli --cluster reshard` does, a few keys at a time, and calls `between`
    /// while it is on its way.
    pub(crate) fn move_slot(&self, slot: u16, to: usize, mut between: impl FnMut()) {
        let from = self.primary_of(slot);
        assert_ne!(from, to);
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let id = |node: &Server| node.run::<String>(&["CLUSTER", "MYID"]);
        let (source_id, target_id) = (id(source), id(target));
        let (number, slot) = (slot, slot.to_string());
        let import = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id];
        let () = target.run(&import);
        let () = source.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
        loop {
            let keys: Vec<String> = source.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "3"]);
            if keys.is_empty() {
                break;
            }
            let port = target.port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            wait_until("keys move", || {
                // What nodes tell one another of the last move may have ended this one at the target.
                source.try_run(&words).is_ok() || target.try_run(&import).is_err()
            });
            between();
        }
        for node in [target, source] {
            let () = node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
        }
        for node in &self.nodes {
            // Replicas hear of it from their primaries, and refuse to be told.
            let _ = node.try_run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
        }
        wait_until("all nodes know of the move", || {
            let knows = |node| self.primary_by(node, number) == Some(to);
            self.nodes.iter().all(knows)
        });
    }
}

impl Server {
    /// Runs a command given in words, on a server that may be away.
    pub(crate) fn try_run(&self, words: &[&str]) -> redis::RedisResult<Value> {
        let client = redis::Client::open(self.url())?;
        let timeout = std::time::Duration::from_secs(5);
        let mut connection = client.get_connection_with_timeout(timeout)?;
        let mut cmd = redis::Cmd::new();
        for word in words {
            cmd.arg(word);
        }
        cmd.query(&mut connection)
    }
}
