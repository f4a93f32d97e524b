//! The shim: it stands in front of servers, answers heartbeats itself, and sends everything else on.
//!
//! - [`backend`] is what the front sees: heartbeats ([`heartbeat`]), health, answers that are kept ([`cache`]), and the
//!   rest, which goes to [`forward`].
//! - [`upstreams`]: groups of instances, and which of them is live. [`group`] gives a request its instance
//!   ([`balance`] chooses, [`queue`] holds those that must wait), [`health`] knows who is well.
//! - [`by_link`] is the life of a small request to an instance that speaks links, [`links`] keeps these open.
//! - [`forward`] is the life of any other: attempts, retries, times. [`transport`] is what carries it, which is
//!   [`plain`] HTTP/1.1: [`exchange`] is one attempt on a connection of the [`pool`], [`wire`] reads and writes its bytes;
//!   [`replay`] keeps a request's body where that allows a second attempt.
//! - [`blame`]: whose fault it is when a request was slow. [`mod@trace`]: the number by which its instance tells of it too.
//! - [`players`]: who a token speaks for, and who is online ([`presence`]).
//! - [`peers`]: who is believed about the client's address; [`proxy_protocol`] reads it.
//! - [`mod@run`] is the process, [`ops`] its operations listener ([`ops_page`] its page), [`metrics`] what it counts.
//!
//! What holds:
//! - A request is given to one instance at a time. Over plain HTTP its answer comes from the connection on which it alone
//!   was sent; one whose answer broke, or that had a byte too many, is never used again. On a link it has a tag of its own
//!   ([`crate::link`] says what holds there).
//! - A request is sent a second time only if no byte of its answer arrived, and only if sending it twice is safe.
//! - Whoever waits in a queue is served before whoever comes later and goes the same way: links have no queue.
//!
//! The shim knows neither game nor store.

mod backend;
mod balance;
mod blame;
mod body;
mod by_link;
mod cache;
mod exchange;
mod forward;
mod group;
mod health;
mod heartbeat;
mod instance;
mod links;
mod metrics;
mod ops;
mod ops_page;
mod peers;
mod plain;
mod players;
mod pool;
mod presence;
mod problem;
mod proxy_protocol;
mod queue;
mod replay;
mod run;
mod trace;
mod transport;
mod upstreams;
mod wire;

pub use balance::{PlayerKey, player_key};
pub use group::{Failure, Group, Ticket};
pub use instance::Instance;
pub use queue::Shed;
pub use run::{Keys, ShimError, run};
pub use upstreams::Upstreams;
