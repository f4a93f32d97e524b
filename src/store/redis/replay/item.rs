//! What this instance executed, so that each piece by itself is enough to do it again.

use crate::game::Millis;
use crate::game::entry::{Adjustment, Find};
use crate::game::hunt::Hunt;
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use serde::{Deserialize, Serialize};

/// What is counted, and in which order it is offered: what others depend on comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A player's name and number.
    Player,
    /// A hunt's document or state.
    Hunt,
    /// An erasure.
    Erasure,
    /// A find.
    Find,
    /// A credit.
    Credit,
    /// A reinstatement.
    Reinstatement,
    /// An adjustment.
    Adjustment,
}

impl Kind {
    /// Every kind, in order.
    pub const ALL: [Self; 7] = [
        Self::Player,
        Self::Hunt,
        Self::Erasure,
        Self::Find,
        Self::Credit,
        Self::Reinstatement,
        Self::Adjustment,
    ];

    /// The metric's label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Player => "player",
            Self::Hunt => "hunt",
            Self::Erasure => "erasure",
            Self::Find => "find",
            Self::Credit => "credit",
            Self::Reinstatement => "reinstatement",
            Self::Adjustment => "adjustment",
        }
    }
}

/// A piece of what was executed. Players by number, as everywhere but in the map of names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::store::redis) enum Item {
    /// A player came to be, or was looked up.
    Player {
        name: PlayerName,
        player: PlayerId,
        issued_at: Option<Millis>,
        /// Not known of what a journal of before held.
        #[serde(default)]
        at: Option<Millis>,
    },
    /// A hunt as it was after the change.
    Hunt(Box<Hunt>),
    /// A player was erased.
    Erasure {
        name: PlayerName,
        player: Option<PlayerId>,
        at: Millis,
    },
    /// A find was recorded.
    Find {
        hunt: HuntId,
        player: PlayerId,
        find: Find,
        at: Millis,
    },
    /// A find was credited.
    Credit {
        hunt: HuntId,
        player: PlayerId,
        find: Find,
        at: Millis,
    },
    /// A find that had expired by an outage was credited by an operator.
    Reinstatement {
        hunt: HuntId,
        player: PlayerId,
        find: Find,
        at: Millis,
    },
    /// Coins were granted or revoked.
    Adjustment {
        hunt: HuntId,
        player: PlayerId,
        adjustment: Adjustment,
        at: Millis,
    },
}

impl Item {
    pub(in crate::store::redis) fn kind(&self) -> Kind {
        match self {
            Self::Player { .. } => Kind::Player,
            Self::Hunt(_) => Kind::Hunt,
            Self::Erasure { .. } => Kind::Erasure,
            Self::Find { .. } => Kind::Find,
            Self::Credit { .. } => Kind::Credit,
            Self::Reinstatement { .. } => Kind::Reinstatement,
            Self::Adjustment { .. } => Kind::Adjustment,
        }
    }

    /// Whose it is, but for an erasure, which must outlive what it erases.
    pub(super) fn player(&self) -> Option<PlayerId> {
        match self {
            Self::Player { player, .. }
            | Self::Find { player, .. }
            | Self::Credit { player, .. }
            | Self::Reinstatement { player, .. }
            | Self::Adjustment { player, .. } => Some(*player),
            Self::Hunt(_) | Self::Erasure { .. } => None,
        }
    }

    /// When it was true at the latest by the store's clock, and in whose partition, for what one script of that partition did or
    /// saw.
    pub(super) fn dated(&self) -> Option<(PlayerId, Millis)> {
        match self {
            Self::Find { player, at, .. }
            | Self::Credit { player, at, .. }
            | Self::Reinstatement { player, at, .. }
            | Self::Adjustment { player, at, .. } => Some((*player, *at)),
            Self::Player { player, at, .. } => at.map(|at| (*player, at)),
            Self::Hunt(_) | Self::Erasure { .. } => None,
        }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let own = size_of::<Self>() + 64;
        own + match self {
            Self::Player { name, .. } | Self::Erasure { name, .. } => name.as_str().len(),
            Self::Hunt(hunt) => 200 * (hunt.spec.treasures.len() + 4),
            Self::Find { hunt, find, .. }
            | Self::Credit { hunt, find, .. }
            | Self::Reinstatement { hunt, find, .. } => {
                let treasure = find.treasure.as_ref().map_or(0, |id| id.as_str().len());
                hunt.as_str().len() + find.id.as_str().len() + treasure
            }
            Self::Adjustment {
                hunt, adjustment, ..
            } => {
                hunt.as_str().len()
                    + adjustment.reason.len()
                    + adjustment.key.len()
                    + adjustment.by.len()
            }
        }
    }
}
