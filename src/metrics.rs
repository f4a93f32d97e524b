//! What is measured, in Prometheus's text format. Every series exists from the start, at 0.

use crate::front::{Counters, FieldBlock};
use crate::game::entry::{Change, Entry, Totals};
use crate::game::hunt::Hunt;
use crate::store::redis::{Dropped, ReplayCounts, ReplayKind};
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Boundaries of the duration histograms, in seconds. 1 s is the objective's.
const SECONDS: [f64; 15] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
];

/// A request slower than this is counted against its cause.
pub const SLOW: Duration = Duration::from_secs(1);

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident => $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $(#[doc = concat!("`", $text, "`")] $variant),* }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The label's value.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

labels!(
    /// The route of a request.
    Route {
        Poll => "poll",
        Find => "find",
        History => "history",
        Catalogue => "catalogue",
        Heartbeat => "heartbeat",
        Health => "health",
        Token => "token",
        Hunts => "hunts",
        PutHunt => "put_hunt",
        LifeStep => "life_step",
        BulkFinds => "bulk_finds",
        Adjust => "adjust",
        Reinstate => "reinstate",
        Erase => "erase",
        Export => "export",
        Other => "other",
    }
);

labels!(
    /// A command given to the store.
    StoreCommand {
        OpenPlayers => "open_players",
        Wallet => "wallet",
        Record => "record",
        Credit => "credit",
        Adjust => "adjust",
        History => "history",
        Reinstate => "reinstate",
        Erase => "erase",
        PutHunt => "put_hunt",
        StepHunt => "step_hunt",
        Export => "export",
        Verify => "verify",
    }
);

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// The counters, histograms and gauges.
pub struct Metrics {
    registry: Registry,
    requests: Vec<Histogram>,
    store: Vec<Histogram>,
    loop_lag: Histogram,
    credits: IntCounter,
    failovers: IntCounter,
    slow: Vec<IntCounter>,
    coins: IntGaugeVec,
    wallets: IntGauge,
    held: IntGauge,
    connections: IntGauge,
    batches: IntCounter,
    syncs: IntCounter,
    mirror_lag: prometheus::Gauge,
    replayed: Vec<IntCounter>,
    replay_dropped: Vec<IntCounter>,
    replay_items: IntGauge,
    replay_bytes: IntGauge,
    front: [IntCounter; 6],
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

/// Their series.
const FRONT: [(&str, &str); 6] = [
    (
        "trove_refused_requests_total",
        "Requests that the connection layer refused, malformed ones for the most part.",
    ),
    (
        "trove_refused_connections_total",
        "Connections that were answered 503 because there was no room.",
    ),
    (
        "trove_dropped_connections_total",
        "Connections that were dropped for want of a descriptor.",
    ),
    (
        "trove_timeouts_total",
        "Requests and writes that a timer ended.",
    ),
    ("trove_panics_total", "Requests that ended in a panic."),
    (
        "trove_cut_answers_total",
        "Answers that were cut because their body failed.",
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

const SLOW_CAUSES: [&str; 4] = ["client", "shim", "app", "store"];
const COIN_STATES: [&str; 5] = ["recorded", "credited", "expired", "pending", "revoked"];

fn registered<C: prometheus::core::Collector + Clone + 'static>(
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
    /// Everything at 0. `instance_id` is for the poll's prepared fields.
    ///
    /// # Panics
    /// When `instance_id` cannot stand in a header field; the settings refuse such a one.
    #[must_use]
    pub fn new(instance_id: &str) -> Self {
        let registry = Registry::new();
        let seconds =
            |name: &str, help: &str| HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let counters = |name: &str, help: &str| Opts::new(name, help);
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help));
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help));
        let requests = registered(
            &registry,
            HistogramVec::new(
                seconds(
                    "trove_http_request_duration_seconds",
                    "From a request's last byte in to its answer.",
                ),
                &["route", "status_class"],
            ),
        );
        let store = registered(
            &registry,
            HistogramVec::new(
                seconds(
                    "trove_store_command_duration_seconds",
                    "How long the store took.",
                ),
                &["command"],
            ),
        );
        let replayed = registered(
            &registry,
            IntCounterVec::new(
                counters(
                    "trove_replayed_total",
                    "What a failover of the store took and this process brought back.",
                ),
                &["kind"],
            ),
        );
        let replay_dropped = registered(
            &registry,
            IntCounterVec::new(
                counters(
                    "trove_replay_dropped_total",
                    "What a failover of the store took and could not be brought back.",
                ),
                &["reason"],
            ),
        );
        let slow = registered(
            &registry,
            IntCounterVec::new(
                counters(
                    "trove_slow_requests_total",
                    "Requests that took over 1 s, by what took longest.",
                ),
                &["cause"],
            ),
        );
        Self {
            requests: Route::ALL
                .iter()
                .flat_map(|route| {
                    CLASSES.map(|class| requests.with_label_values(&[route.as_str(), class]))
                })
                .collect(),
            store: StoreCommand::ALL
                .iter()
                .map(|command| store.with_label_values(&[command.as_str()]))
                .collect(),
            loop_lag: registered(
                &registry,
                Histogram::with_opts(seconds(
                    "trove_event_loop_lag_seconds",
                    "How late the event loop's timer fires.",
                )),
            ),
            failovers: counter(
                "trove_store_failovers_total",
                "Times at which the store's history may have been cut, so that every wallet was read again.",
            ),
            credits: counter(
                "trove_credits_total",
                "Finds credited through this process.",
            ),
            slow: SLOW_CAUSES
                .map(|cause| slow.with_label_values(&[cause]))
                .into(),
            coins: registered(
                &registry,
                IntGaugeVec::new(
                    counters(
                        "trove_coins",
                        "Coins of a hunt by state, as the store says.",
                    ),
                    &["hunt", "state"],
                ),
            ),
            wallets: gauge("trove_mirror_wallets", "Wallets in memory."),
            held: gauge("trove_held_polls", "Polls held until there is news."),
            connections: gauge(
                "trove_connections",
                "Open connections of the public listener.",
            ),
            batches: counter(
                "trove_store_batches_total",
                "Transactions that the embedded store committed.",
            ),
            mirror_lag: registered(
                &registry,
                prometheus::Gauge::new(
                    "trove_mirror_lag_seconds",
                    "How far the wallets in memory may be behind the store.",
                ),
            ),
            syncs: counter(
                "trove_store_syncs_total",
                "fdatasync calls of the embedded store.",
            ),
            replayed: ReplayKind::ALL
                .map(|kind| replayed.with_label_values(&[kind.as_str()]))
                .into(),
            replay_dropped: Dropped::ALL
                .map(|why| replay_dropped.with_label_values(&[why.as_str()]))
                .into(),
            replay_items: gauge(
                "trove_replay_items",
                "What is kept to be brought back after a failover.",
            ),
            replay_bytes: gauge(
                "trove_replay_bytes",
                "The memory of what is kept to be brought back after a failover.",
            ),
            front: FRONT.map(|(name, help)| counter(name, help)),
            taking: Mutex::default(),
            poll_fields: FieldBlock::new(&[
                ("content-type", "application/json"),
                ("cache-control", "no-store"),
                ("x-instance-id", instance_id),
            ])
            .expect("an instance id is checked with the settings"),
            registry,
        }
    }

    /// A request was answered.
    #[inline]
    pub fn request(&self, route: Route, status: u16, took: Duration, store: Duration) {
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        self.requests[route as usize * CLASSES.len() + class].observe(took.as_secs_f64());
        if took >= SLOW {
            // The rest of the time was this process's own.
            let cause = if store * 2 >= took { 3 } else { 2 };
            self.slow[cause].inc();
        }
    }

    /// The store answered a command.
    pub fn store_command(&self, command: StoreCommand, took: Duration) {
        self.store[command as usize].observe(took.as_secs_f64());
    }

    /// The loop's timer was late.
    pub fn loop_lag(&self, lag: Duration) {
        self.loop_lag.observe(lag.as_secs_f64());
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

    /// Everything as text. Hunts' sums come from the store.
    ///
    /// # Panics
    /// Never: writing to memory does not fail.
    #[must_use]
    pub fn text(&self, hunts: &[(Arc<Hunt>, Totals)], gauges: Gauges) -> String {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.wallets.set(count(gauges.wallets as u64));
        self.held.set(count(gauges.held as u64));
        self.connections.set(i64::from(gauges.connections));
        self.replay_items.set(count(gauges.replay.items as u64));
        self.replay_bytes.set(count(gauges.replay.bytes as u64));
        let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds far below 2^52")]
        self.mirror_lag.set(gauges.mirror_lag_ms as f64 / 1_000.0);
        let taken = [(&self.batches, gauges.batches), (&self.syncs, gauges.syncs)];
        for (counter, count) in taken
            .into_iter()
            .chain(self.front.iter().zip(gauges.front.0))
            .chain(self.replayed.iter().zip(gauges.replay.replayed))
            .chain(self.replay_dropped.iter().zip(gauges.replay.dropped))
        {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        drop(taking);
        for (hunt, totals) in hunts {
            let figures = [
                totals.recorded,
                totals.credited,
                totals.expired,
                totals.pending,
                totals.revoked,
            ];
            for (state, coins) in COIN_STATES.iter().zip(figures) {
                self.coins
                    .with_label_values(&[hunt.spec.id.as_str(), state])
                    .set(count(coins));
            }
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .expect("memory takes every write");
        String::from_utf8(text).expect("the format is UTF-8")
    }
}
