//! The shapes of answers, and the OpenAPI document made from them and the routes.

use crate::game::Millis;
use crate::game::entry::{Change, Entry, ExpiryReason};
use serde::Serialize;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

/// A poll's answer. Written by hand in `poll.rs`; described here.
#[derive(Debug, Serialize, ToSchema)]
pub struct PollAnswer {
    /// The hunt.
    pub hunt: String,
    /// The player.
    pub player: String,
    /// Coins owned: the truth. Never add up `credited`.
    pub balance: u64,
    /// Coins of `finds`.
    pub credited: u64,
    /// What this poll collected, and what was credited after the cursor that the client named.
    pub finds: Vec<FindShown>,
    /// What expired, likewise.
    pub expired: Vec<FindExpired>,
    /// Coins that the store has yet to credit.
    pub pending: u64,
    /// `EPOCH.SEQ`: what to name as `since`.
    pub cursor: String,
    /// Milliseconds since the epoch by the store's clock.
    pub server_time: Millis,
    /// When to poll next, in milliseconds.
    pub next_poll_ms: u64,
    /// The cursor named was of another history: the finds of the last window are shown, of a minute at least.
    #[schema(required = false)]
    pub reset: Option<bool>,
    /// More was missed than is shown: use the history.
    #[schema(required = false)]
    pub gap: Option<bool>,
    /// The store is out of reach, or has just failed over and may get back what it lost: the balance may be old.
    #[schema(required = false)]
    pub stale: Option<bool>,
}

/// A find in a poll.
#[derive(Debug, Serialize, ToSchema)]
pub struct FindShown {
    /// The find's id.
    pub id: String,
    /// The treasure; null for coins without one.
    pub treasure: Option<String>,
    /// Its coins.
    pub coins: u64,
    /// When it was found.
    pub found_at: Millis,
}

/// A find that expired, in a poll.
#[derive(Debug, Serialize, ToSchema)]
pub struct FindExpired {
    /// The find's id.
    pub id: String,
    /// The treasure; null for coins without one.
    pub treasure: Option<String>,
    /// Its coins.
    pub coins: u64,
    /// When it was found.
    pub found_at: Millis,
    /// `window` or `store_outage`.
    pub reason: String,
}

/// A find that was recorded.
#[derive(Debug, Serialize, ToSchema)]
pub struct FindAnswer {
    /// Its id.
    pub find: String,
    /// The treasure; null for coins without one.
    pub treasure: Option<String>,
    /// Its coins.
    pub coins: u64,
    /// When it was found.
    pub found_at: Millis,
    /// The last millisecond at which a poll collects it.
    pub expires_at: Millis,
    /// Whether it had been recorded before.
    pub duplicate: bool,
}

/// An entry of a player's history.
#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryEntry {
    /// The sequence number.
    pub seq: u64,
    /// When.
    pub at: Millis,
    /// `find`, `credit`, `expiry`, `reinstatement`, `revocation` or `adjustment`.
    pub kind: &'static str,
    /// Coins; negative for a revocation by an operator.
    pub coins: i64,
    /// The find's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub find: Option<String>,
    /// The treasure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub treasure: Option<String>,
    /// When it was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_at: Option<Millis>,
    /// Why it expired, or why an operator adjusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A page of a player's history.
#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryAnswer {
    /// Newest first.
    pub entries: Vec<HistoryEntry>,
    /// What to name as `before` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
}

/// A token.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenAnswer {
    /// The player.
    pub player: String,
    /// The token.
    pub token: String,
    /// When it expires, in milliseconds since the epoch.
    pub expires_at: Millis,
}

/// An adjustment that was made.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdjustAnswer {
    /// Signed coins.
    pub coins: i64,
    /// The balance now.
    pub balance: u64,
    /// The entry's sequence number.
    pub seq: u64,
    /// When it was made.
    pub at: Millis,
    /// Whether it had been made before.
    pub duplicate: bool,
}

/// A player was erased.
#[derive(Debug, Serialize, ToSchema)]
pub struct EraseAnswer {
    /// Whether there was anybody.
    pub existed: bool,
    /// Pending coins that were revoked.
    pub revoked: u64,
}

/// A hunt's state after a change.
#[derive(Debug, Serialize, ToSchema)]
pub struct HuntAnswer {
    /// The hunt.
    pub id: String,
    /// `draft`, `open`, `closed` or `archived`.
    pub state: &'static str,
    /// Grows with each change.
    pub generation: u64,
    /// How many treasures it has.
    pub treasures: usize,
}

/// A hunt in the list.
#[derive(Debug, Serialize, ToSchema)]
pub struct HuntListed {
    /// The hunt.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `draft`, `open`, `closed` or `archived`.
    pub state: &'static str,
    /// How many treasures it has.
    pub treasures: usize,
    /// Coins recorded.
    pub recorded: u64,
    /// Coins in wallets.
    pub credited: u64,
    /// Coins expired.
    pub expired: u64,
    /// Coins pending.
    pub pending: u64,
    /// Coins revoked.
    pub revoked: u64,
}

/// Every hunt.
#[derive(Debug, Serialize, ToSchema)]
pub struct HuntsAnswer {
    /// In the order of their ids.
    pub hunts: Vec<HuntListed>,
}

/// What became of bulk finds.
#[derive(Debug, Serialize, ToSchema)]
pub struct BulkAnswer {
    /// Finds recorded.
    pub recorded: usize,
    /// Finds that had been recorded before.
    pub duplicates: usize,
    /// Finds refused.
    pub refused: usize,
    /// One a find, in the order of the request.
    pub outcomes: Vec<BulkOutcome>,
}

/// What became of one bulk find.
#[derive(Debug, Serialize, ToSchema)]
pub struct BulkOutcome {
    /// What the find by itself would have been answered: 201, 200, or the problem's status.
    pub status: u16,
    /// The find's id as it is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub find: Option<String>,
    /// Its coins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coins: Option<u64>,
    /// The last millisecond at which a poll collects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    /// Why it was recorded as expired: its window had passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired: Option<&'static str>,
    /// The problem's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The problem in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What was reinstated.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReinstateAnswer {
    /// Finds credited after all.
    pub finds: u64,
    /// Their coins.
    pub coins: u64,
    /// Finds left, because a balance would have left its range.
    pub refused: u64,
}

/// A process's health.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthAnswer {
    /// `ok` or `draining`.
    pub status: &'static str,
    /// `up`, `full`, `recovering` (from a failover) or `down`.
    pub store: &'static str,
    /// This process.
    pub instance: String,
    /// Its version.
    pub version: &'static str,
}

/// RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProblemDocument {
    /// `about:blank`.
    pub r#type: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// What is wrong.
    pub detail: String,
    /// Where in the body: a JSON pointer.
    #[schema(required = false)]
    pub pointer: Option<String>,
}

/// An entry as players see it.
pub(super) fn history_entry(entry: &Entry) -> HistoryEntry {
    let (kind, find, reason) = match &entry.change {
        Change::Find(find) => ("find", find, None),
        Change::Credit(find) => ("credit", find, None),
        Change::Expire(find, reason) => ("expiry", find, Some(expiry_reason(*reason).to_owned())),
        Change::Reinstate(find) => ("reinstatement", find, None),
        Change::Replay(find, replayed) if replayed.reinstates => ("reinstatement", find, None),
        Change::Replay(find, _) => ("credit", find, None),
        Change::Revoke(find) => ("revocation", find, None),
        Change::Adjust(adjustment) => {
            return HistoryEntry {
                seq: entry.seq,
                at: entry.at,
                kind: "adjustment",
                coins: adjustment.coins,
                find: None,
                treasure: None,
                found_at: None,
                reason: Some(adjustment.reason.clone()),
            };
        }
    };
    HistoryEntry {
        seq: entry.seq,
        at: entry.at,
        kind,
        coins: i64::try_from(find.coins).unwrap_or(i64::MAX),
        find: Some(find.id.to_string()),
        treasure: find.treasure.as_ref().map(ToString::to_string),
        found_at: Some(find.found_at),
        reason,
    }
}

/// The word for why a find expired.
pub(super) fn expiry_reason(reason: ExpiryReason) -> &'static str {
    match reason {
        ExpiryReason::Window => "window",
        ExpiryReason::StoreOutage => "store_outage",
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Trove", description = "A real-time treasure-hunt game server. Times are milliseconds since the epoch."),
    paths(
        super::poll::poll,
        super::players::find,
        super::players::history,
        super::players::heartbeat,
        super::players::token,
        super::players::adjust,
        super::players::erase,
        super::hunts::list,
        super::hunts::catalogue,
        super::hunts::put,
        super::hunts::open,
        super::hunts::close,
        super::hunts::archive,
        super::hunts::reinstate,
        super::hunts::export,
        super::bulk::record,
        super::health::health,
        super::health::live,
        super::health::ready,
    ),
    modifiers(&Security)
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = |what: &str, format: &str| {
            let scheme = HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .bearer_format(format);
            SecurityScheme::Http(scheme.description(Some(what)).build())
        };
        components.add_security_scheme("token", bearer("A player's token, HS256", "JWT"));
        components.add_security_scheme("admin", bearer("An admin key", "opaque"));
    }
}

/// The OpenAPI 3.1 document, as JSON.
///
/// # Panics
/// Never: the document consists of strings and numbers.
#[must_use]
pub fn document() -> String {
    Document::openapi()
        .to_pretty_json()
        .expect("strings and numbers serialise")
}
