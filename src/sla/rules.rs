//! The objectives as recording and alerting rules for Prometheus: the same windows, burn rates and floors as in
//! [`super::burn`], so that a Prometheus and `/sla` come to the same verdict.

use super::burn::{RULES, Rule, Severity, WINDOWS};
use super::objective::Objective;
use std::fmt::{self, Write};

/// What every expression is about.
const COUNT: &str = "trove_http_request_duration_seconds_count";
const BUCKET: &str = "trove_http_request_duration_seconds_bucket";

const HEADER: &str = "\
# Rules of Trove's objectives, made by `trove sla rules` from the settings in [sla].
#
# Server and shim measure the same series: scrape them as two jobs, and each is judged by itself. The rules read the
# classic buckets; where Prometheus is told to take native histograms, tell it to take the classic ones too
# (scrape_classic_histograms, called always_scrape_classic_histograms from version 3.0 on).
";

/// One of an objective's two budgets.
struct Budget<'a> {
    /// As names of series have it.
    name: &'static str,
    objective: &'a Objective,
    allowed: f64,
    alert: &'static str,
    summary: String,
}

impl Budget<'_> {
    /// The bad requests of each job: `function` is `rate` or `increase`.
    fn bad(&self, function: &str, window: &str) -> String {
        let route = &self.objective.route;
        let sum = |series: &str, labels: &str| {
            format!(r#"sum by (job) ({function}({series}{{route="{route}"{labels}}}[{window}]))"#)
        };
        if self.name == "late" {
            let le = le(self.objective.latency_ms);
            return format!("{} - {}", sum(COUNT, ""), sum(BUCKET, &le));
        }
        let errors = sum(COUNT, r#",status_class="5xx""#);
        if self.objective.failure_ms <= 0.0 {
            return errors;
        }
        let well = r#",status_class!="5xx""#;
        let le = le(self.objective.failure_ms);
        format!(
            "{errors} + {} - {}",
            sum(COUNT, well),
            sum(BUCKET, &format!("{well}{le}"))
        )
    }

    fn all(&self, function: &str, window: &str) -> String {
        let route = &self.objective.route;
        format!(r#"sum by (job) ({function}({COUNT}{{route="{route}"}}[{window}]))"#)
    }

    fn ratio_series(&self, window: &str) -> String {
        format!("trove:sla_{}:ratio_rate{window}", self.name)
    }

    fn increase_series(&self, window: &str) -> String {
        format!("trove:sla_{}:increase{window}", self.name)
    }

    fn write_records(&self, out: &mut String) -> fmt::Result {
        let objective = &self.objective.name;
        for window in WINDOWS {
            let window = window.name;
            write!(
                out,
                "      - record: {}\n        labels: {{objective: \"{objective}\"}}\n        expr: ({}) / {}\n",
                self.ratio_series(window),
                self.bad("rate", window),
                self.all("rate", window)
            )?;
        }
        for rule in RULES {
            let window = WINDOWS[rule.short].name;
            write!(
                out,
                "      - record: {}\n        labels: {{objective: \"{objective}\"}}\n        expr: {}\n",
                self.increase_series(window),
                self.bad("increase", window)
            )?;
        }
        Ok(())
    }

    fn write_alert(&self, rule: &Rule, failures_min: u64, out: &mut String) -> fmt::Result {
        let objective = &self.objective.name;
        let of = format!(r#"{{objective="{objective}"}}"#);
        let (long, short) = (WINDOWS[rule.long].name, WINDOWS[rule.short].name);
        let limit = format!("{} * {}", rule.burn_rate, self.allowed);
        write!(
            out,
            "      - alert: {alert}\n        expr: >-\n          {long_ratio}{of} > {limit}\n          and {short_ratio}{of} > {limit}\n          and {increase}{of} >= {failures_min}\n        labels: {{severity: \"{severity}\", objective: \"{objective}\", window: \"{long}\"}}\n        annotations:\n          summary: \"{summary}\"\n          description: \"{{{{ $labels.job }}}}: the budget is being spent over {rate} times too fast, for {long} and still in the last {short}\"\n",
            alert = self.alert,
            long_ratio = self.ratio_series(long),
            short_ratio = self.ratio_series(short),
            increase = self.increase_series(short),
            severity = match rule.severity {
                Severity::Page => "page",
                Severity::Ticket => "ticket",
            },
            summary = self.summary,
            rate = rule.burn_rate,
        )
    }
}

/// The part of a selector that names the bucket which ends at so many milliseconds. Prometheus writes whole seconds as `1`
/// when it reads text, and as `1.0` when it reads protobuf.
fn le(ms: f64) -> String {
    let seconds = ms / 1_000.0;
    if seconds.fract() == 0.0 {
        format!(r#",le=~"{seconds}([.]0)?""#)
    } else {
        format!(r#",le="{seconds}""#)
    }
}

fn budgets(objective: &Objective) -> [Budget<'_>; 2] {
    let Objective {
        name,
        percentile,
        latency_ms,
        error_ratio,
        failure_ms,
        ..
    } = objective;
    let seconds = latency_ms / 1_000.0;
    let slow = if *failure_ms > 0.0 {
        format!(" or took over {} s", failure_ms / 1_000.0)
    } else {
        String::new()
    };
    [
        Budget {
            name: "errors",
            objective,
            allowed: *error_ratio,
            alert: "TroveErrorsBurnBudget",
            summary: format!(
                "{name}: more requests fail{slow} than the {} % that may",
                // 0.7 % is 0.7000000000000001 % otherwise.
                (error_ratio * 1e8).round() / 1e6
            ),
        },
        Budget {
            name: "late",
            objective,
            allowed: objective.late_ratio(),
            alert: "TroveLatencyBurnsBudget",
            summary: format!(
                "{name}: fewer than {percentile} % of requests take up to {seconds} s"
            ),
        },
    ]
}

/// The rules of all objectives, as YAML.
#[must_use]
pub fn rules(objectives: &[Objective], failures_min: u64) -> String {
    let mut out = String::from(HEADER);
    // Writing to a String cannot fail.
    let _ = write_rules(objectives, failures_min, &mut out);
    out
}

fn write_rules(objectives: &[Objective], failures_min: u64, out: &mut String) -> fmt::Result {
    if objectives.is_empty() {
        return out.write_str("groups: []\n");
    }
    out.write_str("groups:\n")?;
    for objective in objectives {
        let name = &objective.name;
        write!(out, "  - name: trove-sla-{name}\n    rules:\n")?;
        for budget in budgets(objective) {
            budget.write_records(out)?;
        }
        for budget in budgets(objective) {
            for rule in &RULES {
                budget.write_alert(rule, failures_min, out)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_named_as_prometheus_names_it() {
        assert_eq!(le(1_000.0), r#",le=~"1([.]0)?""#);
        assert_eq!(le(250.0), r#",le="0.25""#);
        assert_eq!(le(0.1), r#",le="0.0001""#);
    }

    #[test]
    fn every_objective_has_a_group_and_every_rule_an_alert() {
        let objectives: Vec<Objective> =
            ["polls:poll:99:1000:0.005", "finds:find:99.9:250:0.007:3000"]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect();
        let rules = rules(&objectives, 10);
        assert_eq!(rules.matches("  - name: ").count(), 2);
        assert_eq!(rules.matches("- alert: ").count(), 2 * 2 * RULES.len());
        assert!(rules.contains("> 14.4 * 0.005\n"));
        assert!(rules.contains("> 6 * 0.001\n"), "{rules}");
        assert!(rules.contains("fail or took over 3 s than the 0.7 % that may"));
        assert!(rules.contains(r#"status_class!="5xx",le=~"3([.]0)?""#));
        assert_eq!(super::rules(&[], 10).lines().last(), Some("groups: []"));
    }
}
