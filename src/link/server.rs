//! The server's end of a link.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;

use super::call::{self, CallShape, push_answer, push_refusal};
use super::frame::{self, Frame, FrameError, Hello, PROTOCOL, Refused, RequestFrame, VERSION};
use super::input::Input;
use super::limits::LinkLimits;
use super::peers::LinkPeers;
use super::places::Calls;
use crate::front::{
    Answer, Backend, Body, Framing, Head, Limits, Offer, Origin, OwnAnswer, Phase, Refusal, Stream,
    Upgraded, UpgradedTurn, field_slots, whole_request,
};

/// A backend that also accepts links, and answers their requests as `inner` does.
pub struct Linked<B> {
    inner: Arc<B>,
    peers: LinkPeers,
    shared: Arc<Settings>,
}

struct Settings {
    link: LinkLimits,
    front: Limits,
}

impl<B: Backend> Linked<B> {
    /// Links are accepted from `peers`; from others, the request for one is an ordinary request. Heads that come over a
    /// link are held to `front`, the limits of the front itself.
    pub fn new(inner: Arc<B>, peers: LinkPeers, link: LinkLimits, front: Limits) -> Self {
        Linked {
            inner,
            peers,
            shared: Arc::new(Settings { link, front }),
        }
    }
}

impl<B: Backend> Backend for Linked<B> {
    type Body = B::Body;
    type Future = B::Future;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        self.inner.answer_now(head, answer)
    }

    fn wants_whole(&self, head: &Head<'_>) -> bool {
        self.inner.wants_whole(head)
    }

    fn answer_whole(&self, head: &Head<'_>, body: &[u8], answer: &mut Answer<'_>) -> bool {
        self.inner.answer_whole(head, body, answer)
    }

    fn take(&self, offer: &mut Offer<'_>) {
        self.inner.take(offer);
    }

    fn gone(&self, note: u64) {
        self.inner.gone(note);
    }

    fn upgrade(&self, head: &Head<'_>) -> Option<Box<dyn Upgraded>> {
        let asks = head.upgrade().is_some_and(|list| {
            list.split(|byte| *byte == b',')
                .any(|name| name.trim_ascii().eq_ignore_ascii_case(PROTOCOL.as_bytes()))
        });
        if asks && self.peers.contains(head.peer().ip()) {
            let link = ServerLink::new(self.inner.clone(), self.shared.clone());
            return Some(Box::new(link));
        }
        self.inner.upgrade(head)
    }

    fn read_slowly(&self, answered_after: Duration, reading: Duration) {
        self.inner.read_slowly(answered_after, reading);
    }

    fn sign(&self, took: Duration, answer: &mut Answer<'_>) {
        self.inner.sign(took, answer);
    }

    fn refused(&self, own: &OwnAnswer) {
        self.inner.refused(own);
    }

    fn give_up(&self, why: Refusal, future: Pin<&mut Self::Future>) {
        self.inner.give_up(why, future);
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        self.inner.body_bytes_max(head)
    }

    fn call(&self, request: Request<Body>) -> Self::Future {
        self.inner.call(request)
    }
}

/// One link, as what its connection has become.
struct ServerLink<B> {
    backend: Arc<B>,
    settings: Arc<Settings>,
    calls: Arc<Calls>,
    input: Input,
    /// Frames on their way out, from `written` on.
    output: Vec<u8>,
    written: usize,
    fresh: bool,
    leaving: bool,
    silent_looks: u32,
    stuck_looks: u32,
}

impl<B: Backend> ServerLink<B> {
    fn new(backend: Arc<B>, settings: Arc<Settings>) -> Self {
        ServerLink {
            backend,
            calls: Calls::new(settings.link.output_bytes_max),
            input: Input::new(settings.link.read_bytes),
            settings,
            output: Vec::new(),
            written: 0,
            fresh: true,
            leaving: false,
            silent_looks: 0,
            stuck_looks: 0,
        }
    }

    /// The first turn: says hello.
    fn begin(&mut self, turn: &mut UpgradedTurn<'_>) -> Result<(), FrameError> {
        let limits = &self.settings.link;
        frame::push_hello(
            &mut self.output,
            &Hello {
                version: VERSION,
                requests_max: limits.requests_max,
                request_bytes_max: limits.request_bytes_max,
                answer_bytes_max: limits.answer_bytes_max,
            },
        );
        turn.wake_in(limits.ping_interval_ms);
        self.input.put(turn.early());
        self.take_frames()
    }

    /// A look at whether the client is alive. False if it is not.
    fn look(&mut self) -> bool {
        let limits = &self.settings.link;
        self.silent_looks += 1;
        self.stuck_looks = if self.output.is_empty() {
            0
        } else {
            self.stuck_looks + 1
        };
        // A client pings where it hears nothing, which is at the earliest after two of its looks.
        self.silent_looks <= limits.silent_looks_max + 2
            && self.stuck_looks <= limits.stuck_looks_max
    }

    fn take_frames(&mut self) -> Result<(), FrameError> {
        let mut input = std::mem::replace(&mut self.input, Input::empty());
        let frame_bytes_max = self.settings.link.request_frame_bytes_max();
        // One look at the clock a read: requests that came together arrived together.
        let arrived = Instant::now();
        let result = loop {
            let taken = match input.next(frame_bytes_max) {
                Ok(Some((frame, _))) => self.take_frame(frame, arrived),
                Ok(None) => break Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                break Err(error);
            }
        };
        input.compact();
        self.input = input;
        result
    }

    fn take_frame(&mut self, frame: &[u8], arrived: Instant) -> Result<(), FrameError> {
        match frame::parse(frame)? {
            Frame::Request(request) => self.take_request(&request, arrived),
            Frame::Cancel(tag) => {
                let call = self.calls.lock().cancel(tag)?;
                if let Some(call) = call {
                    call.abort();
                }
                Ok(())
            }
            Frame::Ping => {
                frame::push(&mut self.output, &Frame::Pong);
                Ok(())
            }
            Frame::Pong => Ok(()),
            _ => Err(FrameError::OutOfPlace),
        }
    }

    fn take_request(
        &mut self,
        request: &RequestFrame<'_>,
        arrived: Instant,
    ) -> Result<(), FrameError> {
        let tag = request.tag;
        {
            let mut places = self.calls.lock();
            places.open(tag, self.settings.link.requests_max)?;
            if self.leaving {
                places.refuse(Refused::Leaving, tag);
                return Ok(());
            }
        }
        let origin = Origin {
            peer: request.client,
            arrived,
        };
        let mut slots = field_slots();
        let head = match Head::parse(request.head, &mut slots, &self.settings.front, origin) {
            Ok(Some(head)) if head.bytes() == request.head.len() => head,
            // The client has read it as a head, by the same rules or by larger limits.
            Err(refusal) => return self.refuse(request, arrived, refusal),
            Ok(_) => return Err(FrameError::Malformed(0)),
        };
        let announced = match head.framing() {
            Framing::Empty => 0,
            Framing::Length(length) => length,
            Framing::Chunked => return Err(FrameError::WrongBody),
        };
        if announced != request.body.len() as u64 || head.expects_continue() {
            return Err(FrameError::WrongBody);
        }
        let head_only = head.method() == "HEAD";
        let backend = &self.backend;
        if announced > 0 {
            let limit = backend.body_bytes_max(&head);
            if announced > limit.unwrap_or(self.settings.front.body_bytes_max) {
                return self.refuse(request, arrived, Refusal::BodyTooLarge);
            }
        }
        let before = self.output.len();
        // Safe to go on after a panic: all it can have left half done is the output, which is cut back.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            push_answer(&mut self.output, tag, head_only, |answer| {
                if request.body.is_empty() {
                    backend.answer_now(&head, answer)
                } else {
                    announced <= self.settings.front.small_body_bytes_max.into()
                        && backend.wants_whole(&head)
                        && backend.answer_whole(&head, request.body, answer)
                }
            })
        }));
        match answered {
            Ok(true) => {
                self.calls.lock().close(tag);
                return Ok(());
            }
            Ok(false) => {}
            Err(_) => {
                self.output.truncate(before);
                return self.refuse(request, arrived, Refusal::Internal);
            }
        }
        let body = Bytes::copy_from_slice(request.body);
        let built = match whole_request(&head, request.head, body) {
            Ok(built) => built,
            Err(refusal) => return self.refuse(request, arrived, refusal),
        };
        let shape = CallShape {
            tag,
            head_only,
            is_safe: matches!(head.method(), "GET" | "HEAD"),
            // Whatever the client would wait, no longer than a client of the front itself.
            deadline: Duration::from_millis(
                request
                    .deadline_ms
                    .min(self.settings.front.answer_timeout_ms)
                    .into(),
            ),
        };
        call::spawn(
            &self.backend,
            built,
            &self.calls,
            shape,
            &self.settings.link,
        );
        Ok(())
    }

    /// Answers one request with a refusal.
    fn refuse(
        &mut self,
        request: &RequestFrame<'_>,
        arrived: Instant,
        refusal: Refusal,
    ) -> Result<(), FrameError> {
        self.calls.lock().close(request.tag);
        let head_only = request.head.trim_ascii_start().starts_with(b"HEAD ");
        push_answer(&mut self.output, request.tag, head_only, |answer| {
            push_refusal(answer, refusal, |answer| {
                self.backend.sign(arrived.elapsed(), answer);
            });
            true
        });
        self.backend.refused(&OwnAnswer {
            why: refusal,
            took: arrived.elapsed(),
            was_called: false,
        });
        Ok(())
    }

    /// Writes what waits, one write unless the socket takes less than all. `Err` ends the link.
    fn write(&mut self, cx: &mut Context<'_>, stream: &mut dyn Stream) -> Result<(), ()> {
        let output_bytes_max = self.settings.link.output_bytes_max as usize;
        {
            let mut places = self.calls.lock();
            places.visit(cx.waker());
            // What calls have left stays with them while there is enough to write: they wait then.
            if self.output.len() - self.written < output_bytes_max {
                places.take_output(&mut self.output);
            }
        }
        while self.written < self.output.len() {
            match Pin::new(&mut *stream).poll_write(cx, &self.output[self.written..]) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0) | Err(_)) => return Err(()),
                Poll::Ready(Ok(written)) => {
                    self.written += written;
                    self.stuck_looks = 0;
                }
            }
        }
        self.written = 0;
        self.output.clear();
        self.output
            .shrink_to(self.settings.link.read_bytes as usize);
        self.calls.room.notify_waiters();
        match Pin::new(&mut *stream).poll_flush(cx) {
            Poll::Ready(Err(_)) => Err(()),
            _ => Ok(()),
        }
    }

    fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }
}

impl<B: Backend> Upgraded for ServerLink<B> {
    fn protocol(&self) -> &'static str {
        PROTOCOL
    }

    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn Stream,
        turn: &mut UpgradedTurn<'_>,
    ) -> Poll<()> {
        let mut result = Ok(());
        if std::mem::take(&mut self.fresh) {
            result = self.begin(turn);
        }
        if turn.timer_fired() {
            turn.wake_in(self.settings.link.ping_interval_ms);
            if !self.look() {
                tracing::warn!("a link's client has fallen silent, or has stopped reading");
                return Poll::Ready(());
            }
        }
        if turn.phase() >= Phase::Draining && !self.leaving {
            self.leaving = true;
            frame::push(&mut self.output, &Frame::Leaving);
        }
        let mut ended = false;
        // One read a turn, so that others have theirs; none while the client takes no answers.
        let output_bytes_max = self.settings.link.output_bytes_max as usize;
        let reads = self.unwritten() < output_bytes_max && !self.calls.lock().is_crowded();
        if result.is_ok() && reads {
            match self.input.read(stream, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(0) | Err(_)) => ended = true,
                Poll::Ready(Ok(_)) => {
                    self.silent_looks = 0;
                    result = self.take_frames();
                    cx.waker().wake_by_ref();
                }
            }
        }
        if let Err(error) = result {
            tracing::warn!(%error, "a link is closed");
            return Poll::Ready(());
        }
        if ended || self.write(cx, stream).is_err() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl<B> Drop for ServerLink<B> {
    fn drop(&mut self) {
        let calls = self.calls.lock().close_all();
        for call in calls {
            call.abort();
        }
    }
}
