//! The books written, torn, resumed and held against ledgers that agree with them or do not.

use super::compare::compare_within;
use super::*;
use crate::case::{Case, FaultKind};
use crate::record::{End, FaultMark, Finding, Segment, files};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// When the run began by the store's clock.
const BEGAN: u64 = 1_700_000_000_000;
const WINDOW_MS: u64 = 10_000;
const COINS: u64 = 5;

fn case() -> Case {
    let text = "name = 'books'\nquestion = 'Do they agree?'\nseed = 1\nduration = '1m'\nwindow = '10s'\nload = { users = 10 }";
    Case::from_text("books.toml", text, None, &[]).expect("a case")
}

fn entry(user: u32, find: u64, told: Told, at_ms: u64) -> Entry {
    let found_at = match told {
        Told::Sent | Told::Refused => 0,
        Told::Acknowledged | Told::Credited | Told::Expired => found_at(find),
    };
    Entry {
        user,
        find,
        told,
        coins: COINS,
        found_at,
        seq: 0,
        at_ms,
    }
}

/// Finds are made a second apart.
fn found_at(find: u64) -> u64 {
    BEGAN + (find & !ids::ONCE) * 1000
}

/// A ledger, a player after the other.
#[derive(Default)]
struct Ledger {
    text: String,
    seq: u64,
    balance: u64,
    lines: String,
    name: String,
}

impl Ledger {
    fn player(&mut self, user: u32) -> &mut Self {
        self.close();
        self.name = ids::player_name(user);
        self
    }

    fn entry(&mut self, kind: &str, find: u64, at: u64, more: &str) -> &mut Self {
        self.seq += 1;
        if kind == "credit" || kind == "reinstate" {
            self.balance += COINS;
        }
        let (found_at, id) = (found_at(find), ids::find_id(find));
        let _ = writeln!(
            self.lines,
            r#"{{"kind":"{kind}","player":"00","seq":{},"at":{at},"find":"{id}","find_seq":1,"treasure":"t","repeatable":true,"coins":{COINS},"found_at":{found_at},"expires_at":{}{more}}}"#,
            self.seq,
            found_at + WINDOW_MS,
        );
        self
    }

    fn find(&mut self, find: u64) -> &mut Self {
        self.entry("find", find, found_at(find), "")
    }

    fn credit(&mut self, find: u64, after_ms: u64) -> &mut Self {
        self.entry("credit", find, found_at(find) + after_ms, "")
    }

    fn expire(&mut self, find: u64, reason: &str) -> &mut Self {
        let at = found_at(find) + WINDOW_MS + 1;
        self.entry("expire", find, at, &format!(r#","reason":"{reason}""#))
    }

    fn close(&mut self) {
        if !self.name.is_empty() {
            let (name, seq, balance) = (&self.name, self.seq, self.balance);
            let _ = writeln!(
                self.text,
                r#"{{"kind":"wallet","player":"00","name":"{name}","seq":{seq},"balance":{balance},"pending":0,"pending_finds":0}}"#
            );
            self.text.push_str(&self.lines);
        }
        self.name.clear();
        self.lines.clear();
        (self.seq, self.balance) = (0, 0);
    }

    fn export(&mut self) -> String {
        self.close();
        std::mem::take(&mut self.text)
    }
}

/// A run's directory with these books in it.
struct Run(tempfile::TempDir);

impl Run {
    fn new(entries: &[Entry]) -> Self {
        let run = Self(tempfile::tempdir().expect("a directory"));
        run.segment(0, BEGAN);
        run.write(entries);
        run
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, entries: &[Entry]) {
        let mut books = writer(self.dir()).expect("books");
        for &entry in entries {
            while !books.enter(entry) {
                std::thread::yield_now();
            }
        }
    }

    fn segment(&self, at_ms: u64, wall_ms: u64) {
        let segment = Segment {
            at_ms,
            wall_ms,
            command: Vec::new(),
            versions: BTreeMap::new(),
            machine: BTreeMap::new(),
            emits_per_second: BTreeMap::new(),
        };
        let mut line = serde_json::to_string(&segment).expect("a line");
        line.push('\n');
        let path = self.dir().join(files::RUN);
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(path, before + &line).expect("written");
    }

    fn compare(&self, export: &str, faults: &[FaultMark]) -> (End, Vec<Finding>) {
        compare(self.dir(), export.as_bytes(), &case(), faults).expect("compared")
    }
}

fn kinds(findings: &[Finding]) -> Vec<&str> {
    findings
        .iter()
        .map(|finding| finding.kind.as_str())
        .collect()
}

/// A find sent, acknowledged and told as credited.
fn collected(user: u32, find: u64) -> [Entry; 3] {
    [Told::Sent, Told::Acknowledged, Told::Credited]
        .map(|told| entry(user, find, told, found_at(find) - BEGAN + 10))
}

#[test]
fn books_and_a_ledger_that_agree_have_no_finding() {
    let mut entries = collected(1, 1).to_vec();
    entries.extend(collected(1, ids::ONCE | 3));
    entries.extend([
        entry(2, 2, Told::Sent, 0),
        entry(2, 2, Told::Acknowledged, 1),
        entry(2, 2, Told::Expired, 12_000),
        // Never answered, and recorded; never answered, and not.
        entry(2, 3, Told::Sent, 0),
        entry(2, 4, Told::Sent, 0),
        entry(2, 5, Told::Sent, 0),
        entry(2, 5, Told::Refused, 1),
    ]);
    let mut ledger = Ledger::default();
    ledger
        .player(2)
        .find(2)
        .expire(2, "window")
        .find(3)
        .credit(3, 9);
    let once = ids::ONCE | 3;
    ledger
        .player(1)
        .find(1)
        .find(once)
        .credit(1, WINDOW_MS)
        .credit(once, 8);
    let (end, findings) = Run::new(&entries).compare(&ledger.export(), &[]);
    assert_eq!(findings, []);
    assert_eq!(end.unchecked, Vec::<String>::new());
    assert_eq!(
        (
            end.finds_acknowledged,
            end.finds_credited,
            end.finds_expired,
            end.finds_unknown
        ),
        (3, 3, 1, 0)
    );
    assert_eq!(end.coins_credited, 3 * COINS);
}

#[test]
fn every_way_to_disagree_is_found() {
    type Scene = (&'static str, Vec<Entry>, fn(&mut Ledger));
    let acknowledged = || {
        vec![
            entry(1, 1, Told::Sent, 0),
            entry(1, 1, Told::Acknowledged, 1),
        ]
    };
    let scenes: Vec<Scene> = vec![
        ("find_lost", acknowledged(), |ledger| {
            ledger.player(1);
        }),
        ("credit_lost", collected(1, 1).to_vec(), |ledger| {
            ledger.player(1).find(1).expire(1, "window");
        }),
        ("credited_twice", collected(1, 1).to_vec(), |ledger| {
            ledger.player(1).find(1).credit(1, 5).credit(1, 6);
        }),
        ("credited_twice", acknowledged(), |ledger| {
            ledger.player(1).find(1).expire(1, "window").credit(1, 5);
        }),
        ("outside_window", acknowledged(), |ledger| {
            ledger.player(1).find(1).credit(1, WINDOW_MS + 1);
        }),
        ("unlawful_expiry", acknowledged(), |ledger| {
            ledger.player(1).find(1).expire(1, "store_outage");
        }),
        ("ledger", vec![], |ledger| {
            ledger.player(1).find(1).credit(1, 5);
        }),
        ("ledger", acknowledged(), |ledger| {
            ledger.player(1).find(1).find(1).credit(1, 5);
        }),
        (
            "ledger",
            vec![entry(1, 1, Told::Sent, 0), entry(1, 1, Told::Refused, 1)],
            |ledger| {
                ledger.player(1).find(1).credit(1, 5);
            },
        ),
        ("ledger", acknowledged(), |ledger| {
            ledger
                .player(1)
                .find(1)
                .entry("adjust", 1, BEGAN, "")
                .credit(1, 5);
            ledger.balance += COINS;
        }),
        ("balance", acknowledged(), |ledger| {
            ledger.player(1).find(1).credit(1, 5);
            ledger.balance += COINS;
        }),
        ("sequence", acknowledged(), |ledger| {
            ledger.player(1).find(1).credit(1, 5).seq += 1;
        }),
        (
            "coins",
            vec![
                Entry {
                    coins: 7,
                    ..entry(1, 1, Told::Sent, 0)
                },
                entry(1, 1, Told::Acknowledged, 1),
            ],
            |ledger| {
                ledger.player(1).find(1).credit(1, 5);
            },
        ),
    ];
    for (at, (kind, entries, tell)) in scenes.into_iter().enumerate() {
        let mut ledger = Ledger::default();
        tell(&mut ledger);
        let (end, findings) = Run::new(&entries).compare(&ledger.export(), &[]);
        let found = kinds(&findings);
        assert!(
            found.contains(&kind),
            "scene {at}: {kind} among {findings:?}"
        );
        assert_eq!(end.findings, findings.len() as u64);
    }
}

#[test]
fn a_find_that_a_poll_passed_over_may_not_expire_by_its_window() {
    let mut entries = collected(1, 1).to_vec();
    entries.extend([2, 9].map(|find| entry(1, find, Told::Sent, 0)));
    let mut ledger = Ledger::default();
    // Found 1 s after the first, and there when it was collected; the other was found after that.
    ledger.player(1).find(1).find(2).credit(1, 1500).find(9);
    ledger.expire(2, "window").expire(9, "window");
    let (_, findings) = Run::new(&entries).compare(&ledger.export(), &[]);
    assert_eq!(kinds(&findings), ["credit_lost"]);
    assert!(
        findings[0].text.starts_with("f2 expired, though a poll at"),
        "{findings:?}"
    );
}

#[test]
fn a_credit_that_may_have_come_back_after_a_failover_passed_over_nothing() {
    let mut entries = collected(1, 1).to_vec();
    entries.push(entry(1, 2, Told::Sent, 0));
    let mut ledger = Ledger::default();
    ledger.player(1).find(1).find(2).credit(1, 1500);
    ledger.expire(2, "window");
    let fault = |what, at_ms, until_ms| FaultMark {
        at_ms,
        until_ms,
        allow_until_ms: until_ms,
        what,
        target: "redis-0".to_owned(),
        note: String::new(),
        allow_failed: BTreeMap::new(),
        allow_p99_us: 0,
    };
    let run = Run::new(&entries);
    let credited_at = found_at(1) + 1_500 - BEGAN;
    let export = ledger.export();
    let findings = |fault: FaultMark| {
        let (_, findings) = run.compare(&export, &[fault]);
        kinds(&findings).contains(&"credit_lost")
    };
    let around = (credited_at - 200, credited_at);
    assert!(!findings(fault(FaultKind::LoseRedis, around.0, around.1)));
    assert!(findings(fault(FaultKind::KillInstance, around.0, around.1)));
    assert!(findings(fault(
        FaultKind::LoseRedis,
        credited_at + 200,
        credited_at + 400
    )));
}

#[test]
fn finds_of_one_poll_do_not_pass_each_other_over() {
    let mut entries = collected(1, 1).to_vec();
    entries.extend(collected(1, 2));
    let at = found_at(2) + 5;
    let mut ledger = Ledger::default();
    ledger
        .player(1)
        .find(1)
        .find(2)
        .entry("credit", 1, at, "")
        .entry("credit", 2, at, "");
    let (_, findings) = Run::new(&entries).compare(&ledger.export(), &[]);
    assert_eq!(findings, []);
}

#[test]
fn a_credit_that_came_back_after_its_window_is_judged_by_when_it_was_first_credited() {
    let entries = collected(1, 1);
    let at = found_at(1) + WINDOW_MS + 1_000;
    let back = |credited_at: u64| {
        let mut ledger = Ledger::default();
        let more = format!(r#","credited_at":{credited_at}"#);
        ledger.player(1).find(1).entry("credit", 1, at, &more);
        ledger.export()
    };
    let killed = FaultMark {
        at_ms: 500,
        until_ms: 5_000,
        allow_until_ms: 9_000,
        what: FaultKind::KillRedis,
        target: "redis-0".to_owned(),
        note: String::new(),
        allow_failed: BTreeMap::new(),
        allow_p99_us: 0,
    };
    let run = Run::new(&entries);
    let findings = |credited_at, faults: &[FaultMark]| {
        let (_, findings) = run.compare(&back(credited_at), faults);
        kinds(&findings).join(" ")
    };
    assert_eq!(findings(found_at(1) + 5, std::slice::from_ref(&killed)), "");
    let instance = FaultMark {
        what: FaultKind::KillInstance,
        ..killed.clone()
    };
    assert_eq!(findings(found_at(1) + 5, &[instance]), "ledger");
    assert_eq!(findings(at, &[killed]), "outside_window");
    assert_eq!(findings(found_at(1) + 5, &[]), "ledger");
}

#[test]
fn an_expiry_by_outage_is_lawful_where_a_fault_cut_the_store_off() {
    let entries = [entry(1, 1, Told::Sent, 0), entry(1, 60, Told::Sent, 0)];
    let mut ledger = Ledger::default();
    ledger
        .player(1)
        .find(1)
        .expire(1, "store_outage")
        .find(60)
        .expire(60, "store_outage");
    let export = ledger.export();
    let fault = |what| FaultMark {
        at_ms: 2_000,
        until_ms: 5_000,
        allow_until_ms: 9_000,
        what,
        target: "redis-0".to_owned(),
        note: String::new(),
        allow_failed: BTreeMap::new(),
        allow_p99_us: 0,
    };
    let run = Run::new(&entries);
    let (_, findings) = run.compare(&export, &[fault(FaultKind::StopRedis)]);
    assert_eq!(
        kinds(&findings),
        ["unlawful_expiry"],
        "the one found at 60 s"
    );
    let (_, findings) = run.compare(&export, &[fault(FaultKind::Stampede)]);
    assert_eq!(kinds(&findings), ["unlawful_expiry"; 2]);
}

#[test]
fn what_is_still_pending_is_unknown() {
    let entries = [
        entry(1, 1, Told::Sent, 0),
        entry(1, 1, Told::Acknowledged, 1),
    ];
    let mut ledger = Ledger::default();
    ledger.player(1).find(1);
    let (end, findings) = Run::new(&entries).compare(&ledger.export(), &[]);
    assert_eq!(
        (end.finds_unknown, end.finds_credited, findings.len()),
        (1, 0, 0)
    );
}

#[test]
fn a_credit_told_again_forty_hours_later_is_found_though_sorting_needs_hundreds_of_runs() {
    const FINDS: u64 = 6_000;
    const TWICE: u64 = 77;
    let mut entries = Vec::new();
    let mut ledger = Ledger::default();
    for user in 1..=10 {
        ledger.player(user);
        for find in (1..=FINDS).filter(|find| find % 10 == u64::from(user % 10)) {
            ledger.find(find).credit(find, 400);
        }
    }
    for find in 1..=FINDS {
        let user = u32::try_from(find % 10).expect("small");
        entries.extend(collected(if user == 0 { 10 } else { user }, find));
    }
    entries.push(entry(
        7,
        TWICE,
        Told::Credited,
        TWICE * 1000 + 10 + 40 * 3_600_000,
    ));
    let run = Run::new(&entries);
    let export = ledger.export();
    // 4 KiB: two hundred runs of entries.
    let (end, findings) =
        compare_within(run.dir(), export.as_bytes(), &case(), &[], 4 << 10).expect("compared");
    assert_eq!(kinds(&findings), ["credited_twice"]);
    assert_eq!(findings[0].player, "u7");
    assert_eq!(
        findings[0].text,
        "f77 was told as credited 2 times, 1day 16h apart"
    );
    assert_eq!(
        (end.finds_acknowledged, end.finds_credited),
        (FINDS, FINDS - 1)
    );
}

#[test]
fn a_torn_tail_is_no_matter_to_a_run_that_was_resumed_and_unchecked_in_another() {
    let run = Run::new(&collected(1, 1));
    run.write(&collected(1, 2));
    let (_, last) = segment::segments(&run.dir().join(files::BOOKS)).expect("segments")[1].clone();
    let bytes = std::fs::read(&last).expect("read");
    std::fs::write(&last, &bytes[..bytes.len() - 1]).expect("torn");
    let mut ledger = Ledger::default();
    ledger.player(1).find(1).credit(1, 5).find(2).credit(2, 5);
    let export = ledger.export();
    let (end, _) = run.compare(&export, &[]);
    assert_eq!(end.unchecked.len(), 1);
    // The find that the torn block held may have been sent now, and so may those of the queue.
    let next = resume(run.dir()).expect("resumed");
    assert_eq!(next, 1 + LOST_ENTRIES_MAX + 1);
    let (end, findings) = run.compare(&export, &[]);
    assert_eq!(
        (end.unchecked.len(), findings.len()),
        (0, 0),
        "{findings:?}"
    );
    // A number past them was not.
    let mut ledger = Ledger::default();
    ledger
        .player(1)
        .find(1)
        .credit(1, 5)
        .find(next)
        .credit(next, 5);
    let (_, findings) = run.compare(&ledger.export(), &[]);
    assert_eq!(kinds(&findings), ["ledger"]);
}

#[test]
fn a_crash_may_take_the_entry_of_a_find_whose_number_is_not_the_last() {
    // Number 1 was given first and left last: the crash took its entry.
    let run = Run::new(&collected(1, 2));
    let mut ledger = Ledger::default();
    ledger.player(1).find(1).credit(1, 5).find(2).credit(2, 5);
    let export = ledger.export();
    let (_, findings) = run.compare(&export, &[]);
    assert_eq!(kinds(&findings), ["ledger"]);
    resume(run.dir()).expect("resumed");
    let (_, findings) = run.compare(&export, &[]);
    assert_eq!(findings, []);
}

#[test]
fn a_damaged_block_in_the_middle_is_an_error() {
    let many: Vec<Entry> = (1..40_000)
        .map(|find| entry(1, find, Told::Sent, 0))
        .collect();
    let run = Run::new(&many);
    let (_, path) = segment::segments(&run.dir().join(files::BOOKS)).expect("segments")[0].clone();
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).expect("damaged");
    let error = compare(run.dir(), &b""[..], &case(), &[]).expect_err("damaged");
    assert!(
        error.to_string().ends_with("is damaged in its middle"),
        "{error}"
    );
}

#[test]
fn an_interrupted_run_may_be_told_again_and_numbers_never_come_twice() {
    let run = Run::new(&collected(1, 1));
    let first = resume(run.dir()).expect("resumed");
    let second = resume(run.dir()).expect("resumed again before a find was sent");
    assert!(second > first + LOST_ENTRIES_MAX - 1);
    run.segment(5_000, BEGAN + 20_000);
    run.write(&[entry(1, 1, Told::Credited, 6_000)]);
    let mut ledger = Ledger::default();
    ledger.player(1).find(1).credit(1, 5);
    let (_, findings) = run.compare(&ledger.export(), &[]);
    assert_eq!(findings, []);
}

#[test]
fn an_export_that_is_cut_off_is_an_error() {
    let run = Run::new(&collected(1, 1));
    let mut ledger = Ledger::default();
    ledger.player(1).find(1).credit(1, 5);
    let export = ledger.export();
    let cut = &export.as_bytes()[..export.len() - 1];
    assert!(compare(run.dir(), cut, &case(), &[]).is_err());
}
