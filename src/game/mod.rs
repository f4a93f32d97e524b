//! The game core: the rules of a treasure hunt as pure functions.
//!
//! Nothing here does I/O, awaits, or reads a clock: `now` is always an argument, in milliseconds since the epoch by
//! the store's clock. Every store runs these rules or is held to them by tests, so a question about what a find, a
//! poll or an adjustment does is answered here and nowhere else.
//!
//! The rules, in the order in which they appear below:
//! - [`ids`], [`coins`]: what a name and a number of coins may be.
//! - [`hunt`], [`document`]: a hunt, its life and the document it is made from.
//! - [`entry`]: the ledger entry, the only way in which anything changes, and the totals that follow from entries.
//! - [`wallet`]: a player's wallet and the operations on it; each yields entries.
//! - [`rules`]: what a request to record a find comes to: a new find, a repeat, or a refusal.
//! - [`audit`]: recomputes wallets and totals from entries, trusting neither.
//! - [`model`]: a whole hunt in memory, the reference that stores are compared with.
//! - [`simulate`]: the model under a simulated clock.

pub mod audit;
pub mod coins;
pub mod document;
pub mod entry;
pub mod hunt;
pub mod ids;
pub mod model;
pub mod rules;
pub mod simulate;
pub mod wallet;

/// Milliseconds since the Unix epoch, by the store's clock.
pub type Millis = u64;
