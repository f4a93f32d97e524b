//! Requests that a link could not bring to an answer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::{Course, kept};
use super::frame::Refused;
use crate::front::{Answer, Ticket, TraceId, Tried};

/// Why a request came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The link ended before an answer arrived. The server may have carried the request out.
    LinkDied,
    /// The server refused to answer.
    Refused(Refused),
    /// The link lives, and the deadline went by without a word. The server has been told that nobody waits any more; it may
    /// have carried the request out, or may yet.
    Overdue,
}

/// A request whose link brought no answer. It still has its client, who waits.
///
/// It can be sent on another link ([`LinkClient::resend`](super::LinkClient::resend)), go over plain HTTP
/// ([`Returned::call`]), or be answered. Dropped, it is answered 502.
#[derive(Debug)]
#[must_use = "a request that is dropped is answered 502"]
pub struct Returned {
    pub(super) ticket: Ticket,
    pub(super) frame: Vec<u8>,
    pub(super) why: Why,
    pub(super) course: Course,
}

impl Returned {
    /// Why it came back.
    #[must_use]
    pub fn why(&self) -> Why {
        self.why
    }

    /// How many links it was sent on.
    #[must_use]
    pub fn attempts(&self) -> u8 {
        self.course.attempts
    }

    /// On how many of these it may have been carried out.
    #[must_use]
    pub fn tried(&self) -> u8 {
        self.course.tried
    }

    /// When the last byte of its head had been read from its client.
    #[must_use]
    pub fn arrived(&self) -> Instant {
        self.ticket.arrived()
    }

    /// How long its client took to send it after its first byte.
    #[must_use]
    pub fn sending(&self) -> Duration {
        Duration::from_micros(self.course.sending_us.into())
    }

    /// The trace that it belongs to.
    #[must_use]
    pub fn trace(&self) -> Option<TraceId> {
        self.course.trace
    }

    /// [`Outgoing::mark`](super::Outgoing::mark) of it.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.course.mark
    }

    /// Its head, as it was sent.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        kept(&self.frame).map_or(&[], |request| request.head)
    }

    /// Its body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        kept(&self.frame).map_or(&[], |request| request.body)
    }

    /// Whom it is from.
    #[must_use]
    pub fn client(&self) -> Option<SocketAddr> {
        kept(&self.frame).map(|request| request.client)
    }

    /// Whether it changes nothing when it is carried out twice: GET and HEAD. (A poll collects, but what one collects
    /// another does not.)
    #[must_use]
    pub fn is_safe(&self) -> bool {
        let line = self.head().trim_ascii_start();
        line.starts_with(b"GET ") || line.starts_with(b"HEAD ")
    }

    /// Whether sending it again cannot carry it out twice: nothing was done, or it is safe.
    #[must_use]
    pub fn may_repeat(&self) -> bool {
        self.why == Why::Refused(Refused::Leaving) || self.is_safe()
    }

    /// Whether its client still waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.ticket.is_waiting()
    }

    /// Has the front give it to [`Backend::call`](crate::front::Backend::call), which can stream an answer of any size, and
    /// is told by [`Tried`] how often it may have been carried out.
    pub fn call(self) {
        match kept(&self.frame) {
            Some(request) => {
                let tried = Tried(self.course.tried);
                self.ticket.call(request.head, request.body, tried);
            }
            None => drop(self.ticket),
        }
    }

    /// Answers it.
    pub fn answer(self, write: impl FnOnce(&mut Answer<'_>)) {
        self.ticket.answer(write);
    }

    /// Its ticket alone.
    pub fn into_ticket(self) -> Ticket {
        self.ticket
    }
}
