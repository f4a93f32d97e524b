//! What the Redis behind a server says of itself. Only where there is one; then every series exists from the start.

use super::process::Readings;
use crate::store::Store;
use crate::store::redis::Fenced;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;

/// See the module.
pub struct RedisFigures(pub Arc<dyn Store>);

impl fmt::Debug for RedisFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFigures").finish_non_exhaustive()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes below 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}

impl Collector for RedisFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(figures) = self.0.server_figures() else {
            return Ok(());
        };
        let mut readings = Readings(&mut encoder);
        readings.counter(
            "trove_redis_commands",
            "Commands that the server has run, whoever sent them.",
            number(figures.commands),
        )?;
        readings.counter(
            "trove_redis_evicted_keys",
            "Keys that the server has thrown away for want of memory; there must be none.",
            number(figures.evicted_keys),
        )?;
        for (name, help, value) in [
            (
                "trove_redis_clients",
                "Connections to the server.",
                figures.clients,
            ),
            (
                "trove_redis_memory_bytes",
                "Memory that the server uses.",
                figures.memory_bytes,
            ),
            (
                "trove_redis_memory_max_bytes",
                "Memory that the server may use; 0: all that there is.",
                figures.memory_bytes_max,
            ),
            (
                "trove_redis_feed_bytes",
                "Memory of the feeds.",
                figures.feed_bytes,
            ),
            (
                "trove_redis_replicas",
                "Replicas connected to the server.",
                figures.replicas,
            ),
            (
                "trove_redis_replication_lag_bytes",
                "What the replica furthest behind has not received.",
                figures.replication_lag_bytes,
            ),
            (
                "trove_redis_replication_lag_seconds",
                "Since when the replica furthest behind has not been heard from.",
                figures.replication_lag_s,
            ),
        ] {
            readings.gauge(name, help, number(value))?;
        }
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a process")]
        let age_s = figures.age_ms.map_or(0.0, |ms| ms as f64 / 1_000.0);
        readings.gauge(
            "trove_redis_sample_age_seconds",
            "How old the server's figures are; they are asked for every 15 s.",
            age_s,
        )?;
        let mut fenced = encoder.encode_descriptor(
            "trove_store_fenced",
            "Commands that the store's fences held back: for epoch, clock, generation and role nothing was done; for the others it may have been, and was not acknowledged.",
            None,
            MetricType::Counter,
        )?;
        for (what, count) in Fenced::ALL.iter().zip(figures.fenced) {
            let labels = [("reason", what.as_str())];
            ConstCounter::new(count).encode(fenced.encode_family(&labels)?)?;
        }
        let mut lengths = encoder.encode_descriptor(
            "trove_redis_stream_entries",
            "Entries in the feed of a partition.",
            None,
            MetricType::Gauge,
        )?;
        for (partition, entries) in figures.stream_entries.iter().enumerate() {
            let labels = [("partition", partition.to_string())];
            ConstGauge::new(number(*entries)).encode(lengths.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
