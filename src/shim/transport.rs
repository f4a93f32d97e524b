//! How a request travels to its instance: what every way of travelling takes and gives.
//!
//! Whoever chose the instance ([`super::group`]), decides about a second attempt and writes down what it took
//! ([`super::forward`]) does not know what carries the request. A transport tells the ticket what became of it.

use super::body::ShimBody;
use super::group::{Failure, Ticket};
use super::plain;
use super::replay::ReplayBody;
use http::request::Parts;
use http::response;

/// A request for an instance.
pub(super) struct Outgoing<'a> {
    /// Its head, without what concerned the client's connection only.
    pub(super) parts: &'a Parts,
    /// Its body. Taken by a transport whose answer has begun before the body was over; it stays for all others, as far as
    /// it has been read.
    pub(super) body: &'a mut Option<ReplayBody>,
    /// Whether nothing is lost by sending it twice. One that must not be sent twice may only travel where an end without
    /// an answer cannot be the end of a connection that was idle too long.
    pub(super) may_repeat: bool,
    /// It is sent for the second time: not where the same could happen to it again.
    pub(super) is_repeat: bool,
    /// How much of a body of unknown length may be read ahead, for an instance that must know its length.
    pub(super) read_ahead_max: usize,
}

/// The beginning of an answer. Its body holds the ticket until it ends, and what it travels on.
pub(super) struct Incoming {
    pub(super) parts: response::Parts,
    pub(super) body: ShimBody,
}

/// Why there is no answer. The ticket has been told, and is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Nothing was sent: it may go elsewhere whatever it is.
    NotSent,
    /// It was sent. After [`Failure::Closed`] no byte of an answer had come.
    Sent(Failure),
    /// The client's body failed.
    Client,
    /// The instance must know a body's length, and this one is too large to be read ahead.
    LengthRequired,
}

/// Sends a request and waits for the head of its answer.
///
/// # Errors
/// Why there is none.
pub(super) async fn send(ticket: Ticket, request: Outgoing<'_>) -> Result<Incoming, Lost> {
    plain::send(ticket, request).await
}
