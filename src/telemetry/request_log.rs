//! The log of requests. At 50,000 polls a second a line for each would cost more than the polls; so one in so many of a route
//! is logged, and whatever is due, never more than so many lines a second.

use super::Answered;
use super::span::Ident;
use crate::config::LogSettings;
use prometheus_client::metrics::counter::Counter;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Stands for every route that no other item names.
pub const EVERY_ROUTE: &str = "*";

/// An item of `log.requests`: `ROUTE=N`.
///
/// # Errors
/// What it must be.
pub fn parse_item(item: &str) -> Result<(&str, u32), String> {
    let form = || "it must be ROUTE=N: one in N requests of a route is logged, 0 for none; * is every other route";
    let (route, every) = item.split_once('=').ok_or_else(form)?;
    let is_route = route == EVERY_ROUTE
        || crate::metrics::Route::ALL
            .iter()
            .any(|known| known.as_str() == route);
    if !is_route {
        return Err(format!("there is no route {route}"));
    }
    let every = every.parse().map_err(|_| form())?;
    Ok((route, every))
}

/// How many lines there may be a second. A second without lines forgets those before.
#[derive(Debug)]
struct Pace {
    began: Instant,
    /// The second since `began` in its upper half, the lines in it in its lower one.
    second_and_lines: AtomicU64,
}

impl Pace {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            second_and_lines: AtomicU64::new(0),
        }
    }

    fn takes(&self, most: u64, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.began).as_secs() << 32;
        let taken = self
            .second_and_lines
            .fetch_update(Relaxed, Relaxed, |before| {
                let lines = if before >> 32 == second >> 32 {
                    before & 0xffff_ffff
                } else {
                    0
                };
                (lines < most).then_some(second | (lines + 1))
            });
        taken.is_ok()
    }
}

/// Which requests are logged.
#[derive(Debug)]
pub struct RequestLog {
    /// By route: one in so many is logged, and how many come before the next one.
    routes: Box<[(u32, AtomicU64)]>,
    per_s_max: u64,
    sampled: Pace,
    /// Apart, so that those that went well cannot keep these out.
    failed: Pace,
    left_out: Counter,
}

impl RequestLog {
    /// For routes of these names. What the settings do not name is not logged unless it fails.
    #[must_use]
    pub fn new(settings: &LogSettings, routes: &[&str]) -> Self {
        let items: Vec<(&str, u32)> = settings
            .requests
            .iter()
            .filter_map(|item| parse_item(item).ok())
            .collect();
        let of = |name: &str| items.iter().find(|(route, _)| *route == name);
        let every = |name: &&str| {
            of(name)
                .or_else(|| of(EVERY_ROUTE))
                .map_or(0, |(_, every)| *every)
        };
        Self {
            routes: routes
                .iter()
                .map(|name| (every(name), AtomicU64::new(0)))
                .collect(),
            per_s_max: settings.requests_per_s_max,
            sampled: Pace::new(),
            failed: Pace::new(),
            left_out: Counter::default(),
        }
    }

    /// Whether a request of the route at this place is to be logged: it failed, or it is the next one in so many.
    #[inline]
    #[must_use]
    pub fn is_due(&self, place: usize, status: u16) -> bool {
        if cfg!(feature = "unmeasured") {
            return false;
        }
        if status >= 500 {
            return true;
        }
        match self.routes.get(place) {
            None | Some((0, _)) => false,
            Some((1, _)) => true,
            Some((every, left)) => {
                // No division and no locked addition, which polls from memory would pay for: one thread counts, and were
                // there several, they would log a few more or less.
                let now = left.load(Relaxed);
                let next = now.checked_sub(1).unwrap_or(u64::from(*every) - 1);
                left.store(next, Relaxed);
                now == 0
            }
        }
    }

    /// Writes the line of a request that is due, unless there have been too many in this second.
    pub fn write(&self, ident: &Ident, answered: &Answered<'_>) {
        let has_failed = answered.status >= 500;
        let pace = if has_failed {
            &self.failed
        } else {
            &self.sampled
        };
        if !pace.takes(self.per_s_max, Instant::now()) {
            self.left_out.inc();
            return;
        }
        let parts = answered.parts;
        let us = |part: std::time::Duration| u64::try_from(part.as_micros()).unwrap_or(u64::MAX);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    request_id = %ident,
                    route = answered.route,
                    status = answered.status,
                    took_us = us(parts.total()),
                    client_us = us(parts.client),
                    shim_us = us(parts.shim),
                    app_us = us(parts.app),
                    store_us = us(parts.store),
                    "a request"
                )
            };
        }
        if has_failed {
            line!(warn);
        } else {
            line!(info);
        }
    }

    /// The lines that were due and not written.
    #[must_use]
    pub fn left_out(&self) -> Counter {
        self.left_out.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use std::time::Duration;

    fn log(items: &[&str]) -> RequestLog {
        let mut settings = Settings::default().log;
        settings.requests = items.iter().map(ToString::to_string).collect();
        RequestLog::new(&settings, &["poll", "find", "heartbeat"])
    }

    #[test]
    fn one_in_so_many_of_a_route_is_due_and_what_failed_always() {
        let log = log(&["poll=100", "*=1", "heartbeat=0"]);
        let due = |place, status| (0..1_000).filter(|_| log.is_due(place, status)).count();
        assert_eq!([due(0, 200), due(1, 201), due(2, 204)], [10, 1_000, 0]);
        assert_eq!([due(0, 503), due(2, 500), due(9, 200)], [1_000, 1_000, 0]);
    }

    #[test]
    fn what_is_not_named_is_not_due() {
        let log = log(&["poll=1"]);
        assert_eq!([log.is_due(0, 200), log.is_due(1, 200)], [true, false]);
    }

    #[test]
    fn a_second_has_no_more_lines_than_it_may() {
        let pace = Pace::new();
        let lines = |after_ms| {
            let now = pace.began + Duration::from_millis(after_ms);
            (0..50).filter(|_| pace.takes(20, now)).count()
        };
        assert_eq!(
            [
                lines(0),
                lines(900),
                lines(1_000),
                lines(5_500),
                lines(5_900)
            ],
            [20, 0, 20, 20, 0]
        );
    }

    #[test]
    fn an_item_names_a_route_that_there_is_and_a_number() {
        assert_eq!(parse_item("poll=10"), Ok(("poll", 10)));
        assert_eq!(parse_item("*=0"), Ok(("*", 0)));
        for wrong in ["poll", "poll=", "poll=-1", "nowhere=1", "=1", "poll=1.5"] {
            assert!(parse_item(wrong).is_err(), "{wrong}");
        }
    }
}
