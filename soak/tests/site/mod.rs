//! What the harness's tests share: cases, the `trove` that they test, a look at processes.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each test binary uses its part.

pub mod harness;
pub mod liar;

use soak::case::Case;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longer than anything takes that is not stuck.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The `trove` beside this test's own directory; built if it is missing.
pub fn trove() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let own = std::env::current_exe().unwrap();
            let path = own.parent().unwrap().parent().unwrap().join("trove");
            if !path.is_file() {
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                let status = Command::new(cargo).args(["build", "-p", "trove"]).status();
                assert!(status.unwrap().success());
            }
            assert!(path.is_file(), "there is no {}", path.display());
            path
        })
        .clone()
}

/// A case: few users who do much, with what `more` says of it (tables and faults).
pub fn case(name: &str, duration: &str, more: &str) -> Case {
    let text = format!(
        r#"
        name = "{name}"
        question = "Does a short run of it hold?"
        seed = 5
        duration = "{duration}"
        warmup = "1s"
        settle = "12s"
        interval = "2s"
        window = "5s"
        [load]
        users = 40
        arrive_over = "500ms"
        [behaviour]
        poll_interval = "300ms"
        heartbeat_interval = "100ms"
        find_interval = "2s"
        history_interval = "5s"
        catalogue_interval = "5s"
        timeout = "5s"
        abandon_share = 0.02
        find_retry_share = 0.1
        {more}
        [[objectives]]
        request = "poll"
        error_ratio = 0.005
        percentile = 99.0
        below = "2s"
        [bounds]
        behind_max = "2s"
        reconcile_ratio = 0.05
        invalid_share_max = 0.0
        leak_slope_per_hour = 100.0
        leak_growth = 3.0
        "#
    );
    let mut case: Case = toml::from_str(&text).unwrap();
    case.system.trove = trove();
    case
}

/// Waits for a condition.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs.
pub fn runs(pid: u32) -> bool {
    // A zombie has ended.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// All processes whose command line or environment names a directory.
pub fn processes_of(dir: &Path) -> Vec<u32> {
    let wanted = dir.to_str().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(wanted) && runs(*pid)
        })
        .filter(|pid| *pid != std::process::id())
        .collect()
}
