//! The cases that ship with the harness, compiled in so that they run by name from anywhere.

use std::path::Path;

/// A case that ships.
#[derive(Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(Shipped { name: $name, text: include_str!(concat!("../../cases/", $name, ".toml")) }),*]
    };
}

/// All of them, in the order in which a newcomer should meet them.
pub static CASES: [Shipped; 11] = shipped![
    "smoke",
    "users-10k",
    "steps",
    "spike",
    "failover",
    "failover-async",
    "deploy",
    "sla-story",
    "event-48h",
    "event-48h-compressed",
    "shim-10k",
];

/// The case of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Shipped> {
    CASES.iter().find(|case| case.name == name)
}

/// The curve file of this name.
pub(super) fn data(file: &Path) -> Option<&'static str> {
    (file == Path::new("elb_request_count.csv"))
        .then_some(include_str!("../../cases/elb_request_count.csv"))
}
