//! Health of this process. The store's state is in the body, not in the status.

use super::app::App;
use super::openapi::HealthAnswer;
use super::players::no_store;
use crate::store::Health;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use std::sync::Arc;

pub(super) fn answer(app: &App, ready: bool) -> Response {
    let body = HealthAnswer {
        status: if app.is_draining() { "draining" } else { "ok" },
        store: match app.store.health() {
            Health::Up => "up",
            Health::Full => "full",
            Health::Recovering => "recovering",
            Health::Down(_) => "down",
        },
        instance: app.instance_id.to_str().unwrap_or_default().to_owned(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let status = if ready && app.is_draining() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    no_store((status, Json(body)).into_response())
}

/// Whether to send requests here.
#[utoipa::path(get, path = "/health", tag = "health", operation_id = "health",
    responses((status = 200, body = HealthAnswer), (status = 503, description = "Draining", body = HealthAnswer)))]
pub async fn health(State(app): State<Arc<App>>) -> Response {
    answer(&app, true)
}

/// Whether the process runs.
#[utoipa::path(get, path = "/health/live", tag = "health", operation_id = "live",
    responses((status = 200, body = HealthAnswer)))]
pub async fn live(State(app): State<Arc<App>>) -> Response {
    answer(&app, false)
}

/// Whether to send requests here.
#[utoipa::path(get, path = "/health/ready", tag = "health", operation_id = "ready",
    responses((status = 200, body = HealthAnswer), (status = 503, description = "Draining", body = HealthAnswer)))]
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    answer(&app, true)
}
