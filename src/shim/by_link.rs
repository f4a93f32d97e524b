//! The life of a request that travels on a link.
//!
//! ```text
//! link of the instance open? ──► sent ──► answer
//!     │ no, full, or too large    │ link died         │ server leaves, answer too large
//!     ▼                           ▼                   ▼
//!   plain HTTP        once more elsewhere if safe    elsewhere, or plain HTTP
//! ```
//!
//! A link that lives and says nothing to a request in `answer_ms` has it answered 504: it may have been carried out.
//!
//! Nothing waits here: a request is given to a link in the turn that read it, and answered in the turn that reads the
//! answer. What a link gives back is sent again on another, or goes over plain HTTP.
//!
//! Measured with nginx and HAProxy as proxies before the same server in the same run, CPU a poll: the shim spends 0.44 to
//! 0.45 of the better of the two at 64 connections and 0.37 at 512, and leaves the server 0.19 and 0.15 of what they leave
//! it. Over four fifths of that is the kernel's, two thirds one `send` to the client. At 8,000 polls a second from 64
//! connections a poll spends 1 µs (median) to 34 µs (p99) in the shim, and takes 22 µs longer than directly at the median.

use super::backend::{Shim, is_health, is_poll};
use super::balance::PlayerKey;
use super::blame::{self, Came};
use super::forward::{IDEMPOTENCY_KEY, write_timing_without_queue};
use super::group::{Failure, Group};
use super::links::{self, LINK_DIED};
use super::metrics::Route;
use super::problem::Problem;
use crate::front::{Answer, FieldLines, Head, Limits, Offer, Origin, field_slots};
use crate::link::{Delivery, LinkOwner, Outgoing, Refused, Returned, Why};
use memchr::memmem::Finder;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Links that a request is given to which must not be lost because servers leave one after another.
const LEAVING_TRIES_MAX: u8 = 4;
/// A field of the answers of polls that were held.
static HELD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"preference-applied:"));
/// How often a request may be carried out for want of an answer, on links and over plain HTTP together.
const TRIES_MAX: u8 = 2;

impl Shim {
    /// Whether small bodies are wanted whole, for links.
    pub(super) fn has_links(&self) -> bool {
        self.upstreams.live().speaks_links()
    }

    /// Gives a request to a link, if it is one for links and its instance has one open.
    pub(super) fn take(&self, offer: &mut Offer<'_>) {
        let head = offer.head();
        let Some(route) = route(head) else { return };
        let group = self.upstreams.live();
        // Where there is nothing to choose, nobody asks whose poll it is: 2 to 3 % of what a poll costs here.
        let key = if group.has_choice() {
            self.key_of(head, route)
        } else {
            None
        };
        let Some(index) = group.pick_linked(key, None) else {
            return;
        };
        let Some(ticket) = offer.ticket() else { return };
        let told = self.peers.tell_on_link(head);
        let instance = &group.instances()[index];
        let sent = instance.links.send(
            ticket,
            &Outgoing {
                head,
                raw: offer.raw(),
                body: offer.body(),
                client: told.client,
                is_secure: false,
                deadline_ms: u32::try_from(group.limits.answer_ms).unwrap_or(u32::MAX),
                mark: route as u32,
                extra: told.extra.as_ref().and_then(|line| FieldLines::check(line)),
                leaves_out: told.leaves_out,
                trace: Some(told.trace),
            },
        );
        match sent {
            Ok(()) => count_sent(group, index),
            Err(ticket) => offer.give_back(ticket),
        }
    }

    fn key_of(&self, head: &Head<'_>, route: Route) -> Option<PlayerKey> {
        let authorization = head.authorization().filter(|_| route == Route::Poll)?;
        self.players.key(authorization)
    }

    /// Keeps the links of every instance open.
    pub(super) fn keep_links(self: &Arc<Self>) {
        for group in self.upstreams.groups() {
            for index in 0..group.instances().len() {
                let (shim, group) = (self.clone(), group.clone());
                links::keep(&Arc::new(Owner { shim, group, index }));
            }
        }
    }
}

/// What a request is, if it may travel on a link: polls, what else concerns one player, and writes. Other reads may have
/// public answers, which are kept: they go where these are looked for.
fn route(head: &Head<'_>) -> Option<Route> {
    let (method, path) = (head.method(), head.path());
    if is_poll(method, path) {
        return Some(Route::Poll);
    }
    let is_read = matches!(method, "GET" | "HEAD");
    let is_own = !is_read || path.starts_with("/treasure/");
    (is_own && !is_health(path)).then_some(Route::Other)
}

/// The route that a request's mark says.
fn route_of_mark(mark: u32) -> Route {
    if mark == Route::Poll as u32 {
        Route::Poll
    } else {
        Route::Other
    }
}

fn count_sent(group: &Group, index: usize) {
    let counters = &group.instances()[index].counters;
    counters.forwarded.inc();
    counters.on_links.inc();
}

/// Whoever hears of the links of one instance.
pub(super) struct Owner {
    shim: Arc<Shim>,
    group: Arc<Group>,
    index: usize,
}

impl Owner {
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The instance's place in its group.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Sends a request again that was not answered, and of which nothing is lost by that.
    fn again(&self, returned: Returned, key: Option<PlayerKey>) {
        let group = self.shim.upstreams.live();
        let avoid = Arc::ptr_eq(group, &self.group).then_some(self.index);
        let Some(index) = group.pick_linked(key, avoid) else {
            return returned.call();
        };
        match group.instances()[index].links.resend(returned) {
            Ok(()) => count_sent(group, index),
            Err(returned) => returned.call(),
        }
    }

    fn refuse(&self, returned: Returned, problem: Problem) {
        let shim = &self.shim;
        let took = returned.arrived().elapsed();
        let came = Came {
            arrived: returned.arrived(),
            sending: returned.sending(),
            trace: returned.trace(),
        };
        let route = route_of_mark(returned.mark());
        blame::failed(shim, problem, route, &came, Duration::ZERO);
        returned.answer(|answer| {
            let body = problem.write(answer, &shim.own_fields);
            answer
                .field_with("server-timing", |out| write_timing_without_queue(out, took))
                .body(body.as_bytes());
        });
        let status = problem.status().as_u16();
        shim.metrics.request(route, status, took);
    }

    /// The player whose poll it is, and whether nothing is lost by sending it twice.
    fn read(&self, returned: &Returned) -> (Option<PlayerKey>, bool) {
        let mut slots = field_slots();
        let origin = Origin {
            peer: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            arrived: returned.arrived(),
        };
        match Head::parse(returned.head(), &mut slots, &Limits::default(), origin) {
            Ok(Some(head)) => {
                let key = route(&head).and_then(|route| self.shim.key_of(&head, route));
                let is_keyed = head.field(IDEMPOTENCY_KEY.as_str()).is_some();
                (key, is_keyed || returned.may_repeat())
            }
            _ => (None, false),
        }
    }
}

impl LinkOwner for Owner {
    fn ended(&self, requests: u32) {
        self.group.instances()[self.index].links.ended(requests);
    }

    fn answering(&self, delivery: &Delivery<'_>, answer: &mut Answer<'_>) {
        self.group.answered(self.index, delivery.status);
        let took = delivery.now.saturating_duration_since(delivery.arrived);
        let theirs = delivery.read.duration_since(delivery.sent) + delivery.elsewhere;
        let own = took.saturating_sub(theirs);
        let metrics = &self.shim.metrics;
        // A held poll was waiting for news, not for anybody here.
        if HELD.find(delivery.fields.as_bytes()).is_none() {
            let route = route_of_mark(delivery.mark);
            metrics.request(route, delivery.status, took);
            blame::delivered(&self.shim, route, delivery, own);
        }
        answer.field_with("server-timing", |out| write_timing_without_queue(out, own));
    }

    fn returned(&self, returned: Returned) {
        let (key, may_repeat) = self.read(&returned);
        let instance = &self.group.instances()[self.index];
        match returned.why() {
            Why::LinkDied => {
                instance.counters.failures[LINK_DIED as usize].inc();
                if may_repeat && returned.tried() < TRIES_MAX {
                    self.shim.metrics.retries.inc();
                    self.again(returned, key);
                } else {
                    self.refuse(returned, Problem::BadGateway);
                }
            }
            Why::Refused(Refused::Leaving) if returned.attempts() < LEAVING_TRIES_MAX => {
                self.again(returned, key);
            }
            Why::Refused(Refused::Leaving) => returned.call(),
            Why::Refused(Refused::AnswerTooLarge) if may_repeat && returned.tried() < TRIES_MAX => {
                returned.call();
            }
            Why::Refused(Refused::AnswerTooLarge) => self.refuse(returned, Problem::BadGateway),
            Why::Refused(Refused::AnswerBroke) => {
                self.group.failed(self.index, Failure::Broken);
                self.refuse(returned, Problem::BadGateway);
            }
            Why::Overdue | Why::Refused(Refused::DeadlinePassed) => {
                self.group.failed(self.index, Failure::Timeout);
                self.refuse(returned, Problem::GatewayTimeout);
            }
        }
    }
}
