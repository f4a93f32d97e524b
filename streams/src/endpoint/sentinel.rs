//! The master that a group of sentinels agrees on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{BoxFuture, Credentials, Dial, Endpoint, ResolveError, Resolver};
use crate::connection::AbortOnDrop;

/// How long a sentinel may take to answer: it does nothing but answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How often the sentinel whose announcements one listens to is asked whether it is still there.
const LISTEN_PING_INTERVAL: Duration = Duration::from_secs(5);
/// The pause before one listens to the next sentinel when one went away.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Asks all sentinels each time, at once, and believes the one whose knowledge is newest: the highest `config-epoch`, which
/// a failover raises. So a sentinel that was cut off from the others does not send anyone back to the old master as long as
/// one that was not cut off answers. An answer is given when more than half have answered, or at the end of the time-out.
///
/// While a link is up it listens to one sentinel's `+switch-master`, so that a failover is noticed before the old master
/// stops answering. That only saves time.
#[derive(Clone)]
pub struct Sentinel {
    inner: Arc<Inner>,
}

struct Inner {
    sentinels: Vec<Endpoint>,
    master: String,
    credentials: Credentials,
    dial: Arc<dyn Dial>,
    /// The highest `config-epoch` that any sentinel has shown.
    newest_epoch: AtomicU64,
    /// That of the address which was given last.
    resolved_epoch: AtomicU64,
}

/// What a sentinel knows of the master.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    config_epoch: u64,
    endpoint: Endpoint,
}

impl Sentinel {
    /// Finds the master named `master` through `sentinels`, logging in to them with `credentials`.
    pub fn new(
        sentinels: Vec<Endpoint>,
        master: impl Into<String>,
        credentials: Credentials,
        dial: Arc<dyn Dial>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                sentinels,
                master: master.into(),
                credentials,
                dial,
                newest_epoch: AtomicU64::new(0),
                resolved_epoch: AtomicU64::new(0),
            }),
        }
    }

    async fn ask_all(&self) -> Result<Endpoint, ResolveError> {
        let asked = self.inner.sentinels.len();
        let mut questions = JoinSet::new();
        for index in 0..asked {
            let inner = Arc::clone(&self.inner);
            questions.spawn(async move { timeout(ANSWER_TIMEOUT, inner.ask(index)).await });
        }
        let mut answered = 0;
        let mut newest: Option<Known> = None;
        while let Some(joined) = questions.join_next().await {
            let Ok(Ok(Ok(known))) = joined else { continue };
            answered += 1;
            if let Some(known) = known
                && newest
                    .as_ref()
                    .is_none_or(|newest| newest.config_epoch < known.config_epoch)
            {
                newest = Some(known);
            }
            // More than half is enough, unless one of the rest is known to know better.
            let current = self.inner.newest_epoch.load(Ordering::Relaxed);
            if answered * 2 > asked
                && newest
                    .as_ref()
                    .is_some_and(|newest| newest.config_epoch >= current)
            {
                break;
            }
        }
        match newest {
            Some(known) => {
                self.inner
                    .resolved_epoch
                    .store(known.config_epoch, Ordering::Relaxed);
                Ok(known.endpoint)
            }
            None if answered > 0 => Err(ResolveError::UnknownMaster {
                master: self.inner.master.clone(),
            }),
            None => Err(ResolveError::NoAnswer {
                asked,
                within: ANSWER_TIMEOUT,
            }),
        }
    }
}

impl Inner {
    async fn connect(
        &self,
        index: usize,
        announcements: Option<mpsc::Sender<PushInfo>>,
    ) -> RedisResult<(MultiplexedConnection, AbortOnDrop)> {
        let stream = self.dial.dial(&self.sentinels[index]).await?;
        let mut settings = self.credentials.settings(0);
        let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
        if let Some(announcements) = announcements {
            settings = settings.set_protocol(ProtocolVersion::RESP3);
            // When the channel is full its reader has something to wake for already.
            config = config
                .set_push_sender(move |info| announcements.try_send(info).or(Ok::<(), ()>(())));
        }
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        Ok((connection, AbortOnDrop(tokio::spawn(driver))))
    }

    async fn ask(&self, index: usize) -> RedisResult<Option<Known>> {
        let (mut connection, _driver) = self.connect(index, None).await?;
        self.known(&mut connection).await
    }

    /// `None` if this sentinel does not watch the master.
    async fn known(&self, connection: &mut MultiplexedConnection) -> RedisResult<Option<Known>> {
        let mut questions = redis::pipe();
        // The address of the first is that of the promoted replica as soon as it is one, before the second shows it.
        questions
            .cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.master);
        questions.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        let answers = connection.send_packed_commands(&questions, 0, 2).await?;
        let known = read_known(&answers);
        if let Some(known) = &known {
            self.newest_epoch
                .fetch_max(known.config_epoch, Ordering::Relaxed);
        }
        Ok(known)
    }

    /// Ends when the sentinel announces another master than `current`, or does not believe in it, or goes away (an error).
    async fn listen(&self, index: usize, current: &Endpoint) -> RedisResult<()> {
        let (sender, mut announcements) = mpsc::channel(16);
        let (mut connection, _driver) = timeout(ANSWER_TIMEOUT, self.connect(index, Some(sender)))
            .await
            .map_err(io::Error::from)??;
        connection.subscribe("+switch-master").await?;
        // What was announced before this subscription is seen by asking. Another address of the same epoch is only another
        // name for the same server (sentinels may be set to announce names), of an older one the view of one that lags.
        if let Some(known) = self.known(&mut connection).await?
            && known.endpoint != *current
            && known.config_epoch > self.resolved_epoch.load(Ordering::Relaxed)
        {
            return Ok(());
        }
        loop {
            match timeout(LISTEN_PING_INTERVAL, announcements.recv()).await {
                Ok(Some(info)) => match info.kind {
                    PushKind::Disconnection => break,
                    _ => {
                        let Some(announced) = self.switched_to(&info) else {
                            continue;
                        };
                        // Learns the new epoch, so that the next answer is not taken from sentinels that lag behind.
                        let known = self.known(&mut connection).await;
                        let resolved = self.resolved_epoch.load(Ordering::Relaxed);
                        let is_of_before = |known: Known| known.config_epoch <= resolved;
                        // A promoted replica is given as the master up to some seconds before it is announced: whoever has
                        // found it by asking is there, and would only lose a good link.
                        let is_there =
                            announced == *current && known.ok().flatten().is_some_and(is_of_before);
                        if !is_there {
                            return Ok(());
                        }
                    }
                },
                Ok(None) => break,
                Err(_) => {
                    connection.send_packed_command(&redis::cmd("PING")).await?;
                }
            }
        }
        Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
    }

    /// The address of our master's successor, if it is announced; the payload is `<name> <old address> <old port> <new address>
    /// <new port>`.
    fn switched_to(&self, info: &PushInfo) -> Option<Endpoint> {
        if !matches!(info.kind, PushKind::Message) {
            return None;
        }
        let payload = info.data.last().and_then(text)?;
        let mut words = payload.split(' ');
        if words.next() != Some(self.master.as_str()) {
            return None;
        }
        let host = words.nth(2).unwrap_or_default();
        let port = words.next().and_then(|port| port.parse().ok());
        Some(Endpoint::new(host, port.unwrap_or(0)))
    }
}

impl Resolver for Sentinel {
    fn resolve(&self) -> BoxFuture<'_, Result<Endpoint, ResolveError>> {
        Box::pin(self.ask_all())
    }

    fn moved<'a>(&'a self, current: &'a Endpoint) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for index in (0..self.inner.sentinels.len()).cycle() {
                if self.inner.listen(index, current).await.is_ok() {
                    return;
                }
                sleep(LISTEN_PAUSE).await;
            }
            // Without a sentinel there is nothing to hear.
            std::future::pending().await
        })
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn read_known(answers: &[Value]) -> Option<Known> {
    let [Value::Array(address), description] = answers else {
        return None;
    };
    let [host, port] = address.as_slice() else {
        return None;
    };
    let endpoint = Endpoint::new(text(host)?, text(port)?.parse().ok()?);
    let field = |name: &str| match description {
        Value::Array(fields) => fields
            .chunks_exact(2)
            .find(|pair| text(&pair[0]) == Some(name))
            .and_then(|pair| text(&pair[1])),
        Value::Map(fields) => fields
            .iter()
            .find(|(key, _)| text(key) == Some(name))
            .and_then(|(_, value)| text(value)),
        _ => None,
    };
    Some(Known {
        config_epoch: field("config-epoch")
            .and_then(|epoch| epoch.parse().ok())
            .unwrap_or(0),
        endpoint,
    })
}
