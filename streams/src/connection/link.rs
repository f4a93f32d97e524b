//! One link to one server, from its setup to the first reason to drop it.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::server::{History, ServerInfo, read_role};
use super::state::{DownReason, Up};
use super::{Parts, Prepare};
use crate::cluster::{Inner, key_of};
use crate::endpoint::Endpoint;
use crate::error::{ErrorCode, ServerError};

/// Aborts a task when dropped, so that nothing that a connection started outlives it.
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    /// Replaced when a probe finds another history on the same link.
    up: Mutex<Up>,
    /// Why this link is to be dropped; the first reason stays.
    condemned: OnceLock<Arc<DownReason>>,
    condemn: Notify,
    timeouts: Mutex<Timeouts>,
    /// Wakes the probe before its time, after a time-out.
    pub(super) suspect: Notify,
}

/// Time-outs since the last answer. Those of commands that were under way together count once: a command counts only if it
/// was sent after the last time-out that counted.
#[derive(Debug)]
struct Timeouts {
    in_a_row: u32,
    counted_at: Option<Instant>,
    answered_at: Option<Instant>,
}

impl Link {
    pub(super) fn up(&self) -> Up {
        self.up
            .lock()
            .expect("nothing panics while it holds this")
            .clone()
    }

    pub(super) fn condemn(&self, reason: DownReason) {
        if self.condemned.set(Arc::new(reason)).is_ok() {
            self.condemn.notify_one();
        }
    }

    /// Ends when there is a reason to drop the link.
    pub(super) async fn condemned(&self) -> Arc<DownReason> {
        loop {
            if let Some(reason) = self.condemned.get() {
                return Arc::clone(reason);
            }
            self.condemn.notified().await;
        }
    }

    pub(super) fn answered(&self) {
        let mut timeouts = self
            .timeouts
            .lock()
            .expect("nothing panics while it holds this");
        timeouts.in_a_row = 0;
        timeouts.answered_at = Some(Instant::now());
    }

    pub(super) fn answered_at(&self) -> Option<Instant> {
        self.timeouts
            .lock()
            .expect("nothing panics while it holds this")
            .answered_at
    }

    pub(super) fn timed_out(&self, sent_at: Instant, timeouts_max: u32) {
        let in_a_row = {
            let mut timeouts = self
                .timeouts
                .lock()
                .expect("nothing panics while it holds this");
            if timeouts
                .counted_at
                .is_some_and(|counted_at| sent_at < counted_at)
            {
                return;
            }
            timeouts.in_a_row += 1;
            timeouts.counted_at = Some(Instant::now());
            timeouts.in_a_row
        };
        if in_a_row >= timeouts_max {
            self.condemn(DownReason::TimedOut(in_a_row));
        } else {
            self.suspect.notify_one();
        }
    }

    /// Drops the link if `error` says that its server is not one to talk to.
    pub(super) fn refused(&self, error: &ServerError) {
        if error.condemns_the_link() {
            self.condemn(DownReason::Refused(error.clone()));
        }
    }

    /// Asks the server for its role and history. `None`: no answer in time, which was counted.
    pub(super) async fn probe(&self, parts: &Parts) -> Option<Result<ServerInfo, DownReason>> {
        let mut connection = self.connection.clone();
        let mut cmd = redis::cmd("INFO");
        cmd.arg("replication");
        let sent_at = Instant::now();
        let Ok(reply) = timeout(
            parts.config.patience(),
            connection.send_packed_command(&cmd),
        )
        .await
        else {
            self.timed_out(sent_at, parts.config.timeouts_max);
            return None;
        };
        self.answered();
        Some(match reply {
            Err(_) => Err(DownReason::Closed),
            Ok(Value::ServerError(error)) => Err(DownReason::Refused(error.into())),
            Ok(reply) => match ServerInfo::read(&reply) {
                Some((_, role)) if role != "master" => Err(DownReason::NotMaster { role }),
                Some((server, _)) => Ok(server),
                None => Err(DownReason::NotUnderstood),
            },
        })
    }

    /// A probe found that the server's replication id is another one, without the link having broken: prepares the link
    /// again and remembers what it is.
    pub(super) async fn history_changed(
        &self,
        probed: ServerInfo,
        parts: &Parts,
    ) -> Result<(), DownReason> {
        let before = self.up();
        let server = ServerInfo {
            history: History {
                replid: probed.history.replid,
                ..before.server.history.clone()
            },
            replid_before: probed.replid_before,
            replicas: probed.replicas,
            ..(*before.server).clone()
        };
        let up = Up {
            link: before.link,
            server: Arc::new(server),
            changed_from: Some(before.server.history.clone()),
        };
        prepare(&self.connection, &up, parts).await?;
        *self.up.lock().expect("nothing panics while it holds this") = up;
        Ok(())
    }
}

/// Dials `endpoint`, logs in, looks at the server before anything else is sent, loads the scripts and lets the caller
/// prepare the link. The caller bounds the time.
pub(super) async fn open(
    endpoint: Endpoint,
    number: u64,
    known: Option<&History>,
    parts: &Parts,
) -> Result<(Link, AbortOnDrop), DownReason> {
    let config = &parts.config;
    let stream = parts
        .dial
        .dial(&endpoint)
        .await
        .map_err(|error| DownReason::Dial(Arc::new(error)))?;
    let settings = AsyncConnectionConfig::new()
        // Both are done here, where a time-out is told from other ends and counted.
        .set_response_timeout(None)
        .set_connection_timeout(None)
        // The bound is `in_flight_max`; below it nobody waits for a place in the queue.
        .set_pipeline_buffer_size(config.in_flight_max.saturating_add(1));
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&parts.login, stream, settings)
            .await
            .map_err(setup_failed)?;
    let driver = AbortOnDrop(tokio::spawn(driver));
    let server = inspect(&connection, endpoint, parts).await?;
    let up = Up {
        link: number,
        changed_from: known.filter(|known| **known != server.history).cloned(),
        server: Arc::new(server),
    };
    prepare(&connection, &up, parts).await?;
    let link = Link {
        connection,
        up: Mutex::new(up),
        condemned: OnceLock::new(),
        condemn: Notify::new(),
        timeouts: Mutex::new(Timeouts {
            in_a_row: 0,
            counted_at: None,
            answered_at: None,
        }),
        suspect: Notify::new(),
    };
    Ok((link, driver))
}

async fn inspect(
    connection: &MultiplexedConnection,
    endpoint: Endpoint,
    parts: &Parts,
) -> Result<ServerInfo, DownReason> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").cmd("ROLE");
    let mut expected = 2;
    if let Some(name) = &parts.config.client_name {
        questions.cmd("CLIENT").arg("SETNAME").arg(name);
        expected = 3;
    }
    let answers = connection
        .clone()
        .send_packed_commands(&questions, 0, expected)
        .await
        .map_err(DownReason::Setup)?;
    for answer in &answers {
        if let Value::ServerError(error) = answer {
            return Err(setup_refused(error.clone()));
        }
    }
    let (mut server, _) = ServerInfo::read(&answers[0]).ok_or(DownReason::NotUnderstood)?;
    server.endpoint = Some(endpoint);
    // A sentinel has no replication id and a replica has its master's: what it is comes before what it holds.
    let role = read_role(&answers[1]).ok_or(DownReason::NotUnderstood)?;
    if server.version < parts.config.version_min {
        return Err(DownReason::TooOld {
            found: server.version,
            needed: parts.config.version_min,
        });
    }
    match (server.mode.as_str(), &parts.cluster) {
        ("cluster", None) => return Err(DownReason::ClusterNode),
        ("standalone", Some(_)) => return Err(DownReason::NotACluster),
        _ => {}
    }
    if role != "master" {
        return Err(DownReason::NotMaster { role });
    }
    if server.loading {
        return Err(DownReason::Loading);
    }
    Ok(server)
}

async fn prepare(
    connection: &MultiplexedConnection,
    up: &Up,
    parts: &Parts,
) -> Result<(), DownReason> {
    let scripts = &parts.config.preload;
    if !scripts.is_empty() {
        let mut load = redis::pipe();
        for script in scripts {
            load.add_command(script.load());
        }
        let answers = connection
            .clone()
            .send_packed_commands(&load, 0, scripts.len())
            .await
            .map_err(DownReason::Setup)?;
        for answer in answers {
            if let Value::ServerError(error) = answer {
                return Err(DownReason::Prepare(Arc::new(ServerError::from(error))));
            }
        }
    }
    if let Some(hook) = &parts.prepare {
        let cluster = parts.cluster.clone();
        hook.prepare(Fresh {
            connection,
            up,
            cluster,
        })
        .await
        .map_err(|error| DownReason::Prepare(error.into()))?;
    }
    Ok(())
}

pub(crate) fn setup_failed(error: RedisError) -> DownReason {
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => {
            DownReason::Login(error)
        }
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => DownReason::Login(error),
            _ => DownReason::Setup(error),
        },
    }
}

fn setup_refused(error: redis::ServerError) -> DownReason {
    let refused = ServerError::from(error.clone());
    match refused.code {
        ErrorCode::NoAuth | ErrorCode::WrongPass | ErrorCode::NoPerm => {
            DownReason::Login(error.into())
        }
        _ => DownReason::Refused(refused),
    }
}

/// A link that nobody else uses yet; see [`Prepare`].
pub struct Fresh<'a> {
    connection: &'a MultiplexedConnection,
    up: &'a Up,
    cluster: Option<Weak<Inner>>,
}

impl Fresh<'_> {
    /// What the server said of itself, and whether it is another one than before.
    pub fn up(&self) -> &Up {
        self.up
    }

    /// Whether the link leads to a node of a cluster.
    pub fn is_of_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether the server on this link holds `key`; always, unless it is a node of a cluster.
    pub fn holds(&self, key: &str) -> bool {
        match self.cluster.as_ref().map(Weak::upgrade) {
            None => true,
            Some(None) => false,
            Some(Some(cluster)) => {
                let slot = cluster.slot_of(Some(key.as_bytes()));
                cluster.is_at(slot, self.up.server.endpoint.as_ref())
            }
        }
    }

    /// For how long no primary of `key` has answered; `None` if none ever did, or outside of a cluster.
    pub fn unheard(&self, key: &str) -> Option<Duration> {
        let cluster = self.cluster.as_ref()?.upgrade()?;
        let at = cluster.answered_at(cluster.slot_of(Some(key.as_bytes())))?;
        Some(at.elapsed())
    }

    /// Runs one command and waits for its reply. On a node of a cluster, a command about a key that another node holds runs
    /// there, over that node's link, if it is up.
    pub async fn query(&self, cmd: &Cmd) -> Result<Value, crate::Error> {
        if let Some(cluster) = &self.cluster {
            let gone = crate::Error::NotConnected { reason: None };
            let cluster = cluster.upgrade().ok_or(gone)?;
            let slot = cluster.slot_of(key_of(cmd));
            if !cluster.is_at(slot, self.up.server.endpoint.as_ref()) {
                return cluster.query(cmd).await;
            }
        }
        self.query_here(cmd).await
    }

    /// Runs one command on this link, whatever it is about.
    pub async fn query_here(&self, cmd: &Cmd) -> Result<Value, crate::Error> {
        match self.connection.clone().send_packed_command(cmd).await {
            Ok(Value::ServerError(error)) => Err(ServerError::from(error).into()),
            Ok(value) => Ok(value),
            Err(source) => Err(crate::Error::LinkLost { source }),
        }
    }
}

impl std::fmt::Debug for dyn Prepare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prepare")
    }
}
