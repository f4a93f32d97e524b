//! What the shim counts, in Prometheus's text format. Every series exists from the start, at 0.

use super::group::Failure;
use super::instance::InstanceCounters;
use super::queue::Shed;
use super::upstreams::Upstreams;
use crate::front::Counters;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Boundaries of the duration histograms, in seconds. 1 s is the objective's.
const SECONDS: [f64; 15] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
];

/// A request slower than this is counted against its cause.
const SLOW: Duration = Duration::from_secs(1);

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Poll,
    Heartbeat,
    Cached,
    Health,
    Other,
}

const ROUTES: [&str; 5] = ["poll", "heartbeat", "cached", "health", "other"];
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];
const SLOW_CAUSES: [&str; 4] = ["client", "shim", "app", "store"];

/// The counters, histograms and gauges.
pub(super) struct Metrics {
    registry: Registry,
    requests: Vec<Histogram>,
    slow: Vec<IntCounter>,
    loop_lag: Histogram,
    pub(super) heartbeats: IntCounter,
    pub(super) retries: IntCounter,
    pub(super) cache_hits: IntCounter,
    pub(super) bad_proxy_headers: IntCounter,
    shed: Vec<IntCounter>,
    forwarded: IntCounterVec,
    on_links: IntCounterVec,
    failures: IntCounterVec,
    ejections: IntCounterVec,
    usable: IntGaugeVec,
    outstanding: IntGaugeVec,
    idle: IntGaugeVec,
    links: IntGaugeVec,
    queued: IntGaugeVec,
    live: IntGaugeVec,
    connections: IntGauge,
    players_online: IntGauge,
    cache_bytes: IntGauge,
    refused: IntCounter,
    timeouts: IntCounter,
    cut: IntCounter,
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> C {
    let collector = made.expect("the names below are valid");
    registry
        .register(Box::new(collector.clone()))
        .expect("the names below differ");
    collector
}

impl Metrics {
    /// Everything at 0.
    pub(super) fn new() -> Self {
        let registry = Registry::new();
        let seconds =
            |name: &str, help: &str| HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help));
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let requests = registered(
            &registry,
            HistogramVec::new(
                seconds(
                    "trove_http_request_duration_seconds",
                    "From a request's last byte in to the first of its answer out.",
                ),
                &["route", "status_class"],
            ),
        );
        let slow = counters(
            "trove_slow_requests_total",
            "Requests that took over 1 s, by what took longest.",
            &["cause"],
        );
        let shed = counters(
            "trove_shim_shed_total",
            "Requests and connections turned away, by why.",
            &["reason"],
        );
        let of_instance = ["upstream", "instance"];
        Self {
            requests: ROUTES
                .iter()
                .flat_map(|route| CLASSES.map(|class| requests.with_label_values(&[route, &class])))
                .collect(),
            slow: SLOW_CAUSES
                .map(|cause| slow.with_label_values(&[cause]))
                .into(),
            loop_lag: registered(
                &registry,
                Histogram::with_opts(seconds(
                    "trove_event_loop_lag_seconds",
                    "How late the event loop's timer fires.",
                )),
            ),
            heartbeats: counter("trove_shim_heartbeats_total", "Heartbeats answered."),
            retries: counter(
                "trove_shim_retries_total",
                "Requests sent a second time, because no byte of an answer had come.",
            ),
            cache_hits: counter(
                "trove_shim_cache_hits_total",
                "Public answers given from memory.",
            ),
            bad_proxy_headers: counter(
                "trove_shim_bad_proxy_headers_total",
                "Connections closed because their PROXY protocol header was none.",
            ),
            shed: Shed::ALL
                .map(|reason| shed.with_label_values(&[reason.as_str()]))
                .into(),
            forwarded: counters(
                "trove_shim_forwarded_total",
                "Requests sent to an instance.",
                &of_instance,
            ),
            on_links: counters(
                "trove_shim_link_requests_total",
                "Requests sent to an instance on links; trove_shim_forwarded_total has these too.",
                &of_instance,
            ),
            failures: counters(
                "trove_shim_upstream_failures_total",
                "Requests that an instance did not answer, by how.",
                &["upstream", "instance", "kind"],
            ),
            ejections: counters(
                "trove_shim_ejections_total",
                "Times an instance was ejected after failed requests.",
                &of_instance,
            ),
            usable: gauges(
                "trove_shim_instance_usable",
                "Whether an instance is healthy and not ejected.",
                &of_instance,
            ),
            outstanding: gauges(
                "trove_shim_outstanding_requests",
                "Requests under way at an instance.",
                &of_instance,
            ),
            idle: gauges(
                "trove_shim_idle_upstream_connections",
                "Idle connections kept to an instance.",
                &of_instance,
            ),
            links: gauges(
                "trove_shim_links",
                "Open links to an instance.",
                &of_instance,
            ),
            queued: gauges(
                "trove_shim_queued_requests",
                "Requests that wait for an instance.",
                &["upstream"],
            ),
            live: gauges(
                "trove_shim_upstream_live",
                "Whether a group is live.",
                &["upstream"],
            ),
            connections: gauge("trove_shim_connections", "Open connections of clients."),
            players_online: gauge(
                "trove_shim_players_online",
                "Players whose heartbeats came lately.",
            ),
            cache_bytes: gauge("trove_shim_cache_bytes", "Memory of kept public answers."),
            refused: counter(
                "trove_shim_refused_requests_total",
                "Requests refused as malformed or too large.",
            ),
            timeouts: counter(
                "trove_shim_client_timeouts_total",
                "Requests and writes that clients were too slow for.",
            ),
            cut: counter(
                "trove_shim_cut_answers_total",
                "Answers cut off because an instance broke off.",
            ),
            registry,
        }
    }

    /// The counters of an instance.
    pub(super) fn of_instance(&self, group: &str, instance: &str) -> InstanceCounters {
        InstanceCounters {
            forwarded: self.forwarded.with_label_values(&[group, instance]),
            on_links: self.on_links.with_label_values(&[group, instance]),
            failures: Failure::ALL.map(|failure| {
                let labels = [group, instance, failure.as_str()];
                self.failures.with_label_values(&labels)
            }),
            ejections: self.ejections.with_label_values(&[group, instance]),
        }
    }

    /// A request was answered.
    #[inline]
    pub(super) fn request(&self, route: Route, status: u16, took: Duration) {
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        self.requests[route as usize * CLASSES.len() + class].observe(took.as_secs_f64());
    }

    /// A forwarded request took this long, of which the shim and its queue took `own`.
    pub(super) fn slow(&self, took: Duration, own: Duration) {
        if took >= SLOW {
            self.slow[if own * 2 >= took { 1 } else { 2 }].inc();
        }
    }

    /// A request was turned away.
    pub(super) fn shed(&self, reason: Shed) {
        self.shed[reason as usize].inc();
    }

    /// The loop's timer was late.
    pub(super) fn loop_lag(&self, lag: Duration) {
        self.loop_lag.observe(lag.as_secs_f64());
    }

    /// Everything as text.
    pub(super) fn text(
        &self,
        upstreams: &Upstreams,
        front: &Counters,
        connections: u32,
        players_online: usize,
        cache_bytes: usize,
    ) -> String {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.connections.set(connections.into());
        self.players_online.set(count(players_online));
        self.cache_bytes.set(count(cache_bytes));
        let dropped = front.dropped_connections.load(Relaxed);
        let refused_connections = front.refused_connections.load(Relaxed) + dropped;
        for (counter, now) in [
            (&self.shed[Shed::Connections as usize], refused_connections),
            (&self.refused, front.refused_requests.load(Relaxed)),
            (&self.timeouts, front.timeouts.load(Relaxed)),
            (&self.cut, front.cut_answers.load(Relaxed)),
        ] {
            counter.inc_by(now.saturating_sub(counter.get()));
        }
        for group in upstreams.groups() {
            let name = group.name();
            self.queued
                .with_label_values(&[name])
                .set(count(group.queued()));
            let is_live = std::ptr::eq(&**group, &**upstreams.live());
            self.live.with_label_values(&[name]).set(is_live.into());
            for instance in group.instances() {
                let labels = [name, instance.address()];
                let set = |gauge: &IntGaugeVec, n| gauge.with_label_values(&labels).set(n);
                set(&self.usable, instance.is_usable().into());
                set(&self.outstanding, instance.outstanding().into());
                set(&self.idle, count(instance.pool.len()));
                set(&self.links, count(instance.links.open()));
            }
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .expect("memory takes every write");
        String::from_utf8(text).expect("the format is UTF-8")
    }
}
