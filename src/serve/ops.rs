//! The operations listener: metrics, the verdict on objectives, the page for operators, and health, on an address of its own.

use super::app::App;
use super::beside::off_loop;
use super::health;
use super::problem::Problem;
use super::routes::{method_not_allowed, not_found};
use crate::front;
use crate::metrics::{Format, Gauges};
use crate::ops::{Live, page};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, header};
use std::sync::Arc;

/// Reads what the process counts elsewhere.
pub type ReadGauges = Arc<dyn Fn() -> Gauges + Send + Sync>;

#[derive(Clone)]
struct Ops {
    app: Arc<App>,
    gauges: ReadGauges,
}

/// The routes of the operations listener, as a backend for a front.
#[must_use]
pub fn backend(
    app: Arc<App>,
    gauges: ReadGauges,
    live: Arc<Live>,
) -> front::ServiceBackend<Router> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/sla", get(sla))
        .route("/health", get(health_of))
        .with_state(Ops { app, gauges })
        .merge(page::routes(live))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed);
    front::ServiceBackend(router)
}

async fn metrics(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    let hunts = ops.app.store.hunts().await.unwrap_or_default();
    let gauges = (ops.gauges)();
    let format = Format::of(&headers);
    // Some thousand lines, and more with every hunt: not on the event loop.
    match off_loop(move || ops.app.metrics.encode(&hunts, gauges, format)).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, format.content_type())], bytes).into_response(),
        Err(problem) => problem.into_response(),
    }
}

async fn sla(State(ops): State<Ops>) -> Response {
    let kind = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    match off_loop(move || serde_json::to_vec(&ops.app.sla.snapshot())).await {
        Ok(Ok(json)) => (kind, json).into_response(),
        Ok(Err(error)) => Problem::new(500, "internal_error", error.to_string()).into_response(),
        Err(problem) => problem.into_response(),
    }
}

async fn health_of(State(ops): State<Ops>) -> Response {
    health::answer(&ops.app, true)
}
