//! How `trove serve` and `trove shim` are started: settings by the environment, addresses by flags.

use super::System;
use super::http::Client;
use super::processes::Spec;
use crate::case::Case;
use crate::refusal::Refusal;
use crate::resources::metrics::Counters;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

/// The groups of instances: the first is live at the beginning.
pub const GROUPS: [&str; 2] = ["blue", "green"];
/// The shim's name in the record.
pub const SHIM: &str = "shim";
/// How long the harness waits for an answer of a process.
pub const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The names of a group's instances: `serve-0` … of the first group, and those after them of the second.
#[must_use]
pub fn instances(case: &Case, group: &str) -> Vec<String> {
    let nth = GROUPS.iter().position(|name| *name == group).unwrap_or(0);
    let first = u32::try_from(nth).unwrap_or(0) * case.system.instances;
    let numbers = first..first + case.system.instances;
    numbers.map(|number| format!("serve-{number}")).collect()
}

/// The groups that a case has.
#[must_use]
pub fn groups(case: &Case) -> &'static [&'static str] {
    &GROUPS[..if case.system.second_group { 2 } else { 1 }]
}

impl System {
    /// Starts one group of instances and waits until each is ready.
    pub(crate) fn start_group(&self, group: &str) -> Result<(), Refusal> {
        let names = instances(&self.case, group);
        for name in &names {
            self.start_instance(name)?;
        }
        names
            .iter()
            .try_for_each(|name| self.wait_ready(name).map(drop))
    }

    fn start_instance(&self, name: &str) -> Result<(), Refusal> {
        if self.processes.has(name) {
            return self.processes.start_again(name);
        }
        let (address, ops) = self.addresses(name)?;
        let args = [
            "serve",
            "--store",
            &self.store_url,
            "--listen",
            &address.to_string(),
            "--ops-listen",
            &ops.to_string(),
            "--instance-id",
            name,
        ];
        self.processes.start(self.spec(name, &args, address, ops))
    }

    pub(super) fn start_shim(&self) -> Result<(), Refusal> {
        let (address, ops) = self.addresses(SHIM)?;
        let mut upstreams = Vec::new();
        let live = self.live_group();
        let mut groups = groups(&self.case).to_vec();
        // The first one named is live.
        groups.sort_by_key(|group| *group != live);
        for group in groups {
            let mut at = Vec::new();
            for name in instances(&self.case, group) {
                at.push(self.addresses(&name)?.0.to_string());
            }
            upstreams.push(format!("{group}={}", at.join(",")));
        }
        let (listen, ops_listen) = (address.to_string(), ops.to_string());
        let mut args = vec![
            "shim",
            "--listen",
            &listen,
            "--ops-listen",
            &ops_listen,
            "--instance-id",
            SHIM,
        ];
        for upstream in &upstreams {
            args.extend(["--upstream", upstream]);
        }
        self.processes.start(self.spec(SHIM, &args, address, ops))?;
        self.wait_ready(SHIM)?;
        instances(&self.case, &live)
            .iter()
            .try_for_each(|name| self.wait_used(name))
    }

    fn spec(&self, name: &str, args: &[&str], address: SocketAddr, ops: SocketAddr) -> Spec {
        let mut env = self.keys();
        let instances = self.case.system.instances * 2;
        env.insert("TROVE_STORE__INSTANCES".into(), instances.to_string());
        // The shim keeps no store, and checks all settings as one: those of a store that is replicated fit no other.
        env.insert("TROVE_STORE__URL".into(), self.store_url.clone());
        env.extend(settings(&self.case));
        Spec {
            name: name.to_owned(),
            program: self.trove.clone().into(),
            args: args.iter().map(OsString::from).collect(),
            env,
            log: self.dir.join("logs").join(format!("{name}.log")),
            address,
            ops: Some(ops),
        }
    }

    fn addresses(&self, name: &str) -> Result<(SocketAddr, SocketAddr), Refusal> {
        let mut state = self.state();
        Ok((
            state.address(name, None)?,
            state.address(&format!("{name}-ops"), None)?,
        ))
    }

    /// Waits until a process says that it is ready, and the shim, where there is one, passes requests on to it.
    ///
    /// # Errors
    /// When it ends first, or takes too long.
    pub fn wait_ready(&self, name: &str) -> Result<Duration, Refusal> {
        let client = Client::new(ANSWER_WAIT);
        let address = self.processes.one(name).map(|one| one.address);
        let address =
            address.ok_or_else(|| Refusal::unreachable(format!("{name} does not run")))?;
        self.processes
            .wait(name, "ready", || client.is_ready(address))
    }

    /// Waits until the shim uses an instance; at once where there is no shim.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn wait_used(&self, name: &str) -> Result<(), Refusal> {
        let (Some(shim), Some(instance)) = (self.processes.one(SHIM), self.processes.one(name))
        else {
            return Ok(());
        };
        let (client, at) = (Client::new(ANSWER_WAIT), instance.address.to_string());
        let uses = || {
            let counters = Counters::read(&client, shim.ops?).ok()?;
            Some(counters.sum("trove_shim_instance_usable", &[("instance", &at)]))
        };
        self.processes
            .wait(SHIM, &format!("using {name}"), || uses() == Some(1.0))
            .map(drop)
    }

    /// Kills or ends a server or the shim by `signal`, starts it again and waits until it serves: how long that took, since
    /// the signal.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart(
        &self,
        name: &str,
        signal: rustix::process::Signal,
    ) -> Result<Duration, Refusal> {
        let began = std::time::Instant::now();
        self.processes.end(name, signal)?;
        if name == SHIM {
            // It begins with the group that is live now.
            self.processes
                .set_args(name, |args| self.live_first(args))?;
        }
        self.processes.start_again(name)?;
        self.wait_ready(name)?;
        if name == SHIM {
            let live = instances(&self.case, &self.live_group());
            live.iter().try_for_each(|name| self.wait_used(name))?;
        } else {
            self.wait_used(name)?;
        }
        Ok(began.elapsed())
    }

    /// Switches the shim to another group, by the command for it, and waits until it passes requests there.
    ///
    /// # Errors
    /// When the command says no.
    pub(crate) fn make_live(&self, group: &str) -> Result<(), Refusal> {
        let shim = self.processes.one(SHIM).and_then(|shim| shim.ops);
        let ops = shim.ok_or_else(|| Refusal::unreachable("there is no shim"))?;
        let output = self.trove_says(&["shim", "switch", group, "--ops", &ops.to_string()])?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Refusal::unreachable(format!(
                "trove shim switch: {}",
                said.trim()
            )));
        }
        self.state().set_live(group)?;
        instances(&self.case, group)
            .iter()
            .try_for_each(|name| self.wait_used(name))
    }

    /// The upstreams of a shim's arguments in an order in which the live group is the first.
    fn live_first(&self, args: &mut [OsString]) {
        let live = format!("{}=", self.live_group());
        let is_group = |arg: &OsString| {
            GROUPS
                .iter()
                .any(|group| arg.to_string_lossy().starts_with(&format!("{group}=")))
        };
        let is_live = |arg: &OsString| arg.to_string_lossy().starts_with(&live);
        let first = args.iter().position(is_group);
        let wanted = args.iter().position(is_live);
        if let (Some(first), Some(wanted)) = (first, wanted) {
            args.swap(first, wanted);
        }
    }
}

/// The case's settings as the environment gives them.
fn settings(case: &Case) -> BTreeMap<String, String> {
    let shown = |value: &toml::Value| match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| {
                    item.as_str()
                        .map_or_else(|| item.to_string(), str::to_owned)
                })
                .collect();
            items.join(",")
        }
        other => other.to_string(),
    };
    let all = case.system.settings.iter();
    all.map(|(key, value)| {
        let name = format!("TROVE_{}", key.replace('.', "__").to_uppercase());
        (name, shown(value))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_the_environment_that_trove_reads() {
        let text = r#"
            name = "n"
            question = "q"
            seed = 1
            duration = "10s"
            [load]
            users = 1
            [system.settings]
            "poll.jitter" = 0.5
            "server.link_peers" = ["127.0.0.1", "::1"]
            "log.level" = "warn"
        "#;
        let case: Case = toml::from_str(text).expect("a case");
        let expected = [
            ("TROVE_LOG__LEVEL", "warn"),
            ("TROVE_POLL__JITTER", "0.5"),
            ("TROVE_SERVER__LINK_PEERS", "127.0.0.1,::1"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings(&case), BTreeMap::from(expected));
    }
}
