//! What a run ran with and on: facts that a report must name to be reproduced.

use crate::system::System;
use std::collections::BTreeMap;
use std::process::Command;

/// Versions of `soak`, `trove` and Redis.
pub(super) fn versions(system: &System) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::from([("soak".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    let first_line = |command: &mut Command| -> Option<String> {
        let output = command.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().next().map(str::to_owned)
    };
    versions.extend(
        first_line(&mut system.command(&["--version"]))
            .map(|version| ("trove".to_owned(), version)),
    );
    if system.redis.is_some() {
        let version = first_line(Command::new("redis-server").arg("--version"));
        versions.extend(version.map(|version| ("redis".to_owned(), version)));
    }
    versions
}

/// The kernel, the processor, its cores, the memory.
pub(super) fn machine() -> BTreeMap<String, String> {
    let field = |file: &str, name: &str| -> Option<String> {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':')
            .map(|(_, value)| value.trim().to_owned())
    };
    let uname = rustix::system::uname();
    let kernel = format!(
        "{} {}",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy()
    );
    let cores = std::thread::available_parallelism()
        .ok()
        .map(|cores| cores.to_string());
    let known = [
        ("kernel", Some(kernel)),
        ("processor", field("/proc/cpuinfo", "model name")),
        ("cores", cores),
        ("memory", field("/proc/meminfo", "MemTotal")),
    ];
    let known = known
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.collect()
}
