//! What is broken on purpose: done for real, by schedule, and marked with what was seen.
//!
//! - [`schedule`]: when each fault of a case is due, and which were done before a resumption.
//! - [`servers`], [`redis`], [`roads`]: how each kind is done.
//!
//! Faults are done one after the other on a thread of their own: one that is due while another is under way begins when that
//! has ended, and its mark says when it really began. Two at once would blur whose allowance a failure falls under.

mod redis;
mod roads;
pub mod schedule;
mod servers;

use crate::case::{Case, Fault, FaultKind};
use crate::record::FaultMark;
use crate::refusal::Refusal;
use crate::run::clock::Clock;
use crate::system::System;
use schedule::Due;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A fault that began later than this after it was due says so.
const LATE: Duration = Duration::from_millis(500);

/// What the faults do with the users.
pub trait Crowd: Send {
    /// All drop their connections and come back at once.
    fn stampede(&self);
    /// There are twice as many for so long.
    fn double_load(&self, lasts: Duration);
    /// They connect elsewhere from now on.
    fn retarget(&self, targets: Vec<SocketAddr>);
}

/// What the run is told.
#[derive(Debug)]
pub enum Event {
    /// A fault begins.
    Begins(String),
    /// It was done, and what it broke is whole again.
    Done(FaultMark),
    /// It could not be done: the run has not shown what it was to show.
    NotDone(String),
}

/// Does faults until it is dropped or told to stop.
pub struct Injector {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a fault needs.
pub(crate) struct Scene {
    pub(crate) system: Arc<System>,
    pub(crate) case: Arc<Case>,
    crowd: Box<dyn Crowd>,
    clock: Clock,
    stopped: Receiver<()>,
}

/// What was seen of a fault.
pub(crate) struct Seen {
    /// What it was done to.
    pub(crate) target: String,
    /// What was seen.
    pub(crate) note: String,
}

impl Injector {
    /// Begins, with the faults that are due.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        system: Arc<System>,
        case: Arc<Case>,
        dues: Vec<Due>,
        crowd: Box<dyn Crowd>,
        clock: Clock,
        events: SyncSender<Event>,
    ) -> Result<Self, Refusal> {
        let (stop, stopped) = channel();
        let scene = Scene {
            system,
            case,
            crowd,
            clock,
            stopped,
        };
        let thread = std::thread::Builder::new()
            .name("faults".into())
            .spawn(move || {
                for due in dues {
                    if scene.wait(due.at.saturating_sub(scene.clock.now()))
                        || scene.inject(&due, &events)
                    {
                        return;
                    }
                }
            })
            .map_err(|error| Refusal::unreachable(format!("a thread: {error}")))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Whether all faults have been done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Injector {
    /// Begins no more; what is under way is mended first.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Scene {
    /// Waits; true when the faults are to stop.
    pub(crate) fn wait(&self, lasts: Duration) -> bool {
        self.stopped.recv_timeout(lasts) != Err(RecvTimeoutError::Timeout)
    }

    /// Does one; true when nobody listens any more.
    fn inject(&self, due: &Due, events: &SyncSender<Event>) -> bool {
        let fault = &due.fault;
        let began = self.clock.now();
        let begins = format!("{} begins", fault.what.as_str());
        if events.send(Event::Begins(begins)).is_err() {
            return true;
        }
        let event = match self.act(fault, due.which) {
            Ok(mut seen) => {
                let late = began.saturating_sub(due.at);
                if late > LATE {
                    seen.note.push_str(&format!(
                        "; begun {:.1} s late, after another fault",
                        late.as_secs_f64()
                    ));
                }
                Event::Done(mark(fault, began, self.clock.now(), seen))
            }
            Err(refusal) => Event::NotDone(format!(
                "{} at {:.1} s: {refusal}",
                fault.what.as_str(),
                began.as_secs_f64()
            )),
        };
        events.send(event).is_err()
    }

    fn act(&self, fault: &Fault, which: u32) -> Result<Seen, Refusal> {
        use FaultKind as Kind;
        match fault.what {
            Kind::KillInstance => self.restart_instance(which, ::rustix::process::Signal::KILL),
            Kind::RestartInstance => self.restart_instance(which, ::rustix::process::Signal::TERM),
            Kind::StopInstance => self.stop_instance(which, fault.lasts),
            Kind::Switch => self.switch(),
            Kind::KillShim => self.restart_shim(::rustix::process::Signal::KILL),
            Kind::RestartShim => self.restart_shim(::rustix::process::Signal::TERM),
            Kind::KillRedis => self.kill_redis(which, fault.away),
            Kind::LoseRedis => self.lose_redis(which, fault.lasts, fault.away),
            Kind::StopRedis => self.stop_redis(which, fault.lasts),
            Kind::FailoverRedis => self.fail_over_redis(which),
            Kind::CutRedis => self.cut_redis(fault.lasts),
            Kind::SlowRedis => self.slow_redis(fault.lasts),
            Kind::CutClients => self.cut_clients(fault.lasts),
            Kind::FillDisk => self.fill_disk(fault.lasts),
            Kind::Stampede => {
                self.crowd.stampede();
                Ok(seen("users", "every connection dropped and opened again"))
            }
            Kind::DoubleLoad => {
                self.crowd.double_load(fault.lasts);
                self.wait(fault.lasts);
                Ok(seen(
                    "users",
                    format!("twice as many for {:?}", fault.lasts),
                ))
            }
        }
    }
}

pub(crate) fn seen(target: impl Into<String>, note: impl Into<String>) -> Seen {
    Seen {
        target: target.into(),
        note: note.into(),
    }
}

/// The mark of a fault.
fn mark(fault: &Fault, began: Duration, ended: Duration, seen: Seen) -> FaultMark {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    FaultMark {
        at_ms: ms(began),
        until_ms: ms(ended),
        allow_until_ms: ms(began + fault.allow_for),
        what: fault.what,
        target: seen.target,
        note: seen.note,
        allow_failed: fault.allow_failed.clone(),
        allow_p99_us: u64::try_from(fault.allow_p99.as_micros()).unwrap_or(u64::MAX),
    }
}
