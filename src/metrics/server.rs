//! What `trove serve` measures.

use super::durations::{Buckets, Durations, DurationsByLabel};
use super::exposition::Format;
use super::front_answers::FrontAnswers;
use super::labels::{Route, STATUS_CLASSES, StoreCommand, status_class};
use super::process::{Process, ReadBeside};
use crate::front::{Counters, FieldBlock};
use crate::game::entry::{Change, Entry, Totals};
use crate::game::hunt::{Hunt, HuntState};
use crate::sla::{Objective, Watched};
use crate::store::redis::{Dropped, ReplayCounts, ReplayKind};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most hunts whose coins are series: each has five. Of more, archived ones are left out first.
pub const HUNTS_MEASURED_MAX: usize = 200;

/// One label.
type Label = [(&'static str, &'static str); 1];
/// Two labels.
type Labels = [(&'static str, String); 2];

/// The counters, histograms and gauges.
pub struct Metrics {
    registry: Registry,
    buckets: Buckets,
    requests: DurationsByLabel,
    store: DurationsByLabel,
    loop_lag: Durations,
    credits: Counter,
    failovers: Counter,
    coins: Family<Labels, Gauge>,
    wallets: Gauge,
    held: Gauge,
    connections: Gauge,
    batches: Counter,
    syncs: Counter,
    mirror_lag: Gauge<f64, AtomicU64>,
    replayed: Family<Label, Counter>,
    replay_dropped: Family<Label, Counter>,
    replay_items: Gauge,
    replay_bytes: Gauge,
    front: [Counter; 6],
    /// What the public listener answered by itself.
    pub front_answers: FrontAnswers,
    /// Held while what is counted elsewhere is taken over, which adds the difference to what was taken before.
    taking: Mutex<()>,
    /// The fields that every poll answer shares, prepared once.
    pub poll_fields: FieldBlock,
}

/// What is read when the metrics are asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// Wallets in memory.
    pub wallets: usize,
    /// Held polls.
    pub held: usize,
    /// Open connections of the public listener.
    pub connections: u32,
    /// Batches that the store committed.
    pub batches: u64,
    /// `fdatasync` calls of the store.
    pub syncs: u64,
    /// For how long the store's feed has not been heard from, in milliseconds.
    pub mirror_lag_ms: u64,
    /// What came back after failovers.
    pub replay: ReplayCounts,
    /// What the public listener counted.
    pub front: FrontCounts,
}

/// What a front counts of what never reached the application.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrontCounts([u64; 6]);

/// Their series, without `_total`.
const FRONT: [(&str, &str); 6] = [
    (
        "trove_refused_requests",
        "Requests that the connection layer refused, malformed ones for the most part",
    ),
    (
        "trove_refused_connections",
        "Connections that were answered 503 because there was no room",
    ),
    (
        "trove_dropped_connections",
        "Connections that were dropped for want of a descriptor",
    ),
    ("trove_timeouts", "Requests and writes that a timer ended"),
    ("trove_panics", "Requests that ended in a panic"),
    (
        "trove_cut_answers",
        "Answers that were cut because their body failed",
    ),
];

impl From<&Counters> for FrontCounts {
    fn from(counters: &Counters) -> Self {
        let counts = [
            &counters.refused_requests,
            &counters.refused_connections,
            &counters.dropped_connections,
            &counters.timeouts,
            &counters.panics,
            &counters.cut_answers,
        ];
        Self(counts.map(|count| count.load(Ordering::Relaxed)))
    }
}

const COIN_STATES: [&str; 5] = ["recorded", "credited", "expired", "pending", "revoked"];

/// The routes that a server tells apart: all but the shim's own.
fn is_served(route: Route) -> bool {
    route != Route::Cached
}

impl Metrics {
    /// Everything at 0. `instance_id` is for the poll's prepared fields. `beside` reads the work beside the event loop.
    ///
    /// # Panics
    /// When `instance_id` cannot stand in a header field; the settings refuse such a one.
    #[must_use]
    pub fn new(instance_id: &str, buckets: Buckets, beside: Option<ReadBeside>) -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            requests: DurationsByLabel::new(
                &buckets,
                Route::ALL.iter().flat_map(|route| {
                    let classes = STATUS_CLASSES.iter().filter(|_| is_served(*route));
                    classes.map(|class| vec![("route", route.as_str()), ("status_class", *class)])
                }),
            ),
            store: DurationsByLabel::new(
                &buckets,
                StoreCommand::ALL
                    .iter()
                    .map(|command| vec![("command", command.as_str())]),
            ),
            loop_lag: Durations::new(buckets.clone()),
            buckets,
            credits: Counter::default(),
            failovers: Counter::default(),
            coins: Family::default(),
            wallets: Gauge::default(),
            held: Gauge::default(),
            connections: Gauge::default(),
            batches: Counter::default(),
            syncs: Counter::default(),
            mirror_lag: Gauge::default(),
            replayed: Family::default(),
            replay_dropped: Family::default(),
            replay_items: Gauge::default(),
            replay_bytes: Gauge::default(),
            front: Default::default(),
            front_answers: FrontAnswers::registered(&mut registry),
            taking: Mutex::default(),
            poll_fields: FieldBlock::new(&[
                ("content-type", "application/json"),
                ("cache-control", "no-store"),
                ("x-instance-id", instance_id),
            ])
            .expect("an instance id is checked with the settings"),
            registry: Registry::default(),
        };
        metrics.register(&mut registry);
        Process::new(beside).register(&mut registry);
        Self {
            registry,
            ..metrics
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "trove_http_request_duration_seconds",
            "From a request's last byte in to its answer, without what its client wished to wait; 4xx also if the client left first",
            self.requests.clone(),
        );
        registry.register(
            "trove_store_command_duration_seconds",
            "How long the store took",
            self.store.clone(),
        );
        registry.register(
            "trove_event_loop_lag_seconds",
            "How late the event loop's timer fires",
            self.loop_lag.clone(),
        );
        registry.register(
            "trove_store_failovers",
            "Times at which the store's history may have been cut, so that every wallet was read again",
            self.failovers.clone(),
        );
        registry.register(
            "trove_credits",
            "Finds credited through this process",
            self.credits.clone(),
        );
        registry.register(
            "trove_coins",
            "Coins of a hunt by state, as the store says",
            self.coins.clone(),
        );
        registry.register(
            "trove_mirror_wallets",
            "Wallets in memory",
            self.wallets.clone(),
        );
        registry.register(
            "trove_held_polls",
            "Polls held until there is news",
            self.held.clone(),
        );
        registry.register(
            "trove_connections",
            "Open connections of the public listener",
            self.connections.clone(),
        );
        registry.register(
            "trove_store_batches",
            "Transactions that the embedded store committed",
            self.batches.clone(),
        );
        registry.register(
            "trove_mirror_lag_seconds",
            "How far the wallets in memory may be behind the store",
            self.mirror_lag.clone(),
        );
        registry.register(
            "trove_store_syncs",
            "fdatasync calls of the embedded store",
            self.syncs.clone(),
        );
        registry.register(
            "trove_replayed",
            "What a failover of the store took and this process brought back",
            self.replayed.clone(),
        );
        registry.register(
            "trove_replay_dropped",
            "What a failover of the store took and could not be brought back",
            self.replay_dropped.clone(),
        );
        registry.register(
            "trove_replay_items",
            "What is kept to be brought back after a failover",
            self.replay_items.clone(),
        );
        registry.register(
            "trove_replay_bytes",
            "The memory of what is kept to be brought back after a failover",
            self.replay_bytes.clone(),
        );
        for ((name, help), counter) in FRONT.iter().zip(&self.front) {
            registry.register(*name, *help, counter.clone());
        }
    }

    /// Adds what is measured elsewhere; a counter's name is without `_total`, and `help` without a full stop.
    pub fn add(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.registry.register(name, help, metric);
    }

    /// Adds what is read elsewhere when the metrics are asked for.
    pub fn add_collector(&mut self, collector: Box<dyn prometheus_client::collector::Collector>) {
        self.registry.register_collector(collector);
    }

    /// The histograms of each objective's route, for those whose route a server tells apart.
    #[must_use]
    pub fn watch(&self, objectives: &[Objective]) -> Vec<Watched> {
        let watched = objectives.iter().filter_map(|objective| {
            let route = Route::ALL
                .iter()
                .copied()
                .find(|route| is_served(*route) && route.as_str() == objective.route)?;
            let by_class = std::array::from_fn(|class| self.of(route, class).clone());
            Watched::new(objective.clone(), by_class, |ms| {
                self.buckets.place_of_ms(ms)
            })
        });
        watched.collect()
    }

    #[inline]
    fn of(&self, route: Route, class: usize) -> &Durations {
        // `Cached` has no histograms, and all but the last route come before it.
        let place = match route {
            Route::Other | Route::Cached => Route::Cached as usize,
            route => route as usize,
        };
        self.requests.at(place * STATUS_CLASSES.len() + class)
    }

    /// The histograms of a route, one a class of status.
    #[must_use]
    pub fn of_route(&self, route: Route) -> [&Durations; STATUS_CLASSES.len()] {
        std::array::from_fn(|class| self.of(route, class))
    }

    /// How late the event loop's timer fires.
    #[must_use]
    pub fn lag(&self) -> &Durations {
        &self.loop_lag
    }

    /// A request was answered.
    #[inline]
    pub fn request(&self, route: Route, status: u16, took: Duration) {
        self.of(route, status_class(status)).observe(took);
    }

    /// The store answered a command.
    pub fn store_command(&self, command: StoreCommand, took: Duration) {
        self.store.at(command as usize).observe(took);
    }

    /// The loop's timer was late.
    pub fn loop_lag(&self, lag: Duration) {
        self.loop_lag.observe(lag);
    }

    /// The store's history may have been cut.
    pub fn store_failed_over(&self) {
        self.failovers.inc();
    }

    /// A credit added entries.
    pub fn credited(&self, entries: &[Entry]) {
        let credits = entries
            .iter()
            .filter(|entry| matches!(entry.change, Change::Credit(_)))
            .count();
        self.credits.inc_by(credits as u64);
    }

    /// Everything, in the format that was asked for. Hunts' sums come from the store.
    #[must_use]
    pub fn encode(&self, hunts: &[(Arc<Hunt>, Totals)], gauges: Gauges, format: Format) -> Vec<u8> {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.wallets.set(count(gauges.wallets as u64));
        self.held.set(count(gauges.held as u64));
        self.connections.set(i64::from(gauges.connections));
        self.replay_items.set(count(gauges.replay.items as u64));
        self.replay_bytes.set(count(gauges.replay.bytes as u64));
        let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds far below 2^52")]
        self.mirror_lag.set(gauges.mirror_lag_ms as f64 / 1_000.0);
        let take_over = |counter: &Counter, count: u64| {
            counter.inc_by(count.saturating_sub(counter.get()));
        };
        take_over(&self.batches, gauges.batches);
        take_over(&self.syncs, gauges.syncs);
        for (counter, count) in self.front.iter().zip(gauges.front.0) {
            take_over(counter, count);
        }
        for (kind, count) in ReplayKind::ALL.iter().zip(gauges.replay.replayed) {
            let labels = [("kind", kind.as_str())];
            take_over(&self.replayed.get_or_create(&labels), count);
        }
        for (why, count) in Dropped::ALL.iter().zip(gauges.replay.dropped) {
            let labels = [("reason", why.as_str())];
            take_over(&self.replay_dropped.get_or_create(&labels), count);
        }
        drop(taking);
        let is_archived = |hunt: &Hunt| hunt.operator == Some(HuntState::Archived);
        let going = hunts.iter().filter(|(hunt, _)| !is_archived(hunt));
        let archived = hunts.iter().filter(|(hunt, _)| is_archived(hunt));
        for (hunt, totals) in going.chain(archived).take(HUNTS_MEASURED_MAX) {
            let figures = [
                totals.recorded,
                totals.credited,
                totals.expired,
                totals.pending,
                totals.revoked,
            ];
            for (state, coins) in COIN_STATES.iter().zip(figures) {
                let labels = [
                    ("hunt", hunt.spec.id.as_str().to_owned()),
                    ("state", (*state).to_owned()),
                ];
                self.coins.get_or_create(&labels).set(count(coins));
            }
        }
        format.encode(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::hunt::HuntSpec;
    use crate::game::ids::HuntId;

    #[test]
    fn each_route_and_class_has_a_series_of_its_own_from_the_start() {
        let metrics = Metrics::new("one", Buckets::of_ms(&[1.0, 1_000.0]), None);
        let text = |metrics: &Metrics| {
            let bytes = metrics.encode(&[], Gauges::default(), Format::Text);
            String::from_utf8(bytes).unwrap()
        };
        let name = "trove_http_request_duration_seconds_count";
        let line = |route: &str, class: &str, count| {
            format!("{name}{{route=\"{route}\",status_class=\"{class}\"}} {count}\n")
        };
        for route in Route::ALL.iter().copied().filter(|route| is_served(*route)) {
            for (class, status) in STATUS_CLASSES.iter().zip([200, 304, 404, 503]) {
                assert!(text(&metrics).contains(&line(route.as_str(), class, 0)));
                metrics.request(route, status, Duration::from_millis(1));
                assert!(text(&metrics).contains(&line(route.as_str(), class, 1)));
            }
        }
        assert!(!text(&metrics).contains("cached"));
        let help = "# HELP trove_credits_total Finds credited through this process.\n# TYPE trove_credits_total counter\ntrove_credits_total 0\n";
        assert!(text(&metrics).contains(help));
    }

    #[test]
    fn the_number_of_hunts_that_have_series_is_bounded_and_archived_ones_come_last() {
        let hunts: Vec<(Arc<Hunt>, Totals)> = (0..HUNTS_MEASURED_MAX + 50)
            .map(|n| {
                let mut hunt = Hunt::new(
                    1,
                    HuntSpec {
                        id: HuntId::new(&format!("h{n}")).unwrap(),
                        name: "h".into(),
                        window_ms: 1,
                        opens_at: None,
                        closes_at: None,
                        treasures: Vec::new(),
                    },
                );
                hunt.operator = (n < 100).then_some(HuntState::Archived);
                (Arc::new(hunt), Totals::default())
            })
            .collect();
        let metrics = Metrics::new("one", Buckets::of_ms(&[1_000.0]), None);
        let bytes = metrics.encode(&hunts, Gauges::default(), Format::Text);
        let text = String::from_utf8(bytes).unwrap();
        let series = text.lines().filter(|line| line.starts_with("trove_coins{"));
        assert_eq!(series.count(), HUNTS_MEASURED_MAX * COIN_STATES.len());
        assert!(text.contains("trove_coins{hunt=\"h249\","));
        assert!(!text.contains("trove_coins{hunt=\"h99\","));
    }

    #[test]
    fn an_objective_of_a_route_that_a_server_does_not_know_is_left_to_the_shim() {
        let metrics = Metrics::new("one", Buckets::of_ms(&[1.0, 1_000.0]), None);
        let objectives: Vec<Objective> = ["a:poll:99:1000:0.01", "b:cached:99:1000:0.01"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        assert_eq!(metrics.watch(&objectives).len(), 1);
    }
}
