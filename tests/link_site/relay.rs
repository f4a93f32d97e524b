//! Passes bytes between a shim and a server, in pieces, late, only so far, or not at all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What a relay does to each connection.
#[derive(Clone)]
pub(crate) struct Cruelty {
    /// The most bytes that are passed on at once.
    pub(crate) piece_bytes_max: usize,
    /// Cut after so many bytes of one direction, drawn below this. 0: never.
    pub(crate) cut_below: usize,
    /// Up to so long between two pieces.
    pub(crate) delay_ms_max: u64,
}

/// Bytes pass as they come.
pub(crate) const KIND: Cruelty = Cruelty {
    piece_bytes_max: 65_536,
    cut_below: 0,
    delay_ms_max: 0,
};

#[derive(Default)]
pub(crate) struct Relay {
    /// Nothing passes any more, and nothing is closed.
    pub(crate) is_hole: AtomicBool,
    pub(crate) connections: AtomicUsize,
}

/// A relay before `server`.
pub(crate) async fn relay(
    server: SocketAddr,
    cruelty: Cruelty,
    mut random: Pcg64Mcg,
) -> (SocketAddr, Arc<Relay>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let relay = Arc::new(Relay::default());
    let shared = relay.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            shared.connections.fetch_add(1, SeqCst);
            let Ok(server) = TcpStream::connect(server).await else {
                continue;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (client_in, client_out) = client.into_split();
            let (server_in, server_out) = server.into_split();
            // The 101 and the hello get through.
            let mut cut = |least| match cruelty.cut_below {
                0 => usize::MAX,
                below => least + random.random_range(0..below),
            };
            let up = (cut(120), Pcg64Mcg::new(random_state(&mut random)));
            let mut cut = |least| match cruelty.cut_below {
                0 => usize::MAX,
                below => least + random.random_range(0..below),
            };
            let down = (cut(120), Pcg64Mcg::new(random_state(&mut random)));
            let (cruel, hole) = (cruelty.clone(), shared.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = pass(client_in, server_out, &cruel, &hole, up) => {}
                    () = pass(server_in, client_out, &cruel, &hole, down) => {}
                }
            });
        }
    });
    (address, relay)
}

fn random_state(random: &mut Pcg64Mcg) -> u128 {
    u128::from(random.random::<u64>()) << 64 | 1
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    cruelty: &Cruelty,
    relay: &Relay,
    (mut left, mut random): (usize, Pcg64Mcg),
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let max = random.random_range(1..=cruelty.piece_bytes_max).min(left);
        let Ok(read @ 1..) = from.read(&mut buffer[..max]).await else {
            return;
        };
        if relay.is_hole.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        if cruelty.delay_ms_max > 0 {
            let wait = random.random_range(0..=cruelty.delay_ms_max);
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        left -= read;
        if left == 0 {
            return;
        }
    }
}
