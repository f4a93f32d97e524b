//! Reaching the store's servers: the first link to each, and why there is none.

use super::gate::Gate;
use super::options::ConnectError;
use super::shared::{Shared, describe};
use std::sync::Arc;
use std::time::Duration;
use trove_streams::{Config, DownReason, Prepare, Router, State, StoreUrl, TcpDial};

/// Clients that are left for operators and replicas when the sum of connections is compared with the server's limit.
const CLIENTS_SPARE: u64 = 32;

/// Starts connecting to the store's servers.
pub(super) fn route(
    shared: &Shared,
    url: &StoreUrl,
    config: Config,
    gate: Option<Arc<Gate>>,
) -> Result<Router, ConnectError> {
    let gate = gate.map(|gate| gate as Arc<dyn Prepare>);
    let home = shared.keys.identity();
    Ok(Router::start(url, Arc::new(TcpDial), config, gate, &home)?)
}

/// Waits for a link, to each primary of a cluster, and says why there is none.
pub(super) async fn wait_up(connection: &Router, within: Duration) -> Result<(), ConnectError> {
    let mut states = connection.states();
    let looked = async {
        loop {
            match &*states.borrow_and_update() {
                State::Up(_) => return Ok(()),
                State::Down { reason, .. } => match reason.root() {
                    DownReason::TooOld { found, needed } => {
                        return Err(ConnectError::TooOld {
                            found: *found,
                            needed: *needed,
                        });
                    }
                    DownReason::Prepare(error) => {
                        if let Some(refused) = error.downcast_ref::<ConnectError>() {
                            return Err(refused.clone());
                        }
                    }
                    reason if reason.is_permanent() => {
                        return Err(ConnectError::Unreachable(describe(reason)));
                    }
                    _ => {}
                },
                State::Connecting => {}
            }
            if states.changed().await.is_err() {
                return Err(ConnectError::Unreachable("the connection has ended".into()));
            }
        }
    };
    match tokio::time::timeout(within, looked).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::Unreachable(match connection.state() {
            State::Down { reason, .. } => describe(&*reason),
            _ => "no answer in time".into(),
        })),
    }
}

/// Says when the instances' connections, twice over during a rolling deploy, come near what the server takes.
pub(super) fn warn_of_clients(connection: &Router, connections: u32, instances: u32) {
    let needed = u64::from(connections) * u64::from(instances) * 2;
    if let Some(most) = connection.state().up().and_then(|up| up.server.maxclients)
        && needed + CLIENTS_SPARE > most
    {
        tracing::warn!(
            "{connections} connections x {instances} instances x 2 during a deploy = {needed}, and the server's \
             maxclients is {most}: raise it"
        );
    }
}
