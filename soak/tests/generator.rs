//! The generator against small servers in this process that are honest, or lie or misbehave in one way on purpose.

#![allow(missing_docs, clippy::unwrap_used)]

mod game_server;

use game_server::{GameServer, Mischief};
use soak::books::{Entry, Told};
use soak::case::{Case, Kind};
use soak::checker::kind;
use soak::generator::{self, Books, Control, Output, Plan, Resume, Totals, Treasure};
use soak::record::{Finding, Interval};
use soak::recording::{Event, Writer};
use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Books in memory, which can be slow or full.
#[derive(Clone, Default)]
struct Pages {
    entries: Arc<Mutex<Vec<Entry>>>,
    takes: Duration,
    full: bool,
}

impl Books for Pages {
    fn enter(&mut self, entry: Entry) -> bool {
        std::thread::sleep(self.takes);
        self.entries.lock().unwrap().push(entry);
        !self.full
    }
}

struct Run {
    intervals: Vec<Interval>,
    findings: Vec<Finding>,
    totals: Totals,
    entries: Vec<Entry>,
}

impl Run {
    /// Findings by kind.
    fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for finding in &self.findings {
            *kinds.entry(finding.kind.as_str()).or_default() += 1;
        }
        kinds
    }

    fn sum(&self, kind: Kind, of: impl Fn(&soak::record::KindCounts) -> u64) -> u64 {
        let counts = self
            .intervals
            .iter()
            .filter_map(|interval| interval.kinds.get(&kind));
        counts.map(of).sum()
    }

    fn failed(&self, kind: Kind, why: &str) -> u64 {
        self.sum(kind, |counts| counts.failed.get(why).copied().unwrap_or(0))
    }

    fn dropped(&self, kind: Kind, why: &str) -> u64 {
        self.sum(kind, |counts| counts.dropped.get(why).copied().unwrap_or(0))
    }

    fn told(&self, told: Told) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.told == told)
            .count()
    }

    /// Reasons why intervals have no verdict, but that the machine was too busy, which a test must not depend on.
    fn invalid(&self) -> Vec<&str> {
        let reasons = self.intervals.iter().flat_map(|interval| &interval.invalid);
        reasons
            .map(String::as_str)
            .filter(|reason| !reason.contains("fell behind"))
            .collect()
    }
}

const CASE: &str = r#"
name = "test"
question = "Is what the generator says true?"
seed = 42
duration = "3s"
settle = "1s"
interval = "500ms"
window = "5s"
[load]
users = 20
arrive_over = "200ms"
[behaviour]
poll_interval = "200ms"
heartbeat_interval = "100ms"
find_interval = "500ms"
history_interval = "500ms"
catalogue_interval = "1s"
abandon_share = 0.0
bulk_share = 0.3
find_retry_share = 0.2
[bounds]
behind_max = "20ms"
[system]
address = "http://127.0.0.1:1"
"#;

fn case(sets: &[&str]) -> Arc<Case> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test.toml");
    std::fs::write(&file, CASE).unwrap();
    Arc::new(Case::read(file.to_str().unwrap(), &sets).unwrap())
}

/// Ends a run when its event has ended: what settles takes a window of 5 s at the least.
fn stop_early(interval: &Interval, handle: &generator::Handle) {
    if interval.to_ms >= 3_000 {
        handle.control(Control::Stop);
    }
}

/// Runs a case against a server. `watch` sees each interval, and can control.
fn run_with(
    server: &GameServer,
    case: Arc<Case>,
    pages: Pages,
    mut watch: impl FnMut(&Interval, &generator::Handle),
) -> Run {
    println!("seed {}", case.seed);
    let plan = Plan {
        targets: vec![server.address],
        host: server.address.to_string(),
        hunt: "h".to_owned(),
        treasures: vec![
            Treasure {
                id: "drop".to_owned(),
                coins: 5,
                repeatable: true,
            },
            Treasure {
                id: "once-0".to_owned(),
                coins: 9,
                repeatable: false,
            },
        ],
        tokens: Box::new(soak::books::ids::player_name),
        admin_key: Some("admin".to_owned()),
        resume: Resume::default(),
        case,
    };
    let (out, inbox) = sync_channel(16);
    let handle = generator::start(plan, Box::new(pages.clone()), out).unwrap();
    let (mut intervals, mut findings) = (Vec::new(), Vec::new());
    for output in inbox {
        match output {
            Output::Interval(interval) => {
                watch(&interval, &handle);
                intervals.push(interval);
            }
            Output::Finding(finding) => findings.push(finding),
            Output::Ended => break,
        }
    }
    let totals = handle.join().unwrap();
    let entries = pages.entries.lock().unwrap().clone();
    Run {
        intervals,
        findings,
        totals,
        entries,
    }
}

fn run(server: &GameServer, sets: &[&str]) -> Run {
    run_with(server, case(sets), Pages::default(), stop_early)
}

/// To the very end.
fn run_whole(server: &GameServer, sets: &[&str]) -> Run {
    run_with(server, case(sets), Pages::default(), |_, _| {})
}

fn lies(mischief: Mischief) -> Run {
    run(&GameServer::start(mischief), &[])
}

#[test]
fn an_honest_server_is_found_honest_and_every_count_adds_up() {
    let server = GameServer::start(Mischief::None);
    let run = run(
        &server,
        &[
            "network.loss=0.05",
            "network.latency=\"2ms\"",
            "network.jitter=\"3ms\"",
            "network.connection_lasts=\"700ms\"",
            "network.foreground=\"2s\"",
            "network.background=\"300ms\"",
        ],
    );
    assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
    assert_eq!(run.invalid(), [""; 0]);
    for kind in Kind::ALL {
        let sent = run.sum(kind, |counts| counts.sent);
        assert!(sent > 0, "{kind:?}");
        let ended = run.sum(kind, |counts| {
            counts.answered + counts.failed.values().sum::<u64>()
        });
        // At the end some are under way.
        assert!(
            ended <= sent && sent - ended <= 21,
            "{kind:?}: {sent} sent, {ended} ended"
        );
        let intended = run.sum(kind, |counts| counts.intended);
        let left = sent + run.sum(kind, |counts| counts.dropped.values().sum());
        assert!(
            left <= intended,
            "{kind:?}: {intended} intended, {left} sent or dropped"
        );
    }
    assert!(run.dropped(Kind::Poll, "lost") > 0 && run.dropped(Kind::Heartbeat, "offline") > 0);
    // The server's own counts: what was sent arrived, but what was under way at the end.
    let polls = server.polls();
    let sent = run.sum(Kind::Poll, |counts| counts.sent);
    assert!(
        polls <= sent && sent - polls <= 20,
        "{sent} sent, {polls} arrived"
    );
    // Each find is in the books before it is credited.
    let sent = run.told(Told::Sent) as u64;
    // A few were made and never left: their users went into the background, or the run ended.
    assert!(sent <= run.totals.finds && run.totals.finds - sent <= 20);
    assert!(run.told(Told::Credited) > 0);
    let connects: u64 = run.intervals.iter().map(|interval| interval.connects).sum();
    assert!(
        connects > 40,
        "{connects} connections of 20 users who renew them"
    );
}

#[test]
fn a_credit_applied_twice_is_found() {
    let kinds = lies(Mischief::CreditTwice);
    assert!(
        kinds.kinds().contains_key(kind::BALANCE),
        "{:?}",
        kinds.kinds()
    );
}

#[test]
fn a_credit_shown_again_is_found() {
    let run = lies(Mischief::ShowAgain);
    assert!(
        run.kinds().contains_key(kind::CREDITED_TWICE),
        "{:?}",
        run.kinds()
    );
}

#[test]
fn a_lost_find_is_found() {
    let run = run_whole(
        &GameServer::start(Mischief::Lose),
        &["duration=\"2s\"", "settle=\"14s\"", "interval=\"2s\""],
    );
    assert!(
        run.kinds().contains_key(kind::CREDIT_LOST),
        "{:?}",
        run.kinds()
    );
}

#[test]
fn an_answer_of_another_player_is_found() {
    let run = lies(Mischief::WrongPlayer);
    assert!(
        run.kinds().contains_key(kind::WRONG_PLAYER),
        "{:?}",
        run.kinds()
    );
}

#[test]
fn a_balance_that_jumps_is_found() {
    let run = lies(Mischief::BalanceJumps);
    assert!(run.kinds().contains_key(kind::BALANCE), "{:?}", run.kinds());
}

#[test]
fn a_credit_outside_its_window_is_found() {
    let run = run_whole(
        &GameServer::start(Mischief::OutsideWindow),
        &[
            "behaviour.abandon_share=1.0",
            "behaviour.bulk_share=0.0",
            "duration=\"2s\"",
            "settle=\"4s\"",
            "interval=\"2s\"",
        ],
    );
    assert!(
        run.kinds().contains_key(kind::OUTSIDE_WINDOW),
        "{:?}",
        run.kinds()
    );
}

#[test]
fn abandoned_finds_expire_and_are_told_so() {
    let run = run_whole(
        &GameServer::start(Mischief::None),
        &[
            "behaviour.abandon_share=1.0",
            "behaviour.bulk_share=0.0",
            "duration=\"2s\"",
            "settle=\"4s\"",
            "interval=\"2s\"",
        ],
    );
    assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
    assert!(run.told(Told::Expired) > 0);
}

#[test]
fn answers_that_trickle_are_timed_out_and_enter_the_latency_at_the_time_they_waited() {
    let run = run(
        &GameServer::start(Mischief::SlowLoris),
        &[
            "behaviour.timeout=\"300ms\"",
            "behaviour.heartbeat_interval=\"0s\"",
        ],
    );
    assert!(run.failed(Kind::Poll, "timeout") > 0);
    let slowest = run
        .intervals
        .iter()
        .filter_map(|interval| interval.kinds.get(&Kind::Poll));
    let slowest = slowest.map(|counts| max(&counts.latency.0)).max().unwrap();
    assert!(slowest >= 299_000, "{slowest} us");
    // What waited behind them waited too, and some gave up.
    assert!(run.dropped(Kind::Poll, "gave_up") + run.dropped(Kind::Catalogue, "gave_up") > 0);
    assert_eq!(run.invalid(), [""; 0]);
}

/// The maximum of an encoded histogram.
fn max(encoded: &str) -> u64 {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .unwrap();
    let histogram: hdrhistogram::Histogram<u64> = hdrhistogram::serialization::Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .unwrap();
    assert!(histogram.value_at_quantile(0.99) <= histogram.max());
    histogram.max()
}

#[test]
fn connections_that_close_instead_of_answering_are_failures() {
    let run = lies(Mischief::Closes);
    assert!(run.failed(Kind::Poll, "broken") > 0);
    let disconnects: u64 = run
        .intervals
        .iter()
        .map(|interval| interval.disconnects)
        .sum();
    assert!(disconnects >= run.failed(Kind::Poll, "broken"));
    assert_eq!(run.invalid(), [""; 0]);
    // A find whose answer was cut off is sent again with the same id, so nothing is credited twice.
    assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
}

#[test]
fn a_server_that_is_not_there_fails_each_request() {
    let server = GameServer::start(Mischief::None);
    let address = server.address;
    drop(server);
    let gone = GameServer::nowhere(address);
    let run = run(&gone, &[]);
    assert!(run.failed(Kind::Poll, "connect") > 0);
    assert_eq!(run.sum(Kind::Poll, |counts| counts.answered), 0);
    assert_eq!(run.invalid(), [""; 0]);
}

#[test]
fn a_loop_that_starves_says_so() {
    let server = GameServer::start(Mischief::None);
    let pages = Pages {
        takes: Duration::from_millis(60),
        ..Pages::default()
    };
    let run = run_with(&server, case(&[]), pages, stop_early);
    let starved = run.intervals.iter().filter(|interval| {
        interval.behind_us_max > 20_000
            && interval
                .invalid
                .iter()
                .any(|reason| reason.contains("fell behind"))
    });
    assert!(starved.count() > 0);
}

#[test]
fn full_books_make_an_interval_invalid() {
    let server = GameServer::start(Mischief::None);
    let pages = Pages {
        full: true,
        ..Pages::default()
    };
    let run = run_with(&server, case(&[]), pages, stop_early);
    assert!(
        run.invalid().iter().any(|reason| reason.contains("books")),
        "{:?}",
        run.invalid()
    );
}

#[test]
fn in_a_stampede_everybody_reconnects() {
    let server = GameServer::start(Mischief::None);
    let mut asked = false;
    let run = run_with(&server, case(&[]), Pages::default(), |interval, handle| {
        if interval.users == 20 && !asked {
            asked = true;
            handle.control(Control::Stampede);
        }
        stop_early(interval, handle);
    });
    let connects: u64 = run.intervals.iter().map(|interval| interval.connects).sum();
    // 20 users and the back end, and 20 again.
    assert!(connects >= 41, "{connects}");
    assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
    assert_eq!(run.invalid(), [""; 0]);
}

#[test]
fn a_doubled_load_is_twice_as_many_users_for_a_time() {
    let server = GameServer::start(Mischief::None);
    let sets = ["faults=[{at=\"1s\", what=\"double_load\", lasts=\"1s\", allow_for=\"1s\"}]"];
    let mut asked = false;
    let run = run_with(
        &server,
        case(&sets),
        Pages::default(),
        |interval, handle| {
            if interval.users == 20 && !asked {
                asked = true;
                handle.control(Control::DoubleLoad {
                    lasts: Duration::from_secs(1),
                });
            }
        },
    );
    let users: Vec<u32> = run
        .intervals
        .iter()
        .map(|interval| interval.users)
        .collect();
    assert!(users.contains(&40), "{users:?}");
    assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
}

#[test]
fn polls_wait_for_a_slow_find_on_one_connection_and_overtake_it_on_a_second() {
    let polls = |connections: &str| {
        let server = GameServer::start(Mischief::SlowFinds);
        let run = run(&server, &[connections]);
        assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
        assert_eq!(run.invalid(), [""; 0]);
        assert!(run.told(Told::Acknowledged) > 0);
        server.overtaken()
    };
    assert_eq!(polls("behaviour.connections=1"), 0);
    assert!(polls("behaviour.connections=2") > 0);
}

#[test]
fn new_connections_go_where_a_retarget_says_and_stop_ends_the_run() {
    let (first, second) = (
        GameServer::start(Mischief::None),
        GameServer::start(Mischief::None),
    );
    let address = second.address;
    let mut nth = 0;
    let sets = [
        "network.connection_lasts=\"300ms\"",
        "duration=\"60s\"",
        "behaviour.find_interval=\"0s\"",
    ];
    let run = run_with(&first, case(&sets), Pages::default(), |_, handle| {
        nth += 1;
        if nth == 2 {
            handle.control(Control::Retarget(vec![address]));
        }
        if second.polls() > 10 {
            handle.control(Control::Stop);
        }
    });
    assert!(second.polls() > 10);
    assert!(run.intervals.len() < 100);
}

#[test]
fn another_servers_paths_are_held_to_speed_and_errors_alone() {
    let run = run(
        &GameServer::start(Mischief::NotATrove),
        &["system.url_template=\"/wallets/{player}\""],
    );
    assert_eq!(run.kinds(), BTreeMap::new());
    let kinds: Vec<Kind> = run
        .intervals
        .iter()
        .flat_map(|interval| interval.kinds.keys().copied())
        .collect();
    assert!(kinds.iter().all(|kind| *kind == Kind::Poll) && !kinds.is_empty());
    assert!(run.sum(Kind::Poll, |counts| counts.answered) > 0);
    // It answers each tenth with 500.
    assert!(run.failed(Kind::Poll, "500") > 0);
    assert_eq!(run.told(Told::Sent), 0);
}

#[test]
fn the_same_seed_intends_the_same_whatever_the_server_does() {
    let intended = |mischief, sets: &[&str]| {
        let run = run(&GameServer::start(mischief), sets);
        let of = |kind| run.sum(kind, |counts| counts.intended);
        (of(Kind::Poll), of(Kind::Heartbeat), of(Kind::Catalogue))
    };
    let honest = intended(Mischief::None, &[]);
    assert_eq!(
        honest,
        intended(Mischief::SlowLoris, &["behaviour.timeout=\"300ms\""])
    );
    assert_ne!(honest, intended(Mischief::None, &["seed=43"]));
}

#[test]
fn a_recording_is_replayed_request_by_request() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.troverec");
    let mut writer = Writer::begin(std::fs::File::create(&file).unwrap(), 0).unwrap();
    let kinds = [
        Some(Kind::Poll),
        Some(Kind::Heartbeat),
        Some(Kind::Find),
        None,
        Some(Kind::BulkFind),
    ];
    for nth in 0..2_000 {
        let event = Event {
            at_us: nth * 1_000,
            // More than there are users in the case.
            user: nth % 33 + 1,
            kind: kinds[usize::try_from(nth % 5).unwrap()],
        };
        writer.event(event).unwrap();
    }
    writer.finish().unwrap();
    let server = GameServer::start(Mischief::None);
    let load = format!("load.curve={{kind=\"recording\", file={file:?}}}");
    let run = run_with(&server, case(&[&load]), Pages::default(), stop_early);
    assert_eq!(run.kinds(), BTreeMap::new(), "{:?}", run.findings);
    assert_eq!(run.invalid(), [""; 0]);
    // In the event: afterwards users poll on their own.
    let event = run
        .intervals
        .iter()
        .filter(|interval| interval.to_ms <= 3_000);
    let intended = |kind| {
        event
            .clone()
            .filter_map(|interval| interval.kinds.get(&kind))
            .map(|counts| counts.intended)
            .sum::<u64>()
    };
    assert_eq!(
        (intended(Kind::Poll), intended(Kind::Heartbeat)),
        (400, 400)
    );
    // Finds that are repeated are on top.
    assert!(intended(Kind::Find) >= 200 && intended(Kind::BulkFind) > 0);
}
