//! A wire that can be cut: passes bytes to a server, or holds them in one direction or both, for some of its links. What is
//! held is not lost unless the link is severed, as on a network that comes back in time or does not.
//!
//! What a link is for is seen from what is sent over it: a replica asks to follow, Trove gives its name, the rest are
//! sentinels and tests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a held link looks whether it may go on.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// What is looked at to see what a link is for.
const SEEN_BYTES_MAX: usize = 4_096;

/// Who is on the other side of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Trove = 0,
    Replica = 1,
    Other = 2,
}

/// Toward the server, and from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Up = 1,
    Down = 2,
}

struct Wire {
    to: AtomicU16,
    /// The ways that are held, by who is on the other side.
    held: [AtomicU8; 3],
    ended: AtomicBool,
    links: Mutex<Vec<Arc<Link>>>,
}

struct Link {
    who: AtomicU8,
    client: TcpStream,
    server: TcpStream,
}

impl Link {
    fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

/// See the module. Ends with its last link when dropped.
pub struct Relay {
    pub port: u16,
    wire: Arc<Wire>,
}

impl Relay {
    /// A relay on a free port, to a server on `to`.
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Arc::new(Wire {
            to: AtomicU16::new(to),
            held: Default::default(),
            ended: AtomicBool::new(false),
            links: Mutex::default(),
        });
        let shared = wire.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.ended.load(SeqCst) {
                    return;
                }
                accept(&shared, client);
            }
        });
        Self { port, wire }
    }

    /// The server that new links lead to.
    pub fn lead_to(&self, to: u16) {
        self.wire.to.store(to, SeqCst);
    }

    /// Holds what goes one way.
    pub fn hold(&self, who: Who, way: Way) {
        self.wire.held[who as usize].fetch_or(way as u8, SeqCst);
    }

    /// Lets everything pass again.
    pub fn flow(&self) {
        self.wire.held.iter().for_each(|held| held.store(0, SeqCst));
    }

    /// Closes every link; what was held is lost.
    pub fn sever(&self) {
        let mut links = lock(&self.wire.links);
        links.drain(..).for_each(|link| link.close());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.wire.ended.store(true, SeqCst);
        self.sever();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(wire: &Arc<Wire>, client: TcpStream) {
    let to = (Ipv4Addr::LOCALHOST, wire.to.load(SeqCst));
    let Ok(server) = TcpStream::connect(to) else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ends = (client.try_clone(), server.try_clone());
    let (Ok(client_end), Ok(server_end)) = ends else {
        return;
    };
    let link = Arc::new(Link {
        who: AtomicU8::new(Who::Other as u8),
        client: client_end,
        server: server_end,
    });
    lock(&wire.links).push(link.clone());
    let copies = (client.try_clone(), server.try_clone());
    let (Ok(client_out), Ok(server_out)) = copies else {
        return;
    };
    let (up_wire, up_link) = (wire.clone(), link.clone());
    std::thread::spawn(move || copy(&up_wire, &up_link, (client, server_out), Way::Up));
    let down_wire = wire.clone();
    std::thread::spawn(move || copy(&down_wire, &link, (server, client_out), Way::Down));
}

fn copy(wire: &Wire, link: &Arc<Link>, (mut from, mut to): (TcpStream, TcpStream), way: Way) {
    let mut buffer = [0; 16_384];
    let mut seen = Vec::new();
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if way == Way::Up && seen.len() < SEEN_BYTES_MAX {
            seen.extend_from_slice(&buffer[..count]);
            let says = |word: &[u8]| seen.windows(word.len()).any(|part| part == word);
            if says(b"PSYNC") || says(b"REPLCONF") {
                link.who.store(Who::Replica as u8, SeqCst);
            } else if says(b"trove") {
                link.who.store(Who::Trove as u8, SeqCst);
            }
        }
        // A link that is held holds what it has; what it has not read yet waits with its sender.
        let is_held = || {
            let who = usize::from(link.who.load(SeqCst));
            wire.held[who].load(SeqCst) & way as u8 != 0
        };
        while is_held() {
            if wire.ended.load(SeqCst) || !lock(&wire.links).iter().any(|it| Arc::ptr_eq(it, link))
            {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    link.close();
    lock(&wire.links).retain(|it| !Arc::ptr_eq(it, link));
}
