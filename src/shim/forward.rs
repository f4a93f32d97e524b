//! The life of a request that is forwarded over plain HTTP/1.1.
//!
//! ```text
//! instance? ──► connection? ──► send ──► head of the answer ──► its body streams
//!     │ none        │ none         │ lost
//!     ▼             ▼              ▼
//!    503      another instance   sent twice? only without a byte of an answer, only GET and HEAD,
//!                                or a write with an Idempotency-Key whose body is kept
//! ```
//!
//! What was never sent may go to another instance whatever it is. A write that must not be sent twice travels on a
//! connection of its own, newly opened: on an idle one that its instance closes in that moment, nobody could tell
//! whether it arrived.

use super::balance::PlayerKey;
use super::body::{ShimBody, StreamedBody};
use super::cache::{Cache, Keeping, Key};
use super::exchange::{Lost, Sending, exchange};
use super::group::{Failure, Group, Ticket};
use super::metrics::{Metrics, Route};
use super::pool::Upstream;
use super::problem::Problem;
use super::queue::Shed;
use super::replay::ReplayBody;
use super::wire::{self, AnswerHead, BodyForm};
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The most instances that are tried for want of a connection.
const CONNECT_TRIES_MAX: u32 = 3;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
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
    /// When its head had arrived.
    pub(super) arrived: Instant,
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
        let mut connects = 0;
        let mut is_repeat = false;
        loop {
            let ticket = self.ticket(avoid, &mut times).await?;
            let connected = if may_repeat && !is_repeat {
                self.connection(&ticket).await
            } else {
                self.new_connection(&ticket).await
            };
            let mut upstream = match connected {
                Ok(upstream) => upstream,
                Err(error) => {
                    tracing::debug!(%error, instance = ticket.instance().address(), "no connection");
                    ticket.failed(Failure::Connect);
                    connects += 1;
                    avoid = Some(ticket.index());
                    if connects < CONNECT_TRIES_MAX && body.rewind() {
                        continue;
                    }
                    return Err(Problem::Shed(Shed::Unreachable));
                }
            };
            let mut sending = self.head_for(&ticket, &mut body).await?;
            ticket.sent();
            let began = Instant::now();
            let answer_max = Duration::from_millis(self.group.limits.answer_ms);
            let method = &self.parts.method;
            let outcome =
                exchange(&mut upstream, &mut sending, &mut body, method, answer_max).await;
            times.upstream += began.elapsed();
            let outcome = outcome.and_then(|head| {
                // What a server says to an idle connection before it closes it is no answer to a request.
                if head.status == StatusCode::REQUEST_TIMEOUT && upstream.is_reused {
                    let what = "the connection timed out as it was used again";
                    return Err(Lost::Upstream(Failure::Closed, what));
                }
                Ok(head)
            });
            match outcome {
                Ok(head) => {
                    return Ok(self.answer(ticket, upstream, sending, body, head, &times));
                }
                Err(Lost::Client) => return Err(Problem::ClientBody),
                Err(Lost::Upstream(failure, what)) => {
                    let instance = ticket.instance().address();
                    tracing::debug!(instance, ?failure, what, "an answer was lost");
                    if failure == Failure::Closed && upstream.is_reused {
                        ticket.raced(failure);
                    } else {
                        ticket.failed(failure);
                    }
                    if failure == Failure::Closed && may_repeat && !is_repeat && body.rewind() {
                        is_repeat = true;
                        avoid = Some(ticket.index());
                        self.metrics.retries.inc();
                        continue;
                    }
                    return Err(match failure {
                        Failure::Timeout => Problem::GatewayTimeout,
                        _ => Problem::BadGateway,
                    });
                }
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

    async fn connection(&self, ticket: &Ticket) -> io::Result<Upstream> {
        match ticket.instance().pool.take() {
            Some(upstream) => Ok(upstream),
            None => self.new_connection(ticket).await,
        }
    }

    async fn new_connection(&self, ticket: &Ticket) -> io::Result<Upstream> {
        let connect_max = Duration::from_millis(self.group.limits.connect_ms);
        let connecting = async {
            let address = ticket.instance().socket_address().await?;
            TcpStream::connect(address).await
        };
        let stream = tokio::time::timeout(connect_max, connecting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Upstream::new(stream))
    }

    /// The request's head as this instance gets it.
    async fn head_for(&self, ticket: &Ticket, body: &mut ReplayBody) -> Result<Sending, Problem> {
        let instance = ticket.instance();
        let mut form = match body.length() {
            Some(0) => BodyForm::None,
            Some(length) => BodyForm::Length(length),
            None => BodyForm::Chunked,
        };
        if form == BodyForm::Chunked && instance.is_http10.load(Relaxed) {
            let whole = body.read_ahead(self.replay_bytes_max).await;
            form = match whole.map_err(|_| Problem::ClientBody)? {
                Some(whole) => BodyForm::Length(whole.len() as u64),
                None => return Err(Problem::LengthRequired),
            };
        }
        let mut out = Vec::with_capacity(1024);
        wire::write_request(&mut out, self.parts, form, instance.address());
        Ok(Sending::new(out, form))
    }

    fn answer(
        &mut self,
        ticket: Ticket,
        upstream: Upstream,
        sending: Sending,
        request: ReplayBody,
        mut head: AnswerHead,
        times: &Times,
    ) -> Response<ShimBody> {
        ticket.answered(head.status.as_u16());
        ticket.instance().is_http10.store(head.is_http10, Relaxed);
        let mut response = Response::new(ShimBody::empty());
        *response.status_mut() = head.status;
        *response.headers_mut() = std::mem::take(&mut head.fields);
        let (mut parts, _) = response.into_parts();
        let keeping = self
            .keep
            .take()
            .and_then(|(cache, key)| cache.begin(key, &self.parts.method, &parts));
        let body = stream(
            ticket, upstream, sending, request, head, keeping, self.group,
        );
        let took = self.arrived.elapsed();
        let own = took.saturating_sub(times.upstream + times.queue);
        // A held poll was waiting for news, not for anybody here.
        if !parts.headers.contains_key("preference-applied") {
            let route = if self.key.is_some() {
                Route::Poll
            } else {
                Route::Other
            };
            self.metrics.request(route, parts.status.as_u16(), took);
            self.metrics.slow(took, own + times.queue);
        }
        add_timing(&mut parts.headers, own, times.queue);
        Response::from_parts(parts, body)
    }
}

/// The answer's body: at once if it is all here, which frees the connection before the client has read a byte.
fn stream(
    ticket: Ticket,
    upstream: Upstream,
    sending: Sending,
    request: ReplayBody,
    head: AnswerHead,
    keeping: Option<Keeping>,
    group: &Group,
) -> ShimBody {
    let mut body = StreamedBody {
        upstream: Some(upstream),
        ticket: Some(ticket),
        answer: head.body,
        keep_alive: head.keep_alive,
        sending,
        request,
        pause_max: Duration::from_millis(group.limits.answer_ms),
        timer: None,
        keeping,
    };
    match body.take_whole() {
        Some(bytes) => ShimBody::Whole(bytes),
        None => ShimBody::Streamed(Box::new(body)),
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

fn write_ms(out: &mut Vec<u8>, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    out.extend_from_slice(itoa::Buffer::new().format(us / 1_000).as_bytes());
    let rest = us % 1_000;
    out.push(b'.');
    for place in [100, 10, 1] {
        out.push(b'0' + u8::try_from(rest / place % 10).unwrap_or(0));
    }
}
