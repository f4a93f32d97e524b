//! The transport for every server: plain HTTP/1.1, one request at a time on each connection of the instance's pool.
//!
//! A request that must not be sent twice travels on a connection of its own, newly opened: on an idle one that its
//! instance closes in that moment, nobody could tell whether it arrived.

use super::body::{ShimBody, StreamedBody};
use super::exchange::{Ended, Sending, exchange};
use super::group::{Failure, Ticket};
use super::pool::Upstream;
use super::replay::ReplayBody;
use super::transport::{Incoming, Lost, Outgoing};
use super::wire::{self, AnswerHead, BodyForm};
use http::request::Parts;
use http::{Response, StatusCode};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::TcpStream;

/// See [`super::transport::send`].
pub(super) async fn send(ticket: Ticket, request: Outgoing<'_>) -> Result<Incoming, Lost> {
    let Some(body) = request.body else {
        return Err(Lost::Client);
    };
    let pooled = if request.may_repeat && !request.is_repeat {
        ticket.instance().pool.take()
    } else {
        None
    };
    let connected = match pooled {
        Some(upstream) => Ok(upstream),
        None => connect(&ticket).await,
    };
    let mut upstream = match connected {
        Ok(upstream) => upstream,
        Err(error) => {
            tracing::debug!(%error, instance = ticket.instance().address(), "no connection");
            ticket.failed(Failure::Connect);
            return Err(Lost::NotSent);
        }
    };
    // Where the pool has no room for it afterwards, the instance shall close it: whoever closes first keeps the pair of
    // ports for a minute, and here ports would run out.
    let closes = !upstream.is_reused && ticket.instance().pool.is_full();
    let read_ahead_max = request.read_ahead_max;
    let mut sending = write_head(&ticket, request.parts, body, read_ahead_max, closes).await?;
    ticket.sent();
    let answer_max = Duration::from_millis(ticket.group().limits.answer_ms);
    let method = &request.parts.method;
    let ended = match exchange(&mut upstream, &mut sending, body, method, answer_max).await {
        // What a server says to an idle connection before it closes it is no answer to a request.
        Ok(head) if head.status == StatusCode::REQUEST_TIMEOUT && upstream.is_reused => {
            Ended::Upstream(
                Failure::Closed,
                "the connection timed out as it was used again",
            )
        }
        Ok(head) => {
            ticket.answered(head.status.as_u16());
            ticket.instance().is_http10.store(head.is_http10, Relaxed);
            let rest = request.body.take();
            return Ok(begin(ticket, upstream, sending, rest, head, answer_max));
        }
        Err(ended) => ended,
    };
    match ended {
        Ended::Client => Err(Lost::Client),
        Ended::Upstream(failure, what) => {
            let instance = ticket.instance().address();
            tracing::debug!(instance, ?failure, what, "an answer was lost");
            if failure == Failure::Closed && upstream.is_reused {
                ticket.raced(failure);
            } else {
                ticket.failed(failure);
            }
            Err(Lost::Sent(failure))
        }
    }
}

async fn connect(ticket: &Ticket) -> io::Result<Upstream> {
    let connect_max = Duration::from_millis(ticket.group().limits.connect_ms);
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
async fn write_head(
    ticket: &Ticket,
    parts: &Parts,
    body: &mut ReplayBody,
    read_ahead_max: usize,
    closes: bool,
) -> Result<Sending, Lost> {
    let instance = ticket.instance();
    let mut form = match body.length() {
        Some(0) => BodyForm::None,
        Some(length) => BodyForm::Length(length),
        None => BodyForm::Chunked,
    };
    if form == BodyForm::Chunked && instance.is_http10.load(Relaxed) {
        let whole = body.read_ahead(read_ahead_max).await;
        form = match whole.map_err(|_| Lost::Client)? {
            Some(whole) => BodyForm::Length(whole.len() as u64),
            None => return Err(Lost::LengthRequired),
        };
    }
    let mut out = Vec::with_capacity(1024);
    wire::write_request(&mut out, parts, form, instance.address(), closes);
    Ok(Sending::new(out, form))
}

/// The answer's body: at once if it is all here, which frees the connection before the client has read a byte.
fn begin(
    ticket: Ticket,
    upstream: Upstream,
    sending: Sending,
    request: Option<ReplayBody>,
    head: AnswerHead,
    pause_max: Duration,
) -> Incoming {
    let mut response = Response::new(());
    *response.status_mut() = head.status;
    *response.headers_mut() = head.fields;
    let (parts, ()) = response.into_parts();
    let mut body = StreamedBody {
        upstream: Some(upstream),
        ticket: Some(ticket),
        answer: head.body,
        keep_alive: head.keep_alive,
        sending,
        request,
        pause_max,
        timer: None,
        keeping: None,
    };
    let body = match body.take_whole() {
        Some(bytes) => ShimBody::Whole(bytes),
        None => ShimBody::Streamed(Box::new(body)),
    };
    Incoming { parts, body }
}
