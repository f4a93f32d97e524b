//! The life of the process: start, signals, draining, stop.

use super::app::App;
use super::backend::AppBackend;
use super::ops::{self, ReadGauges};
use super::ops_page::{self, ServeSource};
use super::stores::Opened;
use super::{demo, socket};
use crate::auth::Keys;
use crate::config::Settings;
use crate::front::{Front, Limits, Phase, descriptors_max};
use crate::link::{LinkLimits, LinkPeers, Linked};
use crate::metrics::Gauges;
use crate::ops::Live;

use crate::store::embedded::OpenError;
use crate::store::redis::ConnectError;
use http::HeaderValue;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// Reads settings and keys again, on SIGHUP; says why not as one line.
pub type Reload = Box<dyn Fn() -> Result<(Settings, Keys), String> + Send>;

/// Why the server did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The embedded store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store on Redis.
    #[error(transparent)]
    Redis(#[from] ConnectError),
    /// A listener.
    #[error(
        "cannot listen on {address}: {source}; stop what listens there, or choose another address"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The store's socket.
    #[error("cannot listen on {}: {source}", .path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The demo's hunt.
    #[error("the demo cannot start: {0}")]
    Demo(String),
    /// The store broke while the server ran.
    #[error("the store cannot go on: {0}; what was acknowledged is on disk")]
    StoreBroke(String),
    /// Anything else of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Serves until SIGTERM or SIGINT, on one event loop.
///
/// # Errors
/// Why it did not start, or had to end.
pub fn run(settings: Settings, keys: Keys, reload: Reload, demo: bool) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(settings, keys, reload, demo));
    // Reads of the store that are still under way hold nothing that must be kept.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Listen { address, source })
}

fn front_limits(settings: &Settings) -> Limits {
    let ms = |ms: u64| u32::try_from(ms).unwrap_or(u32::MAX);
    let limits = &settings.limits;
    Limits {
        connections_max: u32::try_from(limits.connections_max).unwrap_or(u32::MAX),
        header_timeout_ms: ms(limits.header_ms),
        body_timeout_ms: ms(limits.body_ms),
        idle_timeout_ms: ms(limits.idle_ms),
        write_timeout_ms: ms(limits.write_ms),
        drain_deadline_ms: ms(settings.server.drain_ms),
        ..Limits::default()
    }
}

async fn serve(
    settings: Settings,
    keys: Keys,
    reload: Reload,
    demo: bool,
) -> Result<(), ServeError> {
    let mut opened = Opened::open(&settings).await?;
    let public = listen(settings.server.listen).await?;
    let ops_listener = listen(settings.server.ops_listen).await?;
    let addresses = (public.local_addr()?, ops_listener.local_addr()?);
    let notice = Duration::from_millis(settings.server.notice_ms);
    let limits = front_limits(&settings).within(descriptors_max());
    let instance_id = HeaderValue::from_str(&settings.instance_id()).map_err(io::Error::other)?;
    let app = App::new(opened.store.clone(), settings, keys, instance_id);
    follow(&app).await;

    let (phase_sender, phase) = watch::channel(Phase::Serving);
    let peers = app.settings().server.link_peers.clone();
    let peers = LinkPeers::parse(peers.iter().map(String::as_str)).map_err(io::Error::other)?;
    let links = LinkLimits::default();
    let backend = Linked::new(
        Arc::new(AppBackend::new(app.clone())),
        peers,
        links,
        limits.clone(),
    );
    let front = Front::new(Arc::new(backend), limits).map_err(io::Error::other)?;
    let gauges: ReadGauges = Arc::new({
        let (app, front, disk_work) = (app.clone(), front.clone(), opened.disk_work());
        move || {
            let work = disk_work();
            let hot = app.hot();
            Gauges {
                wallets: hot.mirror.len(),
                held: hot.mirror.held(),
                connections: front.connections(),
                front: front.counters().into(),
                batches: work.batches,
                syncs: work.syncs,
                replay: work.replay,
                mirror_lag_ms: app.store.feed_silent_ms().unwrap_or(0),
            }
        }
    });
    let live = Live::new(
        ServeSource::new(app.clone(), gauges.clone()),
        ops_page::tracked(&app),
    );
    let ops_backend = ops::backend(app.clone(), gauges, live.clone());
    let ops_front = Front::new(Arc::new(ops_backend), ops_limits()).map_err(io::Error::other)?;
    let mut serving = vec![
        tokio::spawn({
            let (front, phase) = (front.clone(), phase.clone());
            async move { front.serve(public, phase).await }
        }),
        tokio::spawn({
            let phase = phase.clone();
            async move { ops_front.serve(ops_listener, phase).await }
        }),
    ];
    let socket_path = opened.socket.take().map(|(unix, path)| {
        serving.push(tokio::spawn(socket::serve(app.clone(), unix, phase)));
        path
    });
    tokio::spawn({
        let app = app.clone();
        async move {
            let watching = app.sla.stalls.watch(|lag| {
                app.load.observe(lag);
                app.metrics.loop_lag(lag);
            });
            watching.await;
        }
    });
    tokio::spawn(app.sla.clone().keep());
    tokio::spawn(live.clone().keep());
    let players = if demo {
        Some(
            demo::start(&app, addresses.0)
                .await
                .map_err(ServeError::Demo)?,
        )
    } else {
        None
    };
    // Before anybody is told that it is ready, and may tell it to stop.
    let signals = Signals::listen()?;
    announce(&app, addresses, &opened.name, players.as_ref());

    let ended = until_stopped(signals, &app, &reload, &mut opened.broken).await;
    if let Some(players) = players {
        players.stop();
    }
    if let Some(reason) = ended {
        // Nothing more can be answered truly; the store's last word is on disk.
        return Err(ServeError::StoreBroke(reason));
    }
    app.drain();
    phase_sender.send_replace(Phase::Notice);
    tokio::time::sleep(notice).await;
    live.end();
    phase_sender.send_replace(Phase::Draining);
    for served in serving {
        if let Ok(Err(error)) = served.await {
            tracing::error!(%error, "a listener failed");
        }
    }
    opened.stop().await;
    let ending = app.clone();
    let _ = crate::blocking::spawn(move || ending.telemetry.end()).await;
    app.sla.clone().save().await;
    if let Some(path) = socket_path {
        let _ = std::fs::remove_file(path);
    }
    tracing::info!("stopped");
    Ok(())
}

/// The operations listener serves few; its answers are large.
fn ops_limits() -> Limits {
    Limits {
        connections_max: 64,
        ..Limits::default()
    }
    .within(descriptors_max())
}

/// Loads the hunts, and takes what the store tells from then on.
async fn follow(app: &Arc<App>) {
    let feed = app.store.feed();
    app.follows();
    for (hunt, _) in app.store.hunts().await.unwrap_or_default() {
        app.take_hunt(hunt);
    }
    if let Some(mut feed) = feed {
        let app = app.clone();
        tokio::spawn(async move {
            while let Some(events) = feed.recv().await {
                app.follow(events).await;
            }
        });
    }
}

/// The signals that mean something to a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on they do not end the process by themselves.
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// Waits for the end, reading the settings again on SIGHUP. Gives the reason when it was the store's.
async fn until_stopped(
    mut signals: Signals,
    app: &App,
    reload: &Reload,
    broken: &mut mpsc::Receiver<String>,
) -> Option<String> {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return None,
            _ = signals.interrupt.recv() => return None,
            Some(reason) = broken.recv() => return Some(reason),
            _ = signals.hangup.recv() => match reload() {
                Ok((settings, keys)) => {
                    app.reload(settings, keys);
                    tracing::info!("settings and keys were read again; listeners, store and limits of connections stay as they were");
                }
                Err(error) => tracing::error!(error, "the settings were not taken; the old ones stay"),
            },
        }
    }
}

fn announce(
    app: &App,
    (public, ops): (SocketAddr, SocketAddr),
    store: &str,
    demo: Option<&demo::Players>,
) {
    tracing::info!(
        %public,
        %ops,
        store,
        instance = app.instance_id.to_str().unwrap_or_default(),
        epoch = app.store.epoch(),
        "ready"
    );
    if let Some(demo) = demo {
        demo.announce(public, ops);
    }
}
