//! Links: one connection between a shim and a server on which many requests are under way at once.
//!
//! A link begins as an HTTP/1.1 request with `Upgrade: trove-link/1`. After the 101 both sides send frames ([`frame`]): a
//! request with a tag, an answer with the same tag, in whatever order answers come, and each side writes once a turn of its
//! event loop. So a poll costs either side a fraction of a system call, a held poll costs the others nothing, and ten
//! thousand held polls need no ten thousand connections.
//!
//! Measured as nginx and HAProxy were in the same run, CPU a poll: a shim that is a front and one link spends 0.47 of the
//! better of the two at 64 connections and 0.38 at 512, and leaves the server 0.28 and 0.24 of what they leave it. About
//! 13 polls share a write of the link at 64 connections; 85 % of the shim's time is the kernel's, nearly all of it the write
//! to the client.
//!
//! The server's end is a [`Backend`](crate::front::Backend) around another, [`Linked`]; the client's end a [`LinkClient`],
//! which answers tickets of its own front. What is too large, or streams, travels over plain HTTP.
//!
//! What holds:
//! - **Each tag has exactly one last word**: an answer, a refusal, or the receipt of its cancelling. Only then its place is
//!   used again, with the next serial number. A last word for a tag that is not under way, or a tag whose serial is not the
//!   next, ends the link at once: an answer is delivered to the player who asked or to nobody.
//! - A request whose client has gone, or whose deadline has, is cancelled; what still comes for it is dropped.
//! - When a link ends, every request under way that still has its client is given back once ([`LinkOwner::returned`]).
//! - Requests under way, frames and buffers are bounded ([`LinkLimits`]). A server whose client does not read reads no more
//!   itself.

mod call;
mod client;
mod driver;
pub mod frame;
mod handshake;
mod input;
mod limits;
mod outgoing;
mod overdue;
mod peers;
mod places;
mod returned;
mod server;

pub use client::{Delivery, LinkClient, LinkOwner, Rejected};
pub use driver::{LinkDriver, LinkEnd};
pub use frame::{FrameError, Refused};
pub use handshake::{HandshakeError, connect, handshake};
pub use limits::{LinkLimits, REQUESTS_CAPACITY};
pub use outgoing::Outgoing;
pub use peers::{LinkPeers, NotANetwork};
pub use returned::{Returned, Why};
pub use server::Linked;
