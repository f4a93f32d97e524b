//! What is promised of a route.

use serde::Deserialize;
use std::str::FromStr;

/// The most objectives that there may be: each keeps some 1.3 MB.
pub const OBJECTIVES_MAX: usize = 16;

/// One objective: so many percent of a route's requests are answered within `latency_ms`, and no more than `error_ratio` of
/// them fail.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Said")]
pub struct Objective {
    /// What it is called: a label of rules and a name in reports.
    pub name: String,
    /// The value of the label `route`.
    pub route: String,
    /// How many percent of requests must be in time.
    pub percentile: f64,
    /// What being in time is, in milliseconds.
    pub latency_ms: f64,
    /// The share of requests that may fail. An answer of 5xx is a failure.
    pub error_ratio: f64,
    /// An answer that took longer, in milliseconds, is a failure too; 0: none is.
    pub failure_ms: f64,
}

/// An objective as a table of the settings file, or as the text of a variable.
#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Text(String),
    Table(Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    route: String,
    percentile: f64,
    latency_ms: f64,
    error_ratio: f64,
    #[serde(default)]
    failure_ms: f64,
}

impl TryFrom<Said> for Objective {
    type Error = String;

    fn try_from(said: Said) -> Result<Self, String> {
        match said {
            Said::Text(text) => text.parse(),
            Said::Table(Table {
                name,
                route,
                percentile,
                latency_ms,
                error_ratio,
                failure_ms,
            }) => Self {
                name,
                route,
                percentile,
                latency_ms,
                error_ratio,
                failure_ms,
            }
            .checked(),
        }
    }
}

impl FromStr for Objective {
    type Err = String;

    /// `NAME:ROUTE:PERCENTILE:LATENCY_MS:ERROR_RATIO`, and perhaps `:FAILURE_MS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no objective; write NAME:ROUTE:PERCENTILE:LATENCY_MS:ERROR_RATIO or …:FAILURE_MS, such as polls:poll:99:1000:0.005"
            )
        };
        let parts: Vec<&str> = text.split(':').collect();
        let [name, route, numbers @ ..] = &parts[..] else {
            return Err(wrong());
        };
        let numbers: Vec<f64> = numbers
            .iter()
            .map(|number| number.parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        let (percentile, latency_ms, error_ratio, failure_ms) = match numbers[..] {
            [percentile, latency_ms, error_ratio] => (percentile, latency_ms, error_ratio, 0.0),
            [percentile, latency_ms, error_ratio, failure_ms] => {
                (percentile, latency_ms, error_ratio, failure_ms)
            }
            _ => return Err(wrong()),
        };
        Self {
            name: (*name).to_owned(),
            route: (*route).to_owned(),
            percentile,
            latency_ms,
            error_ratio,
            failure_ms,
        }
        .checked()
    }
}

impl Objective {
    fn checked(self) -> Result<Self, String> {
        let name = &self.name;
        let is_name = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
        if !is_name {
            return Err(format!(
                "{name:?} cannot name an objective: 1 to 64 of A-Z a-z 0-9 . _ -"
            ));
        }
        let routes = crate::metrics::Route::ALL;
        if !routes.iter().any(|route| route.as_str() == self.route) {
            let known: Vec<&str> = routes.iter().map(|route| route.as_str()).collect();
            return Err(format!(
                "{name}: there is no route {:?}; there are {}",
                self.route,
                known.join(", ")
            ));
        }
        let within = |what: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!(
                    "{name}: {what} is {value}; it must be {least} to {most}"
                ))
            }
        };
        within("percentile", self.percentile, 50.0, 99.999)?;
        within("latency_ms", self.latency_ms, 0.1, 3_600_000.0)?;
        within("error_ratio", self.error_ratio, 0.000_001, 0.5)?;
        within("failure_ms", self.failure_ms, 0.0, 3_600_000.0)?;
        Ok(self)
    }

    /// The share of requests that may be late.
    #[must_use]
    pub fn late_ratio(&self) -> f64 {
        // 1 − 99/100 is 0.010000000000000009: the nearest short decimal is what was meant.
        let parts = (100.0 - self.percentile) / 100.0;
        (parts * 1e9).round() / 1e9
    }

    /// What makes its past comparable with its present: all that decides what counts as a failure.
    #[must_use]
    pub fn identity(&self) -> String {
        format!(
            "{} {} {} {}",
            self.name, self.route, self.latency_ms, self.failure_ms
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_reads_as_text_and_as_a_table() {
        let text: Objective = "polls:poll:99:1000:0.005".parse().unwrap();
        let table: Objective = toml::from_str(
            "name = \"polls\"\nroute = \"poll\"\npercentile = 99\nlatency_ms = 1000\nerror_ratio = 0.005",
        )
        .unwrap();
        assert_eq!(text, table);
        assert!((text.late_ratio() - 0.01).abs() < f64::EPSILON);
        let confirm: Objective = "finds:find:99.9:250:0.001:3000".parse().unwrap();
        assert!((confirm.failure_ms - 3_000.0).abs() < f64::EPSILON);
    }

    #[test]
    fn what_no_objective_is_says_why() {
        for (wrong, why) in [
            ("", "is no objective"),
            ("polls:poll:99:1000", "is no objective"),
            ("polls:pool:99:1000:0.005", "there is no route \"pool\""),
            ("po lls:poll:99:1000:0.005", "cannot name an objective"),
            ("polls:poll:100:1000:0.005", "percentile is 100"),
            ("polls:poll:99:0:0.005", "latency_ms is 0"),
            ("polls:poll:99:1000:0", "error_ratio is 0"),
            ("polls:poll:99:1000:NaN", "error_ratio is NaN"),
        ] {
            let said = wrong.parse::<Objective>().unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
    }
}
