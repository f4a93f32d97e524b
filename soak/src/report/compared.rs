//! Two runs side by side.

use super::summary::Summary;
use super::words;
use maud::{Markup, html};

/// A difference smaller than this share is none worth a colour.
const CHANGE_MIN: f64 = 0.05;

/// Tables of before and after.
pub(super) fn tables(before: &Summary, after: &Summary) -> Markup {
    html! {
        section {
            h2 { "Before and after" }
            p.note {
                "Before: " (before.name) ", seed " (before.seed) @if let Some(began) = before.segments.first() { ", " (words::moment(began.wall_ms)) } ": " (before.verdict.outcome.as_str())
                ". After: this run. Dashed lines in the plots are the run before. Two single runs on a busy machine prove little; look for what is far apart."
            }
            @if before.question != after.question { p.missed { "The two ran different cases: they do not answer the same question." } }
            div.wide { table {
                thead { tr { th { "what" } th.n { "before" } th.n { "after" } th.n { "change" } } }
                tbody {
                    @for row in rows(before, after) {
                        tr {
                            td { (row.what) }
                            td.n { (row.text(row.before)) }
                            td.n { (row.text(row.after)) }
                            td.n { (change(&row)) }
                        }
                    }
                }
            } }
        }
    }
}

/// How the figures of a row are written.
#[derive(Clone, Copy)]
enum Figure {
    Latency,
    Share,
    Count,
    Bytes,
    Percent,
}

struct Row {
    what: String,
    before: f64,
    after: f64,
    figure: Figure,
}

impl Row {
    fn text(&self, value: f64) -> String {
        match self.figure {
            Figure::Latency => words::latency(value),
            Figure::Share => words::percent(value),
            Figure::Count => words::short(value),
            Figure::Bytes => words::bytes(value),
            Figure::Percent => format!("{value:.0} %"),
        }
    }
}

fn change(row: &Row) -> Markup {
    let (before, after) = (row.before, row.after);
    if before == 0.0 && after == 0.0 {
        return html! { "–" };
    }
    if before == 0.0 {
        return html! { span.missed { "new" } };
    }
    let share = after / before - 1.0;
    let text = format!("{:+.0} %", share * 100.0);
    // Less is better everywhere but in what is only a count.
    match row.figure {
        Figure::Count => html! { (text) },
        _ if share > CHANGE_MIN => html! { span.missed { (text) } },
        _ if share < -CHANGE_MIN => html! { span.holds { (text) } },
        _ => html! { (text) },
    }
}

fn rows(before: &Summary, after: &Summary) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |what: String, before: f64, after: f64, figure: Figure| {
        rows.push(Row {
            what,
            before,
            after,
            figure,
        });
    };
    for (kind, now) in &after.kinds {
        let Some(then) = before.kinds.get(kind) else {
            continue;
        };
        let name = kind.as_str();
        let percentiles = [
            ("p50", then.latency.p50_us, now.latency.p50_us),
            ("p99", then.latency.p99_us, now.latency.p99_us),
            ("p99.9", then.latency.p999_us, now.latency.p999_us),
            ("greatest", then.latency.max_us, now.latency.max_us),
        ];
        for (percentile, then, now) in percentiles {
            row(
                format!("{name} {percentile}"),
                then as f64,
                now as f64,
                Figure::Latency,
            );
        }
        let share =
            |failed: u64, answered: u64| failed as f64 / ((failed + answered) as f64).max(1.0);
        let (failed_then, failed_now) = (then.failed_in_all(), now.failed_in_all());
        row(
            format!("{name} failed"),
            share(failed_then, then.answered),
            share(failed_now, now.answered),
            Figure::Share,
        );
        row(
            format!("{name} answered"),
            then.answered as f64,
            now.answered as f64,
            Figure::Count,
        );
    }
    for (part, now) in &after.parts {
        if let Some(then) = before.parts.get(part) {
            row(
                format!("part {part} p99"),
                then.p99_us as f64,
                now.p99_us as f64,
                Figure::Latency,
            );
        }
    }
    for (process, now) in &after.resources {
        let Some(then) = before.resources.get(process) else {
            continue;
        };
        for (resource, title, figure) in [
            ("cpu_percent", "CPU", Figure::Percent),
            ("rss_bytes", "memory", Figure::Bytes),
        ] {
            if let (Some(then), Some(now)) = (then.get(resource), now.get(resource)) {
                row(
                    format!("{process} {title}, mean"),
                    then.mean,
                    now.mean,
                    figure,
                );
            }
        }
    }
    rows
}
