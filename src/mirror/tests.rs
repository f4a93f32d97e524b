//! What the mirror makes of what it is told.

use super::*;

const KEY: Key = Key {
    hunt: 1,
    player: PlayerId(7),
};

fn at(seq: u64) -> Wallet {
    Wallet {
        seq,
        balance: seq * 10,
        ..Wallet::default()
    }
}

fn loaded(wallet: Wallet) -> Mirror {
    let mut mirror = Mirror::new(10, 2);
    let Turn::Yours(_) = mirror.load(KEY) else {
        panic!("nobody else asked")
    };
    mirror.loaded(KEY, Ok(wallet));
    mirror
}

#[test]
fn a_wallet_never_goes_backwards() {
    let mut mirror = loaded(at(5));
    mirror.apply(KEY, at(4));
    assert_eq!(mirror.get(KEY), Some(at(5)));
    mirror.apply(KEY, at(6));
    assert_eq!(mirror.get(KEY), Some(at(6)));
}

#[test]
fn a_change_during_the_read_is_not_lost() {
    let mut mirror = Mirror::new(10, 2);
    let Turn::Yours(mut first) = mirror.load(KEY) else {
        panic!("nobody else asked")
    };
    let Turn::Joined(mut second) = mirror.load(KEY) else {
        panic!("somebody asked")
    };
    mirror.apply(KEY, at(6));
    mirror.loaded(KEY, Ok(at(5)));
    assert_eq!(mirror.get(KEY), Some(at(6)));
    assert_eq!(first.try_recv().unwrap(), Ok(at(6)));
    assert_eq!(second.try_recv().unwrap(), Ok(at(6)));
}

#[test]
fn what_nobody_loaded_is_not_kept() {
    let mut mirror = Mirror::new(10, 2);
    mirror.apply(KEY, at(6));
    assert_eq!(mirror.get(KEY), None);
    let Turn::Yours(_) = mirror.load(KEY) else {
        panic!("nobody else asked")
    };
    mirror.loaded(KEY, Err(StoreError::Busy));
    assert!(mirror.is_empty());
    assert!(
        matches!(mirror.load(KEY), Turn::Yours(_)),
        "a read that failed is tried again"
    );
}

#[test]
fn after_a_reset_nothing_that_was_known_or_is_being_read_stays() {
    let mut mirror = loaded(at(5));
    let mut held = mirror.hold(KEY).unwrap();
    let other = Key { hunt: 2, ..KEY };
    let Turn::Yours(mut read) = mirror.load(other) else {
        panic!("nobody else asked")
    };
    assert_eq!(mirror.reset(), [KEY]);
    assert!(held.try_recv().is_err(), "they are not all woken at once");
    mirror.wake(KEY);
    assert_eq!(held.try_recv(), Ok(()));
    assert_eq!(mirror.get(KEY), None);
    mirror.loaded(other, Ok(at(9)));
    assert_eq!(read.try_recv().unwrap(), Ok(at(9)));
    assert_eq!(
        mirror.get(other),
        None,
        "it may have been read before the reset"
    );
    mirror.load(KEY);
    mirror.loaded(KEY, Ok(at(3)));
    assert_eq!(
        mirror.get(KEY),
        Some(at(3)),
        "a sequence may be lower than before"
    );
    mirror.reload(KEY);
    assert_eq!(mirror.get(KEY), None);
}

#[test]
fn a_credit_of_a_history_that_was_cut_is_not_kept() {
    let mut mirror = loaded(at(5));
    let Turn::Yours(mut credit) = mirror.credit(KEY) else {
        panic!("nobody else asked")
    };
    assert!(mirror.reset().is_empty());
    mirror.load(KEY);
    mirror.loaded(KEY, Ok(at(3)));
    let credited = Credited {
        wallet: at(7),
        entries: Vec::new(),
    };
    mirror.credited(KEY, Ok(credited));
    assert_eq!(credit.try_recv().unwrap().unwrap().wallet, at(7));
    assert_eq!(
        mirror.get(KEY),
        Some(at(3)),
        "the store has said so since the reset"
    );
}

#[test]
fn an_answer_of_a_history_that_was_cut_is_not_kept() {
    let mut mirror = loaded(at(5));
    let asked_in = mirror.history();
    mirror.answered(asked_in, KEY, at(6));
    assert_eq!(mirror.get(KEY), Some(at(6)));
    assert!(mirror.reset().is_empty());
    mirror.load(KEY);
    mirror.answered(asked_in, KEY, at(7));
    mirror.loaded(KEY, Ok(at(3)));
    assert_eq!(
        mirror.get(KEY),
        Some(at(3)),
        "the store has said so since the reset"
    );
    mirror.answered(asked_in, KEY, at(8));
    assert_eq!(mirror.get(KEY), Some(at(3)));
    mirror.answered(mirror.history(), KEY, at(4));
    assert_eq!(mirror.get(KEY), Some(at(4)));
}

#[test]
fn held_polls_are_woken_by_news_and_bounded() {
    let mut mirror = loaded(at(5));
    let mut held = mirror.hold(KEY).unwrap();
    mirror.apply(KEY, at(5));
    assert!(held.try_recv().is_err(), "the same state is no news");
    let mut other = mirror.hold(KEY).unwrap();
    assert!(mirror.hold(KEY).is_none(), "two are held at most");
    other.close();
    mirror.release(KEY);
    assert_eq!(mirror.held(), 1);
    let mut again = mirror
        .hold(KEY)
        .expect("a poll that has gone leaves its place");
    again.close();
    mirror.release(KEY);
    assert_eq!(mirror.held(), 1);
    mirror.apply(KEY, at(6));
    assert_eq!(held.try_recv(), Ok(()));
    assert_eq!(mirror.held(), 0);
}

#[test]
fn one_wallet_holds_a_bounded_number_of_polls() {
    let mut mirror = Mirror::new(10, 1_000);
    let Turn::Yours(_) = mirror.load(KEY) else {
        panic!("nobody else asked")
    };
    mirror.loaded(KEY, Ok(at(5)));
    let held: Vec<_> = (0..1_000).map_while(|_| mirror.hold(KEY)).collect();
    assert_eq!(held.len(), HOLDS_PER_WALLET_MAX);
}

#[test]
fn a_held_poll_of_a_wallet_that_was_put_out_is_woken() {
    let mut mirror = Mirror::new(1, 10);
    for key in [KEY, Key { hunt: 2, ..KEY }] {
        let Turn::Yours(_) = mirror.load(key) else {
            panic!("nobody else asked")
        };
        mirror.loaded(key, Ok(at(5)));
        if key == KEY {
            std::mem::forget(mirror.hold(KEY));
        }
    }
    assert_eq!((mirror.get(KEY), mirror.held()), (None, 1));
    mirror.apply(KEY, at(6));
    assert_eq!(mirror.held(), 0);
}

#[test]
fn one_credit_runs_for_all_who_ask() {
    let mut mirror = loaded(at(5));
    let Turn::Yours(mut first) = mirror.credit(KEY) else {
        panic!("nobody else asked")
    };
    let Turn::Joined(mut second) = mirror.credit(KEY) else {
        panic!("somebody asked")
    };
    mirror.credited(
        KEY,
        Ok(Credited {
            wallet: at(7),
            entries: Vec::new(),
        }),
    );
    assert_eq!(first.try_recv().unwrap().unwrap().wallet, at(7));
    assert_eq!(second.try_recv().unwrap().unwrap().wallet, at(7));
    assert_eq!(mirror.get(KEY), Some(at(7)));
    assert!(matches!(mirror.credit(KEY), Turn::Yours(_)));
}

#[test]
fn a_wallet_of_before_is_known_again_unless_it_was_later_or_has_changed_since() {
    let mut mirror = loaded(at(5));
    assert!(!mirror.revive(KEY, at(6)), "it is known");
    drop(mirror.reset());
    assert!(!mirror.revive(KEY, at(4)), "5 may be of this history, too");
    assert_eq!(
        (mirror.get(KEY), mirror.from_before(KEY)),
        (None, Some(at(5)))
    );
    assert!(mirror.revive(KEY, at(5)));
    assert_eq!((mirror.get(KEY), mirror.len()), (Some(at(5)), 1));
    drop(mirror.reset());
    mirror.apply(KEY, at(7));
    assert!(!mirror.revive(KEY, at(6)), "7 came after that");
    assert_eq!(mirror.get(KEY), None);
    let mut mirror = loaded(at(5));
    let asked_in = mirror.history();
    drop(mirror.reset());
    mirror.answered(asked_in, KEY, at(6));
    assert!(!mirror.revive(KEY, at(5)), "6 may have come after that");
    let other = Key { hunt: 2, ..KEY };
    assert!(!mirror.revive(other, at(1)));
}
