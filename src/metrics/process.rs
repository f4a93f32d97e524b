//! What a process says of itself: processor time, memory, descriptors, and its runtime's tasks and queues.
//!
//! Read when the metrics are asked for, from `/proc`, which is there on Linux; what cannot be read is left out.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;

/// Work that waits for threads beside the event loop, and work that these are doing.
pub type ReadBeside = fn() -> (usize, usize);

/// See the module.
#[derive(Debug)]
pub struct Process {
    runtime: Option<Handle>,
    started_s: f64,
    beside: Option<ReadBeside>,
}

impl Process {
    /// Of this process, and of the runtime that this is called in. `beside` reads what waits beside the loop.
    #[must_use]
    pub fn new(beside: Option<ReadBeside>) -> Self {
        Self {
            runtime: Handle::try_current().ok(),
            started_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            beside,
        }
    }

    /// Adds it to a registry.
    pub fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

/// Writes gauges and counters that are read at this moment.
pub struct Readings<'a, 'e>(pub &'a mut DescriptorEncoder<'e>);

impl Readings<'_, '_> {
    /// A gauge.
    ///
    /// # Errors
    /// The encoder's.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(
            self.0
                .encode_descriptor(name, help, None, gauge.metric_type())?,
        )
    }

    /// A counter; its name is without `_total`.
    ///
    /// # Errors
    /// The encoder's.
    pub fn counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(
            self.0
                .encode_descriptor(name, help, None, counter.metric_type())?,
        )
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut readings = Readings(&mut encoder);
        let time = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds and nanoseconds of a process"
        )]
        let cpu_s = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        readings.counter(
            "trove_process_cpu_seconds",
            "Processor time of the process, in all threads.",
            cpu_s,
        )?;
        if let Some((resident, threads)) = memory_and_threads() {
            readings.gauge(
                "trove_process_resident_memory_bytes",
                "Memory of the process that is in RAM.",
                resident,
            )?;
            readings.gauge("trove_process_threads", "Threads of the process.", threads)?;
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            // Less the one that reads the directory.
            let open = number(entries.count().saturating_sub(1));
            readings.gauge(
                "trove_process_open_fds",
                "Descriptors that the process has open.",
                open,
            )?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            #[expect(clippy::cast_precision_loss, reason = "a limit far below 2^53")]
            readings.gauge(
                "trove_process_max_fds",
                "Descriptors that the process may have open.",
                most as f64,
            )?;
        }
        readings.gauge(
            "trove_process_start_time_seconds",
            "When the process started, since the epoch.",
            self.started_s,
        )?;
        if let Some(runtime) = &self.runtime {
            let metrics = runtime.metrics();
            readings.gauge(
                "trove_runtime_tasks",
                "Tasks of the event loop, one a connection among them.",
                number(metrics.num_alive_tasks()),
            )?;
            readings.gauge(
                "trove_runtime_queue_depth",
                "Tasks that other threads have woken and the event loop has not come to.",
                number(metrics.global_queue_depth()),
            )?;
            readings.counter(
                "trove_event_loop_busy_seconds",
                "Time that the event loop was not waiting.",
                metrics.worker_total_busy_duration(0).as_secs_f64(),
            )?;
        }
        let mut jobs = readings.0.encode_descriptor(
            "trove_blocking_jobs",
            "Work on the runtime's threads for what blocks: files, answers to scrapes, the page.",
            None,
            MetricType::Gauge,
        )?;
        for (state, count) in ["queued", "running"].iter().zip(crate::blocking::jobs()) {
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(jobs.encode_family(&[("state", *state)])?)?;
        }
        if let Some(read) = self.beside {
            let (waiting, running) = read();
            readings.gauge(
                "trove_beside_queue_depth",
                "Work that waits for the threads beside the event loop.",
                number(waiting),
            )?;
            readings.gauge(
                "trove_beside_running",
                "Work that the threads beside the event loop are doing.",
                number(running),
            )?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn number(count: usize) -> f64 {
    count as f64
}

/// Resident bytes and threads.
fn memory_and_threads() -> Option<(f64, f64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let of = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some((of("VmRSS:")? * 1_024.0, of("Threads:")?))
}
