//! Tests against real servers. Each test starts its own on a free port of the loopback and ends it.
//!
//! `TROVE_TEST_REDIS` names the directory of other binaries (`redis-server`, `redis-sentinel`), to run against another
//! version.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap that fails here fails its test, which is what it is for"
)]

mod connections;
mod faults;
mod feeds;
mod harness;
mod in_flight;
mod outcomes;
mod scripts;
mod sentinels;
mod tails;
#[cfg(feature = "tls")]
mod tls;
