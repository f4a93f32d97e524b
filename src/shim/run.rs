//! The life of the shim's process: start, signals, draining, stop.

use super::backend::{Bounds, Shim, ShimBackend};
use super::cache::Cache;
use super::heartbeat::Heartbeats;
use super::metrics::{Metrics, ROUTES};
use super::ops_page::ShimSource;
use super::peers::{Peers, is_among};
use super::players::Players;
use super::presence::Presence;
use super::upstreams::Upstreams;
use super::{ops, proxy_protocol};
use crate::auth::{AdminKeys, TokenKeys};
use crate::config::{HeartbeatRule, Network, Settings, UpstreamGroup};
use crate::front::{Connection, FieldBlock, Front, Limits, Phase, descriptors_max};
use crate::ops::Live;
use crate::sla::{SLOW_REQUESTS, Sla};
use crate::telemetry::Telemetry;
use http::HeaderValue;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Turns of connections and links before the kernel is asked for events, while there are any: some hundred microseconds.
/// The runtime's own 61 asks twice for what one question would tell when all of 64 connections are busy.
const TURNS_PER_EPOLL: u32 = 256;

/// How often the drain of a listener with PROXY protocol is looked at.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);
/// Connections that may be about to send their PROXY protocol header at once; one more is closed.
const PROXY_HEADERS_MAX: u32 = 4_096;
/// Pause after an accept that failed for want of something which only time brings back.
const BACKOFF: Duration = Duration::from_millis(20);

/// The keys that a shim works with, each if there is one.
pub struct Keys {
    /// They verify players' tokens. Without them nobody counts as online.
    pub tokens: Option<TokenKeys>,
    /// They are the operators'. Without them nothing can be switched.
    pub admins: Option<AdminKeys>,
}

/// Why the shim did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// There is nothing to forward to.
    #[error("there is no upstream; name one with --upstream NAME=host:port,host:port")]
    NoUpstream,
    /// A list of the settings.
    #[error("{key}: {what}")]
    List {
        /// The setting.
        key: &'static str,
        /// What is wrong with it.
        what: String,
    },
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
    /// Anything else of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Stands in front of the upstreams until SIGTERM or SIGINT, on one event loop.
///
/// # Errors
/// Why it did not start, or had to end.
pub fn run(settings: &Settings, keys: Keys) -> Result<(), ShimError> {
    let groups = groups(settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(TURNS_PER_EPOLL)
        .build()?;
    let served = runtime.block_on(serve(settings, &groups, keys));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

fn groups(settings: &Settings) -> Result<Vec<UpstreamGroup>, ShimError> {
    let groups = UpstreamGroup::read_all(&settings.shim.upstreams).map_err(|what| {
        let key = "shim.upstreams";
        ShimError::List { key, what }
    })?;
    if groups.is_empty() {
        return Err(ShimError::NoUpstream);
    }
    Ok(groups)
}

fn items<T: FromStr<Err = &'static str>>(
    key: &'static str,
    texts: &[String],
) -> Result<Vec<T>, ShimError> {
    let read = |text: &String| {
        text.parse().map_err(|what| {
            let what = format!("holds {text:?}; {what}");
            ShimError::List { key, what }
        })
    };
    texts.iter().map(read).collect()
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
        // The upstream's own time-outs come first.
        answer_timeout_ms: ms(settings.shim_upstream.answer_ms)
            .saturating_mul(2)
            .saturating_add(Limits::default().answer_timeout_ms),
        retry_after_s_max: settings.shim_upstream.retry_after_s_max,
        ..Limits::default()
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ShimError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ShimError::Listen { address, source })
}

fn build(
    settings: &Settings,
    groups: &[UpstreamGroup],
    tokens: Option<TokenKeys>,
) -> Result<Shim, ShimError> {
    let shim = &settings.shim;
    let instance_id = settings.instance_id();
    let rules: Vec<HeartbeatRule> = items("shim.heartbeats", &shim.heartbeats)?;
    let telemetry = Telemetry::new(settings, "shim", &instance_id, &ROUTES);
    let mut metrics = Metrics::new(settings.sla.buckets(), telemetry);
    let watched = metrics.watch(&settings.sla.objectives);
    let sla = Sla::new(&settings.sla, "shim", &instance_id, None, watched);
    metrics.add(SLOW_REQUESTS.0, SLOW_REQUESTS.1, sla.slow.metric());
    let presence = Presence::start(shim.players_max, Duration::from_millis(shim.presence_ms))?;
    Ok(Shim {
        upstreams: Upstreams::new(groups, settings, &metrics),
        heartbeats: Heartbeats::new(rules),
        players: Players::new(tokens, settings.auth.token_cache_max, presence),
        peers: Peers {
            trusted: items("shim.trusted_proxies", &shim.trusted_proxies)?,
            tells_address: shim.forwarded_for,
            traces_every: settings.trace.every,
        },
        cache: Cache::new(shim.cache_bytes_max, shim.cache_answer_bytes_max),
        metrics,
        sla,
        bounds: Bounds {
            heartbeat_bytes_max: shim.heartbeat_bytes_max,
            body_bytes_max: shim.body_bytes_max,
            replay_bytes_max: shim.replay_bytes_max,
            retry_after_s_max: settings.shim_upstream.retry_after_s_max,
        },
        own_fields: FieldBlock::new(&[("x-instance-id", &instance_id)])
            .expect("an instance id is checked with the settings"),
        instance_id: HeaderValue::from_str(&instance_id).map_err(io::Error::other)?,
        draining: AtomicBool::new(false),
    })
}

async fn serve(settings: &Settings, groups: &[UpstreamGroup], keys: Keys) -> Result<(), ShimError> {
    let proxies: Vec<Network> = items(
        "shim.proxy_protocol_from",
        &settings.shim.proxy_protocol_from,
    )?;
    let public = listen(settings.shim.listen).await?;
    let ops_listener = listen(settings.shim.ops_listen).await?;
    let addresses = (public.local_addr()?, ops_listener.local_addr()?);
    let has_token_keys = keys.tokens.is_some();
    let shim = Arc::new(build(settings, groups, keys.tokens)?);
    let limits = front_limits(settings).within(descriptors_max());
    let front =
        Front::new(Arc::new(ShimBackend(shim.clone())), limits).map_err(io::Error::other)?;
    let ops_limits = Limits {
        connections_max: 64,
        ..Limits::default()
    };
    let source = ShimSource {
        shim: shim.clone(),
        front: front.clone(),
        can_switch: keys.admins.is_some(),
    };
    let live = Live::new(source, shim.metrics.tracked());
    let ops_backend = ops::backend(shim.clone(), front.clone(), keys.admins, live.clone());
    let ops_front = Front::new(Arc::new(ops_backend), ops_limits.within(descriptors_max()))
        .map_err(io::Error::other)?;
    shim.upstreams.watch();
    shim.keep_links();
    tokio::spawn({
        let shim = shim.clone();
        async move {
            shim.sla
                .stalls
                .watch(|lag| shim.metrics.loop_lag(lag))
                .await;
        }
    });
    tokio::spawn(shim.sla.clone().keep());
    tokio::spawn(live.clone().keep());

    let (phase_sender, phase) = watch::channel(Phase::Serving);
    let serving = [
        tokio::spawn({
            let (front, phase, of_front) = (front.clone(), phase.clone(), shim.clone());
            async move {
                if proxies.is_empty() {
                    front.serve(public, phase).await
                } else {
                    serve_proxies(&front, &of_front, public, phase, proxies).await
                }
            }
        }),
        tokio::spawn(async move { ops_front.serve(ops_listener, phase).await }),
    ];
    // Before anybody is told that it is ready, and may tell it to stop.
    let stopped = until_stopped()?;
    tracing::info!(
        public = %addresses.0,
        ops = %addresses.1,
        upstreams = groups.len(),
        live = shim.upstreams.live().name(),
        instance = shim.instance_id.to_str().unwrap_or_default(),
        "ready"
    );
    if !has_token_keys {
        tracing::warn!(
            "no token key: players are told apart by their tokens as they are, and none counts as online"
        );
    }
    stopped.await;
    shim.draining.store(true, Relaxed);
    phase_sender.send_replace(Phase::Notice);
    tokio::time::sleep(Duration::from_millis(settings.server.notice_ms)).await;
    live.end();
    phase_sender.send_replace(Phase::Draining);
    for served in serving {
        if let Ok(Err(error)) = served.await {
            tracing::error!(%error, "a listener failed");
        }
    }
    shim.sla.clone().save().await;
    let ending = shim.clone();
    let _ = crate::blocking::spawn(move || ending.metrics.telemetry.end()).await;
    tracing::info!("stopped");
    Ok(())
}

/// Listens for signals from now on; what it gives waits for the one that ends the process.
fn until_stopped() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                _ = hangup.recv() => tracing::warn!("the shim reads its settings at its start only"),
            }
        }
    })
}

/// Serves a listener on which some peers begin their connections with a PROXY protocol header.
async fn serve_proxies(
    front: &Arc<Front<ShimBackend>>,
    shim: &Arc<Shim>,
    listener: TcpListener,
    mut phase: watch::Receiver<Phase>,
    proxies: Vec<Network>,
) -> io::Result<()> {
    let socket = socket2::SockRef::from(&listener);
    socket.set_tcp_nodelay(true)?;
    socket.listen(i32::try_from(front.limits().backlog_max).unwrap_or(i32::MAX))?;
    let clock = tokio::spawn({
        let front = front.clone();
        async move { front.tick().await }
    });
    let greeting = Arc::new(AtomicU32::new(0));
    loop {
        let current = *phase.borrow_and_update();
        front.enter(current);
        if current >= Phase::Draining {
            break;
        }
        tokio::select! {
            biased;
            changed = phase.changed() => if changed.is_err() {
                break;
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) if is_among(&proxies, peer.ip()) => {
                    if greeting.fetch_add(1, Relaxed) < PROXY_HEADERS_MAX {
                        let (front, shim) = (front.clone(), shim.clone());
                        tokio::spawn(greet(front, shim, stream, peer, greeting.clone()));
                    } else {
                        greeting.fetch_sub(1, Relaxed);
                    }
                }
                Ok((stream, peer)) => admit(front, stream, peer),
                Err(error) => {
                    tracing::debug!(%error, "an accept failed");
                    tokio::time::sleep(BACKOFF).await;
                }
            },
        }
    }
    drop(listener);
    let deadline = Instant::now() + Duration::from_millis(front.limits().drain_deadline_ms.into());
    while (front.connections() > 0 || greeting.load(Relaxed) > 0) && Instant::now() < deadline {
        tokio::time::sleep(DRAIN_PERIOD).await;
    }
    front.enter(Phase::Ended);
    tokio::time::sleep(DRAIN_PERIOD).await;
    clock.abort();
    Ok(())
}

fn admit(front: &Arc<Front<ShimBackend>>, stream: TcpStream, peer: SocketAddr) {
    if let Some(connection) = Connection::of_tcp(front, stream, peer) {
        tokio::spawn(connection);
    }
}

async fn greet(
    front: Arc<Front<ShimBackend>>,
    shim: Arc<Shim>,
    mut stream: TcpStream,
    peer: SocketAddr,
    greeting: Arc<AtomicU32>,
) {
    let limit = Duration::from_millis(front.limits().header_timeout_ms.into());
    let read = tokio::time::timeout(limit, proxy_protocol::read(&mut stream, peer)).await;
    match read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(client) => admit(&front, stream, client),
        Err(error) => {
            shim.metrics.bad_proxy_headers.inc();
            tracing::debug!(%peer, %error, "a connection was closed");
        }
    }
    greeting.fetch_sub(1, Relaxed);
}
