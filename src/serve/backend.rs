//! What stands behind the front of `trove serve`.

use super::app::{App, WAITS, Waits};
use super::problem::{PROBLEM_JSON, Problem};
use super::{bulk, health, hunts, players, poll};
use crate::front::{self, Answer, Backend, Head, Origin};
use crate::metrics::Route;
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower::ServiceExt;
use tower_http::cors::{AllowOrigin, CorsLayer};

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

/// Every public route.
fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/treasure/{hunt}", get(poll::poll))
        .route("/treasure/{hunt}/finds", post(players::find))
        .route("/treasure/{hunt}/history", get(players::history))
        .route("/heartbeat", post(players::heartbeat))
        .route("/token", post(players::token))
        .route("/players/{player}", delete(players::erase))
        .route("/hunts", get(hunts::list))
        .route("/hunts/{hunt}", get(hunts::catalogue).put(hunts::put))
        .route("/hunts/{hunt}/open", post(hunts::open))
        .route("/hunts/{hunt}/close", post(hunts::close))
        .route("/hunts/{hunt}/archive", post(hunts::archive))
        .route("/hunts/{hunt}/finds", post(bulk::record))
        .route(
            "/hunts/{hunt}/players/{player}/adjust",
            post(players::adjust),
        )
        .route("/hunts/{hunt}/reinstate", post(hunts::reinstate))
        .route("/hunts/{hunt}/export", get(hunts::export))
        .route("/health", get(health::health))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

pub(super) async fn not_found() -> Problem {
    Problem::new(404, "not_found", "there is nothing at this path")
}

pub(super) async fn method_not_allowed() -> Problem {
    Problem::new(405, "method_not_allowed", "this path takes other methods")
}

fn cors_layer(origins: &[String]) -> CorsLayer {
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok()))
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            header::IF_NONE_MATCH,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static("prefer"),
        ])
        .expose_headers([
            header::ETAG,
            header::RETRY_AFTER,
            HeaderName::from_static("server-timing"),
            HeaderName::from_static("trove-next-poll-ms"),
            HeaderName::from_static("trove-stale"),
            HeaderName::from_static("x-instance-id"),
        ])
        .max_age(Duration::from_secs(3_600))
}

/// Which route a request takes, for the metrics and for the size of its body.
fn route_of(method: &str, path: &str) -> Route {
    let mut parts = path.split('/').skip(1);
    let parts =
        [parts.next(), parts.next(), parts.next(), parts.next()].map(Option::unwrap_or_default);
    match (method, parts) {
        ("GET" | "HEAD", ["treasure", _, "", ""]) => Route::Poll,
        ("POST", ["treasure", _, "finds", ""]) => Route::Find,
        ("GET" | "HEAD", ["treasure", _, "history", ""]) => Route::History,
        ("POST", ["heartbeat", "", ..]) => Route::Heartbeat,
        (_, ["health", ..]) => Route::Health,
        ("POST", ["token", "", ..]) => Route::Token,
        ("DELETE", ["players", ..]) => Route::Erase,
        ("GET" | "HEAD", ["hunts", "", ..]) => Route::Hunts,
        ("GET" | "HEAD", ["hunts", _, "", ""]) => Route::Catalogue,
        ("PUT", ["hunts", _, "", ""]) => Route::PutHunt,
        ("POST", ["hunts", _, "open" | "close" | "archive", ""]) => Route::LifeStep,
        ("POST", ["hunts", _, "finds", ""]) => Route::BulkFinds,
        ("POST", ["hunts", _, "players", _]) => Route::Adjust,
        ("POST", ["hunts", _, "reinstate", ""]) => Route::Reinstate,
        ("GET" | "HEAD", ["hunts", _, "export", ""]) => Route::Export,
        _ => Route::Other,
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

    fn call(&self, request: Request<front::Body>) -> Self::Future {
        let route = route_of(request.method().as_str(), request.uri().path());
        let arrived = request
            .extensions()
            .get::<Origin>()
            .map_or_else(Instant::now, |origin| origin.arrived);
        let traceparent = traceparent(request.headers());
        let router = self.router.clone();
        let app = self.app.clone();
        let answer = async move {
            let Ok(response) = router.oneshot(request.map(Body::new)).await;
            let (store, held) = WAITS.with(|waits| (waits.store.get(), waits.held.get()));
            let took = arrived.elapsed().saturating_sub(held);
            finish(&app, response, route, took, store, traceparent.as_deref())
        };
        Watched {
            answer: Box::pin(WAITS.scope(Waits::default(), answer)),
            route,
        }
    }
}

/// Adds what every answer carries, and counts it. `took` is without what the client wished to wait.
fn finish(
    app: &App,
    mut response: Response,
    route: Route,
    took: Duration,
    store: Duration,
    traceparent: Option<&str>,
) -> Response {
    let status = response.status();
    if status.is_client_error() && !is_problem(&response) {
        // From axum itself: a path that is not UTF-8, say.
        response = Problem::new(status.as_u16(), "bad_request", "the request cannot be read")
            .into_response();
    }
    app.metrics.request(route, status.as_u16(), took, store);
    if took >= crate::metrics::SLOW {
        let (took_ms, store_ms) = (took.as_millis(), store.as_millis());
        tracing::warn!(
            route = route.as_str(),
            took_ms,
            store_ms,
            traceparent,
            "a slow request"
        );
    }
    if route == Route::Poll && status.as_u16() >= 400 {
        // Also a client that is refused is told when to come again.
        let next_poll_ms = app.hot().next_poll_ms(&app.load);
        let fields = response.headers_mut();
        fields.insert("trove-next-poll-ms", HeaderValue::from(next_poll_ms));
    }
    let mut timing = Vec::with_capacity(48);
    timing.extend_from_slice(b"app;dur=");
    poll::write_ms(&mut timing, took.saturating_sub(store));
    if !store.is_zero() {
        timing.extend_from_slice(b", store;dur=");
        poll::write_ms(&mut timing, store);
    }
    let fields = response.headers_mut();
    if let Ok(timing) = HeaderValue::from_maybe_shared(bytes::Bytes::from(timing)) {
        fields.insert("server-timing", timing);
    }
    fields.insert("x-instance-id", app.instance_id.clone());
    response
}

fn is_problem(response: &Response) -> bool {
    response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == PROBLEM_JSON)
        || response.status() == StatusCode::NOT_MODIFIED
}

/// The trace that a request belongs to (W3C Trace Context), to be named with what is logged of it.
fn traceparent(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let well_formed =
        value.len() == 55 && value.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    well_formed.then(|| value.to_owned())
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
