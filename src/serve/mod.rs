//! `trove serve`: the HTTP routes, and the life of the process that answers them.
//!
//! - [`mod@run`]: start, signals, draining, stop; `stores` opens the store that the settings name.
//! - [`backend`]: what stands behind the front: the poll from memory, and for everything else axum's router.
//! - [`app`]: what all requests share; [`callers`]: whose token a request carries; `wallets`: from memory, the store, or of before; `waits` is what each of them waits for.
//! - [`poll`], [`players`], [`hunts`], [`bulk`], [`health`]: the routes; [`catalogue`] is a hunt's prepared bytes,
//!   `poll_body` the poll's answer.
//! - [`known_players`]: the numbers of players whom back ends name.
//! - [`beside`]: threads for what would hold the event loop.
//! - [`ops`]: the operations listener, `ops_page` what it shows on its page; [`socket`]: the Unix socket through which `verify` and `export` ask a running
//!   server.
//! - [`problem`]: what is said when something is wrong; [`json`]: reading bodies; [`mod@openapi`]: the document.
//! - [`demo`]: the demo's hunt and its simulated players.

pub mod app;
pub mod backend;
pub mod beside;
pub mod bulk;
pub mod callers;
pub mod catalogue;
pub mod cursor;
pub mod demo;
mod fields;
pub mod health;
pub mod hunts;
pub mod json;
pub mod known_players;
pub mod load;
mod missed;
pub mod openapi;
pub mod ops;
mod ops_page;
pub mod players;
pub mod poll;
mod poll_body;
pub mod problem;
mod routes;
pub mod run;
pub mod socket;
mod stores;
mod waits;
mod wallets;

pub use openapi::document as openapi;
pub use run::{Reload, ServeError, run};
pub use stores::redis_options;
