//! A hunt: what can be found, and when.

use super::Millis;
use super::ids::{HuntId, TreasureId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// A treasure of a hunt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Treasure {
    /// Its id within the hunt.
    pub id: TreasureId,
    /// A name for people.
    pub name: Option<String>,
    /// What a find is worth.
    pub coins: u64,
    /// Latitude and longitude in degrees, only shown.
    pub place: Option<(f64, f64)>,
    /// Whether one player may find it more than once; each find then has an id from the client.
    pub repeatable: bool,
}

/// A hunt's document once it is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HuntSpec {
    /// The hunt's id.
    pub id: HuntId,
    /// A name for people.
    pub name: String,
    /// How long a find can be credited, in milliseconds.
    pub window_ms: u64,
    /// When it opens by itself.
    pub opens_at: Option<Millis>,
    /// When it closes by itself.
    pub closes_at: Option<Millis>,
    /// What can be found, in the document's order.
    pub treasures: Vec<Treasure>,
}

/// Where a hunt is in its life (rule 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HuntState {
    /// It has not opened.
    Draft,
    /// Finds are taken.
    Open,
    /// No finds are taken; polls go on.
    Closed,
    /// Over; only exports and audits remain.
    Archived,
}

impl HuntState {
    /// The word for it in answers and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Archived => "archived",
        }
    }
}

/// What an operator can ask of a hunt's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeStep {
    /// Take finds from now on.
    Open,
    /// Take no more finds.
    Close,
    /// End it.
    Archive,
}

/// A hunt as a store keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hunt {
    /// The number that keys use in place of the id. Never used again for another hunt.
    pub number: u32,
    /// The document.
    pub spec: HuntSpec,
    /// The last state that an operator asked for; `None` leaves the state to the times.
    pub operator: Option<HuntState>,
    /// Grows by one with each change of the document or the life.
    pub generation: u64,
    /// Each treasure's number within the hunt, also of treasures that the document no longer has: a number is never
    /// given to another treasure.
    pub treasure_numbers: HashMap<TreasureId, u32>,
    #[serde(skip)]
    by_id: HashMap<TreasureId, usize>,
}

/// Why a hunt's document or life cannot change as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HuntError {
    /// The hunt is archived.
    #[error("the hunt is archived")]
    Archived,
    /// The new document lacks a treasure that was found.
    #[error("treasure {0} has been found and cannot be removed")]
    TreasureFound(TreasureId),
    /// The new document makes a treasure that was found repeatable, or takes that away.
    #[error("treasure {0} has been found: whether it is repeatable cannot change")]
    RepeatableFound(TreasureId),
    /// `open` after `closes_at`.
    #[error("the hunt's closes_at has passed; move it before opening the hunt")]
    ClosesAtPassed,
    /// `archive` of a hunt that still takes finds, or has not opened.
    #[error("only a closed hunt can be archived; this one is {}", .0.as_str())]
    NotClosed(HuntState),
    /// `archive` while finds are pending.
    #[error(
        "{0} coins are pending; a hunt can be archived once they are collected or have expired"
    )]
    Pending(u64),
}

impl Hunt {
    /// A new hunt.
    #[must_use]
    pub fn new(number: u32, spec: HuntSpec) -> Self {
        let mut hunt = Self {
            number,
            spec,
            operator: None,
            generation: 1,
            treasure_numbers: HashMap::new(),
            by_id: HashMap::new(),
        };
        hunt.index();
        hunt
    }

    /// Builds what is not stored; call after reading a hunt from a store.
    pub fn index(&mut self) {
        let next = self.treasure_numbers.values().max().map_or(0, |n| n + 1);
        let fresh = self
            .spec
            .treasures
            .iter()
            .filter(|t| !self.treasure_numbers.contains_key(&t.id));
        let fresh: Vec<_> = fresh.map(|t| t.id.clone()).zip(next..).collect();
        self.treasure_numbers.extend(fresh);
        self.by_id = self
            .spec
            .treasures
            .iter()
            .enumerate()
            .map(|(i, t)| (t.id.clone(), i))
            .collect();
    }

    /// The treasure with this id, and its number.
    #[must_use]
    pub fn treasure(&self, id: &TreasureId) -> Option<(&Treasure, u32)> {
        let treasure = &self.spec.treasures[*self.by_id.get(id)?];
        Some((treasure, *self.treasure_numbers.get(id)?))
    }

    /// The state at `now`.
    #[must_use]
    pub fn state(&self, now: Millis) -> HuntState {
        let passed = |time: Option<Millis>| time.is_some_and(|t| t <= now);
        match self.operator {
            Some(HuntState::Archived) => HuntState::Archived,
            Some(HuntState::Closed) => HuntState::Closed,
            _ if passed(self.spec.closes_at) => HuntState::Closed,
            Some(HuntState::Open) => HuntState::Open,
            _ if passed(self.spec.opens_at) => HuntState::Open,
            _ => HuntState::Draft,
        }
    }

    /// Takes a new document. Finds already made keep their coins and their window: they carry both. `found` holds the
    /// numbers of the treasures of which at least one find was recorded.
    ///
    /// # Errors
    /// Leaves the hunt as it was when it is archived, or when the document contradicts finds already made.
    pub fn replace(&mut self, spec: HuntSpec, found: &BTreeSet<u32>) -> Result<(), HuntError> {
        if self.operator == Some(HuntState::Archived) {
            return Err(HuntError::Archived);
        }
        let repeatable: HashMap<_, _> = spec
            .treasures
            .iter()
            .map(|t| (&t.id, t.repeatable))
            .collect();
        for (old, number) in self
            .spec
            .treasures
            .iter()
            .filter_map(|t| self.treasure(&t.id))
        {
            if !found.contains(&number) {
                continue;
            }
            match repeatable.get(&old.id) {
                None => return Err(HuntError::TreasureFound(old.id.clone())),
                Some(new) if *new != old.repeatable => {
                    return Err(HuntError::RepeatableFound(old.id.clone()));
                }
                Some(_) => {}
            }
        }
        if self.spec != spec {
            self.spec = spec;
            self.generation += 1;
            self.index();
        }
        Ok(())
    }

    /// Takes a step of the operator's. A step to where the hunt already is changes nothing. `pending` is the hunt's
    /// pending coins, or finds where those are worth nothing.
    ///
    /// # Errors
    /// Leaves the hunt as it was when its state does not allow the step.
    pub fn step(&mut self, step: LifeStep, now: Millis, pending: u64) -> Result<(), HuntError> {
        let state = self.state(now);
        let target = match (step, state) {
            (LifeStep::Archive, HuntState::Archived) => return Ok(()),
            (_, HuntState::Archived) => return Err(HuntError::Archived),
            (LifeStep::Open, _) if self.spec.closes_at.is_some_and(|t| t <= now) => {
                return Err(HuntError::ClosesAtPassed);
            }
            (LifeStep::Open, HuntState::Open) | (LifeStep::Close, HuntState::Closed) => {
                return Ok(());
            }
            (LifeStep::Open, _) => HuntState::Open,
            (LifeStep::Close, _) => HuntState::Closed,
            (LifeStep::Archive, HuntState::Closed) if pending > 0 => {
                return Err(HuntError::Pending(pending));
            }
            (LifeStep::Archive, HuntState::Closed) => HuntState::Archived,
            (LifeStep::Archive, _) => return Err(HuntError::NotClosed(state)),
        };
        self.operator = Some(target);
        self.generation += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunt(opens_at: Option<Millis>, closes_at: Option<Millis>) -> Hunt {
        Hunt::new(1, spec(opens_at, closes_at, &[("a", false), ("b", true)]))
    }

    fn spec(
        opens_at: Option<Millis>,
        closes_at: Option<Millis>,
        treasures: &[(&str, bool)],
    ) -> HuntSpec {
        let treasures = treasures.iter().map(|(id, repeatable)| Treasure {
            id: TreasureId::new(id).unwrap(),
            name: None,
            coins: 1,
            place: None,
            repeatable: *repeatable,
        });
        HuntSpec {
            id: HuntId::new("h").unwrap(),
            name: "H".into(),
            window_ms: 1,
            opens_at,
            closes_at,
            treasures: treasures.collect(),
        }
    }

    #[test]
    fn a_hunt_without_opens_at_is_a_draft_until_it_is_opened() {
        let mut hunt = hunt(None, None);
        assert_eq!(hunt.state(u64::MAX), HuntState::Draft);
        hunt.step(LifeStep::Open, 5, 0).unwrap();
        assert_eq!((hunt.state(5), hunt.generation), (HuntState::Open, 2));
        hunt.step(LifeStep::Open, 5, 0).unwrap();
        assert_eq!(hunt.generation, 2, "opening an open hunt changes nothing");
    }

    #[test]
    fn the_times_open_and_close_a_hunt() {
        let mut hunt = hunt(Some(10), Some(20));
        let states: Vec<_> = [9, 10, 19, 20].map(|t| hunt.state(t)).into();
        assert_eq!(
            states,
            [
                HuntState::Draft,
                HuntState::Open,
                HuntState::Open,
                HuntState::Closed
            ]
        );
        assert_eq!(
            hunt.step(LifeStep::Open, 20, 0),
            Err(HuntError::ClosesAtPassed)
        );
        hunt.step(LifeStep::Close, 12, 0).unwrap();
        assert_eq!(
            hunt.state(13),
            HuntState::Closed,
            "the operator's word stands against the times"
        );
        hunt.step(LifeStep::Open, 14, 0).unwrap();
        assert_eq!(hunt.state(19), HuntState::Open);
        assert_eq!(hunt.state(20), HuntState::Closed);
    }

    #[test]
    fn only_a_closed_hunt_with_nothing_pending_is_archived() {
        let mut hunt = hunt(None, None);
        assert_eq!(
            hunt.step(LifeStep::Archive, 1, 0),
            Err(HuntError::NotClosed(HuntState::Draft))
        );
        hunt.step(LifeStep::Open, 1, 0).unwrap();
        assert_eq!(
            hunt.step(LifeStep::Archive, 1, 0),
            Err(HuntError::NotClosed(HuntState::Open))
        );
        hunt.step(LifeStep::Close, 1, 0).unwrap();
        assert_eq!(
            hunt.step(LifeStep::Archive, 1, 3),
            Err(HuntError::Pending(3))
        );
        hunt.step(LifeStep::Archive, 1, 0).unwrap();
        assert_eq!(hunt.step(LifeStep::Open, 1, 0), Err(HuntError::Archived));
        assert_eq!(
            hunt.replace(spec(None, None, &[]), &BTreeSet::new()),
            Err(HuntError::Archived)
        );
    }

    #[test]
    fn a_found_treasure_cannot_be_removed_or_change_its_kind() {
        let mut hunt = hunt(None, None);
        let found = BTreeSet::from([0]);
        let a = TreasureId::new("a").unwrap();
        assert_eq!(
            hunt.replace(spec(None, None, &[("b", true)]), &found),
            Err(HuntError::TreasureFound(a.clone()))
        );
        assert_eq!(
            hunt.replace(spec(None, None, &[("a", true)]), &found),
            Err(HuntError::RepeatableFound(a))
        );
        hunt.replace(spec(None, None, &[("c", false), ("a", false)]), &found)
            .unwrap();
        let number = |id| hunt.treasure(&TreasureId::new(id).unwrap()).map(|(_, n)| n);
        assert_eq!(
            (number("a"), number("b"), number("c")),
            (Some(0), None, Some(2))
        );
    }
}
