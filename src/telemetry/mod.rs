//! What is told of single requests: lines of the log, and spans of traces.
//!
//! - [`request_log`]: which requests are logged: one in so many of each route, failed ones always, never more than so many a
//!   second.
//! - [`span`]: which requests are traced, and what is told of one.
//! - [`otlp`]: sends spans to a collector, beside the event loop; what it cannot send it drops and counts.
//!
//! Neither ever holds a token, a key, a code, a body or a name of a player: a line or span is made of the route, the status,
//! times and numbers that this process chose, or read as hexadecimal digits.

pub mod otlp;
pub mod request_log;
pub mod span;

pub use otlp::Exporter;
pub use request_log::RequestLog;
pub use span::{Child, Ident, Span};

use crate::config::Settings;
use crate::front::TraceParent;
use crate::sla::Parts;
use prometheus_client::metrics::counter::Counter;
use std::time::{Duration, Instant};

/// The name, without `_total`, and the meaning of the series of lines that were left out.
pub const LINES_LEFT_OUT: (&str, &str) = (
    "trove_log_requests_left_out",
    "Lines about requests that were due and not written, because there were too many in their second",
);
/// The name, without `_total`, and the meaning of the series of spans that were lost.
pub const TRACES_DROPPED: (&str, &str) = (
    "trove_traces_dropped",
    "Spans that were not sent, because the collector was away or too slow",
);
/// The name, without `_total`, and the meaning of the series of spans that were sent.
pub const TRACES_SENT: (&str, &str) = ("trove_traces_sent", "Spans that the collector has taken");

/// One request, when it has been answered.
#[derive(Debug)]
pub struct Answered<'a> {
    /// Its route's name.
    pub route: &'static str,
    /// Its route's place among the process's routes.
    pub place: usize,
    /// Its status.
    pub status: u16,
    /// When its first byte had been read.
    pub began: Instant,
    /// What it waited for.
    pub parts: Parts,
    /// Waits for the store, one by one, where they are known.
    pub children: &'a [Child],
}

/// Both, in one process.
#[derive(Debug)]
pub struct Telemetry {
    /// Which requests are logged.
    pub requests: RequestLog,
    exporter: Option<Exporter>,
    /// One in so many requests is traced.
    every: u64,
}

impl Telemetry {
    /// For a process in a `role`, whose routes have these names. The exporter runs from now on if there is a collector.
    #[must_use]
    pub fn new(settings: &Settings, role: &'static str, instance: &str, routes: &[&str]) -> Self {
        let exporter = Exporter::start(&settings.trace, role, instance);
        Self {
            requests: RequestLog::new(&settings.log, routes),
            exporter,
            every: settings.trace.every,
        }
    }

    /// Whether any request can be traced. If not, it need not be identified.
    #[inline]
    #[must_use]
    pub fn traces(&self) -> bool {
        self.exporter.is_some()
    }

    /// Who a request is: by its `traceparent`, or by a number of its own.
    #[must_use]
    pub fn identify(&self, parent: Option<TraceParent>) -> Ident {
        Ident::new(parent, self.traces(), self.every)
    }

    /// A request of a route without children was answered: the short way for a poll from memory, which is traced or logged
    /// rarely. `is_due`: what [`RequestLog::is_due`] said.
    #[cold]
    pub fn note_now(&self, parent: Option<TraceParent>, is_due: bool, answered: &Answered<'_>) {
        let ident = self.identify(parent);
        self.tell(&ident, is_due, answered);
    }

    /// A request was answered.
    pub fn note(&self, ident: &Ident, answered: &Answered<'_>) {
        let is_due = self.requests.is_due(answered.place, answered.status);
        self.tell(ident, is_due, answered);
    }

    fn tell(&self, ident: &Ident, is_due: bool, answered: &Answered<'_>) {
        if is_due {
            self.requests.write(ident, answered);
        }
        if ident.is_traced
            && let Some(exporter) = &self.exporter
        {
            exporter.send(Span::new(ident, answered));
        }
    }

    /// What is counted of it: lines left out, spans dropped, spans sent. All are there at 0 from the start.
    #[must_use]
    pub fn counters(&self) -> [((&'static str, &'static str), Counter); 3] {
        let (dropped, sent) = match &self.exporter {
            Some(exporter) => exporter.counters(),
            None => Default::default(),
        };
        [
            (LINES_LEFT_OUT, self.requests.left_out()),
            (TRACES_DROPPED, dropped),
            (TRACES_SENT, sent),
        ]
    }

    /// Sends what waits, for a second at most. Blocks: beside the event loop.
    pub fn end(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.end(Duration::from_secs(1));
        }
    }
}
