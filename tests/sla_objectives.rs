//! The verdict on objectives: what `/sla` counts, keeps over a restart, and refuses.

#![allow(clippy::unwrap_used)]

mod http_site;

use http_site::{Ask, Site, series, trove, wait};
use serde_json::Value;

fn sla(site: &Site) -> Value {
    site.ops().send(Ask::get("/sla")).is(200)
}

/// Requests of the first objective in a window.
fn requests(sla: &Value, window: &str) -> u64 {
    let windows = sla["objectives"][0]["windows"].as_array().unwrap();
    let found = windows.iter().find(|one| one["window"] == window).unwrap();
    found["requests"].as_u64().unwrap()
}

#[test]
fn the_verdict_counts_what_the_metrics_count_and_keeps_it_over_a_restart() {
    let mut site = Site::start();
    site.open_h();
    let before = sla(&site);
    assert_eq!(
        (&before["state"], &before["role"]),
        (&"no_data".into(), &"serve".into())
    );
    assert_eq!(before["objectives"][0]["windows"][0]["p99_s"], Value::Null);
    let mut ann = site.player("ann");
    (0..50).for_each(|_| drop(ann.poll()));
    let text = site.ops().send(Ask::get("/metrics")).text();
    let polls = "trove_http_request_duration_seconds_count{route=\"poll\",status_class=\"2xx\"}";
    assert_eq!(series(&text, polls), 50);
    let now = sla(&site);
    for window in ["5m", "30m", "1h", "6h", "3d"] {
        assert_eq!(requests(&now, window), 50, "{window}: {now}");
    }
    let objective = &now["objectives"][0];
    assert_eq!(
        (&now["state"], &objective["name"]),
        (&"ok".into(), &"polls".into())
    );
    assert_eq!(objective["budget"]["errors_left"], 1.0);
    assert_eq!(objective["windows"][2]["holds"], true);
    assert!(objective["reaches_s"].as_u64().unwrap() < 3_600);
    let p99_s = objective["windows"][2]["p99_s"].as_f64().unwrap();
    assert!(p99_s > 0.0 && p99_s < 60.0, "{p99_s}");
    // Nothing is firing, and all of it is said: two budgets, three decisions.
    assert_eq!(objective["alerts"].as_array().unwrap().len(), 6);

    assert!(site.stop().success());
    site.start_again();
    assert_eq!(requests(&sla(&site), "1h"), 50);
    let mut ann = site.player("ann");
    (0..10).for_each(|_| drop(ann.poll()));
    let again = sla(&site);
    assert_eq!((requests(&again, "5m"), requests(&again, "3d")), (60, 60));
    // A histogram starts anew with each process.
    let text = site.ops().send(Ask::get("/metrics")).text();
    assert_eq!(series(&text, polls), 10);
}

#[test]
fn a_damaged_record_is_put_aside_and_a_new_one_begins() {
    let mut site = Site::start();
    site.open_h();
    site.player("ann").poll();
    assert!(site.stop().success());
    let file = site.store().join("sla-serve-site-1.state");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    site.start_again();
    site.logged("the record of objectives cannot be read; a new one begins");
    assert_eq!(requests(&sla(&site), "3d"), 0);
    site.player("ann").poll();
    wait("the poll to be counted", || {
        requests(&sla(&site), "3d") == 1
    });
    assert!(site.store().join("sla-serve-site-1.damaged").exists());
    assert!(site.stop().success());
    site.start_again();
    assert_eq!(requests(&sla(&site), "3d"), 1);
}

#[test]
fn the_record_is_kept_where_the_settings_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut site = Site::with(&[("sla.state_dir", path)]);
    assert!(site.stop().success());
    assert!(dir.path().join("sla-serve-site-1.state").exists());
    assert!(!site.store().join("sla-serve-site-1.state").exists());
}

#[test]
fn an_objective_that_no_bucket_ends_at_is_an_error_at_the_start_that_names_both() {
    let site = Site::stopped(&[("sla.objectives", "polls:poll:99:750:0.005")]);
    let output = trove(&site.env, &["serve", "--store", &site.store_url()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("sla.objectives (latency_ms 750 of polls)"),
        "{said}"
    );
    assert!(
        said.contains("sla.buckets_ms (0.1, 0.25, 0.5, 1, "),
        "{said}"
    );
}

#[test]
fn every_error_of_an_objective_says_what_it_must_be() {
    for (name, value, part) in [
        (
            "sla.objectives",
            "polls:pool:99:1000:0.005",
            "there is no route \"pool\"",
        ),
        (
            "sla.objectives",
            "a:poll:99:1000:0.005,a:find:99:1000:0.005",
            "two objectives called a",
        ),
        ("sla.objectives", "polls", "write NAME:ROUTE:PERCENTILE"),
        ("sla.buckets_ms", "1,2,2", "each larger than the one before"),
        ("sla.buckets_ms", "one", "sla.buckets_ms must be a list"),
        ("sla.slow_ms", "0", "it must be 1 to 3600000"),
    ] {
        let site = Site::stopped(&[(name, value)]);
        let output = trove(&site.env, &["sla", "rules"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{value}: {said}");
        assert!(said.contains(part), "{value}: {said}");
    }
}

#[test]
fn a_settings_file_replaces_the_objectives() {
    let site = Site::stopped(&[]);
    let file = site.dir().join("settings.toml");
    let text = "[[sla.objectives]]\nname = \"confirm\"\nroute = \"find\"\npercentile = 99\nlatency_ms = 3000\nerror_ratio = 0.01\nfailure_ms = 3000\n";
    std::fs::write(&file, text).unwrap();
    let args = ["sla", "rules", "--config", file.to_str().unwrap()];
    let output = trove(&site.env, &args).output().unwrap();
    let rules = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && rules.contains("trove-sla-confirm"),
        "{rules}"
    );
    assert!(!rules.contains("polls"));
}
