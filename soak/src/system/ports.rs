//! Ports for processes that must be found again where they were after a restart.
//!
//! They are taken from below the range from which the kernel gives outgoing connections theirs: thousands of users come and
//! go, and one of their connections must not hold the port on which a killed server is to listen again.

use crate::refusal::Refusal;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the search begins at the earliest.
const LOWEST: u16 = 10_000;

/// How many this process has given out: systems that it starts at the same time take different ones.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// Gives out free ports, each once.
pub struct Ports {
    lowest: u16,
    end: u16,
}

impl Default for Ports {
    fn default() -> Self {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let first = range
            .ok()
            .and_then(|text| text.split_whitespace().next()?.parse().ok());
        let end = first.filter(|end| *end > LOWEST + 1000);
        Self {
            lowest: LOWEST,
            end: end.unwrap_or(u16::MAX),
        }
    }
}

impl Ports {
    /// A port of 127.0.0.1 on which nobody listens, and, for Redis Cluster's bus, with another one so far above it.
    ///
    /// # Errors
    /// When none is left.
    pub fn take(&self, with_above: Option<u16>) -> Result<SocketAddr, Refusal> {
        for _ in self.lowest..self.end {
            let port = self.next();
            let above = with_above.map(|above| port.checked_add(above));
            let bus_is_free = match above {
                None => true,
                Some(bus) => bus.is_some_and(is_free),
            };
            if bus_is_free && is_free(port) {
                return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            }
        }
        Err(Refusal::unreachable("no port of 127.0.0.1 is free"))
    }
}

impl Ports {
    fn next(&self) -> u16 {
        let spread = u32::from(self.end - self.lowest);
        // Several harnesses on one machine begin at different places.
        let start = std::process::id().wrapping_mul(2_654_435_761) % spread;
        let nth = GIVEN.fetch_add(1, Ordering::Relaxed);
        let offset = (start + nth % spread) % spread;
        self.lowest + u16::try_from(offset).unwrap_or_default()
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once_and_are_free() {
        let ports = Ports::default();
        let first = ports.take(None).expect("a port");
        let _held = TcpListener::bind(first).expect("it is free");
        for _ in 0..100 {
            assert_ne!(ports.take(Some(1000)).expect("a port"), first);
        }
    }
}
