//! Offers that the store has executed: what came of them counts once fences cover it. A replica that is away keeps a fence waiting
//! for as long as fences may take; meanwhile the recovery goes on, and nothing is executed twice for it.

use super::item::Kind;
use super::offer::{Offer, Offered};
use crate::store::StoreError;
use crate::store::redis::durable::Sent;
use crate::store::redis::jobs::{Answer, Job};
use crate::store::redis::shared::Core;
use futures_util::future::join_all;
use std::collections::HashSet;
use std::time::Duration;

/// Where something was executed: a key of its partition, and the server as it was when it was sent.
pub(super) type Place = (String, Option<Sent>);
/// An item's number in the ring, its kind, and what came of the offer.
type Executed = (u64, Kind, Offered);

/// See the module.
#[derive(Default)]
pub(super) struct Uncovered {
    by_place: Vec<(Place, Vec<Executed>)>,
    numbers: HashSet<u64>,
}

impl Uncovered {
    pub(super) fn add(&mut self, place: Place, executed: Executed) {
        self.numbers.insert(executed.0);
        // Servers are few.
        match self
            .by_place
            .iter_mut()
            .find(|(known, _)| known.1 == place.1)
        {
            Some((_, of)) => of.push(executed),
            None => self.by_place.push((place, vec![executed])),
        }
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// Everything, as if it were covered.
    pub(super) fn into_all(self) -> impl Iterator<Item = Executed> {
        self.by_place.into_iter().flat_map(|(_, of)| of)
    }
}

impl Core {
    /// Lets the store execute offers. What each came to, and where.
    pub(super) async fn execute_offers(&self, jobs: &[Job<'_>]) -> Vec<(Answer, Place)> {
        let mut sent = self.sending(jobs.iter().map(Job::place));
        sent.resize(jobs.len(), None);
        let answers = self.execute(jobs).await.into_iter().zip(sent).zip(jobs);
        answers
            .map(|((answer, sent), job)| (answer, (job.place().to_owned(), sent)))
            .collect()
    }

    /// The same of a single one.
    pub(super) async fn execute_offer(&self, job: Job<'_>) -> (Answer, Place) {
        let answer = self.execute_offers(std::slice::from_ref(&job)).await.pop();
        answer.unwrap_or_else(|| {
            let none = StoreError::Unavailable("no answer".into());
            (Answer::Failed(none), (job.place().to_owned(), None))
        })
    }

    /// Notes what came of an offer: at once, unless fences are to cover it first. Says whether to go on.
    pub(super) fn note_offer(
        &self,
        epoch: u64,
        (number, kind): (u64, Kind),
        offer: Offer,
        uncovered: &mut Uncovered,
    ) -> bool {
        match offer {
            Ok((Offered::Later, _)) => self.take(epoch, (number, kind), Ok(Offered::Later)),
            Ok((offered, Some(place))) => {
                uncovered.add(place, (number, kind, offered));
                self.shared.epoch() == epoch
            }
            Ok((offered, None)) => self.take(epoch, (number, kind), Ok(offered)),
            Err(error) => self.take(epoch, (number, kind), Err(error)),
        }
    }

    /// Notes what came of offers that fences cover by now, or within that time. What was executed in another history, or may have
    /// been, has to be offered again.
    pub(super) async fn settle_covered(
        &self,
        epoch: u64,
        uncovered: &mut Uncovered,
        within: Duration,
    ) {
        let covers = uncovered
            .by_place
            .iter_mut()
            .map(|((key, sent), of)| async move {
                let covered = self.covered(&[key], std::slice::from_ref(sent)).await;
                let as_sent = |sent: &Sent| self.is_as_sent(key, sent);
                if covered.iter().all(Result::is_ok) {
                    for (number, kind, offered) in of.drain(..) {
                        self.take(epoch, (number, kind), Ok(offered));
                    }
                } else if !sent.as_ref().is_some_and(as_sent) {
                    of.clear();
                }
            });
        // Those that are covered in time are noted all the same.
        let _ = tokio::time::timeout(within, join_all(covers)).await;
        uncovered.by_place.retain(|(_, of)| !of.is_empty());
        let left = uncovered.by_place.iter().flat_map(|(_, of)| of);
        uncovered.numbers = left.map(|(number, ..)| *number).collect();
    }
}
