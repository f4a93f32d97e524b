//! When somebody is told: multi-window, multi-burn-rate decisions, after the Google SRE Workbook, chapter 5.
//!
//! A burn rate is the share of failures divided by the share that the objective allows: at 1 the budget of a period is spent
//! at its end. A decision wants the rate in a long window, which says that it matters, and in a short one, which says that
//! it still goes on. And it wants a floor of failures in the short window: in a quiet night one error among ten requests
//! is a burn rate of 20, and nobody should be woken by it.

use serde::{Serialize, Serializer};

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Somebody should look in working hours.
    Ticket,
    /// Somebody should look now.
    Page,
}

impl Severity {
    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ticket => "ticket",
            Self::Page => "page",
        }
    }
}

/// A stretch of time up to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// As Prometheus writes it.
    pub name: &'static str,
    /// Its length in seconds.
    pub seconds: u64,
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

const fn window(name: &'static str, seconds: u64) -> Window {
    Window { name, seconds }
}

/// The windows that are summed up, ascending.
pub const WINDOWS: [Window; 5] = [
    window("5m", 300),
    window("30m", 1_800),
    window("1h", 3_600),
    window("6h", 21_600),
    window("3d", 259_200),
];

/// One decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// What it comes to.
    pub severity: Severity,
    /// The place of its long window in [`WINDOWS`].
    pub long: usize,
    /// That of its short one.
    pub short: usize,
    /// The burn rate that must be exceeded in both.
    pub burn_rate: f64,
}

/// All decisions: 2 % of a month's budget in an hour, 5 % in six hours, 10 % in three days.
pub const RULES: [Rule; 3] = [
    Rule {
        severity: Severity::Page,
        long: 2,
        short: 0,
        burn_rate: 14.4,
    },
    Rule {
        severity: Severity::Page,
        long: 3,
        short: 1,
        burn_rate: 6.0,
    },
    Rule {
        severity: Severity::Ticket,
        long: 4,
        short: 3,
        burn_rate: 1.0,
    },
];

/// How many of how many were bad, in each of [`WINDOWS`].
pub type BadOf = [(u64, u64); WINDOWS.len()];

/// The burn rate of `bad` among `all`, where `allowed` is the share that may be bad. 0 without requests.
#[must_use]
pub fn burn_rate((bad, all): (u64, u64), allowed: f64) -> f64 {
    if all == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    let share = bad as f64 / all as f64;
    share / allowed
}

impl Rule {
    /// Whether it says that somebody must be told. `failures_min` is the floor in the short window.
    #[must_use]
    pub fn holds(&self, bad_of: &BadOf, allowed: f64, failures_min: u64) -> bool {
        let exceeds = |place: usize| burn_rate(bad_of[place], allowed) > self.burn_rate;
        exceeds(self.long) && exceeds(self.short) && bad_of[self.short].0 >= failures_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The severest rule that holds.
    fn told(bad_of: BadOf) -> Option<Severity> {
        let holding = RULES.iter().filter(|rule| rule.holds(&bad_of, 0.005, 10));
        holding.map(|rule| rule.severity).max()
    }

    #[test]
    fn windows_and_rules_name_each_other_rightly() {
        let named: Vec<_> = RULES
            .iter()
            .map(|rule| (WINDOWS[rule.long].name, WINDOWS[rule.short].name))
            .collect();
        assert_eq!(named, [("1h", "5m"), ("6h", "30m"), ("3d", "6h")]);
        assert!(
            WINDOWS
                .windows(2)
                .all(|two| two[0].seconds < two[1].seconds)
        );
    }

    #[test]
    fn one_error_in_a_quiet_night_pages_nobody() {
        assert_eq!(told([(1, 10); 5]), None);
        assert_eq!(told([(9, 9); 5]), None);
        // Ten are no chance.
        assert_eq!(told([(10, 10); 5]), Some(Severity::Page));
    }

    #[test]
    fn a_fast_burn_pages_while_it_goes_on_and_not_after() {
        let hour = (8_000, 100_000);
        assert_eq!(
            told([(1_000, 10_000), (8_000, 50_000), hour, hour, hour]),
            Some(Severity::Page)
        );
        // Over: the long windows still burn, the short ones do not.
        assert_eq!(
            told([
                (0, 10_000),
                (0, 50_000),
                hour,
                (8_000, 600_000),
                (8_000, 7_000_000)
            ]),
            None
        );
    }

    #[test]
    fn a_slow_burn_opens_a_ticket() {
        // 0.6 % of requests fail for days: 1.2 times the budget.
        assert_eq!(
            told([
                (60, 10_000),
                (360, 60_000),
                (720, 120_000),
                (4_320, 720_000),
                (51_840, 8_640_000)
            ]),
            Some(Severity::Ticket)
        );
        assert_eq!(
            told([
                (40, 10_000),
                (240, 60_000),
                (480, 120_000),
                (2_880, 720_000),
                (34_560, 8_640_000)
            ]),
            None
        );
    }
}
