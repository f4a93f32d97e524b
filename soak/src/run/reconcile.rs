//! Holds the harness's counts of an interval against those of the system. A harness that sends what it does not count, or
//! counts what it has not sent, must not be believed.
//!
//! The system is asked a moment after an interval's end, so the two never agree to the last request. What may lie between
//! them is known, though: requests under way at the interval's two ends, requests that failed (the system
//! may have counted them or not), requests that came between the interval's end and the question, and attempts that the
//! shim repeated. Beyond that the counts may differ by [`Bounds::reconcile_ratio`](crate::case::Bounds).
//!
//! A process that ended takes its last counts with it. Then the interval is reconciled by those that remain (the shim's alone
//! for servers, the servers' for the shim), and says so; where nobody remains, what is left must not be *more* than was sent.

use crate::case::Kind;
use crate::record::{Interval, KindCounts};
use crate::resources::Told;
use crate::system::servers::SHIM;
use std::collections::BTreeMap;

/// So many requests may differ whatever the ratio.
const SLACK: f64 = 3.0;
/// A question that came later than this share of the interval cannot say what happened in it.
const LATE_SHARE_MAX: f64 = 0.5;

/// So many times an interval's mean may the rate be at its edges: users arrive, a fault begins or ends.
const RATE_MAX: f64 = 2.0;

/// What the names of servers begin with.
const SERVERS: &str = "serve";
const REQUESTS: &str = "trove_http_request_duration_seconds_count";

/// One comparison: kinds of requests, and the series in which the system counts them.
struct Pair {
    what: &'static str,
    kinds: &'static [Kind],
    series: &'static str,
    routes: &'static [&'static str],
}

const OF_SHIM: [Pair; 3] = [
    Pair {
        what: "heartbeats",
        kinds: &[Kind::Heartbeat],
        series: "trove_shim_heartbeats_total",
        routes: &[""],
    },
    Pair {
        what: "polls",
        kinds: &[Kind::Poll],
        series: REQUESTS,
        routes: &["poll"],
    },
    Pair {
        what: "other requests",
        kinds: &[Kind::Find, Kind::BulkFind, Kind::History, Kind::Catalogue],
        series: REQUESTS,
        routes: &["other", "cached"],
    },
];

const OF_SERVERS: [Pair; 4] = [
    Pair {
        what: "polls",
        kinds: &[Kind::Poll],
        series: REQUESTS,
        routes: &["poll"],
    },
    Pair {
        what: "finds",
        kinds: &[Kind::Find],
        series: REQUESTS,
        routes: &["find"],
    },
    Pair {
        what: "bulk finds",
        kinds: &[Kind::BulkFind],
        series: REQUESTS,
        routes: &["bulk_finds"],
    },
    Pair {
        what: "histories",
        kinds: &[Kind::History],
        series: REQUESTS,
        routes: &["history"],
    },
];

/// What the system counts of these, when nothing stands in front of the servers that could answer instead.
const OF_SERVERS_ALONE: [Pair; 2] = [
    Pair {
        what: "heartbeats",
        kinds: &[Kind::Heartbeat],
        series: REQUESTS,
        routes: &["heartbeat"],
    },
    Pair {
        what: "catalogues",
        kinds: &[Kind::Catalogue],
        series: REQUESTS,
        routes: &["catalogue"],
    },
];

/// What was known at the end of the interval before.
pub struct Reconciler {
    ratio: f64,
    told: Vec<Told>,
    /// Seconds from that end to each process's answer.
    asked_after_s: BTreeMap<String, f64>,
    under_way: BTreeMap<Kind, u64>,
    finds: u64,
}

/// What came of it.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// By `process/series`, what was counted since the question before.
    pub counted: BTreeMap<String, f64>,
    /// What could not be compared, and why that is no fault of the harness.
    pub notes: Vec<String>,
    /// What does not agree.
    pub invalid: Vec<String>,
}

/// What lies at an interval's edges, as a group of processes is concerned.
struct Edges {
    length_s: f64,
    /// How long after the end of the interval before it, and of this one, the system was asked.
    asked_before_s: f64,
    asked_now_s: f64,
    /// Requests that the shim sent twice.
    retries: f64,
}

impl Reconciler {
    /// From what processes tell before anything is sent.
    #[must_use]
    pub fn new(ratio: f64, told: Vec<Told>) -> Self {
        Self {
            ratio,
            told,
            asked_after_s: BTreeMap::new(),
            under_way: BTreeMap::new(),
            finds: 0,
        }
    }

    /// Compares an interval with what processes tell now. `asked_after_s` says how long after the interval's end each was
    /// asked; `is_broken` whether a fault was being done in it, so that a process may have taken its counts with it.
    pub fn reconcile(
        &mut self,
        interval: &Interval,
        told: Vec<Told>,
        asked_after_s: BTreeMap<String, f64>,
        is_broken: bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let under_way = self.under_way_after(interval);
        if told.is_empty() && self.told.is_empty() {
            outcome
                .notes
                .push("nobody was asked what the system counted".into());
            return outcome;
        }
        let latest = |asked: &BTreeMap<String, f64>, group: &str| {
            let of_group = asked.iter().filter(|(name, _)| name.starts_with(group));
            of_group.map(|(_, after)| *after).fold(0.0, f64::max)
        };
        let length_s = interval.to_ms.saturating_sub(interval.from_ms) as f64 / 1000.0;
        let retries = self.since(&told, SHIM, "trove_shim_retries_total", &[""]);
        let edges = |group: &str| Edges {
            length_s,
            asked_before_s: latest(&self.asked_after_s, group),
            asked_now_s: latest(&asked_after_s, group),
            retries,
        };
        let late = latest(&asked_after_s, "");
        if late > length_s * LATE_SHARE_MAX {
            outcome.invalid.push(format!(
                "the system's counts were read {late:.2} s after the interval's end: too late to compare"
            ));
        }
        let has_shim = told.iter().chain(&self.told).any(|one| one.process == SHIM);
        let shim_is_whole = has_shim && !self.is_partial(&told, SHIM);
        let servers_are_whole = !self.is_partial(&told, SERVERS);
        let mut compare = |group: &str, pairs: &[Pair], is_whole: bool| {
            let edges = edges(group);
            for pair in pairs {
                let count = self.since(&told, group, pair.series, pair.routes);
                outcome
                    .counted
                    .insert(format!("{group}/{}", pair.what), count);
                let wrong = self.compare(interval, pair, (count, is_whole), &edges, &under_way);
                let text = |bounds| format!("{}: {group} counted {count}, {bounds}", pair.what);
                outcome.invalid.extend(wrong.map(text));
            }
        };
        if has_shim {
            compare(SHIM, &OF_SHIM, shim_is_whole);
        } else {
            compare(SERVERS, &OF_SERVERS_ALONE, servers_are_whole);
        }
        compare(SERVERS, &OF_SERVERS, servers_are_whole);
        self.credits(interval, &told, servers_are_whole, &mut outcome);
        if has_shim && !shim_is_whole {
            let note = "reconciled without the shim, whose last counts are unknown";
            outcome.notes.push(note.into());
        }
        if !servers_are_whole {
            let by = if shim_is_whole {
                "by the shim alone"
            } else {
                "only in that nothing was counted that was not sent"
            };
            outcome.notes.push(format!(
                "reconciled {by}: a server's last counts are unknown"
            ));
        }
        if !shim_is_whole && !servers_are_whole && !is_broken {
            let text = "nobody said all that was counted, and nothing was done to the system";
            outcome.invalid.push(text.into());
        }
        self.told = told;
        self.asked_after_s = asked_after_s;
        self.under_way = under_way;
        self.finds = interval.finds;
        outcome
    }

    /// Whether what a group counted of a kind lies outside what it can have: in words. Of a group of which something is
    /// unknown only the upper bound holds.
    fn compare(
        &self,
        interval: &Interval,
        pair: &Pair,
        (count, is_whole): (f64, bool),
        edges: &Edges,
        under_way: &BTreeMap<Kind, u64>,
    ) -> Option<String> {
        let counts = pair
            .kinds
            .iter()
            .filter_map(|kind| interval.kinds.get(kind));
        let (mut sent, mut failures) = (0, 0);
        for counts in counts {
            sent += counts.sent;
            failures += failed(counts);
        }
        let of = |known: &BTreeMap<Kind, u64>| -> f64 {
            pair.kinds
                .iter()
                .filter_map(|kind| known.get(kind))
                .sum::<u64>() as f64
        };
        let (sent, failures) = (sent as f64, failures as f64);
        let rate = if edges.length_s > 0.0 {
            RATE_MAX * sent / edges.length_s
        } else {
            0.0
        };
        let slack = SLACK + sent * self.ratio + failures;
        let least = sent - of(under_way) - rate * edges.asked_before_s - slack;
        let most = sent + of(&self.under_way) + rate * edges.asked_now_s + edges.retries + slack;
        // What was asked for that late had most of this interval in it, and who knows how much.
        let is_known = edges.asked_before_s <= edges.length_s * LATE_SHARE_MAX;
        let is_wrong = (is_whole && is_known && count < least) || count > most;
        is_wrong.then(|| format!("{sent} were sent: it must lie between {least:.0} and {most:.0}"))
    }

    /// Credits are told with the answer that shows them, or a later one if that was lost or the store was slow: between the
    /// two there can be no more than the finds of this interval and of the one before.
    fn credits(&self, interval: &Interval, told: &[Told], is_whole: bool, outcome: &mut Outcome) {
        let counted = self.since(told, SERVERS, "trove_credits_total", &[""]);
        outcome.counted.insert("serve/credits".into(), counted);
        let shown = interval.credits as f64;
        let late = (interval.finds + self.finds) as f64 + SLACK + shown * self.ratio;
        if (is_whole && shown > counted + late) || counted > shown + late {
            outcome.invalid.push(format!(
                "credits: {shown} shown to users, servers counted {counted}, with {} finds in two intervals",
                interval.finds + self.finds
            ));
        }
    }

    /// By kind, what was sent and has not been answered yet.
    fn under_way_after(&self, interval: &Interval) -> BTreeMap<Kind, u64> {
        let mut under_way = self.under_way.clone();
        for (kind, counts) in &interval.kinds {
            let ended = counts.answered + counts.failed.values().sum::<u64>();
            let open = under_way.entry(*kind).or_default();
            *open = (*open + counts.sent).saturating_sub(ended);
        }
        under_way
    }

    /// What the same incarnation of a process told before.
    fn before(&self, now: &Told) -> Option<&Told> {
        let is_same =
            |told: &&Told| told.process == now.process && told.incarnation == now.incarnation;
        self.told.iter().find(is_same)
    }

    /// What the processes whose names begin with `group` have counted since they were last asked, as far as it is known.
    fn since(&self, told: &[Told], group: &str, series: &str, routes: &[&str]) -> f64 {
        let sum = |told: &Told| -> f64 {
            let counters = told.counters.as_ref();
            counters.map_or(0.0, |counters| {
                let of = |route: &&str| match *route {
                    "" => counters.sum(series, &[]),
                    route => counters.sum(series, &[("route", route)]),
                };
                routes.iter().map(of).sum()
            })
        };
        let of_group = told.iter().filter(|told| told.process.starts_with(group));
        of_group
            .map(|now| {
                let before = self.before(now);
                // A count that spans more than this interval says nothing of it.
                let is_known = before.is_none_or(|before| before.counters.is_some());
                if now.counters.is_some() && is_known {
                    sum(now) - before.map_or(0.0, sum)
                } else {
                    0.0
                }
            })
            .sum()
    }

    /// Whether some of them have counts that are unknown: they did not answer, now or before, or ended since.
    fn is_partial(&self, told: &[Told], group: &str) -> bool {
        let is_of = |name: &str| name.starts_with(group);
        let is_silent = |one: &Told| is_of(&one.process) && one.counters.is_none();
        let has_ended = |before: &Told| {
            is_of(&before.process)
                && !told.iter().any(|now| {
                    now.process == before.process && now.incarnation == before.incarnation
                })
        };
        told.iter().any(is_silent) || self.told.iter().any(|one| is_silent(one) || has_ended(one))
    }
}

/// Requests that the system may have counted or not: a server behind the shim does not know what the shim refused, and
/// nobody knows of what was broken off.
fn failed(counts: &KindCounts) -> u64 {
    counts.failed.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::metrics::Counters;
    use std::time::Instant;

    fn tells(process: &str, incarnation: u32, text: Option<&str>) -> Told {
        Told {
            process: process.into(),
            incarnation,
            at: Instant::now(),
            counters: text.map(Counters::parse),
        }
    }

    fn shim(polls: u64, heartbeats: u64) -> Told {
        let text = format!(
            "{REQUESTS}{{route=\"poll\"}} {polls}\ntrove_shim_heartbeats_total {heartbeats}\n"
        );
        tells(SHIM, 0, Some(&text))
    }

    fn server(incarnation: u32, polls: u64) -> Told {
        let text = format!("{REQUESTS}{{route=\"poll\"}} {polls}\n");
        tells("serve-0", incarnation, Some(&text))
    }

    fn interval(polls: u64, answered: u64) -> Interval {
        let counts = |sent, answered| KindCounts {
            sent,
            answered,
            ..KindCounts::default()
        };
        Interval {
            to_ms: 5_000,
            kinds: BTreeMap::from([
                (Kind::Poll, counts(polls, answered)),
                (Kind::Heartbeat, counts(4 * polls, 4 * polls)),
            ]),
            ..Interval::default()
        }
    }

    fn told(
        reconciler: &mut Reconciler,
        of: &Interval,
        told: Vec<Told>,
        is_broken: bool,
    ) -> Outcome {
        reconciler.reconcile(of, told, BTreeMap::new(), is_broken)
    }

    #[test]
    fn counts_that_agree_but_for_requests_under_way_are_reconciled() {
        let mut reconciler = Reconciler::new(0.0, vec![shim(7, 0), server(0, 7)]);
        let first = told(
            &mut reconciler,
            &interval(1000, 900),
            vec![shim(927, 4000), server(0, 917)],
            false,
        );
        assert_eq!(first.invalid, Vec::<String>::new());
        assert_eq!(first.counted["shim/polls"], 920.0);
        let second = told(
            &mut reconciler,
            &interval(1000, 1100),
            vec![shim(2007, 8000), server(0, 2007)],
            false,
        );
        assert_eq!(second.invalid, Vec::<String>::new());
    }

    #[test]
    fn requests_that_the_harness_does_not_know_of_are_noticed() {
        let mut reconciler = Reconciler::new(0.01, vec![shim(0, 0), server(0, 0)]);
        let outcome = told(
            &mut reconciler,
            &interval(1000, 1000),
            vec![shim(1000, 5000), server(0, 1000)],
            false,
        );
        assert_eq!(outcome.invalid.len(), 1, "{outcome:?}");
        assert!(outcome.invalid[0].starts_with("heartbeats: shim counted 5000, 4000 were sent"));
    }

    #[test]
    fn requests_that_never_arrived_are_noticed() {
        let mut reconciler = Reconciler::new(0.01, vec![shim(0, 0), server(0, 0)]);
        let outcome = told(
            &mut reconciler,
            &interval(1000, 1000),
            vec![shim(900, 4000), server(0, 900)],
            false,
        );
        assert_eq!(outcome.invalid.len(), 2, "{outcome:?}");
    }

    #[test]
    fn a_killed_servers_interval_is_reconciled_by_the_shim_alone() {
        let mut reconciler = Reconciler::new(0.0, vec![shim(0, 0), server(0, 500)]);
        let now = vec![shim(1000, 4000), server(1, 300)];
        let outcome = told(&mut reconciler, &interval(1000, 1000), now, true);
        assert_eq!(outcome.invalid, Vec::<String>::new());
        assert!(
            outcome.notes[0].contains("by the shim alone"),
            "{outcome:?}"
        );
        // Its counts are known again from then on.
        let next = vec![shim(2000, 8000), server(1, 1290)];
        let outcome = told(&mut reconciler, &interval(1000, 1000), next, false);
        assert_eq!(outcome.invalid.len(), 1, "ten are missing: {outcome:?}");
    }

    #[test]
    fn a_server_that_was_silent_is_not_held_to_what_it_counted_meanwhile() {
        let silent = || tells("serve-0", 0, None);
        let mut reconciler = Reconciler::new(0.0, vec![shim(0, 0), server(0, 0)]);
        let outcome = told(
            &mut reconciler,
            &interval(1000, 1000),
            vec![shim(1000, 4000), silent()],
            true,
        );
        assert_eq!(outcome.invalid, Vec::<String>::new());
        let now = vec![shim(2000, 8000), server(0, 2000)];
        let outcome = told(&mut reconciler, &interval(1000, 1000), now, false);
        assert_eq!(outcome.invalid, Vec::<String>::new());
        assert_eq!(outcome.notes.len(), 1);
    }

    #[test]
    fn silence_without_a_fault_has_no_verdict() {
        let mut reconciler = Reconciler::new(0.0, vec![server(0, 0)]);
        let outcome = told(
            &mut reconciler,
            &interval(0, 0),
            vec![tells("serve-0", 0, None)],
            false,
        );
        assert_eq!(outcome.invalid.len(), 1, "{outcome:?}");
    }

    #[test]
    fn counts_read_too_late_have_no_verdict() {
        let mut reconciler = Reconciler::new(0.0, vec![shim(0, 0)]);
        let late = BTreeMap::from([(SHIM.to_owned(), 3.0)]);
        let outcome = reconciler.reconcile(&interval(0, 0), vec![shim(0, 0)], late, false);
        assert_eq!(outcome.invalid.len(), 1, "{outcome:?}");
    }
}
