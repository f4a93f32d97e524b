//! Days of a hunt under a simulated clock: every poll a call of the game core, every entry audited.
//!
//! Players do not affect one another, so each is simulated from start to end by itself; that keeps its state in the
//! processor's cache, and makes the result independent of the number of threads. The same seed gives the same result.

use super::audit::{Discrepancy, Sums, WalletAudit};
use super::entry::{Change, Entry, ExpiryReason, Totals};
use super::hunt::{Hunt, HuntSpec, HuntState, Treasure};
use super::ids::{FindId, HuntId, PlayerId, TreasureId};
use super::model::Player;
use super::rules::{Circumstances, Decision, Limits, NewFind, Refusal, What};
use super::wallet::Outages;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time between two polls of a player, in milliseconds.
pub const POLL_INTERVAL_MS: u64 = 1_200;
/// Polls between two finds of a player: one find every 30 s.
pub const POLLS_PER_FIND: u64 = 25;
const WINDOW_MS: u64 = 300_000;
const START: u64 = 1_800_000_000_000;
const ONCE_TREASURES: u64 = 2_000;
const REPEATABLE_TREASURES: u64 = 200;
/// Now and then the store's clock steps forward by this much, which it puts on record as an outage.
const CLOCK_STEP_MS: u64 = 400_000;

/// What to simulate.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Hours of polling, not counting the clock's steps.
    pub hours: u64,
    /// Players.
    pub players: u64,
    /// Everything random follows from it.
    pub seed: u64,
    /// Threads to use; at least one is.
    pub threads: usize,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Polls, each one call of the core.
    pub polls: u64,
    /// Finds sent, repeats included.
    pub finds_sent: u64,
    /// Finds recorded.
    pub finds_recorded: u64,
    /// Finds that were repeats of an earlier one.
    pub duplicates: u64,
    /// Finds refused because their id was used for another.
    pub conflicts: u64,
    /// Finds refused for their time.
    pub refused: u64,
    /// Finds credited.
    pub credits: u64,
    /// Finds expired for want of a poll.
    pub expired_window: u64,
    /// Finds expired by an outage.
    pub expired_outage: u64,
    /// Finds reinstated.
    pub reinstated: u64,
    /// Ledger entries, each one audited.
    pub entries: u64,
    /// The coins.
    pub sums: Sums,
    /// A digest of every wallet, the same for the same plan.
    pub digest: u64,
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.polls += other.polls;
        self.finds_sent += other.finds_sent;
        self.finds_recorded += other.finds_recorded;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.refused += other.refused;
        self.credits += other.credits;
        self.expired_window += other.expired_window;
        self.expired_outage += other.expired_outage;
        self.reinstated += other.reinstated;
        self.entries += other.entries;
        self.sums.add(&other.sums);
        // Players end in any order, so the digest must not depend on it.
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("player {player}: {what}")]
pub struct Broken {
    /// The player's number.
    pub player: u64,
    /// What did not hold.
    pub what: Discrepancy,
}

fn hunt() -> Hunt {
    let treasure = |prefix: &str, n: u64, repeatable| Treasure {
        id: TreasureId::new(&format!("{prefix}{n}")).expect("letters and digits are an id"),
        name: None,
        coins: 1 + n % 50,
        place: None,
        repeatable,
    };
    let once = (0..ONCE_TREASURES).map(|n| treasure("once-", n, false));
    let repeatable = (0..REPEATABLE_TREASURES).map(|n| treasure("again-", n, true));
    let mut hunt = Hunt::new(
        1,
        HuntSpec {
            id: HuntId::new("simulated").expect("letters are an id"),
            name: "Simulated".into(),
            window_ms: WINDOW_MS,
            opens_at: None,
            closes_at: None,
            treasures: once.chain(repeatable).collect(),
        },
    );
    hunt.operator = Some(HuntState::Open);
    hunt
}

/// The polls before which the clock steps, the same for all players: about four a day.
fn clock_steps(plan: &Plan, polls: u64) -> (Vec<u64>, Outages) {
    let mut random = Pcg64Mcg::seed_from_u64(plan.seed);
    let mut steps: Vec<u64> = (0..plan.hours.div_ceil(6))
        .map(|_| random.random_range(0..polls.max(1)))
        .collect();
    steps.sort_unstable();
    steps.dedup();
    let mut outages = Outages::default();
    for (nth, poll) in steps.iter().enumerate() {
        let before = START + poll * POLL_INTERVAL_MS + nth as u64 * CLOCK_STEP_MS;
        outages.record(before, before + CLOCK_STEP_MS);
    }
    (steps, outages)
}

/// Runs the plan. `polls_done` counts up while it runs.
///
/// # Errors
/// The first invariant found broken.
pub fn run(plan: Plan, polls_done: &AtomicU64) -> Result<Outcome, Broken> {
    let hunt = hunt();
    let polls = plan.hours * 3_600_000 / POLL_INTERVAL_MS;
    let (steps, outages) = clock_steps(&plan, polls);
    let next = AtomicU64::new(0);
    let work = || {
        let mut sum = Outcome::default();
        loop {
            let player = next.fetch_add(1, Ordering::Relaxed);
            if player >= plan.players {
                return Ok(sum);
            }
            let one = Run::new(&plan, &hunt, &outages, player).run(polls, &steps);
            sum.add(&one.map_err(|what| Broken { player, what })?);
            polls_done.fetch_add(polls, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        let mut sum = Outcome::default();
        for thread in threads {
            sum.add(&thread.join().expect("a simulating thread does not panic")?);
        }
        Ok(sum)
    })
}

/// One player from start to end.
struct Run<'a> {
    hunt: &'a Hunt,
    outages: &'a Outages,
    random: Pcg64Mcg,
    player: Player,
    audit: WalletAudit,
    totals: Totals,
    sent: Vec<NewFind>,
    finds: u64,
    number: u64,
    out: Vec<Entry>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(plan: &Plan, hunt: &'a Hunt, outages: &'a Outages, number: u64) -> Self {
        Self {
            hunt,
            outages,
            random: Pcg64Mcg::seed_from_u64(
                plan.seed ^ (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            ),
            player: Player::default(),
            audit: WalletAudit::default(),
            totals: Totals::default(),
            sent: Vec::new(),
            finds: 0,
            number,
            out: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn run(mut self, polls: u64, steps: &[u64]) -> Result<Outcome, Discrepancy> {
        let mut steps = steps.iter().copied().peekable();
        let mut now = START;
        // So that not all players find at the same instant.
        let phase = self.number % POLLS_PER_FIND;
        for poll in 0..polls {
            now += POLL_INTERVAL_MS;
            if poll % POLLS_PER_FIND == phase {
                self.find(now - POLL_INTERVAL_MS / 2)?;
            }
            if steps.next_if_eq(&poll).is_some() {
                now += CLOCK_STEP_MS;
                self.after_step(now)?;
            }
            self.player.collect(now, self.outages, &mut self.out);
            self.outcome.polls += 1;
            if !self.out.is_empty() {
                self.account()?;
            }
        }
        let wallet = self.player.wallet;
        self.outcome.sums = self.audit.close(&wallet)?;
        if let Some(discrepancy) = self.outcome.sums.discrepancies(&self.totals).pop() {
            return Err(discrepancy);
        }
        let figures = [
            PlayerId(self.number).0,
            wallet.balance,
            wallet.seq,
            wallet.pending_coins,
        ];
        self.outcome.digest = figures
            .iter()
            .fold(0xCBF2_9CE4_8422_2325, |hash: u64, figure| {
                (hash ^ figure)
                    .wrapping_mul(0x0100_0000_01B3)
                    .rotate_left(23)
            });
        Ok(self.outcome)
    }

    /// Half the time the sweeper comes before the player; and an operator reinstates half of what an outage took.
    fn after_step(&mut self, now: u64) -> Result<(), Discrepancy> {
        if self.random.random_bool(0.5) {
            self.player.expire(now, self.outages, &mut self.out);
            self.account()?;
        }
        if self.random.random_bool(0.5) {
            self.player.reinstate(0, u64::MAX, now, &mut self.out);
            self.account()?;
        }
        Ok(())
    }

    fn find(&mut self, now: u64) -> Result<(), Discrepancy> {
        let new = self.next_find(now);
        let at = Circumstances {
            hunt: self.hunt,
            totals: &self.totals,
            outages: self.outages,
            limits: Limits::default(),
            now,
        };
        self.outcome.finds_sent += 1;
        match self.player.record(at, &new, &mut self.out) {
            Ok(Decision::Recorded(..)) => {
                self.outcome.finds_recorded += 1;
                self.sent.push(new);
            }
            Ok(Decision::Duplicate(_)) => self.outcome.duplicates += 1,
            Err(Refusal::FindConflict) => self.outcome.conflicts += 1,
            Err(_) => self.outcome.refused += 1,
        }
        self.account()
    }

    /// Mostly new finds of both kinds of treasure; some repeats, some repeats with other content, some dated back
    /// across the window's edge, a few dated ahead.
    fn next_find(&mut self, now: u64) -> NewFind {
        self.finds += 1;
        let kind = self.random.next_u32() % 100;
        let earlier = (!self.sent.is_empty()).then(|| self.random.random_range(0..self.sent.len()));
        if let (0..15, Some(index)) = (kind, earlier) {
            let mut again = self.sent[index].clone();
            if kind < 3 && again.id.is_some() {
                again.what = What::Coins(1);
            }
            return again;
        }
        let found_at = match kind {
            15..30 => Some(now - self.random.random_range(0..WINDOW_MS + 20_000)),
            30..32 => Some(now + self.random.random_range(0..5_000)),
            _ => None,
        };
        let (name, id) = if kind < 45 {
            (
                format!("once-{}", self.random.random_range(0..ONCE_TREASURES)),
                None,
            )
        } else {
            (
                format!(
                    "again-{}",
                    self.random.random_range(0..REPEATABLE_TREASURES)
                ),
                FindId::new(itoa::Buffer::new().format(self.finds)).ok(),
            )
        };
        NewFind {
            what: What::Treasure(TreasureId::new(&name).expect("letters and digits are an id")),
            id,
            found_at,
        }
    }

    /// Audits what was appended and adds it up.
    fn account(&mut self) -> Result<(), Discrepancy> {
        for entry in self.out.drain(..) {
            self.audit.entry(&entry)?;
            if self.totals.apply(&entry.change).is_err() || !self.totals.conserve() {
                return Err(Discrepancy::Negative { seq: entry.seq });
            }
            self.outcome.entries += 1;
            match entry.change {
                Change::Credit(_) => self.outcome.credits += 1,
                Change::Expire(_, ExpiryReason::Window) => self.outcome.expired_window += 1,
                Change::Expire(_, ExpiryReason::StoreOutage) => self.outcome.expired_outage += 1,
                Change::Reinstate(_) => self.outcome.reinstated += 1,
                Change::Find(_) | Change::Revoke(_) | Change::Adjust(_) | Change::Replay(..) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_result_on_any_number_of_threads() {
        let plan = |seed, threads| Plan {
            hours: 2,
            players: 40,
            seed,
            threads,
        };
        let run = |seed, threads| run(plan(seed, threads), &AtomicU64::new(0)).unwrap();
        let one = run(7, 1);
        assert_eq!(one, run(7, 3));
        assert_ne!(one.digest, run(8, 1).digest);
        assert_eq!(one.polls, 2 * 3_600_000 / 1_200 * 40);
        assert_eq!(one.finds_sent, one.polls / 25);
        assert!(one.sums.conserve());
    }

    #[test]
    fn a_simulated_day_meets_every_outcome() {
        let plan = Plan {
            hours: 24,
            players: 30,
            seed: 1,
            threads: 2,
        };
        let outcome = run(plan, &AtomicU64::new(0)).unwrap();
        for (name, count) in [
            ("duplicates", outcome.duplicates),
            ("conflicts", outcome.conflicts),
            ("refused", outcome.refused),
            ("credits", outcome.credits),
            ("expired by their window", outcome.expired_window),
            ("expired by an outage", outcome.expired_outage),
            ("reinstated", outcome.reinstated),
        ] {
            assert!(count > 0, "no find was counted under {name}");
        }
    }
}
