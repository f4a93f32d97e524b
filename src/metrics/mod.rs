//! What is measured, in Prometheus's formats. Every series exists from the start, at 0.
//!
//! - [`labels`]: the values that labels may have, so that their number is bounded.
//! - [`durations`]: histograms with classic and native buckets, cheap enough for a poll from memory.
//! - [`server`]: what `trove serve` measures; the shim's are in `shim::metrics`.
//! - [`process`]: what both say of their process. [`redis`]: what the Redis behind a server says of itself.
//! - [`front_answers`]: answers that the connection layer gave by itself, at both.
//! - [`exposition`]: the answer to a scrape, in the format that the scraper asks for.
//!
//! Names begin with `trove_`, units are seconds and bytes. The verdict on objectives is made from these same histograms
//! by [`crate::sla`], which therefore costs a request nothing.

pub mod durations;
pub mod exposition;
pub mod front_answers;
pub mod labels;
pub mod process;
pub mod redis;
pub mod server;

pub use durations::{Buckets, Durations, DurationsByLabel};
pub use exposition::Format;
pub use labels::{Route, StoreCommand};
pub use server::{FrontCounts, Gauges, Metrics};
