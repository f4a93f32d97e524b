//! The log of requests: one in so many, failures always, ids that clients can name, and never a secret.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod http_site;
mod redis_server;

use http_site::{
    ADMIN_KEY, Ask, Client, Forged, PATIENCE, Site, TOKEN_KEY, forge, series, token, trove, wait,
};
use redis_server::Server as Redis;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::Child;
use std::sync::{Arc, Mutex, mpsc};

/// The lines about requests.
fn lines(site: &Site) -> Vec<Value> {
    let parsed = site
        .log()
        .into_iter()
        .filter_map(|line| serde_json::from_str(&line).ok());
    parsed
        .filter(|line: &Value| line["fields"]["message"] == "a request")
        .collect()
}

#[test]
fn one_in_so_many_polls_is_logged_and_every_find_that_is_asked_for() {
    let site = Site::with(&[
        ("log.requests", "poll=10,find=1"),
        ("log.requests_per_s_max", "100000"),
    ]);
    site.open_h();
    let mut player = site.player("one");
    for n in 0..3 {
        player.finds("r", &format!("{n}"));
    }
    for _ in 0..100 {
        player.poll();
    }
    // The last line that is due says that all before it are there.
    player.finds("r", "last");
    wait("four finds in the log", || {
        lines(&site)
            .iter()
            .filter(|line| line["fields"]["route"] == "find")
            .count()
            == 4
    });
    let of = |route: &str| {
        lines(&site)
            .iter()
            .filter(|line| line["fields"]["route"] == route)
            .count()
    };
    assert_eq!(of("poll"), 10);
    assert_eq!(of("put_hunt"), 0, "what is not named is not logged");
    let line = lines(&site)
        .into_iter()
        .find(|line| line["fields"]["route"] == "find")
        .unwrap();
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["fields"]["status"], 201);
    assert!(line["fields"]["took_us"].as_u64().unwrap() > 0, "{line}");
    assert!(line["fields"]["store_us"].as_u64().unwrap() > 0, "{line}");
}

#[test]
fn an_answer_names_its_request_and_the_log_names_it_too() {
    let site = Site::with(&[("log.requests", "*=1")]);
    site.open_h();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let answer = site.client().send(
        Ask::get("/treasure/h")
            .bearer(&token("p"))
            .with("traceparent", &parent),
    );
    assert_eq!(answer.field("x-request-id"), Some(trace));
    let logged = |id: &str| {
        lines(&site)
            .iter()
            .any(|line| line["fields"]["request_id"] == id)
    };
    wait("the trace in the log", || logged(trace));
    // Without one it gets a number of its own, also when it is refused; what a client makes up is not believed.
    let forged = "not-a-number-of-ours";
    let ids: Vec<String> = (0..2)
        .map(|_| {
            let answer = site
                .client()
                .send(Ask::get("/treasure/h").with("x-request-id", forged));
            assert_eq!(answer.status, 401);
            answer.field("x-request-id").unwrap().to_owned()
        })
        .collect();
    assert_ne!(ids[0], ids[1]);
    for id in ids {
        assert!(
            id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()),
            "{id}"
        );
        wait("its id in the log", || logged(&id));
    }
}

#[test]
fn lines_are_bounded_in_a_second_and_the_rest_is_counted() {
    let site = Site::with(&[("log.requests", "*=1"), ("log.requests_per_s_max", "1")]);
    site.open_h();
    let mut player = site.player("one");
    for _ in 0..200 {
        player.poll();
    }
    let left_out = || {
        series(
            &site.ops().send(Ask::get("/metrics")).text(),
            "trove_log_requests_left_out_total",
        )
    };
    // The hunt was put and opened.
    let all = 202;
    wait("all to be written or counted", || {
        lines(&site).len() as u64 + left_out() >= all
    });
    assert!(left_out() > 100, "{}", left_out());
}

/// A shim before a server, whose log is read.
struct Shim {
    child: Child,
    public: SocketAddr,
    ops: Client,
    log: Arc<Mutex<Vec<String>>>,
}

impl Shim {
    fn start(site: &Site) -> Self {
        let upstream = format!("blue={}", site.public());
        let args = [
            "shim",
            "--listen",
            "127.0.0.1:0",
            "--ops-listen",
            "127.0.0.1:0",
            "--upstream",
            &upstream,
        ];
        let mut child = trove(&site.env, &args).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (sender, ready) = mpsc::channel();
        let lines = log.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                lines.lock().unwrap().push(line);
                if event["fields"]["message"] == "ready" {
                    let address =
                        |name: &str| event["fields"][name].as_str().unwrap().parse().unwrap();
                    let _ = sender.send((address("public"), address("ops")));
                }
            }
        });
        let (public, ops) = ready.recv_timeout(PATIENCE).unwrap();
        Self {
            child,
            public,
            ops: Client::new(ops),
            log,
        }
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What must be in no log. Each is also what a client of the test sent.
const CODE: &str = "the-code-of-the-crane-8151";
const FIND_ID: &str = "an-id-of-a-client-6602";
const NAME: &str = "alice.private@example.org";

/// Requests of every kind, good and bad, each with its secrets where they belong and where they do not.
fn requests() -> (Vec<Ask>, Vec<String>) {
    let good = token(NAME);
    let expired = forge(&Forged {
        claims: json!({"sub": NAME, "iat": 1, "exp": 2}),
        ..Forged::default()
    });
    let forged = forge(&Forged {
        key: "another-key-of-more-than-thirty-two-bytes",
        ..Forged::default()
    });
    let mut asks = Vec::new();
    for bearer in [
        &good,
        &expired,
        &forged,
        &ADMIN_KEY.to_owned(),
        &TOKEN_KEY.to_owned(),
    ] {
        for ask in [
            Ask::get("/treasure/h"),
            Ask::get("/treasure/h?since=1.1"),
            Ask::get(&format!("/treasure/h?token={bearer}")),
            Ask::get(&format!("/treasure/{bearer}")),
            Ask::get("/treasure/h/history"),
            Ask::post("/treasure/h/finds", json!({"treasure": "a", "code": CODE}).to_string()),
            Ask::post("/treasure/h/finds", json!({"treasure": "r", "id": FIND_ID, "code": CODE}).to_string()),
            Ask::post("/treasure/h/finds", format!("{{\"treasure\": \"a\", \"code\": \"{CODE}\", ")),
            Ask::post("/treasure/h/finds", json!({"treasure": "a", "secret": CODE}).to_string()).with("Idempotency-Key", FIND_ID),
            Ask::post("/heartbeat", json!({"code": CODE}).to_string()),
            Ask::post("/token", json!({"player": NAME, "ttl_s": 60}).to_string()),
            Ask::post("/hunts/h/finds", json!([{"player": NAME, "treasure": "r", "id": FIND_ID}, {"code": CODE}]).to_string()),
            Ask::post(&format!("/hunts/h/players/{NAME}/adjust"), json!({"coins": 1, "reason": CODE, "key": FIND_ID}).to_string()),
            Ask::new("PUT", "/hunts/new").body(json!({"id": "new", "name": "n", "treasures": [{"id": "t", "coins": 1, "code": CODE}]}).to_string()),
            Ask::get("/hunts/h/export"),
            Ask::get("/hunts/h"),
            Ask::get("/nowhere"),
            Ask::new("PATCH", "/treasure/h"),
        ] {
            asks.push(ask.bearer(bearer));
        }
        // A field that breaks a line, and a key where the scheme should be.
        asks.push(Ask::get("/treasure/h").with("Authorization", bearer));
        asks.push(Ask::get("/treasure/h").with("traceparent", bearer));
        asks.push(
            Ask::get("/treasure/h")
                .with("x-request-id", bearer)
                .with("Cookie", bearer),
        );
        asks.push(Ask::get("/treasure/h").with("bad name", bearer));
        asks.push(
            Ask::get("/treasure/h")
                .with("Content-Length", "1")
                .with("Transfer-Encoding", bearer),
        );
    }
    asks.push(Ask::new("DELETE", &format!("/players/{NAME}")).bearer(ADMIN_KEY));
    let mut secrets: Vec<String> = [CODE, FIND_ID, NAME, ADMIN_KEY, TOKEN_KEY]
        .map(str::to_owned)
        .to_vec();
    for token in [good, expired, forged] {
        // The claims name the player, the signature opens the door: neither alone, nor both.
        secrets.extend(token.split('.').skip(1).map(str::to_owned));
    }
    (asks, secrets)
}

/// Everything is logged that can be.
const EVERYTHING: [(&str, &str); 4] = [
    ("log.level", "trace"),
    ("log.requests", "*=1"),
    ("log.requests_per_s_max", "100000"),
    ("sla.slow_ms", "1"),
];

#[test]
fn no_token_key_code_id_or_name_is_ever_in_a_log_of_a_server_with_a_store_of_its_own() {
    holds_no_secret(&Site::with(&EVERYTHING));
}

#[test]
fn no_token_key_code_id_or_name_is_ever_in_a_log_of_a_server_on_redis() {
    let redis = Redis::start();
    let mut site = Site::stopped(&EVERYTHING).store_at(&redis.url());
    site.start_again();
    holds_no_secret(&site);
}

/// Sends every kind of request to a server, and to a shim before it, and reads what both have logged.
fn holds_no_secret(site: &Site) {
    site.open_h();
    let mut shim = Shim::start(site);
    let (asks, secrets) = requests();
    for ask in &asks {
        // What is malformed is answered and closed, or closed.
        let _ = site.client().try_send(ask);
        let _ = Client::new(shim.public).try_send(ask);
    }
    for key in [ADMIN_KEY, TOKEN_KEY] {
        let body = json!({ "group": key }).to_string();
        let _ = shim
            .ops
            .try_send(&Ask::post("/shim/switch", body).bearer(key));
    }
    // A slow one has a second line, which is none of these.
    wait("the last of them in the log", || {
        let erased = lines(site);
        let erased = erased
            .iter()
            .filter(|line| line["fields"]["route"] == "erase");
        erased.count() == 2
    });
    let logs = [site.log(), shim.log.lock().unwrap().clone()];
    let [served, forwarded] = [&logs[0], &logs[1]]
        .map(|log| log.iter().filter(|line| line.contains("a request")).count());
    println!(
        "{} requests, {served} and {forwarded} lines about them",
        2 * asks.len()
    );
    assert!(served > 100 && forwarded > 50, "{served} {forwarded}");
    for line in logs.iter().flatten() {
        for secret in &secrets {
            assert!(!line.contains(secret.as_str()), "{secret} in {line}");
        }
    }
}
