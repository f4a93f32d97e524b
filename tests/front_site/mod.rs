//! A front with a small site behind it, on a port and a thread of its own, and a client that speaks bytes.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body as AxumBody;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::{Notify, watch};
use trove::front::{
    Answer, Backend, Body, Front, Head, Limits, Origin, OwnAnswer, Phase, Refusal, ServiceFuture,
};

/// How long a test waits for what must happen; far above what it takes, also on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What tests look at and hold back.
#[derive(Default)]
pub(crate) struct Gate {
    /// Requests that reached `/held`.
    pub(crate) held: AtomicUsize,
    /// Of those, futures that were dropped.
    pub(crate) dropped: AtomicUsize,
    /// Lets one of them answer.
    pub(crate) open: Notify,
    /// Held by a test, it makes `/block` stop the whole loop.
    pub(crate) blocked: Mutex<()>,
    /// Bytes of bodies that `/trickle` has taken.
    pub(crate) taken: AtomicUsize,
    /// Bytes that `/endless` has given.
    pub(crate) given: AtomicUsize,
    /// Answers of the front's own that the site was told of: which, and whether `call` had had the request.
    pub(crate) told: Mutex<Vec<(Refusal, bool)>>,
    /// Requests whose futures were given up, and for what.
    pub(crate) given_up: Mutex<Vec<Refusal>>,
}

pub(crate) struct Site {
    router: Router,
    gate: Arc<Gate>,
}

struct Dropped(Arc<Gate>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, SeqCst);
    }
}

/// A body made of what a closure gives, one frame a call; its size is unknown.
struct Pieces<F>(F);

impl<F: FnMut() -> Option<Result<Bytes, std::io::Error>> + Unpin> http_body::Body for Pieces<F> {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        Poll::Ready((self.0)().map(|piece| piece.map(http_body::Frame::data)))
    }
}

fn pieces(
    next: impl FnMut() -> Option<Result<Bytes, std::io::Error>> + Send + Unpin + 'static,
) -> AxumBody {
    AxumBody::new(Pieces(next))
}

pub(crate) fn site(gate: Arc<Gate>) -> Site {
    let (held, block, trickle, endless) = (gate.clone(), gate.clone(), gate.clone(), gate.clone());
    let router = Router::new()
        .route(
            "/call/{name}",
            get(|Path(name): Path<String>| async move { format!("called {name}") }),
        )
        .route("/echo", post(|body: AxumBody| async move { body }))
        .route(
            "/count",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .route("/early", post(|| async { "not wanted" }))
        .route(
            "/refuse",
            post(|mut body: AxumBody| async move {
                let first = body.frame().await;
                (StatusCode::FORBIDDEN, format!("saw {}", first.is_some()))
            }),
        )
        .route(
            "/elsewhere",
            post(|body: AxumBody| async move {
                // The body is read by another task than the one that answers.
                let reader =
                    tokio::spawn(
                        async move { body.collect().await.map(|all| all.to_bytes().len()) },
                    );
                reader
                    .await
                    .expect("the reader")
                    .map_or_else(|error| error.to_string(), |n| n.to_string())
            }),
        )
        .route(
            "/trickle",
            post(move |mut body: AxumBody| async move {
                while let Some(Ok(frame)) = body.frame().await {
                    let bytes = frame.into_data().map_or(0, |data| data.len());
                    trickle.taken.fetch_add(bytes, SeqCst);
                    trickle.open.notified().await;
                }
                "done"
            }),
        )
        .route(
            "/held",
            get(move || async move {
                let dropped = Dropped(held.clone());
                held.held.fetch_add(1, SeqCst);
                held.open.notified().await;
                std::mem::forget(dropped);
                "released"
            }),
        )
        .route(
            "/block",
            get(move || async move {
                block.held.fetch_add(1, SeqCst);
                drop(block.blocked.lock());
            }),
        )
        .route(
            "/stream/{count}",
            get(|Path(count): Path<usize>| async move {
                let mut left = count;
                pieces(move || {
                    left = left.checked_sub(1)?;
                    Some(Ok(Bytes::from(format!("piece {left};"))))
                })
            }),
        )
        .route(
            "/large/{bytes}",
            get(|Path(bytes): Path<usize>| async move { large(bytes) }),
        )
        .route(
            "/large-chunks/{count}",
            get(|Path(count): Path<usize>| async move {
                let mut left = count;
                pieces(move || {
                    left = left.checked_sub(1)?;
                    Some(Ok(large(50_000)))
                })
            }),
        )
        .route(
            "/endless",
            get(move || async move {
                pieces(move || {
                    endless.given.fetch_add(8192, SeqCst);
                    Some(Ok(Bytes::from_static(&[b'x'; 8192])))
                })
            }),
        )
        .route(
            "/broken/{length}",
            get(|Path(length): Path<String>| async move {
                let mut left = 3;
                let body = pieces(move || {
                    left -= 1;
                    Some(if left > 0 {
                        Ok(Bytes::from_static(b"part"))
                    } else {
                        Err(std::io::Error::other("broke"))
                    })
                });
                match length.as_str() {
                    "unknown" => body.into_response(),
                    length => ([("content-length", length.to_owned())], body).into_response(),
                }
            }),
        )
        .route("/panic", get(|| async { panic!("a handler") as () }))
        .route("/panic-body", get(|| async { pieces(|| panic!("a body")) }))
        .route("/bye", get(|| async { ([("connection", "close")], "bye") }))
        .route(
            "/upgrade",
            get(|| async { StatusCode::SWITCHING_PROTOCOLS }),
        )
        .route(
            "/peer",
            get(|request: Request<AxumBody>| async move {
                let origin = *request
                    .extensions()
                    .get::<Origin>()
                    .expect("every request has one");
                format!("{} {}", origin.peer, origin.arrived.elapsed() < PATIENCE)
            }),
        );
    Site { router, gate }
}

/// `bytes` bytes that differ along the way.
pub(crate) fn large(bytes: usize) -> Bytes {
    let mut letters = (b'a'..=b'z').cycle();
    (0..bytes.div_ceil(7))
        .flat_map(|_| [letters.next().unwrap_or(b'a'); 7])
        .take(bytes)
        .collect()
}

impl Backend for Site {
    type Body = AxumBody;
    type Future = ServiceFuture<Router>;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        match head.path() {
            "/panic-now" => {
                answer.status(200);
                panic!("answering at once");
            }
            "/half-now" => {
                answer.status(200).field("x", "taken back");
                false
            }
            "/none-now" => {
                answer.status(204).field("x-none", "1");
                true
            }
            "/bad-now" => {
                answer.status(200).field("x", "a\r\nb: c").body(b"");
                true
            }
            path if path.starts_with("/now") => {
                let body = format!("now {} {}", head.method(), head.query().unwrap_or("-"));
                answer
                    .status(200)
                    .content_type("text/plain")
                    .body(body.as_bytes());
                true
            }
            _ => false,
        }
    }

    fn sign(&self, _: Duration, answer: &mut Answer<'_>) {
        answer.field("x-site", "1");
    }

    fn refused(&self, own: &OwnAnswer) {
        let mut told = self.gate.told.lock().expect("nobody panicked with it");
        told.push((own.why, own.was_called));
    }

    fn give_up(&self, why: Refusal, _: std::pin::Pin<&mut Self::Future>) {
        assert_eq!(self.gate.dropped.load(SeqCst), 0, "it is still there");
        let mut given_up = self.gate.given_up.lock().expect("nobody panicked with it");
        given_up.push(why);
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        (head.path() == "/count" && head.query() == Some("little")).then_some(10)
    }

    fn call(&self, request: Request<Body>) -> Self::Future {
        ServiceFuture::new(self.router.clone(), request)
    }
}

/// A running front.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) front: Arc<Front<Site>>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) phase: watch::Sender<Phase>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start() -> Running {
        Running::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Limits)) -> Running {
        let mut limits = Limits {
            connections_max: 5000,
            ..Limits::default()
        };
        change(&mut limits);
        let gate = Arc::new(Gate::default());
        let front =
            Front::new(Arc::new(site(gate.clone())), limits).expect("limits that hold together");
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
        let address = receiver.recv().expect("the server's address");
        Running {
            address,
            front,
            gate,
            phase,
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).expect("a connection"))
    }

    /// Sends `bytes` on a new connection and reads one answer.
    pub(crate) fn ask(&self, bytes: &[u8]) -> Reply {
        let mut client = self.connect();
        client.send(bytes);
        client.reply()
    }

    /// Like `ask`, for a server that may drop the connection: the status, if there was an answer.
    pub(crate) fn ask_status(&self, bytes: &[u8]) -> Option<u16> {
        let mut client = self.connect();
        client.try_send(bytes);
        let answer = String::from_utf8(client.rest_or_reset()).ok()?;
        answer.get(9..12)?.parse().ok()
    }

    /// Starts draining and waits for the server to have ended.
    pub(crate) fn drain(&mut self) {
        let _ = self.phase.send(Phase::Draining);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a server that did not panic");
        }
    }

    pub(crate) fn counter(
        &self,
        pick: impl Fn(&trove::front::Counters) -> &std::sync::atomic::AtomicU64,
    ) -> u64 {
        pick(self.front.counters()).load(SeqCst)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.phase.send(Phase::Draining);
        self.front.enter(Phase::Ended);
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(
                joined.is_ok() || std::thread::panicking(),
                "the event loop panicked"
            );
        }
    }
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Chunk sizes, where it was chunked.
    pub(crate) chunks: Vec<usize>,
}

impl Reply {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice in {:?}", self.fields);
        value
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The code of a problem document.
    pub(crate) fn code(&self) -> &str {
        assert_eq!(
            self.field("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let text = self.text();
        let start = text.find(r#""code":""#).expect("a code") + 8;
        text[start..].split('"').next().expect("an end")
    }

    pub(crate) fn closes(&self) -> bool {
        self.field("connection") == Some("close")
    }
}

/// The other end of a connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Client {
            stream,
            unread: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sending");
    }

    /// Sends although the server may have closed already.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("half-closing");
    }

    /// Reads more; false at the end.
    fn more(&mut self) -> bool {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(read) => {
                self.unread.extend_from_slice(&buffer[..read]);
                read > 0
            }
            Err(error) => panic!(
                "reading: {error}; so far {:?}",
                self.unread.escape_ascii().to_string()
            ),
        }
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8(self.unread[..at].to_vec()).expect("text");
                self.unread.drain(..at + 2);
                return line;
            }
            assert!(
                self.more(),
                "the end, after {:?}",
                self.unread.escape_ascii().to_string()
            );
        }
    }

    fn exactly(&mut self, bytes: usize) -> Vec<u8> {
        while self.unread.len() < bytes {
            assert!(
                self.more(),
                "the end, {} of {bytes} bytes",
                self.unread.len()
            );
        }
        self.unread.drain(..bytes).collect()
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.reply_to("GET")
    }

    /// Status and fields only.
    pub(crate) fn head(&mut self) -> Reply {
        let line = self.line();
        let status = line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("a status line, not {line:?}"));
        let mut fields = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line
                .split_once(": ")
                .unwrap_or_else(|| panic!("a field, not {line:?}"));
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Reply {
            status,
            fields,
            body: Vec::new(),
            chunks: Vec::new(),
        }
    }

    pub(crate) fn reply_to(&mut self, method: &str) -> Reply {
        let mut reply = self.head();
        if method == "HEAD" || reply.status < 200 || matches!(reply.status, 204 | 304) {
            return reply;
        }
        if let Some(length) = reply.field("content-length") {
            let length = length.parse().expect("a length");
            assert_eq!(reply.field("transfer-encoding"), None);
            reply.body = self.exactly(length);
        } else if reply.field("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line(), 16).expect("a chunk's size");
                if size > 0 {
                    reply.chunks.push(size);
                }
                reply.body.extend(self.exactly(size));
                assert_eq!(self.line(), "");
                if size == 0 {
                    break;
                }
            }
        } else {
            assert!(reply.closes(), "no end to {reply:?}");
            while self.more() {}
            reply.body = std::mem::take(&mut self.unread);
        }
        reply
    }

    /// Everything until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.unread)
    }

    /// Asserts that the server closes without another byte.
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.rest().escape_ascii().to_string(), "");
    }

    /// Everything until the server closes or resets.
    pub(crate) fn rest_or_reset(&mut self) -> Vec<u8> {
        let mut buffer = [0; 65536];
        while let Ok(read @ 1..) = self.stream.read(&mut buffer) {
            self.unread.extend_from_slice(&buffer[..read]);
        }
        std::mem::take(&mut self.unread)
    }
}
