//! The settings of the log and of traces.

use crate::telemetry::{otlp, request_log};
use serde::Deserialize;

/// The log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // The default file is the documentation.
pub struct LogSettings {
    pub level: LogLevel,
    pub format: LogFormat,
    pub requests: Vec<String>,
    pub requests_per_s_max: u64,
}

/// Traces.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct TraceSettings {
    pub otlp_endpoint: String,
    pub every: u64,
    pub queue_max: usize,
    pub export_ms: u64,
    pub timeout_ms: u64,
}

/// The least important events that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LogFormat {
    Text,
    Json,
}

/// The least and the greatest value of each whole number.
pub(super) const RANGES: [(&str, i64, i64); 5] = [
    ("log.requests_per_s_max", 1, 100_000),
    ("trace.every", 0, 1_000_000_000),
    ("trace.queue_max", 1, 1_000_000),
    ("trace.export_ms", 10, 60_000),
    ("trace.timeout_ms", 10, 60_000),
];

/// Checks an item of a list. `None`: the key is none of these.
pub(super) fn list_item(key: &str, text: &str) -> Option<Result<(), String>> {
    (key == "log.requests").then(|| {
        let checked = request_log::parse_item(text);
        checked
            .map(drop)
            .map_err(|what| format!("holds {text:?}; {what}"))
    })
}

/// Checks the collector's address, which may be empty.
pub(super) fn endpoint(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    // Not repeated: it may carry a password.
    otlp::parse_endpoint(text).map(drop)
}
