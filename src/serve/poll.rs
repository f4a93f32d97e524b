//! The poll: what almost every request is.
//!
//! [`now`] answers from memory, straight into the connection's output: a player in memory with nothing to collect and
//! nothing missed. Everything else goes through [`poll`], which loads, credits, looks up and holds. Both write the same
//! answer through [`write_body`].

use super::app::{App, Hot, strip_bearer};
use super::callers::Caller;
use super::catalogue::LiveHunt;
use super::cursor::{Cursor, since};
use super::fields;
use super::missed::{of_window, recent, without_missed};
use super::poll_body::{Facts, Shown, write_body};
use super::problem::Problem;
use super::waits::WAITS;
use super::wallets::{EPOCH_BEFORE, Sighting};
use crate::front::{Answer, Head};
use crate::game::hunt::HuntState;
use crate::metrics::Route;
use crate::metrics::labels::Cause;
use crate::mirror::Key;
use crate::sla::Parts;
use crate::store::StoreError;
use crate::telemetry;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The longest hold (RFC 7240 `Prefer: wait`), in seconds.
pub const WAIT_S_MAX: u64 = 55;

/// Writes milliseconds with microsecond digits.
pub fn write_ms(out: &mut Vec<u8>, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(us / 1_000).as_bytes());
    let rest = us % 1_000;
    out.push(b'.');
    for place in [100, 10, 1] {
        out.push(b'0' + u8::try_from(rest / place % 10).unwrap_or(0));
    }
}

/// Answers a poll from memory, or says that it takes more than that.
pub fn now(app: &App, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
    let Some(hunt) = head.path().strip_prefix("/treasure/") else {
        return false;
    };
    if head.method() != "GET" || head.prefer().is_some() {
        return false;
    }
    let Some(token) = head.authorization().and_then(strip_bearer) else {
        return false;
    };
    let Ok(since) = since(head.query()) else {
        return false;
    };
    let matched = head.if_none_match().and_then(Cursor::from_if_none_match);
    let time = app.store.now();
    let mut hot = app.hot();
    let epoch = app.epoch();
    let forgotten = hot.forgotten();
    let Hot {
        tokens,
        mirror,
        hunts,
        ..
    } = &mut *hot;
    let Some(live) = hunts.get(hunt) else {
        return false;
    };
    if live.hunt.operator == Some(HuntState::Archived) {
        return false;
    }
    let Some(entry) = tokens.get(token.as_bytes(), time) else {
        return false;
    };
    let Some(seen) = entry.slot.as_mut().filter(|seen| seen.as_of == forgotten) else {
        return false;
    };
    let key = Key {
        hunt: live.hunt.number,
        player: seen.player,
    };
    let Some(wallet) = mirror.get_at(key, &mut seen.place) else {
        return false;
    };
    let missed = |cursor: Cursor| {
        cursor.epoch != epoch || !(wallet.shown_seq..=wallet.seq).contains(&cursor.seq)
    };
    if wallet.pending_finds > 0
        || since.or(matched).is_some_and(missed)
        || app.is_stale(key.player)
        || app.is_behind(key.player)
    {
        return false;
    }
    let player = entry.claims.player.clone();
    let hunt = live.hunt.spec.id.clone();
    let next_poll_ms = hot.next_poll_ms(&app.load);
    drop(hot);
    let cursor = Cursor {
        epoch,
        seq: wallet.seq,
    };
    let unchanged = matched == Some(cursor);
    let status = if unchanged { 304 } else { 200 };
    let took = head.arrived().elapsed();
    let facts = Facts {
        hunt: hunt.as_str(),
        player: player.as_str(),
        wallet,
        cursor,
        now: time,
        next_poll_ms,
    };
    answer
        .status(status)
        .block(&app.metrics.poll_fields)
        .field_with("etag", |out| cursor.write_etag(out))
        .field_with("trove-next-poll-ms", |out| {
            out.extend_from_slice(itoa::Buffer::new().format(next_poll_ms).as_bytes());
        })
        .field_with("server-timing", |out| {
            out.extend_from_slice(b"app;dur=");
            write_ms(out, took);
        });
    if unchanged {
        answer.body(b"");
    } else {
        answer.body_with(|out| write_body(out, &facts, &Shown::default()));
    }
    app.metrics.request(Route::Poll, status, took);
    if app.sla.is_slow(took + head.sending()) {
        note_slow(app, head, status, took);
    }
    let telemetry = &app.telemetry;
    let is_due = telemetry.requests.is_due(Route::Poll as usize, status);
    if is_due || telemetry.traces() {
        tell(app, head, status, took, is_due);
    }
    true
}

/// Logs or traces a poll from memory.
#[cold]
fn tell(app: &App, head: &Head<'_>, status: u16, took: Duration, is_due: bool) {
    let answered = telemetry::Answered {
        route: Route::Poll.as_str(),
        place: Route::Poll as usize,
        status,
        began: head
            .arrived()
            .checked_sub(head.sending())
            .unwrap_or_else(|| head.arrived()),
        parts: Parts {
            client: head.sending(),
            app: took,
            ..Parts::default()
        },
        children: &[],
    };
    app.telemetry.note_now(head.trace(), is_due, &answered);
}

/// A poll from memory that was slow nevertheless: its client was slow to send it, or this process stood still.
#[cold]
fn note_slow(app: &App, head: &Head<'_>, status: u16, took: Duration) {
    let parts = Parts {
        client: head.sending(),
        app: took,
        ..Parts::default()
    };
    let began = head.arrived().checked_sub(head.sending());
    let began = began.unwrap_or_else(|| head.arrived());
    let about = (Route::Poll.as_str(), status);
    app.sla.note(Cause::App, about, began, parts, head.trace());
}

/// What a poll asks for.
struct Ask {
    since: Option<Cursor>,
    matched: Option<Cursor>,
    wait: Option<Duration>,
    /// HEAD never credits.
    collect: bool,
}

impl Ask {
    fn read(request: &Request<Body>) -> Result<Self, Problem> {
        let headers = request.headers();
        let collect = request.method() != Method::HEAD;
        Ok(Self {
            since: since(request.uri().query())?,
            matched: headers
                .get(header::IF_NONE_MATCH)
                .and_then(|v| Cursor::from_if_none_match(v.as_bytes())),
            wait: wait(headers).filter(|_| collect),
            collect,
        })
    }

    fn named(&self) -> Option<Cursor> {
        self.since.or(self.matched)
    }
}

/// `Prefer: wait=SECONDS`, among other preferences; more than the longest hold is the longest hold.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers
        .get_all(fields::PREFER)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut preferences = preferences.flat_map(|value| value.split([',', ';']));
    let seconds = preferences.find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait
            .then(|| value.trim().trim_matches('"').parse::<u64>().ok())
            .flatten()
    })?;
    Some(Duration::from_secs(seconds.min(WAIT_S_MAX)))
}

/// Collects what is pending and answers with the balance.
#[utoipa::path(get, path = "/treasure/{hunt}", tag = "play", operation_id = "poll",
    params(
        ("hunt" = String, Path, description = "The hunt"),
        ("since" = Option<String>, Query, description = "The last cursor seen: shows what was credited after it"),
        ("If-None-Match" = Option<String>, Header, description = "The last ETag seen: 304 when there is nothing new"),
        ("Prefer" = Option<String>, Header, description = "wait=SECONDS, up to 55: held until there is news"),
    ),
    responses(
        (status = 200, description = "The balance and what this poll collected", body = super::openapi::PollAnswer),
        (status = 304, description = "Nothing new"),
        (status = 401, description = "No token, or one that opens nothing", body = super::openapi::ProblemDocument),
        (status = 404, description = "no_such_hunt", body = super::openapi::ProblemDocument),
        (status = 410, description = "The hunt is archived", body = super::openapi::ProblemDocument),
        (status = 503, description = "store_unavailable", body = super::openapi::ProblemDocument),
    ),
    security(("token" = [])))]
pub async fn poll(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    polled(&app, &hunt, request).await
}

/// As [`poll`], for a request that needs no routing.
///
/// # Errors
/// As the route's.
pub async fn polled(
    app: &Arc<App>,
    hunt: &str,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let until = app.patience();
    // One that is held has time.
    let (mut caller, is_of_before) = match wait(request.headers()) {
        None => app.caller_of_poll(request.headers(), until).await?,
        Some(_) => (app.caller(request.headers()).await?, false),
    };
    let mut ask = Ask::read(&request)?;
    let live = app.playable_hunt(hunt)?;
    let mut key = Key {
        hunt: live.hunt.number,
        player: caller.player,
    };
    if is_of_before {
        if let Some(mut seen) = app.wallet_of_before(key) {
            ask.collect = false;
            let answer = answer(app, &live, &caller, key, &ask, &mut seen).await?;
            return Ok(answer.response);
        }
        // Nothing of then is left.
        caller = app.caller(request.headers()).await?;
        key.player = caller.player;
    }
    let mut seen = app
        .wallet_now(&live, key, Some(until).filter(|_| ask.wait.is_none()))
        .await?;
    let mut deadline = ask.wait.map(|wait| Instant::now() + wait);
    // News is what the client has not seen; one that names no cursor has seen the wallet as it is now.
    let known = ask.named().unwrap_or(Cursor {
        epoch: seen.epoch,
        seq: seen.wallet.seq,
    });
    loop {
        let answer = answer(app, &live, &caller, key, &ask, &mut seen).await?;
        let current = Cursor {
            epoch: seen.epoch,
            seq: seen.wallet.seq,
        };
        let news = current != known || answer.collected;
        let Some(held_until) = deadline.filter(|_| !news && !app.is_draining()) else {
            return Ok(answer.response);
        };
        if !held(app, key, seen.wallet.seq, held_until).await {
            // Once more, for an answer of now.
            deadline = None;
        }
        // The player may have been erased meanwhile, or the token have run out.
        caller = app.caller(request.headers()).await?;
        seen = app.wallet_now(&live, key, None).await?;
    }
}

/// After how long a held poll looks again for its wallet, while wallets are read anew after a failover.
const STALE_PAUSE: Duration = Duration::from_millis(250);

/// Holds the poll until the wallet changes. Says whether it did.
async fn held(app: &Arc<App>, key: Key, seq: u64, deadline: Instant) -> bool {
    let held = {
        let mut hot = app.hot();
        if hot.mirror.get(key).is_some_and(|wallet| wallet.seq != seq) {
            return true;
        }
        let held = hot.mirror.hold(key);
        if held.is_none() && (hot.mirror.get(key).is_some() || !app.is_stale(key.player)) {
            return false;
        }
        held
    };
    let Some(receiver) = held else {
        // The store has failed over, and the wallet is not in memory anew yet: that is no news, so the poll stays held.
        let began = Instant::now();
        tokio::time::sleep_until(deadline.min(began + STALE_PAUSE).into()).await;
        // Its client wished to wait, so this counts against nobody either.
        let _ = WAITS.try_with(|waits| waits.held.set(waits.held.get() + began.elapsed()));
        return Instant::now() < deadline && !app.is_draining();
    };
    let mut held = Held {
        app,
        key,
        receiver,
        began: Instant::now(),
    };
    let woken = tokio::time::timeout_at(deadline.into(), &mut held.receiver).await;
    matches!(woken, Ok(Ok(()))) && !app.is_draining()
}

/// A poll's place among those that are held, given back also when the client has gone.
struct Held<'a> {
    app: &'a App,
    key: Key,
    receiver: oneshot::Receiver<()>,
    began: Instant,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Closed, it is no longer among those that are to be woken.
        self.receiver.close();
        self.app.hot().mirror.release(self.key);
        let _ = WAITS.try_with(|waits| waits.held.set(waits.held.get() + self.began.elapsed()));
    }
}

/// An answer, and whether it shows anything that was collected.
struct Answered {
    response: Response,
    collected: bool,
}

async fn answer(
    app: &Arc<App>,
    live: &Arc<LiveHunt>,
    caller: &Caller,
    key: Key,
    ask: &Ask,
    seen: &mut Sighting,
) -> Result<Answered, Problem> {
    let settings = app.settings();
    // Of before the credit: a cursor that is of an older epoch than its wallet makes the next poll a reset, no more.
    let Sighting { epoch, unsure, .. } = *seen;
    let wallet = &mut seen.wallet;
    let before = *wallet;
    let mut credited = None;
    if ask.collect && wallet.pending_finds > 0 {
        if app.is_recovering() {
            // While lost coins may still come back, what the store says now is not what it will say: the answer is from
            // memory, and the credit goes on.
            let (app, live) = (app.clone(), live.clone());
            tokio::spawn(async move { drop(app.credit(&live, key).await) });
        } else {
            let wait = Duration::from_millis(settings.poll.credit_wait_ms);
            // Past the wait, or when the store refuses, the answer is what is in memory, with what is pending; the credit
            // goes on, or the next poll tries again.
            if let Ok(Ok(done)) = tokio::time::timeout(wait, app.credit(live, key)).await {
                *wallet = done.wallet;
                credited = Some(done);
            }
        }
    }
    // Others may have credited between the wallet that was looked at and this credit: up to here the wallet has entries
    // that neither knows of.
    let unknown_to = credited.as_ref().map_or(0, |credited| {
        let first = credited.entries.first();
        let known_from = first.map_or(credited.wallet.seq, |entry| entry.seq - 1);
        if known_from > before.seq {
            known_from
        } else {
            0
        }
    });
    let mut cursor = Cursor {
        epoch,
        seq: wallet.seq,
    };
    let mut shown = Shown {
        stale: app.is_stale(key.player) || unsure,
        ..Shown::default()
    };
    let latest = settings.poll.recent_max;
    let entries;
    match ask.named() {
        // What was missed is asked for with what is known by then.
        Some(named) if epoch == EPOCH_BEFORE => {
            let error = StoreError::Unavailable("the wallet is of before".into());
            without_missed(error, named, &mut cursor, &mut shown)?;
        }
        Some(named) if named.epoch != epoch || named.seq > wallet.seq => {
            match of_window(app, live, key, wallet.seq, latest).await {
                Ok(missed) => {
                    shown.reset = true;
                    entries = missed;
                    shown.take(entries.iter());
                }
                Err(error) => without_missed(error, named, &mut cursor, &mut shown)?,
            }
        }
        Some(named) if named.seq < before.shown_seq || named.seq < unknown_to => {
            match recent(app, live, key, named.seq..wallet.seq, latest).await {
                Ok((missed, gap)) => {
                    shown.gap = gap;
                    entries = missed;
                    shown.take(entries.iter());
                }
                Err(error) => without_missed(error, named, &mut cursor, &mut shown)?,
            }
        }
        named => {
            let after = named.map_or(0, |named| named.seq);
            let collected = credited
                .as_ref()
                .map_or(&[][..], |credited| &credited.entries);
            shown.take(collected.iter().filter(|entry| entry.seq > after));
        }
    }
    let unchanged = ask.matched == Some(cursor) && wallet.pending_finds == 0 && !shown.stale;
    let next_poll_ms = app.hot().next_poll_ms(&app.load);
    let facts = Facts {
        hunt: live.hunt.spec.id.as_str(),
        player: caller.name.as_str(),
        wallet: *wallet,
        cursor,
        now: app.store.now(),
        next_poll_ms,
    };
    let collected = !shown.credits.is_empty() || !shown.expiries.is_empty() || shown.reset;
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    let mut etag = Vec::with_capacity(32);
    cursor.write_etag(&mut etag);
    headers.insert(
        header::ETAG,
        HeaderValue::from_maybe_shared(bytes::Bytes::from(etag)).map_err(internal)?,
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(fields::NEXT_POLL_MS, HeaderValue::from(next_poll_ms));
    if shown.stale {
        headers.insert(fields::STALE, HeaderValue::from_static("true"));
    }
    if let Some(wait) = ask.wait {
        headers.insert(
            fields::PREFERENCE_APPLIED,
            HeaderValue::try_from(format!("wait={}", wait.as_secs())).map_err(internal)?,
        );
    }
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let mut body = Vec::with_capacity(512);
        write_body(&mut body, &facts, &shown);
        *response.body_mut() = Body::from(body);
    }
    Ok(Answered {
        response,
        collected,
    })
}

fn internal(error: impl std::fmt::Display) -> Problem {
    Problem::new(500, "internal_error", error.to_string())
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod tests;
