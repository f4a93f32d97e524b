//! Each lie is found, and the truth is not.

use super::finds::{Fate, Find};
use super::polls::Asked;
use super::wallet::Wallet;
use super::*;
use crate::books::Told;
use std::sync::{Arc, Mutex};

const WINDOW_MS: u64 = 5_000;
/// The server's clock at the run's beginning.
const SERVER: u64 = 1_796_000_000_000;

#[derive(Clone, Default)]
struct Pages(Arc<Mutex<Vec<Entry>>>);

impl Books for Pages {
    fn enter(&mut self, entry: Entry) -> bool {
        self.0.lock().unwrap().push(entry);
        true
    }
}

/// A user and an honest server's wallet, told by hand.
struct Game {
    checker: Checker,
    wallet: Wallet,
    pages: Pages,
    now_ms: u64,
    epoch: u64,
    seq: u64,
    balance: u64,
}

fn find(number: u64) -> Find {
    Find {
        number,
        treasure: Some(0),
        coins: 5,
    }
}

impl Game {
    fn new() -> Self {
        Self::resumed(0)
    }

    fn resumed(first_find: u64) -> Self {
        let pages = Pages::default();
        let checker = Checker::new(
            "h".to_owned(),
            WINDOW_MS,
            first_find,
            Box::new(pages.clone()),
        );
        let mut game = Self {
            checker,
            wallet: Wallet::default(),
            pages,
            now_ms: 0,
            epoch: 1,
            seq: 0,
            balance: 0,
        };
        game.poll("", "");
        game
    }

    fn at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.checker.at(now_ms);
    }

    /// Sends a find; it is recorded and acknowledged at once.
    fn found(&mut self, number: u64) {
        self.sends(number);
        assert_eq!(self.acknowledges(number, 201, false, 5), Fate::Acknowledged);
    }

    fn sends(&mut self, number: u64) {
        self.checker
            .find_leaves(1, &mut self.wallet, find(number), false);
        self.seq += 1;
    }

    fn acknowledges(&mut self, number: u64, status: u16, duplicate: bool, coins: u64) -> Fate {
        let found_at = SERVER + self.now_ms;
        let body = format!(
            r#"{{"find":"f{number}","treasure":"drop","coins":{coins},"found_at":{found_at},"expires_at":{},"duplicate":{duplicate}}}"#,
            found_at + WINDOW_MS
        );
        self.checker.find_answered(
            1,
            &mut self.wallet,
            (find(number), false),
            (status, body.as_bytes()),
        )
    }

    fn asks(&mut self) -> Asked {
        self.checker.poll_leaves(&mut self.wallet);
        Asked {
            named: self.wallet.cursor,
            conditional: true,
            sent_ms: self.now_ms,
        }
    }

    /// A poll, answered with these finds and expiries and whatever else is in `end`.
    fn tells(&mut self, asked: Asked, finds: &str, expired: &str, end: &str) {
        let credited: u64 = finds.matches("\"coins\":5").count() as u64 * 5;
        let body = format!(
            r#"{{"hunt":"h","player":"u1","balance":{},"credited":{credited},"finds":[{finds}],"expired":[{expired}],"pending":0,"cursor":"{}.{}","server_time":{},"next_poll_ms":1200{end}}}"#,
            self.balance,
            self.epoch,
            self.seq,
            SERVER + self.now_ms,
        );
        self.checker
            .polled(1, &mut self.wallet, asked, body.as_bytes());
    }

    fn poll(&mut self, finds: &str, expired: &str) {
        let asked = self.asks();
        self.tells(asked, finds, expired, "");
    }

    /// A poll that credits a find of `found_ms`.
    fn credits(&mut self, number: u64, found_ms: u64) {
        self.seq += 1;
        self.balance += 5;
        self.poll(&tell(number, found_ms), "");
    }

    fn expires(&mut self, number: u64, found_ms: u64, reason: &str) {
        self.seq += 1;
        self.poll("", &expiry(number, found_ms, reason));
    }

    fn kinds(&mut self) -> Vec<String> {
        let findings = self.checker.take_findings();
        findings.into_iter().map(|finding| finding.kind).collect()
    }

    fn told(&self) -> Vec<(u64, Told)> {
        let pages = self.pages.0.lock().unwrap();
        pages.iter().map(|entry| (entry.find, entry.told)).collect()
    }
}

fn tell(number: u64, found_ms: u64) -> String {
    let found_at = SERVER + found_ms;
    format!(r#"{{"id":"f{number}","treasure":"drop","coins":5,"found_at":{found_at}}}"#)
}

fn expiry(number: u64, found_ms: u64, reason: &str) -> String {
    tell(number, found_ms).replace('}', &format!(r#","reason":"{reason}"}}"#))
}

#[test]
fn an_honest_game_has_no_findings_and_all_of_it_is_in_the_books() {
    let mut game = Game::new();
    game.at(100);
    game.found(1);
    game.at(200);
    // The answer to a repetition, and the same fate told once.
    game.at(100);
    assert_eq!(game.acknowledges(1, 200, true, 5), Fate::Acknowledged);
    game.at(300);
    game.credits(1, 100);
    game.found(2);
    game.at(5_301);
    game.expires(2, 300, "window");
    assert_eq!(game.kinds(), [""; 0]);
    use Told::*;
    let told = [
        (1, Sent),
        (1, Acknowledged),
        (1, Acknowledged),
        (1, Credited),
    ];
    assert_eq!(game.told()[..4], told);
    assert_eq!(
        game.told()[4..],
        [(2, Sent), (2, Acknowledged), (2, Expired)]
    );
    let counts = game.checker.take_counts();
    assert_eq!((counts.finds, counts.credits, counts.expiries), (2, 1, 1));
}

#[test]
fn an_answer_of_another_player_or_hunt_is_found_and_not_followed() {
    for (from, to) in [
        ("\"u1\"", "\"u2\""),
        ("\"u1\"", "\"x\""),
        ("\"h\"", "\"i\""),
    ] {
        let mut game = Game::new();
        game.seq = 9;
        game.balance = 77;
        let asked = game.asks();
        let body = format!(
            r#"{{"hunt":"h","player":"u1","balance":77,"credited":0,"finds":[],"expired":[],"pending":0,"cursor":"1.9","server_time":{SERVER},"next_poll_ms":1200}}"#
        );
        let body = body.replace(from, to);
        game.checker
            .polled(1, &mut game.wallet, asked, body.as_bytes());
        assert_eq!(game.kinds(), [kind::WRONG_PLAYER]);
        assert_eq!(game.wallet.balance, 0);
    }
}

#[test]
fn a_credit_shown_twice_is_found() {
    let mut game = Game::new();
    game.found(1);
    game.at(10);
    game.credits(1, 0);
    game.credits(1, 0);
    assert_eq!(game.kinds(), [kind::CREDITED_TWICE]);
    // The books have both, so that it is found at the end too.
    let credits = game
        .told()
        .iter()
        .filter(|(_, told)| *told == Told::Credited)
        .count();
    assert_eq!(credits, 2);
}

#[test]
fn a_credit_of_a_find_that_nobody_sent_is_found() {
    let mut game = Game::new();
    game.credits(7, 0);
    assert_eq!(game.kinds(), [kind::CREDITED_TWICE]);
}

#[test]
fn a_credit_applied_twice_to_the_balance_is_found() {
    let mut game = Game::new();
    game.found(1);
    game.balance += 5;
    game.credits(1, 0);
    assert_eq!(game.kinds(), [kind::BALANCE]);
}

#[test]
fn a_new_wallets_first_balance_is_what_its_credits_come_to() {
    for (is_untouched, found) in [(true, vec![kind::BALANCE]), (false, vec![])] {
        let mut game = Game::new();
        game.wallet = Wallet::default();
        game.wallet.is_untouched = is_untouched;
        game.balance = 3;
        game.poll("", "");
        assert_eq!(game.kinds(), found);
    }
}

#[test]
fn a_balance_that_moves_without_the_sequence_is_found() {
    let mut game = Game::new();
    game.balance = 3;
    game.poll("", "");
    assert_eq!(game.kinds(), [kind::BALANCE]);
}

#[test]
fn credits_without_entries_are_found() {
    let mut game = Game::new();
    game.found(1);
    game.poll("", "");
    game.balance += 5;
    game.poll(&tell(1, 0), "");
    assert_eq!(game.kinds(), [kind::SEQUENCE]);
}

#[test]
fn a_sequence_that_goes_backwards_is_found_and_not_followed() {
    let mut game = Game::new();
    game.seq = 5;
    game.poll("", "");
    game.seq = 4;
    game.poll("", "");
    game.seq = 5;
    game.poll("", "");
    assert_eq!(game.kinds(), [kind::SEQUENCE]);
}

#[test]
fn an_epoch_changes_only_forwards_and_says_reset() {
    let mut game = Game::new();
    game.epoch = 2;
    game.poll("", "");
    assert_eq!(game.kinds(), [kind::SEQUENCE]);
    game.epoch = 1;
    let asked = game.asks();
    game.tells(asked, "", "", ",\"reset\":true");
    assert_eq!(game.kinds(), [kind::SEQUENCE]);
    game.epoch = 3;
    game.balance = 50;
    let asked = game.asks();
    game.tells(asked, "", "", ",\"reset\":true");
    assert_eq!(game.kinds(), [""; 0]);
}

#[test]
fn after_a_reset_finds_are_shown_again_lawfully_and_open_ones_learnt() {
    let mut game = Game::new();
    game.found(1);
    game.credits(1, 0);
    game.found(2);
    game.epoch = 2;
    game.balance += 5;
    let asked = game.asks();
    let finds = format!("{},{}", tell(1, 0), tell(2, 0));
    game.tells(asked, &finds, "", ",\"reset\":true");
    assert_eq!(game.kinds(), [""; 0]);
    assert!(game.wallet.open().is_empty());
    let credits = game
        .told()
        .iter()
        .filter(|(_, told)| *told == Told::Credited)
        .count();
    assert_eq!(credits, 2);
}

#[test]
fn what_a_gap_leaves_out_is_learnt_from_history() {
    let mut game = Game::new();
    game.found(1);
    game.found(2);
    game.seq += 1;
    game.balance += 5;
    let asked = game.asks();
    game.tells(asked, "", "", ",\"gap\":true");
    assert!(game.wallet.looks_back);
    let page = format!(
        r#"{{"entries":[{{"seq":3,"at":{0},"kind":"credit","coins":5,"find":"f1","treasure":"drop","found_at":{0}}},{{"seq":2,"at":{0},"kind":"find","coins":5,"find":"f2","treasure":"drop","found_at":{0}}},{{"seq":1,"at":{0},"kind":"find","coins":5,"find":"f1","treasure":"drop","found_at":{0}}}]}}"#,
        SERVER
    );
    game.checker
        .looked_back(1, &mut game.wallet, page.as_bytes());
    assert_eq!(game.kinds(), [""; 0]);
    assert!(game.told().contains(&(1, Told::Credited)));
    assert_eq!(game.wallet.open().len(), 1);
    // The other is still owed.
    game.at(17_001);
    game.poll("", "");
    assert_eq!(game.kinds(), [kind::CREDIT_LOST]);
}

#[test]
fn a_find_that_is_neither_credited_nor_expired_is_found_once() {
    let mut game = Game::new();
    game.found(1);
    game.at(WINDOW_MS + EXPIRY_LATE_MS + EXPIRY_SLACK_MS);
    game.poll("", "");
    assert_eq!(game.kinds(), [""; 0]);
    for _ in 0..2 {
        game.at(game.now_ms + 1);
        game.poll("", "");
    }
    assert_eq!(game.kinds(), [kind::CREDIT_LOST]);
}

#[test]
fn a_credit_after_the_window_is_found_unless_a_poll_left_within_it() {
    let mut game = Game::new();
    game.found(1);
    game.at(WINDOW_MS + 1);
    game.credits(1, 0);
    assert_eq!(game.kinds(), [kind::OUTSIDE_WINDOW]);
    // The same, and a poll whose answer was lost left on the last millisecond.
    let mut game = Game::new();
    game.found(1);
    game.at(WINDOW_MS);
    game.asks();
    game.at(WINDOW_MS + 1);
    game.credits(1, 0);
    assert_eq!(game.kinds(), [""; 0]);
}

#[test]
fn an_expiry_before_its_time_or_of_a_find_that_was_polled_for_is_found() {
    let mut game = Game::new();
    game.found(1);
    game.at(WINDOW_MS);
    game.expires(1, 0, "window");
    assert_eq!(game.kinds(), [kind::EXPIRED_UNLAWFULLY]);
    for (reason, expected) in [("window", 1), ("store_outage", 0), ("boredom", 1)] {
        let mut game = Game::new();
        game.found(1);
        game.at(HEARD_MS + 500);
        game.poll("", "");
        game.at(WINDOW_MS + 10);
        game.expires(1, 0, reason);
        assert_eq!(game.kinds().len(), expected, "{reason}");
    }
}

#[test]
fn coins_that_differ_are_found_wherever_they_are_told() {
    let mut game = Game::new();
    game.sends(1);
    game.acknowledges(1, 201, false, 6);
    assert_eq!(game.kinds(), [kind::COINS]);
    game.seq += 1;
    game.balance += 6;
    game.poll(&tell(1, 0).replace("\"coins\":5", "\"coins\":6"), "");
    // `credited` is not the sum of its finds, and the find is not what was sent.
    assert_eq!(game.kinds(), [kind::COINS, kind::COINS]);
}

#[test]
fn acknowledgments_that_contradict_are_found() {
    let mut game = Game::new();
    game.sends(1);
    game.acknowledges(1, 201, true, 5);
    assert_eq!(game.kinds(), [kind::ACKNOWLEDGMENT]);
    game.acknowledges(1, 201, false, 5);
    assert_eq!(game.kinds(), [kind::ACKNOWLEDGMENT]);
    game.at(1);
    game.acknowledges(1, 200, true, 5);
    assert_eq!(game.kinds(), [kind::ACKNOWLEDGMENT]);
    game.at(0);
    game.credits(1, 0);
    game.acknowledges(1, 201, false, 5);
    assert_eq!(game.kinds(), [kind::ACKNOWLEDGMENT]);
    let fate = game
        .checker
        .find_answered(1, &mut game.wallet, (find(1), false), (404, b"{}"));
    assert_eq!(fate, Fate::Acknowledged);
    assert_eq!(game.kinds(), [kind::ACKNOWLEDGMENT]);
}

#[test]
fn a_refused_find_is_settled_and_a_failed_one_is_not() {
    let mut game = Game::new();
    game.sends(1);
    for status in [500, 503, 429, 408] {
        let fate = game
            .checker
            .find_answered(1, &mut game.wallet, (find(1), false), (status, b""));
        assert_eq!(fate, Fate::Unknown, "{status}");
    }
    assert_eq!(game.wallet.open().len(), 1);
    let fate = game
        .checker
        .find_answered(1, &mut game.wallet, (find(1), false), (409, b"{}"));
    assert_eq!(fate, Fate::Refused);
    assert_eq!(game.told(), [(1, Told::Sent), (1, Told::Refused)]);
    // What was refused must not be credited.
    game.credits(1, 0);
    assert_eq!(game.kinds(), [kind::CREDITED_TWICE]);
}

#[test]
fn a_304_answers_only_a_condition_and_has_its_cursor() {
    let mut game = Game::new();
    let mut asked = game.asks();
    let named = asked.named;
    game.checker
        .not_modified(1, &mut game.wallet, asked, named, false);
    assert_eq!(game.kinds(), [""; 0]);
    let other = Some(Cursor { epoch: 1, seq: 77 });
    game.checker
        .not_modified(1, &mut game.wallet, asked, other, false);
    asked.conditional = false;
    game.checker
        .not_modified(1, &mut game.wallet, asked, named, false);
    assert_eq!(game.kinds(), [kind::NOT_MODIFIED, kind::NOT_MODIFIED]);
}

#[test]
fn a_stale_answer_is_counted_and_nothing_follows_from_it() {
    let mut game = Game::new();
    game.found(1);
    let known = game.wallet.cursor;
    game.balance = 99;
    let asked = game.asks();
    game.tells(asked, "", "", ",\"stale\":true");
    assert_eq!((game.wallet.cursor, game.wallet.balance), (known, 0));
    assert_eq!(game.checker.take_counts().stale, 1);
    assert_eq!(game.kinds(), [""; 0]);
}

#[test]
fn a_user_that_was_interrupted_takes_what_it_sent_before_into_the_books() {
    let mut game = Game::resumed(100);
    game.credits(99, 0);
    assert_eq!(game.kinds(), [""; 0]);
    assert_eq!(game.told(), [(99, Told::Credited)]);
    game.credits(99, 0);
    game.credits(100, 0);
    // The first is for the books to find; nobody sent the second.
    assert_eq!(game.kinds(), [kind::CREDITED_TWICE]);
}

#[test]
fn history_tells_of_credits_outside_the_window_twice_or_out_of_order() {
    let entry = |seq: u64, kind: &str, id: u64, at: u64| {
        format!(
            r#"{{"seq":{seq},"at":{},"kind":"{kind}","coins":5,"find":"f{id}","treasure":"drop","found_at":{SERVER}}}"#,
            SERVER + at
        )
    };
    for (entries, expected) in [
        (
            vec![entry(4, "credit", 1, WINDOW_MS), entry(3, "find", 1, 0)],
            vec![],
        ),
        (
            vec![entry(4, "credit", 1, WINDOW_MS + 1)],
            vec![kind::OUTSIDE_WINDOW],
        ),
        (
            vec![entry(4, "credit", 1, 9), entry(3, "credit", 1, 9)],
            vec![kind::CREDITED_TWICE],
        ),
        (
            vec![entry(4, "find", 2, 0), entry(2, "find", 1, 0)],
            vec![kind::SEQUENCE],
        ),
        (
            vec![entry(4, "expiry", 2, 9).replace("found_at", "reason\":\"window\",\"found_at")],
            vec![kind::EXPIRED_UNLAWFULLY],
        ),
    ] {
        let mut game = Game::new();
        let page = format!(r#"{{"entries":[{}]}}"#, entries.join(","));
        game.checker
            .looked_back(1, &mut game.wallet, page.as_bytes());
        assert_eq!(game.kinds(), expected, "{page}");
    }
    let mut game = Game::new();
    game.checker.looked_back(1, &mut game.wallet, b"[]");
    assert_eq!(game.kinds(), [kind::MALFORMED]);
}

#[test]
fn outcomes_in_bulk_are_held_against_what_was_sent() {
    let outcome = |status: u16, id: u64, coins: u64| {
        format!(
            r#"{{"status":{status},"find":"f{id}","coins":{coins},"expires_at":{}}}"#,
            SERVER + WINDOW_MS
        )
    };
    for (told, fate, expected) in [
        (outcome(201, 1, 5), Fate::Acknowledged, vec![]),
        (outcome(200, 1, 5), Fate::Acknowledged, vec![]),
        (
            outcome(201, 2, 5),
            Fate::Unknown,
            vec![kind::ACKNOWLEDGMENT],
        ),
        (outcome(201, 1, 6), Fate::Acknowledged, vec![kind::COINS]),
        (
            r#"{"status":503,"code":"store_busy"}"#.to_owned(),
            Fate::Unknown,
            vec![],
        ),
        (
            r#"{"status":410,"code":"erased"}"#.to_owned(),
            Fate::Refused,
            vec![],
        ),
    ] {
        let mut game = Game::new();
        game.sends(1);
        let body = format!(r#"{{"recorded":1,"outcomes":[{told}]}}"#);
        let outcomes = game.checker.bulk_outcomes(200, body.as_bytes(), 1).unwrap();
        let got = game
            .checker
            .bulk_answered(1, &mut game.wallet, find(1), &outcomes[0]);
        assert_eq!(got, fate, "{told}");
        assert_eq!(game.kinds(), expected, "{told}");
    }
    let mut game = Game::new();
    assert!(game.checker.bulk_outcomes(503, b"", 1).is_none());
    assert_eq!(game.kinds(), [""; 0]);
    assert!(
        game.checker
            .bulk_outcomes(200, b"{\"outcomes\":[]}", 1)
            .is_none()
    );
    assert_eq!(game.kinds(), [kind::ACKNOWLEDGMENT]);
}

#[test]
fn findings_past_the_bound_are_counted_and_not_kept() {
    let mut game = Game::new();
    for _ in 0..FINDINGS_MAX + 5 {
        game.checker.looked_back(1, &mut game.wallet, b"");
    }
    assert_eq!(game.checker.take_findings().len() as u64, FINDINGS_MAX);
    assert_eq!(game.checker.findings_total, FINDINGS_MAX + 5);
}
