//! Ports for processes that must be found again where they were after a restart.
//!
//! They are taken from below the range from which the kernel gives outgoing connections theirs: thousands of users come and
//! go, and one of their connections must not hold the port on which a killed server is to listen again.

use crate::refusal::Refusal;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Where the search begins at the earliest.
const LOWEST: u16 = 10_000;

/// Gives out free ports, each once.
pub struct Ports {
    next: u16,
    lowest: u16,
    end: u16,
}

impl Default for Ports {
    fn default() -> Self {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let first = range
            .ok()
            .and_then(|text| text.split_whitespace().next()?.parse().ok());
        let (lowest, end) = match first {
            Some(end) if end > LOWEST + 1000 => (LOWEST, end),
            _ => (LOWEST, u16::MAX),
        };
        // Several harnesses on one machine begin at different places.
        let spread = u32::from(end - lowest);
        let start = std::process::id().wrapping_mul(2_654_435_761) % spread;
        let next = lowest + u16::try_from(start).unwrap_or_default();
        Self { next, lowest, end }
    }
}

impl Ports {
    /// A port of 127.0.0.1 on which nobody listens, and, for Redis Cluster's bus, with another one so far above it.
    ///
    /// # Errors
    /// When none is left.
    pub fn take(&mut self, with_above: Option<u16>) -> Result<SocketAddr, Refusal> {
        for _ in self.lowest..self.end {
            let port = self.next;
            self.next = if port + 1 >= self.end {
                self.lowest
            } else {
                port + 1
            };
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

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once_and_are_free() {
        let mut ports = Ports::default();
        let first = ports.take(None).expect("a port");
        let _held = TcpListener::bind(first).expect("it is free");
        for _ in 0..100 {
            assert_ne!(ports.take(Some(1000)).expect("a port"), first);
        }
    }
}
