//! The settings of `trove shim`, and what its texts mean.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The shim's listeners, heartbeats and what it forwards.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // The default file is the documentation.
pub struct ShimSettings {
    pub listen: SocketAddr,
    pub ops_listen: SocketAddr,
    pub upstreams: Vec<String>,
    pub heartbeats: Vec<String>,
    pub heartbeat_bytes_max: usize,
    pub presence_ms: u64,
    pub players_max: usize,
    pub body_bytes_max: u64,
    pub replay_bytes_max: usize,
    pub forwarded_for: bool,
    pub trusted_proxies: Vec<String>,
    pub proxy_protocol_from: Vec<String>,
    pub cache_bytes_max: usize,
    pub cache_answer_bytes_max: usize,
}

/// How the shim treats one upstream group and its instances.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ShimUpstreamSettings {
    pub requests_max: u32,
    pub queue_max: usize,
    pub queue_ms: u64,
    pub connect_ms: u64,
    pub answer_ms: u64,
    pub pool_idle_max: usize,
    pub pool_idle_ms: u64,
    pub keep_alive_ms: u64,
    pub spill_min: u32,
    pub retry_after_s_max: u32,
    pub links: u16,
    pub link_requests_max: u32,
}

/// How the shim tells healthy instances from others.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ShimHealthSettings {
    pub path: String,
    pub interval_ms: u64,
    pub timeout_ms: u64,
    pub rise: u32,
    pub fall: u32,
    pub eject_failures: u32,
    pub eject_ms: u64,
    pub slow_start_ms: u64,
}

/// The least and the greatest value of each whole number.
pub(super) const RANGES: [(&str, i64, i64); 26] = [
    ("shim.heartbeat_bytes_max", 0, 65_536),
    ("shim.presence_ms", 1_000, 3_600_000),
    ("shim.players_max", 1, 100_000_000),
    ("shim.body_bytes_max", 1_024, 1 << 40),
    ("shim.replay_bytes_max", 0, 1 << 24),
    ("shim.cache_bytes_max", 0, 1 << 32),
    ("shim.cache_answer_bytes_max", 0, 1 << 30),
    ("shim_upstream.requests_max", 1, 100_000),
    ("shim_upstream.queue_max", 0, 1_000_000),
    ("shim_upstream.queue_ms", 1, 60_000),
    ("shim_upstream.connect_ms", 10, 60_000),
    ("shim_upstream.answer_ms", 100, 3_600_000),
    ("shim_upstream.pool_idle_max", 0, 100_000),
    ("shim_upstream.pool_idle_ms", 0, 3_600_000),
    ("shim_upstream.keep_alive_ms", 1, 7_200_000),
    ("shim_upstream.spill_min", 1, 100_000),
    ("shim_upstream.retry_after_s_max", 1, 3_600),
    ("shim_upstream.links", 0, 16),
    ("shim_upstream.link_requests_max", 1, 65_536),
    ("shim_health.interval_ms", 50, 600_000),
    ("shim_health.timeout_ms", 10, 60_000),
    ("shim_health.rise", 1, 100),
    ("shim_health.fall", 1, 100),
    ("shim_health.eject_failures", 1, 10_000),
    ("shim_health.eject_ms", 100, 600_000),
    ("shim_health.slow_start_ms", 0, 600_000),
];

/// Checks the items of the shim's lists.
pub(super) fn list_item(key: &str, text: &str) -> Option<Result<(), String>> {
    let checked = match key {
        "shim.heartbeats" => text.parse::<HeartbeatRule>().map(drop),
        "shim.trusted_proxies" | "shim.proxy_protocol_from" => text.parse::<Network>().map(drop),
        // The groups are read as a whole when the shim starts: an item without a name belongs to the one before it.
        "shim.upstreams" => Ok(()),
        _ => return None,
    };
    Some(checked.map_err(|what| format!("holds {text:?}; {what}")))
}

/// Which requests are heartbeats: `METHOD PATH`, the path ending in `*` where only its beginning counts, and for a path
/// that is shared with other requests the member of the JSON body that tells them apart, `METHOD PATH NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatRule {
    /// The method; `None` for any.
    pub method: Option<String>,
    /// The path, or its beginning.
    pub path: String,
    /// Whether `path` is only its beginning.
    pub is_prefix: bool,
    /// A member of the body's top-level object and the text that it must have.
    pub marker: Option<(String, String)>,
}

impl FromStr for HeartbeatRule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "a heartbeat is METHOD PATH, such as POST /heartbeat or * /ping*, with NAME=VALUE behind it \
            where a member of the JSON body tells it from other requests";
        let mut words = text.split_whitespace();
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(FORM);
        };
        let marker = match words.next() {
            None => None,
            Some(marker) => {
                let (name, value) = marker.split_once('=').ok_or(FORM)?;
                let plain = |text: &str| {
                    !text.is_empty()
                        && text
                            .bytes()
                            .all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
                };
                if !plain(name) || !plain(value) {
                    return Err(FORM);
                }
                Some((name.to_owned(), value.to_owned()))
            }
        };
        let is_method =
            method == "*" || method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        if words.next().is_some() || !is_method || !path.starts_with('/') {
            return Err(FORM);
        }
        let (path, is_prefix) = match path.strip_suffix('*') {
            Some(path) => (path, true),
            None => (path, false),
        };
        Ok(Self {
            method: (method != "*").then(|| method.to_owned()),
            path: path.to_owned(),
            is_prefix,
            marker,
        })
    }
}

/// An address, or a network in CIDR form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str =
            "a peer is an address or a network, such as 10.0.0.7, 10.0.0.0/8 or fd00::/8";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| FORM)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or(FORM)?,
        };
        Ok(Self { address, bits })
    }
}

impl Network {
    /// Whether `address` lies in it. An IPv4 address that was mapped into IPv6 is taken for what it is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        fn equal(a: u128, b: u128, width: u32, bits: u8) -> bool {
            let rest = width - u32::from(bits);
            rest >= 128 || (a ^ b) >> rest == 0
        }
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) if self.bits <= 32 => {
                equal(a.to_bits().into(), b.to_bits().into(), 32, self.bits)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => equal(a.to_bits(), b.to_bits(), 128, self.bits),
            _ => false,
        }
    }
}

/// Instances that stand for one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamGroup {
    /// What operators call it.
    pub name: String,
    /// `host:port` of each.
    pub instances: Vec<String>,
}

/// The most instances of a group.
pub const INSTANCES_MAX: usize = 64;
/// The most groups.
const GROUPS_MAX: usize = 16;

impl UpstreamGroup {
    /// Reads groups, `NAME=host:port,host:port`. An item without a name adds to the one before it, as where an
    /// environment variable's commas have cut them apart.
    ///
    /// # Errors
    /// What is wrong with which item.
    pub fn read_all(items: &[String]) -> Result<Vec<Self>, String> {
        let mut groups: Vec<Self> = Vec::new();
        for item in items.iter().flat_map(|text| text.split(',')).map(str::trim) {
            let instance = match item.split_once('=') {
                Some((name, instance)) => {
                    if !super::limits::is_instance_id(name) {
                        return Err(format!(
                            "{item:?}: a group's name must be 1 to 64 of A-Z a-z 0-9 . _ -"
                        ));
                    }
                    if groups.iter().any(|group| group.name == name) {
                        return Err(format!("two groups are called {name}"));
                    }
                    groups.push(Self {
                        name: name.to_owned(),
                        instances: Vec::new(),
                    });
                    instance
                }
                None => item,
            };
            let Some(group) = groups.last_mut() else {
                return Err(format!(
                    "{item:?}: a group is written as NAME=host:port,host:port"
                ));
            };
            if !is_address(instance) {
                return Err(format!(
                    "{item:?}: an instance is host:port, such as 127.0.0.1:8080 or [::1]:8080"
                ));
            }
            if group.instances.iter().any(|known| known == instance) {
                return Err(format!("{} names {instance} twice", group.name));
            }
            group.instances.push(instance.to_owned());
        }
        if groups.len() > GROUPS_MAX || groups.iter().any(|g| g.instances.len() > INSTANCES_MAX) {
            return Err(format!(
                "there are at most {GROUPS_MAX} groups of {INSTANCES_MAX} instances"
            ));
        }
        Ok(groups)
    }
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_one = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        }
    };
    host_is_one && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_rule_is_a_method_a_path_and_perhaps_a_marker() {
        let rule: HeartbeatRule = "POST /heartbeat".parse().unwrap();
        assert_eq!(
            (rule.method.as_deref(), rule.path.as_str(), rule.is_prefix),
            (Some("POST"), "/heartbeat", false)
        );
        let rule: HeartbeatRule = "* /ping*".parse().unwrap();
        assert_eq!(
            (rule.method, rule.path.as_str(), rule.is_prefix),
            (None, "/ping", true)
        );
        let rule: HeartbeatRule = "POST /events type=heartbeat".parse().unwrap();
        assert_eq!(rule.marker, Some(("type".into(), "heartbeat".into())));
        for wrong in [
            "",
            "POST",
            "POST heartbeat",
            "post /heartbeat",
            "POST /a type",
            "POST /a =b",
            "POST /a b=\"c\"",
            "POST /a b=c d",
        ] {
            assert!(wrong.parse::<HeartbeatRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        let holds = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && holds("::/0", "::1"));
        assert!(holds("127.0.0.1", "127.0.0.1") && !holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(holds("fd00::/8", "fd12::1") && !holds("fd00::/8", "fe80::1"));
        assert!(!holds("::/0", "1.2.3.4"));
        for wrong in ["", "10.0.0.0/33", "::/129", "a", "1.2.3.4/", "1.2.3.4/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_are_read_however_their_commas_were_cut() {
        let read = |items: &[&str]| {
            let items: Vec<String> = items.iter().map(|item| (*item).to_owned()).collect();
            UpstreamGroup::read_all(&items)
        };
        let whole = read(&["blue=127.0.0.1:1,h.example:2", "green=[::1]:3"]).unwrap();
        let cut = read(&["blue=127.0.0.1:1", "h.example:2", "green=[::1]:3"]).unwrap();
        assert_eq!(whole, cut);
        assert_eq!(whole[0].instances, ["127.0.0.1:1", "h.example:2"]);
        for wrong in [
            &["127.0.0.1:1"][..],
            &["a=127.0.0.1"],
            &["a=:1"],
            &["a=h:0"],
            &["a=h:1,h:1"],
            &["a=h:1", "a=h:2"],
            &["a b=h:1"],
            &["a="],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
