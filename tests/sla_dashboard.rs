//! Grafana's dashboard: every metric in its queries, and in the rules, is one that server and shim really expose, with the
//! labels that the queries name; and Prometheus can read every query.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod http_site;
#[allow(dead_code, reason = "it is asked whether the programs are there")]
mod prometheus_server;
mod redis_server;
#[allow(unused_imports, reason = "it starts shims; its client is not needed")]
mod shim_site;

use http_site::{Ask, Site, trove};
use redis_server::Server as Redis;
use serde_json::Value;
use shim_site::Shim;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const DASHBOARD: &str = include_str!("../dashboards/trove.json");

/// What Prometheus adds, or knows by itself. A label `instance` of ours is called `exported_instance` there.
const ADDED: [&str; 3] = ["job", "instance", "le"];

/// The labels of every series that is exposed, by name.
type Exposed = BTreeMap<String, BTreeSet<String>>;

fn take_exposed(exposed: &mut Exposed, text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let known = exposed.entry(name.to_owned()).or_default();
        known.extend(label_names(labels));
    }
}

/// The names before each `=` of `a="x",b="y"}`.
fn label_names(labels: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = Vec::new();
    let mut rest = labels;
    // Values hold no quotes here.
    while let Some((before, after)) = rest.split_once('"') {
        let before = before
            .trim_start_matches(',')
            .trim_end_matches(['=', '~', '!']);
        if !before.is_empty() && before.chars().all(is_name) {
            names.push(before.to_owned());
        }
        rest = after.split_once('"').map_or("", |(_, rest)| rest);
    }
    names
}

/// The names that begin with `trove` in a text, each with the labels that stand in braces behind it.
fn used(text: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("trove") {
        let starts = !rest[..at].chars().next_back().is_some_and(is_name);
        let end = rest[at..]
            .find(|c| !is_name(c))
            .map_or(rest.len(), |n| at + n);
        let name = &rest[at..end];
        let behind = &rest[end..];
        if starts && (name.starts_with("trove_") || name.starts_with("trove:")) {
            let labels = behind
                .strip_prefix('{')
                .and_then(|labels| labels.split('}').next());
            found.push((name.to_owned(), label_names(labels.unwrap_or_default())));
        }
        rest = behind;
    }
    found
}

/// Every query of the dashboard.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match (name.as_str(), value) {
                    ("expr" | "definition", Value::String(query)) => found.push(query.clone()),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

fn rules() -> String {
    let output = trove(&BTreeMap::new(), &["sla", "rules"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_metric_of_dashboard_and_rules_is_one_that_there_is() {
    let embedded = Site::start();
    embedded.open_h();
    let redis = Redis::start();
    let on_redis = Site::stopped(&[]).store_at(&redis.url());
    let mut on_redis = on_redis;
    on_redis.start_again();
    let shim = Shim::start(&[format!("blue={}", embedded.public())]);
    let mut exposed = Exposed::new();
    for text in [
        embedded.ops().send(Ask::get("/metrics")).text(),
        on_redis.ops().send(Ask::get("/metrics")).text(),
        shim.ask_ops("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            .text()
            .to_owned(),
    ] {
        take_exposed(&mut exposed, &text);
    }
    let rules = rules();
    let recorded = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "));
    for name in recorded {
        let labels = ["objective"].map(str::to_owned);
        exposed.insert(name.to_owned(), labels.into());
    }
    let mut texts = Vec::new();
    queries(&serde_json::from_str(DASHBOARD).unwrap(), &mut texts);
    assert!(texts.len() > 40, "{} queries", texts.len());
    let exprs = rules
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("name: trove"));
    texts.extend(exprs.map(str::to_owned));
    let mut checked = 0;
    for text in &texts {
        for (name, labels) in used(text) {
            let known = exposed
                .get(&name)
                .unwrap_or_else(|| panic!("there is no {name}: {text}"));
            for label in labels {
                let is_known = known.contains(&label) || ADDED.contains(&&*label);
                assert!(is_known, "{name} has no label {label}: {text}");
            }
            checked += 1;
        }
    }
    println!("{checked} uses of metrics, {} exposed", exposed.len());
    assert!(checked > 60, "only {checked} uses of metrics");
}

#[test]
fn prometheus_can_read_every_query_of_the_dashboard() {
    if !prometheus_server::is_installed() {
        return;
    }
    let mut texts = Vec::new();
    queries(&serde_json::from_str(DASHBOARD).unwrap(), &mut texts);
    let mut file = String::from("groups:\n  - name: queries\n    rules:\n");
    for (n, query) in texts
        .iter()
        .filter(|query| !query.starts_with("label_values("))
        .enumerate()
    {
        let query = query
            .replace("$__rate_interval", "5m")
            .replace("$job", ".*")
            .replace("$hunt", ".*");
        assert!(!query.contains('$'), "{query}");
        let query = serde_json::to_string(&query).unwrap();
        file += &format!("      - record: query:{n}\n        expr: {query}\n");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("queries.yml"), file).unwrap();
    let output = Command::new("promtool")
        .args(["check", "rules", "queries.yml"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_panel_has_a_title_words_a_unit_and_an_axis_from_zero() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(!panel["title"].as_str().unwrap().is_empty());
        if panel["type"] != "row" {
            assert!(
                panel["description"]
                    .as_str()
                    .is_some_and(|words| !words.is_empty()),
                "{panel}"
            );
            assert!(
                panel["fieldConfig"]["defaults"]["unit"].is_string(),
                "{panel}"
            );
            assert_eq!(panel["fieldConfig"]["defaults"]["min"], 0, "{panel}");
        }
    }
}
