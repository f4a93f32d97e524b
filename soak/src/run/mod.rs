//! A run, from its first line to its verdict.
//!
//! - [`clock`]: the run's time. [`records`]: its files. [`reconcile`]: the harness's counts against the system's.
//! - [`facts`]: versions and the machine. [`mod@resume`]: where a run goes on after a crash of the harness. [`finish`]: the final check.
//!
//! Threads: the generator's loop, the books' writer, the faults', one a road, and this one, which waits for intervals,
//! samples, reconciles and writes. All that is kept in memory is of one interval.

pub mod clock;
mod facts;
mod finish;
pub mod reconcile;
pub mod records;
mod resume;

use crate::books;
use crate::case::{self, Case};
use crate::faults::{self, Crowd, Event, Injector};
use crate::generator::{self, Control, Output};
use crate::record::{Finding, Interval, Segment, files};
use crate::refusal::Refusal;
use crate::resources::Sampler;
use crate::system::System;
use crate::verdict::Verdict;
use clock::Clock;
use reconcile::Reconciler;
use records::Records;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many outputs of the generator, events of faults and orders to users wait at most.
const CHANNEL: usize = 1024;
/// How often the run looks whether it was told to stop, or a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A generator that gives no interval for so many of its lengths hangs.
const SILENT_INTERVALS_MAX: u32 = 12;

/// Told of each interval and of what goes on.
pub type Show = Box<dyn FnMut(&Interval, &str)>;

/// How a run is started.
pub struct Options {
    /// The exact command, for the record.
    pub command: Vec<String>,
    /// For a live view.
    pub show: Show,
}

/// What users are told to do, on its way to the generator.
enum Order {
    Stampede,
    DoubleLoad(Duration),
    Retarget(Vec<SocketAddr>),
}

struct Orders(SyncSender<Order>);

impl Crowd for Orders {
    fn stampede(&self) {
        // A full channel means that the run hangs, which it notices itself.
        let _ = self.0.try_send(Order::Stampede);
    }
    fn double_load(&self, lasts: Duration) {
        let _ = self.0.try_send(Order::DoubleLoad(lasts));
    }
    fn retarget(&self, targets: Vec<SocketAddr>) {
        let _ = self.0.try_send(Order::Retarget(targets));
    }
}

/// Runs a case in a directory of its own.
///
/// # Errors
/// When it cannot begin, or cannot go on.
pub fn run(case: Case, dir: &Path, options: Options) -> Result<Verdict, Refusal> {
    std::fs::create_dir_all(dir).map_err(|error| at(dir, &error))?;
    if dir.join(files::RUN).exists() {
        return Err(Refusal::usage(format!(
            "{} holds a run; `soak resume` goes on with it, or name another with --out",
            dir.display()
        )));
    }
    let _lock = lock(dir)?;
    case.write(dir).map_err(|error| at(dir, &error))?;
    let point = resume::Point::beginning(&case);
    segment(Arc::new(case), dir, point, options)
}

/// Goes on with a run whose harness ended before the run did.
///
/// # Errors
/// When there is none, it has ended, or it cannot go on.
pub fn resume(dir: &Path, options: Options) -> Result<Verdict, Refusal> {
    let _lock = lock(dir)?;
    let case = Case::of_run(dir).map_err(Refusal::usage)?;
    let point = resume::point(dir, &case)?;
    segment(Arc::new(case), dir, point, options)
}

/// Held while a harness works in the directory.
fn lock(dir: &Path) -> Result<std::fs::File, Refusal> {
    let path = dir.join("lock");
    let file = std::fs::File::create(&path).map_err(|error| at(&path, &error))?;
    file.try_lock()
        .map_err(|_| Refusal::usage(format!("another harness is at work in {}", dir.display())))?;
    Ok(file)
}

fn at(path: &Path, error: &dyn std::fmt::Display) -> Refusal {
    Refusal::unreachable(format!("{}: {error}", path.display()))
}

fn wall_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// One life of the harness: all of a run, or what is left of it.
fn segment(
    case: Arc<Case>,
    dir: &Path,
    point: resume::Point,
    options: Options,
) -> Result<Verdict, Refusal> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the harness at once, and the kernel ends its processes.
        signal_hook::flag::register_conditional_shutdown(signal, 1, interrupted.clone())
            .and_then(|_| signal_hook::flag::register(signal, interrupted.clone()))
            .map_err(|error| Refusal::unreachable(format!("signals: {error}")))?;
    }
    let system = Arc::new(System::start(&case, dir, point.segment, wall_ms())?);
    let mut records = Records::new(dir);
    let begins = Segment {
        at_ms: point.at_ms,
        wall_ms: wall_ms(),
        command: options.command,
        versions: facts::versions(&system),
        machine: facts::machine(),
        emits_per_second: case::emits_per_second(&case),
    };
    let mut run = Run {
        ops: ops_addresses(&case)?,
        sampler: Sampler::new(point.segment),
        reconciler: Reconciler::new(case.bounds.reconcile_ratio, Vec::new()),
        clock: Clock::starting_at(Duration::from_millis(point.at_ms)),
        behind: Duration::ZERO,
        status: String::new(),
        breaking: false,
        broken: false,
        unchecked: point.unchecked,
        findings: point.findings,
        show: options.show,
        interrupted,
        records: &mut records,
        system: &system,
        case: &case,
    };
    for mark in &point.interrupted {
        run.records.append(files::FAULTS, mark)?;
    }
    run.live(dir, begins, point.next_find, point.dues)?;
    let (unchecked, findings, at_ms) = (run.unchecked, run.findings, run.clock.now_ms());
    finish::finish(
        &case,
        dir,
        &system,
        &mut records,
        finish::Known {
            unchecked,
            findings,
            at_ms,
        },
    )?;
    system.processes.end_all();
    drop(system);
    let report = crate::report::html(dir, None).map_err(|error| at(dir, &error))?;
    Ok(report.summary.verdict)
}

/// Where operations listeners of a system are that is there already.
fn ops_addresses(case: &Case) -> Result<Vec<SocketAddr>, Refusal> {
    let resolved = case.system.ops_addresses.iter().map(|address| {
        let host = address.trim_start_matches("http://").trim_end_matches('/');
        let found = host
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next());
        found.ok_or_else(|| {
            Refusal::usage(format!(
                "system.ops_addresses: {address} is no http://host:port"
            ))
        })
    });
    resolved.collect()
}

/// What is at hand while users are at work.
struct Run<'a> {
    case: &'a Arc<Case>,
    system: &'a Arc<System>,
    records: &'a mut Records,
    sampler: Sampler,
    reconciler: Reconciler,
    ops: Vec<SocketAddr>,
    clock: Clock,
    /// How far the generator's clock is behind this one, at most: the least time that an interval took to be heard of, and no
    /// more than the generator took to start.
    behind: Duration,
    status: String,
    /// Whether a fault is under way.
    breaking: bool,
    /// Whether one was in the interval that is being recorded.
    broken: bool,
    unchecked: Vec<String>,
    findings: u64,
    show: Show,
    interrupted: Arc<AtomicBool>,
}

impl Run<'_> {
    /// Lets the users play until the event has ended and settled, or somebody interrupts.
    fn live(
        &mut self,
        dir: &Path,
        begins: Segment,
        next_find: u64,
        dues: Vec<faults::schedule::Due>,
    ) -> Result<(), Refusal> {
        let books = books::writer(dir).map_err(|error| at(dir, &error))?;
        let (sender, outputs) = sync_channel(CHANNEL);
        let plan = self.plan(begins.at_ms, next_find)?;
        let told = self.sampler.tell(self.system, &self.ops);
        self.reconciler = Reconciler::new(self.case.bounds.reconcile_ratio, told);
        // The generator's clock begins now, and so do the run's and what the record says of it.
        self.clock = Clock::starting_at(Duration::from_millis(begins.at_ms));
        let mut begins = Segment {
            wall_ms: wall_ms(),
            ..begins
        };
        let handle = generator::start(plan, Box::new(books), sender)
            .map_err(|error| Refusal::unreachable(format!("the generator: {error}")))?;
        let priority = handle.priority().to_owned();
        begins
            .machine
            .insert("generator's priority".to_owned(), priority);
        begins.machine.extend(self.system.priorities());
        self.records.append(files::RUN, &begins)?;
        // It made its users ready in this time, and its clock begins after that.
        self.behind = Instant::now().saturating_duration_since(self.clock.began());
        let (events_in, events) = sync_channel(CHANNEL);
        let (orders_in, orders) = sync_channel(CHANNEL);
        let injector = Injector::start(
            self.system.clone(),
            self.case.clone(),
            dues,
            Box::new(Orders(orders_in)),
            self.clock,
            events_in,
        )?;
        let ended = self.attend(&handle, &outputs, &events, &orders);
        if ended.is_err() {
            handle.control(Control::Stop);
        }
        // What is broken is mended before the final check. Events of it may have been waiting.
        drop(injector);
        self.take_events(&events)?;
        ended?;
        handle
            .join()
            .map_err(|error| Refusal::unreachable(format!("the generator: {error}")))
            .map(drop)
    }

    fn plan(&self, at_ms: u64, next_find: u64) -> Result<generator::Plan, Refusal> {
        let is_trove = self.case.system.url_template.is_empty();
        let tokens = if is_trove {
            self.system.tokens()?
        } else {
            Vec::new()
        };
        // Users count from 1.
        let token = move |user: u32| tokens.get(user as usize - 1).cloned().unwrap_or_default();
        Ok(generator::Plan {
            case: self.case.clone(),
            targets: self.system.targets(),
            host: self.system.host(),
            hunt: self.system.hunt(),
            treasures: crate::system::hunt::treasures(),
            tokens: Box::new(token),
            admin_key: self.system.admin_key(),
            resume: generator::Resume {
                first_find: next_find,
                at_ms,
            },
        })
    }

    /// Takes what comes until the generator has ended.
    fn attend(
        &mut self,
        handle: &generator::Handle,
        outputs: &Receiver<Output>,
        events: &Receiver<Event>,
        orders: &Receiver<Order>,
    ) -> Result<(), Refusal> {
        let mut heard = Instant::now();
        let mut stopping = false;
        loop {
            match outputs.recv_timeout(LOOK_EVERY) {
                Ok(Output::Interval(interval)) => {
                    heard = Instant::now();
                    self.take_events(events)?;
                    self.interval(interval, heard)?;
                }
                Ok(Output::Finding(finding)) => self.finding(&finding)?,
                Ok(Output::Ended) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            for order in orders.try_iter() {
                handle.control(match order {
                    Order::Stampede => Control::Stampede,
                    Order::DoubleLoad(lasts) => Control::DoubleLoad { lasts },
                    Order::Retarget(targets) => Control::Retarget(targets),
                });
            }
            self.take_events(events)?;
            self.look_after_processes()?;
            if self.interrupted.load(Ordering::Relaxed) && !stopping {
                stopping = true;
                let now = self.clock.now().as_secs_f64();
                self.unchecked
                    .push(format!("the run was interrupted at {now:.1} s"));
                handle.control(Control::Stop);
            }
            if heard.elapsed()
                > self.case.interval * SILENT_INTERVALS_MAX + self.case.behaviour.timeout
            {
                return Err(Refusal::unreachable(format!(
                    "the generator has given no interval for {:?}",
                    heard.elapsed()
                )));
            }
        }
    }

    fn take_events(&mut self, events: &Receiver<Event>) -> Result<(), Refusal> {
        for event in events.try_iter() {
            self.broken = true;
            self.breaking = false;
            match event {
                Event::Begins(text) => {
                    self.breaking = true;
                    self.status = text;
                }
                Event::Done(mark) => {
                    self.status = format!("{} {}: {}", mark.what.as_str(), mark.target, mark.note);
                    self.records.append(files::FAULTS, &mark)?;
                }
                Event::NotDone(text) => {
                    self.unchecked
                        .push(format!("a fault could not be done: {text}"));
                    self.status = text;
                }
            }
        }
        Ok(())
    }

    /// A process that ends though nobody ended it is a failure of what is tested.
    fn look_after_processes(&mut self) -> Result<(), Refusal> {
        for (name, why) in self.system.processes.ended_by_themselves() {
            self.broken = true;
            self.status = format!("{name} ended by itself");
            self.finding(&Finding {
                at_ms: self.clock.now_ms(),
                kind: "process".into(),
                player: String::new(),
                text: format!("{name} ended by itself: {why}"),
            })?;
        }
        Ok(())
    }

    fn finding(&mut self, finding: &Finding) -> Result<(), Refusal> {
        self.findings += 1;
        self.records.append(files::FINDINGS, finding)
    }

    /// Records an interval with what the system counted and cost meanwhile.
    fn interval(&mut self, mut interval: Interval, heard: Instant) -> Result<(), Refusal> {
        let ended = Duration::from_millis(interval.to_ms);
        self.behind = self.behind.min(self.clock.at(heard).saturating_sub(ended));
        let told = self.sampler.tell(self.system, &self.ops);
        let after = |moment: Instant| {
            self.clock
                .at(moment)
                .saturating_sub(ended + self.behind)
                .as_secs_f64()
        };
        let asked_after_s = told
            .iter()
            .map(|one| (one.process.clone(), after(one.at)))
            .collect();
        let samples = self.sampler.sample(self.system, &told, interval.to_ms);
        let is_broken = std::mem::replace(&mut self.broken, self.breaking) || self.breaking;
        let outcome = self
            .reconciler
            .reconcile(&interval, told, asked_after_s, is_broken);
        interval.counted = outcome.counted;
        interval.notes.extend(outcome.notes);
        if self.case.system.url_template.is_empty() {
            interval.invalid.extend(outcome.invalid);
        }
        for sample in &samples {
            self.records.append(files::RESOURCES, sample)?;
        }
        self.records.append(files::INTERVALS, &interval)?;
        (self.show)(&interval, &self.status);
        Ok(())
    }
}
