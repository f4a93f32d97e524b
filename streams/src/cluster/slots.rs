//! Which node holds which slot, as the nodes say.

use redis::Value;

use crate::endpoint::Endpoint;
use crate::slot::SLOTS;

/// A primary and its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) primary: Endpoint,
    pub(super) replicas: Vec<Endpoint>,
}

/// Who holds which slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    pub(super) shards: Vec<Shard>,
    /// For each slot the number of its shard, or [`NOBODY`].
    owner: Vec<u16>,
}

const NOBODY: u16 = u16::MAX;

impl SlotMap {
    /// The primary of `slot`.
    pub(super) fn primary(&self, slot: u16) -> Option<&Endpoint> {
        let shard = *self.owner.get(usize::from(slot))?;
        Some(&self.shards.get(usize::from(shard))?.primary)
    }

    /// Whether every slot has a primary.
    pub(super) fn is_whole(&self) -> bool {
        self.owner.len() == usize::from(SLOTS) && !self.owner.contains(&NOBODY)
    }

    /// Takes a node's word for one slot.
    pub(super) fn moved(&mut self, slot: u16, to: Endpoint) {
        let known = self.shards.iter().position(|shard| shard.primary == to);
        let shard = known.unwrap_or_else(|| {
            self.shards.push(Shard {
                primary: to,
                replicas: Vec::new(),
            });
            self.shards.len() - 1
        });
        self.owner.resize(usize::from(SLOTS), NOBODY);
        if let Some(owner) = self.owner.get_mut(usize::from(slot)) {
            *owner = u16::try_from(shard).unwrap_or(NOBODY);
        }
    }

    /// Every node that is known.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Endpoint> {
        self.shards
            .iter()
            .flat_map(|shard| std::iter::once(&shard.primary).chain(&shard.replicas))
    }

    /// Reads the reply to `CLUSTER SLOTS`. A node that does not know its own address is `asked`'s host.
    pub(super) fn read(reply: &Value, asked: &Endpoint) -> Option<Self> {
        let Value::Array(ranges) = reply else {
            return None;
        };
        let mut map = Self {
            shards: Vec::new(),
            owner: vec![NOBODY; usize::from(SLOTS)],
        };
        for range in ranges {
            let Value::Array(parts) = range else {
                return None;
            };
            let [Value::Int(from), Value::Int(to), nodes @ ..] = parts.as_slice() else {
                return None;
            };
            let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
            let mut nodes = nodes.iter().map(|node| read_node(node, asked));
            // A primary without a usable address: its slots are nobody's for now.
            let Some(primary) = nodes.next()?? else {
                continue;
            };
            let known = map.shards.iter().position(|shard| shard.primary == primary);
            let shard = match known {
                Some(shard) => shard,
                None => {
                    map.shards.push(Shard {
                        primary,
                        replicas: nodes.flatten().flatten().collect(),
                    });
                    map.shards.len() - 1
                }
            };
            map.owner
                .get_mut(from..=to)?
                .fill(u16::try_from(shard).ok()?);
        }
        Some(map)
    }
}

/// `None`: not understood. `Some(None)`: a node whose address nobody knows.
fn read_node(node: &Value, asked: &Endpoint) -> Option<Option<Endpoint>> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [host, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = match host {
        Value::Nil => "",
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        _ => return None,
    };
    let port = u16::try_from(*port).ok()?;
    Some(match host {
        "" => Some(Endpoint::new(asked.host.clone(), port)),
        "?" => None,
        host => Some(Endpoint::new(host, port)),
    })
}

/// Reads where `MOVED` and `ASK` point to: `<slot> <host>:<port>`. An empty host is that of the node which answered.
pub(super) fn read_redirect(message: &str, asked: &Endpoint) -> Option<(u16, Endpoint)> {
    let (slot, address) = message.trim().split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() { &asked.host } else { host };
    Some((
        slot.parse().ok().filter(|slot| *slot < SLOTS)?,
        Endpoint::new(host, port.parse().ok()?),
    ))
}

/// Whether `CLUSTER INFO` says that all is well, and the newest configuration that the node has heard of.
pub(super) fn read_info(reply: &Value) -> Option<(bool, u64)> {
    let text = match reply {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    Some((
        field("cluster_state")? == "ok",
        field("cluster_current_epoch")?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![
            Value::BulkString(host.into()),
            Value::Int(port),
            Value::BulkString("id".into()),
        ])
    }

    fn asked() -> Endpoint {
        Endpoint::new("asked", 1)
    }

    #[test]
    fn the_slots_of_a_shard_may_be_several_ranges() {
        let range = |from, to, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(from), Value::Int(to)], nodes].concat())
        };
        let reply = Value::Array(vec![
            range(0, 99, vec![node("a", 1), node("c", 3)]),
            range(100, 199, vec![node("", 2)]),
            range(200, 16_383, vec![node("a", 1)]),
        ]);
        let mut map = SlotMap::read(&reply, &asked()).unwrap();
        assert!(map.is_whole());
        assert_eq!(map.shards.len(), 2);
        assert_eq!(map.shards[0].replicas, [Endpoint::new("c", 3)]);
        assert_eq!(map.primary(150), Some(&Endpoint::new("asked", 2)));
        assert_eq!(map.primary(16_383), Some(&Endpoint::new("a", 1)));
        map.moved(150, Endpoint::new("d", 4));
        assert_eq!(map.primary(150), Some(&Endpoint::new("d", 4)));
        assert_eq!(map.primary(151), Some(&Endpoint::new("asked", 2)));
    }

    #[test]
    fn slots_that_nobody_holds_are_known() {
        let reply = Value::Array(vec![Value::Array(vec![
            Value::Int(5),
            Value::Int(16_383),
            node("a", 1),
        ])]);
        let map = SlotMap::read(&reply, &asked()).unwrap();
        assert!(!map.is_whole());
        assert_eq!(map.primary(4), None);
        assert!(!SlotMap::default().is_whole());
    }

    #[test]
    fn a_redirection_without_a_host_points_to_the_one_who_gave_it() {
        assert_eq!(
            read_redirect("3999 127.0.0.1:6381", &asked()),
            Some((3999, Endpoint::new("127.0.0.1", 6381)))
        );
        assert_eq!(
            read_redirect("3999 :6381", &asked()),
            Some((3999, Endpoint::new("asked", 6381)))
        );
        assert_eq!(
            read_redirect("1 ::1:7000", &asked()),
            Some((1, Endpoint::new("::1", 7000)))
        );
        for text in ["", "3999", "16384 a:1", "x a:1", "1 a:x"] {
            assert_eq!(read_redirect(text, &asked()), None, "{text}");
        }
    }
}
