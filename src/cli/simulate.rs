//! `trove simulate`: the game core under a simulated clock.

use super::args::SimulateArgs;
use super::failure::{Exit, Failure};
use crate::game::simulate::{self, Outcome, POLL_INTERVAL_MS, Plan};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Between two looks at the progress on a terminal.
const LOOK: Duration = Duration::from_millis(200);
/// Between two lines about it elsewhere.
const LINE: Duration = Duration::from_secs(10);

pub(super) fn run(args: SimulateArgs, out: &mut impl Write) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args
        .threads
        .and_then(|threads| usize::try_from(threads).ok());
    let plan = Plan {
        hours: args.hours,
        players: args.players,
        seed: args.seed,
        threads: threads.unwrap_or(processors),
    };
    let began = Instant::now();
    let outcome = watched(plan);
    let elapsed_s = began.elapsed().as_secs_f64();
    let outcome = outcome.map_err(|broken| {
        Failure::new(
            Exit::No,
            format_args!(
                "an invariant is broken: {broken}; again with: trove simulate --hours {} --players {} --seed {}",
                plan.hours, plan.players, plan.seed
            ),
        )
    })?;
    print(&plan, &outcome, elapsed_s, out)
}

/// Runs the plan and shows how far it is.
fn watched(plan: Plan) -> Result<Outcome, simulate::Broken> {
    let polls = plan.players * (plan.hours * 3_600_000 / POLL_INTERVAL_MS);
    let done = AtomicU64::new(0);
    let terminal = std::io::stderr().is_terminal();
    let bar = ProgressBar::with_draw_target(Some(polls), ProgressDrawTarget::stderr()).with_style(
        ProgressStyle::with_template("{wide_bar} {percent:>3} % of {len} polls, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    std::thread::scope(|scope| {
        let (ended, end) = channel();
        let done_by_now = &done;
        scope.spawn(move || {
            // An error says that nobody waits any more.
            let _ = ended.send(simulate::run(plan, done_by_now));
        });
        loop {
            match end.recv_timeout(if terminal { LOOK } else { LINE }) {
                Ok(outcome) => {
                    bar.finish_and_clear();
                    return outcome;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now = done.load(Ordering::Relaxed);
                    if terminal {
                        bar.set_position(now);
                    } else {
                        eprintln!("{now} of {polls} polls");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the thread sends before it ends, and its panic is the scope's")
                }
            }
        }
    })
}

fn print(
    plan: &Plan,
    outcome: &Outcome,
    elapsed_s: f64,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let sums = &outcome.sums;
    for (name, count) in [
        ("hours", u128::from(plan.hours)),
        ("players", plan.players.into()),
        ("seed", plan.seed.into()),
        ("polls", outcome.polls.into()),
        ("finds sent", outcome.finds_sent.into()),
        ("finds recorded", outcome.finds_recorded.into()),
        ("finds repeated", outcome.duplicates.into()),
        ("finds in conflict", outcome.conflicts.into()),
        ("finds refused", outcome.refused.into()),
        ("finds credited", outcome.credits.into()),
        (
            "finds expired by their window",
            outcome.expired_window.into(),
        ),
        ("finds expired by an outage", outcome.expired_outage.into()),
        ("finds reinstated", outcome.reinstated.into()),
        ("ledger entries audited", outcome.entries.into()),
        ("coins recorded", sums.recorded),
        ("coins credited", sums.credited),
        ("coins expired", sums.expired),
        ("coins pending", sums.pending),
        ("coins revoked", sums.revoked),
    ] {
        writeln!(out, "{name:<30} {count:>16}")?;
    }
    writeln!(
        out,
        "{:<30} {:>16}",
        "digest of all wallets",
        format!("{:016x}", outcome.digest)
    )?;
    writeln!(out, "every invariant holds")?;
    // A rate for people: the digits that the conversion loses do not count.
    #[allow(clippy::cast_precision_loss)]
    let rate = outcome.polls as f64 / elapsed_s;
    Ok(writeln!(
        out,
        "took {elapsed_s:.1} s on {} threads, {rate:.0} polls a second",
        plan.threads
    )?)
}
