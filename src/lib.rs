//! Trove: a real-time treasure-hunt game server.

pub mod auth;
pub mod blocking;
pub mod cli;
pub mod config;
pub mod front;
pub mod game;
pub mod ledger;
pub mod link;
pub mod metrics;
pub mod mirror;
pub mod ops;
pub mod serve;
pub mod shim;
pub mod sla;
pub mod store;
pub mod telemetry;
