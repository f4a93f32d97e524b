//! The operations listener: metrics and health, on an address of its own.

use super::app::App;
use super::backend::{method_not_allowed, not_found};
use super::health;
use super::json::off_loop;
use crate::front;
use crate::metrics::Gauges;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header;
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
pub fn backend(app: Arc<App>, gauges: ReadGauges) -> front::ServiceBackend<Router> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health_of))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Ops { app, gauges });
    front::ServiceBackend(router)
}

async fn metrics(State(ops): State<Ops>) -> Response {
    let hunts = ops.app.store.hunts().await.unwrap_or_default();
    let gauges = (ops.gauges)();
    // Some thousand lines, and more with every hunt: not on the event loop.
    match off_loop(move || ops.app.metrics.text(&hunts, gauges)).await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(problem) => problem.into_response(),
    }
}

async fn health_of(State(ops): State<Ops>) -> Response {
    health::answer(&ops.app, true)
}
