//! What failover tests share: a group of servers that can fail, and clients outside that keep their own books.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each test binary uses its part.

mod books;
mod group;
mod relay;
mod sites;

pub use books::Load;
#[allow(unused_imports)] // As above.
pub use group::Group;
#[allow(unused_imports)] // As above.
pub use relay::{Relay, Way, Who};
#[allow(unused_imports)] // As above.
pub use sites::{metric, recovered, replayed, seed};
