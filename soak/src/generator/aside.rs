//! A second connection of a user, for as long as something other than polls and heartbeats keeps the first one busy. Clients of
//! HTTP/1.1 hold several: a find that waits for its store keeps no poll from leaving.

use super::engine::Engine;
use super::socket::Link;
use super::tally::Failure;
use super::user::{Exchange, Stage, Waiting};
use crate::case::Kind;

/// What goes on aside.
#[derive(Debug)]
pub struct Aside {
    link: Link,
    pub(super) exchange: Option<Exchange>,
}

impl Aside {
    /// When it has to be looked at next.
    pub(super) fn next_us(&self) -> Option<u64> {
        self.exchange.as_ref().map(Exchange::next_us)
    }
}

/// By how much the generations of a user's two connections differ: more than it ever has of them.
const GENERATIONS_APART: u32 = 1 << 24;

impl Engine {
    /// Sets what is under way aside, if `request` need not wait for it.
    pub(super) fn set_aside(&mut self, number: u32, request: &Waiting) {
        if number == 0 || self.case.behaviour.connections < 2 {
            return;
        }
        let user = self.user(number);
        let is_slow = |exchange: &Exchange| {
            matches!(
                exchange.request.kind,
                Kind::Find | Kind::History | Kind::Catalogue
            )
        };
        if user.aside.is_some()
            || user.is_aside
            || !matches!(request.kind, Kind::Poll | Kind::Heartbeat)
            || !user.exchange.as_ref().is_some_and(is_slow)
        {
            return;
        }
        let link = std::mem::take(&mut user.link);
        user.link.generation = link.generation.wrapping_add(GENERATIONS_APART);
        let exchange = user.exchange.take();
        user.aside = Some(Box::new(Aside { link, exchange }));
    }

    /// Whether an event is of a user's second connection.
    pub(super) fn is_of_aside(&mut self, number: u32, generation: u32) -> bool {
        let aside = self.user(number).aside.as_ref();
        aside.is_some_and(|aside| aside.link.generation == generation)
    }

    /// Does something with what goes on aside in the place of the user's own, and gives up the second connection if nothing
    /// is under way on it any more.
    pub(super) fn on_aside(&mut self, number: u32, act: impl FnOnce(&mut Self)) {
        let Some(mut aside) = self.user(number).aside.take() else {
            return;
        };
        let swap = |engine: &mut Self, aside: &mut Aside| {
            let user = engine.user(number);
            std::mem::swap(&mut user.link, &mut aside.link);
            std::mem::swap(&mut user.exchange, &mut aside.exchange);
        };
        swap(self, &mut aside);
        self.user(number).is_aside = true;
        act(self);
        self.user(number).is_aside = false;
        swap(self, &mut aside);
        if aside.exchange.is_some() {
            self.user(number).aside = Some(aside);
        } else {
            aside.link.close();
        }
        // What an answer on it gave rise to has waited for the first one.
        let now_us = self.now_us();
        self.next(number, now_us);
    }

    /// A stampede drops it like any connection.
    pub(super) fn drop_aside(&mut self, number: u32, now_us: u64) {
        self.on_aside(number, |engine| {
            let exchange = engine.user(number).exchange;
            let stage = exchange.map(|exchange| exchange.stage);
            if matches!(stage, Some(Stage::Connecting | Stage::Sent)) {
                engine.fail(number, Failure::Stampede, now_us);
            }
        });
    }
}
