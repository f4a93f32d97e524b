//! The page's files, compiled in, and the routes that give them.

use super::live::Live;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderName, HeaderValue, StatusCode, header};
use std::sync::Arc;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const PLOT: &str = include_str!("page/plot.js");

/// The page may load and ask its own listener only, and nobody may frame it: it has a button that switches upstreams.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `/ops`, its files, `/ops/events` and `/ops/state`.
pub fn routes(live: Arc<Live>) -> Router {
    let file =
        |kind: &'static str, text: &'static str| get(move || async move { file(kind, text) });
    Router::new()
        .route("/ops", file("text/html; charset=utf-8", PAGE))
        .route("/ops/page.css", file("text/css; charset=utf-8", STYLE))
        .route(
            "/ops/page.js",
            file("text/javascript; charset=utf-8", SCRIPT),
        )
        .route("/ops/plot.js", file("text/javascript; charset=utf-8", PLOT))
        .route("/ops/state", get(state))
        .route("/ops/events", get(events))
        .with_state(live)
}

/// The fields that keep a browser from taking an answer for something else.
fn guarded(mut response: Response) -> Response {
    let fields = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn file(kind: &'static str, text: &'static str) -> Response {
    // Another version of the program has other files under these names.
    let fields = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    guarded((fields, text).into_response())
}

async fn state(State(live): State<Arc<Live>>) -> Response {
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    match live.state().await {
        Some(json) => guarded((fields, json).into_response()),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn events(State(live): State<Arc<Live>>) -> Response {
    let fields = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies such as nginx would otherwise hold events back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    match live.look_on() {
        Some(body) => guarded((fields, body).into_response()),
        None => {
            let retry = [(header::RETRY_AFTER, "5")];
            (
                StatusCode::SERVICE_UNAVAILABLE,
                retry,
                "too many look on already, or the process is stopping",
            )
                .into_response()
        }
    }
}
