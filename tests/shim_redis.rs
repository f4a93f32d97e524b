//! Two Trove servers that share a Redis, behind a shim whose links carry finds and polls, and one of them is killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod redis_server;
mod shim_site;

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use serde_json::Value;
use shim_site::{Client, PATIENCE, Process, Reply, Shim, start, tokens, trove, until};

const PLAYERS: usize = 120;
const FINDS: usize = 25;
const COINS: u64 = 5;

fn serve(name: &str, store: &str) -> (Process, SocketAddr) {
    let ports = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"];
    let args = [
        &["serve", "--store", store, "--instance-id", name],
        &ports[..],
    ]
    .concat();
    let (process, public, _) = start(trove(&args));
    (process, public)
}

fn run(args: &[&str]) {
    let output = trove(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// One player: records a find and polls, again and again. Gives the names of those who answered.
struct Player<'a> {
    shim: &'a Shim,
    client: Client,
    name: &'a str,
    token: &'a str,
    instances: HashSet<String>,
}

impl Player<'_> {
    fn ask(&mut self, request: &str) -> Reply {
        self.client.send(request.as_bytes());
        let reply = self.client.reply();
        if reply.closes() {
            self.client = self.shim.connect();
        }
        if let Some(instance) = reply.field("x-instance-id") {
            self.instances.insert(instance.to_owned());
        }
        reply
    }

    /// Sends a find until it is answered; its key makes the second the same as the first.
    fn find(&mut self, nth: usize) {
        let body = format!(r#"{{"treasure":"r","id":"f{nth}"}}"#);
        let request = format!(
            "POST /treasure/h/finds HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: f{nth}\r\ncontent-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        let begun = Instant::now();
        loop {
            let reply = self.ask(&request);
            match reply.status {
                200 | 201 => return,
                // The one retry met the killed instance too.
                502 | 503 if begun.elapsed() < PATIENCE => {}
                status => panic!("{status}: {}", reply.text()),
            }
        }
    }

    /// A poll is never failed. Gives the balance.
    fn poll(&mut self) -> u64 {
        let request = format!(
            "GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
            self.token
        );
        let reply = self.ask(&request);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let poll: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(poll["player"], self.name, "another's answer");
        poll["balance"].as_u64().unwrap()
    }
}

#[test]
fn finds_and_polls_over_links_to_servers_that_share_a_redis_add_up_when_one_is_killed() {
    let redis = redis_server::Server::start();
    let mut servers = [serve("a", &redis.url()), serve("b", &redis.url())];
    let dir = tempfile::tempdir().unwrap();
    let hunt = dir.path().join("hunt.json");
    let document = r#"{"id":"h","name":"h","treasures":[{"id":"r","coins":5,"repeatable":true}]}"#;
    std::fs::write(&hunt, document).unwrap();
    let server = format!("http://{}", servers[1].1);
    run(&["hunt", "put", hunt.to_str().unwrap(), "--server", &server]);
    run(&["hunt", "open", "h", "--server", &server]);
    let shim = Shim::start(&[format!("blue={},{}", servers[0].1, servers[1].1)]);
    for (_, address) in &servers {
        shim.until_usable(*address, true);
        shim.until_linked(*address, 2);
    }
    let players: Vec<String> = (0..PLAYERS).map(|n| format!("player-{n}")).collect();
    let tokens = tokens(&players);
    let found = AtomicUsize::new(0);
    let instances = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..12)
            .map(|thread| {
                let (shim, players, tokens, found) = (&shim, &players, &tokens, &found);
                scope.spawn(move || {
                    let mut own: Vec<Player<'_>> = (thread..PLAYERS)
                        .step_by(12)
                        .map(|n| Player {
                            shim,
                            client: shim.connect(),
                            name: &players[n],
                            token: &tokens[n],
                            instances: HashSet::new(),
                        })
                        .collect();
                    for nth in 0..FINDS {
                        for player in &mut own {
                            player.find(nth);
                            found.fetch_add(1, SeqCst);
                            let most = COINS * (nth as u64 + 1);
                            assert!(player.poll() <= most, "a find is credited twice");
                        }
                    }
                    for player in &mut own {
                        until("all is credited", || player.poll() == COINS * FINDS as u64);
                    }
                    own.into_iter()
                        .flat_map(|player| player.instances)
                        .collect::<HashSet<_>>()
                })
            })
            .collect();
        // Not `until`: should a player fail, this must end too.
        while found.load(SeqCst) < PLAYERS * FINDS / 3
            && !asking.iter().any(|one| one.is_finished())
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        servers[0].0.kill();
        let asked = asking.into_iter().map(|one| one.join().expect("a player"));
        asked.flatten().collect::<HashSet<_>>()
    });
    assert!(
        ["a", "b"].iter().all(|name| instances.contains(*name)),
        "{instances:?}"
    );
    let series = |address| {
        format!("trove_shim_link_requests_total{{instance=\"{address}\",upstream=\"blue\"}}")
    };
    for (_, address) in &servers {
        assert!(shim.metric(&series(*address)) > 0.5, "links carried them");
    }
    run(&["verify", "h", "--store", &redis.url()]);
}

#[test]
fn what_a_server_s_own_front_refuses_tells_its_instance_and_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = serve("it", &format!("embedded:{}", dir.path().display()));
    let mut client = Client::new(TcpStream::connect(address).unwrap());
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.code()), (400, "bad_host"));
    assert_eq!(reply.field("x-instance-id"), Some("it"));
    let timing = reply.field("server-timing").unwrap();
    assert!(timing.starts_with("app;dur="), "{timing}");
}
