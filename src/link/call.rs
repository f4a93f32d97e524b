//! Requests of a link that are not answered at once: each a task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE};
use http::response::Parts;
use http_body::Body as _;
use http_body_util::BodyExt;

use super::frame::{self, Frame, Refused, Tag};
use super::limits::LinkLimits;
use super::places::Calls;
use crate::front::{
    Answer, Apart, Backend, Body, OwnAnswer, Refusal, connection_options, is_framing,
};

/// What of a request its answer depends on.
#[derive(Clone, Copy)]
pub(super) struct CallShape {
    pub(super) tag: Tag,
    pub(super) head_only: bool,
    /// GET or HEAD: it may be repeated elsewhere.
    pub(super) is_safe: bool,
    pub(super) deadline: Duration,
}

/// Gives a request to `backend`; its answer goes to `calls`. Its tag is open.
pub(super) fn spawn<B: Backend>(
    backend: &Arc<B>,
    request: http::Request<Body>,
    calls: &Arc<Calls>,
    shape: CallShape,
    limits: &LinkLimits,
) {
    let guard = Settling {
        backend: backend.clone(),
        arrived: Instant::now(),
        calls: calls.clone(),
        shape,
    };
    // Safe to go on after a panic: nothing of the backend is kept. The guard answers.
    let Ok(future) = catch_unwind(AssertUnwindSafe(|| backend.call(request))) else {
        backend.refused(&OwnAnswer {
            why: Refusal::Internal,
            took: guard.arrived.elapsed(),
            was_called: false,
        });
        return;
    };
    let body_bytes_max = if shape.is_safe {
        limits.answer_bytes_max
    } else {
        limits.unsafe_answer_bytes_max
    } as usize;
    let task = tokio::spawn(async move {
        let mut future = std::pin::pin!(future);
        let answering = async {
            let (parts, body) = future.as_mut().await.into_parts();
            let whole = collect::<B>(&parts, body, body_bytes_max, shape.head_only).await;
            guard.calls.until_room().await;
            (parts, whole)
        };
        match tokio::time::timeout(shape.deadline, answering).await {
            Ok((parts, Ok(whole))) => guard.answer(|answer| write(answer, &parts, &whole, shape)),
            Ok((_, Err(why))) => guard.refuse(why),
            Err(_) => {
                guard.backend.give_up(Refusal::AnswerTimeout, future);
                guard.refuse(Refused::DeadlinePassed);
            }
        }
    });
    calls.lock().has_call(shape.tag, task.abort_handle());
}

/// A whole body, and the length that it would have where HEAD leaves it out.
struct Whole {
    bytes: Bytes,
    length: u64,
}

async fn collect<B: Backend>(
    parts: &Parts,
    body: B::Body,
    bytes_max: usize,
    head_only: bool,
) -> Result<Whole, Refused> {
    let declared = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let hint = body.size_hint();
    if head_only {
        // The body of an answer to HEAD is usually gone by now.
        let length = match hint.exact() {
            Some(0) | None => declared.unwrap_or(0),
            Some(exact) => exact,
        };
        let bytes = Bytes::new();
        return Ok(Whole { bytes, length });
    }
    let fields: usize = parts
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    let bytes_max = bytes_max.saturating_sub(fields);
    if hint.lower() > bytes_max as u64 {
        return Err(Refused::AnswerTooLarge);
    }
    let mut body = std::pin::pin!(body);
    let mut first = Bytes::new();
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => data,
            // Trailers are dropped.
            Ok(Err(_)) => continue,
            Err(error) => {
                tracing::debug!(%error, "the body of an answer failed");
                return Err(Refused::AnswerBroke);
            }
        };
        if first.len() + all.len() + data.len() > bytes_max {
            return Err(Refused::AnswerTooLarge);
        }
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
    }
    let bytes = if all.is_empty() { first } else { all.into() };
    let length = bytes.len() as u64;
    if declared.is_some_and(|declared: u64| declared != length) {
        return Err(Refused::AnswerBroke);
    }
    Ok(Whole { bytes, length })
}

/// Writes a response. `Date` is left to the front that faces the client.
fn write(answer: &mut Answer<'_>, parts: &Parts, whole: &Whole, shape: CallShape) {
    answer.status(parts.status.as_u16());
    for (name, value) in &parts.headers {
        let dropped = name == DATE || is_framing(name.as_str()) || {
            let mut lists = parts.headers.get_all(CONNECTION).iter();
            lists.any(|list| {
                connection_options(list.as_bytes())
                    .any(|option| option.eq_ignore_ascii_case(name.as_str().as_bytes()))
            })
        };
        if !dropped {
            answer.field(name.as_str(), value);
        }
    }
    if shape.head_only {
        answer.length_only(whole.length);
    } else {
        answer.body(&whole.bytes);
    }
}

/// Has the last word on a request whatever becomes of its call, a panic included.
struct Settling<B: Backend> {
    backend: Arc<B>,
    arrived: Instant,
    calls: Arc<Calls>,
    shape: CallShape,
}

impl<B: Backend> Settling<B> {
    fn answer(&self, write: impl FnOnce(&mut Answer<'_>)) {
        self.calls.settle(self.shape.tag, |out| {
            push_answer(out, self.shape.tag, self.shape.head_only, |answer| {
                write(answer);
                true
            });
        });
    }

    fn refuse(&self, why: Refused) {
        let tag = self.shape.tag;
        self.calls
            .settle(tag, |out| frame::push(out, &Frame::Refused(why, tag)));
    }
}

impl<B: Backend> Drop for Settling<B> {
    fn drop(&mut self) {
        // Nothing, unless the call has panicked.
        self.answer(|answer| {
            push_refusal(answer, Refusal::Internal, |answer| {
                self.backend.sign(self.arrived.elapsed(), answer);
            });
        });
    }
}

/// Writes an answer's frame. False, and nothing is written, when `write` gives false; what cannot be sent becomes 500.
pub(super) fn push_answer(
    out: &mut Vec<u8>,
    tag: Tag,
    head_only: bool,
    write: impl FnOnce(&mut Answer<'_>) -> bool,
) -> bool {
    let at = frame::open_answer(out);
    let written = Apart::write(out, head_only, write).unwrap_or_else(|refusal| {
        Apart::write(out, head_only, |answer| {
            push_refusal(answer, refusal, |_| {});
            true
        })
        .expect("a problem document can be sent")
    });
    match written {
        Some(apart) => {
            let parts = (apart.status, apart.fields_bytes, apart.length);
            frame::close_answer(out, at, tag, parts);
            true
        }
        None => {
            out.truncate(at);
            false
        }
    }
}

/// A refusal as an answer of the link, with the fields that `sign` adds: it closes nothing.
pub(super) fn push_refusal(
    answer: &mut Answer<'_>,
    refusal: Refusal,
    sign: impl FnOnce(&mut Answer<'_>),
) {
    answer
        .status(refusal.describe().0)
        .content_type("application/problem+json")
        .field("cache-control", "no-store");
    sign(answer);
    answer.body(refusal.problem_json().as_bytes());
}
