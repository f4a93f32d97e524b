//! From where links are accepted.

use std::net::IpAddr;

/// A set of addresses: networks, each an address and how many of its leading bits count.
///
/// A link carries what plain HTTP carries, each request with its own token, but says itself whom a request is from; so it
/// is taken from known addresses alone.
#[derive(Clone, Debug)]
pub struct LinkPeers(Vec<(IpAddr, u8)>);

/// Not `ADDRESS` or `ADDRESS/BITS`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network, such as 10.1.0.0/16 or ::1")]
pub struct NotANetwork(String);

impl Default for LinkPeers {
    /// This machine.
    fn default() -> Self {
        LinkPeers(vec![
            (IpAddr::from([127, 0, 0, 0]), 8),
            (IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]), 128),
        ])
    }
}

impl LinkPeers {
    /// From texts such as `10.1.0.0/16`, `192.0.2.7` or `::1`.
    ///
    /// # Errors
    /// The first text that is none.
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Result<Self, NotANetwork> {
        networks
            .into_iter()
            .map(parse_network)
            .collect::<Result<_, _>>()
            .map(LinkPeers)
    }

    /// Whether an address is in one of the networks. An IPv4 address that came over IPv6 counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = as_bits(address.to_canonical());
        self.0.iter().any(|(network, prefix)| {
            let network = as_bits(network.to_canonical());
            network.1 == bits.1 && {
                let shift = u32::from(network.1 - prefix);
                network.0.checked_shr(shift) == bits.0.checked_shr(shift)
            }
        })
    }
}

/// The address as a number, and how many bits it has.
fn as_bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u32::from(address).into(), 32),
        IpAddr::V6(address) => (address.into(), 128),
    }
}

fn parse_network(text: &str) -> Result<(IpAddr, u8), NotANetwork> {
    let bad = || NotANetwork(text.to_owned());
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let all = as_bits(address).1;
    let prefix = match prefix {
        Some(prefix) => prefix
            .parse()
            .ok()
            .filter(|bits| *bits <= all)
            .ok_or_else(bad)?,
        None => all,
    };
    match (address, address.to_canonical()) {
        // `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
        (IpAddr::V6(_), IpAddr::V4(v4)) => Ok((v4.into(), prefix.checked_sub(96).ok_or_else(bad)?)),
        _ => Ok((address, prefix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_its_networks() {
        let peers = LinkPeers::parse([
            "10.1.0.0/16",
            "192.0.2.7",
            "fd00::/8",
            "::ffff:172.16.0.0/108",
        ])
        .unwrap();
        for inside in [
            "10.1.255.1",
            "192.0.2.7",
            "fdff::1",
            "::ffff:10.1.2.3",
            "172.31.0.1",
        ] {
            assert!(peers.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in [
            "10.2.0.1",
            "192.0.2.8",
            "fe00::1",
            "::1",
            "127.0.0.1",
            "172.32.0.1",
        ] {
            assert!(!peers.contains(outside.parse().unwrap()), "{outside}");
        }
        let all = LinkPeers::parse(["0.0.0.0/0"]).unwrap();
        assert!(all.contains([8, 8, 8, 8].into()));
        assert!(!all.contains("::1".parse().unwrap()));
    }

    #[test]
    fn only_this_machine_by_default() {
        let peers = LinkPeers::default();
        assert!(peers.contains([127, 0, 0, 9].into()));
        assert!(peers.contains("::1".parse().unwrap()));
        assert!(!peers.contains([10, 0, 0, 1].into()));
    }

    #[test]
    fn what_is_no_network_is_an_error() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "a",
            "1.2.3.4/",
            "1.2.3.4/-1",
            "::ffff:1.2.3.4/95",
        ] {
            assert_eq!(
                LinkPeers::parse([text]).unwrap_err(),
                NotANetwork(text.to_owned())
            );
        }
    }
}
