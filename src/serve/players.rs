//! What players do besides polling: find, look back, beat; and what operators do to one player.

use super::app::App;
use super::fields;
use super::json;
use super::openapi::{AdjustAnswer, FindAnswer, HistoryAnswer, ProblemDocument, TokenAnswer};
use super::ops_page::note_finds;
use super::problem::Problem;
use super::waits::StoreWait;
use crate::game::Millis;
use crate::game::entry::{Adjustment, Change, Entry, Find};
use crate::game::ids::{FindId, HuntId, PlayerId, PlayerName, TreasureId};
use crate::game::rules::{AdjustDecision, Decision, NewFind, What};
use crate::metrics::StoreCommand;
use crate::mirror::History;
use crate::store::{Opening, RecordRefusal, Recorded, StoreError};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// The longest idempotency key and reason of an adjustment, in bytes.
pub const TEXT_BYTES_MAX: usize = 256;
/// The most entries of one page of history, and how many there are unless asked otherwise.
pub const HISTORY_MAX: usize = 500;
const HISTORY_DEFAULT: usize = 50;
/// How long a find that the store could not take waits before it is tried again.
const STORE_RETRY: Duration = Duration::from_millis(50);
/// Finds that have waited for the store and are sent to it at a time: all of those that came while it was away at once would
/// hold up everybody's polls.
pub const WAITED_FINDS_MAX: usize = 8;
/// The longest life of a token, in seconds: a year.
pub const TTL_S_MAX: u64 = 365 * 24 * 3_600;
const TTL_S_DEFAULT: u64 = 24 * 3_600;

/// A find as a phone sends it.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FindRequest {
    /// The treasure's id.
    treasure: String,
    /// The find's id, for a repeatable treasure.
    #[serde(default)]
    id: Option<String>,
    /// A code as proof; no treasure of this version asks for one.
    #[serde(default)]
    #[expect(dead_code, reason = "phones may send it; no rule reads it")]
    code: Option<String>,
    /// A place as proof; no treasure of this version asks for one.
    #[serde(default)]
    #[expect(dead_code, reason = "phones may send it; no rule reads it")]
    lat: Option<f64>,
    /// A place as proof; no treasure of this version asks for one.
    #[serde(default)]
    #[expect(dead_code, reason = "phones may send it; no rule reads it")]
    lon: Option<f64>,
}

/// The `Idempotency-Key`, with or without the quotes of a structured field.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(fields::IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let text = value
        .to_str()
        .map_err(|_| Problem::parameter("Idempotency-Key", "must be plain text"))?
        .trim();
    Ok(Some(
        text.strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or(text)
            .to_owned(),
    ))
}

/// The find's id: from the body, or from the key, which must not contradict it.
fn find_id(body: Option<String>, key: Option<String>) -> Result<Option<FindId>, Problem> {
    if let (Some(body), Some(key)) = (&body, &key)
        && body != key
    {
        return Err(Problem::new(
            422,
            "key_contradicts_id",
            "the Idempotency-Key and the body's id differ",
        ));
    }
    let wrong = |error: crate::game::ids::IdError| Problem::malformed("/id", error.to_string());
    body.or(key)
        .map(|id| FindId::new(&id).map_err(wrong))
        .transpose()
}

pub(super) fn find_answer(find: &Find, duplicate: bool) -> FindAnswer {
    FindAnswer {
        find: find.id.to_string(),
        treasure: find.treasure.as_ref().map(ToString::to_string),
        coins: find.coins,
        found_at: find.found_at,
        expires_at: find.expires_at,
        duplicate,
    }
}

/// Records a find.
#[utoipa::path(post, path = "/treasure/{hunt}/finds", tag = "play", operation_id = "record_find",
    request_body = FindRequest,
    params(("hunt" = String, Path, description = "The hunt"),
        ("Idempotency-Key" = Option<String>, Header, description = "May carry the find's id")),
    responses(
        (status = 201, description = "Recorded; the next poll credits it", body = FindAnswer),
        (status = 200, description = "The same find again: the first answer", body = FindAnswer),
        (status = 401, description = "No token, or one that opens nothing", body = ProblemDocument),
        (status = 404, description = "no_such_hunt, no_such_treasure", body = ProblemDocument),
        (status = 409, description = "find_conflict, hunt_not_open", body = ProblemDocument),
        (status = 410, description = "The hunt is archived", body = ProblemDocument),
        (status = 413, description = "body_too_large", body = ProblemDocument),
        (status = 422, description = "malformed_body, id_required, key_contradicts_id, coins_out_of_range", body = ProblemDocument),
        (status = 429, description = "too_many_pending", body = ProblemDocument),
        (status = 503, description = "store_full, feed_full, store_busy, store_timeout, store_unavailable, outcome_unknown, not_durable", body = ProblemDocument),
    ),
    security(("token" = [])))]
pub async fn find(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let caller = app.caller(request.headers()).await?;
    let key = idempotency_key(request.headers())?;
    let settings = app.settings();
    let limits = &settings.limits;
    let asked: FindRequest = json::take(
        request.into_body(),
        limits.body_bytes_max,
        limits.inline_json_bytes_max,
    )
    .await?;
    let id = find_id(asked.id, key)?;
    let treasure = TreasureId::new(&asked.treasure)
        .map_err(|error| Problem::malformed("/treasure", error.to_string()))?;
    let live = app.hunt(&hunt)?;
    let new = NewFind {
        what: What::Treasure(treasure),
        id,
        found_at: None,
    };
    let wait = Duration::from_millis(settings.store.find_wait_ms);
    let (recorded, asked_in) =
        record_within(&app, &live.hunt.spec.id, (caller.player, new), wait).await?;
    app.answered(asked_in, live.hunt.number, recorded.wallets);
    note_finds(&app, &live, &[caller.player], &recorded.outcomes);
    match recorded.outcomes.into_iter().next() {
        Some(Ok(Decision::Duplicate(find))) => Ok(Json(find_answer(&find, true)).into_response()),
        Some(Ok(Decision::Recorded(
            Entry {
                change: Change::Find(find),
                ..
            },
            _,
        ))) => Ok((StatusCode::CREATED, Json(find_answer(&find, false))).into_response()),
        Some(Err(RecordRefusal::Erased(_))) => Err(Problem::unauthorized(
            "erased",
            "the player was erased after this token was issued",
        )),
        Some(Err(refusal)) => Err(refusal.into()),
        _ => Err(Problem::new(
            500,
            "internal_error",
            "the store gave no outcome",
        )),
    }
}

/// Records a find as soon as the store can be reached, within `wait`. A find has an id, so one whose outcome is unknown
/// is asked for again: it is not recorded twice. Says also in which of the mirror's histories it was asked for.
async fn record_within(
    app: &App,
    hunt: &HuntId,
    find: (PlayerId, NewFind),
    wait: Duration,
) -> Result<(Recorded, History), Problem> {
    let deadline = tokio::time::Instant::now() + wait;
    let mut unsafe_so_far = None;
    let mut has_waited = false;
    loop {
        let record = async {
            let _turn = match has_waited {
                false => None,
                true => {
                    let _wait = StoreWait::begin("retry");
                    app.waited_finds.acquire().await.ok()
                }
            };
            // Not before its turn: wallets may be read anew while it waits.
            let asked_in = app.hot().mirror.history();
            let record = app.store.record(hunt, vec![find.clone()]);
            let recorded = app.ask(StoreCommand::Record, record).await;
            recorded.map(|recorded| (recorded, asked_in))
        };
        let asked = tokio::time::timeout_at(deadline, record).await;
        let error = match asked {
            Err(_) => {
                // It did answer, earlier: that too few have the find.
                if let Some(error) = unsafe_so_far {
                    return Err(Problem::from(error));
                }
                return Err(Problem::unavailable(
                    "store_timeout",
                    "the store did not answer in time: send the find again",
                ));
            }
            Ok(Ok(recorded)) => return Ok(recorded),
            Ok(Err(error)) => error,
        };
        let passes = matches!(
            error,
            StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::NotDurable(_)
        );
        if matches!(error, StoreError::NotDurable(_)) {
            unsafe_so_far = Some(error.clone());
        }
        let next = tokio::time::Instant::now() + STORE_RETRY;
        if !passes || next >= deadline || app.is_draining() {
            return Err(error.into());
        }
        has_waited = true;
        // Only because the store cannot be reached: what is waited for is the store all the same.
        let _wait = StoreWait::begin("retry");
        tokio::time::sleep_until(next).await;
        while app.store.is_down_for(find.0) && !app.is_draining() {
            let next = tokio::time::Instant::now() + STORE_RETRY;
            if next >= deadline {
                break;
            }
            tokio::time::sleep_until(next).await;
        }
    }
}

/// Which page of history.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// Entries before this sequence number; the newest if absent.
    before: Option<u64>,
    /// At most so many, up to 500; 50 if absent.
    limit: Option<usize>,
}

/// The player's credits, expiries and adjustments, newest first.
#[utoipa::path(get, path = "/treasure/{hunt}/history", tag = "play", operation_id = "history",
    params(("hunt" = String, Path, description = "The hunt"), Page),
    responses(
        (status = 200, description = "A page; `next_before` leads to the next", body = HistoryAnswer),
        (status = 401, description = "No token, or one that opens nothing", body = ProblemDocument),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 422, description = "bad_parameter", body = ProblemDocument),
    ),
    security(("token" = [])))]
pub async fn history(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    page: Result<Query<Page>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let caller = app.caller(&headers).await?;
    let live = app.playable_hunt(&hunt)?;
    let Query(page) = page.map_err(|error| Problem::parameter("query", error.body_text()))?;
    let limit = page.limit.unwrap_or(HISTORY_DEFAULT);
    if !(1..=HISTORY_MAX).contains(&limit) {
        return Err(Problem::parameter(
            "limit",
            format!("must be 1 to {HISTORY_MAX}"),
        ));
    }
    let before = page.before.unwrap_or(u64::MAX);
    let read = app
        .store
        .history(&live.hunt.spec.id, caller.player, before, limit);
    let entries = app.ask(StoreCommand::History, read).await?;
    let next_before = (entries.len() == limit)
        .then(|| entries.last().map(|entry| entry.seq))
        .flatten();
    let entries = entries.iter().map(super::openapi::history_entry).collect();
    let answer = HistoryAnswer {
        entries,
        next_before: next_before.filter(|seq| *seq > 1),
    };
    Ok(no_store(Json(answer).into_response()))
}

pub(super) fn no_store(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A heartbeat that came past the shim, or without one.
#[utoipa::path(post, path = "/heartbeat", tag = "play", operation_id = "heartbeat",
    responses((status = 204, description = "Always")))]
pub async fn heartbeat() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Whom a token is for.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The player.
    player: String,
    /// Its life in seconds; a day if absent.
    #[serde(default)]
    ttl_s: Option<u64>,
}

/// Signs a player's token.
#[utoipa::path(post, path = "/token", tag = "manage", operation_id = "sign_token",
    request_body = TokenRequest,
    responses(
        (status = 200, description = "The token", body = TokenAnswer),
        (status = 401, description = "token_missing", body = ProblemDocument),
        (status = 403, description = "admin_key_needed", body = ProblemDocument),
        (status = 422, description = "malformed_body", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn token(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    app.admin(request.headers())?;
    let limits = &app.settings().limits;
    let asked: TokenRequest = json::take(
        request.into_body(),
        limits.body_bytes_max,
        limits.inline_json_bytes_max,
    )
    .await?;
    let player = PlayerName::new(&asked.player)
        .map_err(|error| Problem::malformed("/player", error.to_string()))?;
    let ttl_s = asked.ttl_s.unwrap_or(TTL_S_DEFAULT);
    if !(1..=TTL_S_MAX).contains(&ttl_s) {
        return Err(Problem::malformed(
            "/ttl_s",
            format!("must be 1 to {TTL_S_MAX}"),
        ));
    }
    let (token, expires_at) = app.sign(&player, ttl_s);
    Ok(no_store(
        Json(TokenAnswer {
            player: player.to_string(),
            token,
            expires_at,
        })
        .into_response(),
    ))
}

/// A grant or a revocation.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdjustRequest {
    /// Signed coins, not 0.
    coins: i64,
    /// Why; shown in the player's history.
    reason: String,
    /// The idempotency key; `Idempotency-Key` may carry it instead.
    #[serde(default)]
    key: Option<String>,
}

/// Grants or revokes coins.
#[utoipa::path(post, path = "/hunts/{hunt}/players/{player}/adjust", tag = "manage", operation_id = "adjust",
    request_body = AdjustRequest,
    params(("hunt" = String, Path, description = "The hunt"), ("player" = String, Path, description = "The player"),
        ("Idempotency-Key" = Option<String>, Header, description = "May carry the key")),
    responses(
        (status = 200, description = "Adjusted, or the first answer again", body = AdjustAnswer),
        (status = 403, description = "admin_key_needed", body = ProblemDocument),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 409, description = "adjust_conflict, insufficient_coins", body = ProblemDocument),
        (status = 410, description = "hunt_archived, erased", body = ProblemDocument),
        (status = 422, description = "malformed_body, coins_out_of_range", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn adjust(
    State(app): State<Arc<App>>,
    Path((hunt, player)): Path<(String, String)>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let by = app.admin(request.headers())?;
    let header_key = idempotency_key(request.headers())?;
    let limits = &app.settings().limits;
    let asked: AdjustRequest = json::take(
        request.into_body(),
        limits.body_bytes_max,
        limits.inline_json_bytes_max,
    )
    .await?;
    let key = match (asked.key, header_key) {
        (Some(body), Some(header)) if body != header => {
            return Err(Problem::new(
                422,
                "key_contradicts_id",
                "the Idempotency-Key and the body's key differ",
            ));
        }
        (Some(key), _) | (None, Some(key)) => key,
        (None, None) => {
            return Err(Problem::malformed(
                "/key",
                "an adjustment needs an idempotency key",
            ));
        }
    };
    for (pointer, text) in [("/key", &key), ("/reason", &asked.reason)] {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(Problem::malformed(
                pointer,
                format!("must be 1 to {TEXT_BYTES_MAX} bytes without control characters"),
            ));
        }
    }
    let live = app.playable_hunt(&hunt)?;
    let name = PlayerName::new(&player).map_err(|error| Problem::parameter("player", error))?;
    let opening = Opening {
        name,
        issued_at: None,
        known: None,
    };
    let opened = app
        .ask(
            StoreCommand::OpenPlayers,
            app.store.open_players(vec![opening]),
        )
        .await?;
    let player = opened
        .into_iter()
        .next()
        .ok_or_else(|| Problem::new(500, "internal_error", "no player"))??;
    let adjustment = Adjustment {
        coins: asked.coins,
        reason: asked.reason,
        key,
        by: by.to_string(),
    };
    let id: &HuntId = &live.hunt.spec.id;
    let asked_in = app.hot().mirror.history();
    let adjusted = app
        .ask(
            StoreCommand::Adjust,
            app.store.adjust(id, player, adjustment),
        )
        .await?;
    let changed = [(player, adjusted.wallet)];
    app.answered(asked_in, live.hunt.number, changed);
    let (entry, duplicate) = match adjusted.outcome? {
        AdjustDecision::Recorded(entry) => (entry, false),
        AdjustDecision::Duplicate(entry) => (entry, true),
    };
    let answer = AdjustAnswer {
        coins: asked.coins,
        balance: adjusted.wallet.balance,
        seq: entry.seq,
        at: entry.at,
        duplicate,
    };
    Ok(no_store(Json(answer).into_response()))
}

/// Erases a player in all hunts: the person is gone, the sums stay.
#[utoipa::path(delete, path = "/players/{player}", tag = "manage", operation_id = "erase_player",
    params(("player" = String, Path, description = "The player")),
    responses(
        (status = 200, description = "Erased, also when there was nobody", body = super::openapi::EraseAnswer),
        (status = 403, description = "admin_key_needed", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn erase(
    State(app): State<Arc<App>>,
    Path(player): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    app.admin(&headers)?;
    let name = PlayerName::new(&player).map_err(|error| Problem::parameter("player", error))?;
    let erasure = app.ask(StoreCommand::Erase, app.store.erase(&name)).await?;
    // The feed will say so too; but when this is answered, no token may open anything here.
    app.hot().forget_tokens();
    let answer = super::openapi::EraseAnswer {
        existed: erasure.existed,
        revoked: erasure.revoked,
    };
    Ok(no_store(Json(answer).into_response()))
}

/// Milliseconds since the epoch, as queries and bodies give them.
pub(super) fn time_in_range(pointer: &str, time: Millis) -> Result<Millis, Problem> {
    if time > crate::game::coins::COINS_MAX {
        return Err(Problem::malformed(
            pointer,
            "must be milliseconds since the epoch",
        ));
    }
    Ok(time)
}
