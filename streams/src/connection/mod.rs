//! Connections that notice a dead, silent or demoted server and find the new one by themselves.

mod backoff;
mod batch;
mod link;
mod server;
mod state;
mod supervisor;

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

pub(crate) use backoff::Backoff;
pub(crate) use batch::Step;
pub use batch::{Batch, Replies};
pub use link::Fresh;
pub(crate) use link::{AbortOnDrop, setup_failed};
pub use server::{History, ParseVersionError, ServerInfo, Version};
pub use state::{DownReason, State, Up};

use crate::cluster::Inner;
use crate::endpoint::{
    BoxFuture, Credentials, Dial, Endpoint, Fixed, Resolver, Sentinel, StoreUrl, Target, TcpDial,
    UrlError,
};
use crate::error::{Error, ErrorCode};
use crate::{Call, Config};
use link::Link;

/// What the caller does with each new link before anything else is sent over it, such as raising an epoch when
/// [`Up::changed_from`] says that the server is another one.
///
/// It is also called on a link that stays up when the server's replication id is found to have changed. And it may be called
/// more than once for one change, when a link is lost before it is up: what it does must bear that.
pub trait Prepare: Send + Sync + 'static {
    /// Called with the link while nobody else has it. An error drops the link; the next attempt follows after the usual
    /// pause. Time is bounded by [`Config::connect_timeout`], which is shared with dialling and logging in.
    fn prepare<'a>(
        &'a self,
        fresh: Fresh<'a>,
    ) -> BoxFuture<'a, Result<(), Box<dyn StdError + Send + Sync>>>;
}

/// What a connection is made of.
pub(crate) struct Parts {
    config: Config,
    resolver: Arc<dyn Resolver>,
    dial: Arc<dyn Dial>,
    login: redis::RedisConnectionInfo,
    prepare: Option<Arc<dyn Prepare>>,
    /// The cluster whose node the server is to be.
    cluster: Option<Weak<Inner>>,
}

/// Makes a [`Connection`]; from [`Connection::builder`] or [`Connection::to`].
pub struct Builder {
    resolver: Arc<dyn Resolver>,
    dial: Arc<dyn Dial>,
    credentials: Credentials,
    db: i64,
    config: Config,
    prepare: Option<Arc<dyn Prepare>>,
    cluster: Option<Weak<Inner>>,
}

/// A connection to one node of a cluster.
pub(crate) fn build_node(
    endpoint: Endpoint,
    dial: Arc<dyn Dial>,
    credentials: &Credentials,
    config: Config,
    prepare: Option<Arc<dyn Prepare>>,
    cluster: Weak<Inner>,
) -> Connection {
    let builder = Builder {
        cluster: Some(cluster),
        prepare,
        ..Connection::builder(Arc::new(Fixed(endpoint)), config)
    };
    builder.dial(dial).login(credentials.clone(), 0).start()
}

impl Builder {
    /// Opens streams with `dial` instead of [`TcpDial`]. (A [`Sentinel`] resolver has its own.)
    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = dial;
        self
    }

    /// Logs in with `credentials` and selects the database `db`.
    pub fn login(mut self, credentials: Credentials, db: i64) -> Self {
        self.credentials = credentials;
        self.db = db;
        self
    }

    /// Calls `prepare` with each new link.
    pub fn prepare(mut self, prepare: Arc<dyn Prepare>) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// Starts connecting. Must be called within a tokio runtime; a `current_thread` one will do.
    pub fn start(self) -> Connection {
        let shared = Arc::new(Shared {
            parts: Parts {
                login: self.credentials.settings(self.db),
                config: self.config,
                resolver: self.resolver,
                dial: self.dial,
                prepare: self.prepare,
                cluster: self.cluster,
            },
            link: Mutex::new(None),
            answered_at: Mutex::new(None),
            state: watch::Sender::new(State::Connecting),
            in_flight: AtomicUsize::new(0),
        });
        let supervisor = tokio::spawn(supervisor::run(Arc::clone(&shared)));
        Connection {
            shared,
            _supervisor: Arc::new(AbortOnDrop(supervisor)),
        }
    }
}

struct Shared {
    parts: Parts,
    link: Mutex<Option<Arc<Link>>>,
    state: watch::Sender<State>,
    in_flight: AtomicUsize,
    /// When a server last answered anything, over whichever link.
    answered_at: Mutex<Option<Instant>>,
}

impl Shared {
    fn publish(&self, link: &Arc<Link>) {
        *self
            .link
            .lock()
            .expect("nothing panics while it holds this") = Some(Arc::clone(link));
        self.state.send_replace(State::Up(link.up()));
    }

    fn withdraw(&self, reason: Arc<DownReason>) {
        let link = self
            .link
            .lock()
            .expect("nothing panics while it holds this")
            .take();
        if let Some(at) = link.and_then(|link| link.answered_at()) {
            *self
                .answered_at
                .lock()
                .expect("nothing panics while it holds this") = Some(at);
        }
        self.state.send_replace(State::Down {
            since: Instant::now(),
            reason,
        });
    }

    /// An attempt to connect failed: the reason is the newest one, the time is that of the loss.
    fn failed(&self, reason: DownReason) {
        self.state.send_modify(|state| {
            let since = match state {
                State::Down { since, .. } => *since,
                _ => Instant::now(),
            };
            *state = State::Down {
                since,
                reason: Arc::new(reason),
            };
        });
    }
}

/// A connection to the store that is kept up by a task of its own, for as long as a handle of it exists.
///
/// Cheap to clone; all clones share one link, over which commands are pipelined. Commands are never queued for a link that
/// is not there and never sent twice: they fail at once, and [`Error::outcome`] says whether they may have been carried
/// out. The future of a command may be dropped; the command may be carried out all the same.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    _supervisor: Arc<AbortOnDrop>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("state", &*self.shared.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection to wherever `resolver` says the server is.
    pub fn builder(resolver: Arc<dyn Resolver>, config: Config) -> Builder {
        Builder {
            resolver,
            dial: Arc::new(TcpDial),
            credentials: Credentials::default(),
            db: 0,
            config,
            prepare: None,
            cluster: None,
        }
    }

    /// A connection to the store that `url` names, over plain TCP. A URL that asks for TLS or for a cluster is refused.
    pub fn to(url: &StoreUrl, config: Config) -> Result<Builder, UrlError> {
        Self::to_over(url, Arc::new(TcpDial), config)
    }

    /// A connection to the store that `url` names, over streams (to sentinels too) that `dial` opens. `rediss://` is refused
    /// unless they are encrypted, a cluster always.
    pub fn to_over(
        url: &StoreUrl,
        dial: Arc<dyn Dial>,
        config: Config,
    ) -> Result<Builder, UrlError> {
        if url.tls && !dial.is_encrypted() {
            return Err(UrlError::Unsupported {
                what: "rediss:// needs TLS, which this connection does not speak",
            });
        }
        let resolver: Arc<dyn Resolver> = match &url.target {
            Target::Server(endpoint) => Arc::new(Fixed(endpoint.clone())),
            Target::Sentinel {
                sentinels,
                master,
                credentials,
            } => Arc::new(Sentinel::new(
                sentinels.clone(),
                master,
                credentials.clone(),
                Arc::clone(&dial),
            )),
            Target::Cluster(_) => {
                return Err(UrlError::Unsupported {
                    what: "redis+cluster:// names several servers: a Router reaches them",
                });
            }
        };
        Ok(Self::builder(resolver, config)
            .dial(dial)
            .login(url.credentials.clone(), url.db))
    }

    /// The bounds that the connection was made with.
    pub fn config(&self) -> &Config {
        &self.shared.parts.config
    }

    /// Its state now.
    pub fn state(&self) -> State {
        self.shared.state.borrow().clone()
    }

    /// Whether there is a link, at the cost of a look.
    pub fn is_up(&self) -> bool {
        self.shared.state.borrow().up().is_some()
    }

    /// Its state, to be watched. A state that is followed at once by another may be skipped.
    pub fn states(&self) -> watch::Receiver<State> {
        self.shared.state.subscribe()
    }

    /// When the server last answered a command; `None` if it never did.
    pub fn answered_at(&self) -> Option<Instant> {
        let link = self
            .shared
            .link
            .lock()
            .expect("nothing panics while it holds this")
            .clone();
        let earlier = *self
            .shared
            .answered_at
            .lock()
            .expect("nothing panics while it holds this");
        earlier.max(link.and_then(|link| link.answered_at()))
    }

    /// How many commands are under way.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Waits until there is a link, for `within` at most. Ends early with a reason that will not go away by itself (a wrong
    /// password, a server that is too old).
    pub async fn wait_up(&self, within: Duration) -> Result<Up, Error> {
        let mut states = self.states();
        let deadline = Instant::now() + within;
        loop {
            let reason = match &*states.borrow_and_update() {
                State::Up(up) => return Ok(up.clone()),
                State::Down { reason, .. } => Some(Arc::clone(reason)),
                State::Connecting => None,
            };
            let permanent = reason.as_ref().is_some_and(|reason| reason.is_permanent());
            if permanent || timeout_at(deadline, states.changed()).await.is_err() {
                return Err(Error::NotConnected { reason });
            }
        }
    }

    /// Drops the link and makes a new one. For a caller that knows better, such as one that sees its tail fall silent.
    pub fn reconnect(&self) {
        if let Ok(link) = self.link() {
            link.condemn(DownReason::Asked);
        }
    }

    /// Runs one command.
    pub async fn query(&self, cmd: &Cmd) -> Result<Value, Error> {
        let link = self.link()?;
        Ok(self.send_one(&link, cmd).await??)
    }

    /// Runs one command and reads its reply as a `T`.
    pub async fn query_as<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, Error> {
        let value = self.query(cmd).await?;
        redis::from_redis_value(value).map_err(|source| Error::unexpected("a command", source))
    }

    /// Runs a script by its hash. If the server does not know it (it was restarted, or is another one), the script is
    /// loaded and run in one further round trip; that is done once, as a refused call has run nothing.
    pub async fn run(&self, call: &Call<'_>) -> Result<Value, Error> {
        call.check_keys()?;
        match self.query(&call.cmd).await {
            Err(Error::Server(error)) if error.code == ErrorCode::NoScript => {
                self.load_and_run(call).await
            }
            result => result,
        }
    }

    fn link(&self) -> Result<Arc<Link>, Error> {
        let link = self
            .shared
            .link
            .lock()
            .expect("nothing panics while it holds this");
        match &*link {
            Some(link) => Ok(Arc::clone(link)),
            None => Err(Error::NotConnected {
                reason: match &*self.shared.state.borrow() {
                    State::Down { reason, .. } => Some(Arc::clone(reason)),
                    _ => None,
                },
            }),
        }
    }

    /// Sends `commands` commands with `send`, within the bounds of number and time.
    async fn exchange<T, F>(
        &self,
        link: &Link,
        commands: usize,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let _places = Places::take(&self.shared, commands)?;
        let config = self.config();
        let sent_at = Instant::now();
        match timeout_at(sent_at + config.patience(), send(link.connection.clone())).await {
            Ok(Ok(reply)) => {
                link.answered();
                Ok(reply)
            }
            Ok(Err(source)) => Err(Error::LinkLost { source }),
            Err(_) => {
                link.timed_out(sent_at, config.timeouts_max);
                Err(Error::TimedOut {
                    after: config.patience(),
                })
            }
        }
    }
}

/// Places among the commands in flight, given back when dropped.
struct Places<'a> {
    shared: &'a Shared,
    count: usize,
}

impl<'a> Places<'a> {
    fn take(shared: &'a Shared, count: usize) -> Result<Self, Error> {
        let max = shared.parts.config.in_flight_max;
        shared
            .in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(count).filter(|taken| *taken <= max)
            })
            .map_err(|_| Error::TooManyInFlight {
                commands: count,
                max,
            })?;
        Ok(Self { shared, count })
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.shared
            .in_flight
            .fetch_sub(self.count, Ordering::Relaxed);
    }
}
