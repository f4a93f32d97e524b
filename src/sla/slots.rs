//! What happened, by time: slots of 10 s for an hour, and of 5 minutes for three days. The number of slots is fixed, and so
//! is the size of each, so that the memory is a constant (1.3 MB an objective) however much happens.

use crate::metrics::durations::NATIVE_BUCKETS;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The length of the slots that short windows are summed from, in seconds.
pub const FINE_S: u64 = 10;
/// The length of the slots that long windows are summed from, in seconds.
pub const COARSE_S: u64 = 300;
/// The reach of the fine slots, in seconds.
pub const FINE_REACH_S: u64 = 3_600;
/// The reach of the coarse slots, in seconds: that of the longest window.
pub const COARSE_REACH_S: u64 = 3 * 24 * 3_600;

/// What happened to the requests of one objective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were late.
    pub late: u64,
    /// By native bucket.
    pub latencies: Box<[u32]>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requests: 0,
            failed: 0,
            late: 0,
            latencies: vec![0; NATIVE_BUCKETS].into(),
        }
    }
}

impl Tally {
    /// Adds what another one counted.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.late += other.late;
        for (sum, count) in self.latencies.iter_mut().zip(&other.latencies) {
            *sum = sum.saturating_add(*count);
        }
    }
}

/// What happened in one stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its number: seconds since the epoch, divided by its length.
    pub number: u64,
    /// For how long of it somebody was looking, in milliseconds.
    pub measured_ms: u64,
    /// By objective.
    pub tallies: Vec<Tally>,
    /// Slow requests by cause.
    pub causes: [u64; 4],
}

impl Slot {
    /// An empty one.
    #[must_use]
    pub fn empty(number: u64, objectives: usize) -> Self {
        Self {
            number,
            measured_ms: 0,
            tallies: vec![Tally::default(); objectives],
            causes: [0; 4],
        }
    }

    /// Adds what another one has, whatever its time.
    pub fn add(&mut self, other: &Self) {
        self.measured_ms += other.measured_ms;
        for (sum, tally) in self.tallies.iter_mut().zip(&other.tallies) {
            sum.add(tally);
        }
        for (sum, count) in self.causes.iter_mut().zip(&other.causes) {
            *sum += count;
        }
    }
}

/// Slots of one length, the oldest first, none without time that was measured.
#[derive(Debug, Clone)]
pub struct Ring {
    slot_s: u64,
    reach_s: u64,
    slots: VecDeque<Slot>,
}

impl Ring {
    /// An empty one.
    #[must_use]
    pub fn new(slot_s: u64, reach_s: u64) -> Self {
        Self {
            slot_s,
            reach_s,
            slots: VecDeque::new(),
        }
    }

    /// The most slots that it holds: those that a window of its reach touches.
    #[must_use]
    pub fn slots_max(&self) -> usize {
        usize::try_from(self.reach_s / self.slot_s).unwrap_or(usize::MAX) + 1
    }

    /// Adds what was measured up to a time, to the slot that this time is in. A clock that was set back lets the newest slot
    /// last until time has caught up.
    pub fn add(&mut self, unix_s: u64, gained: &Slot) {
        let number = unix_s / self.slot_s;
        match self.slots.back_mut() {
            Some(newest) if newest.number >= number => newest.add(gained),
            _ => {
                let mut slot = gained.clone();
                slot.number = number;
                self.slots.push_back(slot);
            }
        }
        let oldest = number.saturating_sub(self.slots_max() as u64 - 1);
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.number < oldest || self.slots.len() > self.slots_max())
        {
            self.slots.pop_front();
        }
    }

    /// Adds up the slots that a window up to now touches. Its first slot counts whole.
    pub fn sum_into(&self, unix_s: u64, window_s: u64, sum: &mut Slot) {
        let first = unix_s.saturating_sub(window_s) / self.slot_s;
        for slot in self.slots.iter().rev() {
            if slot.number < first {
                return;
            }
            sum.add(slot);
        }
    }

    /// When its oldest slot began, in seconds since the epoch.
    #[must_use]
    pub fn since_s(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.number * self.slot_s)
    }

    /// Its slots, to be saved.
    #[must_use]
    pub fn saved(&self) -> Vec<SavedSlot> {
        self.slots.iter().map(SavedSlot::from).collect()
    }

    /// Takes slots that were saved, before any of its own; `places` says which of a slot's tallies become those of this
    /// process's objectives. What could not be, is left out.
    pub fn take_up(&mut self, saved: Vec<SavedSlot>, places: &[Option<usize>]) {
        let mut slots: Vec<Slot> = saved
            .into_iter()
            .map(|slot| slot.unpacked(places))
            .collect();
        slots.sort_by_key(|slot| slot.number);
        slots.dedup_by_key(|slot| slot.number);
        let excess = slots.len().saturating_sub(self.slots_max());
        self.slots = slots.split_off(excess).into();
    }
}

/// A slot without the zeros that most of it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedSlot {
    number: u64,
    measured_ms: u64,
    causes: [u64; 4],
    tallies: Vec<SavedTally>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedTally {
    requests: u64,
    failed: u64,
    late: u64,
    latencies: Vec<(u16, u32)>,
}

impl From<&Slot> for SavedSlot {
    fn from(slot: &Slot) -> Self {
        let tallies = slot.tallies.iter().map(|tally| SavedTally {
            requests: tally.requests,
            failed: tally.failed,
            late: tally.late,
            latencies: (0_u16..)
                .zip(&tally.latencies)
                .filter(|(_, count)| **count > 0)
                .map(|(place, count)| (place, *count))
                .collect(),
        });
        Self {
            number: slot.number,
            measured_ms: slot.measured_ms,
            causes: slot.causes,
            tallies: tallies.collect(),
        }
    }
}

impl SavedSlot {
    fn unpacked(&self, places: &[Option<usize>]) -> Slot {
        let tallies = places.iter().map(|place| {
            let mut tally = Tally::default();
            if let Some(saved) = place.and_then(|place| self.tallies.get(place)) {
                tally.requests = saved.requests;
                tally.failed = saved.failed;
                tally.late = saved.late;
                for (place, count) in &saved.latencies {
                    if let Some(slot) = tally.latencies.get_mut(usize::from(*place)) {
                        *slot = *count;
                    }
                }
            }
            tally
        });
        Slot {
            number: self.number,
            measured_ms: self.measured_ms,
            causes: self.causes,
            tallies: tallies.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gained(requests: u64) -> Slot {
        let mut slot = Slot::empty(0, 1);
        slot.measured_ms = 1_000;
        slot.tallies[0].requests = requests;
        slot.tallies[0].latencies[7] = u32::try_from(requests).unwrap();
        slot
    }

    fn within(ring: &Ring, now_s: u64, window_s: u64) -> u64 {
        let mut sum = Slot::empty(0, 1);
        ring.sum_into(now_s, window_s, &mut sum);
        sum.tallies[0].requests
    }

    #[test]
    fn a_window_has_what_happened_in_it_and_nothing_older() {
        let mut ring = Ring::new(FINE_S, FINE_REACH_S);
        for second in 0..600 {
            ring.add(10_000 + second, &gained(1));
        }
        // From the slot that holds the second 10,299 on.
        assert_eq!(within(&ring, 10_599, 300), 310);
        assert_eq!(within(&ring, 10_599, 3_600), 600);
        assert_eq!(within(&ring, 10_599 + 3_600, 300), 0);
    }

    #[test]
    fn the_number_of_slots_is_bounded_however_the_clock_moves() {
        let mut ring = Ring::new(FINE_S, FINE_REACH_S);
        for second in 0..20_000 {
            ring.add(1_000_000 + second, &gained(1));
        }
        assert!(ring.slots.len() <= ring.slots_max());
        // Set back: the newest slot lasts on, and nothing is lost.
        let before = within(&ring, 1_019_999, 300);
        ring.add(5, &gained(3));
        assert_eq!(within(&ring, 1_019_999, 300), before + 3);
        // Far ahead: what is too old is gone.
        ring.add(9_000_000, &gained(2));
        assert_eq!(ring.slots.len(), 1);
        assert_eq!(within(&ring, 9_000_000, 3_600), 2);
    }

    #[test]
    fn saved_slots_come_back_for_the_objectives_that_are_still_there() {
        let mut ring = Ring::new(COARSE_S, COARSE_REACH_S);
        ring.add(3_000, &gained(4));
        ring.add(3_300, &gained(5));
        let mut again = Ring::new(COARSE_S, COARSE_REACH_S);
        again.take_up(ring.saved(), &[None, Some(0)]);
        let mut sum = Slot::empty(0, 2);
        again.sum_into(3_400, 3_000, &mut sum);
        assert_eq!(sum.tallies[0], Tally::default());
        assert_eq!(sum.tallies[1].requests, 9);
        assert_eq!(sum.tallies[1].latencies[7], 9);
        assert_eq!(again.since_s(), Some(3_000));
    }
}
