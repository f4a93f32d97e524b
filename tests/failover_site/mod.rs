//! What failover tests share: a group of servers that can fail, and clients outside that keep their own books.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each test binary uses its part.

mod books;
mod group;
mod relay;

pub use books::Load;
pub use group::Group;
#[allow(unused_imports)] // As above.
pub use relay::{Relay, Way, Who};
