//! The links to one instance: who keeps them open, and which of them takes a request.

use super::by_link::Owner;
use super::group::{Failure, Group};
use super::instance::lock;
use crate::front::Ticket;
use crate::link::{
    HandshakeError, LinkClient, LinkDriver, LinkEnd, LinkLimits, Outgoing, Rejected, Returned,
    handshake,
};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Tries in a row after which an instance that had links is not taken for one that is coming back.
const LOST_TRIES_MAX: u32 = 4;
/// A link that lasted so long is one to begin again with: the next try comes soon.
const LASTING: Duration = Duration::from_secs(5);
/// Pauses between tries, the first and the longest: to an instance that is not there, and to one without links.
const AWAY_MS: (u64, u64) = (50, 2_000);
const UNSPOKEN_MS: (u64, u64) = (1_000, 60_000);

/// Whether an instance speaks links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Speech {
    /// It does not, or nobody knows yet.
    Unspoken = 0,
    /// It does.
    Spoken = 1,
    /// It did, and all links have ended.
    Lost = 2,
}

/// The links to one instance, and what is under way on them.
#[derive(Debug)]
pub(super) struct Links {
    /// The number of the first, unique among all links of the shim; the others' follow.
    first_id: u16,
    /// One place for each link that shall be open.
    slots: Vec<Mutex<Option<LinkClient>>>,
    under_way: AtomicU32,
    speech: AtomicU8,
    /// Told when the first has come about.
    spoken: Notify,
}

impl Links {
    /// `count` of them, none open yet.
    pub(super) fn new(first_id: u16, count: u16) -> Self {
        Self {
            first_id,
            slots: (0..count).map(|_| Mutex::new(None)).collect(),
            under_way: AtomicU32::new(0),
            speech: AtomicU8::new(Speech::Unspoken as u8),
            spoken: Notify::new(),
        }
    }

    /// Requests under way on them.
    pub(super) fn under_way(&self) -> u32 {
        self.under_way.load(Relaxed)
    }

    /// How many take requests.
    pub(super) fn open(&self) -> usize {
        let is_open = |slot: &&Mutex<Option<LinkClient>>| {
            lock(slot).as_ref().is_some_and(LinkClient::is_open)
        };
        self.slots.iter().filter(is_open).count()
    }

    /// Whether any takes requests.
    pub(super) fn is_open(&self) -> bool {
        let mut slots = self.slots.iter();
        self.are_spoken() && slots.any(|slot| lock(slot).as_ref().is_some_and(LinkClient::is_open))
    }

    /// Whether there are links, be they full or about to end.
    pub(super) fn are_spoken(&self) -> bool {
        self.speech.load(Relaxed) == Speech::Spoken as u8
    }

    /// Whether there were some until a moment ago, or the instance is leaving.
    pub(super) fn are_lost(&self) -> bool {
        self.speech.load(Relaxed) != Speech::Unspoken as u8
    }

    fn say(&self, speech: Speech) {
        self.speech.store(speech as u8, Relaxed);
    }

    /// Sends a request on the first that takes it: the fewer links carry the requests, the more of these share a write.
    pub(super) fn send(&self, ticket: Ticket, request: &Outgoing<'_>) -> Result<(), Ticket> {
        self.send_on_any(ticket, |link, ticket| link.send(ticket, request))
    }

    /// The same for one that another link gave back.
    pub(super) fn resend(&self, returned: Returned) -> Result<(), Box<Returned>> {
        self.send_on_any(returned, LinkClient::resend)
            .map_err(Box::new)
    }

    fn send_on_any<T>(
        &self,
        mut request: T,
        send: impl Fn(&LinkClient, T) -> Result<(), (T, Rejected)>,
    ) -> Result<(), T> {
        // Counted before it is sent, so that its end is never counted first.
        self.under_way.fetch_add(1, Relaxed);
        for slot in &self.slots {
            let slot = lock(slot);
            let Some(link) = slot.as_ref() else { continue };
            match send(link, request) {
                Ok(()) => return Ok(()),
                Err((back, Rejected::Gone | Rejected::TooLarge)) => {
                    request = back;
                    break;
                }
                Err((back, _)) => request = back,
            }
        }
        self.ended(1);
        Err(request)
    }

    /// So many requests are under way no more.
    pub(super) fn ended(&self, requests: u32) {
        self.under_way.fetch_sub(requests, Relaxed);
    }

    /// The client of a request has gone. False if the request was not on one of these links.
    pub(super) fn cancel(&self, note: u64) -> bool {
        let nth = LinkClient::id_of_note(note).checked_sub(self.first_id);
        let Some(slot) = nth.and_then(|nth| self.slots.get(usize::from(nth))) else {
            return false;
        };
        if let Some(link) = lock(slot).as_ref() {
            link.cancel(note);
        }
        true
    }

    /// Waits until an instance speaks links: before, one of its places tries for all.
    async fn until_spoken(&self) {
        loop {
            let told = self.spoken.notified();
            if self.are_spoken() {
                return;
            }
            told.await;
        }
    }

    fn place(&self, nth: u16, link: Option<LinkClient>) {
        if let Some(slot) = self.slots.get(usize::from(nth)) {
            *lock(slot) = link;
        }
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| lock(slot).is_none())
    }
}

/// Keeps the links of an instance open, for ever.
pub(super) fn keep(owner: &Arc<Owner>) {
    let limits = LinkLimits {
        requests_max: owner.group().limits.link_requests_max,
        ..LinkLimits::default()
    };
    for nth in 0..owner.group().limits.links {
        tokio::spawn(keep_one(owner.clone(), nth, limits.clone()));
    }
}

async fn keep_one(owner: Arc<Owner>, nth: u16, limits: LinkLimits) {
    let (group, index) = (owner.group().clone(), owner.index());
    let instance = &group.instances()[index];
    let links = &instance.links;
    let mut tries = 0;
    loop {
        if nth > 0 {
            links.until_spoken().await;
        }
        let pauses = match open(&owner, links.first_id + nth, limits.clone()).await {
            Ok((link, driver)) => {
                links.place(nth, Some(link));
                links.say(Speech::Spoken);
                links.spoken.notify_waiters();
                tracing::info!(instance = instance.address(), nth, "a link is open");
                let since = Instant::now();
                let end = driver.await;
                links.place(nth, None);
                if links.is_empty() {
                    links.say(Speech::Lost);
                }
                note_end(&group, index, &end);
                if since.elapsed() >= LASTING {
                    tries = 0;
                }
                AWAY_MS
            }
            Err(error) => {
                tracing::debug!(instance = instance.address(), %error, "no link");
                let is_there = error.plain_http_works() || matches!(error, HandshakeError::NotHttp);
                if links.is_empty() && (is_there || tries >= LOST_TRIES_MAX) {
                    links.say(Speech::Unspoken);
                }
                if is_there { UNSPOKEN_MS } else { AWAY_MS }
            }
        };
        tokio::time::sleep(pause(pauses, tries)).await;
        tries += 1;
    }
}

/// A link has ended with what was under way on it: one failure, however many requests these were.
fn note_end(group: &Arc<Group>, index: usize, end: &LinkEnd) {
    let instance = group.instances()[index].address();
    if matches!(end, LinkEnd::Left) {
        tracing::info!(instance, "a link has ended: {end}");
    } else {
        tracing::warn!(instance, "a link has ended: {end}");
        group.note_failure(index);
    }
}

async fn open(
    owner: &Arc<Owner>,
    id: u16,
    limits: LinkLimits,
) -> Result<(LinkClient, LinkDriver<TcpStream>), HandshakeError> {
    let group = owner.group();
    let instance = &group.instances()[owner.index()];
    let connect_max = Duration::from_millis(group.limits.connect_ms);
    let timeout = Duration::from_millis(limits.handshake_timeout_ms.into());
    let connecting = async {
        let address = instance.socket_address().await?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        io::Result::Ok(stream)
    };
    let stream = tokio::time::timeout(connect_max, connecting)
        .await
        .map_err(|_| HandshakeError::TimedOut)??;
    let shaking = handshake(stream, instance.address(), id, owner.clone(), limits);
    tokio::time::timeout(timeout, shaking)
        .await
        .unwrap_or(Err(HandshakeError::TimedOut))
}

/// The pause before the next try: doubled with each, and spread, so that many shims do not come in step.
fn pause((first_ms, most_ms): (u64, u64), tries: u32) -> Duration {
    let ms = first_ms.saturating_mul(1 << tries.min(20)).min(most_ms);
    Duration::from_millis(ms).mul_f64(rand::random_range(0.5..1.0))
}

/// How a request that a link gave back has failed, for the instance's counters.
pub(super) const LINK_DIED: Failure = Failure::Closed;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_are_spread() {
        for tries in [0, 1, 5, 40, u32::MAX] {
            let ms = pause(AWAY_MS, tries).as_millis();
            let most = u128::from((AWAY_MS.0 << tries.min(20)).min(AWAY_MS.1));
            assert!(ms >= most / 2 && ms <= most, "{tries}: {ms}");
        }
    }
}
