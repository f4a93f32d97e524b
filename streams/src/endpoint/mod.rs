//! Where the server is: addresses, the URL of a store, and resolvers that find the server each time one connects.

mod dial;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;
mod url;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use dial::{Dial, Duplex, TcpDial};
pub use sentinel::Sentinel;
#[cfg(feature = "tls")]
pub use tls::TlsDial;
pub use url::{StoreUrl, Target, UrlError};

/// A boxed future, for traits that are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Endpoint {
    /// `host` and `port`.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How one logs in to a server.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The ACL user; the default user if there is only a password.
    pub username: Option<String>,
    /// The password; no `AUTH` is sent without one.
    pub password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .finish()
    }
}

impl Credentials {
    pub(crate) fn settings(&self, db: i64) -> redis::RedisConnectionInfo {
        // CLIENT SETINFO is unknown before 7.2 and would count there as a failed command.
        let mut settings = redis::RedisConnectionInfo::default()
            .set_db(db)
            .set_skip_set_lib_name();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        settings
    }
}

/// Why a server's address was not found.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No Sentinel answered.
    #[error("none of the {asked} sentinels answered within {within:?}")]
    NoAnswer {
        /// How many were asked.
        asked: usize,
        /// For how long.
        within: Duration,
    },
    /// Sentinels answered, but none watches a master of this name.
    #[error("no sentinel knows a master named {master}")]
    UnknownMaster {
        /// The name.
        master: String,
    },
}

/// Finds the server to connect to.
pub trait Resolver: Send + Sync + 'static {
    /// The address of the server now. Called before each attempt to connect; must end by itself within a bounded time.
    fn resolve(&self) -> BoxFuture<'_, Result<Endpoint, ResolveError>>;

    /// Ends when it is known that the server is no longer to be found at `current`. Polled while a link to `current` is up;
    /// when it ends, the link is dropped and the address resolved again. Never ends unless a resolver says otherwise.
    fn moved<'a>(&'a self, current: &'a Endpoint) -> BoxFuture<'a, ()> {
        let _ = current;
        Box::pin(std::future::pending())
    }
}

/// A server at a fixed address. (A name in it is looked up anew at each attempt to connect.)
#[derive(Clone, Debug)]
pub struct Fixed(pub Endpoint);

impl Resolver for Fixed {
    fn resolve(&self) -> BoxFuture<'_, Result<Endpoint, ResolveError>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}
