//! One server, or the primaries of a cluster, behind one face.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::cluster::Cluster;
use crate::connection::{Batch, Connection, Prepare, Replies, State, Up};
use crate::endpoint::{Dial, Endpoint, StoreUrl, Target, UrlError};
use crate::error::{Error, ServerError};
use crate::{Call, Config};

/// What sends commands: a [`Connection`], or a [`Router`].
pub trait Commands: Sync {
    /// Runs one command.
    fn query(&self, cmd: &Cmd) -> impl Future<Output = Result<Value, Error>> + Send;

    /// Sends a batch and waits for all of its replies; fails if any of them does not come.
    fn batch(&self, batch: Batch<'_>) -> impl Future<Output = Result<Replies, Error>> + Send;
}

impl Commands for Connection {
    fn query(&self, cmd: &Cmd) -> impl Future<Output = Result<Value, Error>> + Send {
        Self::query(self, cmd)
    }

    fn batch(&self, batch: Batch<'_>) -> impl Future<Output = Result<Replies, Error>> + Send {
        Self::batch(self, batch)
    }
}

impl Commands for Router {
    fn query(&self, cmd: &Cmd) -> impl Future<Output = Result<Value, Error>> + Send {
        Self::query(self, cmd)
    }

    fn batch(&self, batch: Batch<'_>) -> impl Future<Output = Result<Replies, Error>> + Send {
        Self::batch(self, batch)
    }
}

/// Sends each command to the server that holds its key: the one server that a URL names or Sentinels know, or a primary of
/// a cluster. Cheap to clone.
///
/// With one server it is that server's [`Connection`], and nothing else. In a cluster each primary has a connection with
/// the bounds of one [`Config`]; redirections are followed, also from within a batch. What a batch's commands are about
/// decides where they go, so a script's keys must lie in one slot.
#[derive(Clone)]
pub struct Router(Way);

#[derive(Clone)]
enum Way {
    One(Connection),
    Many(Cluster),
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Router").field(&self.state()).finish()
    }
}

impl Router {
    /// Starts connecting to the store that `url` names, over streams that `dial` opens. `prepare` is called with each new
    /// link, of each server. `home` is a key of the store: commands about no key, such as `TIME`, go to its primary. Must be
    /// called within a tokio runtime.
    pub fn start(
        url: &StoreUrl,
        dial: Arc<dyn Dial>,
        config: Config,
        prepare: Option<Arc<dyn Prepare>>,
        home: &str,
    ) -> Result<Self, UrlError> {
        let Target::Cluster(seeds) = &url.target else {
            let mut builder = Connection::to_over(url, dial, config)?;
            if let Some(prepare) = prepare {
                builder = builder.prepare(prepare);
            }
            return Ok(Self(Way::One(builder.start())));
        };
        Ok(Self(Way::Many(Cluster::start(
            seeds.clone(),
            dial,
            url.credentials.clone(),
            config,
            prepare,
            home,
        ))))
    }

    /// Whether it leads to a cluster.
    pub fn is_cluster(&self) -> bool {
        matches!(self.0, Way::Many(_))
    }

    /// The bounds of each connection.
    pub fn config(&self) -> &Config {
        match &self.0 {
            Way::One(connection) => connection.config(),
            Way::Many(cluster) => &cluster.inner.config,
        }
    }

    /// The state now. A cluster is up when every slot has a primary and all of their links are up; what is shown is then the
    /// primary of the home key.
    pub fn state(&self) -> State {
        match &self.0 {
            Way::One(connection) => connection.state(),
            Way::Many(cluster) => cluster.state(),
        }
    }

    /// Whether it is up, at the cost of a look.
    pub fn is_up(&self) -> bool {
        match &self.0 {
            Way::One(connection) => connection.is_up(),
            Way::Many(cluster) => cluster.is_up(),
        }
    }

    /// Whether the server that holds `key` has a link that is up; outside of a cluster, whether it is up.
    pub fn is_up_for(&self, key: &str) -> bool {
        self.server_of(key).is_some_and(|server| server.is_up())
    }

    /// Its state, to be watched.
    pub fn states(&self) -> watch::Receiver<State> {
        match &self.0 {
            Way::One(connection) => connection.states(),
            Way::Many(cluster) => cluster.states(),
        }
    }

    /// The links to primaries that are up.
    pub fn ups(&self) -> Vec<Up> {
        match &self.0 {
            Way::One(connection) => connection.state().up().cloned().into_iter().collect(),
            Way::Many(cluster) => cluster.inner.ups(),
        }
    }

    /// The connection to the server that holds `key`; `None` while a cluster's slot has none that is known.
    pub fn server_of(&self, key: &str) -> Option<Connection> {
        match &self.0 {
            Way::One(connection) => Some(connection.clone()),
            Way::Many(cluster) => {
                let slot = cluster.inner.slot_of(Some(key.as_bytes()));
                cluster.inner.connection_of(slot)
            }
        }
    }

    /// The connection to the server at `endpoint`; outside of a cluster, to the one server. `None` when there are too many.
    pub fn server_at(&self, endpoint: &Endpoint) -> Option<Connection> {
        match &self.0 {
            Way::One(connection) => Some(connection.clone()),
            Way::Many(cluster) => cluster.inner.node(endpoint),
        }
    }

    /// Waits until it is up, for `within` at most. Ends early with a reason that will not go away by itself.
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

    /// Runs one command.
    pub async fn query(&self, cmd: &Cmd) -> Result<Value, Error> {
        match &self.0 {
            Way::One(connection) => connection.query(cmd).await,
            Way::Many(cluster) => cluster.inner.query(cmd).await,
        }
    }

    /// Runs one command and reads its reply as a `T`.
    pub async fn query_as<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, Error> {
        let value = self.query(cmd).await?;
        redis::from_redis_value(value).map_err(|source| Error::unexpected("a command", source))
    }

    /// Runs a script by its hash; see [`Connection::run`].
    pub async fn run(&self, call: &Call<'_>) -> Result<Value, Error> {
        match &self.0 {
            Way::One(connection) => connection.run(call).await,
            Way::Many(_) => {
                let mut answers = self.each(Batch::new().call(call.clone())).await;
                answers
                    .pop()
                    .unwrap_or_else(|| Err(Error::unexpected("a script", "no reply")))
            }
        }
    }

    /// Sends a batch and waits for all answers: for each command its reply, or why it has none. A server that is away fails
    /// its own commands only.
    pub async fn each(&self, batch: Batch<'_>) -> Vec<Result<Value, Error>> {
        match &self.0 {
            Way::Many(cluster) => cluster.inner.each(&batch).await,
            Way::One(connection) => {
                let commands = batch.len();
                match connection.batch(batch).await {
                    Ok(replies) => replies.map(|reply| reply.map_err(Error::from)).collect(),
                    Err(error) => (0..commands).map(|_| Err(error.clone())).collect(),
                }
            }
        }
    }

    /// Sends a batch and waits for all of its replies. Fails as a whole if any of them does not come: then each of its
    /// commands may have been carried out.
    pub async fn batch(&self, batch: Batch<'_>) -> Result<Replies, Error> {
        let cluster = match &self.0 {
            Way::One(connection) => return connection.batch(batch).await,
            Way::Many(cluster) => cluster,
        };
        let mut replies: Vec<Result<Value, ServerError>> = Vec::with_capacity(batch.len());
        for answer in cluster.inner.each(&batch).await {
            replies.push(match answer {
                Ok(value) => Ok(value),
                Err(Error::Server(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            });
        }
        Ok(replies.into_iter())
    }
}
