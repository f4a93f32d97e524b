//! The verdict at one moment, as `/sla` gives it in JSON.

use super::burn::{BadOf, RULES, Severity, WINDOWS, Window, burn_rate};
use super::objective::Objective;
use super::slots::Tally;
use super::slow::{Example, SlowRequests};
use crate::metrics::durations::native_bound_s;
use crate::metrics::labels::Cause;
use serde::Serialize;
use std::collections::BTreeMap;

/// How an objective stands. Of several, the last one named here that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing was asked of the route yet.
    NoData,
    /// The budget lasts.
    Ok,
    /// The budget is being spent too fast: somebody should look in working hours.
    Ticket,
    /// The budget is being spent so fast that somebody should look now.
    Page,
}

/// The verdict.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// `serve` or `shim`.
    pub role: &'static str,
    /// The process's name.
    pub instance: String,
    /// When this was, in milliseconds since the epoch.
    pub time_ms: u64,
    /// The worst of the objectives.
    pub state: State,
    /// Every objective that this process can judge.
    pub objectives: Vec<ObjectiveNow>,
    /// Slow requests and what made them slow.
    pub slow: SlowNow,
}

/// One objective.
#[derive(Debug, Clone, Serialize)]
pub struct ObjectiveNow {
    /// Its name.
    pub name: String,
    /// Its route.
    pub route: String,
    /// How it stands.
    pub state: State,
    /// How many percent of requests must be in time.
    pub percentile: f64,
    /// What being in time is, in seconds.
    pub latency_s: f64,
    /// The share of requests that may fail.
    pub error_ratio_max: f64,
    /// An answer that took longer, in seconds, counts as a failure.
    pub failure_s: Option<f64>,
    /// How far back the data reaches, in seconds; never further than the longest window.
    pub reaches_s: u64,
    /// By window, ascending.
    pub windows: Vec<WindowNow>,
    /// What is left of the longest window's budget.
    pub budget: BudgetNow,
    /// Every decision, firing or not.
    pub alerts: Vec<AlertNow>,
}

/// One objective in one window.
#[derive(Debug, Clone, Serialize)]
pub struct WindowNow {
    /// Its name.
    pub window: Window,
    /// Its length in seconds.
    pub seconds: u64,
    /// For how much of it the route was watched, in seconds.
    pub measured_s: f64,
    /// Requests.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were late.
    pub late: u64,
    /// The share that failed; `null` without requests, as are the percentiles.
    pub error_ratio: Option<f64>,
    /// The share that was late.
    pub late_ratio: Option<f64>,
    /// The median, in seconds: as all percentiles here an upper bound, at most 9 % too high.
    pub p50_s: Option<f64>,
    /// 95 % took no longer.
    pub p95_s: Option<f64>,
    /// 99 % took no longer.
    pub p99_s: Option<f64>,
    /// 99.9 % took no longer.
    pub p999_s: Option<f64>,
    /// How many times too fast the errors' budget is being spent.
    pub errors_burn_rate: f64,
    /// How many times too fast the latency's budget is being spent.
    pub latency_burn_rate: f64,
    /// Whether the promise holds in this window, exactly counted.
    pub holds: bool,
}

/// What is left of a budget: 1 is all of it, below 0 it is overdrawn.
#[derive(Debug, Clone, Serialize)]
pub struct BudgetNow {
    /// The window whose budget it is.
    pub window: Window,
    /// Of the errors.
    pub errors_left: f64,
    /// Of late answers.
    pub latency_left: f64,
}

/// One decision.
#[derive(Debug, Clone, Serialize)]
pub struct AlertNow {
    /// `errors` or `latency`.
    pub budget: &'static str,
    /// What it comes to.
    pub severity: Severity,
    /// The window that says that it matters.
    pub long: Window,
    /// The window that says that it still goes on.
    pub short: Window,
    /// The burn rate that both must exceed.
    pub burn_rate: f64,
    /// Whether it is so.
    pub firing: bool,
}

/// Slow requests.
#[derive(Debug, Clone, Serialize)]
pub struct SlowNow {
    /// What slow is, in seconds.
    pub threshold_s: f64,
    /// Since the process began, by cause.
    pub since_start: BTreeMap<&'static str, u64>,
    /// In each window, by cause.
    pub windows: Vec<WindowCauses>,
    /// The latest, the newest first.
    pub examples: Vec<Example>,
}

/// Slow requests of a window by cause.
#[derive(Debug, Clone, Serialize)]
pub struct WindowCauses {
    /// The window.
    pub window: Window,
    /// How many, by cause.
    pub causes: BTreeMap<&'static str, u64>,
}

fn by_cause(counts: [u64; 4]) -> BTreeMap<&'static str, u64> {
    Cause::ALL
        .iter()
        .map(|cause| cause.as_str())
        .zip(counts)
        .collect()
}

impl WindowCauses {
    pub(super) fn new(window: Window, counts: [u64; 4]) -> Self {
        Self {
            window,
            causes: by_cause(counts),
        }
    }
}

impl Snapshot {
    pub(super) fn new(
        (role, instance, time_ms): (&'static str, &str, u64),
        objectives: Vec<ObjectiveNow>,
        causes: Vec<WindowCauses>,
        slow: &SlowRequests,
    ) -> Self {
        Self {
            role,
            instance: instance.to_owned(),
            time_ms,
            state: objectives
                .iter()
                .map(|objective| objective.state)
                .max()
                .unwrap_or(State::NoData),
            objectives,
            slow: SlowNow {
                threshold_s: slow.threshold().as_secs_f64(),
                since_start: by_cause(slow.counts()),
                windows: causes,
                examples: slow.examples(),
            },
        }
    }
}

impl ObjectiveNow {
    pub(super) fn new(
        objective: &Objective,
        windows: Vec<WindowNow>,
        (failed, late): (BadOf, BadOf),
        failures_min: u64,
        reaches_s: u64,
    ) -> Self {
        let budgets = [
            ("errors", failed, objective.error_ratio),
            ("latency", late, objective.late_ratio()),
        ];
        let alerts: Vec<AlertNow> = budgets
            .iter()
            .flat_map(|(budget, bad_of, allowed)| {
                RULES.iter().map(move |rule| AlertNow {
                    budget,
                    severity: rule.severity,
                    long: WINDOWS[rule.long],
                    short: WINDOWS[rule.short],
                    burn_rate: rule.burn_rate,
                    firing: rule.holds(bad_of, *allowed, failures_min),
                })
            })
            .collect();
        let firing = alerts.iter().filter(|alert| alert.firing);
        let longest = WINDOWS.len() - 1;
        let state = match firing.map(|alert| alert.severity).max() {
            Some(Severity::Page) => State::Page,
            Some(Severity::Ticket) => State::Ticket,
            None if failed[longest].1 == 0 => State::NoData,
            None => State::Ok,
        };
        Self {
            name: objective.name.clone(),
            route: objective.route.clone(),
            state,
            percentile: objective.percentile,
            latency_s: objective.latency_ms / 1_000.0,
            error_ratio_max: objective.error_ratio,
            failure_s: (objective.failure_ms > 0.0).then_some(objective.failure_ms / 1_000.0),
            reaches_s: reaches_s.min(WINDOWS[longest].seconds),
            windows,
            budget: BudgetNow {
                window: WINDOWS[longest],
                errors_left: 1.0 - burn_rate(failed[longest], objective.error_ratio),
                latency_left: 1.0 - burn_rate(late[longest], objective.late_ratio()),
            },
            alerts,
        }
    }
}

impl WindowNow {
    pub(super) fn new(
        window: Window,
        measured_ms: u64,
        tally: &Tally,
        objective: &Objective,
    ) -> Self {
        let Tally {
            requests,
            failed,
            late,
            ..
        } = *tally;
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let share = |bad: u64| (requests > 0).then(|| bad as f64 / requests as f64);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of days")]
        let measured_s = measured_ms as f64 / 1_000.0;
        let errors_burn_rate = burn_rate((failed, requests), objective.error_ratio);
        let latency_burn_rate = burn_rate((late, requests), objective.late_ratio());
        Self {
            window,
            seconds: window.seconds,
            measured_s,
            requests,
            failed,
            late,
            error_ratio: share(failed),
            late_ratio: share(late),
            p50_s: percentile_s(tally, 0.5),
            p95_s: percentile_s(tally, 0.95),
            p99_s: percentile_s(tally, 0.99),
            p999_s: percentile_s(tally, 0.999),
            errors_burn_rate,
            latency_burn_rate,
            holds: errors_burn_rate <= 1.0 && latency_burn_rate <= 1.0,
        }
    }
}

/// The upper bound of the bucket that the nearest rank lies in.
fn percentile_s(tally: &Tally, quantile: f64) -> Option<f64> {
    let all: u64 = tally.latencies.iter().map(|count| u64::from(*count)).sum();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts below 2^53"
    )]
    let rank = ((all as f64 * quantile).ceil() as u64).max(1);
    let mut below = 0;
    tally
        .latencies
        .iter()
        .enumerate()
        .find_map(|(place, count)| {
            below += u64::from(*count);
            (below >= rank).then(|| native_bound_s(place))
        })
}
