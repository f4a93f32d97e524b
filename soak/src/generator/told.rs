//! Finds are made, and answers are given to the checker.

use super::answer::Head;
use super::engine::Engine;
use super::request::Treasure;
use super::tally::{Drop, Failure};
use super::user::{Exchange, Waiting};
use crate::books::ids;
use crate::case::Kind;
use crate::checker::finds::{Fate, Find};

/// A player who abandons a find comes back this long after its window.
const ABANDON_EXTRA_US: u64 = 1_500_000;
/// After how long a user looks at its history where a poll has left out entries.
const LOOK_BACK_US: u64 = 1_000_000;
/// Of so many finds of a user one is of a treasure that can be found once, as long as there are some.
const ONCE_OF: usize = 8;
/// Of so many finds in bulk one is of coins without a treasure.
const COINS_OF: u64 = 4;

impl Engine {
    /// A find is due. None: it goes to the back end, or nowhere.
    pub(super) fn new_find(&mut self, number: u32, intended_us: u64, now_us: u64) -> Option<Find> {
        let behaviour = self.case.behaviour.clone();
        let schedule = &mut self.user(number).schedule;
        // All drawn, whatever is used, so that a user's schedule does not depend on what became of its finds.
        let (bulk, abandons, repeats) = (schedule.share(), schedule.share(), schedule.share());
        let (treasure, once) = (schedule.below(usize::MAX), schedule.below(ONCE_OF) == 0);
        let in_bulk = bulk < behaviour.bulk_share && self.back_end.has_key();
        let offline = self.user(number).is_offline(now_us);
        if !in_bulk && offline || !self.user(number).wallet.has_room() {
            let find = Waiting {
                kind: Kind::Find,
                intended_us,
                find: None,
                conditional: false,
                again: false,
            };
            self.tally.of(Kind::Find).intended += 1;
            let why = if offline { Drop::Offline } else { Drop::GaveUp };
            self.drop_request(number, find, why, now_us);
            return None;
        }
        if once
            && !in_bulk
            && let Some(find) = self.once_only(number)
        {
            return Some(find);
        }
        let find = self.repeatable(treasure, in_bulk)?;
        if in_bulk {
            self.bulk_add(number, find, intended_us, now_us);
            return None;
        }
        let user = self.user(number);
        if abandons < behaviour.abandon_share {
            user.abandons = Some(find.number);
        }
        if repeats < behaviour.find_retry_share {
            user.repeats = Some(find.number);
        }
        Some(find)
    }

    /// Finds in bulk of a recording.
    pub(super) fn replayed_bulk(&mut self, number: u32, intended_us: u64, now_us: u64) {
        let treasure = self.user(number).schedule.below(usize::MAX);
        if self.back_end.has_key()
            && self.user(number).wallet.has_room()
            && let Some(find) = self.repeatable(treasure, true)
        {
            self.bulk_add(number, find, intended_us, now_us);
        }
    }

    /// The next treasure that this user can find once. After an interruption nobody knows which those are.
    fn once_only(&mut self, number: u32) -> Option<Find> {
        if self.first_find > 0 {
            return None;
        }
        let from = self.user(number).once_next;
        let treasures = self.requests.treasures();
        let (index, find) = (from..)
            .zip(treasures.get(usize::from(from)..)?)
            .find_map(|(index, treasure)| Some((index, once(index, treasure)?)))?;
        self.user(number).once_next = index + 1;
        self.next_find += 1;
        Some(find)
    }

    /// A find of a repeatable treasure, or of coins without one.
    fn repeatable(&mut self, random: usize, in_bulk: bool) -> Option<Find> {
        let number = self.next_find;
        if in_bulk && number.is_multiple_of(COINS_OF) {
            self.next_find += 1;
            return Some(Find {
                number,
                treasure: None,
                coins: number % 100 + 1,
            });
        }
        let treasures = self.requests.treasures();
        let (before, from) = treasures.split_at(random % treasures.len().max(1));
        let nth = from
            .iter()
            .chain(before)
            .position(|treasure| treasure.repeatable)?;
        let index = (before.len() + nth) % treasures.len();
        let coins = treasures[index].coins;
        self.next_find += 1;
        Some(Find {
            number,
            treasure: u16::try_from(index).ok(),
            coins,
        })
    }

    /// Gives an answer to the checker, unless the model loses it. Says how it failed, if it did.
    pub(super) fn tell(
        &mut self,
        number: u32,
        exchange: &Exchange,
        head: &Head,
        body: &[u8],
        now_us: u64,
    ) -> Option<Failure> {
        self.checker.at(now_us / 1_000);
        let kind = exchange.request.kind;
        let status = head.status;
        let conditional = exchange.asked.is_some_and(|asked| asked.conditional);
        let good = match kind {
            _ if self.template => (200..400).contains(&status),
            Kind::Poll => status == 200 || status == 304 && conditional,
            Kind::Find => matches!(status, 200 | 201 | 409),
            Kind::Heartbeat => (200..300).contains(&status),
            Kind::BulkFind | Kind::History | Kind::Catalogue => status == 200,
        };
        if kind == Kind::Poll {
            for (part, us) in self.tally.parts.iter_mut().zip(head.parts_us) {
                if let Some(us) = us {
                    part.saturating_record(u64::from(us).max(1));
                }
            }
        }
        let failure = (!good).then_some(Failure::Status(status));
        match (kind, exchange.request.find) {
            (Kind::Find, Some(find)) if exchange.answer_lost => {
                // As phones do: again when the answer has not come in time.
                self.try_again_after(number, find, self.timeout_us, now_us);
            }
            _ if exchange.answer_lost || self.template => {}
            (Kind::Poll, _) => self.tell_poll(number, exchange, head, body),
            (Kind::Find, Some(find)) => self.tell_find(number, find, head, body, now_us),
            (Kind::BulkFind, _) => self.tell_bulk(status, body),
            (Kind::History, _) if status == 200 => {
                let wallet = &mut self.users[number as usize].wallet;
                self.checker.looked_back(number, wallet, body);
            }
            _ => {}
        }
        failure
    }

    fn tell_poll(&mut self, number: u32, exchange: &Exchange, head: &Head, body: &[u8]) {
        let Some(asked) = exchange.asked else { return };
        let wallet = &mut self.users[number as usize].wallet;
        match head.status {
            304 => self
                .checker
                .not_modified(number, wallet, asked, head.cursor, head.stale),
            200 => {
                self.checker.polled(number, wallet, asked, body);
                if wallet.looks_back && !self.template {
                    // Soon, and once; the schedule's own looks come an interval after it.
                    let soon_us = exchange.sent_us + LOOK_BACK_US;
                    let schedule = &mut self.user(number).schedule;
                    schedule.advance(Kind::History, soon_us);
                }
            }
            // It may have credited all the same.
            _ => wallet.is_untouched = false,
        }
    }

    fn tell_find(&mut self, number: u32, find: Find, head: &Head, body: &[u8], now_us: u64) {
        let user = &mut self.users[number as usize];
        let fate = self.checker.find_answered(
            number,
            &mut user.wallet,
            (find, user.is_aside),
            (head.status, body),
        );
        match fate {
            Fate::Unknown => {
                let after_us = head
                    .retry_after_s
                    .map_or(1_000_000, |s| u64::from(s) * 1_000_000);
                self.try_again_after(number, find, after_us, now_us);
            }
            Fate::Refused => {}
            Fate::Acknowledged => {
                let window_us = self.window_us;
                let user = self.user(number);
                if user.abandons == Some(find.number) {
                    user.abandons = None;
                    user.away_until_us = now_us + window_us + ABANDON_EXTRA_US;
                    user.link.closes = true;
                }
                if user.repeats == Some(find.number) {
                    user.repeats = None;
                    user.retries.push((now_us, find));
                }
            }
        }
    }
}

/// A treasure as a find that can be made once, if it is one and is named so that the books can tell.
fn once(index: u16, treasure: &Treasure) -> Option<Find> {
    let number = ids::find_number(&treasure.id).filter(|number| number & ids::ONCE != 0)?;
    (!treasure.repeatable).then_some(Find {
        number,
        treasure: Some(index),
        coins: treasure.coins,
    })
}
