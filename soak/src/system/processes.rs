//! The processes under test: started, looked at, signalled, ended. All of them end with the harness.

use super::spawn;
use crate::case::Priorities;
use crate::refusal::Refusal;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a process may take to answer for the first time, or to end when it is told to.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How much of the end of a log an error shows, bytes.
const LOG_TAIL_BYTES: u64 = 600;

/// How a process is started, each time the same.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its name in the record: `serve-0`, `redis-1` …
    pub name: String,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Added to its environment.
    pub env: BTreeMap<String, String>,
    /// Where what it prints is appended.
    pub log: PathBuf,
    /// Where it serves: its public listener, or Redis's port.
    pub address: SocketAddr,
    /// Its operations listener.
    pub ops: Option<SocketAddr>,
}

/// A process that runs, or has run.
struct Entry {
    spec: Spec,
    child: Option<Child>,
    incarnation: u32,
    /// Whether it runs because nobody has told it to end.
    wanted: bool,
}

/// A process that runs, as samplers see it.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its number.
    pub pid: u32,
    /// Grows by one with each start.
    pub incarnation: u32,
    /// Where it serves.
    pub address: SocketAddr,
    /// Its operations listener.
    pub ops: Option<SocketAddr>,
}

/// All of them, in the order in which they were first started; ended in the opposite one.
#[derive(Default)]
pub struct Processes {
    entries: Mutex<Vec<Entry>>,
    /// Of the first start of each: higher after each resumption, so that no growth is judged across it.
    first_incarnation: u32,
    /// How each kind is scheduled.
    priority: Priorities,
}

impl Processes {
    /// None yet; `segment` counts the run's resumptions, `priority` is how each kind of process is scheduled.
    #[must_use]
    pub fn new(segment: u32, priority: Priorities) -> Self {
        Self {
            entries: Mutex::default(),
            priority,
            // A thousand starts of one process between two resumptions are more than any case has.
            first_incarnation: segment.saturating_mul(1000),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process. That it answers is for the caller to wait for ([`Self::wait`]).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, spec: Spec) -> Result<(), Refusal> {
        let child = self.launch(&spec)?;
        let mut entries = self.lock();
        let incarnation = self.first_incarnation;
        entries.retain(|entry| entry.spec.name != spec.name);
        entries.push(Entry {
            spec,
            child: Some(child),
            incarnation,
            wanted: true,
        });
        Ok(())
    }

    /// Starts one again that has ended.
    ///
    /// # Errors
    /// When it cannot be started, or was never.
    pub fn start_again(&self, name: &str) -> Result<(), Refusal> {
        let mut entries = self.lock();
        let entry = find(&mut entries, name)?;
        entry.child = Some(self.launch(&entry.spec)?);
        entry.incarnation += 1;
        entry.wanted = true;
        Ok(())
    }

    /// Whether there is, or was, a process of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.lock().iter().any(|entry| entry.spec.name == name)
    }

    /// Changes the arguments with which one is started the next time.
    ///
    /// # Errors
    /// When there is none.
    pub fn set_args(
        &self,
        name: &str,
        change: impl FnOnce(&mut [OsString]),
    ) -> Result<(), Refusal> {
        let mut entries = self.lock();
        change(&mut find(&mut entries, name)?.spec.args);
        Ok(())
    }

    /// Sends a signal that does not end it.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<(), Refusal> {
        let mut entries = self.lock();
        let entry = find(&mut entries, name)?;
        let child = entry.child.as_ref().ok_or_else(|| not_running(name))?;
        send(child, signal).map_err(|error| Refusal::unreachable(format!("{name}: {error}")))
    }

    /// Ends it by a signal and waits until it has; by SIGKILL after [`PATIENCE`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn end(&self, name: &str, signal: Signal) -> Result<ExitStatus, Refusal> {
        let deadline = Instant::now() + PATIENCE;
        {
            let mut entries = self.lock();
            let entry = find(&mut entries, name)?;
            entry.wanted = false;
            let child = entry.child.as_ref().ok_or_else(|| not_running(name))?;
            send(child, signal)
                .map_err(|error| Refusal::unreachable(format!("{name}: {error}")))?;
        }
        loop {
            {
                let mut entries = self.lock();
                let entry = find(&mut entries, name)?;
                let child = entry.child.as_mut().ok_or_else(|| not_running(name))?;
                if Instant::now() > deadline {
                    let _ = child.kill();
                }
                if let Ok(Some(status)) = child.try_wait() {
                    entry.child = None;
                    return Ok(status);
                }
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until `ready`, while the process runs.
    ///
    /// # Errors
    /// When the process ends first, or [`PATIENCE`] does: with the end of its log.
    pub fn wait(
        &self,
        name: &str,
        what: &str,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Duration, Refusal> {
        let began = Instant::now();
        loop {
            if ready() {
                return Ok(began.elapsed());
            }
            let log = {
                let mut entries = self.lock();
                let entry = find(&mut entries, name)?;
                let ended = match &mut entry.child {
                    Some(child) => child
                        .try_wait()
                        .ok()
                        .flatten()
                        .map(|status| status.to_string()),
                    None => Some("it does not run".into()),
                };
                if ended.is_none() && began.elapsed() < PATIENCE {
                    None
                } else {
                    let why = ended.unwrap_or_else(|| format!("{what}: not within {PATIENCE:?}"));
                    Some(format!("{name}: {why}; {}", tail(&entry.spec.log)))
                }
            };
            if let Some(text) = log {
                return Err(Refusal::unreachable(text));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn launch(&self, spec: &Spec) -> Result<Child, Refusal> {
        let failed = |error: std::io::Error| {
            let program = spec.program.to_string_lossy();
            Refusal::unreachable(format!(
                "{} ({program}) cannot be started: {error}",
                spec.name
            ))
        };
        let log = OpenOptions::new().create(true).append(true).open(&spec.log);
        let log = log.map_err(failed)?;
        let mut command = spawn::command(&spec.program, self.priority.of(&spec.name));
        command
            .args(&spec.args)
            .envs(&spec.env)
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        spawn::spawn(command).map_err(failed)
    }

    /// Those that run.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        let entries = self.lock();
        let running = entries.iter().filter_map(|entry| {
            Some(Running {
                name: entry.spec.name.clone(),
                pid: entry.child.as_ref()?.id(),
                incarnation: entry.incarnation,
                address: entry.spec.address,
                ops: entry.spec.ops,
            })
        });
        running.collect()
    }

    /// One that runs.
    #[must_use]
    pub fn one(&self, name: &str) -> Option<Running> {
        self.running().into_iter().find(|one| one.name == name)
    }

    /// Those that have ended though nobody told them to, since this was asked last: name and why.
    #[must_use]
    pub fn ended_by_themselves(&self) -> Vec<(String, String)> {
        let mut ended = Vec::new();
        for entry in self.lock().iter_mut().filter(|entry| entry.wanted) {
            let status = entry
                .child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = status {
                entry.child = None;
                entry.wanted = false;
                let why = format!("{status}; {}", tail(&entry.spec.log));
                ended.push((entry.spec.name.clone(), why));
            }
        }
        ended
    }

    /// Ends all of them: those that came last first, so that nobody's store goes before its users.
    pub fn end_all(&self) {
        let names: Vec<String> = {
            let entries = self.lock();
            let named = entries.iter().rev().filter(|entry| entry.child.is_some());
            named.map(|entry| entry.spec.name.clone()).collect()
        };
        for name in names {
            // What was stopped would not end.
            let _ = self.signal(&name, Signal::CONT);
            let _ = self.end(&name, Signal::TERM);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for entry in self.lock().iter_mut().rev() {
            if let Some(child) = &mut entry.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn find<'a>(entries: &'a mut [Entry], name: &str) -> Result<&'a mut Entry, Refusal> {
    let found = entries.iter_mut().find(|entry| entry.spec.name == name);
    found.ok_or_else(|| not_running(name))
}

fn not_running(name: &str) -> Refusal {
    Refusal::unreachable(format!("{name} does not run"))
}

fn send(child: &Child, signal: Signal) -> std::io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("it has no number"))?;
    Ok(kill_process(pid, signal)?)
}

/// The end of a log, on one line.
fn tail(log: &std::path::Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let last: Vec<&str> = text.lines().rev().take(3).collect();
    let shown: Vec<&str> = last.into_iter().rev().collect();
    format!("see {}: {}", log.display(), shown.join(" / "))
}
