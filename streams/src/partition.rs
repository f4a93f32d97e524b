//! Partitions: which one a player belongs to, and the hash tag that its keys share.

use std::fmt;

use crate::slot::{self, SLOTS};

/// The most partitions there may be.
pub const PARTITIONS_MAX: u16 = 256;
/// How many partitions a store has unless it was told otherwise when it was made.
pub const PARTITIONS_DEFAULT: u16 = 16;

/// One of a store's partitions, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// Its number, below [`Partitions::count`].
    pub const fn index(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of partitions that is not between 1 and [`PARTITIONS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the number of partitions must be between 1 and {PARTITIONS_MAX}, not {count}")]
pub struct PartitionCountError {
    /// The number that was asked for.
    pub count: u16,
}

/// The partitions of a store. Their number is fixed when the store is made: it decides where every key lies.
///
/// **Tags.** Partition `i` of `n` owns the `i`-th of `n` equal ranges of the 16,384 slots, and its tag is the first of
/// `0`, `1`, … `z`, `00`, `01`, … (base 36, by length) whose slot lies in the middle eighth of that range. So however many
/// nodes a cluster has, if each has one range of slots of the same size, hardly any two nodes differ by more than one
/// partition; and tags have one or two bytes (three when there are many), which counts, as they are part of every player's keys. **This rule and the
/// two hashes below must never change**: they say where the data of existing stores lies.
#[derive(Clone, PartialEq, Eq)]
pub struct Partitions {
    tags: Box<[Box<str>]>,
}

impl Partitions {
    /// `count` partitions, 1 to [`PARTITIONS_MAX`].
    pub fn new(count: u16) -> Result<Self, PartitionCountError> {
        if count == 0 || count > PARTITIONS_MAX {
            return Err(PartitionCountError { count });
        }
        let mut tags: Vec<Option<Box<str>>> = vec![None; usize::from(count)];
        let mut missing = count;
        for number in 0u32.. {
            let tag = nth_tag(number);
            let slot = slot::crc16(tag.as_bytes()) % SLOTS;
            let place = &mut tags[usize::from(range_of(slot, count))];
            if place.is_none() && is_central(slot, count) {
                *place = Some(tag);
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        Ok(Self {
            tags: tags.into_iter().flatten().collect(),
        })
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.tags.len()).expect("at most PARTITIONS_MAX were made")
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Partition> + use<> {
        (0..self.count()).map(Partition)
    }

    /// Partition number `index`, if there is one.
    pub fn get(&self, index: u16) -> Option<Partition> {
        (index < self.count()).then_some(Partition(index))
    }

    /// The hash tag of `partition`, without braces.
    pub fn tag(&self, partition: Partition) -> &str {
        &self.tags[usize::from(partition.0)]
    }

    /// The partition of the player with this number. Numbers are mixed first (splitmix64's finaliser), so that they need
    /// not be evenly spread themselves.
    pub fn of_player(&self, player: u64) -> Partition {
        self.of_hash(mix(player))
    }

    /// The partition of a name (a player's, before its number is known): FNV-1a of 64 bits, mixed.
    pub fn of_name(&self, name: &[u8]) -> Partition {
        self.of_hash(mix(fnv1a(name)))
    }

    fn of_hash(&self, hash: u64) -> Partition {
        // The upper bits choose by multiplication; the lower ones are left for buckets within the partition.
        let index = (u128::from(hash) * u128::from(self.count())) >> 64;
        Partition(u16::try_from(index).expect("a 64-bit fraction of the count is below the count"))
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Partitions").field(&self.count()).finish()
    }
}

impl Default for Partitions {
    fn default() -> Self {
        Self::new(PARTITIONS_DEFAULT).expect("the default is within the bounds")
    }
}

/// Which of `count` equal ranges of slots `slot` lies in.
fn range_of(slot: u16, count: u16) -> u16 {
    let index = u32::from(slot) * u32::from(count) / u32::from(SLOTS);
    u16::try_from(index).expect("a slot is below SLOTS, so the range is below the count")
}

/// Whether `slot` lies in the middle eighth of its range (for many partitions that is a few slots; the middle one is
/// always among them).
fn is_central(slot: u16, count: u16) -> bool {
    // In units of a slot's `count`-th part, so that ranges which are no whole number of slots are cut exactly.
    let place = (u32::from(slot) * u32::from(count) + u32::from(count) / 2) % u32::from(SLOTS);
    place.abs_diff(u32::from(SLOTS) / 2) <= u32::from(SLOTS) / 16
}

/// The `number`-th text over `0-9a-z`, shorter ones first.
fn nth_tag(number: u32) -> Box<str> {
    let mut rest = number;
    let mut length = 1;
    let mut count = 36;
    while rest >= count {
        rest -= count;
        count *= 36;
        length += 1;
    }
    let mut digits = vec!['0'; length];
    for digit in digits.iter_mut().rev() {
        *digit = char::from_digit(rest % 36, 36).expect("the remainder is a digit of base 36");
        rest /= 36;
    }
    digits.into_iter().collect::<String>().into_boxed_str()
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit of the input reaches every bit of the result.
pub(crate) const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// FNV-1a, 64 bits. Players choose their names, but a crowded bucket only costs memory, so it need not be keyed.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_lies_in_its_own_equal_range_of_slots_for_every_count() {
        for count in 1..=PARTITIONS_MAX {
            let partitions = Partitions::new(count).unwrap();
            assert_eq!(partitions.count(), count);
            for partition in partitions.iter() {
                let tag = partitions.tag(partition);
                let slot = slot::slot(format!("x{{{tag}}}y").as_bytes());
                assert_eq!(
                    range_of(slot, count),
                    partition.index(),
                    "{count} partitions, tag {tag}"
                );
                assert!(tag.len() <= 3, "{tag}");
            }
        }
    }

    #[test]
    fn partitions_spread_evenly_over_the_nodes_of_a_cluster() {
        for count in 1..=PARTITIONS_MAX {
            let partitions = Partitions::new(count).unwrap();
            for nodes in 1..=count.min(32) {
                let mut held = vec![0u16; usize::from(nodes)];
                for partition in partitions.iter() {
                    let slot = slot::slot(partitions.tag(partition).as_bytes());
                    held[usize::from(range_of(slot, nodes))] += 1;
                }
                let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
                // Two only for odd pairs such as 43 partitions on 21 nodes.
                let bound = match count % nodes {
                    0 => 0,
                    _ if count.is_power_of_two() && nodes <= 20 => 1,
                    _ => 2,
                };
                assert!(
                    most - least <= bound,
                    "{count} partitions on {nodes} nodes: {held:?}"
                );
            }
        }
    }

    #[test]
    fn tags_and_hashes_are_those_that_existing_stores_were_written_with() {
        let sixteen = Partitions::default();
        let tags: Vec<&str> = sixteen
            .iter()
            .map(|partition| sixteen.tag(partition))
            .collect();
        assert_eq!(tags.join(" "), "18 3 0f j 19 2 0g k 6s 23 0y u 6r 22 0x t");
        let all = (1..=PARTITIONS_MAX)
            .flat_map(|count| Partitions::new(count).unwrap().tags)
            .fold(0, |hash, tag| mix(hash ^ fnv1a(tag.as_bytes())));
        assert_eq!(all, 0xa8f0ee7b085d455);
        let players = [0, 1, 2, 3, u64::MAX].map(|player| sixteen.of_player(player).index());
        assert_eq!(players, [0, 5, 13, 1, 11]);
        let names = ["", "ada", "grace"].map(|name| sixteen.of_name(name.as_bytes()).index());
        assert_eq!(names, [15, 7, 7]);
    }

    #[test]
    fn players_spread_evenly_even_when_their_numbers_are_consecutive() {
        let partitions = Partitions::default();
        let mut held = [0u32; PARTITIONS_DEFAULT as usize];
        for player in 0..160_000 {
            held[usize::from(partitions.of_player(player).index())] += 1;
        }
        // 10,000 each; a standard deviation is 97.
        assert!(
            held.iter().all(|held| held.abs_diff(10_000) < 500),
            "{held:?}"
        );
    }

    #[test]
    fn a_count_out_of_bounds_is_refused() {
        assert_eq!(Partitions::new(0), Err(PartitionCountError { count: 0 }));
        assert_eq!(
            Partitions::new(257),
            Err(PartitionCountError { count: 257 })
        );
    }
}
