//! The other end of a link, which says what a test wants.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use trove::link::LinkLimits;
use trove::link::frame::{self, AnswerFrame, Frame, Hello, RequestFrame, Tag, VERSION};

use super::{PATIENCE, Shim, shim};

pub(crate) const UPGRADE: &str =
    "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: trove-link/1\r\n\r\n";
pub(crate) const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: trove-link/1\r\n\r\n";

/// The other end, which says what it wants.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

/// A frame that outlives its buffer.
#[derive(Debug, PartialEq)]
pub(crate) enum Got {
    Hello(Hello),
    Request(Tag, String),
    Answer(Tag, u16, String),
    Other(u8, Vec<u8>),
    End,
}

impl Raw {
    pub(crate) async fn client(address: std::net::SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let mut raw = Raw {
            stream,
            unread: Vec::new(),
        };
        raw.stream
            .write_all(UPGRADE.as_bytes())
            .await
            .expect("sending");
        raw.head().await;
        let Got::Hello(hello) = raw.next().await else {
            panic!("a hello");
        };
        assert_eq!(hello.version, VERSION);
        raw
    }

    pub(crate) async fn head(&mut self) -> String {
        loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                return String::from_utf8(self.unread.drain(..at + 4).collect()).expect("text");
            }
            assert!(
                self.stream
                    .read_buf(&mut self.unread)
                    .await
                    .expect("reading")
                    > 0
            );
        }
    }

    pub(crate) async fn send(&mut self, frames: &[Frame<'_>]) {
        let mut bytes = Vec::new();
        for frame in frames {
            frame::push(&mut bytes, frame);
        }
        self.stream.write_all(&bytes).await.expect("sending");
    }

    pub(crate) async fn next(&mut self) -> Got {
        loop {
            if let Some((bytes, consumed)) = frame::split(&self.unread, 1 << 21).expect("a frame") {
                let got = match frame::parse(bytes).expect("a frame") {
                    Frame::Hello(hello) => Got::Hello(hello),
                    Frame::Request(r) => {
                        let text = [r.head, r.body].concat();
                        Got::Request(r.tag, String::from_utf8(text).expect("text"))
                    }
                    Frame::Answer(a) => {
                        let text = String::from_utf8(a.body.to_vec()).expect("text");
                        Got::Answer(a.tag, a.status, text)
                    }
                    _ => Got::Other(bytes[0], bytes[1..].to_vec()),
                };
                self.unread.drain(..consumed);
                return got;
            }
            let reading = self.stream.read_buf(&mut self.unread);
            match tokio::time::timeout(PATIENCE, reading)
                .await
                .expect("in time")
            {
                Ok(1..) => {}
                _ => return Got::End,
            }
        }
    }
}

pub(crate) fn tag(place: u32, serial: u32) -> Tag {
    Tag { place, serial }
}

pub(crate) fn request(tag: Tag, head: &str) -> Frame<'_> {
    request_with(tag, head, b"")
}

pub(crate) fn request_with<'a>(tag: Tag, head: &'a str, body: &'a [u8]) -> Frame<'a> {
    Frame::Request(RequestFrame {
        tag,
        deadline_ms: 30_000,
        client: ([192, 0, 2, 9], 7).into(),
        is_secure: false,
        head: head.as_bytes(),
        body,
    })
}

pub(crate) fn answer(tag: Tag, body: &str) -> Frame<'_> {
    Frame::Answer(AnswerFrame {
        tag,
        status: 200,
        fields: b"a: b\r\n",
        body: body.as_bytes(),
        length: None,
    })
}

pub(crate) const NOW: &str = "GET /now/a HTTP/1.1\r\nhost: x\r\n\r\n";
pub(crate) const HELD: &str = "GET /held/a HTTP/1.1\r\nhost: x\r\n\r\n";

/// A server that says what it wants, and the shim that linked to it.
pub(crate) async fn evil() -> (Shim, Raw) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let shim = shim().await;
    let accepting = async {
        let (stream, _) = listener.accept().await.expect("a link");
        let mut raw = Raw {
            stream,
            unread: Vec::new(),
        };
        raw.head().await;
        raw.stream
            .write_all(SWITCHED.as_bytes())
            .await
            .expect("sending");
        let hello = Hello {
            version: VERSION,
            requests_max: 4,
            request_bytes_max: 8192,
            answer_bytes_max: 65_536,
        };
        raw.send(&[Frame::Hello(hello)]).await;
        raw
    };
    let (_, raw) = tokio::join!(shim.link(address, 3, LinkLimits::default()), accepting);
    (shim, raw)
}
