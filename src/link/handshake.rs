//! How a link begins: a request for an upgrade, its 101, and the server's hello.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{LinkClient, LinkOwner, Shared};
use super::driver::LinkDriver;
use super::frame::{self, Frame, FrameError, PROTOCOL, VERSION};
use super::input::Input;
use super::limits::LinkLimits;

/// Bytes of the answer to the request for an upgrade, at most.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The server answered with this status instead of 101: it does not speak links, or not with us. Plain HTTP works.
    #[error("the server does not speak links: it answered {0}")]
    NotSpoken(u16),
    /// What came is neither HTTP nor a link.
    #[error("the server did not answer as an HTTP server does")]
    NotHttp,
    /// The server speaks a link that this version does not understand. Plain HTTP works.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// It took too long.
    #[error("the server did not answer in time")]
    TimedOut,
}

impl HandshakeError {
    /// Whether the server is there, and can be spoken to over plain HTTP.
    #[must_use]
    pub fn plain_http_works(&self) -> bool {
        matches!(
            self,
            HandshakeError::NotSpoken(_) | HandshakeError::Frame(_)
        )
    }
}

/// Connects to `address` (`host:port`) and makes a link of it, within
/// [`LinkLimits::handshake_timeout_ms`](super::LinkLimits::handshake_timeout_ms). See [`handshake`].
///
/// # Errors
/// There is no link; nothing remains of it.
pub async fn connect(
    address: &str,
    id: u16,
    owner: Arc<dyn LinkOwner>,
    limits: LinkLimits,
) -> Result<(LinkClient, LinkDriver<TcpStream>), HandshakeError> {
    let timeout = Duration::from_millis(limits.handshake_timeout_ms.into());
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        handshake(stream, address, id, owner, limits).await
    };
    tokio::time::timeout(timeout, connecting)
        .await
        .unwrap_or(Err(HandshakeError::TimedOut))
}

/// Makes a link of `stream`, on which nothing has been said yet. `host` goes into the request's `Host`; `id` names the
/// link in notes ([`LinkClient::id_of_note`]): no two live links of one owner share it.
///
/// The driver is to be spawned.
///
/// # Errors
/// There is no link. How long this may take is the caller's choice.
pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    host: &str,
    id: u16,
    owner: Arc<dyn LinkOwner>,
    limits: LinkLimits,
) -> Result<(LinkClient, LinkDriver<S>), HandshakeError> {
    let request = format!(
        "GET /health/live HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut input = Input::new(limits.read_bytes);
    let head_bytes = loop {
        read_more(&mut input, &mut stream).await?;
        if let Some(bytes) = switched(input.all())? {
            break bytes;
        }
        if input.all().len() > HEAD_BYTES_MAX {
            return Err(HandshakeError::NotHttp);
        }
    };
    input.skip(head_bytes);
    let hello = loop {
        match input.next(limits.answer_frame_bytes_max())? {
            Some((frame, _)) => match frame::parse(frame)? {
                Frame::Hello(hello) if hello.version == VERSION => break hello,
                Frame::Hello(hello) => return Err(FrameError::Version(hello.version).into()),
                _ => return Err(FrameError::OutOfPlace.into()),
            },
            None => {
                input.compact();
                read_more(&mut input, &mut stream).await?;
            }
        }
    };
    input.compact();
    let shared = Shared::new(id, limits, hello);
    let client = LinkClient(shared.clone());
    Ok((client, LinkDriver::new(stream, shared, owner, input)))
}

async fn read_more(
    input: &mut Input,
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<(), HandshakeError> {
    match poll_fn(|cx| input.read(stream, cx)).await? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}

/// The bytes of a whole 101 to our protocol; `None` when it is not all there.
fn switched(input: &[u8]) -> Result<Option<usize>, HandshakeError> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(input) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(bytes)) => {
            let status = response.code.unwrap_or_default();
            let is_ours = response.headers.iter().any(|field| {
                field.name.eq_ignore_ascii_case("upgrade")
                    && field.value.eq_ignore_ascii_case(PROTOCOL.as_bytes())
            });
            if status == 101 && is_ours {
                Ok(Some(bytes))
            } else {
                Err(HandshakeError::NotSpoken(status))
            }
        }
        Err(_) => Err(HandshakeError::NotHttp),
    }
}
