//! What a case emits, computed from its settings alone: the first line of every run. People have lost hours to requests that
//! a generator sent and nobody had asked for.

use super::{Behaviour, Case, Kind};
use std::collections::BTreeMap;
use std::time::Duration;

/// A back end reports the finds of its players in one request each such time. Not compressed.
pub const BULK_EVERY: Duration = Duration::from_secs(1);

/// The most finds of one such request.
pub const BULK_FINDS_MAX: u32 = 10_000;

/// Requests per second by kind, intended at the curve's peak. Kinds that are turned off are left out. Users in the
/// background send nothing. Where the server's hint is obeyed polls are counted as if it said [`Behaviour::poll_interval`];
/// where a recording is replayed there is no rate to compute, and the table is empty.
#[must_use]
pub fn emits_per_second(case: &Case) -> BTreeMap<Kind, f64> {
    let mut rates = BTreeMap::new();
    if matches!(case.load.curve, super::Curve::Recording { .. }) {
        return rates;
    }
    let behaviour = &case.behaviour;
    let (foreground, background) = (
        case.network.foreground.as_secs_f64(),
        case.network.background.as_secs_f64(),
    );
    let there = if foreground > 0.0 {
        foreground / (foreground + background)
    } else {
        1.0
    };
    let users = f64::from(case.load.users) * there;
    let each = |every: Duration| {
        let every = case.scaled(every).as_secs_f64();
        if every > 0.0 { users / every } else { 0.0 }
    };
    rates.insert(Kind::Poll, each(behaviour.poll_interval));
    if case.system.url_template.is_empty() {
        let finds = each(behaviour.find_interval);
        rates.insert(Kind::Heartbeat, each(behaviour.heartbeat_interval));
        rates.insert(Kind::Find, single_finds(behaviour, finds));
        rates.insert(Kind::BulkFind, bulk_requests(behaviour, finds));
        rates.insert(Kind::History, each(behaviour.history_interval));
        rates.insert(Kind::Catalogue, each(behaviour.catalogue_interval));
    }
    rates.retain(|_, rate| *rate > 0.0);
    rates
}

/// Finds that players send themselves, with those sent again at once.
fn single_finds(behaviour: &Behaviour, finds: f64) -> f64 {
    finds * (1.0 - behaviour.bulk_share) * (1.0 + behaviour.find_retry_share)
}

/// Requests in which a back end reports the others: one each [`BULK_EVERY`], fewer where there is less than a find for each.
fn bulk_requests(behaviour: &Behaviour, finds: f64) -> f64 {
    (finds * behaviour.bulk_share).min(1.0 / BULK_EVERY.as_secs_f64())
}

/// The rates in one line: `48,000 requests/s: 40,000 heartbeat, 8,333 poll …`.
#[must_use]
pub fn emits_line(rates: &BTreeMap<Kind, f64>) -> String {
    if rates.is_empty() {
        return "emits what the recording holds".to_owned();
    }
    let mut by_rate: Vec<_> = rates.iter().collect();
    by_rate.sort_by(|a, b| b.1.total_cmp(a.1));
    let parts: Vec<String> = by_rate
        .iter()
        .map(|(kind, rate)| format!("{} {}", rate_text(**rate), kind.as_str()))
        .collect();
    format!(
        "emits {} requests/s at its peak: {}",
        rate_text(rates.values().sum()),
        parts.join(", ")
    )
}

/// Three digits at least, thousands apart.
fn rate_text(rate: f64) -> String {
    if rate >= 100.0 {
        let digits = format!("{rate:.0}");
        let mut text = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        text
    } else if rate >= 1.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.3}")
    }
}
