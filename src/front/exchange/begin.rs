//! What an exchange is made from.

use std::task::Waker;

use bytes::Bytes;

use super::super::answer::{Persistence, Shape};
use super::super::body::{Body, Pipe};
use super::super::chunk::ChunkDecoder;
use super::super::framing::Framing;
use super::super::head::Head;
use super::super::intake::Intake;
use super::super::refusal::Refusal;
use super::super::request;
use super::super::response::Delimiter;
use super::super::upgrade::Upgraded;
use super::super::{Backend, Front};
use super::{Exchange, Progress};

impl<B: Backend> Exchange<B> {
    /// Prepares an exchange and the request for it. `raw` is the head as read.
    ///
    /// # Errors
    /// The body is announced as too large, or the head is not one that `http` takes.
    pub(in crate::front) fn begin(
        front: &Front<B>,
        head: &Head<'_>,
        raw: &[u8],
        shape: Shape<'_>,
        waker: &Waker,
    ) -> Result<(Box<Exchange<B>>, http::Request<Body>), Refusal> {
        let limits = &front.limits;
        let framing = head.framing();
        let (intake, length) = match framing {
            Framing::Empty => (Intake::Done, Some(0)),
            Framing::Length(length) => (Intake::Length(length), Some(length)),
            Framing::Chunked => {
                let decoder =
                    ChunkDecoder::new(limits.chunk_line_bytes_max, limits.chunk_overhead_bytes_max);
                (Intake::Chunked(decoder), None)
            }
        };
        let body_max = match framing {
            Framing::Empty => 0,
            _ => front
                .backend
                .body_bytes_max(head)
                .unwrap_or(limits.body_bytes_max),
        };
        if length.is_some_and(|length| length > body_max) {
            return Err(Refusal::BodyTooLarge);
        }
        let pipe = (framing != Framing::Empty).then(|| Pipe::new(length, waker));
        let body = pipe.clone().map_or_else(Body::empty, Body::streamed);
        let request = request::build(head, raw, body)?;
        let exchange = Box::new(Exchange {
            progress: Progress::Ready,
            intake,
            pipe,
            body_left: body_max,
            since_timer: 0,
            owes_continue: head.expects_continue(),
            delimiter: Delimiter::None,
            persistence: shape.persistence,
            head_only: shape.head_only,
            minor: head.minor_version(),
            piece: Bytes::new(),
            piece_is_chunk: false,
        });
        Ok((exchange, request))
    }

    /// The same for a request whose body, `whole`, is there already.
    ///
    /// # Errors
    /// The head does not announce this body, or is not one that `http` takes.
    pub(in crate::front) fn begin_whole(
        front: &Front<B>,
        head: &Head<'_>,
        raw: &[u8],
        shape: Shape<'_>,
        whole: Bytes,
        waker: &Waker,
    ) -> Result<(Box<Exchange<B>>, http::Request<Body>), Refusal> {
        let announced = match head.framing() {
            Framing::Empty => 0,
            Framing::Length(length) => length,
            Framing::Chunked => return Err(Refusal::Internal),
        };
        if announced != whole.len() as u64 {
            return Err(Refusal::Internal);
        }
        let (mut exchange, request) = Self::begin(front, head, raw, shape, waker)?;
        exchange.intake = Intake::Done;
        exchange.owes_continue = false;
        if let Some(pipe) = &exchange.pipe {
            pipe.give(Some(whole), true, waker);
        }
        Ok((exchange, request))
    }

    /// What a connection keeps that has left HTTP.
    pub(in crate::front) fn of_upgraded(upgraded: Box<dyn Upgraded>) -> Box<Exchange<B>> {
        Box::new(Exchange {
            progress: Progress::Upgraded(upgraded),
            intake: Intake::Done,
            pipe: None,
            body_left: 0,
            since_timer: 0,
            owes_continue: false,
            delimiter: Delimiter::None,
            persistence: Persistence::Close,
            head_only: false,
            minor: 1,
            piece: Bytes::new(),
            piece_is_chunk: false,
        })
    }
}
