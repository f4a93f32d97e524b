//! What the shim counts. Every series exists from the start, at 0.

use super::group::Failure;
use super::instance::InstanceCounters;
use super::queue::Shed;
use super::upstreams::Upstreams;
use crate::front::Counters;
use crate::metrics::front_answers::FrontAnswers;
use crate::metrics::labels::{STATUS_CLASSES, status_class};
use crate::metrics::process::Process;
use crate::metrics::{Buckets, Durations, DurationsByLabel, Format};
use crate::ops::Tracked;
use crate::sla::{Objective, Parts, Watched};
use crate::telemetry::{Answered, Telemetry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Poll,
    Heartbeat,
    Cached,
    Health,
    Other,
}

/// The names of all routes.
pub(super) const ROUTES: [&str; 5] = ["poll", "heartbeat", "cached", "health", "other"];

impl Route {
    /// The label's value.
    pub(super) fn as_str(self) -> &'static str {
        ROUTES[self as usize]
    }
}

/// One to three labels.
type Labels<const N: usize> = [(&'static str, String); N];

/// The counters, histograms and gauges.
pub(super) struct Metrics {
    registry: Registry,
    /// What is told of single requests.
    pub(super) telemetry: Telemetry,
    buckets: Buckets,
    requests: DurationsByLabel,
    loop_lag: Durations,
    pub(super) heartbeats: Counter,
    pub(super) retries: Counter,
    pub(super) cache_hits: Counter,
    pub(super) bad_proxy_headers: Counter,
    shed: [Counter; Shed::ALL.len()],
    forwarded: Family<Labels<2>, Counter>,
    on_links: Family<Labels<2>, Counter>,
    failures: Family<Labels<3>, Counter>,
    ejections: Family<Labels<2>, Counter>,
    usable: Family<Labels<2>, Gauge>,
    outstanding: Family<Labels<2>, Gauge>,
    idle: Family<Labels<2>, Gauge>,
    links: Family<Labels<2>, Gauge>,
    queued: Family<Labels<1>, Gauge>,
    live: Family<Labels<1>, Gauge>,
    connections: Gauge,
    players_online: Gauge,
    cache_bytes: Gauge,
    refused: Counter,
    timeouts: Counter,
    cut: Counter,
    /// What the public listener answered by itself.
    pub(super) front_answers: FrontAnswers,
}

/// Registers a metric of any kind at 0 and gives it.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn of_instance(upstream: &str, instance: &str) -> Labels<2> {
    [
        ("instance", instance.to_owned()),
        ("upstream", upstream.to_owned()),
    ]
}

impl Metrics {
    /// Everything at 0. Counters' names are without `_total` here, and what they say without a full stop: both are added.
    pub(super) fn new(buckets: Buckets, telemetry: Telemetry) -> Self {
        let mut own = Registry::default();
        let registry = &mut own;
        let requests = DurationsByLabel::new(
            &buckets,
            ROUTES.iter().flat_map(|route| {
                STATUS_CLASSES.map(|class| vec![("route", *route), ("status_class", class)])
            }),
        );
        registry.register(
            "trove_http_request_duration_seconds",
            "From a request's last byte in to the first of its answer out, without what its client wished to wait",
            requests.clone(),
        );
        let loop_lag = Durations::new(buckets.clone());
        registry.register(
            "trove_event_loop_lag_seconds",
            "How late the event loop's timer fires",
            loop_lag.clone(),
        );
        let sheds: Family<Labels<1>, Counter> = registered(
            registry,
            "trove_shim_shed",
            "Requests and connections turned away, by why",
        );
        Process::new(None).register(registry);
        for ((series, help), counter) in telemetry.counters() {
            registry.register(series, help, counter);
        }
        Self {
            telemetry,
            requests,
            loop_lag,
            buckets,
            shed: Shed::ALL
                .map(|reason| sheds.get_or_create_owned(&[("reason", reason.as_str().to_owned())])),
            heartbeats: registered(registry, "trove_shim_heartbeats", "Heartbeats answered"),
            retries: registered(
                registry,
                "trove_shim_retries",
                "Requests sent a second time, because no byte of an answer had come",
            ),
            cache_hits: registered(
                registry,
                "trove_shim_cache_hits",
                "Public answers given from memory",
            ),
            bad_proxy_headers: registered(
                registry,
                "trove_shim_bad_proxy_headers",
                "Connections closed because their PROXY protocol header was none",
            ),
            forwarded: registered(
                registry,
                "trove_shim_forwarded",
                "Requests sent to an instance",
            ),
            on_links: registered(
                registry,
                "trove_shim_link_requests",
                "Requests sent to an instance on links; trove_shim_forwarded_total has these too",
            ),
            failures: registered(
                registry,
                "trove_shim_upstream_failures",
                "Requests that an instance did not answer, by how",
            ),
            ejections: registered(
                registry,
                "trove_shim_ejections",
                "Times an instance was ejected after failed requests",
            ),
            usable: registered(
                registry,
                "trove_shim_instance_usable",
                "Whether an instance is healthy and not ejected",
            ),
            outstanding: registered(
                registry,
                "trove_shim_outstanding_requests",
                "Requests under way at an instance",
            ),
            idle: registered(
                registry,
                "trove_shim_idle_upstream_connections",
                "Idle connections kept to an instance",
            ),
            links: registered(registry, "trove_shim_links", "Open links to an instance"),
            queued: registered(
                registry,
                "trove_shim_queued_requests",
                "Requests that wait for an instance",
            ),
            live: registered(
                registry,
                "trove_shim_upstream_live",
                "Whether a group is live",
            ),
            connections: registered(
                registry,
                "trove_shim_connections",
                "Open connections of clients",
            ),
            players_online: registered(
                registry,
                "trove_shim_players_online",
                "Players whose heartbeats came lately",
            ),
            cache_bytes: registered(
                registry,
                "trove_shim_cache_bytes",
                "Memory of kept public answers",
            ),
            refused: registered(
                registry,
                "trove_shim_refused_requests",
                "Requests refused as malformed or too large",
            ),
            timeouts: registered(
                registry,
                "trove_shim_client_timeouts",
                "Requests and writes that clients were too slow for",
            ),
            front_answers: FrontAnswers::registered(registry),
            cut: registered(
                registry,
                "trove_shim_cut_answers",
                "Answers cut off because an instance broke off",
            ),
            registry: own,
        }
    }

    /// Adds what is measured elsewhere.
    pub(super) fn add(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.registry.register(name, help, metric);
    }

    /// The histograms of each objective's route, for those whose route the shim tells apart.
    pub(super) fn watch(&self, objectives: &[Objective]) -> Vec<Watched> {
        let watched = objectives.iter().filter_map(|objective| {
            let route = ROUTES.iter().position(|route| *route == objective.route)?;
            let by_class = std::array::from_fn(|class| {
                self.requests
                    .at(route * STATUS_CLASSES.len() + class)
                    .clone()
            });
            Watched::new(objective.clone(), by_class, |ms| {
                self.buckets.place_of_ms(ms)
            })
        });
        watched.collect()
    }

    /// The counters of an instance.
    pub(super) fn of_instance(&self, group: &str, instance: &str) -> InstanceCounters {
        let labels = of_instance(group, instance);
        InstanceCounters {
            forwarded: self.forwarded.get_or_create_owned(&labels),
            on_links: self.on_links.get_or_create_owned(&labels),
            failures: Failure::ALL.map(|failure| {
                let [instance, upstream] = labels.clone();
                let labels = [instance, ("kind", failure.as_str().to_owned()), upstream];
                self.failures.get_or_create_owned(&labels)
            }),
            ejections: self.ejections.get_or_create_owned(&labels),
        }
    }

    /// What is looked at every second for the page of operators.
    pub(super) fn tracked(&self) -> Tracked {
        let classes = STATUS_CLASSES.len();
        let of = |route: Route| -> Vec<Durations> {
            let from = route as usize * classes;
            let places = from..from + classes;
            places
                .map(|place| self.requests.at(place).clone())
                .collect()
        };
        let routes = 0..ROUTES.len();
        let failed = routes.map(|route| self.requests.at(route * classes + classes - 1).clone());
        let mut other = of(Route::Other);
        other.extend(of(Route::Health));
        Tracked {
            failed: failed.collect(),
            rates: vec![
                ("polls", of(Route::Poll)),
                ("heartbeats", of(Route::Heartbeat)),
                ("cached", of(Route::Cached)),
                ("other", other),
            ],
            latency: of(Route::Poll),
            loop_lag: self.loop_lag.clone(),
        }
    }

    /// A request was answered.
    #[inline]
    pub(super) fn request(&self, route: Route, status: u16, took: Duration) {
        let place = route as usize * STATUS_CLASSES.len() + status_class(status);
        self.requests.at(place).observe(took);
    }

    /// A request that the shim answered by itself, and is logged as such: what is forwarded is told where it is judged.
    #[inline]
    pub(super) fn own_request(&self, route: Route, status: u16, took: Duration) {
        self.request(route, status, took);
        let place = route as usize;
        if self.telemetry.requests.is_due(place, status) {
            let now = Instant::now();
            let answered = Answered {
                route: route.as_str(),
                place,
                status,
                began: now.checked_sub(took).unwrap_or(now),
                parts: Parts {
                    shim: took,
                    ..Parts::default()
                },
                children: &[],
            };
            self.telemetry.note_now(None, true, &answered);
        }
    }

    /// A request was turned away.
    pub(super) fn shed(&self, reason: Shed) {
        self.shed[reason as usize].inc();
    }

    /// The loop's timer was late.
    pub(super) fn loop_lag(&self, lag: Duration) {
        self.loop_lag.observe(lag);
    }

    /// Takes over what is counted elsewhere, and reads the gauges.
    pub(super) fn read(
        &self,
        upstreams: &Upstreams,
        front: &Counters,
        connections: u32,
        players_online: usize,
        cache_bytes: usize,
    ) {
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
            let labels = [("upstream", name.to_owned())];
            self.queued
                .get_or_create(&labels)
                .set(count(group.queued()));
            let is_live = std::ptr::eq(&**group, &**upstreams.live());
            self.live.get_or_create(&labels).set(is_live.into());
            for instance in group.instances() {
                let labels = of_instance(name, instance.address());
                let set = |gauges: &Family<Labels<2>, Gauge>, n: i64| {
                    gauges.get_or_create(&labels).set(n);
                };
                set(&self.usable, instance.is_usable().into());
                set(&self.outstanding, instance.outstanding().into());
                set(&self.idle, count(instance.pool.len()));
                set(&self.links, count(instance.links.open()));
            }
        }
    }

    /// Everything, in the format that was asked for: some hundred lines, and more with every instance. Not on the event
    /// loop.
    pub(super) fn encode(&self, format: Format) -> Vec<u8> {
        format.encode(&self.registry)
    }
}
