//! The game's back end: it reports finds of players in bulk, one request each second if there are any, with the admin key. A
//! batch whose outcome is unknown is sent again, as it was, until it is known.

use super::engine::Engine;
use super::tally::Drop;
use super::user::Waiting;
use crate::case::{BULK_EVERY, BULK_FINDS_MAX, Kind};
use crate::checker::finds::{Fate, Find};
use std::collections::VecDeque;

/// The most finds that wait to be reported.
pub(super) const BULK_WAITING_MAX: usize = 100_000;
/// The most batches whose outcome is unknown or that wait to be sent.
pub(super) const BATCHES_MAX: usize = 32;

type Batch = Vec<(u32, Find)>;

/// What the back end has to report.
#[derive(Debug, Default)]
pub(super) struct BackEnd {
    has_key: bool,
    next: Batch,
    /// With a request for each: the first is under way, or will be next.
    ready: VecDeque<Batch>,
    failed: Vec<Batch>,
    /// Whether batches are sent as lines; every other one is.
    lines: bool,
}

impl BackEnd {
    pub(super) fn new(has_key: bool) -> Self {
        Self {
            has_key,
            ..Self::default()
        }
    }

    pub(super) const fn has_key(&self) -> bool {
        self.has_key
    }
}

impl Engine {
    /// A find for the back end to report.
    pub(super) fn bulk_add(&mut self, user: u32, find: Find, intended_us: u64, now_us: u64) {
        if self.back_end.next.len() >= BULK_WAITING_MAX {
            let request = bulk_request(intended_us);
            self.tally.of(Kind::BulkFind).intended += 1;
            self.drop_request(0, request, Drop::BulkFull, now_us);
            return;
        }
        self.back_end.next.push((user, find));
    }

    /// The back end's second is over.
    pub(super) fn bulk_tick(&mut self, intended_us: u64, now_us: u64) {
        let every_us = super::schedule::micros(BULK_EVERY);
        self.user(0)
            .schedule
            .set(Kind::BulkFind, intended_us + every_us);
        for batch in std::mem::take(&mut self.back_end.failed) {
            self.back_end.ready.push_back(batch);
            self.request(0, bulk_request(intended_us), now_us);
        }
        let batches = self.back_end.ready.len() + self.back_end.failed.len();
        if self.back_end.next.is_empty() || batches >= BATCHES_MAX {
            return;
        }
        let most = usize::try_from(BULK_FINDS_MAX).unwrap_or(usize::MAX);
        let rest = self
            .back_end
            .next
            .split_off(self.back_end.next.len().min(most));
        let batch = std::mem::replace(&mut self.back_end.next, rest);
        for (number, find) in &batch {
            let poll_under_way = self.user(*number).polls();
            let user = &mut self.users[*number as usize];
            self.checker
                .find_leaves(*number, &mut user.wallet, *find, poll_under_way);
        }
        self.back_end.ready.push_back(batch);
        self.request(0, bulk_request(intended_us), now_us);
    }

    /// Writes the batch whose turn it is.
    pub(super) fn compose_bulk(&mut self, out: &mut Vec<u8>) {
        self.back_end.lines = !self.back_end.lines;
        if let Some(batch) = self.back_end.ready.front() {
            let key = &self.users[0].token;
            self.requests
                .write_bulk(out, key, batch, self.back_end.lines);
        }
    }

    /// The request of the batch whose turn it is has failed.
    pub(super) fn bulk_failed(&mut self) {
        if let Some(batch) = self.back_end.ready.pop_front() {
            self.back_end.failed.push(batch);
        }
    }

    /// An answer to the batch whose turn it is.
    pub(super) fn tell_bulk(&mut self, status: u16, body: &[u8]) {
        let Some(batch) = self.back_end.ready.pop_front() else {
            return;
        };
        let Some(outcomes) = self.checker.bulk_outcomes(status, body, batch.len()) else {
            self.back_end.failed.push(batch);
            return;
        };
        let mut unknown = Batch::new();
        for ((number, find), outcome) in batch.iter().zip(&outcomes) {
            let wallet = &mut self.users[*number as usize].wallet;
            let fate = self.checker.bulk_answered(*number, wallet, *find, outcome);
            if fate == Fate::Unknown {
                unknown.push((*number, *find));
            }
        }
        if !unknown.is_empty() {
            self.back_end.failed.push(unknown);
        }
    }
}

const fn bulk_request(intended_us: u64) -> Waiting {
    Waiting {
        kind: Kind::BulkFind,
        intended_us,
        find: None,
        conditional: false,
        again: false,
    }
}
