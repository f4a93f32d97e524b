//! Random sequences of finds, polls, retries, sweeps, clock steps, adjustments, reinstatements and erasures on the pure
//! rules: the invariants I1 to I4 after every step, by the audit, which shares no code with the rules.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::{HashMap, HashSet};
use trove::game::audit::{Sums, WalletAudit};
use trove::game::coins::COINS_MAX;
use trove::game::entry::{Adjustment, Change, Entry};
use trove::game::hunt::{Hunt, HuntSpec, HuntState, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, TreasureId};
use trove::game::model::Model;
use trove::game::rules::{AdjustDecision, Decision, Limits, NewFind, Refusal, What};

const START: u64 = 1_800_000_000_000;
const WINDOW_MS: u64 = 10_000;
const PLAYERS: u64 = 4;
const SEQUENCES: u64 = 300;
const STEPS: u64 = 400;

fn hunt(random: &mut Pcg64Mcg) -> Hunt {
    let treasures = (0..10).map(|n| Treasure {
        id: TreasureId::new(&format!("t{n}")).unwrap(),
        name: None,
        coins: [0, 1, 7, COINS_MAX / 4, COINS_MAX][if n < 8 { n % 3 } else { n % 5 }],
        place: None,
        repeatable: n % 2 == 0,
    });
    let mut hunt = Hunt::new(
        1,
        HuntSpec {
            id: HuntId::new("h").unwrap(),
            name: "H".into(),
            window_ms: WINDOW_MS,
            opens_at: None,
            closes_at: random
                .random_bool(0.2)
                .then(|| START + random.random_range(0..20 * WINDOW_MS)),
            treasures: treasures.collect(),
        },
    );
    hunt.operator = Some(HuntState::Open);
    hunt
}

/// The model, and an accountant beside it.
struct Books {
    random: Pcg64Mcg,
    model: Model,
    audits: HashMap<PlayerId, WalletAudit>,
    ids_credited: HashSet<(PlayerId, u64)>,
    sent: Vec<(PlayerId, NewFind)>,
    now: u64,
    entries: u64,
}

impl Books {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let limits = Limits {
            pending_finds_max: random.random_range(1..8),
            find_id_ttl_ms: random.random_range(1..6 * WINDOW_MS),
        };
        Self {
            model: Model::new(hunt(&mut random), limits),
            random,
            audits: HashMap::new(),
            ids_credited: HashSet::new(),
            sent: Vec::new(),
            now: START,
            entries: 0,
        }
    }

    fn find(&mut self) -> (PlayerId, NewFind) {
        if !self.sent.is_empty() && self.random.random_bool(0.3) {
            // A retry, as it was sent.
            return self.sent[self.random.random_range(0..self.sent.len())].clone();
        }
        let random = &mut self.random;
        let what = match random.random_range(0..8) {
            0 => What::Coins([3, COINS_MAX, COINS_MAX + 1, u64::MAX][random.random_range(0..4)]),
            _ => What::Treasure(
                TreasureId::new(&format!("t{}", random.random_range(0..11))).unwrap(),
            ),
        };
        let found_at = match random.random_range(0..6) {
            0 => Some(self.now - random.random_range(0..2 * WINDOW_MS)),
            1 => Some(self.now - WINDOW_MS - random.random_range(0..2)),
            2 => Some(self.now + random.random_range(999..1_002)),
            _ => None,
        };
        let id = random
            .random_bool(0.9)
            .then(|| FindId::new(&format!("t{}", random.random_range(0..20))).unwrap());
        let player = PlayerId(random.random_range(0..PLAYERS));
        let find = NewFind { what, id, found_at };
        self.sent.push((player, find.clone()));
        (player, find)
    }

    /// One step; whom it concerned and what it appended.
    fn step(&mut self) -> Vec<(PlayerId, Vec<Entry>)> {
        let player = PlayerId(self.random.random_range(0..PLAYERS));
        let now = self.now;
        match self.random.random_range(0..20) {
            0..8 => {
                let (player, new) = self.find();
                let before = self.model.players.get(&player).map(|p| p.wallet);
                let (said, entries) = self
                    .model
                    .with(player, now, |player, at, out| player.record(at, &new, out));
                let after = self.model.players[&player].wallet;
                match said {
                    Ok(Decision::Recorded(made, _)) => assert_eq!(made, entries[0]),
                    Ok(Decision::Duplicate(_)) | Err(_) => {
                        assert!(entries.is_empty());
                        assert_eq!(before.unwrap_or_default(), after, "a refusal changed it");
                    }
                }
                if self.model.hunt.state(now) != HuntState::Open {
                    assert!(!matches!(said_kind(&entries), Some("find")));
                }
                vec![(player, entries)]
            }
            8..13 => {
                let (_, entries) = self.model.with(player, now, |player, at, out| {
                    player.collect(now, at.outages, out);
                });
                let wallet = self.model.players[&player].wallet;
                assert_eq!(wallet.pending_finds, 0, "a poll leaves nothing pending");
                vec![(player, entries)]
            }
            13 => {
                let (_, entries) = self.model.with(player, now, |player, at, out| {
                    player.expire(now, at.outages, out);
                });
                let due_at = self.model.players[&player].wallet.due_at;
                assert!(due_at == 0 || due_at >= now);
                vec![(player, entries)]
            }
            14 | 15 => {
                let coins = match self.random.random_range(0..6) {
                    0 => [0, i64::MAX, i64::MIN, -1][self.random.random_range(0..4)],
                    _ => self.random.random_range(-20..30),
                };
                let adjustment = Adjustment {
                    coins,
                    reason: "r".into(),
                    key: format!("k{}", self.random.random_range(0..30)),
                    by: "b".into(),
                };
                let (_, entries) = self.model.with(player, now, |player, at, out| {
                    if let Ok(AdjustDecision::Recorded(entry)) = player.adjust(at, adjustment) {
                        out.push(entry);
                    }
                });
                vec![(player, entries)]
            }
            16 => {
                // A step of the clock, or a restart: time passed and is on record as an outage.
                let to = now + self.random.random_range(0..2 * WINDOW_MS);
                self.model.outages.record(now, to);
                self.now = to;
                Vec::new()
            }
            17 => {
                let from = now - self.random.random_range(0..5 * WINDOW_MS);
                let (_, entries) = self.model.with(player, now, |player, _, out| {
                    player.reinstate(from, now, now, out);
                });
                vec![(player, entries)]
            }
            18 if self.random.random_bool(0.1) => {
                let (_, entries) = self.model.with(player, now, |player, _, out| {
                    player.revoke_pending(now, out);
                });
                vec![(player, entries)]
            }
            _ => {
                let passed = [0, 1, 500, WINDOW_MS, WINDOW_MS + 1];
                self.now += passed[self.random.random_range(0..passed.len())];
                Vec::new()
            }
        }
    }

    /// The invariants, recomputed.
    fn check(&mut self, appended: Vec<(PlayerId, Vec<Entry>)>) {
        for (player, entries) in appended {
            for entry in entries {
                self.entries += 1;
                // I2 once more, by hand: the audit would say so too.
                if let Change::Credit(find) | Change::Reinstate(find) = &entry.change {
                    assert!(self.ids_credited.insert((player, find.seq)), "I2: {find:?}");
                }
                let audit = self.audits.entry(player).or_default();
                audit
                    .entry(&entry)
                    .unwrap_or_else(|broken| panic!("{broken}: {entry:?}"));
            }
        }
        let mut sums = Sums::default();
        for (player, each) in &self.model.players {
            let audit = self.audits.entry(*player).or_default();
            sums.add(
                &audit
                    .close(&each.wallet)
                    .expect("the wallet is its history"),
            );
        }
        assert!(sums.conserve(), "I1: {sums:?}");
        assert_eq!(sums.discrepancies(&self.model.totals), []);
        assert!(self.model.totals.conserve());
        assert!(self.model.totals.recorded <= COINS_MAX);
    }
}

fn said_kind(entries: &[Entry]) -> Option<&'static str> {
    entries.first().map(|entry| match entry.change {
        Change::Find(_) => "find",
        _ => "other",
    })
}

#[test]
fn the_invariants_hold_after_every_step_of_random_sequences() {
    let given: Option<u64> = std::env::var("TROVE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut entries = 0;
    for seed in given.map_or(0..SEQUENCES, |seed| seed..seed + 1) {
        println!("TROVE_TEST_SEED={seed}");
        let mut books = Books::new(seed);
        for _ in 0..STEPS {
            let appended = books.step();
            books.check(appended);
        }
        entries += books.entries;
    }
    assert!(given.is_some() || entries > 10_000, "{entries}");
}

#[test]
fn a_retry_within_its_time_is_always_the_first_answer_again() {
    for seed in 0..100 {
        println!("TROVE_TEST_SEED={seed}");
        let mut books = Books::new(seed);
        books.model.limits.find_id_ttl_ms = u64::MAX / 2;
        let mut answers: Vec<(PlayerId, NewFind, trove::game::entry::Find)> = Vec::new();
        for _ in 0..STEPS {
            let appended = books.step();
            books.check(appended);
            let (player, new) = books.find();
            let now = books.now;
            let (said, entries) = books
                .model
                .with(player, now, |player, at, out| player.record(at, &new, out));
            match said {
                Ok(Decision::Recorded(made, _)) => {
                    let Change::Find(find) = made.change else {
                        panic!("{made:?}")
                    };
                    answers.push((player, new, find));
                }
                Ok(Decision::Duplicate(_)) | Err(_) => {}
            }
            books.check(vec![(player, entries)]);
        }
        for (player, new, first) in answers {
            let now = books.now;
            let (said, entries) = books
                .model
                .with(player, now, |player, at, out| player.record(at, &new, out));
            assert_eq!(said, Ok(Decision::Duplicate(first)));
            assert!(entries.is_empty());
        }
        let unknown = NewFind {
            what: What::Treasure(TreasureId::new("nowhere").unwrap()),
            id: None,
            found_at: None,
        };
        let now = books.now;
        let (said, _) = books.model.with(PlayerId(0), now, |player, at, out| {
            player.record(at, &unknown, out)
        });
        assert_eq!(said, Err(Refusal::NoSuchTreasure));
    }
}
