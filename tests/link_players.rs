//! Every answer that comes over links is its own player's, whatever happens to players, servers and links.

mod link_site;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use link_site::relay::{Cruelty, KIND, relay};
use link_site::{Asker, PATIENCE, Shim, generator, seed, shim, until, upstream};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use trove::link::LinkLimits;

/// What players saw.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    failed: AtomicUsize,
    left: AtomicUsize,
}

/// One player: asks, checks, now and then vanishes in the middle and comes back on another connection.
async fn play(
    shim: std::net::SocketAddr,
    name: String,
    rounds: usize,
    mut random: Pcg64Mcg,
    seen: Arc<Seen>,
) {
    let mut asker = Asker::connect(shim).await;
    for round in 0..rounds {
        let pipelined = if random.random_ratio(1, 10) { 3 } else { 1 };
        let mut expected = Vec::new();
        let mut bytes = Vec::new();
        for part in 0..pipelined {
            let kind = ["now", "slow"][random.random_range(0..2)];
            let method = if random.random_ratio(1, 12) {
                "HEAD"
            } else {
                "GET"
            };
            let target = format!("/{kind}/{name}/{round}.{part}");
            bytes.extend_from_slice(
                format!(
                    "{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: token-{name}\r\n\r\n"
                )
                .as_bytes(),
            );
            expected.push((method, format!("{target} token-{name} 127.0.0.1")));
        }
        asker.send(&bytes).await;
        if random.random_ratio(1, 15) {
            // Gone while the answers are under way; by a reset, which is noticed at once, or quietly.
            if random.random_bool(0.5) {
                let socket = socket2::SockRef::from(&asker.stream);
                let _ = socket.set_linger(Some(Duration::ZERO));
            }
            if random.random_bool(0.5) {
                tokio::time::sleep(Duration::from_millis(random.random_range(0..5))).await;
            }
            asker = Asker::connect(shim).await;
            seen.left.fetch_add(1, SeqCst);
            continue;
        }
        for (method, body) in expected {
            let reply = asker.reply_to(method).await.expect("an answer");
            match reply.status {
                200 if method == "HEAD" => {
                    let length = format!("content-length: {}\r\n", body.len());
                    assert!(reply.head.contains(&length), "{reply:?} for {body}");
                }
                200 => assert_eq!(reply.text(), body, "another player's answer"),
                299 | 502 => drop(seen.failed.fetch_add(1, SeqCst)),
                status => panic!("{status} for {body}"),
            }
            seen.answered.fetch_add(1, SeqCst);
        }
    }
}

async fn all_play(shim: &Shim, players: usize, rounds: usize, seed: u64) -> Arc<Seen> {
    let mut random = generator(seed);
    let seen = Arc::new(Seen::default());
    let tasks: Vec<_> = (0..players)
        .map(|n| {
            let random = generator(random.random());
            tokio::spawn(play(
                shim.address,
                format!("p{n}"),
                rounds,
                random,
                seen.clone(),
            ))
        })
        .collect();
    for task in tasks {
        task.await.expect("a player");
    }
    seen
}

#[tokio::test]
async fn thousands_of_players_over_few_links_get_their_own_answers() {
    let seed = seed();
    for links in [1, 4] {
        let upstream = upstream(seed, LinkLimits::default()).await;
        let shim = shim().await;
        for id in 0..links {
            shim.link(upstream.address, id, LinkLimits::default()).await;
        }
        let seen = all_play(&shim, 1500, 8, seed).await;
        assert_eq!(seen.failed.load(SeqCst), 0);
        assert!(seen.left.load(SeqCst) > 0);
        until("the links are empty", || shim.pass.in_flight() == 0).await;
        assert_eq!(
            shim.pass.links(),
            usize::from(links),
            "{:?}",
            shim.pass.ends.lock()
        );
        println!(
            "{links} links: {seen:?}, {} delivered",
            shim.pass.delivered.load(SeqCst)
        );
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [answered, failed, left] =
            [&self.answered, &self.failed, &self.left].map(|count| count.load(SeqCst));
        write!(f, "{answered} answered ({failed} failed), {left} left")
    }
}

#[tokio::test]
async fn a_link_that_passes_a_byte_at_a_time_is_slow_and_right() {
    let seed = seed();
    let upstream = upstream(seed, LinkLimits::default()).await;
    let cruelty = Cruelty {
        piece_bytes_max: 1,
        ..KIND
    };
    let (address, _) = relay(upstream.address, cruelty, generator(seed)).await;
    let shim = shim().await;
    shim.link(address, 0, LinkLimits::default()).await;
    let seen = all_play(&shim, 20, 10, seed).await;
    assert_eq!(seen.failed.load(SeqCst), 0);
    until("the link is empty", || shim.pass.in_flight() == 0).await;
    assert_eq!(shim.pass.links(), 1);
}

#[tokio::test]
async fn links_cut_anywhere_lose_no_player_and_mix_up_none() {
    let seed = seed();
    let upstream = upstream(seed, LinkLimits::default()).await;
    let cruelty = Cruelty {
        piece_bytes_max: 3000,
        cut_below: 60_000,
        delay_ms_max: 1,
    };
    let (address, cutting) = relay(upstream.address, cruelty, generator(seed)).await;
    let shim = Arc::new(shim().await);
    let keeper = tokio::spawn({
        let shim = shim.clone();
        async move {
            let mut id = 0u16;
            loop {
                if shim.pass.links() < 3 {
                    // Numbers are used again only long after.
                    id = (id + 1) % 1000;
                    let _ = shim.try_link(address, id, LinkLimits::default()).await;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
    until("there are links", || shim.pass.links() == 3).await;
    let seen = all_play(&shim, 300, 25, seed).await;
    keeper.abort();
    println!(
        "{} links, {} ended; {seen:?}; {} given back, {} sent again",
        cutting.connections.load(SeqCst),
        shim.pass.ends.lock().unwrap().len(),
        shim.pass.returned.load(SeqCst),
        shim.pass.resent.load(SeqCst),
    );
    assert!(
        shim.pass.resent.load(SeqCst) > 0,
        "links were cut under requests"
    );
    until("the links are empty", || shim.pass.in_flight() == 0).await;
}

#[tokio::test]
async fn requests_under_way_on_a_silent_link_are_sent_elsewhere() {
    let seed = seed();
    let limits = LinkLimits {
        ping_interval_ms: 50,
        ..LinkLimits::default()
    };
    let upstream = upstream(seed, limits.clone()).await;
    let (address, silent) = relay(upstream.address, KIND, generator(seed)).await;
    let shim = shim().await;
    shim.link(address, 1, limits.clone()).await;
    // Pings keep an idle link.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(shim.pass.links(), 1);
    let mut asker = Asker::connect(shim.address).await;
    let reply = asker.ask("GET", "/now/a", "t").await.expect("an answer");
    assert!(reply.head.contains("x-link: 1\r\n"), "{reply:?}");
    silent.is_hole.store(true, SeqCst);
    let asking = tokio::spawn(async move { asker.ask("GET", "/now/b", "t").await });
    until("it is under way", || shim.pass.in_flight() == 1).await;
    shim.link(upstream.address, 2, limits).await;
    let reply = tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("in time")
        .expect("asked");
    let reply = reply.expect("an answer");
    assert_eq!(reply.text(), "/now/b t 127.0.0.1");
    assert!(reply.head.contains("x-link: 2\r\n"), "{reply:?}");
    assert_eq!(shim.pass.returned.load(SeqCst), 1);
    // The server lets go of the silent link as well.
    until("one link is left", || upstream.front.connections() == 1).await;
}

#[tokio::test]
async fn held_polls_of_players_who_leave_are_let_go_and_hold_back_nobody() {
    let seed = seed();
    let upstream = upstream(seed, LinkLimits::default()).await;
    let shim = shim().await;
    shim.link(upstream.address, 0, LinkLimits::default()).await;
    let mut held = Vec::new();
    for n in 0..1000 {
        let mut asker = Asker::connect(shim.address).await;
        let request = format!("GET /held/{n} HTTP/1.1\r\nhost: x\r\n\r\n");
        asker.send(request).await;
        held.push(asker);
    }
    until("all are held", || upstream.game.called.load(SeqCst) == 1000).await;
    let seen = all_play(&shim, 100, 5, seed).await;
    assert_eq!(seen.failed.load(SeqCst), 0);
    for asker in held.drain(..) {
        let socket = socket2::SockRef::from(&asker.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
    until("the links are empty", || shim.pass.in_flight() == 0).await;
    until("all are let go", || {
        upstream.game.dropped.load(SeqCst) >= 1000
    })
    .await;
    assert_eq!(shim.pass.links(), 1);
}
