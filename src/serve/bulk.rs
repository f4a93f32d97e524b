//! Bulk finds, from a game's back end: a JSON array or one find a line, each with an outcome of its own.

use super::app::App;
use super::beside::off_loop;
use super::json;
use super::openapi::{BulkAnswer, BulkOutcome, ProblemDocument, expiry_reason};
use super::ops_page::note_finds;
use super::players::no_store;
use super::problem::Problem;
use crate::game::Millis;
use crate::game::coins::COINS_MAX;
use crate::game::entry::{Change, Entry};
use crate::game::ids::{FindId, PlayerId, PlayerName, TreasureId};
use crate::game::rules::{Decision, NewFind, What};
use crate::metrics::StoreCommand;
use crate::store::{Opening, RecordOutcome, RecordRefusal};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::Request;
use serde::Deserialize;
use std::sync::Arc;

/// Finds recorded in one step of the store, so that other players' work comes in between, and polls: 500 held the event loop
/// for 0.8 ms.
const STEP: usize = 250;

/// A find as a back end sends it.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkFind {
    /// The find's id; needed but for a treasure that can be found once.
    #[serde(default)]
    id: Option<String>,
    /// Who found it.
    player: String,
    /// The treasure, or `coins`.
    #[serde(default)]
    treasure: Option<String>,
    /// Coins without a treasure.
    #[serde(default)]
    coins: Option<u64>,
    /// When it was found; now if absent.
    #[serde(default)]
    found_at: Option<Millis>,
}

type Judged = Result<(PlayerName, NewFind), Problem>;

/// One find, judged by its shape alone.
fn judge(find: BulkFind) -> Judged {
    let wrong = |pointer: &str, error: crate::game::ids::IdError| {
        Problem::malformed(pointer, error.to_string())
    };
    let player = PlayerName::new(&find.player).map_err(|error| wrong("/player", error))?;
    let id = find
        .id
        .map(|id| FindId::new(&id).map_err(|error| wrong("/id", error)))
        .transpose()?;
    let what = match (find.treasure, find.coins) {
        (Some(treasure), None) => {
            What::Treasure(TreasureId::new(&treasure).map_err(|error| wrong("/treasure", error))?)
        }
        (None, Some(coins)) if coins <= COINS_MAX => What::Coins(coins),
        (None, Some(_)) => {
            return Err(Problem::new(
                422,
                "coins_out_of_range",
                "coins must be 0 to 2^53 - 1",
            ));
        }
        _ => {
            return Err(Problem::malformed(
                "",
                "a find has either a treasure or coins",
            ));
        }
    };
    if find.found_at.is_some_and(|time| time > COINS_MAX) {
        return Err(Problem::malformed(
            "/found_at",
            "must be milliseconds since the epoch",
        ));
    }
    Ok((
        player,
        NewFind {
            what,
            id,
            found_at: find.found_at,
        },
    ))
}

/// Takes a body apart. A malformed array is refused whole, for nobody can say where its finds end; a malformed line or
/// find is refused alone.
fn parse(mut bytes: Vec<u8>, finds_max: usize) -> Result<Vec<Judged>, Problem> {
    let too_many = || {
        Problem::new(
            413,
            "too_many_finds",
            format!("at most {finds_max} finds are taken at once"),
        )
    };
    let is_array = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
    let judged: Vec<Judged> = if is_array {
        let raw: Vec<&serde_json::value::RawValue> =
            serde_json::from_slice(&bytes).map_err(|error| {
                Problem::malformed("", format!("the body is not a JSON array: {error}"))
            })?;
        if raw.len() > finds_max {
            return Err(too_many());
        }
        raw.into_iter()
            .map(|raw| json::parse(&mut raw.get().as_bytes().to_vec()).and_then(judge))
            .collect()
    } else {
        let lines = bytes
            .split_mut(|b| *b == b'\n')
            .filter(|line| !line.trim_ascii().is_empty());
        let judged: Vec<Judged> = lines
            .take(finds_max + 1)
            .map(|line| json::parse(line).and_then(judge))
            .collect();
        if judged.len() > finds_max {
            return Err(too_many());
        }
        judged
    };
    if judged.is_empty() {
        return Err(Problem::malformed("", "the body holds no finds"));
    }
    Ok(judged)
}

/// Records up to 10,000 finds, from a JSON array or from NDJSON. Sending the same body again records nothing twice.
#[utoipa::path(post, path = "/hunts/{hunt}/finds", tag = "manage", operation_id = "record_finds",
    request_body = Vec<BulkFind>,
    params(("hunt" = String, Path, description = "The hunt")),
    responses(
        (status = 200, description = "An outcome for each", body = BulkAnswer),
        (status = 403, description = "admin_key_needed", body = ProblemDocument),
        (status = 404, description = "no_such_hunt", body = ProblemDocument),
        (status = 410, description = "The hunt is archived", body = ProblemDocument),
        (status = 413, description = "body_too_large, too_many_finds", body = ProblemDocument),
        (status = 422, description = "malformed_body: nothing was recorded", body = ProblemDocument),
        (status = 503, description = "The store; send the body again", body = ProblemDocument),
    ),
    security(("admin" = [])))]
pub async fn record(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    app.admin(request.headers())?;
    let settings = app.settings();
    let live = app.playable_hunt(&hunt)?;
    let bytes = json::read(request.into_body(), settings.limits.bulk_bytes_max).await?;
    let finds_max = settings.limits.bulk_finds_max;
    let is_small = bytes.len() <= settings.limits.inline_json_bytes_max;
    let judged = if is_small {
        parse(bytes, finds_max)?
    } else {
        off_loop(move || parse(bytes, finds_max)).await??
    };
    let mut outcomes = Vec::with_capacity(judged.len());
    let mut judged = judged.into_iter();
    loop {
        let step: Vec<Judged> = judged.by_ref().take(STEP).collect();
        if step.is_empty() {
            break;
        }
        record_step(&app, &live, step, &mut outcomes).await?;
    }
    let count = |status: u16| {
        outcomes
            .iter()
            .filter(|outcome| outcome.status == status)
            .count()
    };
    let (recorded, duplicates) = (count(201), count(200));
    let refused = outcomes.len() - recorded - duplicates;
    let answer = BulkAnswer {
        recorded,
        duplicates,
        refused,
        outcomes,
    };
    // Ten thousand outcomes are a megabyte of JSON.
    let body = if is_small {
        Json(answer).into_response()
    } else {
        off_loop(move || Json(answer).into_response()).await?
    };
    Ok(no_store(body))
}

async fn record_step(
    app: &App,
    live: &super::catalogue::LiveHunt,
    step: Vec<Judged>,
    outcomes: &mut Vec<BulkOutcome>,
) -> Result<(), Problem> {
    let mut finds = Vec::with_capacity(step.len());
    let first = outcomes.len();
    for (index, judged) in step.into_iter().enumerate() {
        let outcome = match judged {
            Err(problem) => refused(&problem),
            Ok((name, new)) => {
                finds.push((index, name, new));
                refused(&Problem::new(
                    500,
                    "internal_error",
                    "the store gave no outcome",
                ))
            }
        };
        outcomes.push(outcome);
    }
    let mut at = outcomes.split_off(first);
    // A player who was known from before may have been erased, and come again under another number: asked for once more.
    let mut erased = record_named(app, live, finds, &mut at, true).await?;
    if !erased.is_empty() {
        erased = record_named(app, live, erased, &mut at, false).await?;
    }
    debug_assert!(erased.is_empty(), "the store was asked for all of them");
    outcomes.append(&mut at);
    Ok(())
}

/// Records finds of players by name, each with its place among the outcomes. Gives back those of erased players whose
/// numbers were remembered, which are taken from memory only if `remembering`.
async fn record_named(
    app: &App,
    live: &super::catalogue::LiveHunt,
    named: Vec<(usize, PlayerName, NewFind)>,
    outcomes: &mut [BulkOutcome],
    remembering: bool,
) -> Result<Vec<(usize, PlayerName, NewFind)>, Problem> {
    let players = players_of(app, &named, remembering).await?;
    let mut finds: Vec<(PlayerId, NewFind)> = Vec::with_capacity(named.len());
    let mut asked = Vec::with_capacity(named.len());
    for ((index, name, new), player) in named.into_iter().zip(players) {
        match player {
            Ok((player, remembered)) => {
                asked.push((index, remembered.then(|| (name, new.clone()))));
                finds.push((player, new));
            }
            Err(problem) => outcomes[index] = refused(&problem),
        }
    }
    let asked_in = app.hot().mirror.history();
    let players: Vec<PlayerId> = finds.iter().map(|(player, _)| *player).collect();
    let record = app.store.record(&live.hunt.spec.id, finds);
    let recorded = app.ask(StoreCommand::Record, record).await?;
    note_finds(app, live, &players, &recorded.outcomes);
    app.answered(asked_in, live.hunt.number, recorded.wallets);
    let mut hot = app.hot();
    let mut erased = Vec::new();
    for ((index, remembered), outcome) in asked.into_iter().zip(recorded.outcomes) {
        if let (Err(RecordRefusal::Erased(_)), Some((name, new))) = (&outcome, remembered) {
            hot.known_players.forget(&name);
            erased.push((index, name, new));
        } else {
            outcomes[index] = outcome_of(outcome);
        }
    }
    Ok(erased)
}

/// The number of each find's player, and whether it was remembered; those that are not are asked of the store.
async fn players_of(
    app: &App,
    named: &[(usize, PlayerName, NewFind)],
    remembering: bool,
) -> Result<Vec<Result<(PlayerId, bool), Problem>>, Problem> {
    let epoch = app.store.epoch();
    let (known, forgotten): (Vec<Option<PlayerId>>, u64) = {
        let mut hot = app.hot();
        let known = named
            .iter()
            .map(|(_, name, _)| hot.known_players.get(name, epoch).filter(|_| remembering));
        (known.collect(), hot.forgotten())
    };
    let openings: Vec<Opening> = named
        .iter()
        .zip(&known)
        .filter(|(_, known)| known.is_none())
        .map(|((_, name, _), _)| Opening {
            name: name.clone(),
            issued_at: None,
            known: None,
        })
        .collect();
    let mut opened = if openings.is_empty() {
        Vec::new().into_iter()
    } else {
        app.ask(StoreCommand::OpenPlayers, app.store.open_players(openings))
            .await?
            .into_iter()
    };
    let mut hot = app.hot();
    let is_current = hot.forgotten() == forgotten;
    let player_of = |((_, name, _), known): (&(usize, PlayerName, NewFind), Option<PlayerId>)| {
        if let Some(player) = known {
            return Ok((player, true));
        }
        match opened.next() {
            Some(Ok(player)) => {
                // An erasure since then may be of this player.
                if is_current {
                    hot.known_players.insert(name.clone(), player, epoch);
                }
                Ok((player, false))
            }
            Some(Err(erased)) => Err(erased.into()),
            None => Err(Problem::new(
                500,
                "internal_error",
                "the store opened too few players",
            )),
        }
    };
    Ok(named.iter().zip(known).map(player_of).collect())
}

fn refused(problem: &Problem) -> BulkOutcome {
    BulkOutcome {
        status: problem.status.as_u16(),
        find: None,
        coins: None,
        expires_at: None,
        expired: None,
        code: Some(problem.code),
        detail: Some(problem.detail.clone()),
    }
}

fn outcome_of(outcome: RecordOutcome) -> BulkOutcome {
    let (status, find, expired) = match outcome {
        Ok(Decision::Duplicate(find)) => (200, find, None),
        Ok(Decision::Recorded(
            Entry {
                change: Change::Find(find),
                ..
            },
            expired,
        )) => {
            let reason = match expired.map(|entry| entry.change) {
                Some(Change::Expire(_, reason)) => Some(expiry_reason(reason)),
                _ => None,
            };
            (201, find, reason)
        }
        Ok(Decision::Recorded(..)) => {
            return refused(&Problem::new(500, "internal_error", "no find was recorded"));
        }
        Err(refusal) => return refused(&refusal.into()),
    };
    BulkOutcome {
        status,
        find: Some(find.id.to_string()),
        coins: Some(find.coins),
        expires_at: Some(find.expires_at),
        expired,
        code: None,
        detail: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(body: &str) -> Result<Vec<&'static str>, &'static str> {
        let judged = parse(body.as_bytes().to_vec(), 3).map_err(|problem| problem.code)?;
        Ok(judged
            .into_iter()
            .map(|judged| judged.map_or_else(|problem| problem.code, |_| "ok"))
            .collect())
    }

    #[test]
    fn an_array_and_lines_are_the_same() {
        let find = r#"{"id":"1","player":"p","coins":5}"#;
        assert_eq!(codes(&format!("[{find},{find}]")), Ok(vec!["ok", "ok"]));
        assert_eq!(
            codes(&format!(" \n{find}\r\n\n{find}\n")),
            Ok(vec!["ok", "ok"])
        );
    }

    #[test]
    fn a_bad_find_is_refused_alone_and_a_bad_array_whole() {
        let find = r#"{"id":"1","player":"p","coins":5}"#;
        assert_eq!(
            codes(&format!("{find}\n{{\"player\"\n{find}")),
            Ok(vec!["ok", "malformed_body", "ok"])
        );
        assert_eq!(
            codes(&format!("[{find},{{\"player\":\"a b\",\"coins\":1}}]")),
            Ok(vec!["ok", "malformed_body"])
        );
        assert_eq!(
            codes(&format!("[{find},{{\"player\"]")),
            Err("malformed_body")
        );
        assert_eq!(codes("[]"), Err("malformed_body"));
        assert_eq!(codes(""), Err("malformed_body"));
    }

    #[test]
    fn a_find_has_either_a_treasure_or_coins() {
        let lines = r#"{"id":"1","player":"p"}
            {"id":"1","player":"p","coins":1,"treasure":"t"}
            {"id":"1","player":"p","coins":9007199254740992}"#;
        assert_eq!(
            codes(lines),
            Ok(vec![
                "malformed_body",
                "malformed_body",
                "coins_out_of_range"
            ])
        );
    }

    #[test]
    fn more_finds_than_allowed_are_refused_whole() {
        let find = r#"{"id":"1","player":"p","coins":5}"#;
        assert_eq!(codes(&[find; 4].join("\n")), Err("too_many_finds"));
        assert_eq!(
            codes(&format!("[{}]", [find; 4].join(","))),
            Err("too_many_finds")
        );
    }
}
