//! The hunt document: what an operator uploads, and what makes one acceptable.

use super::Millis;
use super::coins::COINS_MAX;
use super::hunt::{HuntSpec, Treasure};
use super::ids::{HuntId, TreasureId};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::HashSet;

/// The window of a hunt that does not say otherwise: five minutes (rule 1).
pub const WINDOW_MS_DEFAULT: u64 = 300_000;
/// The longest window, a week, in milliseconds.
pub const WINDOW_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// The most treasures in one hunt.
pub const TREASURES_MAX: usize = 100_000;
/// The longest name of a hunt or treasure, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The most errors that one answer lists.
pub const ERRORS_MAX: usize = 20;

/// A hunt document as it is written, before it is judged.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HuntDocument {
    /// See [`HuntId`].
    pub id: String,
    /// A name for people.
    pub name: String,
    /// How long a find can be credited, in milliseconds.
    #[serde(default)]
    pub window_ms: Option<u64>,
    /// When it opens by itself.
    #[serde(default)]
    pub opens_at: Option<Millis>,
    /// When it closes by itself.
    #[serde(default)]
    pub closes_at: Option<Millis>,
    /// What can be found.
    pub treasures: Vec<TreasureDocument>,
}

/// A treasure as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreasureDocument {
    /// See [`TreasureId`].
    pub id: String,
    /// A name for people.
    #[serde(default)]
    pub name: Option<String>,
    /// What a find is worth.
    pub coins: u64,
    /// Latitude in degrees, only shown.
    #[serde(default)]
    pub lat: Option<f64>,
    /// Longitude in degrees, only shown.
    #[serde(default)]
    pub lon: Option<f64>,
    /// Whether one player may find it more than once.
    #[serde(default)]
    pub repeatable: bool,
    /// A limited supply (rule 7); this version refuses it.
    #[serde(default)]
    pub supply: Option<IgnoredAny>,
    /// Prizes by rank (rule 7); this version refuses them.
    #[serde(default)]
    pub prizes: Option<IgnoredAny>,
    /// A code as proof (rule 8); this version refuses it.
    #[serde(default)]
    pub code: Option<IgnoredAny>,
    /// A place as proof (rule 8); this version refuses it.
    #[serde(default)]
    pub radius_m: Option<IgnoredAny>,
}

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    /// Where: a JSON pointer (RFC 6901).
    pub pointer: String,
    /// What, for people.
    pub detail: String,
}

/// What is wrong, up to [`ERRORS_MAX`] of it.
struct Findings(Vec<DocumentError>);

impl Findings {
    fn add(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        if self.0.len() < ERRORS_MAX {
            self.0.push(DocumentError {
                pointer: pointer.into(),
                detail: detail.into(),
            });
        }
    }

    fn name(&mut self, pointer: impl Into<String>, name: &str) {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            self.add(pointer, format!("must be 1 to {NAME_BYTES_MAX} bytes long"));
        } else if name.chars().any(char::is_control) {
            self.add(pointer, "must not hold control characters");
        }
    }
}

impl HuntDocument {
    /// Judges the document.
    ///
    /// # Errors
    /// Everything that is wrong with it, the first [`ERRORS_MAX`] findings in the document's order.
    pub fn validate(self) -> Result<HuntSpec, Vec<DocumentError>> {
        let mut wrong = Findings(Vec::new());
        let id = HuntId::new(&self.id)
            .map_err(|e| wrong.add("/id", e.to_string()))
            .ok();
        wrong.name("/name", &self.name);
        let window_ms = self.window_ms.unwrap_or(WINDOW_MS_DEFAULT);
        if !(1..=WINDOW_MS_MAX).contains(&window_ms) {
            wrong.add("/window_ms", format!("must be 1 to {WINDOW_MS_MAX}"));
        }
        for (pointer, time) in [("/opens_at", self.opens_at), ("/closes_at", self.closes_at)] {
            if time.is_some_and(|t| t > COINS_MAX) {
                wrong.add(
                    pointer,
                    "must be milliseconds since the epoch, at most 2^53 - 1",
                );
            }
        }
        if let (Some(opens), Some(closes)) = (self.opens_at, self.closes_at)
            && closes <= opens
        {
            wrong.add("/closes_at", "must be later than opens_at");
        }
        if self.treasures.len() > TREASURES_MAX {
            wrong.add(
                "/treasures",
                format!("must hold at most {TREASURES_MAX} treasures"),
            );
        }
        let mut seen = HashSet::with_capacity(self.treasures.len());
        let mut treasures = Vec::with_capacity(self.treasures.len());
        for (index, treasure) in self.treasures.into_iter().enumerate() {
            if let Some(treasure) =
                treasure.validate(&format!("/treasures/{index}"), &mut seen, &mut wrong)
            {
                treasures.push(treasure);
            }
        }
        match (id, wrong.0) {
            (Some(id), none) if none.is_empty() => Ok(HuntSpec {
                id,
                name: self.name,
                window_ms,
                opens_at: self.opens_at,
                closes_at: self.closes_at,
                treasures,
            }),
            (_, findings) => Err(findings),
        }
    }
}

impl TreasureDocument {
    fn validate(
        self,
        at: &str,
        seen: &mut HashSet<TreasureId>,
        wrong: &mut Findings,
    ) -> Option<Treasure> {
        for (field, asked) in [
            ("supply", self.supply.is_some()),
            ("prizes", self.prizes.is_some()),
            ("code", self.code.is_some()),
            ("radius_m", self.radius_m.is_some()),
        ] {
            if asked {
                wrong.add(
                    format!("{at}/{field}"),
                    format!("this version of Trove has no {field}; leave it out"),
                );
            }
        }
        if let Some(name) = &self.name {
            wrong.name(format!("{at}/name"), name);
        }
        if self.coins > COINS_MAX {
            wrong.add(format!("{at}/coins"), "must be 0 to 2^53 - 1");
        }
        for (field, value, limit) in [("lat", self.lat, 90.0), ("lon", self.lon, 180.0)] {
            if value.is_some_and(|v| v.is_nan() || v.abs() > limit) {
                wrong.add(
                    format!("{at}/{field}"),
                    format!("must be -{limit} to {limit} degrees"),
                );
            }
        }
        if self.lat.is_some() != self.lon.is_some() {
            wrong.add(at, "lat and lon go together");
        }
        match TreasureId::new(&self.id) {
            Ok(id) if seen.insert(id.clone()) => Some(Treasure {
                id,
                name: self.name,
                coins: self.coins,
                place: self.lat.zip(self.lon),
                repeatable: self.repeatable,
            }),
            Ok(_) => {
                wrong.add(
                    format!("{at}/id"),
                    "another treasure of this hunt has the same id",
                );
                None
            }
            Err(error) => {
                wrong.add(format!("{at}/id"), error.to_string());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(json: &str) -> Result<HuntSpec, Vec<DocumentError>> {
        serde_json::from_str::<HuntDocument>(json)
            .unwrap()
            .validate()
    }

    fn pointers(json: &str) -> Vec<String> {
        judge(json)
            .unwrap_err()
            .into_iter()
            .map(|e| e.pointer)
            .collect()
    }

    #[test]
    fn a_small_document_is_taken_with_the_default_window() {
        let spec =
            judge(r#"{"id":"h","name":"H","treasures":[{"id":"t","coins":5,"lat":1.5,"lon":2}]}"#)
                .unwrap();
        assert_eq!(spec.window_ms, 300_000);
        assert_eq!(spec.treasures[0].place, Some((1.5, 2.0)));
        assert!(!spec.treasures[0].repeatable);
    }

    #[test]
    fn every_error_is_named_by_its_pointer() {
        let json = r#"{"id":"a b","name":"","window_ms":0,"opens_at":5,"closes_at":5,"treasures":[
            {"id":"t","coins":9007199254740992},{"id":"t","coins":1,"lat":91,"lon":0},{"id":"","coins":1,"lat":1}]}"#;
        assert_eq!(
            pointers(json),
            [
                "/id",
                "/name",
                "/window_ms",
                "/closes_at",
                "/treasures/0/coins",
                "/treasures/1/lat",
                "/treasures/1/id",
                "/treasures/2",
                "/treasures/2/id"
            ]
        );
    }

    #[test]
    fn supply_prizes_and_proof_are_refused_rather_than_half_obeyed() {
        for (field, value) in [
            ("supply", "5"),
            ("prizes", "[]"),
            ("code", "\"x\""),
            ("radius_m", "10"),
        ] {
            let json = format!(
                r#"{{"id":"h","name":"H","treasures":[{{"id":"t","coins":1,"{field}":{value}}}]}}"#
            );
            assert_eq!(pointers(&json), [format!("/treasures/0/{field}")]);
        }
    }

    #[test]
    fn at_most_twenty_errors_are_listed() {
        let treasures = vec![r#"{"id":"","coins":1}"#; 30].join(",");
        let json = format!(r#"{{"id":"h","name":"H","treasures":[{treasures}]}}"#);
        assert_eq!(pointers(&json).len(), ERRORS_MAX);
    }
}
