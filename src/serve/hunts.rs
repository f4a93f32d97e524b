//! Hunts: the public catalogue, and what operators do with a whole hunt.

use super::app::{App, EXPORTS_MAX};
use super::beside::off_loop;
use super::catalogue::Selection;
use super::json;
use super::openapi::{HuntAnswer, HuntListed, HuntsAnswer, ProblemDocument, ReinstateAnswer};
use super::players::{no_store, time_in_range};
use super::problem::Problem;
use crate::game::Millis;
use crate::game::document::HuntDocument;
use crate::game::hunt::{Hunt, HuntSpec, LifeStep};
use crate::game::ids::HuntId;
use crate::ledger::ExportFormat;
use crate::metrics::StoreCommand;
use crate::store::{ExportRow, Put, StoreError};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Every hunt with its sums.
#[utoipa::path(get, path = "/hunts", tag = "manage", operation_id = "list_hunts",
    responses(
        (status = 200, description = "Every hunt", body = HuntsAnswer),
        (status = 403, description = "admin_key_needed", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn list(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Problem> {
    app.admin(&headers)?;
    let now = app.store.now();
    let mut hunts = app.store.hunts().await?;
    hunts.sort_by(|(a, _), (b, _)| a.spec.id.cmp(&b.spec.id));
    let hunts = hunts.into_iter().map(|(hunt, totals)| HuntListed {
        id: hunt.spec.id.to_string(),
        name: hunt.spec.name.clone(),
        state: hunt.state(now).as_str(),
        treasures: hunt.spec.treasures.len(),
        recorded: totals.recorded,
        credited: totals.credited,
        expired: totals.expired,
        pending: totals.pending,
        revoked: totals.revoked,
    });
    Ok(no_store(
        Json(HuntsAnswer {
            hunts: hunts.collect(),
        })
        .into_response(),
    ))
}

/// Which part of the catalogue.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CatalogueQuery {
    /// Only these fields of each treasure, and its id: some of `id,name,coins,lat,lon,repeatable`.
    fields: Option<String>,
}

/// The public catalogue.
#[utoipa::path(get, path = "/hunts/{hunt}", tag = "play", operation_id = "catalogue",
    params(("hunt" = String, Path, description = "The hunt"), CatalogueQuery),
    responses(
        (status = 200, description = "The hunt document without private fields, in gzip or brotli where accepted"),
        (status = 304, description = "Not changed"),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 422, description = "bad_parameter", body = ProblemDocument),
    ))]
pub async fn catalogue(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    query: Result<Query<CatalogueQuery>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| Problem::parameter("query", error.body_text()))?;
    let selection = query
        .fields
        .as_deref()
        .map_or(Ok(Selection::ALL), Selection::parse)?;
    let live = app.hunt(&hunt)?;
    let catalogue = live.catalogue(selection).await?;
    let mut response = Response::new(Body::empty());
    let matches = |value: &HeaderValue| {
        value.to_str().is_ok_and(|tags| {
            tags.split(',')
                .any(|tag| matches!(tag.trim(), "*") || tag.trim() == catalogue.etag)
        })
    };
    if headers.get_all(header::IF_NONE_MATCH).iter().any(matches) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        let accepts = |coding| accepts_coding(&headers, coding);
        let (bytes, coding) = if accepts("br") {
            (&catalogue.brotli, Some("br"))
        } else if accepts("gzip") {
            (&catalogue.gzip, Some("gzip"))
        } else {
            (&catalogue.plain, None)
        };
        *response.body_mut() = Body::from(bytes.clone());
        let fields = response.headers_mut();
        fields.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(coding) = coding {
            fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
    }
    let max_age_s = app.settings().poll.catalogue_max_age_s;
    let value =
        |text: String| HeaderValue::try_from(text).expect("digits and letters are a field value");
    let fields = response.headers_mut();
    fields.insert(header::ETAG, value(catalogue.etag.clone()));
    fields.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    fields.insert(
        header::CACHE_CONTROL,
        value(format!("public, max-age={max_age_s}")),
    );
    Ok(response)
}

/// Whether a coding is accepted: named, or by `*`, with a weight that is not 0.
fn accepts_coding(headers: &HeaderMap, coding: &str) -> bool {
    let values = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut by_star = false;
    for item in values.flat_map(|value| value.split(',')) {
        let (name, weight) = item.split_once(';').unwrap_or((item, ""));
        let weight = weight
            .trim()
            .strip_prefix("q=")
            .map_or(Ok(1.0), |q| q.trim().parse::<f32>());
        let accepted = weight.is_ok_and(|weight| weight > 0.0);
        if name.trim().eq_ignore_ascii_case(coding) {
            return accepted;
        }
        by_star |= name.trim() == "*" && accepted;
    }
    by_star
}

fn hunt_answer(app: &App, hunt: &Hunt) -> HuntAnswer {
    HuntAnswer {
        id: hunt.spec.id.to_string(),
        state: hunt.state(app.store.now()).as_str(),
        generation: hunt.generation,
        treasures: hunt.spec.treasures.len(),
    }
}

/// Parses and judges a document.
fn judge(mut bytes: Vec<u8>, id: &str) -> Result<HuntSpec, Problem> {
    let document: HuntDocument = json::parse(&mut bytes)?;
    let spec = document.validate().map_err(|errors| {
        let first = errors.first().cloned();
        let detail = first
            .as_ref()
            .map_or(String::new(), |error| error.detail.clone());
        Problem {
            pointer: first.map(|error| error.pointer),
            errors,
            ..Problem::new(422, "invalid_hunt", detail)
        }
    })?;
    if spec.id.as_str() != id {
        return Err(Problem::malformed("/id", "must be the hunt of the path"));
    }
    Ok(spec)
}

/// Creates or replaces a hunt.
#[utoipa::path(put, path = "/hunts/{hunt}", tag = "manage", operation_id = "put_hunt",
    request_body(content_type = "application/json", description = "The hunt document, up to 8 MiB"),
    params(("hunt" = String, Path, description = "The hunt")),
    responses(
        (status = 201, description = "Created", body = HuntAnswer),
        (status = 200, description = "Replaced", body = HuntAnswer),
        (status = 403, description = "admin_key_needed", body = ProblemDocument),
        (status = 409, description = "treasure_found", body = ProblemDocument),
        (status = 410, description = "The hunt is archived", body = ProblemDocument),
        (status = 413, description = "body_too_large", body = ProblemDocument),
        (status = 422, description = "invalid_hunt, malformed_body; `pointer` and `errors` say where", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn put(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    app.admin(request.headers())?;
    let bytes = json::read(request.into_body(), app.settings().limits.hunt_bytes_max).await?;
    let spec = off_loop(move || judge(bytes, &id)).await??;
    let (hunt, put) = app
        .ask(StoreCommand::PutHunt, app.store.put_hunt(spec))
        .await??;
    app.take_hunt(hunt.clone());
    let status = if put == Put::Created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(no_store(
        (status, Json(hunt_answer(&app, &hunt))).into_response(),
    ))
}

async fn step(
    app: &App,
    headers: &HeaderMap,
    id: &str,
    step: LifeStep,
) -> Result<Response, Problem> {
    app.admin(headers)?;
    let id = HuntId::new(id).map_err(|_| Problem::no_such_hunt())?;
    let hunt = app
        .ask(StoreCommand::StepHunt, app.store.step_hunt(&id, step))
        .await??;
    app.take_hunt(hunt.clone());
    Ok(no_store(Json(hunt_answer(app, &hunt)).into_response()))
}

/// Takes finds from now on.
#[utoipa::path(post, path = "/hunts/{hunt}/open", tag = "manage", operation_id = "open_hunt",
    params(("hunt" = String, Path, description = "The hunt")),
    responses(
        (status = 200, description = "Open, also when it was", body = HuntAnswer),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 409, description = "closes_at_passed", body = ProblemDocument),
        (status = 410, description = "The hunt is archived", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn open(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    step(&app, &headers, &id, LifeStep::Open).await
}

/// Takes no more finds; polls go on.
#[utoipa::path(post, path = "/hunts/{hunt}/close", tag = "manage", operation_id = "close_hunt",
    params(("hunt" = String, Path, description = "The hunt")),
    responses(
        (status = 200, description = "Closed, also when it was", body = HuntAnswer),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 410, description = "The hunt is archived", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn close(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    step(&app, &headers, &id, LifeStep::Close).await
}

/// Ends a closed hunt in which nothing is pending.
#[utoipa::path(post, path = "/hunts/{hunt}/archive", tag = "manage", operation_id = "archive_hunt",
    params(("hunt" = String, Path, description = "The hunt")),
    responses(
        (status = 200, description = "Archived, also when it was", body = HuntAnswer),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 409, description = "hunt_not_closed, hunt_has_pending", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn archive(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    step(&app, &headers, &id, LifeStep::Archive).await
}

/// Which expiries to reinstate: those whose window ended within `from..=to`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReinstateRequest {
    /// Milliseconds since the epoch.
    from: Millis,
    /// Milliseconds since the epoch, inclusive.
    to: Millis,
}

/// Credits what expired by a store outage.
#[utoipa::path(post, path = "/hunts/{hunt}/reinstate", tag = "manage", operation_id = "reinstate",
    request_body = ReinstateRequest,
    params(("hunt" = String, Path, description = "The hunt")),
    responses(
        (status = 200, description = "What was reinstated; asking again reinstates nothing twice", body = ReinstateAnswer),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 410, description = "The hunt is archived", body = ProblemDocument),
        (status = 422, description = "malformed_body", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn reinstate(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    app.admin(request.headers())?;
    let limits = &app.settings().limits;
    let asked: ReinstateRequest = json::take(
        request.into_body(),
        limits.body_bytes_max,
        limits.inline_json_bytes_max,
    )
    .await?;
    let (from, to) = (
        time_in_range("/from", asked.from)?,
        time_in_range("/to", asked.to)?,
    );
    if to < from {
        return Err(Problem::malformed("/to", "must not be before from"));
    }
    let live = app.playable_hunt(&hunt)?;
    let reinstate = app.store.reinstate(&live.hunt.spec.id, from, to);
    let done = app.ask(StoreCommand::Reinstate, reinstate).await?;
    let answer = ReinstateAnswer {
        finds: done.finds,
        coins: done.coins,
        refused: done.refused,
    };
    Ok(no_store(Json(answer).into_response()))
}

/// In which format.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ExportQuery {
    /// `jsonl` (unless asked otherwise) or `csv`.
    format: Option<String>,
}

/// Wallets and the ledger, streamed.
#[utoipa::path(get, path = "/hunts/{hunt}/export", tag = "manage", operation_id = "export",
    params(("hunt" = String, Path, description = "The hunt"), ExportQuery),
    responses(
        (status = 200, description = "One line a wallet, each followed by its entries"),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 422, description = "bad_parameter", body = ProblemDocument),
        (status = 503, description = "too_many_exports", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn export(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    query: Result<Query<ExportQuery>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    app.admin(&headers)?;
    let Query(query) = query.map_err(|error| Problem::parameter("query", error.body_text()))?;
    stream_export(&app, &hunt, query.format.as_deref()).await
}

/// An export as a streamed answer. A failure midway cuts the connection, so that nobody takes a part for the whole.
pub(super) async fn stream_export(
    app: &App,
    hunt: &str,
    format: Option<&str>,
) -> Result<Response, Problem> {
    let format = ExportFormat::parse(format.unwrap_or("jsonl"))
        .ok_or_else(|| Problem::parameter("format", "must be jsonl or csv"))?;
    let live = app.hunt(hunt)?;
    let turn = app.exports.clone().try_acquire_owned().map_err(|_| {
        Problem::unavailable(
            "too_many_exports",
            format!("{EXPORTS_MAX} exports are under way; try again when one is done"),
        )
    })?;
    let rows = app
        .ask(StoreCommand::Export, app.store.export(&live.hunt.spec.id))
        .await?;
    let (sender, receiver) = mpsc::channel(4);
    crate::blocking::spawn(move || {
        write_rows(rows, format, &sender);
        drop(turn);
    });
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let next: Result<Bytes, StoreError> = receiver.recv().await?;
        Some((next.map(Frame::data), receiver))
    });
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let fields = response.headers_mut();
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(format.media_type()),
    );
    Ok(no_store(response))
}

fn write_rows(
    mut rows: mpsc::Receiver<Result<Vec<ExportRow>, StoreError>>,
    format: ExportFormat,
    sender: &mpsc::Sender<Result<Bytes, StoreError>>,
) {
    if sender.blocking_send(Ok(format.header().into())).is_err() {
        return;
    }
    while let Some(batch) = rows.blocking_recv() {
        let bytes = batch.and_then(|batch| {
            let mut out = Vec::with_capacity(batch.len() * 160);
            format
                .write_rows(&mut out, &batch)
                .map_err(|error| StoreError::Damaged(error.to_string()))?;
            Ok(Bytes::from(out))
        });
        if sender.blocking_send(bytes).is_err() {
            // Whoever asked has gone.
            return;
        }
    }
}
