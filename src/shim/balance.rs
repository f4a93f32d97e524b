//! Which instance a request goes to. Pure: it looks at figures and has none of its own.

/// A player as the balance sees one; the same in every shim, so that all of them send a player to the same instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlayerKey(u64);

/// The key of a name, or of a token's bytes where nothing better is known.
#[must_use]
pub fn player_key(bytes: &[u8]) -> PlayerKey {
    PlayerKey(stable_hash(bytes))
}

impl PlayerKey {
    /// Its bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// A hash that no process, build or processor changes.
pub(super) fn stable_hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = (bytes.len() as u64).wrapping_mul(K);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ word).wrapping_mul(K).rotate_left(29);
    }
    let rest = chunks
        .remainder()
        .iter()
        .fold(1, |word, byte| word << 8 | u64::from(*byte));
    mix((hash ^ rest).wrapping_mul(K))
}

/// SplitMix64's finalizer.
pub(super) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// An instance as the balance sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Of its address.
    pub(super) seed: u64,
    /// Requests under way.
    pub(super) outstanding: u32,
    /// Its share, 0 to 1: below 1 while it starts slowly, 0 when it is not to be used.
    pub(super) weight: f32,
    /// Whether it may take one more.
    pub(super) has_room: bool,
}

/// How much above the mean an instance's load may be before a player's polls spill over (consistent hashing with
/// bounded loads: Mirrokni, Thorup, Zadimoghaddam 2016).
const LOAD_FACTOR: f32 = 1.25;

/// Chooses among the candidates whose weight is above 0; `None` if none of these has room.
///
/// With a key: the instance of the highest rendezvous score whose load is within the bound. Without one: the fewest
/// requests under way for its weight; `tie` decides between equals.
pub(super) fn choose(
    candidates: &[Candidate],
    key: Option<PlayerKey>,
    spill_min: u32,
    tie: u64,
) -> Option<usize> {
    let usable = || {
        candidates
            .iter()
            .enumerate()
            .filter(|(_, one)| one.weight > 0.0 && one.has_room)
    };
    let score = |one: &Candidate, key: u64| mix(key ^ one.seed);
    if let Some(PlayerKey(key)) = key {
        let all = candidates.iter().filter(|one| one.weight > 0.0);
        let (load, weights) = all.fold((1.0, 0.0), |(load, weights), one| {
            (load + as_f32(one.outstanding), weights + one.weight)
        });
        let bound = (LOAD_FACTOR * load / weights).max(as_f32(spill_min));
        let within =
            usable().filter(|(_, one)| as_f32(one.outstanding) < (bound * one.weight).ceil());
        let best = within.max_by_key(|(_, one)| score(one, key));
        if let Some((index, _)) = best {
            return Some(index);
        }
    }
    usable()
        .min_by(|(_, a), (_, b)| {
            let load = |one: &Candidate| (as_f32(one.outstanding) + 1.0) / one.weight;
            let by_load = load(a).total_cmp(&load(b));
            by_load.then_with(|| score(a, tie).cmp(&score(b, tie)))
        })
        .map(|(index, _)| index)
}

/// Exact for every number of requests that one instance can have under way.
#[allow(clippy::cast_precision_loss)]
fn as_f32(number: u32) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instances(outstanding: &[u32]) -> Vec<Candidate> {
        let seeds = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
        outstanding
            .iter()
            .zip(seeds)
            .map(|(outstanding, address)| Candidate {
                seed: stable_hash(address.as_bytes()),
                outstanding: *outstanding,
                weight: 1.0,
                has_room: true,
            })
            .collect()
    }

    fn of(player: u32) -> Option<PlayerKey> {
        Some(player_key(format!("player-{player}").as_bytes()))
    }

    #[test]
    fn the_hash_is_the_same_everywhere() {
        assert_eq!(stable_hash(b""), stable_hash(b""));
        assert_eq!(stable_hash(b"player-1"), 4_634_599_416_636_598_845);
        assert_ne!(stable_hash(b"a"), stable_hash(b"a\0"));
    }

    #[test]
    fn players_spread_evenly_and_only_those_of_a_lost_instance_move() {
        let all = instances(&[0; 4]);
        let mut without = all.clone();
        without[2].weight = 0.0;
        let mut counts = [0; 4];
        for player in 0..10_000 {
            let before = choose(&all, of(player), 1, 0).unwrap();
            let after = choose(&without, of(player), 1, 0).unwrap();
            counts[before] += 1;
            assert!(before == after || before == 2, "player {player}");
            assert_ne!(after, 2);
        }
        assert!(
            counts.iter().all(|count| (2_300..2_700).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn polls_spill_over_above_a_quarter_more_than_the_mean() {
        let home = choose(&instances(&[0; 4]), of(7), 1, 0).unwrap();
        for (load, stays) in [(124, true), (126, false), (500, false)] {
            let mut all = instances(&[100; 4]);
            all[home].outstanding = load;
            // The mean moves with the load: (300 + load + 1) / 4 * 1.25.
            let bound = 1.25 * (301.0 + f64::from(load)) / 4.0;
            assert_eq!(f64::from(load) < bound.ceil(), load < 134);
            let chosen = choose(&all, of(7), 1, 0).unwrap();
            if !stays && load > 140 {
                assert_ne!(chosen, home, "{load}");
            } else {
                assert_eq!(chosen, home, "{load}");
            }
        }
        // A few requests are no load.
        let mut all = instances(&[0; 4]);
        all[home].outstanding = 7;
        assert_eq!(choose(&all, of(7), 8, 0), Some(home));
        all[home].outstanding = 8;
        assert_ne!(choose(&all, of(7), 8, 0), Some(home));
    }

    #[test]
    fn without_a_key_the_least_loaded_is_chosen_and_equals_take_turns() {
        let all = instances(&[3, 1, 2, 4]);
        assert_eq!(choose(&all, None, 1, 0), Some(1));
        let all = instances(&[5; 4]);
        let mut seen = [0; 4];
        for tie in 0..1_000 {
            seen[choose(&all, None, 1, tie).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| *count > 180), "{seen:?}");
    }

    #[test]
    fn a_slow_start_takes_a_smaller_share() {
        let mut all = instances(&[10; 4]);
        all[0].weight = 0.1;
        for tie in 0..100 {
            assert_ne!(choose(&all, None, 1, tie), Some(0));
            assert_ne!(
                choose(&all, of(u32::try_from(tie).unwrap()), 1, tie),
                Some(0)
            );
        }
        all[0].outstanding = 0;
        assert_eq!(choose(&all, None, 1, 0), Some(0));
    }

    #[test]
    fn who_has_no_room_is_not_chosen() {
        let mut all = instances(&[0; 4]);
        all.iter_mut().for_each(|one| one.has_room = false);
        assert_eq!(choose(&all, None, 1, 0), None);
        assert_eq!(choose(&all, of(1), 1, 0), None);
        all[3].has_room = true;
        assert_eq!(choose(&all, of(1), 1, 0), Some(3));
    }
}
