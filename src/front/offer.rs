//! A request that a backend may take, before it has.

use std::sync::Arc;

use super::answer::Shape;
use super::desk::{Desk, TakenShape, Ticket};
use super::head::Head;

/// A request that a backend may take: see [`Backend::take`](super::Backend::take).
pub struct Offer<'a> {
    head: &'a Head<'a>,
    raw: &'a [u8],
    body: &'a [u8],
    desk: &'a Arc<Desk>,
    seat: u32,
    shape: TakenShape,
    drawn: Option<(u32, u64)>,
}

impl<'a> Offer<'a> {
    pub(super) fn new(
        head: &'a Head<'a>,
        raw: &'a [u8],
        body: &'a [u8],
        (desk, seat): (&'a Arc<Desk>, u32),
        shape: Shape<'_>,
    ) -> Self {
        let shape = TakenShape {
            persistence: shape.persistence,
            head_only: shape.head_only,
            arrived: head.arrived(),
        };
        Offer {
            head,
            raw,
            body,
            desk,
            seat,
            shape,
            drawn: None,
        }
    }

    /// Its head.
    #[must_use]
    pub fn head(&self) -> &'a Head<'a> {
        self.head
    }

    /// The bytes of its head as they were read, to the empty line.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Its body; empty if it has none.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Takes the request. `None` if it was taken before.
    pub fn ticket(&mut self) -> Option<Ticket> {
        if self.drawn.is_some() {
            return None;
        }
        let ticket = self.desk.draw(self.seat, self.shape);
        self.drawn = Some((ticket.place, ticket.serial));
        Some(ticket)
    }

    /// Takes the request no more: it goes to `call`. A ticket of another request is only dropped.
    pub fn give_back(&mut self, mut ticket: Ticket) {
        let is_ours = Arc::ptr_eq(self.desk, &ticket.desk)
            && self.drawn == Some((ticket.place, ticket.serial));
        if is_ours && ticket.is_waiting() {
            ticket.serial = 0;
            self.desk.abandon(ticket.place);
            self.drawn = None;
        }
    }

    /// The place of the ticket that was drawn.
    pub(super) fn drawn(&self) -> Option<u32> {
        self.drawn.map(|(place, _)| place)
    }
}
