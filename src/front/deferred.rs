//! A request that the backend has taken: the connection waits for its ticket.

use std::task::Context;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Backend;
use super::answer::Shape;
use super::connection::{Connection, Flow, Sent, Stage, Timer};
use super::desk::{Collected, TakenShape, Tried};
use super::exchange::Exchange;
use super::head::{Head, Origin, field_slots};
use super::refusal::Refusal;
use super::scratch::Scratch;

impl<IO, B> Connection<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Backend,
{
    /// Puts the answer in the output if there is one.
    pub(super) fn deferred(&mut self, cx: &mut Context<'_>, s: &mut Scratch) -> Flow {
        match self.front.desk.collect(self.place(), &mut s.out) {
            Collected::Answered { closes: true } => {
                self.stage = Stage::Closing;
                Flow::Go
            }
            Collected::Answered { closes: false } => {
                self.stage = Stage::Reading;
                self.after_answer(cx, s)
            }
            Collected::Broken => {
                self.stage = Stage::Reading;
                self.refuse(s, Refusal::Internal);
                Flow::Go
            }
            Collected::Called {
                shape,
                request,
                head_bytes,
                tried,
            } => {
                self.stage = Stage::Exchanging;
                let request = request.split_at(head_bytes);
                if let Err(refusal) = self.call_late(cx, s, shape, request, tried) {
                    self.refuse_method(s, refusal, shape.head_only);
                }
                Flow::Go
            }
            Collected::Waiting => {
                // Answers ahead of this one in the pipeline.
                if !s.out.is_empty()
                    && let Sent::Stopped(flow) = self.send(cx, s)
                {
                    return flow;
                }
                self.arm(Timer::Answer);
                let flow = self.read_ahead(cx, s);
                if flow == Flow::Wait {
                    self.permit_direct(s);
                }
                flow
            }
        }
    }

    /// Lets the answer be written without a turn of this connection, if its next turn would do nothing but that. Measured
    /// side by side at 64 connections: 2 to 3 % of what a poll over a link costs the shim, reads and writes without the C
    /// library included.
    fn permit_direct(&self, s: &Scratch) {
        let is_idle = s.pending() == 0
            && self.unsent().is_empty()
            && !self.unflushed
            && !self.eof
            && !self.client_is_done;
        if let Some(socket) = &self.socket
            && is_idle
        {
            self.front.desk.permit(self.place(), socket.clone());
        }
    }

    /// Begins a turn of a connection that waits for its answer, which may have been written meanwhile.
    pub(super) fn resume_deferred(&mut self) {
        if self.stage == Stage::Deferred && self.front.desk.resume(self.spare, self.seat) {
            self.stage = Stage::Reading;
            self.spare = 0;
            // As the desk has set it.
            self.timer = Timer::Idle;
            if let Some(kept) = &mut self.kept {
                kept.since = None;
            }
        }
    }

    /// Begins the exchange that a ticket asked for.
    fn call_late(
        &mut self,
        cx: &mut Context<'_>,
        s: &Scratch,
        shape: TakenShape,
        (raw, body): (&[u8], &[u8]),
        tried: Tried,
    ) -> Result<(), Refusal> {
        let origin = Origin {
            peer: self.peer,
            arrived: self.arrived,
        };
        let mut slots = field_slots();
        let head = Head::parse(raw, &mut slots, &self.front.limits, origin)
            .ok()
            .flatten()
            .filter(|head| head.bytes() == raw.len())
            .ok_or(Refusal::Internal)?;
        let shape = Shape {
            persistence: shape.persistence,
            head_only: shape.head_only,
            date: &s.date,
        };
        let body = Bytes::copy_from_slice(body);
        let (mut exchange, mut request) =
            Exchange::begin_whole(&self.front, &head, raw, shape, body, cx.waker())?;
        request.extensions_mut().insert(tried);
        self.timer = Timer::None;
        exchange.call(&self.front, request).map_err(|()| {
            super::count(&self.front.counters.panics);
            Refusal::Internal
        })?;
        self.exchange = Some(exchange);
        Ok(())
    }

    /// Ends the wait without the ticket, and tells the backend. Nothing happens in another stage.
    pub(super) fn give_up(&mut self, refusal: Refusal, s: &mut Scratch) {
        let head_only = self.front.desk.is_head_only(self.place());
        self.leave_desk();
        self.refuse_method(s, refusal, head_only);
    }
}

impl<IO, B: Backend> Connection<IO, B> {
    /// The place at the desk, in [`Stage::Deferred`].
    pub(super) fn place(&self) -> u32 {
        debug_assert_eq!(self.stage, Stage::Deferred);
        self.spare
    }

    /// Gives the place back unanswered.
    pub(super) fn leave_desk(&mut self) {
        if self.stage == Stage::Deferred && !self.front.desk.resume(self.spare, self.seat) {
            let note = self.front.desk.abandon(self.spare);
            self.stage = Stage::Cutting;
            if let Some(note) = note {
                self.front.backend.gone(note);
            }
        }
    }
}
