//! The rules of `trove sla rules`: as promtool reads them, as it reckons with them, and in a Prometheus that scrapes a real
//! server and shim.

#![allow(clippy::unwrap_used)]

mod http_site;
mod prometheus_server;
mod redis_server;

use http_site::{Ask, Site, series, trove, wait};
use prometheus_server::{Prometheus, is_installed};
use redis_server::Server as Redis;
use std::path::Path;
use std::process::Command;

const OBJECTIVES: &str = "polls:poll:99:1000:0.005,finds:find:99.9:250:0.01:3000";

fn rules(objectives: &str) -> String {
    let env = [("TROVE_SLA__OBJECTIVES".to_owned(), objectives.to_owned())].into();
    let output = trove(&env, &["sla", "rules"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn promtool(dir: &Path, args: &[&str]) {
    let output = Command::new("promtool")
        .args(args)
        .current_dir(dir)
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{} {}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn promtool_finds_nothing_wrong_with_the_rules() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for objectives in [OBJECTIVES, "polls:poll:99:1000:0.005", ""] {
        std::fs::write(dir.path().join("rules.yml"), rules(objectives)).unwrap();
        promtool(dir.path(), &["check", "rules", "rules.yml"]);
    }
}

/// A case for promtool: what each series gains a minute, and which alerts fire after so long.
struct Case {
    what: &'static str,
    /// Good and late answers, and errors, a minute; for how many minutes.
    steps: &'static [(u64, u64, u64, u64)],
    minutes: u64,
    /// Alerts of errors and of latency that fire: pages and tickets.
    errors: (u64, u64),
    latency: (u64, u64),
}

const CASES: [Case; 6] = [
    Case {
        what: "all is well",
        steps: &[(6_000, 3, 5, 120)],
        minutes: 110,
        errors: (0, 0),
        latency: (0, 0),
    },
    Case {
        what: "one error in a quiet night",
        steps: &[(1, 0, 0, 300), (0, 0, 1, 1), (1, 0, 0, 10)],
        minutes: 303,
        errors: (0, 0),
        latency: (0, 0),
    },
    Case {
        what: "every tenth poll fails",
        steps: &[(6_000, 0, 0, 10), (5_400, 0, 600, 120)],
        minutes: 120,
        errors: (2, 1),
        latency: (0, 0),
    },
    Case {
        what: "it was bad, and is over",
        steps: &[(5_400, 0, 600, 60), (6_000, 0, 0, 400)],
        minutes: 100,
        errors: (0, 1),
        latency: (0, 0),
    },
    Case {
        what: "every fifth poll is late",
        steps: &[(4_800, 1_200, 0, 120)],
        minutes: 110,
        errors: (0, 0),
        latency: (2, 1),
    },
    Case {
        what: "a little more fails than may, for hours",
        steps: &[(5_964, 0, 36, 700)],
        minutes: 690,
        errors: (0, 1),
        latency: (0, 0),
    },
];

/// The values of a series in promtool's notation: each step goes on where the one before ended.
fn values(steps: &[(u64, u64, u64, u64)], of: impl Fn(&(u64, u64, u64, u64)) -> u64) -> String {
    let mut total = 0;
    let parts = steps.iter().map(|step| {
        let (gain, minutes) = (of(step), step.3);
        let part = format!("{}+{gain}x{}", total + gain, minutes - 1);
        total += gain * minutes;
        part
    });
    format!("0 {}", parts.collect::<Vec<_>>().join(" "))
}

#[test]
fn the_rules_fire_when_the_budget_burns_and_only_then() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.yml"), rules(OBJECTIVES)).unwrap();
    let name = "trove_http_request_duration_seconds";
    let well = r#"job="serve",route="poll",status_class="2xx""#;
    let failed = r#"job="serve",route="poll",status_class="5xx""#;
    for case in CASES {
        let Case { what, steps, .. } = case;
        let in_time = values(steps, |(good, ..)| *good);
        let answered = values(steps, |(good, late, ..)| good + late);
        let errors = values(steps, |(_, _, errors, _)| *errors);
        let mut test = String::from(
            "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n",
        );
        for (labels, values) in [
            (format!("{name}_count{{{well}}}"), &answered),
            (format!("{name}_bucket{{{well},le=\"1\"}}"), &in_time),
            (format!("{name}_count{{{failed}}}"), &errors),
            (format!("{name}_bucket{{{failed},le=\"1\"}}"), &errors),
        ] {
            test += &format!("      - series: '{labels}'\n        values: '{values}'\n");
        }
        test += "    promql_expr_test:\n";
        for (alert, (pages, tickets)) in [
            ("TroveErrorsBurnBudget", case.errors),
            ("TroveLatencyBurnsBudget", case.latency),
        ] {
            for (severity, count) in [("page", pages), ("ticket", tickets)] {
                let expr = format!(
                    "count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\",severity=\"{severity}\",objective=\"polls\",job=\"serve\"}}) or vector(0)"
                );
                test += &format!(
                    "      - expr: '{expr}'\n        eval_time: {}m\n        exp_samples: [{{labels: '{{}}', value: {count}}}]\n",
                    case.minutes
                );
            }
        }
        println!("{what}");
        std::fs::write(dir.path().join("test.yml"), test).unwrap();
        promtool(dir.path(), &["test", "rules", "test.yml"]);
    }
}

#[test]
fn a_prometheus_and_the_server_itself_come_to_the_same_verdict() {
    if !is_installed() {
        return;
    }
    let mut redis = Redis::start();
    let settings = [("server.instance_id", "one"), ("sla.slow_ms", "60000")];
    let mut site = Site::stopped(&settings).store_at(&redis.url());
    site.start_again();
    site.open_h();
    let prometheus = Prometheus::start(&[("serve", site.ops().address)], &rules(OBJECTIVES), &[]);
    let mut ann = site.player("ann");
    (0..100).for_each(|_| drop(ann.poll()));
    let polls = "trove_http_request_duration_seconds_count{job=\"serve\",route=\"poll\",status_class=\"2xx\"}";
    wait("Prometheus to have seen the polls", || {
        prometheus.value(polls) == Some(100.0)
    });
    assert!(prometheus.firing().is_empty());
    let sla = |site: &Site| site.ops().send(Ask::get("/sla")).is(200);
    assert_eq!(sla(&site)["state"], "ok");
    // Players who are in no memory cannot be answered now.
    redis.kill();
    for n in 0..40 {
        let mut player = site.player(&format!("new-{n}"));
        assert_eq!(player.send(player.poll_ask()).status, 503);
    }
    wait("the alert to fire", || {
        let firing = prometheus.firing();
        firing.iter().any(|alert| {
            let labels = &alert["labels"];
            labels["alertname"] == "TroveErrorsBurnBudget"
                && labels["severity"] == "page"
                && labels["objective"] == "polls"
                && labels["job"] == "serve"
        })
    });
    let now = sla(&site);
    assert_eq!(now["state"], "page", "{now}");
    let text = site.ops().send(Ask::get("/metrics")).text();
    let errors = "trove_http_request_duration_seconds_count{route=\"poll\",status_class=\"5xx\"}";
    assert_eq!(series(&text, errors), 40);
    assert_eq!(now["objectives"][0]["windows"][0]["failed"], 40);
    let ratio = prometheus.value("trove:sla_errors:ratio_rate5m{objective=\"polls\"}");
    let own = now["objectives"][0]["windows"][0]["error_ratio"]
        .as_f64()
        .unwrap();
    assert!(
        ratio.is_some_and(|ratio| ratio > 0.072 && own > 0.072),
        "{ratio:?} {own}"
    );
}

#[test]
fn a_prometheus_that_takes_native_histograms_gets_them() {
    if !is_installed() {
        return;
    }
    let site = Site::start();
    site.open_h();
    let features = ["--enable-feature=native-histograms"];
    let prometheus = Prometheus::start(&[("serve", site.ops().address)], "groups: []\n", &features);
    let mut ann = site.player("ann");
    (0..100).for_each(|_| drop(ann.poll()));
    let of = "trove_http_request_duration_seconds{route=\"poll\",status_class=\"2xx\"}";
    wait("Prometheus to have seen the polls", || {
        prometheus.value(&format!("histogram_count({of})")) == Some(100.0)
    });
    let p99_s = prometheus.value(&format!("histogram_quantile(0.99, {of})"));
    assert!(
        p99_s.is_some_and(|p99_s| p99_s > 0.0 && p99_s < 60.0),
        "{p99_s:?}"
    );
    // One that was never observed is a histogram too.
    let never = "trove_http_request_duration_seconds{route=\"export\",status_class=\"5xx\"}";
    assert_eq!(
        prometheus.value(&format!("histogram_count({never})")),
        Some(0.0)
    );
}
