//! The shim's operations listener: metrics, the verdict on objectives, health, and what is behind the shim.

use super::backend::{Shim, ShimBackend};
use super::upstreams::SwitchError;
use crate::auth::AdminKeys;
use crate::front::{Front, ServiceBackend};
use crate::metrics::Format;
use crate::ops::{Live, page};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

struct Ops {
    shim: Arc<Shim>,
    front: Arc<Front<ShimBackend>>,
    admins: Option<AdminKeys>,
}

/// The routes of the operations listener, as a backend for a front.
pub(super) fn backend(
    shim: Arc<Shim>,
    front: Arc<Front<ShimBackend>>,
    admins: Option<AdminKeys>,
    live: Arc<Live>,
) -> ServiceBackend<Router> {
    let ops = Arc::new(Ops {
        shim,
        front,
        admins,
    });
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/sla", get(sla))
        .route("/health", get(health))
        .route("/shim/upstreams", get(upstreams))
        .route("/shim/switch", post(switch))
        .with_state(ops)
        .merge(page::routes(live))
        .fallback(|| async { problem(404, "not_found", "there is nothing at this path") })
        .method_not_allowed_fallback(|| async {
            problem(405, "method_not_allowed", "this path takes other methods")
        });
    ServiceBackend(router)
}

fn problem(status: u16, code: &str, detail: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "code": code,
        "detail": detail,
    });
    let mut response = (status, body.to_string()).into_response();
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/problem+json"),
    );
    response
}

fn json_of(status: StatusCode, body: String) -> Response {
    let kind = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, kind, body).into_response()
}

async fn metrics(State(ops): State<Arc<Ops>>, headers: HeaderMap) -> Response {
    let format = Format::of(&headers);
    let shim = ops.shim.clone();
    shim.read_metrics(&ops.front);
    match crate::blocking::spawn(move || shim.metrics.encode(format)).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, format.content_type())], bytes).into_response(),
        Err(_) => problem(500, "internal_error", "the metrics could not be written"),
    }
}

async fn sla(State(ops): State<Arc<Ops>>) -> Response {
    let of = ops.shim.sla.clone();
    match crate::blocking::spawn(move || serde_json::to_string(&of.snapshot())).await {
        Ok(Ok(json)) => json_of(StatusCode::OK, json),
        _ => problem(500, "internal_error", "the verdict could not be written"),
    }
}

async fn health(State(ops): State<Arc<Ops>>) -> Response {
    let (status, body) = ops.shim.health(true);
    json_of(status, body)
}

async fn upstreams(State(ops): State<Arc<Ops>>) -> Response {
    json_of(StatusCode::OK, upstreams_now(&ops.shim).to_string())
}

/// Every group and its instances.
pub(super) fn upstreams_now(shim: &Shim) -> serde_json::Value {
    let upstreams = &shim.upstreams;
    let live = upstreams.live().name();
    let groups: Vec<_> = upstreams
        .groups()
        .iter()
        .map(|group| {
            let instances: Vec<_> = group.instances().iter().map(|one| one.describe()).collect();
            json!({
                "name": group.name(),
                "live": group.name() == live,
                "queued": group.queued(),
                "instances": instances,
            })
        })
        .collect();
    json!({ "live": live, "upstreams": groups })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    group: String,
}

async fn switch(State(ops): State<Arc<Ops>>, fields: HeaderMap, body: Bytes) -> Response {
    let bearer = fields
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim());
    let Some(bearer) = bearer else {
        return problem(
            401,
            "no_admin_key",
            "this needs the admin key as a bearer token",
        );
    };
    let Some(admin) = ops.admins.as_ref().and_then(|admins| admins.name(bearer)) else {
        let detail = match ops.admins {
            Some(_) => "this is not an admin key",
            None => "this shim has no admin key: set TROVE_ADMIN_KEY or auth.admin_keys_file",
        };
        return problem(403, "wrong_admin_key", detail);
    };
    let Ok(Switch { group }) = serde_json::from_slice(&body) else {
        return problem(
            422,
            "malformed_body",
            r#"the body must be {"group":"NAME"}"#,
        );
    };
    match ops.shim.upstreams.switch(&group).await {
        Ok(()) => {
            // What the others' catalogue was need not be what theirs is.
            ops.shim.cache.clear();
            tracing::info!(group, %admin, "switched");
            json_of(StatusCode::OK, json!({ "live": group }).to_string())
        }
        Err(SwitchError::NoSuchGroup) => {
            let known = ops.shim.upstreams.groups().iter();
            let known: Vec<&str> = known.map(|group| group.name()).collect();
            let detail = format!("there is no group {group}; there are {}", known.join(", "));
            problem(404, "no_such_group", &detail)
        }
        Err(SwitchError::Unwell(unwell)) => {
            let unwell: Vec<String> = unwell
                .iter()
                .map(|(address, why)| format!("{address} ({why})"))
                .collect();
            let detail = format!(
                "{group} is not healthy throughout, and nothing was changed: {}",
                unwell.join(", ")
            );
            problem(409, "group_not_healthy", &detail)
        }
    }
}
