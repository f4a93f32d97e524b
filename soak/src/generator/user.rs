//! A user: its schedule, its one connection, what is under way on it and what waits behind that.
//!
//! Phones hold one connection and send one request at a time on it (two, with `behaviour.connections`). A request that is due while another is under way waits
//! in `waiting`; its latency counts from its intended time all the same. One that has waited as long as a request may
//! take is given up, as is the oldest when more than [`WAITING_MAX`] wait.

use super::aside::Aside;
use super::network::Model;
use super::schedule::{NEVER, Schedule};
use super::socket::Link;
use super::tally::Failure;
use crate::case::Kind;
use crate::checker::finds::Find;
use crate::checker::polls::Asked;
use crate::checker::wallet::Wallet;
use rand_pcg::Mcg128Xsl64;
use std::collections::VecDeque;

/// The most requests that wait for one user's connection.
pub const WAITING_MAX: usize = 256;

/// Places of those that are kept for a user when none waits.
pub const WAITING_KEPT: usize = 4;

/// A request that is due.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Its kind.
    pub kind: Kind,
    /// When it was due.
    pub intended_us: u64,
    /// Of a find.
    pub find: Option<Find>,
    /// Of a poll: whether it is conditional.
    pub conditional: bool,
    /// Whether it was sent before, with the same id.
    pub again: bool,
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// On its way through the model's network, until then.
    Leaving(u64),
    /// Its connection is coming about.
    Connecting,
    /// With the system.
    Sent,
    /// Its answer is on its way through the model's network, until then; how long the system took, and how it ended.
    Returning(u64, u64, Option<Failure>),
}

/// A request that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// What is.
    pub request: Waiting,
    /// Where.
    pub stage: Stage,
    /// When it was sent.
    pub sent_us: u64,
    /// When it is given up.
    pub deadline_us: u64,
    /// Whether the model loses its answer.
    pub answer_lost: bool,
    /// Of a poll.
    pub asked: Option<Asked>,
    /// The time to the next poll that the answer named, milliseconds.
    pub hint_ms: Option<u32>,
}

impl Exchange {
    pub(super) fn next_us(&self) -> u64 {
        match self.stage {
            Stage::Leaving(until_us) | Stage::Returning(until_us, ..) => until_us,
            Stage::Connecting | Stage::Sent => self.deadline_us,
        }
    }
}

/// A user.
#[derive(Debug)]
pub struct User {
    /// Its token.
    pub token: Box<str>,
    /// Whether it is there.
    pub here: bool,
    /// When it does what.
    pub schedule: Schedule,
    /// Of the network's model.
    pub network: Mcg128Xsl64,
    /// The app is closed until then.
    pub away_until_us: u64,
    /// The entry in the wheel that counts.
    pub wheel_us: u64,
    /// What waits for the connection.
    pub waiting: VecDeque<Waiting>,
    /// Finds that are to be sent again, and when.
    pub retries: Vec<(u64, Find)>,
    /// The find after whose acknowledgment the app is closed until it has expired.
    pub abandons: Option<u64>,
    /// The find that is sent again at once after its acknowledgment.
    pub repeats: Option<u64>,
    /// The next treasure that it can find once.
    pub once_next: u16,
    /// Its connection.
    pub link: Link,
    /// What is under way.
    pub exchange: Option<Exchange>,
    /// What is under way on a second connection.
    pub aside: Option<Box<Aside>>,
    /// The second connection is in the place of the first.
    pub is_aside: bool,
    /// What it knows.
    pub wallet: Wallet,
}

impl User {
    /// One who has not come yet.
    #[must_use]
    pub fn new(seed: u64, number: u32, token: String) -> Self {
        Self {
            token: token.into(),
            here: false,
            schedule: Schedule::new(seed, number),
            network: Model::random(seed, number),
            away_until_us: 0,
            wheel_us: NEVER,
            waiting: VecDeque::new(),
            retries: Vec::new(),
            abandons: None,
            repeats: None,
            once_next: 0,
            link: Link::default(),
            exchange: None,
            aside: None,
            is_aside: false,
            wallet: Wallet::default(),
        }
    }

    /// When it has to be looked at next.
    #[must_use]
    pub fn next_us(&self) -> u64 {
        let exchange_us = self.exchange.as_ref().map_or(NEVER, Exchange::next_us);
        let retry_us = self
            .retries
            .iter()
            .map(|(at_us, _)| *at_us)
            .min()
            .unwrap_or(NEVER);
        let aside_us = self.aside.as_ref().and_then(|aside| aside.next_us());
        self.schedule
            .next_us()
            .min(exchange_us)
            .min(aside_us.unwrap_or(NEVER))
            .min(retry_us)
    }

    /// Whether nothing is sent: in the background, or closed.
    #[must_use]
    pub fn is_offline(&self, now_us: u64) -> bool {
        self.schedule.background || now_us < self.away_until_us
    }

    /// Whether a poll may be with the system.
    #[must_use]
    pub fn polls(&self) -> bool {
        // While an answer on the second connection is looked at, that stands in the place of the first.
        let aside = self
            .aside
            .iter()
            .filter_map(|aside| aside.exchange.as_ref());
        self.exchange.iter().chain(aside).any(|exchange| {
            exchange.request.kind == Kind::Poll
                && matches!(exchange.stage, Stage::Connecting | Stage::Sent)
        })
    }
}
