//! Faults of instances and of the shim.

use super::{Scene, Seen, seen};
use crate::refusal::Refusal;
use crate::system::servers::{SHIM, groups, instances};
use rustix::process::Signal;
use std::time::{Duration, Instant};

impl Scene {
    /// An instance of the live group.
    fn instance(&self, which: u32) -> Result<String, Refusal> {
        let live = instances(&self.case, &self.system.live_group());
        let nth = which as usize % live.len().max(1);
        let name = live.get(nth).cloned();
        name.ok_or_else(|| Refusal::unreachable("there is no instance"))
    }

    pub(super) fn restart_instance(&self, which: u32, signal: Signal) -> Result<Seen, Refusal> {
        let name = self.instance(which)?;
        let took = self.system.restart(&name, signal)?;
        self.crowd_follows();
        Ok(seen(name, serves_again(signal, took)))
    }

    pub(super) fn restart_shim(&self, signal: Signal) -> Result<Seen, Refusal> {
        let took = self.system.restart(SHIM, signal)?;
        Ok(seen(SHIM, serves_again(signal, took)))
    }

    pub(super) fn stop_instance(&self, which: u32, lasts: Duration) -> Result<Seen, Refusal> {
        let name = self.instance(which)?;
        self.system.processes.signal(&name, Signal::STOP)?;
        self.wait(lasts);
        self.system.processes.signal(&name, Signal::CONT)?;
        let went_on = Instant::now();
        self.system.wait_ready(&name)?;
        self.system.wait_used(&name)?;
        let took = went_on.elapsed().as_secs_f64();
        Ok(seen(
            name,
            format!("stopped for {lasts:?}; serves again {took:.2} s after it went on"),
        ))
    }

    /// Blue/green.
    pub(super) fn switch(&self) -> Result<Seen, Refusal> {
        let old = self.system.live_group();
        let new = groups(&self.case).iter().find(|group| **group != old);
        let new = *new.ok_or_else(|| Refusal::unreachable("there is no other group"))?;
        let began = Instant::now();
        self.system.start_group(new)?;
        let ready = began.elapsed();
        self.system.make_live(new)?;
        let switched = began.elapsed();
        for name in instances(&self.case, &old) {
            self.system.processes.end(&name, Signal::TERM)?;
        }
        let note = format!(
            "{new} ready after {:.2} s, live after {:.2} s, {old} ended after {:.2} s",
            ready.as_secs_f64(),
            switched.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
        Ok(seen(format!("{old} to {new}"), note))
    }

    /// Users without a shim know the instances themselves; those that were away are told again.
    fn crowd_follows(&self) {
        if !self.case.system.shim {
            self.crowd.retarget(self.system.targets());
        }
    }
}

fn serves_again(signal: Signal, took: Duration) -> String {
    let what = if signal == Signal::KILL {
        "killed"
    } else {
        "told to end"
    };
    format!("{what}; serves again after {:.2} s", took.as_secs_f64())
}
