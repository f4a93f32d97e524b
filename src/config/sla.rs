//! The settings of objectives and of what is slow.

use super::SettingsError;
use crate::metrics::Buckets;
use crate::sla::Objective;
use crate::sla::objective::OBJECTIVES_MAX;
use serde::Deserialize;
use std::path::PathBuf;
use toml::Value;

/// Objectives, and what is measured for them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // The default file is the documentation.
pub struct SlaSettings {
    pub slow_ms: u64,
    pub buckets_ms: Vec<f64>,
    pub failures_min: u64,
    pub state_dir: PathBuf,
    pub save_ms: u64,
    pub objectives: Vec<Objective>,
}

/// The least and the greatest value of each whole number.
pub(super) const RANGES: [(&str, i64, i64); 3] = [
    ("sla.slow_ms", 1, 3_600_000),
    ("sla.failures_min", 1, 1_000_000),
    ("sla.save_ms", 1_000, 3_600_000),
];

/// The most classic buckets: each is a series for every route and class of status.
const BUCKETS_MAX: usize = 40;

/// Checks the lists. `None`: the key is none of these.
pub(super) fn list(key: &str, items: &[Value]) -> Option<Result<(), String>> {
    match key {
        "sla.buckets_ms" => Some(buckets(items)),
        "sla.objectives" => Some(objectives(items)),
        _ => None,
    }
}

fn buckets(items: &[Value]) -> Result<(), String> {
    let form =
        "must be a list of milliseconds, each larger than the one before, from 0.001 to 3600000";
    if items.is_empty() || items.len() > BUCKETS_MAX {
        return Err(format!("must have 1 to {BUCKETS_MAX} boundaries"));
    }
    let mut before = 0.0;
    for item in items {
        #[expect(clippy::cast_precision_loss, reason = "outside the range either way")]
        let ms = match item {
            Value::Integer(ms) => *ms as f64,
            Value::Float(ms) => *ms,
            _ => return Err(form.into()),
        };
        if !(0.001..=3_600_000.0).contains(&ms) || ms <= before {
            return Err(format!("holds {ms}; it {form}"));
        }
        before = ms;
    }
    Ok(())
}

fn objectives(items: &[Value]) -> Result<(), String> {
    if items.len() > OBJECTIVES_MAX {
        return Err(format!(
            "has {}; there are at most {OBJECTIVES_MAX}",
            items.len()
        ));
    }
    let mut names: Vec<String> = Vec::new();
    for item in items {
        let objective: Objective = item
            .clone()
            .try_into()
            .map_err(|error: toml::de::Error| error.message().replace('\n', " "))?;
        if names.contains(&objective.name) {
            return Err(format!("has two objectives called {}", objective.name));
        }
        names.push(objective.name);
    }
    Ok(())
}

impl SlaSettings {
    /// The boundaries of histograms.
    #[must_use]
    pub fn buckets(&self) -> Buckets {
        Buckets::of_ms(&self.buckets_ms)
    }

    /// Every objective needs a boundary exactly where it cuts.
    ///
    /// # Errors
    /// Names the objective that has none, and the boundaries.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let buckets = self.buckets();
        for objective in &self.objectives {
            for (what, ms) in [
                ("latency_ms", objective.latency_ms),
                ("failure_ms", objective.failure_ms),
            ] {
                if ms > 0.0 && buckets.place_of_ms(ms).is_none() {
                    let known: Vec<String> = self.buckets_ms.iter().map(f64::to_string).collect();
                    return Err(SettingsError::Relation {
                        first: "sla.objectives",
                        first_value: format!("{what} {ms} of {}", objective.name),
                        relation: "missing among the boundaries of",
                        second: "sla.buckets_ms",
                        second_value: known.join(", "),
                    });
                }
            }
        }
        Ok(())
    }
}
