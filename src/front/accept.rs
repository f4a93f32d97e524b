//! Accepting connections, and the end of it.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::warn;

use super::connection::Connection;
use super::limits::Limits;
use super::refusal::Refusal;
use super::{Backend, Front, Phase, count};

/// Pause after an accept that failed for want of something which only time brings back.
const BACKOFF: Duration = Duration::from_millis(20);

/// How long cut connections may take to go, after the drain's deadline.
const LAST_TURNS: Duration = Duration::from_secs(1);

/// Serves `backend` on `listener` until `phase` says [`Phase::Draining`] and the last connection has ended.
///
/// A front of its own; see [`Front::new`] and [`Front::serve`] for one that can be asked for its counters.
///
/// # Errors
/// Limits that contradict each other ([`io::ErrorKind::InvalidInput`]), or a listener that cannot be accepted from.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    backend: Arc<B>,
    limits: Limits,
    phase: watch::Receiver<Phase>,
) -> io::Result<()> {
    let front = Front::new(backend, limits.within(descriptors_max()))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    front.serve(listener, phase).await
}

/// Descriptors that this process may have open at once (`RLIMIT_NOFILE`, soft). 1,024 where that cannot be read.
#[must_use]
pub fn descriptors_max() -> u32 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|columns| columns.split_whitespace().next())
        .map_or(1024, |soft| soft.parse().unwrap_or(u32::MAX))
}

impl Limits {
    /// These limits with connections lowered to what fits in `descriptors`, less those reserved for the rest of the
    /// process.
    #[must_use]
    pub fn within(mut self, descriptors: u32) -> Limits {
        let reserved = self.descriptors_reserved.min(descriptors / 2);
        self.refusals_max = self.refusals_max.min(descriptors / 8);
        self.connections_max = self
            .connections_max
            .min((descriptors - reserved - self.refusals_max).max(1));
        self
    }
}

impl<B: Backend> Front<B> {
    /// Accepts and serves until `phase` says [`Phase::Draining`]; then waits until the last connection has ended, which
    /// the drain's deadline brings about. Runs the front's clock. Serves for ever if the sender of `phase` is gone.
    ///
    /// Call it inside a tokio runtime; each connection is a task of its own there.
    ///
    /// # Errors
    /// The listener cannot be accepted from at all. Connections that are open stay open then.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        mut phase: watch::Receiver<Phase>,
    ) -> io::Result<()> {
        let socket = SockRef::from(&listener);
        // Accepted sockets inherit it: one system call instead of one a connection.
        socket.set_tcp_nodelay(true)?;
        // Listening again only changes the queue's length. The runtime's own is 128: a crowd that reconnects at once
        // overflows it, and each client left out tries again a whole second later.
        socket.listen(i32::try_from(self.limits.backlog_max).unwrap_or(i32::MAX))?;
        let clock = Clock(tokio::spawn({
            let front = self.clone();
            async move { front.tick().await }
        }));
        let mut reserve = Reserve::open();
        loop {
            let current = *phase.borrow_and_update();
            self.enter(current);
            if current >= Phase::Draining {
                break;
            }
            tokio::select! {
                biased;
                () = changed(&mut phase) => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(stream, peer),
                    Err(error) => self.accept_failed(&error, &listener, &mut reserve).await?,
                },
            }
        }
        // What the kernel has already accepted would be reset with the listener: serve it, it is the last.
        while let Some(Ok((stream, peer))) = accept_now(&listener).await {
            self.admit(stream, peer);
        }
        drop(listener);
        self.drain().await;
        drop(clock);
        Ok(())
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        if let Some(connection) = Connection::of_tcp(self, stream, peer) {
            tokio::spawn(connection);
        }
    }

    /// Most failures of an accept concern one connection, or pass.
    async fn accept_failed(
        self: &Arc<Self>,
        error: &io::Error,
        listener: &TcpListener,
        reserve: &mut Reserve,
    ) -> io::Result<()> {
        // Numbers of Linux; `io::ErrorKind` has no names for these.
        const EBADF: i32 = 9;
        const EFAULT: i32 = 14;
        const EINVAL: i32 = 22;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        const ENOTSOCK: i32 = 88;
        match error.raw_os_error() {
            Some(EMFILE | ENFILE) => {
                // The connection stays in the queue and the listener stays readable: without a descriptor to take it
                // with, this loop would spin. The reserve lets it be told and closed.
                if reserve.lend()
                    && let Some(Ok((stream, _))) = accept_now(listener).await
                {
                    count(&self.counters.dropped_connections);
                    self.refused(Refusal::TooManyConnections, Duration::ZERO, false);
                    self.shed(&stream);
                }
                if !reserve.refill() {
                    warn!(%error, "no descriptor left for new connections");
                    tokio::time::sleep(BACKOFF).await;
                }
                Ok(())
            }
            Some(fatal @ (EBADF | EFAULT | EINVAL | ENOTSOCK)) => {
                Err(io::Error::from_raw_os_error(fatal))
            }
            _ if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            _ => {
                tracing::debug!(%error, "an accept failed");
                tokio::time::sleep(BACKOFF).await;
                Ok(())
            }
        }
    }

    /// Answers 503 as well as it can be done at once, and closes.
    fn shed(&self, stream: &TcpStream) {
        // A request left unread would turn the close into a reset, and take the answer with it.
        let mut request = [0; 4096];
        let _ = stream.try_read(&mut request);
        let _ = stream.try_write(&self.refusal(Refusal::TooManyConnections));
    }

    async fn drain(self: &Arc<Self>) {
        let deadline = Duration::from_millis(self.limits.drain_deadline_ms.into());
        if tokio::time::timeout(deadline, self.until_empty())
            .await
            .is_err()
        {
            warn!(
                open = self.connections(),
                "the drain's deadline has passed: cutting what is open"
            );
        }
        self.enter(Phase::Ended);
        let _ = tokio::time::timeout(LAST_TURNS, self.until_empty()).await;
    }

    async fn until_empty(&self) {
        while self.desk.seats.open() > 0 {
            self.emptied.notified().await;
        }
    }
}

/// Stops the clock when serving ends, also when it ends by being dropped.
struct Clock(tokio::task::JoinHandle<()>);

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn changed(phase: &mut watch::Receiver<Phase>) {
    if phase.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Accepts only what is waiting.
async fn accept_now(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    // Unconstrained: the runtime's budget must not pass for an empty queue.
    tokio::task::unconstrained(poll_fn(|cx| {
        Poll::Ready(match listener.poll_accept(cx) {
            Poll::Ready(accepted) => Some(accepted),
            Poll::Pending => None,
        })
    }))
    .await
}

/// A descriptor kept for the moment when there is none.
struct Reserve(Option<File>);

impl Reserve {
    fn open() -> Reserve {
        Reserve(File::open("/dev/null").ok())
    }

    /// Frees it, if there is one.
    fn lend(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Whether there is one again.
    fn refill(&mut self) -> bool {
        if self.0.is_none() {
            *self = Reserve::open();
        }
        self.0.is_some()
    }
}
