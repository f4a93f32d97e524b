//! Which plots a report has.

use super::digest::{Digest, KindStretch, Points, Reading, Stretch};
use super::plot::{Band, COLOURS, Line, Plot, Unit};
use crate::case::{Case, Kind};
use crate::record::FaultMark;
use std::collections::BTreeMap;

/// The most series of a plot of resources; the largest are shown.
const LINES_MAX: usize = 12;

/// All of them, those with nothing to see left out. With another run, its lines are dashed.
pub(super) fn all(case: &Case, run: &Digest, other: Option<&Digest>) -> Vec<Plot> {
    let mut plots = vec![latency(
        "Latency of polls",
        "From the time at which a poll was due to the last byte of its answer, at the interval's worst where a point stands for several. The dotted line is the objective.",
        Kind::Poll,
        case,
        run,
        other,
    )];
    plots.push(latency(
        "Latency of finds",
        "Likewise; the server answers once a find is durable.",
        Kind::Find,
        case,
        run,
        other,
    ));
    plots.push(by_kind(
        "p99 by kind of request",
        "",
        Unit::Latency,
        true,
        run,
        |_, counts| positive(counts.latency_us[1]),
    ));
    let mut throughput = by_kind(
        "Answered per second",
        "By kind of request.",
        Unit::Count,
        true,
        run,
        |stretch, counts| per_second(counts.answered, stretch),
    );
    if let Some(other) = other {
        let earlier = by_kind("", "", Unit::Count, false, other, |stretch, counts| {
            per_second(counts.answered, stretch)
        });
        throughput
            .lines
            .extend(earlier.lines.into_iter().map(dashed));
    }
    plots.push(throughput);
    plots.push(by_kind(
        "Failed per second",
        "Timed out, broken off, refused, or answered with an error.",
        Unit::Count,
        false,
        run,
        |stretch, counts| per_second(counts.failed, stretch),
    ));
    plots.push(load(run));
    plots.push(connections(run));
    plots.push(parts(run));
    plots.push(harness(case, run));
    for (title, note, resource, unit) in [
        (
            "CPU",
            "Percent of one core, by process.",
            "cpu_percent",
            Unit::Percent,
        ),
        ("Resident memory", "By process.", "rss_bytes", Unit::Bytes),
        (
            "Memory of Redis",
            "As Redis counts it.",
            "used_memory_bytes",
            Unit::Bytes,
        ),
        (
            "Descriptors",
            "Open files and sockets, by process.",
            "fds",
            Unit::Count,
        ),
        (
            "Connections",
            "As the processes count them.",
            "connections",
            Unit::Count,
        ),
        ("Clients of Redis", "", "clients", Unit::Count),
        ("Wallets in memory", "", "wallets", Unit::Count),
        (
            "Entries of the feed",
            "The ledger in Redis.",
            "feed_entries",
            Unit::Count,
        ),
        ("Keys in Redis", "", "keys", Unit::Count),
    ] {
        plots.push(resources(title, note, resource, unit, run));
    }
    plots.retain(|plot| !plot.is_empty());
    plots
}

/// Where faults lie on the time axis, and where the harness is not to be believed.
pub(super) fn bands(faults: &[FaultMark], run: &Digest) -> Vec<Band> {
    let faults = faults.iter().enumerate().map(|(nth, fault)| Band {
        from: seconds(fault.at_ms),
        to: seconds(fault.allow_until_ms.max(fault.until_ms)),
        number: Some(nth + 1),
    });
    let invalid = run
        .stretches
        .iter()
        .filter(|stretch| stretch.invalid)
        .map(|stretch| Band {
            from: seconds(stretch.from_ms),
            to: seconds(stretch.to_ms),
            number: None,
        });
    invalid.chain(faults).collect()
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// No value where there was nothing to measure.
fn positive(value: u64) -> f64 {
    if value == 0 { f64::NAN } else { value as f64 }
}

fn per_second(count: u64, stretch: &Stretch) -> f64 {
    count as f64 / seconds(stretch.to_ms.saturating_sub(stretch.from_ms)).max(1e-3)
}

fn middle(stretch: &Stretch) -> f64 {
    seconds(stretch.from_ms + stretch.to_ms) / 2.0
}

fn dashed(line: Line) -> Line {
    Line {
        name: format!("{}, before", line.name),
        dashed: true,
        ..line
    }
}

/// The colour of the nth line.
fn colour(nth: usize) -> u8 {
    u8::try_from(nth % COLOURS).unwrap_or_default()
}

fn line(nth: usize, name: &str, run: &Digest, value: impl Fn(&Stretch) -> f64) -> Line {
    Line {
        name: name.to_owned(),
        colour: colour(nth),
        dashed: false,
        points: run
            .stretches
            .iter()
            .map(|stretch| (middle(stretch), value(stretch)))
            .collect(),
    }
}

fn latency(
    title: &'static str,
    note: &'static str,
    kind: Kind,
    case: &Case,
    run: &Digest,
    other: Option<&Digest>,
) -> Plot {
    let value = |nth: usize| {
        move |stretch: &Stretch| {
            let counts = stretch.kinds.get(&kind);
            counts.map_or(f64::NAN, |counts| positive(counts.latency_us[nth]))
        }
    };
    let names = ["p50", "p99", "p99.9", "greatest"];
    let mut lines: Vec<Line> = (0..4)
        .map(|nth| line(nth, names[nth], run, value(nth)))
        .collect();
    if let Some(other) = other {
        lines.push(dashed(line(1, names[1], other, value(1))));
    }
    let objective = case
        .objectives
        .iter()
        .find(|objective| objective.request == kind);
    Plot {
        title,
        note,
        unit: Unit::Latency,
        log: true,
        lines,
        limit: objective.map(|objective| objective.below.as_secs_f64() * 1e6),
    }
}

fn by_kind(
    title: &'static str,
    note: &'static str,
    unit: Unit,
    log: bool,
    run: &Digest,
    value: impl Fn(&Stretch, &KindStretch) -> f64,
) -> Plot {
    let kinds = Kind::ALL
        .into_iter()
        .enumerate()
        .filter(|(_, kind)| run.kinds.contains_key(kind));
    let lines = kinds.map(|(nth, kind)| {
        line(nth, kind.as_str(), run, |stretch| {
            stretch
                .kinds
                .get(&kind)
                .map_or(f64::NAN, |counts| value(stretch, counts))
        })
    });
    Plot {
        title,
        note,
        unit,
        log,
        lines: lines.collect(),
        limit: None,
    }
}

fn load(run: &Digest) -> Plot {
    let intended = Line {
        dashed: true,
        ..line(1, "intended", run, |stretch| {
            f64::from(stretch.users_intended)
        })
    };
    Plot {
        title: "Load curve",
        note: "Users that the case asks for, and users that were there.",
        unit: Unit::Count,
        log: false,
        lines: vec![
            line(0, "there", run, |stretch| f64::from(stretch.users)),
            intended,
        ],
        limit: None,
    }
}

fn connections(run: &Digest) -> Plot {
    Plot {
        title: "Connections and stale answers per second",
        note: "Opened by users, lost without their asking, and polls that were answered from memory while the store was out of reach.",
        unit: Unit::Count,
        log: false,
        lines: vec![
            line(0, "opened", run, |stretch| {
                per_second(stretch.connects, stretch)
            }),
            line(3, "lost", run, |stretch| {
                per_second(stretch.disconnects, stretch)
            }),
            line(4, "stale", run, |stretch| {
                per_second(stretch.stale, stretch)
            }),
        ],
        limit: None,
    }
}

fn parts(run: &Digest) -> Plot {
    let lines = run.parts.keys().enumerate().flat_map(|(nth, part)| {
        [("p50", 0, true), ("p99", 1, false)].map(|(name, at, dashed)| Line {
            dashed,
            ..line(nth, &format!("{part} {name}"), run, |stretch| {
                stretch
                    .parts
                    .get(part)
                    .map_or(f64::NAN, |us| positive(us[at]))
            })
        })
    });
    Plot {
        title: "Where the time of polls went",
        note: "By part of Server-Timing, as the system measured itself.",
        unit: Unit::Latency,
        log: true,
        lines: lines.collect(),
        limit: None,
    }
}

fn harness(case: &Case, run: &Digest) -> Plot {
    Plot {
        title: "The harness itself",
        note: "How late the latest request left, and the longest turn of the generator's loop. Beyond the dotted line an interval has no verdict.",
        unit: Unit::Latency,
        log: true,
        lines: vec![
            line(0, "behind its schedule", run, |stretch| {
                positive(stretch.behind_us)
            }),
            line(1, "longest turn", run, |stretch| positive(stretch.turn_us)),
        ],
        limit: Some(case.bounds.behind_max.as_secs_f64() * 1e6),
    }
}

fn resources(
    title: &'static str,
    note: &'static str,
    resource: &str,
    unit: Unit,
    run: &Digest,
) -> Plot {
    let of_resource: BTreeMap<&str, &Points<Reading>> = run
        .resources
        .iter()
        .filter(|((_, name), _)| name == resource)
        .map(|((process, _), points)| (process.as_str(), points))
        .collect();
    let mut lines: Vec<Line> = of_resource
        .into_iter()
        .map(|(process, points)| Line {
            name: process.to_owned(),
            colour: 0,
            dashed: false,
            points: points
                .iter()
                .map(|reading| (seconds(reading.at_ms), reading.value))
                .collect(),
        })
        .collect();
    let greatest = |line: &Line| {
        line.points
            .iter()
            .map(|(_, value)| *value)
            .fold(0.0, f64::max)
    };
    lines.sort_by(|a, b| greatest(b).total_cmp(&greatest(a)));
    lines.truncate(LINES_MAX);
    for (nth, line) in lines.iter_mut().enumerate() {
        line.colour = colour(nth);
        line.dashed = nth >= COLOURS;
    }
    Plot {
        title,
        note,
        unit,
        log: false,
        lines,
        limit: None,
    }
}
