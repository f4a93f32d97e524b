//! Requests that a link which lives does not answer in time.
//!
//! Their clients are told, and so is the server; their tags stay taken until its last word. There is no timer for each: the
//! link knows a moment before which none is overdue, and looks through all of them when it has come. With one deadline for
//! all, that is once a deadline, however many requests come and go meanwhile.

use std::time::Instant;

use super::client::State;
use super::frame::{self, Frame, Tag};
use super::returned::{Returned, Why};

impl State {
    /// Takes out the requests that are overdue, and finds out when to look again.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<Returned> {
        let mut overdue = Vec::new();
        let mut next_due: Option<Instant> = None;
        for (index, place) in (0u32..).zip(&mut self.places) {
            let Some(under_way) = &mut place.under_way else {
                continue;
            };
            if under_way.ticket.is_none() {
                continue;
            }
            if under_way.due > now {
                next_due = Some(next_due.map_or(under_way.due, |next| next.min(under_way.due)));
                continue;
            }
            let tag = Tag {
                place: index,
                serial: place.serial,
            };
            frame::push(&mut self.out, &Frame::Cancel(tag));
            overdue.extend(under_way.give_back(Why::Overdue));
        }
        self.next_due = next_due;
        overdue
    }
}
