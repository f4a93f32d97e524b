//! Who may do what: tokens, admin keys, and what they never open.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{ADMIN_KEY, Ask, Forged, Site, forge, seconds_now, token};
use rustix::process::Signal;
use serde_json::json;

const POLL: &str = "/treasure/h";

#[test]
fn a_token_that_speaks_for_nobody_says_why() {
    let site = Site::start();
    site.open_h();
    site.player("p").finds("r", "one");
    let now = seconds_now();
    let with = |header: serde_json::Value, claims: serde_json::Value| {
        forge(&Forged {
            header,
            claims,
            ..Forged::default()
        })
    };
    let hs256 = json!({"alg": "HS256"});
    let good = json!({"sub": "p", "iat": now, "exp": now + 60});
    let none = with(json!({"alg": "none"}), good.clone());
    let unsigned = format!("{}.", none.rsplit_once('.').unwrap().0);
    let foreign = forge(&Forged {
        key: "another key of another game, long enough",
        ..Forged::default()
    });
    let whole = token("p");
    let (signed, signature) = whole.rsplit_once('.').unwrap();
    let (_, other) = token("q")
        .rsplit_once('.')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let swapped = format!("{signed}.{other}");
    for (token, code) in [
        ("x".to_owned(), "token_malformed"),
        ("x.y".to_owned(), "token_malformed"),
        ("..".to_owned(), "token_malformed"),
        (signed.to_owned(), "token_malformed"),
        (format!("{whole}.x"), "token_malformed"),
        (ADMIN_KEY.to_owned(), "token_malformed"),
        (swapped, "token_bad_signature"),
        (format!("{signed}.{}", &signature[1..]), "token_malformed"),
        (foreign, "token_bad_signature"),
        (none, "token_wrong_algorithm"),
        (unsigned, "token_wrong_algorithm"),
        (
            with(json!({"alg": "HS512"}), good.clone()),
            "token_wrong_algorithm",
        ),
        (
            with(json!({"alg": "RS256"}), good.clone()),
            "token_wrong_algorithm",
        ),
        (
            with(json!({"alg": "hs256"}), good.clone()),
            "token_wrong_algorithm",
        ),
        (with(json!({"typ": "JWT"}), good.clone()), "token_malformed"),
        (
            with(
                hs256.clone(),
                json!({"sub": "p", "iat": now - 60, "exp": now - 1}),
            ),
            "token_expired",
        ),
        (
            with(
                hs256.clone(),
                json!({"sub": "p", "iat": now + 3_600, "exp": now + 7_200}),
            ),
            "token_issued_ahead",
        ),
        (
            with(
                hs256.clone(),
                json!({"sub": "p", "iat": now, "exp": now + 60, "nbf": now + 3_600}),
            ),
            "token_issued_ahead",
        ),
        (
            with(
                hs256.clone(),
                json!({"sub": "a b", "iat": now, "exp": now + 60}),
            ),
            "token_bad_player",
        ),
        (
            with(
                hs256.clone(),
                json!({"sub": "", "iat": now, "exp": now + 60}),
            ),
            "token_bad_player",
        ),
        (
            with(hs256.clone(), json!({"iat": now, "exp": now + 60})),
            "token_missing_claim",
        ),
        (
            with(hs256.clone(), json!({"sub": "p", "exp": now + 60})),
            "token_missing_claim",
        ),
        (
            with(hs256.clone(), json!({"sub": "p", "iat": now})),
            "token_missing_claim",
        ),
        (
            with(
                hs256.clone(),
                json!({"sub": "p", "iat": now, "exp": now + 60, "aud": "x"}),
            ),
            "token_other_audience",
        ),
        (
            with(hs256, json!({"sub": {"a": 1}, "iat": now, "exp": now + 60})),
            "token_malformed",
        ),
    ] {
        for ask in [
            Ask::get(POLL),
            Ask::post("/treasure/h/finds", json!({"treasure": "a"}).to_string()),
            Ask::get("/treasure/h/history"),
        ] {
            let answer = site.client().send(ask.bearer(&token));
            let said = answer.json()["code"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            // A signature of the wrong length is malformed to one and bad to another.
            let fits = said == code || (code == "token_malformed" && said == "token_bad_signature");
            assert!(
                answer.status == 401 && fits,
                "{code}: {token}: {}",
                answer.text()
            );
            assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
        }
    }
    for value in ["", "Bearer", "Bearer ", "Basic eDp5", &whole] {
        let answer = site
            .client()
            .send(Ask::get(POLL).with("Authorization", value));
        answer.is_problem(401, "token_missing");
    }
    let lower = Ask::get(POLL).with("authorization", &format!("bearer  {whole}"));
    assert_eq!(site.client().send(lower).is(200)["player"], "p");
}

#[test]
fn a_player_is_no_operator_and_an_operator_no_player() {
    let site = Site::start();
    site.open_h();
    let token = token("p");
    let adjust = json!({"coins": 5, "reason": "r", "key": "k"}).to_string();
    let managing = [
        Ask::new("PUT", "/hunts/x").body("{}"),
        Ask::get("/hunts"),
        Ask::new("POST", "/hunts/h/open"),
        Ask::new("POST", "/hunts/h/close"),
        Ask::new("POST", "/hunts/h/archive"),
        Ask::post("/hunts/h/finds", "[]"),
        Ask::post("/hunts/h/players/p/adjust", adjust),
        Ask::post(
            "/hunts/h/reinstate",
            json!({"from": 0, "to": 1}).to_string(),
        ),
        Ask::new("DELETE", "/players/p"),
        Ask::get("/hunts/h/export"),
        Ask::post("/token", json!({"player": "p"}).to_string()),
    ];
    for ask in managing {
        site.client()
            .send(ask.clone())
            .is_problem(401, "token_missing");
        let almost = format!("{ADMIN_KEY}x");
        for bearer in [token.as_str(), "x", &almost, &ADMIN_KEY[1..]] {
            let answer = site.client().send(ask.clone().bearer(bearer));
            answer.is_problem(403, "admin_key_needed");
        }
    }
    site.client()
        .send(Ask::get(POLL).bearer(ADMIN_KEY))
        .is_problem(401, "token_malformed");
    assert_eq!(
        site.manage(Ask::get("/hunts")).is(200)["hunts"][0]["recorded"],
        0
    );
}

#[test]
fn a_token_that_the_server_signs_opens_its_players_wallet_until_it_expires() {
    let site = Site::start();
    site.open_h();
    let ask = |body: serde_json::Value| site.manage(Ask::post("/token", body.to_string()));
    let signed = ask(json!({"player": "p", "ttl_s": 2})).is(200);
    assert_eq!(signed["player"], "p");
    let bearer = signed["token"].as_str().unwrap();
    let poll = || site.client().send(Ask::get(POLL).bearer(bearer));
    assert_eq!(poll().is(200)["player"], "p");
    http_site::wait("the token to expire", || poll().status != 200);
    poll().is_problem(401, "token_expired");
    for (body, pointer) in [
        (json!({"player": "a b"}), "/player"),
        (json!({"player": "p", "ttl_s": 0}), "/ttl_s"),
        (json!({"player": "p", "ttl_s": 31_536_001}), "/ttl_s"),
        (json!({"player": 7}), "/player"),
    ] {
        assert_eq!(
            ask(body).is_problem(422, "malformed_body")["pointer"],
            pointer
        );
    }
    // The command signs with the same key.
    let printed = http_site::trove(&site.env, &["token", "ann", "bob"])
        .output()
        .unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let players: Vec<_> = printed
        .lines()
        .map(|token| site.client().send(Ask::get(POLL).bearer(token)).is(200)["player"].clone())
        .collect();
    assert_eq!(players, ["ann", "bob"]);
}

#[test]
fn sighup_takes_new_keys_and_refuses_what_a_removed_key_signed() {
    let mut site = Site::stopped(&[]);
    let file = site.dir().join("keys");
    let (old, new) = (
        "old-key-of-thirty-two-bytes-or-more",
        "new-key-of-thirty-two-bytes-or-more",
    );
    let write = |lines: &str| std::fs::write(&file, lines).unwrap();
    write(&format!("k1:{old}\n"));
    site.env.remove("TROVE_TOKEN_KEY");
    site.env.insert(
        "TROVE_AUTH__TOKEN_KEYS_FILE".into(),
        file.display().to_string(),
    );
    site.start_again();
    site.open_h();
    let signed = |kid: Option<&str>, key: &str| {
        forge(&Forged {
            header: kid.map_or(
                json!({"alg": "HS256"}),
                |kid| json!({"alg": "HS256", "kid": kid}),
            ),
            key,
            ..Forged::default()
        })
    };
    let poll = |token: &str| site.client().send(Ask::get(POLL).bearer(token));
    let (of_old, of_new) = (signed(Some("k1"), old), signed(Some("k2"), new));
    poll(&of_old).is(200);
    poll(&signed(None, old)).is(200);
    poll(&of_new).is_problem(401, "token_unknown_kid");
    poll(&signed(Some("k1"), new)).is_problem(401, "token_bad_signature");
    write(&format!("k2:{new}\nk1:{old}\n"));
    site.signal(Signal::HUP);
    http_site::wait("the new key to be taken", || poll(&of_new).status == 200);
    poll(&of_old).is(200);
    // A file that cannot be used changes nothing.
    write("k2:short\n");
    site.signal(Signal::HUP);
    site.logged("the settings were not taken");
    poll(&of_old).is(200);
    write(&format!("k2:{new}\n"));
    site.signal(Signal::HUP);
    http_site::wait("the old key to be gone", || poll(&of_old).status != 200);
    poll(&of_old).is_problem(401, "token_unknown_kid");
    poll(&signed(None, old)).is_problem(401, "token_bad_signature");
    poll(&of_new).is(200);
}

#[test]
fn an_erased_players_token_opens_nothing_and_a_newer_one_a_new_wallet() {
    let site = Site::with(&[("poll.credit_wait_ms", "1000")]);
    site.open_h();
    let mut ann = site.player("ann");
    ann.finds("r", "one");
    ann.poll();
    ann.finds("r", "two");
    let erase = || site.manage(Ask::new("DELETE", "/players/ann")).is(200);
    assert_eq!(erase(), json!({"existed": true, "revoked": 3}));
    for ask in [
        Ask::get(POLL),
        Ask::get("/treasure/h?since=0.0"),
        Ask::new("HEAD", POLL),
        Ask::get("/treasure/h/history"),
        Ask::post("/treasure/h/finds", json!({"treasure": "a"}).to_string()),
    ] {
        let answer = ann.send(ask.clone());
        assert_eq!(answer.status, 401, "{ask:?}");
        if ask.method != "HEAD" {
            answer.is_problem(401, "erased");
        }
    }
    assert_eq!(erase()["existed"], false, "and it recreated nobody");
    let bulk = json!([{"id": "x", "player": "ann", "coins": 1}]).to_string();
    let outcome = site.manage(Ask::post("/hunts/h/finds", bulk)).is(200);
    assert_eq!(outcome["outcomes"][0]["status"], 410);
    assert_eq!(outcome["outcomes"][0]["code"], "erased");
    let adjust = json!({"coins": 5, "reason": "r", "key": "k"}).to_string();
    site.manage(Ask::post("/hunts/h/players/ann/adjust", adjust))
        .is_problem(410, "erased");
    // Tokens say whole seconds.
    http_site::wait("a token from after the erasure", || {
        ann.token = token("ann");
        ann.send(Ask::get(POLL)).status == 200
    });
    let poll = ann.poll();
    assert_eq!((&poll["balance"], &poll["finds"]), (&json!(0), &json!([])));
    assert_eq!(
        ann.find(&json!({"treasure": "r", "id": "one"})).is(201)["duplicate"],
        false
    );
    site.verifies();
    let export = site.run(&["export", "h"]);
    let names = http_site::lines(&export.stdout);
    let named: Vec<_> = names.iter().filter(|row| row["name"] == "ann").collect();
    assert_eq!(named.len(), 1, "the first wallet has no name any more");
}

#[test]
fn erasing_while_the_players_phones_poll_leaves_no_token_open() {
    let site = Site::start();
    site.open_h();
    for round in 0..15 {
        let name = format!("p{round}");
        let phones: Vec<_> = (0..4).map(|_| site.player(&name)).collect();
        site.player(&name).finds("r", "one");
        std::thread::scope(|scope| {
            for mut phone in phones {
                scope.spawn(move || {
                    // Other hunts of the same token make it open the player again and again.
                    while phone.send(Ask::get(POLL)).status == 200 {}
                });
            }
            site.manage(Ask::new("DELETE", &format!("/players/{name}")))
                .is(200);
            for _ in 0..20 {
                let mut late = site.player(&name);
                // Signed in the same second as the erasure at the latest, so from before it.
                late.token = forge(&Forged {
                    claims: json!({"sub": name, "iat": seconds_now() - 1, "exp": seconds_now() + 60}),
                    ..Forged::default()
                });
                late.send(Ask::get(POLL)).is_problem(401, "erased");
            }
        });
    }
    site.verifies();
}
