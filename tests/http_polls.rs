//! The poll, from outside: what it answers, what it collects, what it never does.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{Ask, Site, token};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn ids(poll: &Value) -> Vec<&str> {
    let finds = poll["finds"].as_array().unwrap();
    finds
        .iter()
        .map(|find| find["id"].as_str().unwrap())
        .collect()
}

#[test]
fn a_polls_fields_are_those_of_the_contract_and_no_others() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    let made = player.finds("r", "one");
    let poll = player.poll();
    let names: BTreeSet<&str> = poll
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let expected = [
        "hunt",
        "player",
        "balance",
        "credited",
        "finds",
        "expired",
        "pending",
        "cursor",
        "server_time",
        "next_poll_ms",
    ];
    assert_eq!(names, BTreeSet::from(expected));
    assert_eq!(
        (&poll["hunt"], &poll["player"]),
        (&json!("h"), &json!("ann"))
    );
    assert_eq!(
        (&poll["balance"], &poll["credited"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(
        (&poll["pending"], &poll["expired"]),
        (&json!(0), &json!([]))
    );
    let find = json!([{"id": "one", "treasure": "r", "coins": 3, "found_at": made["found_at"]}]);
    assert_eq!(poll["finds"], find);
    let (_, seq) = poll["cursor"].as_str().unwrap().split_once('.').unwrap();
    assert_eq!(seq, "2", "a find and its credit are two entries");
    assert!(poll["server_time"].as_u64() >= made["found_at"].as_u64());
}

#[test]
fn a_find_is_credited_once_however_often_it_is_polled_for() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    player.finds("r", "one");
    assert_eq!(player.poll()["credited"], 3);
    for _ in 0..5 {
        let poll = player.poll();
        assert_eq!(
            (&poll["balance"], &poll["credited"]),
            (&json!(3), &json!(0))
        );
        assert_eq!(poll["finds"], json!([]));
    }
}

#[test]
fn a_player_without_a_history_has_an_empty_wallet() {
    let site = Site::start();
    site.open_h();
    let poll = site.player("new").poll();
    assert_eq!(poll["balance"], 0);
    assert!(poll["cursor"].as_str().unwrap().ends_with(".0"));
}

#[test]
fn every_answer_carries_the_fields_of_the_contract() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let mut player = site.player("ann");
    player.finds("r", "one");
    let ask = player.poll_ask();
    let (from_store, from_memory) = (player.send(ask.clone()), player.send(ask.clone()));
    let etag = from_memory.field("etag").unwrap().to_owned();
    let unchanged = player.send(ask.clone().with("If-None-Match", &etag));
    assert_eq!(unchanged.status, 304);
    let named = player.send(Ask::get("/treasure/h?since=0.0"));
    let head = player.send(Ask::new("HEAD", "/treasure/h"));
    for answer in [&from_store, &from_memory, &unchanged, &named, &head] {
        assert_eq!(answer.field("cache-control"), Some("no-store"));
        assert_eq!(answer.field("etag"), Some(etag.as_str()));
        let next: u64 = answer.field("trove-next-poll-ms").unwrap().parse().unwrap();
        if !answer.body.is_empty() {
            assert_eq!(answer.json()["next_poll_ms"], next);
            assert_eq!(etag, format!("W/{}", answer.json()["cursor"]));
        }
        assert!(answer.field("trove-stale").is_none());
    }
    let nobody = site.client().send(ask.clone());
    let nowhere = player.send(Ask::get("/treasure/nowhere"));
    nobody.is_problem(401, "token_missing");
    nowhere.is_problem(404, "no_such_hunt");
    let wrong = player.send(Ask::get("/treasure/h?since=x"));
    wrong.is_problem(422, "bad_parameter");
    for answer in [&nobody, &nowhere, &wrong] {
        assert!(answer.field("trove-next-poll-ms").is_some(), "{answer:?}");
        assert_eq!(answer.field("cache-control"), Some("no-store"));
    }
    for answer in [
        from_store,
        from_memory,
        unchanged,
        named,
        head,
        nobody,
        nowhere,
    ] {
        assert_eq!(answer.field("x-instance-id"), Some("site-1"));
        let timing = answer.field("server-timing").unwrap();
        for part in timing.split(", ") {
            let (name, ms) = part.split_once(";dur=").unwrap();
            assert!(["app", "store"].contains(&name), "{timing}");
            let (_, digits) = ms.split_once('.').unwrap();
            assert_eq!(digits.len(), 3, "microsecond digits: {timing}");
        }
    }
}

#[test]
fn an_etag_gets_304_until_there_is_news() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    let etag = player
        .send(player.poll_ask())
        .field("etag")
        .unwrap()
        .to_owned();
    for tags in [etag.clone(), format!("\"x\", {etag}"), etag[2..].to_owned()] {
        let ask = player.poll_ask().with("If-None-Match", &tags);
        let answer = player.send(ask);
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{tags}");
    }
    player.finds("r", "one");
    let ask = player.poll_ask().with("If-None-Match", &etag);
    let news = player.send(ask.clone()).is(200);
    assert_eq!(ids(&news), ["one"], "what is pending is tried first");
    let again = player.send(ask).is(200);
    assert_eq!(
        ids(&again),
        ["one"],
        "the reply was lost: it is shown again"
    );
    assert_eq!(
        (&again["balance"], &again["credited"]),
        (&json!(3), &json!(3))
    );
}

#[test]
fn a_named_cursor_gets_what_was_credited_after_it() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    let start = player.poll()["cursor"].as_str().unwrap().to_owned();
    player.finds("r", "one");
    let after_one = player.poll()["cursor"].as_str().unwrap().to_owned();
    player.finds("r", "two");
    player.poll();
    assert_eq!(ids(&player.since(&start)), ["one", "two"]);
    let second = player.since(&after_one);
    assert_eq!(ids(&second), ["two"]);
    let end = second["cursor"].as_str().unwrap();
    assert_eq!(ids(&player.since(end)), Vec::<&str>::new());
    player.finds("r", "three");
    assert_eq!(
        ids(&player.since(&after_one)),
        ["two", "three"],
        "what it missed and what it collects"
    );
}

#[test]
fn a_cursor_of_another_epoch_is_reset_and_one_too_old_has_a_gap() {
    let site = Site::with(&[("poll.recent_max", "6")]);
    site.open_h();
    let mut player = site.player("ann");
    let start = player.poll()["cursor"].as_str().unwrap().to_owned();
    for n in 0..10 {
        player.finds("r", &n.to_string());
        let named = player.since(&start);
        assert_eq!(named["balance"], 3 * (n + 1));
        assert_eq!(named.get("gap").is_some(), n >= 3, "{n}: {named}");
    }
    let gap = player.since(&start);
    assert_eq!(gap["gap"], true);
    assert_eq!(ids(&gap), ["7", "8", "9"], "the newest of what is kept");
    let other = player.since("1.2");
    assert_eq!(other["reset"], true);
    assert_eq!(ids(&other), ["7", "8", "9"]);
    let (epoch, _) = start.split_once('.').unwrap();
    let ahead = player.since(&format!("{epoch}.999"));
    assert_eq!(
        ahead["reset"], true,
        "a cursor ahead of the wallet is not ours"
    );
}

#[test]
fn head_never_credits() {
    let site = Site::start();
    site.open_h();
    let mut player = site.player("ann");
    player.finds("r", "one");
    for _ in 0..3 {
        let head = player.send(Ask::new("HEAD", "/treasure/h"));
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert!(head.field("etag").unwrap().ends_with(".1\""));
    }
    assert_eq!(player.poll()["credited"], 3);
}

#[test]
fn a_store_slower_than_the_wait_leaves_the_find_pending_for_a_later_poll() {
    let site = Site::with(&[("poll.credit_wait_ms", "0")]);
    site.open_h();
    let mut player = site.player("ann");
    // A busy machine may have the store done before the poll looks at the clock: then once more.
    let (found, slow) = (0..100)
        .find_map(|found| {
            let before = player.poll()["cursor"].as_str().unwrap().to_owned();
            player.finds("r", &format!("f{found}"));
            let poll = player.since(&before);
            if poll["pending"] == 0 {
                return None;
            }
            let seq = |cursor: &str| cursor.split_once('.').unwrap().1.parse::<u64>().unwrap();
            let after = seq(poll["cursor"].as_str().unwrap());
            assert_eq!(after, seq(&before) + 1, "from before the credit");
            Some((found, poll))
        })
        .expect("a poll that does not wait for the store");
    assert_eq!(slow["pending"], 3);
    assert_eq!(slow["balance"], 3 * found);
    assert!(slow.get("stale").is_none());
    let mut cursor = slow["cursor"].as_str().unwrap().to_owned();
    let mut seen = Vec::new();
    http_site::wait("the credit to be shown", || {
        let poll = player.since(&cursor);
        seen.extend(ids(&poll).into_iter().map(str::to_owned));
        cursor = poll["cursor"].as_str().unwrap().to_owned();
        poll["balance"] == 3 * (found + 1)
    });
    assert_eq!(seen, [format!("f{found}")]);
}

#[test]
fn the_hint_for_the_next_poll_varies_within_its_share() {
    let site = Site::with(&[("poll.interval_ms", "10000"), ("poll.jitter", "0.1")]);
    site.open_h();
    let mut player = site.player("ann");
    let hints: BTreeSet<u64> = (0..40)
        .map(|_| player.poll()["next_poll_ms"].as_u64().unwrap())
        .collect();
    assert!(hints.len() > 10, "{hints:?}");
    assert!(*hints.first().unwrap() >= 9_000, "{hints:?}");
    // A loop that is behind stretches it, so there is no close bound above.
    assert!(*hints.first().unwrap() < 11_000, "{hints:?}");
}

#[test]
fn a_wallet_is_read_with_its_own_players_token_only() {
    let site = Site::start();
    site.open_h();
    let (mut ann, mut bob) = (site.player("ann"), site.player("bob"));
    ann.finds("r", "one");
    assert_eq!(ann.poll()["balance"], 3);
    for path in [
        "/treasure/h",
        "/treasure/h?player=ann",
        "/treasure/h?since=0.0",
    ] {
        let poll = bob.send(Ask::get(path)).is(200);
        assert_eq!(
            (&poll["player"], &poll["balance"]),
            (&json!("bob"), &json!(0))
        );
        assert_eq!(poll["finds"], json!([]));
    }
    assert_eq!(
        bob.send(Ask::get("/treasure/h/history")).is(200)["entries"],
        json!([])
    );
    // Two tokens in one request, in either order, open what the first opens or nothing.
    let tokens = [token("bob"), token("ann")];
    let both = Ask::get("/treasure/h")
        .bearer(&tokens[0])
        .bearer(&tokens[1]);
    let both = site.client().send(both);
    assert!(
        both.status != 200 || both.json()["player"] == "bob",
        "{both:?}"
    );
}

#[test]
fn two_phones_of_one_player_each_see_every_find() {
    // One wallet in memory, and another player who takes its place all the time: each poll reads the wallet anew, while the
    // other phone's poll may be crediting.
    let site = Site::with(&[("limits.wallets_max", "1"), ("poll.credit_wait_ms", "1000")]);
    site.open_h();
    const FINDS: usize = 150;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let phones: Vec<_> = (0..3)
            .map(|_| {
                let mut phone = site.player("ann");
                scope.spawn(move || {
                    let mut seen = BTreeSet::new();
                    let mut cursor = phone.poll()["cursor"].as_str().unwrap().to_owned();
                    let until = std::time::Instant::now() + http_site::PATIENCE;
                    loop {
                        let poll = phone.since(&cursor);
                        assert!(std::time::Instant::now() < until, "never all of it: {poll}");
                        seen.extend(ids(&poll).into_iter().map(str::to_owned));
                        cursor = poll["cursor"].as_str().unwrap().to_owned();
                        if poll["balance"] == 3 * FINDS {
                            return (seen, poll["gap"].clone());
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut other = site.player("bob");
            // A fact that fails below must end the test, so this ends by itself too.
            let until = std::time::Instant::now() + 2 * http_site::PATIENCE;
            while !done.load(std::sync::atomic::Ordering::Relaxed)
                && std::time::Instant::now() < until
            {
                other.poll();
            }
        });
        let mut finder = site.player("ann");
        // The phones take their first cursors at different times; what they miss before it is not theirs to see.
        std::thread::sleep(std::time::Duration::from_millis(200));
        (0..FINDS).for_each(|n| drop(finder.finds("r", &format!("f{n}"))));
        let seen: Vec<_> = phones
            .into_iter()
            .map(|phone| phone.join().unwrap())
            .collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for (seen, gap) in seen {
            assert_eq!(gap, Value::Null);
            assert_eq!(
                seen.len(),
                FINDS,
                "a phone was not shown all that was credited"
            );
        }
    });
}
