//! A server with links, a shim before it, a relay between them that can be cruel, and clients, all on one event loop.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod raw;
pub(crate) mod relay;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use trove::front::{Answer, Backend, Body, Front, Head, Limits, Offer, Origin, Phase};
use trove::link::{
    self, Delivery, LinkClient, LinkEnd, LinkLimits, LinkOwner, LinkPeers, Linked, Outgoing,
    Rejected, Returned, Why,
};

/// How long a test waits for what must happen; far above what it takes, also on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A seed, printed: `LINK_SEED` repeats a run.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("LINK_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    println!("seed {seed}");
    seed
}

pub(crate) fn generator(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Answers with whom it was asked by.
///
/// `/now/…` at once, `/slow/…` after a random while, `/held/…` when the gate opens, `/big/N` with N bytes, POST `/echo/…`
/// with its body, `/panic-now` and `/panic-call` not at all.
pub(crate) struct Game {
    pub(crate) gate: Notify,
    pub(crate) called: AtomicUsize,
    /// Calls that were dropped before they answered.
    pub(crate) dropped: Arc<AtomicUsize>,
    random: Mutex<Pcg64Mcg>,
}

struct Dropped(Option<Arc<AtomicUsize>>);

impl Dropped {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(count) = self.0.take() {
            count.fetch_add(1, SeqCst);
        }
    }
}

fn said(target: &str, token: Option<&[u8]>, peer: SocketAddr) -> String {
    let token = String::from_utf8_lossy(token.unwrap_or(b"nobody")).into_owned();
    format!("{target} {token} {}", peer.ip())
}

impl Backend for Game {
    type Body = Full<Bytes>;
    type Future = Pin<Box<dyn Future<Output = Response<Self::Body>> + Send>>;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        match head.path() {
            path if path.starts_with("/now/") => {
                let body = said(head.target(), head.authorization(), head.peer());
                answer.status(200).field("x-kind", "now").body_with(|out| {
                    out.extend_from_slice(body.as_bytes());
                });
                true
            }
            "/panic-now" => panic!("answering at once"),
            "/broken" => {
                answer.status(200).field("x", "a\r\nb: c").body(b"");
                true
            }
            "/none" => {
                answer.status(204);
                true
            }
            _ => {
                answer.status(200).field("x", "taken back");
                false
            }
        }
    }

    fn wants_whole(&self, head: &Head<'_>) -> bool {
        head.path().starts_with("/now/")
    }

    fn answer_whole(&self, _: &Head<'_>, body: &[u8], answer: &mut Answer<'_>) -> bool {
        answer.status(200).body(body);
        true
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        (head.path() == "/little").then_some(3)
    }

    fn call(&self, request: Request<Body>) -> Self::Future {
        self.called.fetch_add(1, SeqCst);
        let path = request.uri().path().to_owned();
        assert_ne!(path, "/panic-call", "calling");
        let peer = request
            .extensions()
            .get::<Origin>()
            .expect("an origin")
            .peer;
        let token = request
            .headers()
            .get("authorization")
            .map(|value| value.as_bytes().to_vec());
        let body = said(&path, token.as_deref(), peer);
        let mut dropped = Dropped(Some(self.dropped.clone()));
        if path.starts_with("/slow/") {
            let wait = self
                .random
                .lock()
                .expect("nobody panicked with it")
                .random_range(0..8u64);
            return Box::pin(async move {
                if wait > 0 {
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                }
                dropped.answered();
                Response::new(Full::new(body.into()))
            });
        }
        if path.starts_with("/held/") {
            return Box::pin(async move {
                std::future::pending::<()>().await;
                dropped.answered();
                Response::new(Full::new(body.into()))
            });
        }
        if path.starts_with("/big/") || path.starts_with("/echo") {
            dropped.0 = None;
        }
        if let Some(bytes) = path.strip_prefix("/big/") {
            let bytes: usize = bytes.parse().expect("a number");
            return Box::pin(async move { Response::new(Full::new(vec![b'x'; bytes].into())) });
        }
        Box::pin(async move {
            assert_ne!(path, "/panic-poll", "polling");
            let names: Vec<_> = request.headers().keys().map(ToString::to_string).collect();
            let whole = request
                .into_body()
                .collect()
                .await
                .expect("a body that is all there");
            let mut response = Response::new(Full::new(whole.to_bytes()));
            let names = names.join(",").try_into().expect("a field");
            response.headers_mut().insert("x-names", names);
            response
        })
    }
}

/// A server that accepts links.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) game: Arc<Game>,
    pub(crate) front: Arc<Front<Linked<Game>>>,
    phase: watch::Sender<Phase>,
}

pub(crate) async fn upstream(seed: u64, limits: LinkLimits) -> Upstream {
    upstream_for(seed, limits, LinkPeers::default()).await
}

pub(crate) async fn upstream_for(seed: u64, limits: LinkLimits, peers: LinkPeers) -> Upstream {
    let game = Arc::new(Game {
        gate: Notify::new(),
        called: AtomicUsize::new(0),
        dropped: Arc::default(),
        random: Mutex::new(generator(seed)),
    });
    let linked = Linked::new(game.clone(), peers, limits, front_limits());
    let front = Front::new(Arc::new(linked), front_limits()).expect("limits");
    let (address, phase) = serve(&front).await;
    Upstream {
        address,
        game,
        front,
        phase,
    }
}

impl Upstream {
    pub(crate) fn drain(&self) {
        let _ = self.phase.send(Phase::Draining);
    }
}

pub(crate) fn front_limits() -> Limits {
    Limits {
        connections_max: 10_000,
        ..Limits::default()
    }
}

async fn serve<B: Backend>(front: &Arc<Front<B>>) -> (SocketAddr, watch::Sender<Phase>) {
    let (phase, watched) = watch::channel(Phase::Serving);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let front = front.clone();
    tokio::spawn(async move { front.serve(listener, watched).await });
    (address, phase)
}

/// Sends what it can over links, retries what comes back once, and counts.
#[derive(Default)]
pub(crate) struct Pass {
    links: Mutex<Vec<LinkClient>>,
    next: AtomicUsize,
    pub(crate) delivered: AtomicUsize,
    pub(crate) returned: AtomicUsize,
    pub(crate) resent: AtomicUsize,
    pub(crate) rejected: Mutex<Vec<Rejected>>,
    pub(crate) ends: Mutex<Vec<LinkEnd>>,
    /// Handed to `call`, which answers 299.
    pub(crate) called: AtomicUsize,
}

impl Pass {
    fn pick(&self) -> Option<LinkClient> {
        let links = self.links.lock().expect("nobody panicked with it");
        let open: Vec<_> = links.iter().filter(|link| link.is_open()).collect();
        let nth = self.next.fetch_add(1, SeqCst);
        open.get(nth % open.len().max(1))
            .map(|link| (*link).clone())
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.links
            .lock()
            .expect("nobody panicked with it")
            .iter()
            .map(LinkClient::in_flight)
            .sum()
    }

    pub(crate) fn links(&self) -> usize {
        self.links.lock().expect("nobody panicked with it").len()
    }
}

fn leaves_out(name: &str) -> bool {
    name.eq_ignore_ascii_case("x-secret")
}

impl Backend for Pass {
    type Body = Full<Bytes>;
    type Future = std::future::Ready<Response<Self::Body>>;

    fn wants_whole(&self, _: &Head<'_>) -> bool {
        true
    }

    fn take(&self, offer: &mut Offer<'_>) {
        let Some(link) = self.pick() else { return };
        let Some(ticket) = offer.ticket() else { return };
        let head = offer.head();
        let outgoing = Outgoing {
            head,
            raw: offer.raw(),
            body: offer.body(),
            client: head.peer(),
            is_secure: false,
            deadline_ms: head
                .field("x-deadline-ms")
                .and_then(|ms| std::str::from_utf8(ms).ok()?.parse().ok())
                .unwrap_or(60_000),
            mark: 7,
            extra: None,
            leaves_out: head
                .field("x-secret")
                .map(|_| leaves_out as fn(&str) -> bool),
            trace: head.trace(),
        };
        if let Err((ticket, rejected)) = link.send(ticket, &outgoing) {
            self.rejected
                .lock()
                .expect("nobody panicked with it")
                .push(rejected);
            offer.give_back(ticket);
        }
    }

    fn gone(&self, note: u64) {
        let id = LinkClient::id_of_note(note);
        let links = self.links.lock().expect("nobody panicked with it").clone();
        if let Some(link) = links.iter().find(|link| link.id() == id) {
            link.cancel(note);
        }
    }

    fn call(&self, _: Request<Body>) -> Self::Future {
        self.called.fetch_add(1, SeqCst);
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::from_u16(299).expect("a status");
        std::future::ready(response)
    }
}

struct Owner(Arc<Pass>);

impl LinkOwner for Owner {
    fn answering(&self, delivery: &Delivery<'_>, answer: &mut Answer<'_>) {
        assert!(delivery.arrived <= delivery.sent && delivery.sent <= delivery.read);
        assert_eq!(delivery.mark, 7);
        self.0.delivered.fetch_add(1, SeqCst);
        answer.field("x-link", delivery.link.to_string());
    }

    fn returned(&self, returned: Returned) {
        self.0.returned.fetch_add(1, SeqCst);
        assert!(returned.client().is_some() && returned.head().ends_with(b"\r\n\r\n"));
        if returned.why() == Why::Overdue {
            return returned.answer(|answer| {
                answer.status(504);
            });
        }
        if !returned.may_repeat() {
            return drop(returned);
        }
        if returned.attempts() < 4
            && let Some(link) = self.0.pick()
        {
            match link.resend(returned) {
                Ok(()) => drop(self.0.resent.fetch_add(1, SeqCst)),
                Err((returned, _)) => returned.call(),
            }
        } else {
            returned.call();
        }
    }
}

pub(crate) struct Shim {
    pub(crate) address: SocketAddr,
    pub(crate) pass: Arc<Pass>,
    pub(crate) front: Arc<Front<Pass>>,
    phase: watch::Sender<Phase>,
}

pub(crate) async fn shim() -> Shim {
    let pass = Arc::new(Pass::default());
    let front = Front::new(pass.clone(), front_limits()).expect("limits");
    let (address, phase) = serve(&front).await;
    Shim {
        address,
        pass,
        front,
        phase,
    }
}

impl Shim {
    /// Adds a link to `upstream`; its end is noted and takes it out again.
    pub(crate) async fn link(
        &self,
        upstream: SocketAddr,
        id: u16,
        limits: LinkLimits,
    ) -> LinkClient {
        self.try_link(upstream, id, limits).await.expect("a link")
    }

    pub(crate) async fn try_link(
        &self,
        upstream: SocketAddr,
        id: u16,
        limits: LinkLimits,
    ) -> Result<LinkClient, link::HandshakeError> {
        let owner = Arc::new(Owner(self.pass.clone()));
        let (client, driver) = link::connect(&upstream.to_string(), id, owner, limits).await?;
        self.pass
            .links
            .lock()
            .expect("nobody panicked with it")
            .push(client.clone());
        let pass = self.pass.clone();
        let own = client.clone();
        tokio::spawn(async move {
            let end = driver.await;
            pass.links
                .lock()
                .expect("nobody panicked with it")
                .retain(|link| link.id() != own.id());
            assert_eq!(own.in_flight(), 0);
            pass.ends.lock().expect("nobody panicked with it").push(end);
        });
        Ok(client)
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection that asks.
pub(crate) struct Asker {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Asker {
    pub(crate) async fn connect(address: SocketAddr) -> Asker {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Asker {
            stream,
            unread: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream
            .write_all(bytes.as_ref())
            .await
            .expect("sending");
    }

    /// `None` at the end.
    pub(crate) async fn reply_to(&mut self, method: &str) -> Option<Reply> {
        let reading = self.read_reply(method);
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("an answer in time")
    }

    pub(crate) async fn ask(&mut self, method: &str, target: &str, token: &str) -> Option<Reply> {
        let request =
            format!("{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\n\r\n");
        self.send(request).await;
        self.reply_to(method).await
    }

    async fn read_reply(&mut self, method: &str) -> Option<Reply> {
        let head_bytes = loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if self.stream.read_buf(&mut self.unread).await.ok()? == 0 {
                return None;
            }
        };
        let head = {
            let head: Vec<u8> = self.unread.drain(..head_bytes).collect();
            String::from_utf8_lossy(&head).into_owned()
        };
        let status = head[9..12].parse().expect("a status");
        let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
            let digits = rest.split("\r\n").next().expect("a line");
            digits.parse().expect("a length")
        });
        let length = if method == "HEAD" { 0 } else { length };
        while self.unread.len() < length {
            if self.stream.read_buf(&mut self.unread).await.ok()? == 0 {
                return None;
            }
        }
        let body = self.unread.drain(..length).collect();
        Some(Reply { status, head, body })
    }
}
