//! A hunt as this instance serves it: with its public catalogue, serialised and compressed once, when first asked for.

use super::json::off_loop;
use super::problem::Problem;
use crate::game::hunt::{Hunt, HuntSpec};
use bytes::Bytes;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OnceCell, Semaphore};

/// The most selections of fields (`?fields=`) that are kept prepared for one hunt.
pub const SELECTIONS_MAX: usize = 8;
/// Brotli's quality: past 5 it takes many times longer for a few per cent.
const BROTLI_QUALITY: u32 = 5;
/// Brotli's window, as a power of two.
const BROTLI_WINDOW: u32 = 22;

/// Hunts with more treasures than this are freed on another thread.
const TREASURES_FREED_INLINE: usize = 500;
/// A turn for whoever prepares a catalogue.
static PREPARING: Semaphore = Semaphore::const_new(1);

/// Fields of a treasure that a client can select. The id always comes along.
pub const FIELDS: [&str; 6] = ["id", "name", "coins", "lat", "lon", "repeatable"];

/// A selection of [`FIELDS`], a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection(u8);

impl Selection {
    /// All fields.
    pub const ALL: Self = Self(0b11_1111);

    /// Parses `id,coins`.
    ///
    /// # Errors
    /// 422 that names the field that does not exist.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let mut bits = 1;
        for name in text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let bit = FIELDS
                .iter()
                .position(|field| *field == name)
                .ok_or_else(|| {
                    Problem::parameter(
                        "fields",
                        format!("has no {name}; there are {}", FIELDS.join(", ")),
                    )
                })?;
            bits |= 1 << bit;
        }
        Ok(Self(bits))
    }

    fn has(self, field: usize) -> bool {
        self.0 & (1 << field) != 0
    }
}

/// A catalogue's bytes, in three codings.
#[derive(Debug)]
pub struct Catalogue {
    /// As it is.
    pub plain: Bytes,
    /// Compressed by gzip.
    pub gzip: Bytes,
    /// Compressed by brotli.
    pub brotli: Bytes,
    /// Its weak entity tag.
    pub etag: String,
}

/// A catalogue that whoever asks first prepares.
type Prepared = Arc<OnceCell<Arc<Catalogue>>>;

/// A hunt that this instance serves.
#[derive(Debug)]
pub struct LiveHunt {
    /// The hunt.
    pub hunt: Arc<Hunt>,
    selections: Mutex<Vec<(Selection, Prepared)>>,
}

impl LiveHunt {
    /// Without a prepared catalogue.
    #[must_use]
    pub fn new(hunt: Arc<Hunt>) -> Self {
        Self {
            hunt,
            selections: Mutex::default(),
        }
    }

    /// The catalogue, prepared off the event loop by whoever asks first.
    ///
    /// # Errors
    /// 500 when preparing it panics.
    pub async fn catalogue(&self, selection: Selection) -> Result<Arc<Catalogue>, Problem> {
        let cell = {
            let mut selections = self
                .selections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match selections.iter().position(|(kept, _)| *kept == selection) {
                Some(index) => selections[index].1.clone(),
                None => {
                    if selections.len() >= SELECTIONS_MAX {
                        // The full catalogue stays; of the others the oldest goes.
                        let oldest = selections
                            .iter()
                            .position(|(kept, _)| *kept != Selection::ALL)
                            .unwrap_or(0);
                        selections.remove(oldest);
                    }
                    let cell = Arc::new(OnceCell::new());
                    selections.push((selection, cell.clone()));
                    cell
                }
            }
        };
        let hunt = self.hunt.clone();
        let prepared = cell
            .get_or_try_init(|| async {
                // One at a time: whoever asks for all selections in turn must not take every thread.
                let turn = PREPARING.acquire().await;
                let prepared = off_loop(move || Arc::new(prepare(&hunt, selection))).await;
                drop(turn);
                prepared
            })
            .await?;
        Ok(prepared.clone())
    }
}

impl Drop for LiveHunt {
    /// A hunt of a hundred thousand treasures takes tens of milliseconds to free, and the event loop may be the last to
    /// let go of one that was replaced.
    fn drop(&mut self) {
        if self.hunt.spec.treasures.len() > TREASURES_FREED_INLINE
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let spec = &self.hunt.spec;
            let nothing = HuntSpec {
                id: spec.id.clone(),
                name: String::new(),
                window_ms: spec.window_ms,
                opens_at: None,
                closes_at: None,
                treasures: Vec::new(),
            };
            let hunt = std::mem::replace(&mut self.hunt, Arc::new(Hunt::new(0, nothing)));
            runtime.spawn_blocking(move || drop(hunt));
        }
    }
}

#[derive(Serialize)]
struct Wire<'a> {
    id: &'a str,
    name: &'a str,
    window_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    opens_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    closes_at: Option<u64>,
    treasures: Vec<WireTreasure<'a>>,
}

#[derive(Serialize)]
struct WireTreasure<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coins: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lat: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lon: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeatable: Option<bool>,
}

fn prepare(hunt: &Hunt, selection: Selection) -> Catalogue {
    let spec = &hunt.spec;
    let treasures = spec.treasures.iter().map(|treasure| WireTreasure {
        id: treasure.id.as_str(),
        name: treasure.name.as_deref().filter(|_| selection.has(1)),
        coins: selection.has(2).then_some(treasure.coins),
        lat: treasure
            .place
            .map(|(lat, _)| lat)
            .filter(|_| selection.has(3)),
        lon: treasure
            .place
            .map(|(_, lon)| lon)
            .filter(|_| selection.has(4)),
        repeatable: (selection.has(5) && treasure.repeatable).then_some(true),
    });
    let wire = Wire {
        id: spec.id.as_str(),
        name: &spec.name,
        window_ms: spec.window_ms,
        opens_at: spec.opens_at,
        closes_at: spec.closes_at,
        treasures: treasures.collect(),
    };
    let plain = serde_json::to_vec(&wire).expect("strings and numbers serialise");
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).expect("memory takes every write");
    let mut brotli = Vec::new();
    brotli::CompressorWriter::new(&mut brotli, 16 * 1024, BROTLI_QUALITY, BROTLI_WINDOW)
        .write_all(&plain)
        .expect("memory takes every write");
    Catalogue {
        gzip: gzip.finish().expect("memory takes every write").into(),
        brotli: brotli.into(),
        etag: format!("W/\"{}.{}.{}\"", hunt.number, hunt.generation, selection.0),
        plain: plain.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_always_has_the_id() {
        assert_eq!(Selection::parse("coins").unwrap(), Selection(0b101));
        assert_eq!(
            Selection::parse("id, name,coins,lat,lon,repeatable").unwrap(),
            Selection::ALL
        );
        assert_eq!(Selection::parse("").unwrap(), Selection(1));
        assert_eq!(Selection::parse("code").unwrap_err().code, "bad_parameter");
    }
}
