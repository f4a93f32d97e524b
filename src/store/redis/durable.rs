//! Durability as a choice: what a script has done is answered, and what the feed tells is shown, once a fence covers it
//! (see [`trove_streams::fence`]). Rounds of fences are shared: all scripts that were answered before a round began are
//! covered by it, whoever sent them.
//!
//! A fence must be of the history in which the scripts ran: so a server's history is looked at before they are sent, and
//! must be the same when the fence is there. What is not covered is not undone; whoever asks again, with the same id, is
//! told what became of it.

use super::fenced::Fenced;
use super::jobs::{Job, Reader};
use super::options::{ConnectError, Durability};
use super::shared::{Core, describe, lock};
use super::shown::Shown;
use crate::store::StoreError;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trove_streams::fence::{Fence, FenceError, Safe};
use trove_streams::keys::fence_beside;
use trove_streams::redis::{Value, cmd, from_redis_value};
use trove_streams::{
    BoxFuture, Endpoint, EntryId, Fresh, History, NODES_MAX, Partition, Prepare, Router, StoreUrl,
    TcpDial, Version,
};

/// How often it is looked whether there are feeds that no fence has covered yet.
const COVER_INTERVAL: Duration = Duration::from_millis(250);
/// How long `WAITAOF` may take where the file is synced once a second.
const EVERYSEC_WAIT: Duration = Duration::from_millis(2_500);
/// The oldest version that has `WAITAOF`.
const WAITAOF_SINCE: Version = Version::new(7, 2, 0);

/// The fences of a store's servers.
pub(super) struct Fences {
    router: Router,
    safe: Safe,
    within: Duration,
    by_server: Mutex<HashMap<Option<Endpoint>, Arc<Fence>>>,
    /// What they have covered of the feeds.
    shown: Shown,
}

/// A server as it was when something was sent to it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sent {
    link: u64,
    endpoint: Option<Endpoint>,
    history: History,
}

impl Sent {
    /// What was sent over a link.
    pub(super) fn over(link: u64, endpoint: Option<Endpoint>, history: History) -> Self {
        Self {
            link,
            endpoint,
            history,
        }
    }

    /// The server of `key`, if its link is up.
    pub(super) fn to(router: &Router, key: &str) -> Option<Self> {
        let state = router.server_of(key)?.state();
        let up = state.up()?;
        Some(Self {
            link: up.link,
            endpoint: up.server.endpoint.clone(),
            history: up.server.history.clone(),
        })
    }
}

/// Looks whether a server can do what is asked of it.
struct CanSync {
    within: Duration,
}

impl CanSync {
    /// Why it cannot.
    async fn refusal(&self, fresh: &Fresh<'_>) -> Result<Option<String>, trove_streams::Error> {
        let version = fresh.up().server.version;
        if version < WAITAOF_SINCE {
            return Ok(Some(format!(
                "the server has version {version}, and WAITAOF came with {WAITAOF_SINCE}"
            )));
        }
        let mut info = cmd("INFO");
        let reply = fresh.query_here(info.arg("persistence")).await?;
        let text = match &reply {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
            Value::VerbatimString { text, .. } => text.into(),
            _ => "".into(),
        };
        if !text.lines().any(|line| line.trim_end() == "aof_enabled:1") {
            let why = "the server keeps no append-only file: set appendonly yes";
            return Ok(Some(why.into()));
        }
        let mut get = cmd("CONFIG");
        get.arg("GET").arg("appendfsync");
        // Where the login may not ask, the first fence tells.
        let Ok(reply) = fresh.query_here(&get).await else {
            return Ok(None);
        };
        let policy: Vec<String> = from_redis_value(reply).unwrap_or_default();
        Ok(match policy.get(1).map(String::as_str) {
            Some("no") => Some("the server never syncs its file: set appendfsync always".into()),
            Some("everysec") if self.within < EVERYSEC_WAIT => Some(format!(
                "the server syncs its file once a second (appendfsync everysec), and store.durability_wait_ms = {} is \
                 below {}: set appendfsync always, or wait longer",
                self.within.as_millis(),
                EVERYSEC_WAIT.as_millis()
            )),
            _ => None,
        })
    }
}

impl Prepare for CanSync {
    fn prepare<'a>(
        &'a self,
        fresh: Fresh<'a>,
    ) -> BoxFuture<'a, Result<(), Box<dyn StdError + Send + Sync>>> {
        Box::pin(async move {
            match self.refusal(&fresh).await? {
                None => Ok(()),
                Some(why) => Err(ConnectError::Durability(why).into()),
            }
        })
    }
}

impl Fences {
    /// The fences that the options ask for, on links of their own; none for [`Durability::Async`].
    pub(super) fn start(
        url: &StoreUrl,
        durability: Durability,
        within: Duration,
        response_timeout: Duration,
        home: &str,
    ) -> Result<Option<Self>, ConnectError> {
        let safe = match durability {
            Durability::Async => return Ok(None),
            Durability::Replicated { replicas_min } => Safe::Replicas(replicas_min),
            Durability::Fsync => Safe::Disk,
        };
        let config = trove_streams::Config {
            response_timeout,
            connect_timeout: Duration::from_secs(3),
            client_name: Some("trove-fence".into()),
            ..trove_streams::Config::blocking(within)
        };
        let can: Option<Arc<dyn Prepare>> = match safe {
            Safe::Disk => Some(Arc::new(CanSync { within })),
            Safe::Replicas(_) => None,
        };
        Ok(Some(Self {
            router: Router::start(url, Arc::new(TcpDial), config, can, home)?,
            safe,
            within,
            by_server: Mutex::default(),
            shown: Shown::default(),
        }))
    }

    /// The links that fences are written on.
    pub(super) fn router(&self) -> &Router {
        &self.router
    }

    /// Waits until everything is safe that the server which holds `key` answered before this call, in the history `sent`.
    pub(super) async fn cover(&self, key: &str, sent: &Sent) -> Result<(), FenceError> {
        let fence = self.of(key, sent).ok_or(FenceError::OtherHistory)?;
        fence.cover(fence_beside(key), sent.history.clone()).await
    }

    fn of(&self, key: &str, sent: &Sent) -> Option<Arc<Fence>> {
        // A server that Sentinels find is wherever they say; its link follows them.
        let server = sent.endpoint.clone().filter(|_| self.router.is_cluster());
        let mut fences = lock(&self.by_server);
        if let Some(fence) = fences.get(&server) {
            return Some(fence.clone());
        }
        // By its address: these links' map of the slots may be older than that by which the call was sent.
        let connection = match &server {
            Some(endpoint) => self.router.server_at(endpoint)?,
            None => self.router.server_of(key)?,
        };
        if fences.len() >= NODES_MAX {
            // Those of servers that are still there are made again.
            fences.clear();
        }
        let fence = Arc::new(Fence::start(connection, self.safe, self.within));
        fences.insert(server, fence.clone());
        Some(fence)
    }
}

impl Sent {
    /// The history that it was sent to.
    pub(super) fn history(&self) -> &History {
        &self.history
    }
}

impl Core {
    /// What a fence that was not reached means to whoever asked.
    fn not_durable(&self, error: &FenceError) -> StoreError {
        self.shared.fenced.count(Fenced::by_fence(error));
        tracing::debug!(%error, "what was done is not safe yet");
        StoreError::NotDurable(describe(error))
    }

    /// Where calls about `keys` are about to go, if what they do has to be covered.
    pub(super) fn sending<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Vec<Option<Sent>> {
        match &self.fences {
            None => Vec::new(),
            Some(_) => keys.map(|key| Sent::to(&self.commands, key)).collect(),
        }
    }

    /// Whether the server of `key` is still the one that a call was sent to, in the same history and over the same link.
    pub(super) fn is_as_sent(&self, key: &str, sent: &Sent) -> bool {
        Sent::to(&self.commands, key).as_ref() == Some(sent)
    }

    /// Runs one call that changes nothing. `read` takes the reply apart, and says which entry of the partition's feed it depends
    /// on: up to what fences have covered it is answered at once, beyond that once one does.
    pub(super) async fn look_up<T>(
        &self,
        partition: Partition,
        job: Job<'_>,
        read: impl FnOnce(Value) -> Result<(T, EntryId), StoreError>,
    ) -> Result<T, StoreError> {
        let sent = self.sending(std::iter::once(job.place()));
        let answer = self.execute(std::slice::from_ref(&job)).await.pop();
        let none = || StoreError::Unavailable("no answer".into());
        let (read, last) = read(answer.ok_or_else(none)?.reply()?)?;
        if !self.is_shown(partition, job.place(), &sent, last) {
            let covered = self.covered(&[job.place()], &sent).await;
            covered.into_iter().collect::<Result<(), _>>()?;
        }
        if let Some(Some(sent)) = sent.first() {
            self.note_shown(partition, sent, last);
        }
        Ok(read)
    }

    /// Whether a partition's feed is known to be safe up to `last`, which was read over the link `sent`.
    fn is_shown(
        &self,
        partition: Partition,
        key: &str,
        sent: &[Option<Sent>],
        last: EntryId,
    ) -> bool {
        let Some(fences) = &self.fences else {
            return true;
        };
        let Some(Some(sent)) = sent.first() else {
            return false;
        };
        // Answered over another link, it may be of another history.
        if !self.is_as_sent(key, sent) {
            return false;
        }
        let cut = self.shared.replay.cut(usize::from(partition.index()));
        let of = (self.shared.epoch(), cut);
        let up_to = fences.shown.up_to(partition, sent.history(), of);
        last == EntryId::ZERO || up_to.is_some_and(|up_to| last <= up_to)
    }

    /// A fence of `sent` covers a partition's feed up to `last`.
    pub(super) fn note_shown(&self, partition: Partition, sent: &Sent, last: EntryId) {
        if let Some(fences) = &self.fences {
            let epoch = self.shared.epoch();
            fences.shown.note(partition, sent.history(), epoch, last);
        }
    }

    /// Lets fences cover what the feeds hold already, once in each history, so that it can be read also when there are no
    /// replicas any more. Runs until it is aborted.
    pub(super) async fn cover_feeds(self) {
        let Some(fences) = self.fences.clone() else {
            return;
        };
        loop {
            let is_open = |partition: &Partition| {
                let key = self.shared.keys.partition(*partition).state();
                let sent = Sent::to(&self.commands, &key);
                let cut = self.shared.replay.cut(usize::from(partition.index()));
                let of = (self.shared.epoch(), cut);
                let known =
                    |sent: Sent| fences.shown.up_to(*partition, sent.history(), of).is_some();
                sent.is_some_and(|sent| !known(sent))
            };
            let open = self.shared.partitions().into_iter().filter(is_open);
            for covered in join_all(open.map(|partition| self.cover_feed(partition))).await {
                if let Err(error) = covered {
                    tracing::debug!(%error, "what a feed holds is not safe yet");
                }
            }
            tokio::time::sleep(COVER_INTERVAL).await;
        }
    }

    /// Lets a fence cover a partition's feed up to its last entry.
    async fn cover_feed(&self, partition: Partition) -> Result<(), StoreError> {
        let keys = self.shared.keys.partition(partition);
        // Nobody's wallet: with it comes what it is as of.
        let keys = vec![keys.state(), keys.wallet("0", 0)];
        let job = Job::new(&self.shared.scripts.wallet, keys).arg("0");
        let read = |value| {
            let mut reader = Reader::new(value)?;
            let _now = reader.number()?;
            let _wallet = reader.wallet()?;
            Ok(((), EntryId::new(reader.number()?, reader.number()?)))
        };
        self.look_up(partition, job, read).await
    }

    /// Waits until what was answered to calls about `keys`, sent to `sent`, is safe. One result a key; those of one server
    /// share one fence. `None` where nothing was to be covered.
    pub(super) async fn covered(
        &self,
        keys: &[&str],
        sent: &[Option<Sent>],
    ) -> Vec<Result<(), StoreError>> {
        let Some(fences) = &self.fences else {
            return keys.iter().map(|_| Ok(())).collect();
        };
        let mut servers: Vec<(&str, &Sent)> = Vec::new();
        for (key, sent) in keys.iter().zip(sent) {
            if let Some(sent) = sent
                && !servers.iter().any(|(_, known)| *known == sent)
            {
                servers.push((key, sent));
            }
        }
        let covers = servers.iter().map(|(key, sent)| async {
            // Answered over another link, it may have been done in another history.
            if !self.is_as_sent(key, sent) {
                return Err(FenceError::OtherHistory);
            }
            fences.cover(key, sent).await
        });
        let results = join_all(covers).await;
        sent.iter()
            .map(|sent| {
                let server = servers
                    .iter()
                    .position(|(_, known)| Some(*known) == sent.as_ref());
                match server.map(|server| &results[server]) {
                    Some(Ok(())) => Ok(()),
                    Some(Err(error)) => Err(self.not_durable(error)),
                    None => Err(self.not_durable(&FenceError::OtherHistory)),
                }
            })
            .collect()
    }
}
