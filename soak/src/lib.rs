//! The load and soak harness of Trove. It reaches the product only as its users do: over HTTP, by its commands, by signals.
//!
//! - [`case`]: what is to be run, a TOML file; everything else is computed from it.
//! - [`record`]: what a run writes down as it goes, one JSON object a line; the verdict and the report read only that.
//! - [`generator`]: users, on one event loop, by an open schedule.
//! - [`recording`]: recordings of real traffic, their format, and how they become load.
//! - [`checker`]: holds every answer against what its user knows.
//! - [`books`]: what clients were told, on disk, so that the ledger can be held against it at the end.

pub mod books;
pub mod case;
pub mod checker;
pub mod generator;
pub mod record;
pub mod recording;
