//! Checks of a poll's answer.

use super::poll_body::{self, PollBody, TellFind};
use super::wallet::Wallet;
use super::{Checker, Cursor, EXPIRY_LATE_MS, EXPIRY_SLACK_MS, HEARD_MS, kind};
use crate::books::{Told, ids};

/// What a poll asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The cursor that it named.
    pub named: Option<Cursor>,
    /// Whether by `If-None-Match`.
    pub conditional: bool,
    /// When it was sent, by the run's clock, milliseconds.
    pub sent_ms: u64,
}

/// How an answer relates to what the user knew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// Its credits are all that came since the known cursor.
    Complete,
    /// It shows all that it collected itself, or some of what came since the cursor.
    Partial,
    /// The history was cut: finds may be shown again.
    Reset,
}

impl Checker {
    /// A poll leaves.
    pub fn poll_leaves(&mut self, wallet: &mut Wallet) {
        let now = self.server_time_least(self.now_ms);
        let window_ms = self.window_ms;
        for open in wallet.open_mut() {
            open.poll_in_window |= !open.is_acknowledged() || now <= open.found_at + window_ms;
        }
    }

    /// A 304.
    pub fn not_modified(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        asked: Asked,
        told: Option<Cursor>,
        stale: bool,
    ) {
        if !asked.conditional {
            self.found(
                user,
                kind::NOT_MODIFIED,
                "304 to a poll without If-None-Match".to_owned(),
            );
            return;
        }
        if told.is_some() && told != asked.named {
            let text = format!(
                "304 with the cursor {told:?} to a poll that named {:?}",
                asked.named
            );
            self.found(user, kind::NOT_MODIFIED, text);
            return;
        }
        if stale {
            self.counts.stale += 1;
        } else {
            // What it says is at least as old as when it was asked.
            self.had_to_credit(wallet, self.server_time_least(asked.sent_ms));
        }
    }

    /// A 200. Takes its body. Sets `looks_back` where entries may have been left out.
    pub fn polled(&mut self, user: u32, wallet: &mut Wallet, asked: Asked, body: &[u8]) {
        let poll = match poll_body::read(body) {
            Ok(poll) => poll,
            Err(error) => {
                self.found(user, kind::MALFORMED, format!("a poll's body: {error}"));
                return;
            }
        };
        // A user of a number is of a name: compared without making the name.
        if ids::user_of(&poll.player) != Some(user) || poll.hunt != self.hunt {
            let text = format!("told of {} in {}", poll.player, poll.hunt);
            self.found(user, kind::WRONG_PLAYER, text);
            return;
        }
        self.learn_clock(poll.server_time);
        let sum = poll.finds.iter().map(|find| find.coins).sum::<u64>();
        if sum != poll.credited {
            let text = format!("credited {} and finds of {sum} coins", poll.credited);
            self.found(user, kind::COINS, text);
        }
        if poll.stale {
            // From memory: true of some moment, so nothing follows from it. What it shows will be shown again, since the next
            // poll names the same cursor as this one.
            self.counts.stale += 1;
            wallet.is_untouched = false;
            return;
        }
        let Some(relation) = self.relate(user, wallet, &poll, sum) else {
            return;
        };
        wallet.cursor = Some(poll.cursor);
        wallet.balance = poll.balance;
        for find in &poll.finds {
            self.credited(user, wallet, find, &poll, relation);
        }
        for find in &poll.expired {
            self.expired(user, wallet, find, &poll, relation);
        }
        if relation != Relation::Complete && !wallet.open().is_empty() {
            wallet.looks_back = true;
        }
        if poll.pending == 0 {
            self.had_to_credit(wallet, self.server_time_least(asked.sent_ms));
            if !wallet.looks_back {
                self.look_for_lost(user, wallet, poll.server_time);
            }
        }
    }

    /// Holds cursor and balance against what is known. None: the answer contradicts it and is not followed.
    fn relate(
        &mut self,
        user: u32,
        wallet: &Wallet,
        poll: &PollBody<'_>,
        sum: u64,
    ) -> Option<Relation> {
        let Some(known) = wallet.cursor else {
            if wallet.is_untouched && poll.balance != sum {
                let text = format!("{} at first, with credits of {sum}", poll.balance);
                self.found(user, kind::BALANCE, text);
            }
            return Some(Relation::Partial);
        };
        let told = poll.cursor;
        if told.epoch != known.epoch {
            if told.epoch < known.epoch || !poll.reset {
                let how = if poll.reset {
                    ""
                } else {
                    " without saying reset"
                };
                let text = format!("from {known:?} to {told:?}{how}");
                self.found(user, kind::SEQUENCE, text);
                // Not followed backwards: the next answers are held against the later epoch.
                return (told.epoch > known.epoch).then_some(Relation::Reset);
            }
            return Some(Relation::Reset);
        }
        if told.seq < known.seq || poll.reset {
            let text = format!("from {known:?} to {told:?}, reset {}", poll.reset);
            self.found(user, kind::SEQUENCE, text);
            return (told.seq >= known.seq).then_some(Relation::Reset);
        }
        if poll.gap {
            return Some(Relation::Partial);
        }
        let entries = (poll.finds.len() + poll.expired.len()) as u64;
        if entries > told.seq - known.seq {
            let text = format!("{entries} credits and expiries between {known:?} and {told:?}");
            self.found(user, kind::SEQUENCE, text);
        }
        let expected = wallet.balance + sum;
        if poll.balance != expected {
            let text = format!(
                "{} at {told:?}, after {} at {known:?} and credits of {sum}",
                poll.balance, wallet.balance
            );
            self.found(user, kind::BALANCE, text);
        }
        Some(Relation::Complete)
    }

    fn credited(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        find: &TellFind<'_>,
        poll: &PollBody<'_>,
        relation: Relation,
    ) {
        let facts = (find.coins, find.found_at, poll.cursor.seq);
        let Some(number) = self.ours(user, find, "credited") else {
            return;
        };
        let Some(open) = wallet.finish(number) else {
            self.shown_again(user, wallet, (number, Told::Credited), facts, relation);
            return;
        };
        self.counts.credits += 1;
        self.enter(user, number, Told::Credited, facts);
        self.same_coins(user, open.coins, find.coins, &find.id);
        if open.is_acknowledged() && open.found_at != find.found_at {
            let text = format!(
                "{} found at {}, acknowledged at {}",
                find.id, find.found_at, open.found_at
            );
            self.found(user, kind::ACKNOWLEDGMENT, text);
        }
        if find.found_at > poll.server_time {
            let text = format!(
                "{} found at {}, after the server's {}",
                find.id, find.found_at, poll.server_time
            );
            self.found(user, kind::OUTSIDE_WINDOW, text);
        }
        if open.is_acknowledged() && !open.poll_in_window {
            let text = format!(
                "{} found at {} and credited, though no poll left before {}",
                find.id,
                find.found_at,
                find.found_at + self.window_ms
            );
            self.found(user, kind::OUTSIDE_WINDOW, text);
        }
    }

    fn expired(
        &mut self,
        user: u32,
        wallet: &mut Wallet,
        find: &TellFind<'_>,
        poll: &PollBody<'_>,
        relation: Relation,
    ) {
        let facts = (find.coins, find.found_at, poll.cursor.seq);
        let Some(number) = self.ours(user, find, "expired") else {
            return;
        };
        let Some(open) = wallet.finish(number) else {
            self.shown_again(user, wallet, (number, Told::Expired), facts, relation);
            return;
        };
        self.counts.expiries += 1;
        self.enter(user, number, Told::Expired, facts);
        self.same_coins(user, open.coins, find.coins, &find.id);
        let unlawful = match find.reason.as_deref() {
            // The first millisecond after the window is the earliest.
            Some("window" | "store_outage")
                if poll.server_time <= find.found_at + self.window_ms =>
            {
                Some(format!("before its window ended, at {}", poll.server_time))
            }
            Some("window") if open.had_to_be_credited => {
                Some("though a poll within its window had been answered".to_owned())
            }
            Some("window" | "store_outage") => None,
            other => Some(format!("with the reason {other:?}")),
        };
        if let Some(how) = unlawful {
            let text = format!("{} found at {} expired {how}", find.id, find.found_at);
            self.found(user, kind::EXPIRED_UNLAWFULLY, text);
        }
    }

    pub(super) fn same_coins(&mut self, user: u32, sent: u64, told: u64, id: &str) {
        if sent != told {
            let text = format!("{id} told with {told} coins, sent with {sent}");
            self.found(user, kind::COINS, text);
        }
    }

    /// The number of a find that a poll shows.
    fn ours(&mut self, user: u32, find: &TellFind<'_>, how: &str) -> Option<u64> {
        let number = ids::find_number(&find.id);
        if number.is_none() {
            let text = format!("{} {how}, which nobody sent", find.id);
            self.found(user, kind::CREDITED_TWICE, text);
        }
        number
    }

    /// A find with a fate that is told, though it is not open.
    fn shown_again(
        &mut self,
        user: u32,
        wallet: &Wallet,
        (number, told): (u64, Told),
        facts: (u64, u64, u64),
        relation: Relation,
    ) {
        // A user that was interrupted does not know what it had sent; the books do.
        let carried = number < self.first_find || number & ids::ONCE != 0 && self.first_find > 0;
        let known = wallet.was_finished(number);
        if relation == Relation::Reset && (known || !carried) {
            return;
        }
        self.enter(user, number, told, facts);
        if carried && !known {
            match told {
                Told::Credited => self.counts.credits += 1,
                _ => self.counts.expiries += 1,
            }
            return;
        }
        let before = if known {
            "again"
        } else {
            "though it was not open"
        };
        let text = format!("{} shown as {told:?} {before}", ids::find_id(number));
        self.found(user, kind::CREDITED_TWICE, text);
    }

    /// A poll that was asked at this time of the server's clock (at the least) has left nothing pending.
    fn had_to_credit(&mut self, wallet: &mut Wallet, asked_at: u64) {
        let window_ms = self.window_ms;
        for open in wallet.open_mut() {
            if open.is_acknowledged()
                && asked_at > open.found_at + HEARD_MS
                && asked_at + HEARD_MS.min(window_ms / 4) <= open.found_at + window_ms
            {
                open.had_to_be_credited = true;
            }
        }
    }

    fn look_for_lost(&mut self, user: u32, wallet: &mut Wallet, server_time: u64) {
        let late_ms = self.window_ms + EXPIRY_LATE_MS + EXPIRY_SLACK_MS;
        let mut lost = None;
        for open in wallet.open_mut() {
            if open.is_acknowledged() && !open.lost && server_time > open.found_at + late_ms {
                open.lost = true;
                lost = Some(*open);
            }
        }
        if let Some(open) = lost {
            let text = format!(
                "{} found at {} is neither credited nor expired at {server_time}",
                ids::find_id(open.number),
                open.found_at
            );
            self.found(user, kind::CREDIT_LOST, text);
        }
    }
}
