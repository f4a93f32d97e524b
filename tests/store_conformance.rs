//! Runs the conformance suite on every store.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

#[path = "store_suite/cluster.rs"]
mod cluster_fixture;
#[path = "store_suite/embedded.rs"]
mod embedded_fixture;
#[path = "store_suite/redis.rs"]
mod redis_fixture;
mod redis_server;
mod store_suite;

mod embedded {
    crate::conformance! { crate::embedded_fixture::Embedded }
}

mod redis {
    crate::conformance! { crate::redis_fixture::Redis<16> }
}

mod redis_cluster {
    crate::conformance! { crate::cluster_fixture::OnCluster }
}
