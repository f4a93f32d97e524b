//! Connections of users: opened without waiting, from as many source addresses as the ports of one do not suffice for.

use super::answer::Head;
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;

/// Descriptors that are left to the rest of the process.
pub const DESCRIPTORS_RESERVED: u64 = 128;
/// Users behind one loopback source address: below the 28,000 ports that it has, with room for those that wait in
/// TIME_WAIT after a stampede.
pub const USERS_PER_SOURCE: u32 = 5_000;

/// How many connections this process may have, with the limit raised as far as it can be.
///
/// # Errors
/// None that a limit cannot say: the limit stays as it is where it cannot be raised.
#[must_use]
pub fn connections_max() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
        .saturating_sub(DESCRIPTORS_RESERVED)
}

/// Where users connect, and from where.
#[derive(Debug, Clone)]
pub struct Road {
    targets: Vec<SocketAddr>,
    sources: u32,
}

impl Road {
    /// For this many users.
    #[must_use]
    pub fn new(targets: Vec<SocketAddr>, users: u32) -> Self {
        let loopback = targets.iter().all(|target| match target.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(_) => false,
        });
        let sources = if loopback {
            users.div_ceil(USERS_PER_SOURCE)
        } else {
            1
        };
        Self { targets, sources }
    }

    /// How many source addresses there are; with one, the system chooses it.
    #[must_use]
    pub const fn sources(&self) -> u32 {
        self.sources
    }

    /// Other targets for connections to come.
    pub fn retarget(&mut self, targets: Vec<SocketAddr>) {
        self.targets = targets;
    }

    /// Begins to connect a user.
    ///
    /// # Errors
    /// Out of descriptors or ports, or there is no way to the target.
    pub fn connect(&self, user: u32) -> io::Result<TcpStream> {
        let nth = usize::try_from(user).unwrap_or(0) % self.targets.len().max(1);
        let Some(target) = self.targets.get(nth) else {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "there is no target",
            ));
        };
        let socket = Socket::new(
            Domain::for_address(*target),
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        if self.sources > 1 {
            let [_, _, _, last] = (user % self.sources + 1).to_be_bytes();
            let source = Ipv4Addr::new(127, 0, 0, last);
            port_by_connect(&socket)?;
            socket.bind(&SocketAddr::from((source, 0)).into())?;
        }
        match socket.connect(&(*target).into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(socket.into())
    }
}

/// Lets `connect` choose the port instead of `bind`, which looks for one that is free whatever the target: with thousands of
/// ports in TIME_WAIT that took 70 % of the generator's time, and one whose users reconnect while the system is slow fell
/// behind for seconds. socket2 and rustix have no call for it.
fn port_by_connect(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and `on` is an int of the size that is told.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether an error says that we, not the system under test, ran out of something.
#[must_use]
pub fn is_ours(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::ADDRNOTAVAIL,
        Errno::ADDRINUSE,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    ours.iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// A user's connection.
#[derive(Debug, Default)]
pub struct Link {
    /// None: there is none.
    pub socket: Option<TcpStream>,
    /// Told apart from the connections before it.
    pub generation: u32,
    /// Whether it has come about.
    pub connected: bool,
    /// What has not been written.
    pub unsent: Vec<u8>,
    /// An answer that is not whole.
    pub partial: Vec<u8>,
    /// It is not worth looking at `partial` before it has so many bytes.
    pub partial_wants: usize,
    /// The head of an answer of whose body so many bytes are to be read and not kept.
    pub skip: Option<(Head, u64)>,
    /// It is to be closed when what is under way has ended.
    pub closes: bool,
}

impl Link {
    /// Closes it. Says whether there was one.
    pub fn close(&mut self) -> bool {
        let was = self.socket.take().is_some();
        self.generation = self.generation.wrapping_add(1);
        self.connected = false;
        self.closes = false;
        self.skip = None;
        self.partial_wants = 0;
        for bytes in [&mut self.unsent, &mut self.partial] {
            // A long answer's memory is not kept for a user.
            *bytes = Vec::new();
        }
        was
    }

    /// Watches it.
    ///
    /// # Errors
    /// Epoll's.
    pub fn watch(&self, poller: &rustix::fd::OwnedFd, user: u32) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        // Edge-triggered for both directions once and for all: no call to change it ever, and a short read or write is the end
        // of what there is.
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(poller, socket, self.mark(user), flags)?;
        Ok(())
    }

    /// What events of this connection carry.
    #[must_use]
    pub fn mark(&self, user: u32) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.generation) << 32 | u64::from(user))
    }
}
