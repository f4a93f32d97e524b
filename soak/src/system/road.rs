//! A road: a TCP proxy of the harness's own between instances and Redis, or between users and the system, on which bytes
//! can be held up or delayed while every connection stays open. It is placed only where a case has a fault that needs it.
//!
//! Held bytes are not lost: TCP would send lost ones again, so what a peer sees of a cut network is that they come late.

use crate::refusal::Refusal;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Everything, at once.
    Flows,
    /// Nothing.
    Cut,
    /// Everything, so much later.
    Late(Duration),
}

/// The bytes that one direction of a connection holds at most; then its sender waits.
const HELD_BYTES_MAX: usize = 256 << 10;
const READ_BYTES: usize = 16 << 10;

/// A road; it ends when dropped.
pub struct Road {
    traffic: watch::Sender<Traffic>,
    /// Where it begins.
    pub from: SocketAddr,
}

impl Road {
    /// From `from` to `to`. Connections from `inner`, if it is given, are let through whatever happens.
    ///
    /// # Errors
    /// When `from` cannot be listened on.
    pub fn start(
        from: SocketAddr,
        to: SocketAddr,
        inner: Option<Ipv4Addr>,
    ) -> Result<Self, Refusal> {
        let failed = |error: io::Error| Refusal::unreachable(format!("a road at {from}: {error}"));
        let listener = std::net::TcpListener::bind(from).map_err(failed)?;
        let from = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (traffic, seen) = watch::channel(Traffic::Flows);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        std::thread::Builder::new()
            .name("road".into())
            .spawn(move || {
                runtime.block_on(async {
                    if let Ok(listener) = TcpListener::from_std(listener) {
                        serve(listener, to, inner, seen).await;
                    }
                });
            })
            .map_err(failed)?;
        Ok(Self { traffic, from })
    }

    /// Lets so much through from now on.
    pub fn set(&self, traffic: Traffic) {
        self.traffic.send_replace(traffic);
    }
}

async fn serve(
    listener: TcpListener,
    to: SocketAddr,
    inner: Option<Ipv4Addr>,
    seen: watch::Receiver<Traffic>,
) {
    let (_always, flows) = watch::channel(Traffic::Flows);
    let mut end = seen.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The road was dropped.
            () = async { while end.changed().await.is_ok() {} } => return,
        };
        match accepted {
            Ok((near, peer)) => {
                let is_inner = inner.is_some_and(|inner| peer.ip() == IpAddr::V4(inner));
                let traffic = if is_inner {
                    flows.clone()
                } else {
                    seen.clone()
                };
                tokio::spawn(connect(near, to, traffic));
            }
            // No descriptor is free: those that end give some back.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connect(near: TcpStream, to: SocketAddr, traffic: watch::Receiver<Traffic>) {
    let mut waits = traffic.clone();
    // During a cut not even a connection comes about.
    if waits
        .wait_for(|traffic| *traffic != Traffic::Cut)
        .await
        .is_err()
    {
        return;
    }
    let Ok(far) = TcpStream::connect(to).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    tokio::join!(
        carry(near_in, far_out, traffic.clone()),
        carry(far_in, near_out, traffic)
    );
}

/// One direction: what came is kept with the time at which it may go on.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut traffic: watch::Receiver<Traffic>,
) {
    let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut held_bytes = 0;
    let mut buffer = vec![0; READ_BYTES];
    let mut ended = false;
    loop {
        let now = *traffic.borrow_and_update();
        let due = held.front().map(|(due, _)| *due);
        let sends = now != Traffic::Cut && due.is_some();
        if ended && held.is_empty() {
            let _ = to.shutdown().await;
            return;
        }
        tokio::select! {
            biased;
            changed = traffic.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if sends => {
                if let Some((_, bytes)) = held.pop_front() {
                    held_bytes -= bytes.len();
                    if to.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            }
            read = from.read(&mut buffer), if !ended && held_bytes < HELD_BYTES_MAX => match read {
                Ok(0) => ended = true,
                Ok(length) => {
                    let bytes = &buffer[..length];
                    if now == Traffic::Flows && held.is_empty() {
                        if to.write_all(bytes).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    let late = if let Traffic::Late(by) = now { by } else { Duration::ZERO };
                    held.push_back((Instant::now() + late, bytes.to_vec()));
                    held_bytes += length;
                }
                Err(_) => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener as Listener, TcpStream as Stream};

    /// Someone who sends back what comes.
    fn echo() -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it");
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut back = stream.try_clone().expect("the same");
                let mut stream = stream;
                std::thread::spawn(move || io::copy(&mut stream, &mut back));
            }
        });
        address
    }

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    fn asked(stream: &mut Stream, text: &[u8]) -> io::Result<()> {
        stream.write_all(text)?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, text);
        Ok(())
    }

    #[test]
    fn a_cut_holds_bytes_back_and_keeps_connections_open() {
        let road = Road::start(any(), echo(), None).expect("a road");
        let mut stream = Stream::connect(road.from).expect("a connection");
        asked(&mut stream, b"one").expect("an answer");
        road.set(Traffic::Cut);
        stream.write_all(b"two").expect("it is open");
        let short = Some(Duration::from_millis(100));
        stream.set_read_timeout(short).expect("a time-out");
        assert!(stream.read(&mut [0; 3]).is_err(), "nothing comes");
        road.set(Traffic::Flows);
        stream.set_read_timeout(None).expect("none");
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).expect("it comes after all");
        assert_eq!(&answer, b"two");
        asked(&mut stream, b"three").expect("an answer");
    }

    #[test]
    fn on_a_slow_road_every_byte_is_late_and_none_is_lost() {
        let road = Road::start(any(), echo(), None).expect("a road");
        let mut stream = Stream::connect(road.from).expect("a connection");
        let late = Duration::from_millis(30);
        road.set(Traffic::Late(late));
        let large = vec![7; 3 * HELD_BYTES_MAX];
        let mut writes = stream.try_clone().expect("the same");
        let sent = large.clone();
        let began = std::time::Instant::now();
        let writer = std::thread::spawn(move || writes.write_all(&sent));
        let mut answer = vec![0; large.len()];
        stream.read_exact(&mut answer).expect("all of it");
        assert!(began.elapsed() >= 2 * late, "there and back");
        assert_eq!(answer, large);
        writer.join().expect("it ends").expect("it is written");
    }

    #[test]
    fn those_within_pass_a_cut() {
        let own = Ipv4Addr::new(127, 0, 0, 1);
        let road = Road::start(any(), echo(), Some(own)).expect("a road");
        road.set(Traffic::Cut);
        let mut stream = Stream::connect(road.from).expect("a connection");
        asked(&mut stream, b"one").expect("an answer");
    }
}
