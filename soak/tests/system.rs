//! The system that the harness starts: real `trove`, real Redis; and that nothing of it is left behind.
#![allow(clippy::unwrap_used)]

mod site;

use rustix::process::Signal;
use soak::case::{Case, Priorities};
use soak::faults::schedule::schedule;
use soak::faults::{Crowd, Event, Injector};
use soak::record::FaultMark;
use soak::resources::Sampler;
use soak::run::clock::Clock;
use soak::system::System;
use soak::system::http::Client;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn start(case: &Case, dir: &Path) -> System {
    System::start(&Arc::new(case.clone()), dir, 0, 1).unwrap()
}

fn answers(target: SocketAddr) -> bool {
    Client::new(Duration::from_secs(5)).is_ready(target)
}

#[derive(Default, Clone)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Crowd for Heard {
    fn stampede(&self) {
        self.0.lock().unwrap().push("stampede".into());
    }
    fn double_load(&self, lasts: Duration) {
        self.0.lock().unwrap().push(format!("double for {lasts:?}"));
    }
    fn retarget(&self, targets: Vec<SocketAddr>) {
        self.0.lock().unwrap().push(format!("to {}", targets.len()));
    }
}

/// Does the faults of a case and gives their marks.
fn done(system: &Arc<System>, case: &Case, crowd: &Heard) -> Vec<FaultMark> {
    let (sender, events) = sync_channel(64);
    let dues = schedule(case);
    let count = dues.len();
    let clock = Clock::starting_at(Duration::ZERO);
    let case = Arc::new(case.clone());
    let _injector = Injector::start(
        system.clone(),
        case,
        dues,
        Box::new(crowd.clone()),
        clock,
        sender,
    )
    .unwrap();
    let mut marks = Vec::new();
    while marks.len() < count {
        match events.recv_timeout(site::PATIENCE).unwrap() {
            Event::Begins(_) => {}
            Event::Done(mark) => marks.push(mark),
            Event::NotDone(why) => panic!("{why}"),
        }
    }
    marks
}

fn fault(what: &str, more: &str) -> String {
    format!("[[faults]]\nat = \"0s\"\nwhat = \"{what}\"\nallow_for = \"1s\"\n{more}\n")
}

#[test]
fn an_embedded_system_serves_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let system = start(&site::case("embedded", "10s", ""), dir.path());
    let targets = system.targets();
    assert_eq!(targets.len(), 1);
    assert!(answers(targets[0]));
    assert!(system.hunt().starts_with("soak-"));
    let running = system.processes.running();
    let names: Vec<&str> = running.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["serve-0", "shim"]);
    let told = Sampler::new(0).tell(&system, &[]);
    let samples = Sampler::new(0).sample(&system, &told, 7);
    assert_eq!(samples.len(), 3, "{samples:?}");
    assert!(samples.iter().all(|one| one.values["rss_bytes"] > 0.0));
    assert!(samples.iter().any(|one| one.values.contains_key("wallets")));
    drop(system);
    assert!(running.iter().all(|one| !site::runs(one.pid)));
}

#[test]
fn processes_have_the_priority_that_the_record_tells() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[system]\npriority = { shim = \"real_time\" }\n";
    let system = start(&site::case("priority", "10s", text), dir.path());
    let told = system.priorities();
    let [(what, how)] = told.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!(what, "shim's priority");
    // SCHED_RR is 2 and SCHED_OTHER 0 (sched.h); where real time is not allowed, nothing is held up by that.
    let expected = if how == "real time" { "2" } else { "0" };
    assert!(
        expected == "2" || how.starts_with("normal, for real time was refused: "),
        "{how}"
    );
    let policy = |name: &str| {
        let pid = system.processes.one(name).unwrap().pid;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // After the name, which may hold anything, comes the third field; the policy is the 41st (proc_pid_stat(5)).
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(41 - 3).unwrap().to_owned()
    };
    assert_eq!((&*policy("shim"), &*policy("serve-0")), (expected, "0"));
    system.processes.end("shim", Signal::KILL).unwrap();
    system.processes.start_again("shim").unwrap();
    let is_up = || answers(system.targets()[0]);
    system.processes.wait("shim", "answering", is_up).unwrap();
    assert_eq!(policy("shim"), expected);
}

#[test]
fn keys_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let mut case = site::case("keys", "10s", "");
    case.system.shim = false;
    let _system = start(&case, dir.path());
    let state = std::fs::metadata(dir.path().join("system/state.json")).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o600);
}

#[test]
fn instances_and_shim_are_killed_stopped_restarted_and_switched() {
    let dir = tempfile::tempdir().unwrap();
    let faults: String = [
        fault("kill_instance", ""),
        fault("restart_instance", "which = 1"),
        fault("stop_instance", "lasts = \"300ms\""),
        fault("kill_shim", ""),
        fault("switch", ""),
        fault("restart_shim", ""),
        fault("kill_instance", ""),
        fault("switch", ""),
        fault("kill_redis", ""),
        fault("stop_redis", "lasts = \"200ms\""),
        fault("stampede", ""),
        fault("double_load", "lasts = \"10ms\""),
    ]
    .concat();
    let system = "[system]\nstore = \"redis\"\ninstances = 2\nsecond_group = true\n";
    let case = site::case("servers", "10s", &format!("{system}{faults}"));
    let system = Arc::new(start(&case, dir.path()));
    let crowd = Heard::default();
    let marks = done(&system, &case, &crowd);
    assert_eq!(marks[0].target, "serve-0");
    assert!(
        marks[0].note.starts_with("killed; serves again after"),
        "{marks:?}"
    );
    assert_eq!(marks[1].target, "serve-1");
    assert_eq!(marks[4].target, "blue to green");
    assert_eq!(marks[6].target, "serve-2", "the live group's");
    assert_eq!(marks[7].target, "green to blue");
    assert_eq!(*crowd.0.lock().unwrap(), ["stampede", "double for 10ms"]);
    assert!(answers(system.targets()[0]));
    let samples = Sampler::new(0).sample(&system, &[], 0);
    let redis = samples.iter().find(|one| one.process == "redis-0").unwrap();
    assert_eq!(redis.incarnation, 1);
    assert!(
        redis.values["keys"] > 0.0 && redis.values.contains_key("feed_entries"),
        "{redis:?}"
    );
    assert!(system.processes.ended_by_themselves().is_empty());
}

#[test]
fn a_process_that_ends_by_itself_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let system = start(&site::case("ended", "10s", ""), dir.path());
    let pid = system.processes.one("serve-0").unwrap().pid;
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let mut ended = Vec::new();
    site::until("it is noticed", || {
        ended.extend(system.processes.ended_by_themselves());
        !ended.is_empty()
    });
    assert_eq!(ended[0].0, "serve-0");
    assert!(ended[0].1.contains("signal: 9"), "{ended:?}");
}

#[test]
fn a_sentinel_primary_that_is_killed_or_told_to_is_followed_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let system = "[system]\nstore = \"redis_sentinel\"\nreplicas = 1\n";
    let faults = [
        fault("kill_redis", "away = \"3s\""),
        fault("cut_redis", "lasts = \"300ms\""),
        fault("slow_redis", "lasts = \"300ms\""),
        fault("failover_redis", ""),
        fault("lose_redis", "lasts = \"300ms\""),
    ]
    .concat();
    let case = site::case("sentinel", "10s", &format!("{system}{faults}"));
    let system = Arc::new(start(&case, dir.path()));
    let marks = done(&system, &case, &Heard::default());
    assert_eq!(marks[0].target, "redis-0");
    assert!(
        marks[0].note.contains("redis-1 is the primary after"),
        "{marks:?}"
    );
    assert_eq!(marks[3].target, "redis-1");
    assert!(
        marks[3].note.contains("redis-0 is the primary after"),
        "{marks:?}"
    );
    assert_eq!(marks[4].target, "redis-0");
    assert!(
        marks[4].note.contains("redis-1 is the primary after"),
        "{marks:?}"
    );
    assert!(answers(system.targets()[0]));
}

#[test]
fn a_cluster_of_three_fails_over() {
    let dir = tempfile::tempdir().unwrap();
    // Only the store: whether `trove` speaks to clusters is not this test's question.
    let text = "[system]\nstore = \"redis_cluster\"\nreplicas = 1\n";
    let case = site::case("cluster", "10s", text);
    let mut state_dir = dir.path().join("system");
    std::fs::create_dir_all(state_dir.join("logs")).unwrap();
    state_dir = state_dir.canonicalize().unwrap();
    let mut state = soak::system::state::State::open(&state_dir).unwrap();
    let processes = soak::system::processes::Processes::new(0, Priorities::default());
    let nodes = soak::system::redis_nodes::RedisNodes::start(
        &case.system,
        &state_dir,
        None,
        &mut state,
        &processes,
        None,
    )
    .unwrap();
    assert_eq!(nodes.primaries(), [0, 1, 2]);
    assert!((3..6).all(|nth| nodes.follows(nth)));
    assert!(nodes.url().starts_with("redis+cluster://127.0.0.1:"));
    processes.end("redis-1", Signal::KILL).unwrap();
    site::until("a replica to take over", || {
        nodes.primaries().iter().any(|nth| *nth > 2)
    });
    processes.end_all();
}

#[test]
fn users_behind_a_cut_network_wait_and_a_full_disk_is_emptied() {
    if !rustix::process::geteuid().is_root() {
        // Mounting needs root; that it is refused without is said at the start of such a run.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let faults = [
        fault("fill_disk", "lasts = \"100ms\""),
        fault("cut_clients", "lasts = \"100ms\""),
    ]
    .concat();
    let case = site::case("disk", "10s", &faults);
    let system = Arc::new(start(&case, dir.path()));
    let marks = done(&system, &case, &Heard::default());
    assert!(marks[0].note.starts_with("filled with"), "{marks:?}");
    assert!(marks[1].note.starts_with("nothing passed"), "{marks:?}");
    assert!(answers(system.targets()[0]));
    drop(system);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()));
}

#[test]
fn a_case_that_no_system_can_be_is_refused() {
    let refused = |more: &str| {
        let dir = tempfile::tempdir().unwrap();
        let case = site::case("refused", "10s", more);
        let refusal = System::start(&Arc::new(case), dir.path(), 0, 1)
            .err()
            .unwrap();
        assert_eq!(refusal.exit_status(), 2, "{refusal}");
        refusal.to_string()
    };
    assert!(refused("[system]\ninstances = 2\n").contains("system.instances must be 1"));
    assert!(refused(&fault("kill_redis", "")).contains("system.store on Redis"));
    assert!(refused(&fault("switch", "")).contains("second_group"));
    let there = "[system]\naddress = \"http://127.0.0.1:1\"\n";
    assert!(refused(&format!("{there}{}", fault("kill_instance", ""))).contains("has not started"));
}
