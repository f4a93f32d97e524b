//! The generator: tens of thousands of users in one process, on one event loop in a thread of its own.
//!
//! What it promises, so that its figures can be believed:
//!
//! - **The schedule is open.** Each action of each user has an intended time that does not depend on answers ([`schedule`]).
//! - **Latency counts from the intended time** to the last byte of the answer, or to when the user gave up; the network
//!   model's delays are in it, for a user lives through them. Service time counts from the moment of sending to the last byte,
//!   without the model. A user has one connection and one request under way on it ([`user`]); what waits for it ages.
//! - **Everything is counted**: intended = sent + dropped + waiting, sent = answered + failed + under way, in every
//!   interval, or the interval says that it is not so ([`tally`]).
//! - **It knows when it was late.** `behind_us_max` is how late the latest action was begun, and past `bounds.behind_max`
//!   makes the interval invalid; `turn_us_max` is the longest turn of the loop, by which an answer may have been seen late.
//!
//! | module | is |
//! |---|---|
//! | [`schedule`], [`wheel`], [`crowd`] | when who does what; the timers; who is there |
//! | [`request`], [`answer`], [`socket`] | HTTP/1.1 |
//! | [`user`], [`network`] | a user's state; the network's model |
//! | [`engine`], [`exchange`], [`aside`], [`told`], [`bulk`], [`replayed`] | the loop; a request's life; that on a second connection; answers to the checker; the back end; recordings |
//! | [`tally`], [`intervals`], [`desk`] | counts; their end; the thread that writes them out |

pub mod answer;
mod aside;
mod bulk;
mod crowd;
mod desk;
mod engine;
mod exchange;
mod intervals;
pub mod network;
mod replayed;
pub mod request;
pub mod schedule;
pub mod socket;
pub mod tally;
mod told;
pub mod user;
pub mod wheel;

pub use crate::checker::Books;
pub(crate) use answer::number;
pub use request::Treasure;

use crate::case::{Case, Priority};
use crate::record::{Finding, Interval};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Gives the token of a user's number.
pub type Tokens = Box<dyn Fn(u32) -> String + Send>;

/// What is to be done.
pub struct Plan {
    /// The case.
    pub case: Arc<Case>,
    /// Where users connect, each to one of these by its number.
    pub targets: Vec<SocketAddr>,
    /// What `Host` says.
    pub host: String,
    /// The hunt.
    pub hunt: String,
    /// Its treasures. Once-only ones take part if they are named as [`crate::books::ids`] says.
    pub treasures: Vec<Treasure>,
    /// Users' tokens; asked for numbers from 1 to [`users_max`].
    pub tokens: Tokens,
    /// The back end's key; without one no find is sent in bulk.
    pub admin_key: Option<String>,
    /// Where to go on.
    pub resume: Resume,
}

/// Where a run goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resume {
    /// The first number of a find; the ones below were used.
    pub first_find: u64,
    /// The run's clock, milliseconds: the end of the last recorded interval.
    pub at_ms: u64,
}

/// What can be asked of a running generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Every user drops its connection and reconnects at once.
    Stampede,
    /// As many users again, for a time.
    DoubleLoad {
        /// How long.
        lasts: Duration,
    },
    /// New connections go elsewhere.
    Retarget(Vec<SocketAddr>),
    /// End after the current interval.
    Stop,
}

/// What a generator tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// An interval has ended. Without what the system counted; `invalid` has the generator's own reasons only.
    Interval(Interval),
    /// The checker found something.
    Finding(Finding),
    /// Nothing further comes.
    Ended,
}

/// Of the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests sent.
    pub sent: u64,
    /// Finds begun; the next number is this more than the first.
    pub finds: u64,
    /// Findings, also those past the bound that were not told.
    pub findings: u64,
}

/// A running generator.
pub struct Handle {
    control: Sender<Control>,
    thread: JoinHandle<io::Result<Totals>>,
    emits: String,
    priority: String,
}

impl Handle {
    /// Asks something of it; it acts at its next turn, within 100 ms.
    pub fn control(&self, control: Control) {
        // One that has ended needs no control.
        let _ = self.control.send(control);
    }

    /// What it uses: users, descriptors, source addresses; a line for people.
    #[must_use]
    pub fn uses(&self) -> &str {
        &self.emits
    }

    /// How its thread is scheduled, or why it is not as the case asks; a line for people.
    #[must_use]
    pub fn priority(&self) -> &str {
        &self.priority
    }

    /// Waits for its end. Take its output meanwhile, or it waits for you.
    ///
    /// # Errors
    /// What ended it early.
    pub fn join(self) -> io::Result<Totals> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the generator panicked")))
    }
}

/// The greatest number of users that a case needs tokens for, and whether its doubled load is by users: twice as many, if the
/// process may have so many descriptors; else each user does twice as much.
#[must_use]
pub fn users_max(case: &Case) -> (u32, bool) {
    let doubles = case
        .faults
        .iter()
        .any(|fault| fault.what == crate::case::FaultKind::DoubleLoad);
    let twice = case.load.users.saturating_mul(2);
    if doubles && u64::from(twice) <= socket::connections_max() {
        (twice, true)
    } else {
        (case.load.users, false)
    }
}

/// Starts a generator.
///
/// # Errors
/// More users than descriptors; epoll cannot be had; a recording cannot be read.
pub fn start(
    plan: Plan,
    books: Box<dyn Books + Send>,
    out: SyncSender<Output>,
) -> io::Result<Handle> {
    let (control, controls) = channel();
    let (users, by_users) = users_max(&plan.case);
    let connections = socket::connections_max();
    if u64::from(users) + 1 > connections {
        return Err(io::Error::other(format!(
            "{users} users need a descriptor each, and this process may have {connections}: raise `ulimit -n` or run fewer users"
        )));
    }
    let engine = engine::Engine::new(plan, (users, by_users), books, out, controls)?;
    let emits = engine.uses();
    let wanted = engine.priority();
    let (told, priority) = channel();
    let thread = std::thread::Builder::new()
        .name("generator".to_owned())
        .spawn(move || {
            // Nobody waits for it any more only if this thread could not be waited for either.
            let _ = told.send(take_priority(wanted));
            engine.run()
        })?;
    Ok(Handle {
        control,
        thread,
        emits,
        priority: priority.recv().map_err(io::Error::other)?,
    })
}

/// Gives the calling thread a priority, and says how that went.
fn take_priority(wanted: Priority) -> String {
    use thread_priority::{
        RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
        set_thread_priority_and_policy, thread_native_id,
    };
    match wanted {
        Priority::Normal => "normal".to_owned(),
        Priority::RealTime => match set_thread_priority_and_policy(
            thread_native_id(),
            ThreadPriority::Min,
            ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin),
        ) {
            Ok(()) => "real time".to_owned(),
            Err(error) => format!("normal, for real time was refused: {error}"),
        },
    }
}
