//! Of reading, checking, scaling and the load curve.

use super::*;

const SMALL: &str = r#"
name = "small"
question = "Does it?"
seed = 1
duration = "1h"
load = { users = 100 }
"#;

fn small(extra: &str, sets: &[&str]) -> Result<Case, CaseError> {
    let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
    Case::from_text("small.toml", &format!("{SMALL}\n{extra}"), None, &sets)
}

fn set(sets: &[&str]) -> Case {
    small("", sets).expect("a case that can be")
}

/// What is said about the case with these sets.
fn wrong(sets: &[&str]) -> String {
    small("", sets)
        .expect_err("a case that cannot be")
        .to_string()
}

fn hours(hours: f64) -> Duration {
    Duration::from_secs_f64(hours * 3600.0)
}

#[test]
fn every_shipped_case_can_be_run_and_is_named_as_its_file() {
    for shipped in &shipped::CASES {
        let case = Case::read(shipped.name, &[])
            .unwrap_or_else(|error| panic!("{}: {error}", shipped.name));
        assert_eq!(case.name, shipped.name);
        assert!(!case.objectives.is_empty(), "{}", shipped.name);
        assert!(
            shipped.text.starts_with("# "),
            "{} says in its head what it asks",
            shipped.name
        );
    }
}

#[test]
fn ten_thousand_users_emit_48_000_requests_a_second() {
    let case = Case::read("users-10k", &[]).expect("a shipped case");
    let rates = emits_per_second(&case);
    assert_eq!(rates[&Kind::Poll].round(), 8333.0);
    assert_eq!(rates[&Kind::Heartbeat], 40_000.0);
    let line = emits_line(&rates);
    assert!(line.starts_with("emits 48,"), "{line}");
    assert!(line.contains("40,000 heartbeat, 8,333 poll"), "{line}");
}

#[test]
fn rates_are_those_of_the_run_and_of_users_in_the_foreground() {
    let case = set(&[
        "compress=60",
        "behaviour.heartbeat_interval=0s",
        "network.foreground=15m",
        "network.background=5m",
    ]);
    let rates = emits_per_second(&case);
    let polls = 100.0 * 0.75 / (1.2 / 60.0);
    assert!((rates[&Kind::Poll] - polls).abs() < 1e-6, "{rates:?}");
    assert!(!rates.contains_key(&Kind::Heartbeat));
}

#[test]
fn a_server_that_is_not_troves_gets_only_polls() {
    let case = set(&[
        "system.address=http://127.0.0.1:80",
        "system.url_template=/wallet/{player}",
    ]);
    let kinds: Vec<Kind> = emits_per_second(&case).into_keys().collect();
    assert_eq!(kinds, [Kind::Poll]);
}

#[test]
fn the_577th_window_of_a_compressed_event_would_be_too_short() {
    assert_eq!(
        set(&["compress=60"]).window_scaled(),
        Duration::from_secs(5)
    );
    assert_eq!(
        wrong(&["compress=61"]),
        "window: 5m / compress 61 is below 5s, the shortest that a run can have; lower compress or raise window"
    );
}

#[test]
fn times_of_the_event_and_of_the_run_are_each_others_inverse() {
    let case = set(&["duration=48h", "compress=60"]);
    assert_eq!(case.event_lasts(), Duration::from_secs(48 * 60));
    assert_eq!(case.event_time(case.scaled(hours(7.0))), hours(7.0));
    assert_eq!(case.run_lasts(), Duration::from_secs(48 * 60 + 5 + 15));
}

#[test]
fn set_replaces_what_the_file_says() {
    let case = small(
        "[[faults]]\nat = \"1m\"\nwhat = \"stampede\"\n[[faults]]\nat = \"2m\"\nwhat = \"stampede\"",
        &[
            "load.users=7",
            "name=renamed",
            "faults.1.at=3m",
            "system.settings.\"store.durability\"=fsync",
            "behaviour={ poll_interval = \"2s\" }",
            "load.curve={ kind = \"steps\", users = [1, 2] }",
        ],
    )
    .expect("a case");
    assert_eq!((case.load.users, case.name.as_str()), (7, "renamed"));
    assert_eq!(case.faults[1].at, Duration::from_secs(180));
    assert_eq!(
        case.system.settings["store.durability"],
        toml::Value::String("fsync".to_owned())
    );
    assert_eq!(case.behaviour.poll_interval, Duration::from_secs(2));
    assert_eq!(case.load.curve, Curve::Steps { users: vec![1, 2] });
}

#[test]
fn errors_name_the_key() {
    for (sets, begins) in [
        (vec!["load.users=0"], "load.users: 0 is not from 1 to "),
        (vec!["load.user=7"], "load.user: unknown field `user`"),
        (vec!["load.users=many"], "load.users: invalid type"),
        (vec!["duration=soon"], "duration: "),
        (
            vec!["load.curve={ kind = \"steps\", users = [101] }"],
            "load.curve.users: a step of 101 is above load.users, 100",
        ),
        (
            vec!["load.curve={ kind = \"csv\", file = \"no.csv\" }"],
            "load.curve.file: there is no file no.csv",
        ),
        (
            vec!["behaviour.bulk_share=1.5"],
            "behaviour.bulk_share: 1.5 is no share",
        ),
        (
            vec!["system.instances=2"],
            "system.instances: the embedded store belongs to one instance",
        ),
        (
            vec!["system.second_group=true"],
            "system.second_group: the embedded store",
        ),
        (
            vec!["system.address=somewhere"],
            "system.address: somewhere is not http://host:port",
        ),
        (
            vec!["load.tick=1us"],
            "load.tick: 1us is not from 10us to 10ms",
        ),
        (vec!["load.tick=11ms"], "load.tick: "),
        (vec!["load.priority=high"], "load.priority: "),
        (vec!["system.priority.shim=high"], "system.priority.shim: "),
        (
            vec!["system.priority.players=real_time"],
            "system.priority.players: ",
        ),
        (vec!["network.loss=0.5"], "network.loss: "),
        (vec!["network.foreground=5m"], "network.background: "),
        (vec!["warmup=1h"], "warmup: 1h leaves nothing to judge"),
        (vec!["bounds.leak_growth=0"], "bounds.leak_growth: "),
        (
            vec![
                "objectives=[{ request = \"poll\", error_ratio = 0.0, percentile = 100.0, below = \"1s\" }]",
            ],
            "objectives.0.percentile: ",
        ),
        (vec!["load"], "--set load: it has to be key=value"),
        (
            vec!["name.first=x"],
            "--set name.first=x: name is a value, which has no first",
        ),
        (vec!["faults.0.at=1s"], "faults"),
    ] {
        let said = wrong(&sets);
        assert!(said.starts_with(begins), "{sets:?}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn a_fault_that_the_system_cannot_have_is_refused() {
    let refused = |system: &str, fault: &str| {
        let extra = format!("[system]\n{system}\n[[faults]]\nat = \"1m\"\n{fault}");
        small(&extra, &[])
            .expect_err("a case that cannot be")
            .to_string()
    };
    for (system, fault, begins) in [
        (
            "",
            "what = \"kill_redis\"",
            "faults.0.what: there is no Redis",
        ),
        (
            "store = \"redis\"",
            "what = \"failover_redis\"",
            "faults.0.what: only ",
        ),
        (
            "store = \"redis\"",
            "what = \"lose_redis\"\nlasts = \"300ms\"",
            "faults.0.what: only ",
        ),
        (
            "store = \"redis_sentinel\"\nreplicas = 2",
            "what = \"lose_redis\"\nlasts = \"900ms\"",
            "faults.0.lasts: it has to be below 900ms",
        ),
        (
            "shim = false",
            "what = \"kill_shim\"",
            "faults.0.what: there is no shim",
        ),
        (
            "",
            "what = \"switch\"",
            "faults.0.what: there is nothing to switch to",
        ),
        (
            "address = \"http://127.0.0.1:80\"",
            "what = \"kill_instance\"",
            "faults.0.what: the harness can only break",
        ),
        (
            "",
            "what = \"stop_instance\"",
            "faults.0.lasts: it has to be said",
        ),
        (
            "",
            "what = \"kill_instance\"\nlasts = \"1s\"",
            "faults.0.lasts: this is done at once",
        ),
        (
            "store = \"redis\"",
            "what = \"kill_redis\"\naway = \"1s\"",
            "faults.0.away: only a Redis server that has replicas",
        ),
        (
            "store = \"redis_sentinel\"\nreplicas = 1",
            "what = \"kill_redis\"\nevery = \"10s\"\naway = \"10s\"",
            "faults.0.every: ",
        ),
        (
            "",
            "what = \"kill_instance\"\nwhich = 1",
            "faults.0.which: 1 of 1 instances",
        ),
        (
            "",
            "what = \"stampede\"\nallow_p99 = \"1s\"",
            "faults.0.allow_for: allow_failed and allow_p99 need it",
        ),
        (
            "",
            "what = \"stampede\"\nevery = \"100ms\"",
            "faults.0.every: ",
        ),
    ] {
        let said = refused(system, fault);
        assert!(said.starts_with(begins), "{fault}: {said}");
    }
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    let error = Case::from_text("x.toml", "name = \"a\"\nseed = = 1\n", None, &[]);
    let said = error.expect_err("no TOML").to_string();
    assert!(said.starts_with("x.toml, line 2: "), "{said}");
}

#[test]
fn a_ramp_begins_at_its_share_and_ends_with_all() {
    let case = set(&["load.curve={ kind = \"ramp\", from = 0.2, over = \"30m\" }"]);
    let users: Vec<u32> = [0.0, 0.25, 0.5, 1.0]
        .map(|at| curve::users_at(&case, hours(at)))
        .into();
    assert_eq!(users, [20, 60, 100, 100]);
}

#[test]
fn a_step_lasts_until_the_next_one_begins() {
    let case = set(&["load.curve={ kind = \"steps\", users = [10, 50, 100] }"]);
    let at = |seconds| curve::users_at(&case, Duration::from_secs(seconds));
    assert_eq!(
        (at(0), at(1199), at(1200), at(2399), at(2400), at(9999)),
        (10, 10, 50, 50, 100, 100)
    );
}

#[test]
fn a_spike_is_over_in_the_moment_in_which_it_ends() {
    let case = set(&["load.curve={ kind = \"spike\", base = 0.1, at = \"10m\", lasts = \"1m\" }"]);
    let at = |seconds| curve::users_at(&case, Duration::from_secs(seconds));
    assert_eq!((at(599), at(600), at(659), at(660)), (10, 100, 100, 10));
}

#[test]
fn the_real_curve_peaks_at_all_users_and_survives_being_written() {
    let case = set(&[
        "duration=48h",
        "load.curve={ kind = \"csv\", file = \"elb_request_count.csv\" }",
    ]);
    let dir = tempfile::tempdir().expect("a directory");
    case.write(dir.path()).expect("written");
    let again = Case::of_run(dir.path()).expect("read");
    // Two weeks in 48 hours: a reading every 43 s.
    let seconds = || (0..48 * 3600).map(Duration::from_secs);
    let most = seconds().map(|at| curve::users_at(&case, at)).max();
    assert!(most.is_some_and(|most| most >= 99), "{most:?}");
    for at in seconds().step_by(1000) {
        assert_eq!(curve::users_at(&case, at), curve::users_at(&again, at));
    }
}

#[test]
fn a_case_written_into_a_run_is_the_same_case() {
    for shipped in &shipped::CASES {
        let case = Case::read(shipped.name, &[]).expect("a shipped case");
        let dir = tempfile::tempdir().expect("a directory");
        case.write(dir.path()).expect("written");
        let mut again = Case::of_run(dir.path()).expect("read");
        if let Curve::Csv { file, readings } = &mut again.load.curve {
            *file = PathBuf::from("elb_request_count.csv");
            let Curve::Csv {
                readings: first, ..
            } = &case.load.curve
            else {
                panic!("the curve changed its kind");
            };
            assert_eq!(readings, first);
        }
        assert_eq!(case, again, "{}", shipped.name);
    }
}

#[test]
fn readings_that_are_none_are_told_with_their_line() {
    for (text, says) in [
        ("timestamp,value\n", "it has no readings"),
        (
            "timestamp,value\n2014-04-10 00:04:00,94\nlater,5\n",
            "line 3: later is no time",
        ),
        ("0,1\n0,2\n", "line 2 is not later than the one before"),
        ("0,1\n1,-2\n", "line 2: -2 is no reading"),
        (
            "0,0\n1,0\n",
            "it needs two readings, and one of them above 0",
        ),
    ] {
        assert_eq!(curve::Readings::parse(text).expect_err(text), says);
    }
}
