//! Through failovers of a cluster, as clients outside see them: what was acknowledged and then rolled back, because the primary
//! that had it was cut off from its replica before it died, comes back; and with `replicated` it is not acknowledged.

#![allow(clippy::unwrap_used)]

mod failover_site;
mod http_site;
mod redis_server;

use failover_site::{Load, metric, recovered, replayed, seed};
use http_site::{Ask, Site, wait};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis_server::cluster::Cluster;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trove_streams::keys::Keys;
use trove_streams::slot::{SLOTS, slot};
use trove_streams::{Partitions, redis};

/// Two instances on a cluster, with hunt `h` open.
fn sites(cluster: &Cluster, settings: &[(&str, &str)]) -> Vec<Site> {
    let sites: Vec<Site> = ["one", "two"]
        .map(|name| {
            let mut all = vec![
                ("server.instance_id", name),
                ("poll.jitter", "0"),
                ("store.recovery_ms", "500"),
                ("store.connect_wait_ms", "30000"),
                // A machine that is busy with other tests is not a store that is away.
                ("store.response_timeout_ms", "1500"),
            ];
            all.extend(settings);
            let mut site = Site::stopped(&all).store_at(&cluster.url());
            site.start_again();
            site
        })
        .into();
    sites[0].open_h();
    wait("the other to know the hunt", || {
        sites[1].client().send(Ask::get("/hunts/h")).status == 200
    });
    sites
}

/// Slots of two primaries, each of which dies once: that of the store's identity, and another.
fn slots() -> [u16; 2] {
    let home = slot(b"{store}identity");
    [home, (home + SLOTS / 2) % SLOTS]
}

/// Cuts a slot's primary off from its replica, lets `meanwhile` happen, and kills it. The replica takes over, and the killed
/// one comes back as its replica, empty.
fn roll_back(cluster: &mut Cluster, slot: u16, meanwhile: impl FnOnce()) {
    let old = cluster.primary_of(slot);
    let replica = cluster.cut_off_replica_of(old);
    meanwhile();
    cluster.nodes[old].kill();
    cluster.promoted(slot, old);
    cluster.let_follow(replica);
    cluster.nodes[old].start_again();
    cluster.follows(old);
}

/// How much each recovery of an instance offered, in their order.
fn offered(site: &Site) -> Vec<usize> {
    let log = site.log();
    let begun = log.iter().filter(|line| line.contains("a recovery begins"));
    begun
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let open = line.get("open").or_else(|| line["fields"].get("open"));
            usize::try_from(open.unwrap().as_u64().unwrap()).unwrap()
        })
        .collect()
}

#[test]
fn a_failover_has_nothing_offered_that_the_other_primaries_hold() {
    let mut cluster = Cluster::start(true, 1_500);
    let sites = sites(&cluster, &[]);
    let load = Load::start(&sites, seed());
    let before: Vec<usize> = sites.iter().map(|site| offered(site).len()).collect();
    load.goes_on(300);
    for (nth, slot) in slots().into_iter().enumerate() {
        let old = cluster.primary_of(slot);
        cluster.nodes[old].kill();
        cluster.promoted(slot, old);
        cluster.nodes[old].start_again();
        cluster.follows(old);
        cluster.wait_whole();
        recovered(&sites);
        load.goes_on(100);
        for (site, before) in sites.iter().zip(&before) {
            let offered = offered(site).split_off(*before);
            println!("recoveries after {} failovers offered {offered:?}", nth + 1);
            // Names, and what the primary that died did last; what was executed so far is more than twice 300.
            assert!(!offered.is_empty() && offered.iter().all(|count| *count < 100));
        }
    }
    let books = load.stop();
    books.no_poll_failed();
    books.are_kept_by(&sites[0]);
}

#[test]
fn acknowledged_writes_that_a_primary_of_a_cluster_took_with_it_come_back() {
    let mut cluster = Cluster::start(true, 1_500);
    let sites = sites(&cluster, &[]);
    let load = Load::start(&sites, seed());
    load.goes_on(20);
    let mut before = replayed(&sites);
    for slot in slots() {
        roll_back(&mut cluster, slot, || load.goes_on(80));
        cluster.wait_whole();
        recovered(&sites);
        load.goes_on(20);
        let now = replayed(&sites);
        let back = (now.0 - before.0, now.1 - before.1);
        println!("{} finds and {} credits brought back", back.0, back.1);
        assert!(
            back.0 > 0 && back.1 > 0,
            "what was rolled back proves nothing: {back:?}"
        );
        before = now;
    }
    let books = load.stop();
    println!(
        "{} finds and {} credits told; {} polls, {} stale, {} resets, {} finds retried, polls' p50 {:?}, p99 {:?}, slowest {:?}",
        books.found.len(),
        books.credited.len(),
        books.polls,
        books.stale,
        books.resets,
        books.retried,
        books.per_mille(500),
        books.per_mille(990),
        books.per_mille(1_000)
    );
    assert!(books.resets > 0 && books.stale > 0);
    books.no_poll_failed();
    books.are_kept_by(&sites[1]);
}

#[test]
fn with_replicated_what_a_primary_of_a_cluster_took_with_it_was_not_acknowledged() {
    let mut cluster = Cluster::start(true, 1_500);
    let settings = [
        ("store.durability", "replicated"),
        ("store.durability_wait_ms", "400"),
        ("store.find_wait_ms", "2000"),
        // Nothing is brought back: what was promised is there.
        ("store.replay_bytes_max", "0"),
    ];
    let sites = sites(&cluster, &settings);
    let load = Load::start(&sites, seed());
    load.goes_on(20);
    for slot in slots() {
        roll_back(&mut cluster, slot, || {
            let before = load.retried();
            wait("finds to be refused", || load.retried() >= before + 6);
        });
        cluster.wait_whole();
        recovered(&sites);
        load.goes_on(20);
    }
    let books = load.stop();
    println!(
        "{} finds and {} credits told, {} finds refused and tried again; {} polls, {} stale",
        books.found.len(),
        books.credited.len(),
        books.retried,
        books.polls,
        books.stale
    );
    assert_eq!(replayed(&sites), (0, 0));
    assert!(metric(&sites, "trove_store_failovers_total") >= 4);
    books.no_poll_failed();
    books.are_kept_by(&sites[0]);
}

#[test]
fn a_replica_that_is_away_does_not_hold_up_writes_to_the_other_primaries() {
    let mut cluster = Cluster::start(true, 1_500);
    let settings = [
        ("store.durability", "replicated"),
        ("store.durability_wait_ms", "1000"),
    ];
    let sites = sites(&cluster, &settings);
    // So many that all of them, a hundred or so a fence, would outlast what a find waits: 5 s.
    let names: Vec<String> = (0..1_000).map(|nth| format!("player-{nth}")).collect();
    for name in &names {
        sites[0].player(name).poll();
    }
    let followed = || {
        let log = sites[0].log();
        log.iter()
            .filter(|line| line.contains("a new epoch is followed"))
            .count()
    };
    let before = (offered(&sites[0]).len(), followed());
    let slot = slots()[1];
    let old = cluster.primary_of(slot);
    let hunt = HuntState::watch(&cluster, old);
    cluster.nodes[old].kill();
    cluster.promoted(slot, old);
    wait("the recovery to begin", || {
        offered(&sites[0]).len() > before.0
    });
    assert!(offered(&sites[0])[before.0] >= names.len());
    let find = |name: &String| {
        let found = json!({"treasure": "r", "id": "one"});
        sites[0].player(name).find(&found).status
    };
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> = names[..24]
            .iter()
            .map(|name| scope.spawn(move || find(name)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    println!("{answers:?}");
    // Two of three primaries have their replicas.
    let done = answers.iter().filter(|status| **status == 201).count();
    assert!(done >= answers.len() / 2, "{answers:?}");
    wait("the recovery to end", || followed() > before.1);
    // It is there and everybody knows it: nothing stops its finds to make it so.
    assert_eq!(hunt.seen(), ["2"]);
}

/// What a partition says of the first hunt, looked at again and again: its generation, or who has stopped its finds.
struct HuntState {
    is_over: Arc<AtomicBool>,
    looks: JoinHandle<BTreeSet<String>>,
}

impl HuntState {
    /// In a partition that lies on another primary than this.
    fn watch(cluster: &Cluster, not_on: usize) -> Self {
        let keys = Keys::new("", Partitions::default()).unwrap();
        let states = keys
            .partitions()
            .iter()
            .map(|of| keys.partition(of).state());
        let (state, port) = states
            .map(|state| (cluster.primary_of(slot(state.as_bytes())), state))
            .find(|(primary, _)| *primary != not_on)
            .map(|(primary, state)| (state, cluster.nodes[primary].port))
            .unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let looks = std::thread::spawn(move || {
            let client = redis::Client::open(("127.0.0.1", port)).unwrap();
            let mut connection = client.get_connection().unwrap();
            let mut seen = BTreeSet::new();
            while !over.load(Relaxed) {
                let state = redis::cmd("HGET")
                    .arg(&[&state, "g1"])
                    .query(&mut connection);
                seen.insert(state.unwrap());
                std::thread::sleep(Duration::from_millis(2));
            }
            seen
        });
        Self { is_over, looks }
    }

    /// All that it said so far.
    fn seen(self) -> Vec<String> {
        self.is_over.store(true, Relaxed);
        self.looks.join().unwrap().into_iter().collect()
    }
}

/// A round of a seeded mixture: what fails, and how.
fn fail(cluster: &mut Cluster, load: &Load, random: &mut SmallRng) -> &'static str {
    let slot = random.random_range(0..SLOTS);
    let primary = cluster.primary_of(slot);
    match random.random_range(0..5) {
        0 => {
            roll_back(cluster, slot, || load.goes_on(40));
            "writes rolled back"
        }
        1 => {
            cluster.nodes[primary].kill();
            cluster.promoted(slot, primary);
            cluster.nodes[primary].start_again();
            cluster.follows(primary);
            "primary killed"
        }
        2 => {
            // It goes on believing that it is one, until the others tell it otherwise.
            cluster.nodes[primary].pause();
            cluster.promoted(slot, primary);
            cluster.nodes[primary].go_on();
            cluster.follows(primary);
            "primary stopped until another took over"
        }
        3 => {
            cluster.nodes[primary].pause();
            std::thread::sleep(Duration::from_millis(random.random_range(50..900)));
            cluster.nodes[primary].go_on();
            "primary stopped for a moment"
        }
        _ => {
            let replica = cluster.cut_off_replica_of(primary);
            cluster.nodes[replica].kill();
            load.goes_on(10);
            cluster.nodes[replica].start_again();
            "replica killed"
        }
    }
}

#[test]
fn through_a_seeded_mixture_of_faults_of_a_cluster_nothing_is_lost_or_doubled() {
    let seed = seed();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut cluster = Cluster::start(true, 1_500);
    let sites = sites(&cluster, &[]);
    let load = Load::start(&sites, seed);
    // By the number of its rounds: minutes only where somebody asks for them.
    let long = std::env::var_os("TROVE_TEST_LONG").is_some_and(|is| is == "1");
    let (rounds, most) = if long {
        (usize::MAX, Duration::from_secs(240))
    } else {
        (3, Duration::from_secs(3_600))
    };
    let began = Instant::now();
    let mut round = 0;
    while round < rounds && began.elapsed() < most {
        load.goes_on(10);
        let what = fail(&mut cluster, &load, &mut random);
        cluster.wait_whole();
        recovered(&sites);
        round += 1;
        println!("{round}: {what}, at {:?}", began.elapsed());
    }
    load.goes_on(10);
    let books = load.stop();
    println!(
        "{round} faults, {} finds and {} credits told, {:?} brought back, {} polls of which {} stale, {} finds retried",
        books.found.len(),
        books.credited.len(),
        replayed(&sites),
        books.polls,
        books.stale,
        books.retried
    );
    books.no_poll_failed();
    books.are_kept_by(&sites[0]);
}
