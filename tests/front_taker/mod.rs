//! A front whose backend takes requests and leaves their tickets to the test.

#[path = "../front_site/mod.rs"]
mod front_site;

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::io::ReadBuf;
use tokio::sync::watch;
use trove::front::{
    Answer, Backend, Body, Front, Head, Limits, Offer, OwnAnswer, Phase, Refusal, Stream, Ticket,
    Upgraded, UpgradedTurn,
};

pub(crate) use front_site::{Client, PATIENCE, until};

/// A ticket until the test has it, and the request's body.
type Taken = (Option<Ticket>, Vec<u8>);

#[derive(Default)]
pub(crate) struct Taker {
    taken: Mutex<HashMap<String, Taken>>,
    gone: Mutex<HashSet<u64>>,
    told: Mutex<Vec<Refusal>>,
}

/// What a ticket of this path is noted as.
fn note_of(path: &str) -> u64 {
    path.bytes()
        .fold(1, |hash, byte| hash * 31 % 1_000_003 + u64::from(byte))
}

impl Backend for Taker {
    type Body = Full<bytes::Bytes>;
    type Future = Pin<Box<dyn Future<Output = Response<Self::Body>> + Send>>;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        if head.path() == "/now" {
            answer.status(200).body(b"now");
        }
        head.path() == "/now"
    }

    fn wants_whole(&self, head: &Head<'_>) -> bool {
        head.path() != "/unwanted"
    }

    fn answer_whole(&self, head: &Head<'_>, body: &[u8], answer: &mut Answer<'_>) -> bool {
        assert_ne!(head.path(), "/unwanted");
        match head.path() {
            "/whole" => {
                answer.status(200).body(&[b"whole ", body].concat());
                true
            }
            "/declined" => {
                answer.status(200).field("half", "done");
                false
            }
            _ => false,
        }
    }

    fn take(&self, offer: &mut Offer<'_>) {
        let path = offer.head().path().to_owned();
        assert!(offer.raw().ends_with(b"\r\n\r\n"));
        match path.as_str() {
            "/take-panic" => {
                let _ticket = offer.ticket();
                panic!("taking");
            }
            "/take-dropped" => drop(offer.ticket()),
            "/take-back" => {
                let ticket = offer.ticket().expect("the first");
                assert!(offer.ticket().is_none(), "there is one ticket");
                offer.give_back(ticket);
            }
            "/take-answered" => {
                let ticket = offer.ticket().expect("the first");
                ticket.answer(|answer| answer.status(200).body(b"at once"));
            }
            path if path.starts_with("/later/") => {
                let mut ticket = offer.ticket().expect("the first");
                assert!(ticket.set_note(Some(note_of(path))));
                let body = offer.body().to_vec();
                let mut taken = self.taken.lock().expect("nobody panicked with it");
                taken.insert(path.to_owned(), (Some(ticket), body));
            }
            _ => {}
        }
    }

    fn sign(&self, _: std::time::Duration, answer: &mut Answer<'_>) {
        answer.field("x-site", "1");
    }

    fn refused(&self, own: &OwnAnswer) {
        let mut told = self.told.lock().expect("nobody panicked with it");
        told.push(own.why);
    }

    fn gone(&self, note: u64) {
        self.gone
            .lock()
            .expect("nobody panicked with it")
            .insert(note);
    }

    fn upgrade(&self, head: &Head<'_>) -> Option<Box<dyn Upgraded>> {
        (head.upgrade() == Some(b"shout")).then(|| Box::new(Shout::default()) as Box<_>)
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        (head.path() == "/little").then_some(3)
    }

    fn call(&self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let body = request.into_body().collect().await;
            let body = body.map_or_else(|error| error.to_string().into(), |all| all.to_bytes());
            Response::new(Full::new([b"called ", &body[..]].concat().into()))
        })
    }
}

/// Sends back in capitals what it reads; `?` sets a timer, `!` panics.
#[derive(Default)]
struct Shout {
    out: Vec<u8>,
    eof: bool,
}

impl Upgraded for Shout {
    fn protocol(&self) -> &'static str {
        "shout"
    }

    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn Stream,
        turn: &mut UpgradedTurn<'_>,
    ) -> Poll<()> {
        self.out.extend(turn.early().to_ascii_uppercase());
        assert!(turn.early().is_empty());
        if turn.timer_fired() {
            self.out.extend_from_slice(b"ticked");
        }
        loop {
            if !self.out.is_empty() {
                match Pin::new(&mut *stream).poll_write(cx, &self.out) {
                    Poll::Ready(Ok(written)) => drop(self.out.drain(..written)),
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
                continue;
            }
            if self.eof {
                return Poll::Ready(());
            }
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => match buffer.filled() {
                    b"" => self.eof = true,
                    b"?" => turn.wake_in(100),
                    b"!" => panic!("shouting"),
                    bytes => self.out.extend(bytes.to_ascii_uppercase()),
                },
            }
        }
    }
}

/// A running front.
pub(crate) struct Taking {
    address: SocketAddr,
    pub(crate) front: Arc<Front<Taker>>,
    taker: Arc<Taker>,
    phase: watch::Sender<Phase>,
    thread: Option<JoinHandle<()>>,
}

impl Taking {
    pub(crate) fn start() -> Taking {
        Taking::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Limits)) -> Taking {
        let mut limits = Limits {
            connections_max: 5000,
            ..Limits::default()
        };
        change(&mut limits);
        let taker = Arc::new(Taker::default());
        let front = Front::new(taker.clone(), limits).expect("limits that hold together");
        let (phase, watched) = watch::channel(Phase::Serving);
        let (sender, receiver) = mpsc::channel();
        let served = front.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
                    .await
                    .expect("a port");
                sender
                    .send(listener.local_addr().expect("its address"))
                    .expect("the test waits");
                served.serve(listener, watched).await.expect("serving");
            });
        });
        Taking {
            address: receiver.recv().expect("the server's address"),
            front,
            taker,
            phase,
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).expect("a connection"))
    }

    /// The ticket of the request for `path`, once it has been taken.
    pub(crate) fn ticket(&self, path: &str) -> Ticket {
        let mut found = None;
        until("the request was taken", || {
            let mut taken = self.taker.taken.lock().expect("nobody panicked with it");
            found = taken.get_mut(path).and_then(|(ticket, _)| ticket.take());
            found.is_some()
        });
        found.expect("it was found")
    }

    /// The body of that request.
    pub(crate) fn body(&self, path: &str) -> Vec<u8> {
        until("the request was taken", || {
            self.taker
                .taken
                .lock()
                .expect("nobody panicked with it")
                .contains_key(path)
        });
        self.taker.taken.lock().expect("nobody panicked with it")[path]
            .1
            .clone()
    }

    pub(crate) fn note(&self, path: &str) -> u64 {
        note_of(path)
    }

    /// The front's own answers that the backend was told of.
    pub(crate) fn told(&self) -> Vec<Refusal> {
        let told = self.taker.told.lock();
        told.expect("nobody panicked with it").clone()
    }

    /// Whether the backend was told that this note's client has gone.
    pub(crate) fn gone(&self, note: u64) -> bool {
        self.taker
            .gone
            .lock()
            .expect("nobody panicked with it")
            .contains(&note)
    }

    pub(crate) fn drain(&mut self) {
        let _ = self.phase.send(Phase::Draining);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a server that did not panic");
        }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.front.enter(Phase::Ended);
        let _ = self.phase.send(Phase::Draining);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(
                joined.is_ok() || std::thread::panicking(),
                "the event loop panicked"
            );
        }
    }
}
