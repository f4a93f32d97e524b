//! Through failovers of a group under Sentinel, as clients outside see them: nothing that was acknowledged is lost or
//! doubled, and no poll fails. Writes that the new primary never had are made sure of by cutting the replicas off first.

#![allow(clippy::unwrap_used)]

mod failover_site;
mod http_site;
mod redis_server;

use failover_site::{Group, Load, Way, Who, metric, recovered, replayed, seed};
use http_site::{Ask, Site, wait};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::{Duration, Instant};

/// Two instances on a group, with hunt `h` open.
fn sites(group: &Group) -> Vec<Site> {
    let sites: Vec<Site> = ["one", "two"]
        .map(|name| {
            let mut site = Site::stopped(&[
                ("server.instance_id", name),
                ("poll.jitter", "0"),
                ("store.recovery_ms", "500"),
                ("store.connect_wait_ms", "30000"),
                // A machine that is busy with other tests is not a store that is away.
                ("store.response_timeout_ms", "1500"),
            ])
            .store_at(&group.url());
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

/// Cuts the replicas off, lets play go on, and kills the primary: what was acknowledged meanwhile is nowhere but with the
/// instances. Gives the new primary.
fn roll_back(group: &mut Group, load: &Load, acknowledged: usize) -> usize {
    let old = group.primary().unwrap();
    group.members[old].relay.hold(Who::Replica, Way::Down);
    load.goes_on(acknowledged);
    group.kill(old);
    let new = group.promoted(old);
    group.start_again(old);
    new
}

#[test]
fn acknowledged_writes_that_a_failover_rolled_back_come_back() {
    let mut group = Group::start();
    let sites = sites(&group);
    let load = Load::start(&sites, seed());
    load.goes_on(20);
    roll_back(&mut group, &load, 40);
    recovered(&sites);
    load.goes_on(20);
    let books = load.stop();
    let (finds, credits) = replayed(&sites);
    println!(
        "{} finds and {} credits told, {finds} and {credits} brought back; {} polls, {} stale, {} resets, {} finds \
         retried, polls' p50 {:?}, p99 {:?}, slowest {:?}",
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
    assert!(finds >= 30, "{finds} finds were rolled back");
    assert!(credits >= 30, "{credits} credits were rolled back");
    assert!(books.resets > 0 && books.stale > 0);
    books.no_poll_failed();
    books.are_kept_by(&sites[1]);
}

#[test]
fn a_primary_that_was_stopped_and_goes_on_believing_in_itself_is_left() {
    let group = Group::start();
    let sites = sites(&group);
    let load = Load::start(&sites, seed());
    load.goes_on(20);
    let old = group.primary().unwrap();
    group.members[old].server.pause();
    let new = group.promoted(old);
    wait("the instances to have left the old primary", || {
        sites.iter().all(|site| {
            let health = site.client().send(Ask::get("/health")).json();
            health["store"] == "up"
        })
    });
    load.goes_on(20);
    // It goes on as a primary, until the sentinels tell it otherwise.
    group.members[old].server.go_on();
    load.goes_on(20);
    group.ready();
    assert_eq!(group.primary(), Some(new));
    let books = load.stop();
    books.no_poll_failed();
    books.are_kept_by(&sites[0]);
}

#[test]
fn a_wire_cut_one_way_or_both_between_trove_and_its_store_fails_no_poll_and_loses_nothing() {
    let group = Group::start();
    let sites = sites(&group);
    let load = Load::start(&sites, seed());
    load.goes_on(20);
    let primary = group.primary().unwrap();
    let relay = &group.members[primary].relay;
    for ways in [&[Way::Up][..], &[Way::Down], &[Way::Up, Way::Down]] {
        for way in ways {
            relay.hold(Who::Trove, *way);
        }
        for site in &sites {
            wait("the store to be out of reach", || {
                let health = site.client().send(Ask::get("/health")).json();
                health["store"] == "down"
            });
        }
        relay.flow();
        recovered(&sites);
        load.goes_on(20);
    }
    let books = load.stop();
    books.no_poll_failed();
    assert_eq!(group.primary(), Some(primary), "no failover was needed");
    assert_eq!(metric(&sites, "trove_store_failovers_total"), 0);
    books.are_kept_by(&sites[0]);
}

#[test]
fn held_polls_stay_held_through_a_failover() {
    let mut group = Group::start();
    let sites = sites(&group);
    let mut ann = sites[0].player("ann");
    let cursor = ann.poll()["cursor"].as_str().unwrap().to_owned();
    let ask = Ask::get(&format!("/treasure/h?since={cursor}"))
        .with("Prefer", "wait=55")
        .bearer(&ann.token);
    let mut held = sites[0].client();
    held.start(&ask).unwrap();
    wait("the poll to be held", || {
        metric(&sites[..1], "trove_held_polls") == 1
    });
    let old = group.primary().unwrap();
    group.kill(old);
    let health = |is: &str| {
        wait(&format!("the store to be {is}"), || {
            sites[0].client().send(Ask::get("/health")).json()["store"] == is
        });
    };
    health("down");
    assert_eq!(metric(&sites[..1], "trove_held_polls"), 1);
    group.promoted(old);
    health("up");
    // It is answered then: its cursor is of an epoch that is over.
    let answer = held.finish(false).unwrap().is(200);
    assert_eq!(answer["reset"], true, "{answer}");
    assert_eq!(answer["balance"], 0);
}

/// A round of a seeded mixture: what fails, and how.
fn fail(group: &mut Group, load: &Load, random: &mut SmallRng) -> &'static str {
    let primary = group.primary().unwrap();
    match random.random_range(0..5) {
        0 => {
            roll_back(group, load, 15);
            "writes rolled back"
        }
        1 => {
            group.kill(primary);
            group.promoted(primary);
            group.start_again(primary);
            "primary killed"
        }
        2 => {
            group.members[primary].server.pause();
            group.promoted(primary);
            group.members[primary].server.go_on();
            "primary stopped"
        }
        3 => {
            let way = [Way::Up, Way::Down][random.random_range(0..2)];
            group.members[primary].relay.hold(Who::Trove, way);
            std::thread::sleep(Duration::from_millis(random.random_range(50..1_500)));
            group.members[primary].relay.flow();
            "wire cut one way"
        }
        _ => {
            let away = (primary + 1) % 3;
            group.members[away].server.kill();
            group.members[away].relay.sever();
            load.goes_on(10);
            group.start_again(away);
            "replica killed"
        }
    }
}

#[test]
fn through_a_seeded_mixture_of_faults_nothing_is_lost_or_doubled() {
    let seed = seed();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut group = Group::start();
    let sites = sites(&group);
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
        let what = fail(&mut group, &load, &mut random);
        recovered(&sites);
        group.ready();
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
