//! A Redis Sentinel of a test's own.

use super::{ask, binary, came_up, free_port};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use trove_streams::redis;

/// A sentinel of a test's own; ended when dropped.
pub(crate) struct Sentinel {
    child: Child,
    pub(crate) port: u16,
    _dir: TempDir,
}

#[allow(dead_code, reason = "not every test that has a server needs sentinels")]
impl Sentinel {
    /// Watches the master at `port` under `name`; so many must agree that it is down.
    pub(crate) fn start(name: &str, port: u16, quorum: u32) -> Self {
        for _ in 0..5 {
            let dir = tempfile::tempdir().expect("the temporary directory can be written");
            let own = free_port();
            let file = dir.path().join("sentinel.conf");
            let settings = format!(
                "port {own}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {port} {quorum}\n\
                 sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 3000\n\
                 sentinel parallel-syncs {name} 2\n"
            );
            std::fs::write(&file, settings).expect("the temporary directory can be written");
            let mut child = Command::new(binary())
                .arg(&file)
                .arg("--sentinel")
                .arg("--dir")
                .arg(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("redis-server can be started");
            if came_up(&mut child, own) {
                return Self {
                    child,
                    port: own,
                    _dir: dir,
                };
            }
            let _ = (child.kill(), child.wait());
        }
        panic!("the sentinel did not start");
    }

    /// Asks the sentinel, which may not answer.
    pub(crate) fn asked<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        ask(self.port, words)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
