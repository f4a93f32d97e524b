//! How a byte stream to a server is opened.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::{BoxFuture, Endpoint};

/// A byte stream in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// Opens byte streams. Put in place of [`TcpDial`] to add TLS, or to connect through a simulated network in tests.
pub trait Dial: Send + Sync + 'static {
    /// A stream to `endpoint`. The caller bounds the time.
    fn dial<'a>(&'a self, endpoint: &'a Endpoint) -> BoxFuture<'a, io::Result<Box<dyn Duplex>>>;

    /// Whether its streams are encrypted, as `rediss://` demands.
    fn is_encrypted(&self) -> bool {
        false
    }
}

/// Plain TCP, without Nagle's delay. A name is looked up each time, and its addresses are tried in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDial;

impl Dial for TcpDial {
    fn dial<'a>(&'a self, endpoint: &'a Endpoint) -> BoxFuture<'a, io::Result<Box<dyn Duplex>>> {
        Box::pin(async {
            let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Duplex>)
        })
    }
}
