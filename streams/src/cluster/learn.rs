//! Asking the nodes of a cluster who holds what.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::slots::{SlotMap, View};
use super::{Inner, lock};
use crate::connection::{AbortOnDrop, Connection, DownReason, setup_failed};
use crate::endpoint::Endpoint;

/// How long a node may take to say who holds what.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The most nodes that are asked at once.
const ASKED_MAX: usize = 32;

/// The map of the slots, of what all nodes that answer in time say.
pub(super) async fn learn(inner: &Arc<Inner>) -> Result<SlotMap, DownReason> {
    let mut questions = JoinSet::new();
    for (endpoint, connection) in inner.candidates() {
        let inner = Arc::clone(inner);
        questions.spawn(async move {
            let answer = timeout(ANSWER_TIMEOUT, ask(&inner, &endpoint, connection)).await;
            answer.unwrap_or(Err(DownReason::ConnectTimedOut(ANSWER_TIMEOUT)))
        });
    }
    let mut views = Vec::new();
    let mut reason = DownReason::NotCovered;
    while let Some(joined) = questions.join_next().await {
        match joined {
            Ok(Ok(view)) => views.push(view),
            // What settings or a server have to be changed for is worth more than that some node is away.
            Ok(Err(error)) if !reason.is_permanent() => reason = error,
            _ => {}
        }
    }
    if views.is_empty() {
        return Err(reason);
    }
    Ok(SlotMap::of(&views))
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
    let mut nodes = redis::cmd("CLUSTER");
    nodes.arg("NODES");
    if let Some(connection) = connection {
        let reply = connection.query(&nodes).await;
        return view(&reply.map_err(|_| DownReason::Closed)?, endpoint);
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
    let answer = connection
        .clone()
        .send_packed_command(&nodes)
        .await
        .map_err(setup_failed)?;
    match &answer {
        Value::ServerError(error) => {
            let why = error.details().unwrap_or_default();
            Err(if why.contains("cluster support disabled") {
                DownReason::NotACluster
            } else {
                DownReason::Refused(error.clone().into())
            })
        }
        nodes => view(nodes, endpoint),
    }
}

fn view(nodes: &Value, asked: &Endpoint) -> Result<View, DownReason> {
    View::read(nodes, asked).ok_or(DownReason::NotUnderstood)
}
