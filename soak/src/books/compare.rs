//! The books held against the ledger, find by find, both sorted by user and find in constant memory.
//!
//! - What was acknowledged is in the ledger, was credited exactly once or expired lawfully, with the coins that were sent.
//! - What was told as credited is credited in the ledger, and is told once.
//! - What is in the ledger was sent. (A resumed run may have sent finds that the crash took from its books: such numbers are
//!   known, see [`super::resume`].)
//! - What was sent and never answered may be in the ledger or not, but not twice.
//! - An expiry by the window is lawful unless a poll of the player credited others meanwhile, which has to credit all; one by
//!   an outage of the store is lawful if the run had such a fault then, or was interrupted.
//! - What is neither credited nor expired at the end is unknown, which is no pass.

use super::fate::{BookRow, Fate};
use super::ledger::{Change, LedgerRow, Wrong};
use super::sort::{SORT_BYTES_MAX, Sorter};
use super::writer::Cut;
use super::{ids, ledger, segment, writer};
use crate::case::{Case, FaultKind};
use crate::record::{End, FaultMark, Finding, Segment, files};
use std::io::{self, BufRead};
use std::path::Path;
use std::time::Duration;

/// The most findings that are written; the others are counted.
pub const FINDINGS_MAX: usize = 1_000;

/// After a fault has ended, the store may count as out of reach for so long: processes start, links are made anew.
const OUTAGE_SLACK: Duration = Duration::from_secs(15);
/// How long after a fault of Redis a failover and the return of what it took may take, where the fault's allowance is shorter.
const RETURN_MAX: Duration = Duration::from_secs(10);
/// How far the harness's clock and the store's may be apart when a find's window is held against a fault's time.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// Holds the books of the run in `dir` against an export of its hunt. What `trove verify` said is left to the caller; so is
/// what the online checker found, which is no part of the count of findings.
///
/// # Errors
/// The books or the export cannot be read, or there is no room to sort.
pub fn compare(
    dir: &Path,
    export: impl BufRead,
    case: &Case,
    faults: &[FaultMark],
) -> io::Result<(End, Vec<Finding>)> {
    compare_within(dir, export, case, faults, SORT_BYTES_MAX)
}

/// [`compare`] with another bound on the memory of each of its two sorts.
pub(super) fn compare_within(
    dir: &Path,
    export: impl BufRead,
    case: &Case,
    faults: &[FaultMark],
    sort_bytes_max: usize,
) -> io::Result<(End, Vec<Finding>)> {
    let books = dir.join(files::BOOKS);
    let segments: Vec<Segment> =
        crate::record::read_lines(&dir.join(files::RUN))?.collect::<io::Result<_>>()?;
    let cuts = writer::cuts(&books)?;
    let mut judge = Judge {
        window_ms: millis(case.window_scaled()),
        outages: outages(faults, &segments),
        may_roll_back: segments.len() > 1 || faults.iter().any(|fault| may_roll_back(fault.what)),
        resumed_at: segments
            .iter()
            .skip(1)
            .map(|segment| segment.at_ms)
            .collect(),
        cuts,
        end: End::default(),
        findings: Vec::new(),
    };

    let mut told = Sorter::<BookRow>::new(&books, sort_bytes_max);
    let torn = segment::read_all(&books, |entry| told.push(entry.into()))?;
    if torn > judge.cuts.len() as u64 {
        judge.end.unchecked.push(format!(
            "{torn} segments of the books are torn, and the run was resumed {} times",
            judge.cuts.len()
        ));
    }
    let mut recorded = Sorter::<LedgerRow>::new(&books, sort_bytes_max);
    let mut wrongs = |wrong: Wrong| judge.found(wrong.kind, 0, wrong.player, wrong.text);
    let returns = returns(faults, &segments);
    ledger::read(export, &returns, |row| recorded.push(row), &mut wrongs)?;

    let mut told = told.sorted()?.peekable();
    let mut recorded = recorded.sorted()?.peekable();
    loop {
        let next_told = match told.peek() {
            Some(Ok(row)) => Some((row.user, row.find)),
            Some(Err(_)) | None => None,
        };
        let next_recorded = match recorded.peek() {
            Some(Ok(row)) => Some((row.user, row.find)),
            Some(Err(_)) | None => None,
        };
        let Some(key) = [next_told, next_recorded].into_iter().flatten().min() else {
            // Either both are at their end, or reading failed.
            if let Some(row) = told.next() {
                row?;
            }
            if let Some(row) = recorded.next() {
                row?;
            }
            break;
        };
        let mut fate = Fate::new(key.0, key.1);
        while let Some(row) = told.next_if(|row| belongs(row, key, |row| (row.user, row.find))) {
            fate.told(&row?);
        }
        while let Some(row) = recorded.next_if(|row| belongs(row, key, |row| (row.user, row.find)))
        {
            fate.recorded(&row?);
        }
        judge.judge(&fate);
    }
    Ok((judge.end, judge.findings))
}

/// Whether the row is of this key; one that could not be read is, so that its error is met.
fn belongs<R>(row: &io::Result<R>, key: (u32, u64), of: impl Fn(&R) -> (u32, u64)) -> bool {
    row.as_ref().map_or(true, |row| of(row) == key)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// When, in milliseconds since the epoch, the store may have been out of reach.
fn outages(faults: &[FaultMark], segments: &[Segment]) -> Vec<(u64, u64)> {
    let cuts_off = |what: FaultKind| match what {
        FaultKind::KillInstance
        | FaultKind::StopInstance
        | FaultKind::RestartInstance
        | FaultKind::KillRedis
        | FaultKind::LoseRedis
        | FaultKind::StopRedis
        | FaultKind::FailoverRedis
        | FaultKind::CutRedis
        | FaultKind::SlowRedis
        | FaultKind::FillDisk => true,
        FaultKind::Switch
        | FaultKind::KillShim
        | FaultKind::RestartShim
        | FaultKind::CutClients
        | FaultKind::Stampede
        | FaultKind::DoubleLoad => false,
    };
    let slack = millis(OUTAGE_SLACK);
    let of_faults = faults
        .iter()
        .filter(|fault| cuts_off(fault.what))
        .map(|fault| span(segments, fault.at_ms, fault.until_ms, slack));
    let interruptions = segments.windows(2).filter_map(|pair| match pair {
        [before, after] => {
            let from = before.wall_ms + after.at_ms.saturating_sub(before.at_ms);
            Some((from, after.wall_ms + slack))
        }
        _ => None,
    });
    of_faults.chain(interruptions).collect()
}

/// From when to when something was, in milliseconds since the epoch.
fn span(segments: &[Segment], from_ms: u64, until_ms: u64, slack_ms: u64) -> (u64, u64) {
    let wall = |at_ms: u64| {
        let segment = segments.iter().rev().find(|segment| segment.at_ms <= at_ms);
        segment.map(|segment| segment.wall_ms + (at_ms - segment.at_ms))
    };
    // Without the run's beginning there is nothing to place it by.
    match (wall(from_ms), wall(until_ms)) {
        (Some(from), Some(until)) => (from, until + slack_ms),
        _ => (0, u64::MAX),
    }
}

/// When what a failover took may have been brought back, in milliseconds since the epoch.
fn returns(faults: &[FaultMark], segments: &[Segment]) -> Vec<(u64, u64)> {
    let loses = faults.iter().filter(|fault| may_roll_back(fault.what));
    loses
        .map(|fault| {
            let until = fault.allow_until_ms.max(fault.at_ms + millis(RETURN_MAX));
            span(segments, fault.at_ms, until, millis(CLOCK_SLACK))
        })
        .collect()
}

/// Whether Redis may lose what it acknowledged: an instance that dies takes nothing of it along.
fn may_roll_back(what: FaultKind) -> bool {
    matches!(
        what,
        FaultKind::KillRedis
            | FaultKind::LoseRedis
            | FaultKind::StopRedis
            | FaultKind::FailoverRedis
            | FaultKind::CutRedis
            | FaultKind::FillDisk
    )
}

struct Judge {
    window_ms: u64,
    outages: Vec<(u64, u64)>,
    /// Whether the run did something to Redis by which it may lose what it acknowledged.
    may_roll_back: bool,
    resumed_at: Vec<u64>,
    cuts: Vec<Cut>,
    end: End,
    findings: Vec<Finding>,
}

impl Judge {
    fn found(&mut self, kind: &str, at_ms: u64, player: String, text: String) {
        self.end.findings += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding {
                at_ms,
                kind: kind.to_owned(),
                player,
                text,
            });
        }
    }

    fn judge(&mut self, fate: &Fate) {
        let id = ids::find_id(fate.find);
        let mut wrong: Vec<(&str, String)> = Vec::new();
        self.of_recording(fate, &mut wrong);
        self.of_crediting(fate, &mut wrong);
        self.of_expiring(fate, &mut wrong);
        of_coins(fate, &mut wrong);
        self.count(fate, wrong.is_empty());
        for (kind, text) in wrong {
            let text = format!("{id} {text}");
            self.found(kind, fate.told_last_ms, ids::player_name(fate.user), text);
        }
    }

    fn of_recording(&self, fate: &Fate, wrong: &mut Vec<(&str, String)>) {
        let recorded = fate.first.is_some();
        if recorded && fate.sent == 0 && !self.may_have_been_lost(fate.find) {
            wrong.push(("ledger", "is in the ledger, and nobody sent it".to_owned()));
        }
        if fate.finds > 1 {
            let text = format!("is recorded {} times", fate.finds);
            wrong.push(("ledger", text));
        }
        if recorded && fate.finds == 0 {
            wrong.push((
                "ledger",
                "has an end in the ledger, and no beginning".to_owned(),
            ));
        }
        if fate.acknowledged > 0 && !recorded {
            wrong.push((
                "find_lost",
                "was acknowledged, and is not in the ledger".to_owned(),
            ));
        }
        let refused = fate
            .refused_last_ms
            .is_some_and(|at| at >= fate.sent_last_ms);
        if refused && fate.acknowledged == 0 && recorded {
            wrong.push(("ledger", "was refused, and is in the ledger".to_owned()));
        }
        if let Some(first) = fate.first
            && fate.told_found_at != 0
            && fate.told_found_at != first.found_at
        {
            let text = format!(
                "was acknowledged as found at {}, and is in the ledger as found at {}",
                fate.told_found_at, first.found_at
            );
            wrong.push(("ledger", text));
        }
        if let Some(first) = fate.first
            && first.expires_at != first.found_at + self.window_ms
        {
            let text = format!(
                "has a window of {} ms, and the hunt's is {} ms",
                first.expires_at.saturating_sub(first.found_at),
                self.window_ms
            );
            wrong.push(("outside_window", text));
        }
        if fate.revoked {
            wrong.push(("ledger", "was revoked, and nobody asked for it".to_owned()));
        }
    }

    /// Whether a crash of the harness may have taken the entry of this number's sending.
    fn may_have_been_lost(&self, find: u64) -> bool {
        if find & ids::ONCE != 0 {
            // Their numbers are the treasures', and say nothing of when they were sent.
            return !self.cuts.is_empty();
        }
        self.cuts
            .iter()
            .any(|cut| find > cut.after && find < cut.until)
    }

    fn of_crediting(&self, fate: &Fate, wrong: &mut Vec<(&str, String)>) {
        if fate.credits > 1 {
            let text = format!("is credited {} times in the ledger", fate.credits);
            wrong.push(("credited_twice", text));
        }
        if fate.told_credited > 0 && fate.credits == 0 {
            let text = "was told as credited, and is not in the ledger".to_owned();
            wrong.push(("credit_lost", text));
        }
        // A harness that was interrupted has forgotten what it was told, and may be told again.
        let between = |at: &u64| *at > fate.told_credited_first_ms && *at <= fate.told_last_ms;
        let interrupted = self.resumed_at.iter().any(between);
        if fate.told_credited > 1 && !interrupted {
            let text = format!(
                "was told as credited {} times, {} apart",
                fate.told_credited,
                apart(fate.told_last_ms - fate.told_credited_first_ms)
            );
            wrong.push(("credited_twice", text));
        }
        if let Some(credit) = fate.credit
            && !(credit.found_at..=credit.expires_at).contains(&credit.at)
        {
            let text = format!(
                "found at {} was credited at {}, outside its window",
                credit.found_at, credit.at
            );
            wrong.push(("outside_window", text));
        }
        if let Some(credit) = fate.credit
            && credit.came_back
            && !(self.may_roll_back && self.was_out_of_reach(&credit))
        {
            let text = "came back after a failover of the store that the run did not cause";
            wrong.push(("ledger", text.to_owned()));
        }
    }

    fn of_expiring(&self, fate: &Fate, wrong: &mut Vec<(&str, String)>) {
        let Some(expired) = fate.expired else {
            if fate.told_expired > 0 {
                let text = "was told as expired, and is not so in the ledger".to_owned();
                wrong.push(("ledger", text));
            }
            return;
        };
        if fate.expiries > 1 {
            let text = format!("expired {} times", fate.expiries);
            wrong.push(("ledger", text));
        }
        if fate.credits > 0 && !fate.reinstated {
            let text = "is credited and expired".to_owned();
            wrong.push(("credited_twice", text));
        }
        if expired.at <= expired.expires_at {
            let text = format!(
                "expired at {}, within its window till {}",
                expired.at, expired.expires_at
            );
            wrong.push(("outside_window", text));
        }
        if expired.change == Change::Expire && expired.passed_over_at > 0 {
            let text = format!(
                "expired, though a poll at {} credited others and could have credited it",
                expired.passed_over_at
            );
            wrong.push(("credit_lost", text));
        }
        if expired.change == Change::ExpireByOutage && !self.was_out_of_reach(&expired) {
            let text = "expired by an outage of the store that the run did not cause".to_owned();
            wrong.push(("unlawful_expiry", text));
        }
    }

    fn was_out_of_reach(&self, row: &LedgerRow) -> bool {
        let slack = millis(CLOCK_SLACK);
        self.outages.iter().any(|(from, until)| {
            row.found_at <= until.saturating_add(slack)
                && *from <= row.expires_at.saturating_add(slack)
        })
    }

    fn count(&mut self, fate: &Fate, lawful: bool) {
        let end = &mut self.end;
        end.finds_acknowledged += u64::from(fate.acknowledged > 0);
        if fate.credits > 0 {
            end.coins_credited += fate.coins.map_or(0, |(_, most)| most);
            end.finds_credited += u64::from(lawful);
        } else if fate.expired.is_some() {
            end.finds_expired += u64::from(lawful);
        } else if fate.first.is_some() && !fate.revoked {
            // Still pending after everything has settled.
            end.finds_unknown += 1;
        }
    }
}

fn of_coins(fate: &Fate, wrong: &mut Vec<(&str, String)>) {
    let ranges = [fate.told_coins, fate.coins];
    let least = ranges.iter().flatten().map(|(least, _)| least).min();
    let most = ranges.iter().flatten().map(|(_, most)| most).max();
    if let (Some(least), Some(most)) = (least, most)
        && least != most
    {
        let text = format!("is worth {least} coins in one place and {most} in another");
        wrong.push(("coins", text));
    }
}

/// A time in words, to the second where it is longer.
fn apart(ms: u64) -> String {
    let time = Duration::from_millis(ms);
    let time = if ms >= 1000 {
        Duration::from_secs(time.as_secs())
    } else {
        time
    };
    humantime_serde::re::humantime::format_duration(time).to_string()
}
