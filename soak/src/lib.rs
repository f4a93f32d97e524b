//! The load and soak harness of Trove. It reaches the product only as its users do: over HTTP, by its commands, by signals.
//!
//! - [`case`]: what is to be run, a TOML file; everything else is computed from it.
//! - [`record`]: what a run writes down as it goes, one JSON object a line; the verdict and the report read only that.
//! - [`generator`]: users, on one event loop, by an open schedule.
//! - [`recording`]: recordings of real traffic, their format, and how they become load.
//! - [`checker`]: holds every answer against what its user knows.
//! - [`books`]: what clients were told, on disk, so that the ledger can be held against it at the end.
//! - [`system`]: what is tested: processes that the harness starts, or an address.
//! - [`resources`]: what every process costs over time, and whether something leaks.
//! - [`faults`]: what is broken on purpose. [`run`]: from the first line to the verdict, and its resumption.
//! - [`verdict`]: what a run is worth, from its record alone.
//! - [`live`]: what is seen while a run goes on. [`cli`]: the commands.
//! - [`report`]: a page of a run, and a comparison of two.
//! - [`refusal`]: why a run cannot begin or go on, and the exit status.

pub mod books;
pub mod case;
pub mod checker;
pub mod cli;
pub mod faults;
pub mod generator;
pub mod live;
pub mod record;
pub mod recording;
pub mod refusal;
pub mod report;
pub mod resources;
pub mod run;
pub mod system;
pub mod verdict;
