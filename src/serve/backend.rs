//! What stands behind the front of `trove serve`.

use super::app::App;
use super::problem::{PROBLEM_JSON, Problem};
use super::routes::{cors_layer, plain_poll, route_of, routes};
use super::waits::{WAITS, Waits};
use super::{fields, poll};
use crate::front::{
    self, Answer, Backend, BodyError, Head, Origin, OwnAnswer, Refusal, Sending, TraceParent,
};
use crate::metrics::Route;
use crate::metrics::labels::Cause;
use crate::sla::Parts;
use crate::telemetry::{Answered, Ident};
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body::{Body as _, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// A turn of the event loop longer than this is logged.
const SLOW_TURN: Duration = Duration::from_millis(10);

/// The application as the front sees it.
pub struct AppBackend {
    app: Arc<App>,
    router: Router,
    /// Whether browsers of other origins are let in, whose answers need more fields than the prepared ones.
    cors: bool,
}

impl AppBackend {
    /// The public routes.
    #[must_use]
    pub fn new(app: Arc<App>) -> Self {
        let origins = app.settings().cors.allowed_origins.clone();
        let cors = !origins.is_empty();
        let mut router = routes(app.clone());
        if cors {
            router = router.layer(cors_layer(&origins));
        }
        Self { app, router, cors }
    }
}

impl Backend for AppBackend {
    type Body = Body;
    type Future = Watched;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        if self.cors && head.field("origin").is_some() {
            return false;
        }
        poll::now(&self.app, head, answer)
    }

    fn sign(&self, took: Duration, answer: &mut Answer<'_>) {
        answer
            .field("x-instance-id", &self.app.instance_id)
            .field_with("server-timing", |out| {
                out.extend_from_slice(b"app;dur=");
                poll::write_ms(out, took);
            });
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        let settings = self.app.settings();
        let bytes = match route_of(head.method(), head.path()) {
            Route::PutHunt => settings.limits.hunt_bytes_max,
            Route::BulkFinds => settings.limits.bulk_bytes_max,
            _ => settings.limits.body_bytes_max,
        };
        Some(bytes as u64)
    }

    fn read_slowly(&self, answered_after: Duration, reading: Duration) {
        self.app.sla.note_reading(answered_after, reading);
    }

    /// What was asked is not known here; where the fault is not the client's it counts as a failed poll, as nearly every
    /// request is one: players who are turned away must not look like silence.
    fn refused(&self, own: &OwnAnswer) {
        let app = &self.app;
        app.metrics.front_answers.count(own.why);
        if own.was_called {
            // It was told when it was given up.
            return;
        }
        let status = own.why.describe().0;
        let mut parts = Parts::default();
        let route = if own.why.is_server_fault() {
            app.metrics.request(Route::Poll, status, own.took);
            parts.app = own.took;
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
        app.sla.note(Cause::App, about, began, parts, None);
    }

    fn give_up(&self, why: Refusal, mut future: Pin<&mut Watched>) {
        let status = why.describe().0;
        // What it holds is dropped here, and tells of itself.
        GIVEN_UP.sync_scope(status, || {
            future.answer = Box::pin(std::future::pending());
        });
    }

    fn call(&self, request: Request<front::Body>) -> Self::Future {
        let route = route_of(request.method().as_str(), request.uri().path());
        let arrived = request
            .extensions()
            .get::<Origin>()
            .map_or_else(Instant::now, |origin| origin.arrived);
        let sending = request.extensions().get::<Sending>();
        let sending = sending.map_or(Duration::ZERO, |sending| sending.0);
        let trace = request.headers().get(fields::TRACEPARENT);
        let trace = trace.and_then(|value| TraceParent::parse(value.as_bytes()));
        // A poll needs no routing, which would cost as much as half of its look at the wallet.
        let polled = plain_poll(&request).filter(|_| !self.cors);
        let router = polled.is_none().then(|| self.router.clone());
        let app = self.app.clone();
        let began = arrived.checked_sub(sending).unwrap_or(arrived);
        let ident = app.telemetry.identify(trace);
        let answer = async move {
            // Dropped before its end, and within the request's own scope, it tells that the client has gone.
            let mut asked = Asked {
                app: &app,
                route,
                arrived,
                began,
                trace,
                ident,
                is_answered: false,
            };
            let request = request.map(TimedBody::wrap);
            let response = match (router, polled) {
                (Some(router), _) => {
                    let Ok(response) = router.oneshot(request).await;
                    response
                }
                (None, hunt) => poll::polled(&app, &hunt.unwrap_or_default(), request)
                    .await
                    .into_response(),
            };
            asked.is_answered = true;
            let parts = asked.parts();
            asked.tell(response.status().as_u16(), parts);
            finish(&app, response, route, (began, parts), (trace, ident))
        };
        let waits = Waits {
            is_traced: ident.is_traced,
            ..Waits::default()
        };
        Watched {
            answer: Box::pin(WAITS.scope(waits, answer)),
            route,
        }
    }
}

/// The status that stands for an answer which its client did not wait for, after nginx.
const CLIENT_GONE: u16 = 499;

tokio::task_local! {
    /// What the front answers in place of the request that is being dropped.
    static GIVEN_UP: u16;
}

/// The status of a request that is dropped without an answer of its own.
fn status_of_dropped() -> u16 {
    if std::thread::panicking() {
        return 500;
    }
    GIVEN_UP.try_with(|status| *status).unwrap_or(CLIENT_GONE)
}

/// A request that is being worked on.
struct Asked<'a> {
    app: &'a App,
    route: Route,
    arrived: Instant,
    /// When its first byte had been read.
    began: Instant,
    trace: Option<TraceParent>,
    ident: Ident,
    is_answered: bool,
}

impl Asked<'_> {
    /// What it has waited for up to now, but for what its client wished to wait.
    fn parts(&self) -> Parts {
        let now = Instant::now();
        let (store, held, body) = WAITS
            .try_with(|waits| (waits.store.get(), waits.held.get(), waits.client.get()))
            .unwrap_or_default();
        let took = now
            .saturating_duration_since(self.arrived)
            .saturating_sub(held + body);
        Parts {
            client: self.arrived.saturating_duration_since(self.began) + body,
            store,
            app: took.saturating_sub(store),
            ..Parts::default()
        }
    }
}

impl Asked<'_> {
    /// Logs and traces it.
    fn tell(&self, status: u16, parts: Parts) {
        let children = WAITS
            .try_with(|waits| waits.children.take())
            .unwrap_or_default();
        let answered = Answered {
            route: self.route.as_str(),
            place: self.route as usize,
            status,
            began: self.began,
            parts,
            children: &children,
        };
        self.app.telemetry.note(&self.ident, &answered);
    }
}

impl Drop for Asked<'_> {
    /// Who gives up after two seconds has waited two seconds: left out, an outage would look like silence.
    fn drop(&mut self) {
        if !self.is_answered {
            let parts = self.parts();
            let status = status_of_dropped();
            let about = (self.route.as_str(), status);
            self.app
                .metrics
                .request(self.route, status, parts.app + parts.store);
            self.app
                .sla
                .note(Cause::App, about, self.began, parts, self.trace);
            self.tell(status, parts);
        }
    }
}

/// Adds what every answer carries, and counts it. The parts are without what the client wished to wait.
fn finish(
    app: &App,
    mut response: Response,
    route: Route,
    (began, parts): (Instant, Parts),
    (trace, ident): (Option<TraceParent>, Ident),
) -> Response {
    let status = response.status();
    if status.is_client_error() && !is_problem(&response) {
        // From axum itself: a path that is not UTF-8, say.
        response = Problem::new(status.as_u16(), "bad_request", "the request cannot be read")
            .into_response();
    }
    let status = status.as_u16();
    app.metrics.request(route, status, parts.app + parts.store);
    let about = (route.as_str(), status);
    app.sla.note(Cause::App, about, began, parts, trace);
    if route == Route::Poll && status >= 400 {
        // Also a client that is refused is told when to come again.
        let next_poll_ms = app.hot().next_poll_ms(&app.load);
        let next = HeaderValue::from(next_poll_ms);
        response.headers_mut().insert(fields::NEXT_POLL_MS, next);
    }
    let mut timing = Vec::with_capacity(64);
    timing.extend_from_slice(b"app;dur=");
    poll::write_ms(&mut timing, parts.app);
    for (name, took) in [("store", parts.store), ("client", parts.client)] {
        if !took.is_zero() {
            timing.extend_from_slice(b", ");
            timing.extend_from_slice(name.as_bytes());
            timing.extend_from_slice(b";dur=");
            poll::write_ms(&mut timing, took);
        }
    }
    let headers = response.headers_mut();
    if let Ok(timing) = HeaderValue::from_maybe_shared(Bytes::from(timing)) {
        headers.insert(fields::SERVER_TIMING, timing);
    }
    headers.insert(fields::INSTANCE_ID, app.instance_id.clone());
    if let Ok(id) = HeaderValue::from_maybe_shared(Bytes::from(ident.to_string())) {
        headers.insert(fields::REQUEST_ID, id);
    }
    response
}

fn is_problem(response: &Response) -> bool {
    response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == PROBLEM_JSON)
        || response.status() == StatusCode::NOT_MODIFIED
}

/// A body whose reader's waiting for the client is noted in [`WAITS`].
struct TimedBody {
    body: front::Body,
    since: Option<Instant>,
}

impl TimedBody {
    /// A body that is all there needs no watching.
    fn wrap(body: front::Body) -> Body {
        if body.is_end_stream() {
            Body::empty()
        } else {
            Body::new(Self { body, since: None })
        }
    }

    fn note_wait(&mut self) {
        if let Some(since) = self.since.take() {
            let _ = WAITS.try_with(|waits| waits.client.set(waits.client.get() + since.elapsed()));
        }
    }
}

impl Drop for TimedBody {
    /// A request that is given up in the middle of its body has waited for its client.
    fn drop(&mut self) {
        self.note_wait();
    }
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() {
            self.since.get_or_insert_with(Instant::now);
        } else {
            self.note_wait();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A future whose turns are timed: one that holds the event loop is logged with its name.
pub struct Watched {
    answer: Pin<Box<dyn Future<Output = Response> + Send>>,
    route: Route,
}

impl Future for Watched {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let began = Instant::now();
        let polled = self.answer.as_mut().poll(cx);
        let took = began.elapsed();
        if took > SLOW_TURN {
            let turn_ms = took.as_millis();
            tracing::warn!(
                route = self.route.as_str(),
                turn_ms,
                "a request held the event loop"
            );
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_dropped_has_the_status_that_its_client_is_told() {
        struct Asked<'a>(&'a std::cell::Cell<u16>);
        impl Drop for Asked<'_> {
            fn drop(&mut self) {
                self.0.set(status_of_dropped());
            }
        }
        let status = std::cell::Cell::new(0);
        drop(Asked(&status));
        assert_eq!(status.get(), CLIENT_GONE);
        GIVEN_UP.sync_scope(503, || drop(Asked(&status)));
        assert_eq!(status.get(), 503);
        let panics = std::panic::AssertUnwindSafe(|| {
            let _asked = Asked(&status);
            panic!("on purpose")
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(status.get(), 500);
    }

    #[test]
    fn every_route_has_its_name() {
        for (method, path, route) in [
            ("GET", "/treasure/h", Route::Poll),
            ("POST", "/treasure/h", Route::Other),
            ("POST", "/treasure/h/finds", Route::Find),
            ("GET", "/treasure/h/history", Route::History),
            ("POST", "/heartbeat", Route::Heartbeat),
            ("GET", "/health/ready", Route::Health),
            ("POST", "/token", Route::Token),
            ("DELETE", "/players/p", Route::Erase),
            ("GET", "/hunts", Route::Hunts),
            ("GET", "/hunts/h", Route::Catalogue),
            ("PUT", "/hunts/h", Route::PutHunt),
            ("POST", "/hunts/h/close", Route::LifeStep),
            ("POST", "/hunts/h/finds", Route::BulkFinds),
            ("POST", "/hunts/h/players/p/adjust", Route::Adjust),
            ("POST", "/hunts/h/reinstate", Route::Reinstate),
            ("GET", "/hunts/h/export", Route::Export),
            ("GET", "/", Route::Other),
            ("GET", "/treasure/h/x/y", Route::Other),
        ] {
            assert_eq!(route_of(method, path), route, "{method} {path}");
        }
    }
}
