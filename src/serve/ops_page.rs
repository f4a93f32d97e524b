//! What a server shows on the page for operators.

use super::app::App;
use super::catalogue::LiveHunt;
use super::ops::ReadGauges;
use crate::game::entry::{Change, Totals};
use crate::game::hunt::{Hunt, HuntState};
use crate::game::ids::PlayerId;
use crate::game::rules::Decision;
use crate::metrics::{Format, Route};
use crate::ops::exposed::samples;
use crate::ops::finds::LATEST_FINDS_MAX;
use crate::ops::{Gathered, LatestFind, Source, Tracked};
use crate::store::{Health, RecordOutcome};
use serde_json::{Map, Value, json};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most hunts that are shown. Of more, archived ones are left out first.
const HUNTS_SHOWN_MAX: usize = 50;
/// How long the store may take to say what the hunts' sums are; then the last known ones are shown, with their age.
const HUNTS_WAIT: Duration = Duration::from_millis(400);

/// Hunts with their sums, and when the store said so.
#[derive(Clone)]
struct Known {
    hunts: Arc<Vec<(Arc<Hunt>, Totals)>>,
    read: Instant,
}

/// See the module.
pub(super) struct ServeSource {
    app: Arc<App>,
    gauges: ReadGauges,
    known: Mutex<Option<Known>>,
}

/// What is looked at every second.
pub(super) fn tracked(app: &App) -> Tracked {
    let metrics = &app.metrics;
    let of = |routes: &[Route]| {
        let routes = routes.iter();
        routes
            .flat_map(|route| metrics.of_route(*route))
            .cloned()
            .collect::<Vec<_>>()
    };
    let is_other = |route: &&Route| !matches!(route, Route::Poll | Route::Find | Route::Cached);
    let other: Vec<Route> = Route::ALL.iter().filter(is_other).copied().collect();
    let served = Route::ALL.iter().filter(|route| **route != Route::Cached);
    // The last class is 5xx.
    let failed = served.filter_map(|route| metrics.of_route(*route).last().copied());
    Tracked {
        failed: failed.cloned().collect(),
        rates: vec![
            ("polls", of(&[Route::Poll])),
            ("finds", of(&[Route::Find])),
            ("other", of(&other)),
        ],
        latency: of(&[Route::Poll]),
        loop_lag: metrics.lag().clone(),
    }
}

impl ServeSource {
    pub(super) fn new(app: Arc<App>, gauges: ReadGauges) -> Self {
        Self {
            app,
            gauges,
            known: Mutex::default(),
        }
    }

    /// The hunts as the store says, or as it said last.
    async fn hunts(&self) -> Option<Known> {
        let asked = tokio::time::timeout(HUNTS_WAIT, self.app.store.hunts()).await;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(Ok(hunts)) = asked {
            *known = Some(Known {
                hunts: Arc::new(hunts),
                read: Instant::now(),
            });
        }
        known.clone()
    }
}

impl Source for ServeSource {
    fn gather(&self) -> Pin<Box<dyn Future<Output = Gathered> + Send + '_>> {
        Box::pin(async {
            let known = self.hunts().await;
            let (app, gauges) = (self.app.clone(), (self.gauges)());
            let gathered: Gathered = Box::new(move || state(&app, gauges, known.as_ref()));
            gathered
        })
    }
}

/// Keeps those of the finds that were recorded for the first time; outcomes and players are in the same order.
pub(super) fn note_finds(
    app: &App,
    live: &LiveHunt,
    players: &[PlayerId],
    outcomes: &[RecordOutcome],
) {
    let new = players.iter().zip(outcomes).rev();
    let new = new.filter_map(|(player, outcome)| match outcome {
        Ok(Decision::Recorded(entry, _)) => match &entry.change {
            Change::Find(find) => Some((player, find)),
            _ => None,
        },
        _ => None,
    });
    // Of thousands only the latest would be kept.
    let latest: Vec<_> = new.take(LATEST_FINDS_MAX).collect();
    for (player, find) in latest.into_iter().rev() {
        app.latest_finds.push(LatestFind {
            found_at: find.found_at,
            hunt: live.hunt.spec.id.to_string(),
            treasure: find.treasure.as_ref().map(ToString::to_string),
            player: player.to_string(),
            coins: find.coins,
        });
    }
}

fn state(app: &App, gauges: crate::metrics::Gauges, known: Option<&Known>) -> Map<String, Value> {
    let none = Vec::new();
    let hunts = known.map_or(&none, |known| &*known.hunts);
    let text = app.metrics.encode(hunts, gauges, Format::Text);
    let text = String::from_utf8_lossy(&text);
    // The hunts' coins are told with the hunts.
    let samples = samples(&text, |name| name == "trove_coins");
    let state = json!({
        "role": "serve",
        "instance": app.instance_id.to_str().unwrap_or_default(),
        "draining": app.is_draining(),
        "sla": app.sla.snapshot(),
        "samples": samples,
        "store": store(app),
        "hunts": hunts_shown(app, hunts),
        "hunts_in_all": hunts.len(),
        "hunts_age_s": known.map(|known| known.read.elapsed().as_secs()),
        "finds": app.latest_finds.latest(),
    });
    match state {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn store(app: &App) -> Value {
    let (health, why) = match app.store.health() {
        Health::Up => ("up", None),
        Health::Full => ("full", None),
        Health::Recovering => ("recovering", None),
        Health::Down(why) => ("down", Some(why)),
    };
    json!({
        "place": app.settings().store.shown(),
        "health": health,
        "why": why,
        "epoch": app.store.epoch().to_string(),
        "feed_silent_ms": app.store.feed_silent_ms(),
    })
}

fn hunts_shown(app: &App, hunts: &[(Arc<Hunt>, Totals)]) -> Vec<Value> {
    let now = app.store.now();
    let mut by_state: Vec<(HuntState, &(Arc<Hunt>, Totals))> =
        hunts.iter().map(|each| (each.0.state(now), each)).collect();
    let rank = |state: HuntState| match state {
        HuntState::Open => 0,
        HuntState::Closed => 1,
        HuntState::Draft => 2,
        HuntState::Archived => 3,
    };
    by_state.sort_by_key(|(state, (hunt, _))| (rank(*state), hunt.number));
    let shown = by_state.into_iter().take(HUNTS_SHOWN_MAX);
    let shown = shown.map(|(state, (hunt, totals))| {
        json!({
            "id": hunt.spec.id.as_str(),
            "name": hunt.spec.name,
            "state": state.as_str(),
            "treasures": hunt.spec.treasures.len(),
            "recorded": totals.recorded,
            "credited": totals.credited,
            "expired": totals.expired,
            "pending": totals.pending,
            "revoked": totals.revoked,
        })
    });
    shown.collect()
}
