//! Which node holds which slot, as the nodes say.

use std::ops::RangeInclusive;

use redis::Value;

use crate::endpoint::Endpoint;
use crate::slot::SLOTS;

/// What a primary holds together with its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) primary: Endpoint,
}

/// Who holds which slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    pub(super) shards: Vec<Shard>,
    /// Replicas, one of which may be the next primary.
    replicas: Vec<Endpoint>,
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
            self.shards.push(Shard { primary: to });
            self.shards.len() - 1
        });
        self.owner.resize(usize::from(SLOTS), NOBODY);
        if let Some(owner) = self.owner.get_mut(usize::from(slot)) {
            *owner = u16::try_from(shard).unwrap_or(NOBODY);
        }
    }

    /// Every node that is known.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Endpoint> {
        let primaries = self.shards.iter().map(|shard| &shard.primary);
        primaries.chain(&self.replicas)
    }

    /// The map that comes of what nodes claim: a slot is its whose claim has the newest configuration, as the nodes settle
    /// it among themselves. (A node that has not heard of a failover yet still names the old primary.)
    pub(super) fn of(views: &[View]) -> Self {
        let mut map = Self {
            shards: Vec::new(),
            replicas: Vec::new(),
            owner: vec![NOBODY; usize::from(SLOTS)],
        };
        let mut epochs = vec![0; usize::from(SLOTS)];
        for claim in views.iter().flat_map(|view| &view.claims) {
            for slot in claim.slots.iter().cloned().flatten().map(usize::from) {
                let (Some(owner), Some(epoch)) = (map.owner.get_mut(slot), epochs.get_mut(slot))
                else {
                    continue;
                };
                if *owner != NOBODY && *epoch >= claim.config_epoch {
                    continue;
                }
                let known = map.shards.iter().position(|s| s.primary == claim.primary);
                let shard = known.unwrap_or_else(|| {
                    map.shards.push(Shard {
                        primary: claim.primary.clone(),
                    });
                    map.shards.len() - 1
                });
                *owner = u16::try_from(shard).unwrap_or(NOBODY);
                *epoch = claim.config_epoch;
            }
        }
        for replica in views
            .iter()
            .flat_map(|view| &view.claims)
            .flat_map(|claim| &claim.replicas)
        {
            if !map.nodes().any(|known| known == replica) {
                map.replicas.push(replica.clone());
            }
        }
        map.drop_empty_shards();
        // The same map whoever answered first.
        map.replicas.sort();
        map
    }

    /// Drops those of whom another claim took everything, and puts the rest in order.
    fn drop_empty_shards(&mut self) {
        let mut kept: Vec<Shard> = (0_u16..)
            .zip(&self.shards)
            .filter(|(index, _)| self.owner.contains(index))
            .map(|(_, shard)| shard.clone())
            .collect();
        kept.sort_by(|a, b| a.primary.cmp(&b.primary));
        let place = |shard: &Shard| kept.iter().position(|other| other == shard);
        let places: Vec<u16> = self
            .shards
            .iter()
            .map(|shard| {
                place(shard)
                    .and_then(|at| u16::try_from(at).ok())
                    .unwrap_or(NOBODY)
            })
            .collect();
        for owner in &mut self.owner {
            *owner = places.get(usize::from(*owner)).copied().unwrap_or(NOBODY);
        }
        self.shards = kept;
    }
}

/// What one node says of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    claims: Vec<Claim>,
}

/// What a primary claims.
#[derive(Debug, PartialEq, Eq)]
struct Claim {
    primary: Endpoint,
    config_epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
    replicas: Vec<Endpoint>,
}

impl View {
    /// Reads the reply to `CLUSTER NODES`. A node that does not know its own address is `asked`'s host.
    pub(super) fn read(reply: &Value, asked: &Endpoint) -> Option<Self> {
        let text = match reply {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
            Value::VerbatimString { text, .. } => text,
            _ => return None,
        };
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_ascii_whitespace().collect())
            .collect();
        let mut claims = Vec::new();
        for line in &lines {
            let [id, address, flags, _, _, _, config_epoch, _, slots @ ..] = line.as_slice() else {
                return None;
            };
            let Some(primary) = read_address(address, asked) else {
                continue;
            };
            if !flags.split(',').any(|flag| flag == "master") {
                continue;
            }
            let replica = |other: &Vec<&str>| match other.as_slice() {
                [_, address, _, of, ..] if of == id => read_address(address, asked),
                _ => None,
            };
            claims.push(Claim {
                primary,
                config_epoch: config_epoch.parse().ok()?,
                // A slot in brackets is on its way, and still this node's if it is here at all.
                slots: slots.iter().filter_map(|slots| read_range(slots)).collect(),
                replicas: lines.iter().filter_map(replica).collect(),
            });
        }
        Some(Self { claims })
    }
}

/// `<host>:<port>@<bus>[,<name>]`; `None` for a node whose address nobody knows.
fn read_address(text: &str, asked: &Endpoint) -> Option<Endpoint> {
    let (address, _) = text.split_once('@').unwrap_or((text, ""));
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let host = if host.is_empty() { &asked.host } else { host };
    Some(Endpoint::new(host, port))
}

fn read_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from <= to && to < SLOTS).then_some(from..=to)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Endpoint {
        Endpoint::new("asked", 1)
    }

    fn view(text: &str) -> View {
        View::read(&Value::BulkString(text.into()), &asked()).unwrap()
    }

    #[test]
    fn the_slots_of_a_shard_may_be_several_ranges() {
        let map = SlotMap::of(&[view(
            "aa 10.0.0.1:1@11 master - 0 0 3 connected 0-99 200-16383 [5-<-bb]\n\
             bb :2@12,name myself,master - 0 0 4 connected 100-198 199\n\
             cc 10.0.0.3:3@13 slave aa 0 0 3 connected\n\
             dd :0@0 master,noaddr - 0 0 9 disconnected 7\n",
        )]);
        assert!(map.is_whole());
        assert_eq!(map.shards.len(), 2);
        assert_eq!(map.primary(150), Some(&Endpoint::new("asked", 2)));
        assert_eq!(map.primary(16_383), Some(&Endpoint::new("10.0.0.1", 1)));
        assert!(
            map.nodes()
                .any(|node| *node == Endpoint::new("10.0.0.3", 3))
        );
        let mut map = map;
        map.moved(150, Endpoint::new("d", 4));
        assert_eq!(map.primary(150), Some(&Endpoint::new("d", 4)));
        assert_eq!(map.primary(151), Some(&Endpoint::new("asked", 2)));
    }

    #[test]
    fn who_has_not_heard_of_a_failover_yet_sends_nobody_back() {
        let old = "aa 10.0.0.1:1@11 master - 0 0 1 connected 0-99\n\
                   bb 10.0.0.2:2@12 slave aa 0 0 1 connected\n\
                   cc 10.0.0.3:3@13 myself,master - 0 0 2 connected 100-16383\n";
        let new = "aa 10.0.0.1:1@11 master,fail - 0 0 1 connected\n\
                   bb 10.0.0.2:2@12 myself,master - 0 0 3 connected 0-99\n\
                   cc 10.0.0.3:3@13 master - 0 0 2 connected 100-16383\n";
        for views in [[view(old), view(new)], [view(new), view(old)]] {
            let map = SlotMap::of(&views);
            assert_eq!(map.primary(50), Some(&Endpoint::new("10.0.0.2", 2)));
            assert_eq!(map.shards.len(), 2, "{map:?}");
        }
    }

    #[test]
    fn slots_that_nobody_holds_are_known() {
        let map = SlotMap::of(&[view("aa 10.0.0.1:1@11 master - 0 0 1 connected 5-16383\n")]);
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
