//! A request's life: begun, sent, answered or failed, ended.

use super::answer::{self, Head, Read};
use super::engine::Engine;
use super::network::Loss;
use super::request::Named;
use super::schedule::NEVER;
use super::socket;
use super::tally::{Drop, Failure};
use super::user::{Exchange, Stage, Waiting};
use crate::case::Kind;
use crate::checker::finds::Find;
use crate::checker::polls::Asked;
use rand::RngExt;
use rustix::event::epoll::EventFlags;
use std::io::{ErrorKind, Read as _, Write as _};

/// After how long a find whose fate is unknown is sent again, with as much again at random so that users do not return as one.
const RETRY_US: u64 = 1_000_000;

impl Engine {
    /// Begins a request of a user who has none under way.
    pub(super) fn begin(&mut self, number: u32, request: Waiting, now_us: u64) {
        if let Some(find) = request.find
            && !request.again
        {
            let poll_under_way = self.user(number).polls();
            let user = &mut self.users[number as usize];
            self.checker
                .find_leaves(number, &mut user.wallet, find, poll_under_way);
        }
        let user = &mut self.users[number as usize];
        let (loss, delay_us) = if number == 0 {
            (Loss::None, 0)
        } else {
            (
                self.model.loss(&mut user.network),
                self.model.delay_us(&mut user.network),
            )
        };
        if loss == Loss::Request {
            self.drop_request(number, request, Drop::Lost, now_us);
            if let Some(find) = request.find
                && !request.again
            {
                let again_us = now_us + self.timeout_us;
                self.user(number).retries.push((again_us, find));
            }
            return;
        }
        self.tally.of(request.kind).sent += 1;
        self.open.under_way[request.kind as usize] += 1;
        let deadline_us = now_us + self.timeout_us;
        self.user(number).exchange = Some(Exchange {
            request,
            stage: Stage::Leaving(now_us + delay_us),
            sent_us: now_us,
            deadline_us,
            answer_lost: loss == Loss::Answer,
            asked: None,
            hint_ms: None,
        });
        if delay_us == 0 {
            self.transmit(number, now_us);
        }
    }

    /// Does what a user's exchange is due for.
    pub(super) fn advance(&mut self, number: u32, now_us: u64) {
        let Some(exchange) = self.user(number).exchange else {
            return;
        };
        match exchange.stage {
            Stage::Leaving(until_us) if until_us <= now_us => {
                self.late(now_us - until_us);
                self.transmit(number, now_us);
            }
            Stage::Returning(until_us, service_us, failure) if until_us <= now_us => {
                self.end(number, until_us, service_us, failure, now_us);
            }
            Stage::Connecting | Stage::Sent if exchange.deadline_us <= now_us => {
                self.fail(number, Failure::Timeout, now_us);
            }
            _ => {}
        }
    }

    /// Hands a request to the user's connection, or opens one.
    fn transmit(&mut self, number: u32, now_us: u64) {
        if let Some(exchange) = &mut self.user(number).exchange {
            exchange.sent_us = now_us;
            exchange.stage = Stage::Connecting;
        }
        if self.user(number).link.connected {
            self.compose(number, now_us);
        } else if self.user(number).link.socket.is_none() {
            self.connect(number, now_us);
        }
    }

    /// Opens a connection. A request that waits for it fails if it cannot even begin.
    pub(super) fn connect(&mut self, number: u32, now_us: u64) {
        let opened = self.road.connect(number).and_then(|socket| {
            let link = &mut self.users[number as usize].link;
            link.socket = Some(socket);
            link.watch(&self.poller, number)
        });
        if let Err(error) = opened {
            self.tally.record.disconnects += 1;
            self.user(number).link.close();
            let ours = socket::is_ours(&error);
            self.exhausted |= ours;
            let why = if ours {
                Failure::Descriptors
            } else {
                Failure::Connect
            };
            if self.user(number).exchange.is_some() {
                self.fail(number, why, now_us);
            }
        }
    }

    /// Writes the request that is under way.
    fn compose(&mut self, number: u32, now_us: u64) {
        let mut out = std::mem::take(&mut self.write);
        out.clear();
        let Some(request) = self.user(number).exchange.map(|exchange| exchange.request) else {
            self.write = out;
            return;
        };
        let mut asked = None;
        match (request.kind, request.find) {
            (Kind::Find, Some(find)) => {
                let token = &self.users[number as usize].token;
                self.requests.write_find(&mut out, token, find);
            }
            (Kind::BulkFind, _) => self.compose_bulk(&mut out),
            (kind, _) => {
                let user = &mut self.users[number as usize];
                let mut named = Named::None;
                if kind == Kind::Poll && !self.template {
                    self.checker.at(now_us / 1_000);
                    self.checker.poll_leaves(&mut user.wallet);
                    named = match user.wallet.cursor {
                        None => Named::None,
                        Some(cursor) if request.conditional => Named::IfNoneMatch(cursor),
                        Some(cursor) => Named::Since(cursor),
                    };
                    asked = Some(Asked {
                        named: user.wallet.cursor,
                        conditional: matches!(named, Named::IfNoneMatch(_)),
                        sent_ms: now_us / 1_000,
                    });
                }
                self.requests
                    .write(&mut out, kind, (number, &user.token), named);
            }
        }
        if let Some(exchange) = &mut self.user(number).exchange {
            exchange.stage = Stage::Sent;
            exchange.asked = asked;
        }
        let link = &mut self.user(number).link;
        let written = match &link.socket {
            Some(socket) => (&*socket).write(&out),
            None => Err(ErrorKind::NotConnected.into()),
        };
        let written = match written {
            Ok(written) => written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            // The event that says so comes too, and fails the request.
            Err(_) => out.len(),
        };
        if written < out.len() {
            link.unsent.extend_from_slice(&out[written..]);
        }
        self.write = out;
    }

    /// An event of a user's connection.
    pub(super) fn ready(&mut self, number: u32, generation: u32, flags: EventFlags) {
        if self.is_of_aside(number, generation) {
            self.on_aside(number, |engine| engine.ready_on(number, generation, flags));
            self.arm(number);
        } else {
            self.ready_on(number, generation, flags);
        }
    }

    fn ready_on(&mut self, number: u32, generation: u32, flags: EventFlags) {
        let link = &mut self.user(number).link;
        if link.generation != generation || link.socket.is_none() {
            return;
        }
        let now_us = self.now_us();
        let link = &mut self.user(number).link;
        if !link.connected {
            let refused = link.socket.as_ref().is_none_or(|socket| {
                !matches!(socket.take_error(), Ok(None)) || flags.contains(EventFlags::ERR)
            });
            if refused {
                link.close();
                self.tally.record.disconnects += 1;
                self.fail_if_sent(number, Failure::Connect, now_us);
                self.arm(number);
                return;
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            link.connected = true;
            self.tally.record.connects += 1;
            if self
                .user(number)
                .exchange
                .is_some_and(|exchange| exchange.stage == Stage::Connecting)
            {
                self.compose(number, now_us);
            }
        } else if flags.contains(EventFlags::OUT) && !link.unsent.is_empty() {
            self.write_on(number);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
        {
            self.read_on(number, now_us);
        }
        self.arm(number);
    }

    fn write_on(&mut self, number: u32) {
        let link = &mut self.user(number).link;
        let Some(socket) = &link.socket else { return };
        if let Ok(written) = (&*socket).write(&link.unsent) {
            link.unsent.drain(..written);
        }
        if link.unsent.is_empty() {
            link.unsent = Vec::new();
        }
    }

    fn read_on(&mut self, number: u32, now_us: u64) {
        let mut buffer = std::mem::take(&mut self.read);
        loop {
            let link = &mut self.user(number).link;
            let Some(socket) = &link.socket else { break };
            let generation = link.generation;
            match (&*socket).read(&mut buffer) {
                Ok(0) => {
                    self.take_bytes(number, &[], true, now_us);
                    if self.user(number).link.generation == generation {
                        self.closed(number, now_us);
                    }
                    break;
                }
                Ok(bytes) => {
                    self.take_bytes(number, &buffer[..bytes], false, now_us);
                    // Less than there was room for: there is no more, and an event says when there is.
                    if bytes < buffer.len() || self.user(number).link.generation != generation {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.closed(number, now_us);
                    break;
                }
            }
        }
        self.read = buffer;
    }

    /// The server ended a connection, or the network did.
    fn closed(&mut self, number: u32, now_us: u64) {
        self.user(number).link.close();
        self.tally.record.disconnects += 1;
        self.fail_if_sent(number, Failure::Broken, now_us);
    }

    fn fail_if_sent(&mut self, number: u32, why: Failure, now_us: u64) {
        let stage = self.user(number).exchange.map(|exchange| exchange.stage);
        if matches!(stage, Some(Stage::Connecting | Stage::Sent)) {
            self.fail(number, why, now_us);
        }
    }

    /// Bytes of an answer, or its end.
    fn take_bytes(&mut self, number: u32, bytes: &[u8], ended: bool, now_us: u64) {
        let user = &mut self.users[number as usize];
        let look = match user.exchange {
            Some(Exchange {
                stage: Stage::Sent | Stage::Connecting,
                request,
                ..
            }) => request.kind != Kind::Catalogue && !self.template,
            // Nothing was asked: whatever it is (a farewell such as 408), the connection is of no use any more.
            _ if bytes.is_empty() => return,
            _ => {
                self.closed(number, now_us);
                return;
            }
        };
        if let Some((head, left)) = user.link.skip {
            let took = bytes.len() as u64;
            if took < left {
                user.link.skip = Some((head, left - took));
            } else {
                user.link.skip = None;
                if took > left {
                    self.user(number).link.closes = true;
                }
                self.answered(number, &head, &[], now_us);
            }
            return;
        }
        if user.link.partial.is_empty() {
            self.take_answer(number, bytes, ended, look, now_us);
            return;
        }
        user.link.partial.extend_from_slice(bytes);
        if user.link.partial.len() >= user.link.partial_wants || ended {
            let partial = std::mem::take(&mut user.link.partial);
            self.take_answer(number, &partial, ended, look, now_us);
        }
    }

    fn take_answer(&mut self, number: u32, bytes: &[u8], ended: bool, look: bool, now_us: u64) {
        if bytes.is_empty() {
            return;
        }
        match answer::read(bytes, ended, look) {
            Read::Whole(head, _, took)
                if (100..200).contains(&head.status) && head.status != 101 =>
            {
                // A provisional answer: the one that counts follows.
                self.take_answer(number, &bytes[took..], ended, look, now_us);
            }
            Read::Whole(head, body, took) => {
                if took < bytes.len() {
                    // More than was asked for: what follows cannot be told apart from the next answer.
                    self.user(number).link.closes = true;
                }
                self.answered(number, &head, &body, now_us);
            }
            Read::Skip(head, left) => self.user(number).link.skip = Some((head, left)),
            Read::Incomplete(wants) => {
                let link = &mut self.user(number).link;
                link.partial = bytes.to_vec();
                link.partial_wants = wants;
            }
            Read::Malformed => {
                self.user(number).link.close();
                self.tally.record.disconnects += 1;
                self.fail(number, Failure::Malformed, now_us);
            }
        }
    }

    /// A whole answer has come.
    fn answered(&mut self, number: u32, head: &Head, body: &[u8], now_us: u64) {
        let user = &mut self.users[number as usize];
        let Some(exchange) = user.exchange else {
            return;
        };
        if head.closes {
            user.link.closes = true;
        }
        let delay_us = if number == 0 {
            0
        } else {
            self.model.delay_us(&mut user.network)
        };
        let seen_us = now_us + delay_us;
        if seen_us > exchange.deadline_us {
            // The user gives up before it is there.
            return;
        }
        let service_us = now_us - exchange.sent_us;
        let failure = self.tell(number, &exchange, head, body, now_us);
        if let Some(exchange) = &mut self.user(number).exchange {
            exchange.hint_ms = head.next_poll_ms;
            exchange.stage = Stage::Returning(seen_us, service_us, failure);
        }
        if delay_us == 0 {
            self.end(number, now_us, service_us, failure, now_us);
        }
    }

    /// An exchange whose answer was seen at `seen_us` is over.
    fn end(
        &mut self,
        number: u32,
        seen_us: u64,
        service_us: u64,
        failure: Option<Failure>,
        now_us: u64,
    ) {
        let Some(exchange) = self.user(number).exchange.take() else {
            return;
        };
        let request = exchange.request;
        self.open.under_way[request.kind as usize] -= 1;
        let latency_us = seen_us.saturating_sub(request.intended_us);
        let counts = self.tally.of(request.kind);
        match failure {
            None => counts.answered(latency_us, service_us),
            Some(why) => counts.failed(why, latency_us, service_us),
        }
        if request.kind == Kind::Poll {
            let hint_us = exchange
                .hint_ms
                .map(|ms| self.scaled_us(u64::from(ms) * 1_000));
            let (pace, user) = (&self.pace, &mut self.users[number as usize]);
            user.schedule.hinted(
                pace,
                request.intended_us,
                hint_us.map(|hint_us| (seen_us, hint_us)),
            );
        }
        if self.user(number).link.closes {
            self.user(number).link.close();
        }
        self.next(number, now_us);
    }

    /// A time that the server names, in a compressed run.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a hint of at most 2^32 ms, divided"
    )]
    fn scaled_us(&self, us: u64) -> u64 {
        (us as f64 / self.case.compress.max(1.0)) as u64
    }

    /// An exchange has failed. Its connection is of no use any more.
    pub(super) fn fail(&mut self, number: u32, why: Failure, now_us: u64) {
        let Some(exchange) = self.user(number).exchange.take() else {
            return;
        };
        let request = exchange.request;
        self.user(number).link.close();
        self.open.under_way[request.kind as usize] -= 1;
        let latency_us = now_us.saturating_sub(request.intended_us);
        let service_us = now_us.saturating_sub(exchange.sent_us);
        self.tally
            .of(request.kind)
            .failed(why, latency_us, service_us);
        match (request.kind, request.find) {
            (Kind::Poll, _) => {
                let (pace, user) = (&self.pace, &mut self.users[number as usize]);
                user.wallet.is_untouched = false;
                user.schedule.hinted(pace, request.intended_us, None);
            }
            (Kind::Find, Some(find)) => self.try_again(number, find, now_us),
            (Kind::BulkFind, _) => self.bulk_failed(),
            _ => {}
        }
        self.next(number, now_us);
    }

    /// A find whose fate is unknown will be sent again.
    pub(super) fn try_again(&mut self, number: u32, find: Find, now_us: u64) {
        self.try_again_after(number, find, RETRY_US, now_us);
    }

    /// The same, after a time that the server named.
    pub(super) fn try_again_after(&mut self, number: u32, find: Find, after_us: u64, now_us: u64) {
        let user = self.user(number);
        let extra_us = user.network.random_range(0..RETRY_US);
        if user
            .retries
            .iter()
            .all(|(_, other)| other.number != find.number)
        {
            user.retries.push((now_us + after_us + extra_us, find));
        }
    }

    /// A find is due to be sent again.
    pub(super) fn retry(&mut self, number: u32, nth: usize, now_us: u64) {
        let (at_us, find) = self.user(number).retries.swap_remove(nth);
        let user = self.user(number);
        if !user.here || user.is_offline(now_us) {
            // It waits until the user is back.
            let back_us = user.away_until_us.max(now_us + RETRY_US);
            if user.here {
                user.retries.push((back_us, find));
            } else {
                user.retries.push((NEVER, find));
            }
            return;
        }
        let request = Waiting {
            kind: Kind::Find,
            intended_us: at_us,
            find: Some(find),
            conditional: false,
            again: true,
        };
        self.request(number, request, now_us);
    }
}
