//! The Unix socket in the store's directory, through which `trove verify` and `trove export` ask the server that has the
//! store open. Whoever may enter the directory may read the store, so there is no key.

use super::app::App;
use super::hunts::stream_export;
use super::players::no_store;
use super::problem::Problem;
use super::routes::{method_not_allowed, not_found};
use crate::front::{Connection, Front, Limits, Phase, ServiceBackend};
use crate::game::ids::HuntId;
use crate::ledger::VerifyReport;
use crate::metrics::StoreCommand;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The socket's name in the store's directory.
pub const SOCKET_NAME: &str = "trove.sock";

/// How long to wait after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A path to `name` in a directory that is open, short however long the directory's own path is.
#[must_use]
pub fn path_through(dir: &std::fs::File, name: &str) -> std::path::PathBuf {
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()).into()
}

/// Listens in the store's directory. A socket left by a process that was killed is replaced: the store's lock says that
/// nobody else is there.
///
/// # Errors
/// The file system's.
pub fn listen(dir: &FilePath) -> io::Result<UnixListener> {
    // A path may be longer than the 108 bytes that a socket's address holds; one through the open directory is not.
    let open = std::fs::File::open(dir)?;
    let path = path_through(&open, SOCKET_NAME);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the socket until draining.
///
/// # Errors
/// Limits that contradict each other.
pub async fn serve(
    app: Arc<App>,
    listener: UnixListener,
    mut phase: watch::Receiver<Phase>,
) -> io::Result<()> {
    let router = Router::new()
        .route("/verify", get(verify))
        .route("/export/{hunt}", get(export))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app);
    let limits = Limits {
        connections_max: 16,
        answer_timeout_ms: 3_600_000,
        ..Limits::default()
    };
    let front = Front::new(Arc::new(ServiceBackend(router)), limits).map_err(io::Error::other)?;
    let clock = tokio::spawn({
        let front = front.clone();
        async move { front.tick().await }
    });
    // The address that the front wants of a peer; a Unix socket has none.
    let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    loop {
        tokio::select! {
            changed = phase.wait_for(|phase| *phase >= Phase::Draining) => {
                let _ = changed;
                break;
            }
            stream = accept(&listener) => {
                if let Ok(connection) = Connection::admit(&front, stream, peer) {
                    tokio::spawn(connection);
                }
            }
        }
    }
    front.enter(Phase::Draining);
    clock.abort();
    Ok(())
}

/// The next connection. What goes wrong is the want of a descriptor, say, which another connection will give back.
async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => tracing::warn!(%error, "cannot accept on the store's socket"),
        }
        tokio::time::sleep(ACCEPT_RETRY).await;
    }
}

async fn verify(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, Problem> {
    let hunt = match query.get("hunt") {
        Some(id) => Some(HuntId::new(id).map_err(|_| Problem::no_such_hunt())?),
        None => None,
    };
    let audits = app
        .ask(StoreCommand::Verify, app.store.verify(hunt.as_ref()))
        .await?;
    Ok(no_store(Json(VerifyReport::from(audits)).into_response()))
}

async fn export(
    State(app): State<Arc<App>>,
    Path(hunt): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, Problem> {
    stream_export(&app, &hunt, query.get("format").map(String::as_str)).await
}
