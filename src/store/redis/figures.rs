//! What a Redis server says of itself, for the metrics: asked for rarely, kept, and read from memory.

use super::shared::{Core, lock};
use crate::store::{ServerFigures, StoreError};
use std::sync::Arc;
use std::time::Duration;
use trove_streams::redis::{Cmd, Value, cmd};

/// How often a server is asked: one `INFO`, and an `XLEN` a partition.
const INTERVAL: Duration = Duration::from_secs(15);

/// Asks for ever. A server that is away leaves the figures as they were, with their age.
pub(super) async fn watch(core: Core) {
    loop {
        if let Err(error) = core.sample_figures().await {
            tracing::debug!(%error, "the server's figures were not read");
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

impl Core {
    async fn sample_figures(&self) -> Result<(), StoreError> {
        let info = self.read(&cmd("INFO")).await?;
        let mut figures = read(&info);
        let ask = |partition| {
            let mut ask = cmd("XLEN");
            ask.arg(self.shared.keys.partition(partition).feed());
            ask
        };
        let asks: Vec<Cmd> = self.shared.partitions().into_iter().map(ask).collect();
        let lengths = self.read_all(asks).await?.into_iter();
        figures.stream_entries = lengths
            .map(|length| match length {
                Value::Int(entries) => u64::try_from(entries).unwrap_or(0),
                _ => 0,
            })
            .collect();
        figures.sampled_ms = Some(self.shared.elapsed_ms());
        *lock(&self.shared.figures) = Arc::new(figures);
        Ok(())
    }

    /// The figures as last read.
    pub(super) fn figures(&self) -> ServerFigures {
        let mut figures = ServerFigures::clone(&lock(&self.shared.figures));
        let sampled_ms = figures.sampled_ms;
        figures.age_ms = sampled_ms.map(|sampled| self.shared.elapsed_ms().saturating_sub(sampled));
        figures
            .stream_entries
            .resize(self.shared.partitions().len(), 0);
        figures.fenced = self.shared.fenced.read();
        figures.feed_bytes = self
            .shared
            .feed_bytes
            .load(std::sync::atomic::Ordering::Relaxed);
        figures
    }
}

/// Reads the reply to `INFO`, of the lines that are there.
fn read(info: &Value) -> ServerFigures {
    let text = match info {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
        Value::VerbatimString { text, .. } => text,
        _ => "",
    };
    let mut figures = ServerFigures::default();
    let mut written = None;
    let mut replicas: Vec<(u64, u64)> = Vec::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let number = || value.trim().parse::<u64>().unwrap_or(0);
        match name {
            "total_commands_processed" => figures.commands = number(),
            "connected_clients" => figures.clients = number(),
            "used_memory" => figures.memory_bytes = number(),
            "maxmemory" => figures.memory_bytes_max = number(),
            "evicted_keys" => figures.evicted_keys = number(),
            "connected_slaves" => figures.replicas = number(),
            "master_repl_offset" => written = Some(number()),
            _ if name.strip_prefix("slave").is_some_and(is_number) => {
                let of = |what: &str| {
                    let mut parts = value.trim().split(',');
                    let found = parts.find_map(|part| part.strip_prefix(what)?.strip_prefix('='));
                    found.and_then(|text| text.parse::<u64>().ok())
                };
                replicas.push((of("offset").unwrap_or(0), of("lag").unwrap_or(0)));
            }
            _ => {}
        }
    }
    // Of several replicas the one furthest behind.
    let behind = |written: u64| {
        let offsets = replicas.iter().map(|(offset, _)| *offset);
        offsets.map(|offset| written.saturating_sub(offset)).max()
    };
    figures.replication_lag_bytes = written.and_then(behind).unwrap_or(0);
    figures.replication_lag_s = replicas.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
    figures
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replica_furthest_behind_is_the_lag() {
        let info = "# Memory\r\nused_memory:1048576\r\nmaxmemory:0\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
            slave0:ip=10.0.0.2,port=6379,state=online,offset=900,lag=0\r\nslave1:ip=10.0.0.3,port=6379,state=online,offset=400,lag=3\r\n\
            slave_repl_offset:7\r\nmaster_repl_offset:1000\r\n# Stats\r\ntotal_commands_processed:77\r\nevicted_keys:0\r\n";
        let figures = read(&Value::BulkString(info.into()));
        assert_eq!((figures.memory_bytes, figures.commands), (1 << 20, 77));
        assert_eq!((figures.replicas, figures.replication_lag_bytes), (2, 600));
        assert_eq!(figures.replication_lag_s, 3);
        let alone = read(&Value::BulkString("master_repl_offset:1000\r\n".into()));
        assert_eq!(alone.replication_lag_bytes, 0);
        assert_eq!(read(&Value::Nil), ServerFigures::default());
    }
}
