//! Whose fault a slow request is, as the shim sees it.
//!
//! The shim knows how long a request was with it and how long with its instance; what of that was the store's, the instance
//! says in its `Server-Timing`. What neither explains (the request lay unread before an instance that stood still) is the
//! instance's.

use super::backend::Shim;
use super::metrics::Route;
use super::problem::Problem;
use super::queue::Shed;
use crate::front::{Origin, OwnAnswer, Sending, TraceParent};
use crate::link::Delivery;
use crate::metrics::labels::Cause;
use crate::sla::{Parts, Sla};
use crate::telemetry::{Answered, Telemetry};
use http::HeaderMap;
use http::request;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How a request came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    /// When the last byte of its head had been read.
    pub(super) arrived: Instant,
    /// How long its client had taken to send that.
    pub(super) sending: Duration,
    /// The trace that it belongs to.
    pub(super) trace: Option<TraceParent>,
}

impl Came {
    /// As the front has noted it.
    pub(super) fn of(parts: &request::Parts) -> Self {
        let origin = parts.extensions.get::<Origin>();
        let sending = parts.extensions.get::<Sending>();
        let trace = parts.headers.get("traceparent");
        Self {
            arrived: origin.map_or_else(Instant::now, |origin| origin.arrived),
            sending: sending.map_or(Duration::ZERO, |sending| sending.0),
            trace: trace.and_then(|value| TraceParent::parse(value.as_bytes())),
        }
    }

    fn began(&self) -> Instant {
        self.arrived
            .checked_sub(self.sending)
            .unwrap_or(self.arrived)
    }
}

/// How long a request's body was waited for; counted by whoever reads the body, read by whoever judges.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyWait(Arc<AtomicU64>);

impl BodyWait {
    pub(super) fn add(&self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(ns, Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// What a forwarded request took: the client to send it, the shim itself, its queue, and the instance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Took {
    pub(super) client: Duration,
    pub(super) own: Duration,
    pub(super) queue: Duration,
    pub(super) theirs: Duration,
}

impl Took {
    /// `store`: what the instance says that its store took.
    fn parts(&self, store: Duration) -> Parts {
        let store = store.min(self.theirs);
        Parts {
            client: self.client,
            shim: self.own + self.queue,
            app: self.theirs - store,
            store,
        }
    }
}

/// Judges an answer over plain HTTP; `fields` are the instance's.
pub(super) fn answered(
    (sla, telemetry): (&Sla, &Telemetry),
    (route, status): (Route, u16),
    came: &Came,
    took: &Took,
    fields: &HeaderMap,
) {
    let store = || {
        let timings = fields.get_all("server-timing").iter();
        timings.map(|value| store_of(value.as_bytes())).sum()
    };
    tell(telemetry, (route, status), came, || took.parts(store()));
    let parts = took.parts(Duration::ZERO);
    if !sla.is_slow(parts.total()) {
        return;
    }
    let store = store();
    let about = (route.as_str(), status);
    sla.note(
        Cause::Shim,
        about,
        came.began(),
        took.parts(store),
        came.trace,
    );
}

/// Judges an answer over a link, of which the shim itself took `own`.
pub(super) fn delivered(shim: &Shim, route: Route, delivery: &Delivery<'_>, own: Duration) {
    let took = Took {
        client: delivery.sending,
        own,
        queue: Duration::ZERO,
        theirs: delivery.read.duration_since(delivery.sent) + delivery.elsewhere,
    };
    let store = || {
        let lines = delivery.fields.as_bytes().split(|byte| *byte == b'\n');
        let timings = lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            name.eq_ignore_ascii_case(b"server-timing")
                .then(|| store_of(&value[1..]))
        });
        timings.sum()
    };
    let came = Came {
        arrived: delivery.arrived,
        sending: delivery.sending,
        trace: delivery.trace,
    };
    let telemetry = &shim.metrics.telemetry;
    tell(telemetry, (route, delivery.status), &came, || {
        took.parts(store())
    });
    if !shim.sla.is_slow(took.client + took.own + took.theirs) {
        return;
    }
    let about = (route.as_str(), delivery.status);
    let parts = took.parts(store());
    shim.sla
        .note(Cause::Shim, about, came.began(), parts, came.trace);
}

/// Judges a request that has no answer of an instance.
pub(super) fn failed(shim: &Shim, problem: Problem, route: Route, came: &Came, body: Duration) {
    let mut parts = Parts {
        client: came.sending + body,
        ..Parts::default()
    };
    let rest = came.arrived.elapsed().saturating_sub(body);
    match problem {
        Problem::Shed(Shed::Unreachable)
        | Problem::BadGateway
        | Problem::GatewayTimeout
        | Problem::LengthRequired => parts.app = rest,
        Problem::ClientBody | Problem::HeartbeatTooLarge => parts.client += rest,
        Problem::Shed(_) | Problem::MethodNotAllowed => parts.shim = rest,
    }
    let status = problem.status().as_u16();
    let telemetry = &shim.metrics.telemetry;
    tell(telemetry, (route, status), came, || parts);
    let about = (route.as_str(), status);
    shim.sla
        .note(Cause::Shim, about, came.began(), parts, came.trace);
}

/// Counts and judges an answer of the front's own. What was asked is not known there; where the fault is not the client's it
/// counts as a failed poll, as nearly every request is one: players who are turned away must not look like silence.
pub(super) fn refused(shim: &Shim, own: &OwnAnswer) {
    shim.metrics.front_answers.count(own.why);
    let status = own.why.describe().0;
    let mut parts = Parts::default();
    let route = if own.why.is_server_fault() {
        shim.metrics.request(Route::Poll, status, own.took);
        parts.shim = own.took;
        Route::Poll
    } else if own.why.is_slow_client() {
        parts.client = own.took;
        Route::Other
    } else {
        return;
    };
    let now = Instant::now();
    let began = now.checked_sub(own.took).unwrap_or(now);
    let about = (route.as_str(), status);
    shim.sla.note(Cause::Shim, about, began, parts, None);
}

/// Logs and traces a request, if it is due or may be traced.
fn tell(
    telemetry: &Telemetry,
    (route, status): (Route, u16),
    came: &Came,
    parts: impl FnOnce() -> Parts,
) {
    let place = route as usize;
    let is_due = telemetry.requests.is_due(place, status);
    if !is_due && !telemetry.traces() {
        return;
    }
    let answered = Answered {
        route: route.as_str(),
        place,
        status,
        began: came.began(),
        parts: parts(),
        children: &[],
    };
    telemetry.note_now(came.trace, is_due, &answered);
}

/// What a `Server-Timing` says that the store took.
fn store_of(value: &[u8]) -> Duration {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let metrics = text.split(',').filter_map(|metric| {
        let mut parts = metric.split(';').map(str::trim);
        if parts.next()? != "store" {
            return None;
        }
        let ms = parts.find_map(|part| part.strip_prefix("dur="))?;
        let ms = ms.trim_matches('"').parse::<f64>().ok()?;
        Duration::try_from_secs_f64(ms / 1_000.0).ok()
    });
    metrics.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_took_is_read_from_what_the_instance_says() {
        for (value, us) in [
            ("app;dur=0.125, store;dur=1200.500", 1_200_500),
            ("store;desc=\"redis\";dur=2", 2_000),
            ("app;dur=9", 0),
            ("", 0),
            ("store", 0),
            ("store;dur=-1", 0),
            ("restore;dur=5", 0),
        ] {
            assert_eq!(store_of(value.as_bytes()).as_micros(), us, "{value}");
        }
    }

    #[test]
    fn what_an_instance_does_not_explain_is_its_own() {
        let took = Took {
            theirs: Duration::from_secs(3),
            own: Duration::from_millis(2),
            ..Took::default()
        };
        assert_eq!(took.parts(Duration::from_secs(1)).cause(), Cause::App);
        assert_eq!(took.parts(Duration::from_secs(2)).cause(), Cause::Store);
        // It cannot have taken longer than all of it.
        assert_eq!(
            took.parts(Duration::from_secs(9)).total(),
            took.theirs + took.own
        );
        let waited = Took {
            queue: Duration::from_secs(4),
            ..took
        };
        assert_eq!(waited.parts(Duration::ZERO).cause(), Cause::Shim);
    }
}
