//! Asking the nodes of a cluster who holds what.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::slots::{SlotMap, read_info};
use super::{Inner, lock};
use crate::connection::{AbortOnDrop, Connection, DownReason, setup_failed};
use crate::endpoint::Endpoint;

/// How long a node may take to say who holds what.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The most nodes that are asked at once.
const ASKED_MAX: usize = 32;

/// What a node believes.
struct View {
    is_ok: bool,
    config_epoch: u64,
    map: SlotMap,
}

impl View {
    /// One that says the cluster works is preferred to one that does not, a newer to an older.
    fn rank(&self) -> (bool, u64) {
        (self.is_ok, self.config_epoch)
    }
}

/// The newest map of the slots that any of the nodes has. An answer is given when more than half have answered and one of
/// them says that the cluster works, else at the end of the time-out.
pub(super) async fn learn(inner: &Arc<Inner>) -> Result<SlotMap, DownReason> {
    let candidates = inner.candidates();
    let asked = candidates.len();
    let mut questions = JoinSet::new();
    for (endpoint, connection) in candidates {
        let inner = Arc::clone(inner);
        questions.spawn(async move {
            let answer = timeout(ANSWER_TIMEOUT, ask(&inner, &endpoint, connection)).await;
            answer.unwrap_or(Err(DownReason::ConnectTimedOut(ANSWER_TIMEOUT)))
        });
    }
    let mut newest: Option<View> = None;
    let mut reason = DownReason::NotCovered;
    let mut answered = 0;
    while let Some(joined) = questions.join_next().await {
        match joined {
            Ok(Ok(view)) => {
                answered += 1;
                if newest.as_ref().is_none_or(|n| n.rank() < view.rank()) {
                    newest = Some(view);
                }
            }
            // What settings or a server have to be changed for is worth more than that some node is away.
            Ok(Err(error)) if !reason.is_permanent() => reason = error,
            _ => {}
        }
        if answered * 2 > asked && newest.as_ref().is_some_and(|view| view.is_ok) {
            break;
        }
    }
    newest.map(|view| view.map).ok_or(reason)
}

impl Inner {
    /// Whom to ask: the primaries whose links are up; while any is not, the other nodes too, and those of the URL.
    fn candidates(&self) -> Vec<(Endpoint, Option<Connection>)> {
        let map = self.map();
        let nodes = lock(&self.nodes);
        let mut asked: Vec<(Endpoint, Option<Connection>)> = Vec::new();
        for shard in &map.shards {
            if let Some(node) = nodes.get(&shard.primary)
                && node.connection.state().up().is_some()
            {
                asked.push((shard.primary.clone(), Some(node.connection.clone())));
            }
        }
        if asked.is_empty() || asked.len() < map.shards.len() || !map.is_whole() {
            for endpoint in map.nodes().chain(&self.seeds) {
                if asked.len() < ASKED_MAX && !asked.iter().any(|(known, _)| known == endpoint) {
                    asked.push((endpoint.clone(), None));
                }
            }
        }
        asked.truncate(ASKED_MAX);
        asked
    }
}

async fn ask(
    inner: &Inner,
    endpoint: &Endpoint,
    connection: Option<Connection>,
) -> Result<View, DownReason> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let mut info = redis::cmd("CLUSTER");
    info.arg("INFO");
    if let Some(connection) = connection {
        let ask = async {
            Ok::<_, crate::Error>((
                connection.query(&slots).await?,
                connection.query(&info).await?,
            ))
        };
        let (slots, info) = ask.await.map_err(|_| DownReason::Closed)?;
        return view(&slots, &info, endpoint);
    }
    let stream = inner
        .dial
        .dial(endpoint)
        .await
        .map_err(|error| DownReason::Dial(Arc::new(error)))?;
    let settings = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
    let login = inner.credentials.settings(0);
    let (connection, driver) = MultiplexedConnection::new_with_config(&login, stream, settings)
        .await
        .map_err(setup_failed)?;
    let _driver = AbortOnDrop(tokio::spawn(driver));
    let mut questions = redis::pipe();
    questions.add_command(slots).add_command(info);
    let answers = connection
        .clone()
        .send_packed_commands(&questions, 0, 2)
        .await
        .map_err(setup_failed)?;
    match answers.as_slice() {
        [Value::ServerError(error), _] => Err(
            match error
                .details()
                .is_some_and(|why| why.contains("cluster support disabled"))
            {
                true => DownReason::NotACluster,
                false => DownReason::Refused(error.clone().into()),
            },
        ),
        [slots, info] => view(slots, info, endpoint),
        _ => Err(DownReason::NotUnderstood),
    }
}

fn view(slots: &Value, info: &Value, asked: &Endpoint) -> Result<View, DownReason> {
    let map = SlotMap::read(slots, asked).ok_or(DownReason::NotUnderstood)?;
    let (is_ok, config_epoch) = read_info(info).ok_or(DownReason::NotUnderstood)?;
    Ok(View {
        is_ok,
        config_epoch,
        map,
    })
}
