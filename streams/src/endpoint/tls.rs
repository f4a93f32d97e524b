//! TLS over TCP.

use std::io;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{BoxFuture, Dial, Duplex, Endpoint, TcpDial};

/// TLS over [`TcpDial`], for `rediss://` (see [`Connection::to_over`](crate::Connection::to_over)). The server's certificate
/// must be valid for the host that the URL, or the sentinel, names.
#[derive(Clone)]
pub struct TlsDial {
    connector: TlsConnector,
}

impl TlsDial {
    /// With the trusted roots, the client certificate and the cryptography of `config`.
    pub fn new(config: Arc<ClientConfig>) -> Self {
        Self {
            connector: config.into(),
        }
    }
}

impl Dial for TlsDial {
    fn dial<'a>(&'a self, endpoint: &'a Endpoint) -> BoxFuture<'a, io::Result<Box<dyn Duplex>>> {
        Box::pin(async {
            let name = ServerName::try_from(endpoint.host.clone())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = TcpDial.dial(endpoint).await?;
            let stream = self.connector.connect(name, stream).await?;
            Ok(Box::new(stream) as Box<dyn Duplex>)
        })
    }

    fn is_encrypted(&self) -> bool {
        true
    }
}
