//! The loop: timers, events, intervals.

use super::bulk::BackEnd;
use super::crowd::Crowd;
use super::desk::Desk;
use super::network::Model;
use super::request::Requests;
use super::schedule::{Action, NEVER, Pace, micros};
use super::socket::Road;
use super::tally::{Drop, Failure, Open, Tally};
use super::user::{Stage, User, Waiting};
use super::wheel::Wheel;
use super::{Control, Output, Plan, Totals};
use crate::case::{Case, Curve, Kind, Priority};
use crate::checker::{Books, Checker};
use crate::recording::Replay;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Events taken at a time: the more, the longer timers wait for their turn.
const EVENTS_PER_TURN: usize = 128;
/// Timers fired before events get their turn.
pub(super) const TIMERS_PER_TURN: usize = 128;
/// Users of a stampede that reconnect in one turn, so that the others' schedules are kept meanwhile.
const STAMPEDE_PER_TURN: usize = 8;
/// The longest sleep: controls are looked at after it.
const SLEEP_US_MAX: u64 = 50_000;
/// Bytes read at a time, into memory that all users share.
const READ_BYTES: usize = 256 * 1024;

const fn timespec(micros: u64) -> rustix::time::Timespec {
    rustix::time::Timespec {
        tv_sec: (micros / 1_000_000) as i64,
        tv_nsec: (micros % 1_000_000 * 1_000) as i64,
    }
}

/// The generator's state. Users are at the index of their number; at 0 is the back end.
pub(super) struct Engine {
    pub(super) case: Arc<Case>,
    pub(super) pace: Pace,
    pub(super) model: Model,
    pub(super) requests: Requests,
    pub(super) road: Road,
    pub(super) poller: OwnedFd,
    pub(super) wheel: Wheel,
    tick_us: u64,
    pub(super) users: Vec<User>,
    pub(super) crowd: Crowd,
    pub(super) back_end: BackEnd,
    pub(super) checker: Checker,
    pub(super) tally: Box<Tally>,
    /// Waiting and under way now.
    pub(super) open: Open,
    /// At the beginning of the interval.
    pub(super) opened: Open,
    pub(super) read: Vec<u8>,
    pub(super) write: Vec<u8>,
    pub(super) timeout_us: u64,
    pub(super) window_us: u64,
    pub(super) next_find: u64,
    pub(super) first_find: u64,
    /// Descriptors or ports ran out in this interval.
    pub(super) exhausted: bool,
    /// Polls alone, of a server that is not Trove's.
    pub(super) template: bool,
    /// A recording instead of the schedule.
    pub(super) replay: Option<Replay>,
    stampede: Option<usize>,
    pub(super) sent_total: u64,
    pub(super) desk: Desk,
    controls: Receiver<Control>,
    stops: bool,
    began: Instant,
    origin_us: u64,
    pub(super) interval_us: u64,
    pub(super) boundary_us: u64,
}

impl Engine {
    pub(super) fn new(
        plan: Plan,
        (users_max, by_users): (u32, bool),
        books: Box<dyn Books + Send>,
        out: SyncSender<Output>,
        controls: Receiver<Control>,
    ) -> io::Result<Self> {
        let case = plan.case;
        let origin_us = plan.resume.at_ms * 1_000;
        let seed = case.seed;
        let window_us = micros(case.window_scaled());
        let mut users = Vec::with_capacity(usize::try_from(users_max).unwrap_or(0) + 1);
        users.push(User::new(
            seed,
            0,
            plan.admin_key.clone().unwrap_or_default(),
        ));
        // A run's hunt is new; a resumed one's is not.
        let is_new = plan.resume.at_ms == 0 && plan.resume.first_find <= 1;
        for number in 1..=users_max {
            let mut user = User::new(seed, number, (plan.tokens)(number));
            user.wallet.is_untouched = is_new;
            users.push(user);
        }
        let interval_us = micros(case.interval).max(1_000);
        let mut pace = Pace::of(&case);
        let mut replay = None;
        if let Curve::Recording { file } = &case.load.curve {
            let from = case.event_time(Duration::from_micros(origin_us));
            replay = Some(Replay::start(file, micros(from))?);
            pace = pace.silent();
        }
        Ok(Self {
            pace,
            model: Model::of(&case.network),
            requests: Requests::new(
                &plan.host,
                &plan.hunt,
                plan.treasures,
                &case.system.url_template,
                case.behaviour.heartbeat_bytes,
            ),
            road: Road::new(plan.targets, users_max),
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wheel: Wheel::new(origin_us, micros(case.load.tick)),
            tick_us: micros(case.load.tick),
            users,
            crowd: Crowd::new(&case, users_max, by_users, origin_us),
            back_end: BackEnd::new(plan.admin_key.is_some()),
            checker: Checker::new(plan.hunt, window_us / 1_000, plan.resume.first_find, books),
            tally: Box::default(),
            open: Open::default(),
            opened: Open::default(),
            read: vec![0; READ_BYTES],
            write: Vec::with_capacity(4_096),
            timeout_us: micros(case.behaviour.timeout).max(1_000),
            window_us,
            next_find: plan.resume.first_find,
            first_find: plan.resume.first_find,
            exhausted: false,
            template: !case.system.url_template.is_empty(),
            replay,
            stampede: None,
            sent_total: 0,
            desk: Desk::open(out)?,
            controls,
            stops: false,
            began: Instant::now(),
            origin_us,
            interval_us,
            boundary_us: origin_us + interval_us,
            case,
        })
    }

    /// A line for people.
    pub(super) fn uses(&self) -> String {
        format!(
            "{} users at most on {} source address(es) and one descriptor each; {} bytes a user before connections",
            self.users.len() - 1,
            self.road.sources(),
            size_of::<User>() + self.users.get(1).map_or(0, |user| user.token.len())
        )
    }

    pub(super) fn priority(&self) -> Priority {
        self.case.load.priority
    }

    pub(super) fn now_us(&self) -> u64 {
        self.origin_us + micros(self.began.elapsed())
    }

    pub(super) fn run(mut self) -> io::Result<Totals> {
        self.began = Instant::now();
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_PER_TURN);
        let end_us = micros(self.case.run_lasts());
        let result = loop {
            let turn_us = self.now_us();
            self.checker.at(turn_us / 1_000);
            self.take_controls(turn_us);
            let busy = self.fire(turn_us) | self.stampede_on(turn_us);
            let now_us = self.now_us();
            if now_us >= self.boundary_us && !self.is_behind() {
                let to_us = self.boundary_us;
                self.cut(now_us);
                if self.stops || to_us >= end_us {
                    break Ok(());
                }
            }
            self.desk.findings(self.checker.take_findings());
            let worked_us = self.now_us() - turn_us;
            if let Err(error) = self.wait(busy, &mut events) {
                break Err(error);
            }
            let events_us = self.now_us();
            self.checker.at(events_us / 1_000);
            for event in events.drain(..) {
                let mark = event.data.u64();
                // The lower half is the user's number.
                self.ready(
                    (mark & 0xFFFF_FFFF) as u32,
                    (mark >> 32) as u32,
                    event.flags,
                );
            }
            let turned_us = worked_us + (self.now_us() - events_us);
            self.tally.record.turn_us_max = self.tally.record.turn_us_max.max(turned_us);
        };
        self.desk.findings(self.checker.take_findings());
        self.desk.close();
        result.map(|()| Totals {
            sent: self.sent_total,
            finds: self.next_find - self.first_find,
            findings: self.checker.findings_total,
        })
    }

    /// Whether something of the interval that is to end has not been begun.
    fn is_behind(&mut self) -> bool {
        self.wheel.is_firing()
            || self.wheel.next_at_us(NEVER) <= self.boundary_us
            || self.crowd.next_us() <= self.boundary_us
            || self.replay_next_us() <= self.boundary_us
    }

    fn wait(&mut self, busy: bool, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let now_us = self.now_us();
        let until_us = if busy {
            now_us
        } else {
            self.wheel
                .next_at_us(SLEEP_US_MAX)
                .min(self.boundary_us)
                .min(self.crowd.next_us())
                .min(self.replay_next_us())
        };
        // Nothing before the next tick, answers neither: those of a tick are taken at one waking, which more than halves what
        // a request costs the generator and a third of what it costs a server that is woken for each (10,000 users on two
        // cores: 0.74 and 0.57 of a core; 0.42 and 0.49 so). Their latency is read up to a tick too high, never too low.
        let tick_us = (now_us / self.tick_us + 1) * self.tick_us;
        if !busy && until_us > now_us {
            let _ = rustix::thread::nanosleep(&timespec(tick_us - now_us));
        }
        let sleep_us = until_us.saturating_sub(self.now_us()).min(SLEEP_US_MAX);
        match epoll::wait(
            &self.poller,
            rustix::buffer::spare_capacity(events),
            Some(&timespec(sleep_us)),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn take_controls(&mut self, now_us: u64) {
        while let Ok(control) = self.controls.try_recv() {
            match control {
                Control::Stampede => self.stampede = Some(1),
                Control::DoubleLoad { lasts } => self.crowd.double(now_us + micros(lasts)),
                Control::Retarget(targets) => self.road.retarget(targets),
                Control::Stop => self.stops = true,
            }
        }
    }

    /// Fires timers up to now, or to the end of the interval. Says whether some are left.
    fn fire(&mut self, now_us: u64) -> bool {
        let until_us = now_us.min(self.boundary_us);
        while self.crowd.next_us() <= until_us {
            self.step_crowd();
        }
        if self.replay_on(until_us) {
            return true;
        }
        for _ in 0..TIMERS_PER_TURN {
            let Some(due) = self.wheel.next_due(until_us) else {
                return until_us < now_us;
            };
            let user = due.user;
            // An entry that was overtaken by an earlier one fires for nothing.
            if self.user(user).wheel_us == due.at_us {
                self.user(user).wheel_us = NEVER;
                let now_us = self.now_us();
                self.look_at(user, now_us.min(self.boundary_us), now_us);
                self.arm(user);
            }
        }
        true
    }

    pub(super) fn user(&mut self, number: u32) -> &mut User {
        &mut self.users[number as usize]
    }

    /// Sees to it that the wheel comes back to a user in time.
    pub(super) fn arm(&mut self, number: u32) {
        let user = self.user(number);
        let next_us = user.next_us();
        if next_us < user.wheel_us {
            user.wheel_us = next_us;
            self.wheel.enter(number, next_us);
        }
    }

    /// Does what is due for a user: what is intended up to `until_us`, for the rest belongs to the next interval.
    fn look_at(&mut self, number: u32, until_us: u64, now_us: u64) {
        self.advance(number, now_us);
        self.on_aside(number, |engine| engine.advance(number, now_us));
        while let Some(nth) = self
            .user(number)
            .retries
            .iter()
            .position(|(at_us, _)| *at_us <= until_us)
        {
            self.retry(number, nth, now_us);
        }
        loop {
            let hurries = self.crowd.hurries();
            let (pace, user) = (&self.pace, &mut self.users[number as usize]);
            match user.schedule.take(until_us, pace, hurries) {
                None => break,
                Some(Action::Request(kind, intended_us)) => {
                    self.late(now_us - intended_us);
                    self.due(number, kind, intended_us, now_us);
                }
                Some(Action::Flip) => {
                    if user.schedule.background && user.exchange.is_none() {
                        user.link.close();
                    } else if user.schedule.background {
                        user.link.closes = true;
                    }
                }
                Some(Action::Renew) => {
                    if user.exchange.is_none() {
                        user.link.close();
                    } else {
                        user.link.closes = true;
                    }
                }
            }
        }
    }

    pub(super) fn late(&mut self, behind_us: u64) {
        self.tally.record.behind_us_max = self.tally.record.behind_us_max.max(behind_us);
    }

    /// An action of the schedule is due.
    pub(super) fn due(&mut self, number: u32, kind: Kind, intended_us: u64, now_us: u64) {
        let mut request = Waiting {
            kind,
            intended_us,
            find: None,
            conditional: false,
            again: false,
        };
        match kind {
            Kind::Poll => {
                let share = self.user(number).schedule.share();
                request.conditional = share < self.case.behaviour.conditional_share;
            }
            Kind::Find => match self.new_find(number, intended_us, now_us) {
                Some(find) => request.find = Some(find),
                None => return,
            },
            // Of the back end's own schedule.
            Kind::BulkFind if number == 0 => {
                self.bulk_tick(intended_us, now_us);
                return;
            }
            // Of a recording, which does not say what it held: a find, for the back end's next request.
            Kind::BulkFind => {
                self.replayed_bulk(number, intended_us, now_us);
                return;
            }
            Kind::Heartbeat | Kind::History | Kind::Catalogue => {}
        }
        self.request(number, request, now_us);
    }

    /// Intends a request: it leaves now, or waits for those before it, or is dropped.
    pub(super) fn request(&mut self, number: u32, request: Waiting, now_us: u64) {
        self.tally.of(request.kind).intended += 1;
        if number != 0 && self.user(number).is_offline(now_us) {
            self.drop_request(number, request, Drop::Offline, now_us);
            return;
        }
        self.set_aside(number, &request);
        let user = self.user(number);
        if user.exchange.is_none() {
            self.open.waiting[request.kind as usize] += 1;
            self.user(number).waiting.push_back(request);
            self.next(number, now_us);
            return;
        }
        user.waiting.push_back(request);
        self.open.waiting[request.kind as usize] += 1;
        if self.user(number).waiting.len() > super::user::WAITING_MAX
            && let Some(oldest) = self.user(number).waiting.pop_front()
        {
            self.open.waiting[oldest.kind as usize] -= 1;
            self.drop_request(number, oldest, Drop::GaveUp, now_us);
        }
    }

    /// A request is never sent.
    pub(super) fn drop_request(&mut self, number: u32, request: Waiting, why: Drop, now_us: u64) {
        let waited_us = now_us.saturating_sub(request.intended_us);
        self.tally.of(request.kind).dropped(why, waited_us);
        match (request.kind, request.find) {
            (Kind::Poll, _) => {
                let (pace, user) = (&self.pace, &mut self.users[number as usize]);
                user.schedule.hinted(pace, request.intended_us, None);
            }
            (Kind::Find, Some(find)) if request.again => self.try_again(number, find, now_us),
            (Kind::BulkFind, _) if why != Drop::BulkFull => self.bulk_failed(),
            _ => {}
        }
    }

    /// Begins what waits, if nothing is under way.
    pub(super) fn next(&mut self, number: u32, now_us: u64) {
        // What waits does so for the first connection.
        while self.user(number).exchange.is_none() && !self.user(number).is_aside {
            let waiting = &mut self.user(number).waiting;
            let Some(request) = waiting.pop_front() else {
                // What a stampede or a stall took is not kept for every user.
                if waiting.capacity() > super::user::WAITING_KEPT {
                    waiting.shrink_to(super::user::WAITING_KEPT);
                }
                return;
            };
            self.open.waiting[request.kind as usize] -= 1;
            if now_us.saturating_sub(request.intended_us) >= self.timeout_us {
                self.drop_request(number, request, Drop::GaveUp, now_us);
            } else if number != 0 && self.user(number).is_offline(now_us) {
                self.drop_request(number, request, Drop::Offline, now_us);
            } else {
                self.begin(number, request, now_us);
            }
        }
    }

    /// Users who are caught up in a stampede, a few a turn. Says whether some are left.
    fn stampede_on(&mut self, now_us: u64) -> bool {
        let Some(from) = self.stampede else {
            return false;
        };
        let to = (from + STAMPEDE_PER_TURN).min(self.users.len());
        for nth in from..to {
            let Ok(number) = u32::try_from(nth) else {
                break;
            };
            if !self.user(number).here || self.user(number).is_offline(now_us) {
                continue;
            }
            self.drop_aside(number, now_us);
            if let Some(exchange) = self.user(number).exchange
                && matches!(exchange.stage, Stage::Connecting | Stage::Sent)
            {
                self.fail(number, Failure::Stampede, now_us);
            }
            if self
                .user(number)
                .exchange
                .is_none_or(|exchange| !matches!(exchange.stage, Stage::Connecting | Stage::Sent))
            {
                self.user(number).link.close();
                self.connect(number, now_us);
            }
            self.arm(number);
        }
        self.stampede = (to < self.users.len()).then_some(to);
        self.stampede.is_some()
    }
}
