//! The life of a request that is forwarded, whatever carries it.
//!
//! ```text
//! instance? ──► connection? ──► send ──► head of the answer ──► its body streams
//!     │ none        │ none         │ lost
//!     ▼             ▼              ▼
//!    503      another instance   sent twice? only without a byte of an answer, only GET and HEAD,
//!                                or a write with an Idempotency-Key whose body is kept
//! ```
//!
//! What was never sent may go to another instance whatever it is.

use super::backend::route_of;
use super::balance::PlayerKey;
use super::blame::{self, BodyWait, Came, Took};
use super::body::ShimBody;
use super::cache::{Cache, Key};
use super::group::{Failure, Group, Ticket};
use super::metrics::Metrics;
use super::problem::Problem;
use super::queue::Shed;
use super::replay::ReplayBody;
use super::transport::{self, Incoming, Lost, Outgoing};
use crate::sla::Sla;
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most instances that are tried for want of a connection.
const CONNECT_TRIES_MAX: u32 = 3;

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// A request to be forwarded.
pub(super) struct Forwarding<'a> {
    pub(super) group: &'a Arc<Group>,
    pub(super) parts: &'a Parts,
    pub(super) key: Option<PlayerKey>,
    pub(super) metrics: &'a Metrics,
    /// Where its answer may be kept.
    pub(super) keep: Option<(&'a Cache, Key)>,
    pub(super) replay_bytes_max: usize,
    /// How it came.
    pub(super) came: Came,
    /// How long its body is waited for.
    pub(super) body_wait: BodyWait,
    pub(super) sla: &'a Sla,
    /// A link has had it, and it may have been carried out.
    pub(super) was_tried: bool,
}

/// Times of a request, for `Server-Timing`.
#[derive(Default)]
struct Times {
    queue: Duration,
    upstream: Duration,
}

impl Forwarding<'_> {
    /// The answer of an instance.
    pub(super) async fn run(mut self, mut body: ReplayBody) -> Result<Response<ShimBody>, Problem> {
        let is_read = matches!(self.parts.method, Method::GET | Method::HEAD);
        let may_repeat = (is_read || self.parts.headers.contains_key(IDEMPOTENCY_KEY))
            && body
                .length()
                .is_none_or(|length| length <= self.replay_bytes_max as u64);
        body.keep(if may_repeat { self.replay_bytes_max } else { 0 });
        let mut times = Times::default();
        let mut avoid = None;
        let mut unsent = 0;
        let mut is_repeat = self.was_tried;
        let mut body = Some(body);
        loop {
            let ticket = self.ticket(avoid, &mut times).await?;
            let index = ticket.index();
            let outgoing = Outgoing {
                parts: self.parts,
                body: &mut body,
                may_repeat,
                is_repeat,
                read_ahead_max: self.replay_bytes_max,
            };
            let began = Instant::now();
            let sent = transport::send(ticket, outgoing).await;
            times.upstream += began.elapsed();
            let lost = match sent {
                Ok(incoming) => return Ok(self.answer(incoming, &times)),
                Err(lost) => lost,
            };
            avoid = Some(index);
            let can_rewind = body.as_mut().is_some_and(ReplayBody::rewind);
            match lost {
                Lost::NotSent => {
                    unsent += 1;
                    if unsent == CONNECT_TRIES_MAX || !can_rewind {
                        return Err(Problem::Shed(Shed::Unreachable));
                    }
                }
                Lost::Sent(Failure::Closed) if may_repeat && !is_repeat && can_rewind => {
                    is_repeat = true;
                    self.metrics.retries.inc();
                }
                Lost::Sent(Failure::Timeout) => return Err(Problem::GatewayTimeout),
                Lost::Sent(_) => return Err(Problem::BadGateway),
                Lost::Client => return Err(Problem::ClientBody),
                Lost::LengthRequired => return Err(Problem::LengthRequired),
            }
        }
    }

    async fn ticket(&self, avoid: Option<usize>, times: &mut Times) -> Result<Ticket, Problem> {
        if let Some(ticket) = self.group.pick(self.key, avoid) {
            return Ok(ticket);
        }
        let began = Instant::now();
        let admitted = self.group.admit(self.key, avoid).await;
        times.queue += began.elapsed();
        admitted.map_err(Problem::Shed)
    }

    /// The answer as the client gets it.
    fn answer(&mut self, incoming: Incoming, times: &Times) -> Response<ShimBody> {
        let Incoming {
            mut parts,
            mut body,
        } = incoming;
        if let Some((cache, key)) = self.keep.take()
            && let Some(keeping) = cache.begin(key, &self.parts.method, &parts)
        {
            body.keep(keeping);
        }
        let body_wait = self.body_wait.get();
        let took = self.came.arrived.elapsed().saturating_sub(body_wait);
        let theirs = times.upstream.saturating_sub(body_wait);
        let own = took.saturating_sub(theirs + times.queue);
        let client = self.came.sending + body_wait;
        // A held poll was waiting for news, not for anybody here.
        if !parts.headers.contains_key("preference-applied") {
            let route = route_of(self.parts);
            let status = parts.status.as_u16();
            self.metrics.request(route, status, took);
            let took = Took {
                client,
                own,
                queue: times.queue,
                theirs,
            };
            blame::answered(self.sla, (route, status), &self.came, &took, &parts.headers);
        }
        add_timing(&mut parts.headers, own, times.queue);
        Response::from_parts(parts, body)
    }
}

/// Appends to the instance's `Server-Timing`, in milliseconds with microsecond digits.
pub(super) fn add_timing(fields: &mut HeaderMap, shim: Duration, queue: Duration) {
    let mut value = Vec::with_capacity(96);
    for given in fields.get_all(SERVER_TIMING) {
        value.extend_from_slice(given.as_bytes());
        value.extend_from_slice(b", ");
    }
    write_timing(&mut value, shim);
    value.extend_from_slice(b", queue;dur=");
    write_ms(&mut value, queue);
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
        fields.insert(SERVER_TIMING, value);
    }
}

/// `shim;dur=…`
pub(super) fn write_timing(out: &mut Vec<u8>, shim: Duration) {
    out.extend_from_slice(b"shim;dur=");
    write_ms(out, shim);
}

/// The same, with the queue of which a link has none.
pub(super) fn write_timing_without_queue(out: &mut Vec<u8>, shim: Duration) {
    write_timing(out, shim);
    out.extend_from_slice(b", queue;dur=0.000");
}

fn write_ms(out: &mut Vec<u8>, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    out.extend_from_slice(itoa::Buffer::new().format(us / 1_000).as_bytes());
    let rest = us % 1_000;
    out.push(b'.');
    for place in [100, 10, 1] {
        out.push(b'0' + u8::try_from(rest / place % 10).unwrap_or(0));
    }
}
