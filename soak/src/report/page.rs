//! The page. Everything that it needs is in it: no request leaves a browser that shows it.

use super::plot::{Band, Plot};
use super::summary::Summary;
use super::{compared, tables, words};
use crate::record::{Finding, Segment};
use crate::verdict::Outcome;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// What the page shows.
pub(super) struct Page<'a> {
    pub(super) case_text: String,
    pub(super) summary: &'a Summary,
    /// The run before it, in a comparison.
    pub(super) before: Option<&'a Summary>,
    pub(super) plots: &'a [Plot],
    pub(super) bands: &'a [Band],
    /// The end of the time axis.
    pub(super) end_s: f64,
}

impl Page<'_> {
    pub(super) fn html(&self) -> String {
        let summary = self.summary;
        let outcome = summary.verdict.outcome.as_str();
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (summary.name) ": " (outcome) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        (self.head())
                        (self.reasons())
                        @if let Some(before) = self.before { (compared::tables(before, summary)) }
                        section {
                            h2 { "Objectives" }
                            p.note { "Over all judged intervals: of the event, after the warm-up, outside the allowances of faults." }
                            (tables::objectives(summary))
                        }
                        @if !summary.faults.is_empty() { (tables::faults(summary)) }
                        (correctness(summary))
                        section.plots {
                            h2 { "Over time" }
                            @for plot in self.plots { (self.plot(plot)) }
                        }
                        (tables::requests(summary))
                        (tables::parts(summary))
                        (tables::resources(summary))
                        (self.how())
                    }
                    footer { "Made by soak " (env!("CARGO_PKG_VERSION")) " from the run's record alone." }
                }
            }
        };
        page.into_string()
    }

    fn head(&self) -> Markup {
        let summary = self.summary;
        let verdict = &summary.verdict;
        let began = summary.segments.first();
        let polls = verdict
            .objectives
            .iter()
            .find(|objective| objective.request == crate::case::Kind::Poll);
        html! {
            header {
                div.title {
                    h1 { (summary.name) }
                    span class={ "badge " (verdict.outcome.as_str()) } { (verdict.outcome.as_str()) }
                }
                p.question { (summary.question) }
                p.note {
                    @if let Some(began) = began { (words::moment(began.wall_ms)) " · " }
                    (words::lasted(summary.recorded_ms)) " recorded"
                    " · seed " (summary.seed)
                    @if summary.segments.len() > 1 { " · resumed " (summary.segments.len() - 1) " times" }
                }
                dl.figures {
                    @if let Some(polls) = polls {
                        (figure(&format!("p{} of polls", polls.percentile), &words::exact(polls.latency_us), &format!("at most {}", words::exact(polls.latency_us_max))))
                        (figure("polls failed", &words::percent(polls.error_ratio), &format!("at most {}", words::percent(polls.error_ratio_max))))
                    }
                    (figure("requests", &words::count(summary.requests()), &rate(summary)))
                    @if let Some(end) = &verdict.end {
                        (figure("finds credited once", &words::count(end.finds_credited), &format!("{} expired, {} unknown", words::count(end.finds_expired), words::count(end.finds_unknown))))
                    }
                    (figure("findings", &words::count(verdict.findings.values().sum()), "contradictions told to clients or in the ledger"))
                    (figure("intervals without a verdict", &words::count(verdict.intervals_invalid), &format!("of {} judged", words::count(verdict.intervals_judged))))
                }
            }
        }
    }

    fn reasons(&self) -> Markup {
        let verdict = &self.summary.verdict;
        html! {
            @if verdict.outcome != Outcome::Pass {
                section class={ "reasons " (verdict.outcome.as_str()) } {
                    h2 { "Why it is no pass" }
                    ul {
                        @for reason in &verdict.reasons {
                            li { span class={ "badge small " (reason.outcome.as_str()) } { (reason.outcome.as_str()) } " " (reason.text) }
                        }
                    }
                }
            }
        }
    }

    fn plot(&self, plot: &Plot) -> Markup {
        html! {
            figure {
                figcaption {
                    h3 { (plot.title) }
                    ul.legend {
                        @for line in &plot.lines {
                            li { span class={ "key" @if line.dashed { " dashed" } } style={ "--key:var(--s" (line.colour) ")" } {} (line.name) }
                        }
                    }
                }
                (PreEscaped(plot.svg(self.end_s, self.bands)))
                @if !plot.note.is_empty() { p.note { (plot.note) } }
            }
        }
    }

    fn how(&self) -> Markup {
        html! {
            section.how {
                h2 { "How it was run" }
                @for segment in &self.summary.segments { (run(segment)) }
                details {
                    summary { "The case as run" }
                    pre { (self.case_text) }
                }
            }
        }
    }
}

fn figure(name: &str, value: &str, more: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } dd.note { (more) } } }
}

fn rate(summary: &Summary) -> String {
    let seconds = (summary.recorded_ms as f64 / 1e3).max(1e-3);
    format!(
        "{} a second in the mean",
        words::short(summary.requests() as f64 / seconds)
    )
}

fn correctness(summary: &Summary) -> Markup {
    let verdict = &summary.verdict;
    html! {
        section {
            h2 { "Every coin" }
            @match &verdict.end {
                None => p { "There was no final check." },
                Some(end) => {
                    dl.figures {
                        (figure("acknowledged", &words::count(end.finds_acknowledged), "finds, by what clients were told"))
                        (figure("credited exactly once", &words::count(end.finds_credited), &format!("{} coins", words::count(end.coins_credited))))
                        (figure("expired lawfully", &words::count(end.finds_expired), "by books and ledger"))
                        (figure("unknown", &words::count(end.finds_unknown), "is no pass"))
                    }
                    p { "Audit (" code { "trove verify" } "): " @if end.verify_holds { span.holds { "holds" } } @else { span.missed { "does not hold" } } " · " (end.verify) }
                    @for what in &end.unchecked { p.missed { "Not checked: " (what) } }
                }
            }
            @if !verdict.findings_quoted.is_empty() {
                h3 { "Findings" }
                p.note { @for (kind, count) in &verdict.findings { (kind) ": " (words::count(*count)) "  " } }
                (findings(&verdict.findings_quoted))
            }
        }
    }
}

fn findings(quoted: &[Finding]) -> Markup {
    html! {
        div.wide { table {
            thead { tr { th { "at" } th { "kind" } th { "player" } th { "what" } } }
            tbody {
                @for finding in quoted {
                    tr { td { (words::clock(finding.at_ms)) } td { (finding.kind) } td { (finding.player) } td.text { (finding.text) } }
                }
            }
        } }
    }
}

fn run(segment: &Segment) -> Markup {
    html! {
        h3 { @if segment.at_ms == 0 { "Begun " } @else { "Resumed at " (words::clock(segment.at_ms)) ", " } (words::moment(segment.wall_ms)) }
        pre.command { (segment.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")) }
        p.note {
            @if !segment.emits_per_second.is_empty() { (crate::case::emits_line(&segment.emits_per_second)) }
        }
        dl.facts {
            @for (name, version) in segment.versions.iter().chain(&segment.machine) { dt { (name) } dd { (version) } }
        }
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "._-/=:+,@%".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
