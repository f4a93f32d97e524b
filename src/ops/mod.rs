//! The page for operators, `/ops`, on the operations listener of server and shim: what is going on now, and for the last
//! five minutes.
//!
//! - [`page`]: the page itself, compiled in. It asks nobody but the process that served it.
//! - [`live`]: one state a second, made once for all who look, and sent as server-sent events. Nobody looks: none is made.
//! - [`moments`]: what is kept of each second whether anybody looks or not, bounded, so that a page begins with the past.
//! - [`exposed`]: the numbers of the page are those of `/metrics`, read from what a scrape would get.
//! - [`finds`]: the latest finds.
//!
//! It knows neither game nor store: server and shim say in [`live::Source`] what they have to show.

pub mod exposed;
pub mod finds;
pub mod live;
pub mod moments;
pub mod page;

pub use finds::{LatestFind, LatestFinds};
pub use live::{Gathered, Live, Source};
pub use moments::Tracked;
