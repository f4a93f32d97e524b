//! What is asked of the instances.

use crate::http_site::{Ask, Site, series, wait};

/// The seed of this run, which it prints.
pub fn seed() -> u64 {
    let seed = std::env::var("TROVE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    println!("TROVE_TEST_SEED={seed}");
    seed
}

/// The sum of a series over all instances.
#[track_caller]
pub fn metric(sites: &[Site], name: &str) -> u64 {
    sites
        .iter()
        .map(|site| series(&site.ops().send(Ask::get("/metrics")).text(), name))
        .sum()
}

/// What replay brought back: finds and credits.
pub fn replayed(sites: &[Site]) -> (u64, u64) {
    let of = |kind: &str| metric(sites, &format!("trove_replayed_total{{kind=\"{kind}\"}}"));
    (of("find"), of("credit"))
}

/// Waits until every instance has got over a failover.
#[track_caller]
pub fn recovered(sites: &[Site]) {
    for site in sites {
        wait("the store to be up", || {
            let health = site.client().send(Ask::get("/health")).json();
            health["store"] == "up"
        });
    }
}
