//! Writes that are to survive the loss of their server: a fence behind them.
//!
//! `WAIT` and `WAITAOF` cover the writes of the connection that they are sent on. But replication and the append-only file
//! keep the order of writes, so a write that is made **after** others and is safe makes those safe too, whoever made them.
//! A [`Fence`] is a connection that does nothing else: it writes a key and waits, again and again, for as long as somebody
//! asks; all who asked before a round began are answered by that round. So the number of rounds follows the time that a
//! round takes, not the number of writes.

use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, oneshot};

use crate::connection::{AbortOnDrop, Batch, Connection, History, ServerInfo};
use crate::error::Error;

/// How many may wait for one fence; one more is refused.
pub const WAITING_MAX: usize = 8_192;

/// What makes a write safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safe {
    /// So many replicas have it.
    Replicas(u32),
    /// The server's append-only file has it, on disk.
    Disk,
}

/// Why what was asked for is not known to be safe. It may be, and may become so; ask again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Too few replicas, or the disk, had it in time.
    #[error("{safe} of {wanted} had the write within {within:?}")]
    TooFew {
        /// How many had it.
        safe: u64,
        /// How many were to have it.
        wanted: u64,
        /// How long they were waited for.
        within: Duration,
    },
    /// The server, or its history, is not the one that the writes were made in.
    #[error("the server's history is no longer the one that was written to")]
    OtherHistory,
    /// As many wait as may.
    #[error("too many wait for the fence")]
    TooMany,
    /// The fence could not be written, or its answer did not come.
    #[error("the fence could not be written")]
    Broken(#[from] Error),
}

struct Waiting {
    key: String,
    history: History,
    answer: oneshot::Sender<Result<(), FenceError>>,
}

/// See the module. Cheap to ask from many tasks; ends when dropped.
pub struct Fence {
    waiting: mpsc::Sender<Waiting>,
    _rounds: AbortOnDrop,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fence")
    }
}

impl Fence {
    /// A fence on `connection`, which carries nothing else and is made for reads that block for `within`
    /// ([`Config::blocking`](crate::Config::blocking)). Must be called within a tokio runtime.
    pub fn start(connection: Connection, safe: Safe, within: Duration) -> Self {
        let (waiting, asked) = mpsc::channel(WAITING_MAX);
        let rounds = tokio::spawn(run(connection, safe, within, asked));
        Self {
            waiting,
            _rounds: AbortOnDrop(rounds),
        }
    }

    /// Waits until every write is safe that was answered before this call, by the server with the history `history`.
    /// Overwrites `key`, which must be one that this server holds.
    pub async fn cover(&self, key: String, history: History) -> Result<(), FenceError> {
        let (answer, covered) = oneshot::channel();
        let waiting = Waiting {
            key,
            history,
            answer,
        };
        self.waiting
            .try_send(waiting)
            .map_err(|_| FenceError::TooMany)?;
        covered.await.unwrap_or(Err(FenceError::OtherHistory))
    }
}

async fn run(
    connection: Connection,
    safe: Safe,
    within: Duration,
    mut asked: mpsc::Receiver<Waiting>,
) {
    let mut round = Vec::new();
    let mut number = 0_u64;
    while asked.recv_many(&mut round, WAITING_MAX).await > 0 {
        number += 1;
        let covered = match round.first() {
            Some(first) => one_round(&connection, &first.key, number, safe, within).await,
            None => continue,
        };
        for waiting in round.drain(..) {
            let result = match &covered {
                Ok(history) if *history == waiting.history => Ok(()),
                Ok(_) => Err(FenceError::OtherHistory),
                Err(error) => Err(error.clone()),
            };
            // One that has given up is not there to be told.
            let _ = waiting.answer.send(result);
        }
    }
}

/// Writes once and waits. Gives the history in which all writes before this one are safe.
async fn one_round(
    connection: &Connection,
    key: &str,
    number: u64,
    safe: Safe,
    within: Duration,
) -> Result<History, FenceError> {
    let up = connection.wait_up(within).await?;
    let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
    let mut set = redis::cmd("SET");
    set.arg(key).arg(number);
    let (wait, wanted) = match safe {
        Safe::Replicas(min) => {
            let mut wait = redis::cmd("WAIT");
            wait.arg(min).arg(ms);
            (wait, u64::from(min))
        }
        Safe::Disk => {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(0).arg(ms);
            (wait, 1)
        }
    };
    // Asked behind the wait: a server that was demoted and promoted meanwhile says so here.
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let batch = Batch::new().cmd(set).cmd(wait).cmd(info);
    let mut replies = connection.batch(batch).await?;
    let mut reply = || {
        replies
            .next()
            .ok_or_else(|| Error::unexpected("a fence", "no reply"))?
            .map_err(Error::from)
    };
    reply()?;
    let safe = match reply()? {
        Value::Int(replicas) => u64::try_from(replicas).unwrap_or(0),
        Value::Array(items) => match items.first() {
            Some(Value::Int(disks)) => u64::try_from(*disks).unwrap_or(0),
            _ => 0,
        },
        _ => 0,
    };
    let Some((server, role)) = ServerInfo::read(&reply()?) else {
        return Err(FenceError::OtherHistory);
    };
    let same_link = connection
        .state()
        .up()
        .is_some_and(|now| now.link == up.link);
    if role != "master" || !same_link {
        return Err(FenceError::OtherHistory);
    }
    if safe < wanted {
        return Err(FenceError::TooFew {
            safe,
            wanted,
            within,
        });
    }
    Ok(History {
        run_id: up.server.history.run_id.clone(),
        replid: server.history.replid,
    })
}
