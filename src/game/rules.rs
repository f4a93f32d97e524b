//! What a request to record a find comes to: a new find, a repeat of one, or a refusal (rules 1, 5, 9, 10).

use super::Millis;
use super::coins::COINS_MAX;
use super::entry::{Adjustment, Change, Entry, Find, Totals};
use super::hunt::{Hunt, HuntState};
use super::ids::{FindId, TreasureId};
use super::wallet::{Outages, Wallet, WalletError};

/// How far `found_at` of a bulk find may lie ahead of the store's clock, in milliseconds. Up to this it is taken as now.
pub const FOUND_AT_AHEAD_MS_MAX: u64 = 1_000;

/// Limits of the rules, from the settings.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most pending finds of one wallet; one poll settles them all.
    pub pending_finds_max: u64,
    /// How long the id of a find of a repeatable treasure is remembered, in milliseconds.
    pub find_id_ttl_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pending_finds_max: 1_000,
            find_id_ttl_ms: 24 * 3_600_000,
        }
    }
}

/// A find as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFind {
    /// What was found, or how many coins without a treasure.
    pub what: What,
    /// The client's id; ignored for a treasure that can be found once.
    pub id: Option<FindId>,
    /// When it was found; only a back end may say so. Now if absent.
    pub found_at: Option<Millis>,
}

/// What a find is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A treasure of the hunt.
    Treasure(TreasureId),
    /// Coins without a treasure; only a back end may say so.
    Coins(u64),
}

/// The namespace and name under which a find is remembered (rule 5).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A once-only treasure, by its number: remembered for the hunt's whole life.
    Once(u32),
    /// The client's id: remembered for [`Limits::find_id_ttl_ms`].
    Client(FindId),
}

/// Why a find is not recorded. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The hunt has no such treasure.
    #[error("the hunt has no such treasure")]
    NoSuchTreasure,
    /// A repeatable treasure, or coins, without an id.
    #[error("a find of a repeatable treasure, or of coins without a treasure, needs an id")]
    IdRequired,
    /// The id was used for a find with other content.
    #[error("the id was used for another find")]
    FindConflict,
    /// The hunt takes no finds now.
    #[error("the hunt is {}", .0.as_str())]
    HuntNotOpen(HuntState),
    /// The hunt is archived.
    #[error("the hunt is archived")]
    HuntArchived,
    /// `found_at` lies ahead of the store's clock.
    #[error("found_at lies more than {FOUND_AT_AHEAD_MS_MAX} ms ahead of the store's clock")]
    FoundAtAhead,
    /// Rule 9.
    #[error("the coins would leave the range 0 to 2^53 - 1")]
    CoinsOutOfRange,
    /// The wallet already holds as many pending finds as are allowed.
    #[error("the player has too many pending finds; they must be collected first")]
    TooManyPending,
}

/// What a find comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The same find was recorded before: the first answer again.
    Duplicate(Find),
    /// A new find: the entry that records it and, for one past its window already, the entry that expires it.
    Recorded(Entry, Option<Entry>),
}

/// Under what the find would be remembered, which the store looks up before it calls [`decide`].
///
/// # Errors
/// `NoSuchTreasure`, `IdRequired`, `CoinsOutOfRange`, and `HuntArchived` before all others.
pub fn identify(hunt: &Hunt, new: &NewFind, now: Millis) -> Result<Identity, Refusal> {
    if hunt.state(now) == HuntState::Archived {
        return Err(Refusal::HuntArchived);
    }
    if let What::Treasure(id) = &new.what {
        let (treasure, number) = hunt.treasure(id).ok_or(Refusal::NoSuchTreasure)?;
        if !treasure.repeatable {
            return Ok(Identity::Once(number));
        }
    } else if matches!(new.what, What::Coins(coins) if coins > COINS_MAX) {
        return Err(Refusal::CoinsOutOfRange);
    }
    new.id
        .clone()
        .map(Identity::Client)
        .ok_or(Refusal::IdRequired)
}

/// Everything a decision depends on besides the request.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// The hunt.
    pub hunt: &'a Hunt,
    /// The hunt's totals (or its partition's).
    pub totals: &'a Totals,
    /// Outages on record.
    pub outages: &'a Outages,
    /// Limits.
    pub limits: Limits,
    /// The store's clock.
    pub now: Millis,
}

/// Decides a find. `prior` is the entry that is remembered under `identity`, if any. `wallet` changes exactly when the
/// decision is `Recorded`.
///
/// # Errors
/// Says why the find is refused; nothing has changed then. Identity is judged before the hunt's state.
pub fn decide(
    at: Circumstances<'_>,
    wallet: &mut Wallet,
    new: &NewFind,
    identity: &Identity,
    prior: Option<&Entry>,
) -> Result<Decision, Refusal> {
    let Circumstances {
        hunt,
        totals,
        outages,
        limits,
        now,
    } = at;
    if new
        .found_at
        .is_some_and(|t| t > now + FOUND_AT_AHEAD_MS_MAX)
    {
        return Err(Refusal::FoundAtAhead);
    }
    let remembered = |prior: &&Entry| match identity {
        Identity::Once(_) => true,
        Identity::Client(_) => now.saturating_sub(prior.at) <= limits.find_id_ttl_ms,
    };
    if let Some(Entry {
        change: Change::Find(find),
        ..
    }) = prior.filter(remembered)
    {
        return if same_content(find, &new.what) {
            Ok(Decision::Duplicate(find.clone()))
        } else {
            Err(Refusal::FindConflict)
        };
    }
    match hunt.state(now) {
        HuntState::Open => {}
        HuntState::Archived => return Err(Refusal::HuntArchived),
        state => return Err(Refusal::HuntNotOpen(state)),
    }
    if wallet.pending_finds >= limits.pending_finds_max {
        return Err(Refusal::TooManyPending);
    }
    let (treasure, coins) = match &new.what {
        What::Treasure(id) => {
            let (treasure, _) = hunt.treasure(id).ok_or(Refusal::NoSuchTreasure)?;
            (Some(id.clone()), treasure.coins)
        }
        What::Coins(coins) => (None, *coins),
    };
    let id = match (identity, &treasure) {
        (Identity::Client(id), _) => id.clone(),
        // Both kinds of id obey the same rule, so this cannot fail; a refusal is kinder than a panic all the same.
        (Identity::Once(_), Some(id)) => {
            FindId::new(id.as_str()).map_err(|_| Refusal::NoSuchTreasure)?
        }
        (Identity::Once(_), None) => return Err(Refusal::NoSuchTreasure),
    };
    let found_at = new.found_at.unwrap_or(now).min(now);
    let find = Find {
        seq: 0,
        id,
        treasure,
        coins,
        found_at,
        expires_at: found_at + hunt.spec.window_ms,
        repeatable: matches!(identity, Identity::Client(_)),
    };
    let late = find.has_run_out(now);
    let due_at = wallet.due_at;
    let made = wallet
        .record(totals, find, now)
        .map_err(|error| match error {
            WalletError::CoinsOutOfRange | WalletError::InsufficientCoins => {
                Refusal::CoinsOutOfRange
            }
        })?;
    if !late {
        return Ok(Decision::Recorded(made, None));
    }
    // Only this find is settled here: the others are not loaded, and keep their turn and the wallet's due time.
    let Change::Find(find) = &made.change else {
        return Ok(Decision::Recorded(made, None));
    };
    let expired = wallet.expire_one(find.clone(), due_at, now, outages);
    Ok(Decision::Recorded(made, Some(expired)))
}

/// Rule 5: the content is the treasure, and for a find without one its coins; never the time, the code or the place.
fn same_content(find: &Find, what: &What) -> bool {
    match (&find.treasure, what) {
        (Some(made), What::Treasure(asked)) => made == asked,
        (None, What::Coins(coins)) => find.coins == *coins,
        _ => false,
    }
}

/// Why an adjustment is refused. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdjustRefusal {
    /// The key was used for another adjustment.
    #[error("the idempotency key was used for another adjustment of this player")]
    Conflict,
    /// The hunt is archived.
    #[error("the hunt is archived")]
    HuntArchived,
    /// The wallet refused it.
    #[error(transparent)]
    Wallet(#[from] WalletError),
}

/// What an adjustment comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdjustDecision {
    /// The same adjustment was made before.
    Duplicate(Entry),
    /// A new adjustment: the entry that records it.
    Recorded(Entry),
}

/// Decides an adjustment (rule 11). `prior` is the entry that is remembered under the adjustment's key, for the hunt's
/// whole life. The content that a repeat must share is the coins and the reason; not the name of who asked.
///
/// # Errors
/// Says why the adjustment is refused; nothing has changed then.
pub fn decide_adjustment(
    at: Circumstances<'_>,
    wallet: &mut Wallet,
    new: Adjustment,
    prior: Option<&Entry>,
) -> Result<AdjustDecision, AdjustRefusal> {
    if at.hunt.state(at.now) == HuntState::Archived {
        return Err(AdjustRefusal::HuntArchived);
    }
    if let Some(entry) = prior {
        let same = matches!(&entry.change, Change::Adjust(made) if made.coins == new.coins && made.reason == new.reason);
        return if same {
            Ok(AdjustDecision::Duplicate(entry.clone()))
        } else {
            Err(AdjustRefusal::Conflict)
        };
    }
    Ok(AdjustDecision::Recorded(
        wallet.adjust(at.totals, new, at.now)?,
    ))
}
