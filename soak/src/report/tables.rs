//! The tables of the page.

use super::summary::{Percentiles, Summary};
use super::{plot::Unit, words};
use crate::verdict::{AllowanceVerdict, LeakVerdict};
use maud::{Markup, html};
use std::collections::BTreeMap;

pub(super) fn holds(holds: bool) -> Markup {
    html! { @if holds { span.holds { "holds" } } @else { span.missed { "does not hold" } } }
}

pub(super) fn objectives(summary: &Summary) -> Markup {
    let objectives = &summary.verdict.objectives;
    html! {
        @if objectives.is_empty() { p { "The case has none; it is judged for correctness alone." } }
        @else {
            div.wide { table {
                thead { tr { th { "request" } th.n { "judged" } th.n { "failed" } th.n { "share" } th.n { "at most" } th.n { "percentile" } th.n { "latency" } th.n { "at most" } th.n { "greatest" } th { "" } } }
                tbody {
                    @for objective in objectives {
                        tr {
                            td { (objective.request.as_str()) }
                            td.n { (words::count(objective.requests)) }
                            td.n { (words::count(objective.failed)) }
                            td.n { (words::percent(objective.error_ratio)) }
                            td.n { (words::percent(objective.error_ratio_max)) }
                            td.n { "p" (objective.percentile) }
                            td.n { (words::exact(objective.latency_us)) }
                            td.n { (words::exact(objective.latency_us_max)) }
                            td.n { (words::exact(objective.slowest_us)) }
                            td { (holds(objective.holds)) }
                        }
                    }
                }
            } }
        }
    }
}

pub(super) fn faults(summary: &Summary) -> Markup {
    html! {
        section {
            h2 { "What was broken" }
            p.note { "The numbers are those in the plots. While an allowance counts, it counts instead of the objectives." }
            div.wide { table {
                thead { tr { th.n { "" } th { "at" } th { "fault" } th { "of" } th.n { "for" } th { "seen" } } }
                tbody {
                    @for (nth, fault) in summary.faults.iter().enumerate() {
                        tr {
                            td.n { (nth + 1) }
                            td { (words::clock(fault.at_ms)) }
                            td { (fault.what.as_str()) }
                            td { (fault.target) }
                            td.n { (words::lasted(fault.until_ms.saturating_sub(fault.at_ms))) }
                            td.text { (fault.note) }
                        }
                    }
                }
            } }
            @if !summary.verdict.allowances.is_empty() {
                h3 { "Allowances" }
                div.wide { table {
                    thead { tr { th { "from" } th { "to" } th { "faults" } th { "failed" } th.n { "p99 of polls" } th.n { "at most" } th { "" } } }
                    tbody { @for allowance in &summary.verdict.allowances { (allowed(allowance)) } }
                } }
            }
        }
    }
}

fn allowed(allowance: &AllowanceVerdict) -> Markup {
    html! {
        tr {
            td { (words::clock(allowance.from_ms)) }
            td { (words::clock(allowance.to_ms)) }
            td.text { (allowance.faults.join(", ")) }
            td {
                @if allowance.failed.is_empty() { "none" }
                @for (kind, failed) in &allowance.failed {
                    div { (kind.as_str()) " " (words::count(failed.failed)) " of at most " (words::count(failed.allowed)) }
                }
            }
            td.n { (words::exact(allowance.p99_us)) }
            td.n { @if allowance.p99_us_max > 0 { (words::exact(allowance.p99_us_max)) } @else { "–" } }
            td { (holds(allowance.holds)) }
        }
    }
}

pub(super) fn requests(summary: &Summary) -> Markup {
    html! {
        section {
            h2 { "Requests" }
            p.note { "Over the whole run, with warm-up, faults and settling. Latency counts from the time at which a request was due, service from when it was sent." }
            div.wide { table {
                thead { tr { th { "request" } th.n { "intended" } th.n { "sent" } th.n { "answered" } th { "failed" } th { "dropped" } th.n { "p50" } th.n { "p90" } th.n { "p99" } th.n { "p99.9" } th.n { "greatest" } th.n { "service p99" } } }
                tbody {
                    @for (kind, counts) in &summary.kinds {
                        tr {
                            td { (kind.as_str()) }
                            td.n { (words::count(counts.intended)) }
                            td.n { (words::count(counts.sent)) }
                            td.n { (words::count(counts.answered)) }
                            td { (reasons(&counts.failed)) }
                            td { (reasons(&counts.dropped)) }
                            (percentiles(&counts.latency))
                            td.n { (words::exact(counts.service.p99_us)) }
                        }
                    }
                }
            } }
        }
    }
}

fn reasons(reasons: &BTreeMap<String, u64>) -> Markup {
    html! {
        @if reasons.values().all(|count| *count == 0) { "–" }
        @for (reason, count) in reasons { @if *count > 0 { div { (reason) " " (words::count(*count)) } } }
    }
}

fn percentiles(of: &Percentiles) -> Markup {
    let us = [of.p50_us, of.p90_us, of.p99_us, of.p999_us, of.max_us];
    html! { @for us in us { td.n { @if of.count > 0 { (words::exact(us)) } @else { "–" } } } }
}

pub(super) fn parts(summary: &Summary) -> Markup {
    html! {
        @if !summary.parts.is_empty() {
            section {
                h2 { "Where the time of polls went" }
                div.wide { table {
                    thead { tr { th { "part" } th.n { "answers" } th.n { "p50" } th.n { "p90" } th.n { "p99" } th.n { "p99.9" } th.n { "greatest" } } }
                    tbody {
                        @for (part, of) in &summary.parts {
                            tr { td { (part) } td.n { (words::count(of.count)) } (percentiles(of)) }
                        }
                    }
                } }
            }
        }
    }
}

/// The resources of the table, with their units.
const SHOWN: [(&str, &str, Unit); 6] = [
    ("cpu_percent", "CPU, mean / most", Unit::Percent),
    ("rss_bytes", "memory, first / last / most", Unit::Bytes),
    ("used_memory_bytes", "Redis's memory", Unit::Bytes),
    ("fds", "descriptors", Unit::Count),
    ("threads", "threads", Unit::Count),
    ("connections", "connections", Unit::Count),
];

pub(super) fn resources(summary: &Summary) -> Markup {
    html! {
        @if !summary.resources.is_empty() {
            section {
                h2 { "Resources" }
                div.wide { table {
                    thead { tr { th { "process" } @for (_, title, _) in SHOWN { th.n { (title) } } } }
                    tbody {
                        @for (process, of) in &summary.resources {
                            tr {
                                td { (process) }
                                @for (name, _, unit) in SHOWN {
                                    td.n {
                                        @match of.get(name) {
                                            None => "–",
                                            Some(of) if unit == Unit::Percent => { (words::value(of.mean, unit)) " / " (words::value(of.max, unit)) },
                                            Some(of) => { (words::value(of.first, unit)) " / " (words::value(of.last, unit)) " / " (words::value(of.max, unit)) },
                                        }
                                    }
                                }
                            }
                        }
                    }
                } }
                (leaks(&summary.verdict.leaks))
            }
        }
    }
}

fn leaks(leaks: &[LeakVerdict]) -> Markup {
    html! {
        h3 { "Leaks" }
        @if leaks.is_empty() {
            p { "Nothing was observed for long enough, under about the usual load, to be judged." }
        } @else {
            p.note { "A resource leaks if both its growth an hour and its growth in all are over their bounds." }
            div.wide { table {
                thead { tr { th { "process" } th { "resource" } th.n { "observed for" } th.n { "level" } th.n { "an hour" } th.n { "in all" } th { "" } } }
                tbody {
                    @for leak in leaks {
                        tr {
                            td { (leak.process) @if leak.incarnation > 0 { ", life " (leak.incarnation + 1) } }
                            td { (leak.resource) }
                            td.n { (words::lasted(leak.observed_ms)) }
                            td.n { (words::value(leak.level, if leak.resource.ends_with("bytes") { Unit::Bytes } else { Unit::Count })) }
                            td.n { (format!("{:+.1} %", leak.slope_per_hour * 100.0)) }
                            td.n { (format!("{:+.1} %", leak.growth * 100.0)) }
                            td { @if leak.leaks { span.missed { "leaks" } } @else { span.holds { "steady" } } }
                        }
                    }
                }
            } }
        }
    }
}
