//! Runs the conformance suite on every store.

#[path = "store_suite/embedded.rs"]
mod embedded_fixture;
mod store_suite;

mod embedded {
    crate::conformance! { crate::embedded_fixture::Embedded }
}
