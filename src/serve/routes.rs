//! Which request goes where.

use super::app::App;
use super::problem::Problem;
use super::{bulk, fields, health, hunts, players, poll};
use crate::front;
use crate::metrics::Route;
use axum::Router;
use axum::routing::{delete, get, post};
use http::{Method, Request, header};
use std::sync::Arc;
use std::time::Duration;
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Every public route.
pub(super) fn routes(app: Arc<App>) -> Router {
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

/// Lets browsers of other origins in.
pub(super) fn cors_layer(origins: &[String]) -> CorsLayer {
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
            fields::IDEMPOTENCY_KEY,
            fields::PREFER,
        ])
        .expose_headers([
            header::ETAG,
            header::RETRY_AFTER,
            fields::SERVER_TIMING,
            fields::NEXT_POLL_MS,
            fields::STALE,
            fields::INSTANCE_ID,
            fields::REQUEST_ID,
        ])
        .max_age(Duration::from_secs(3_600))
}

/// Which route a request takes, for the metrics and for the size of its body.
pub(super) fn route_of(method: &str, path: &str) -> Route {
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

/// The hunt of a poll, if it is as nearly all are: a GET whose path holds nothing that has to be decoded.
pub(super) fn plain_poll(request: &Request<front::Body>) -> Option<String> {
    let hunt = request.uri().path().strip_prefix("/treasure/")?;
    let is_plain = !hunt.is_empty() && !hunt.contains(['/', '%']);
    (request.method() == Method::GET && is_plain).then(|| hunt.to_owned())
}
