//! Runs the conformance suite on every store.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

#[path = "store_suite/embedded.rs"]
mod embedded_fixture;
mod store_suite;

mod embedded {
    crate::conformance! { crate::embedded_fixture::Embedded }
}
