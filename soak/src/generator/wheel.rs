//! A hashed timer wheel by absolute time: an entry costs a push into the slot of its tick, whether it is due in a
//! millisecond or in an hour; one that lies more than a turn of the wheel ahead stays in its slot until its turn.

/// Slots, a power of two: a turn of the wheel takes 3.3 s with ticks of 200 µs.
const SLOTS: usize = 1 << 14;
const WORD_BITS: usize = 64;
/// Emptied slots' memory that is kept for the next ones. Kept by each slot, it grew for as long as some slot had not yet seen
/// its fullest tick: with 10,000 users by 17 % of the harness's memory in a quarter of an hour.
const SPARES_MAX: usize = 4_096;
/// A slot that had more places than this (all users due at once, after a pause) gives them back.
const SPARE_PLACES_MAX: usize = 1_024;

/// What is due, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Whose.
    pub user: u32,
    /// When, in microseconds.
    pub at_us: u64,
}

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    /// The resolution: an entry fires at the first multiple of this that is not before its time. Its lateness is the price
    /// of handling many entries at one waking.
    tick_us: u64,
    slots: Vec<Vec<Due>>,
    /// Empty, with places.
    spares: Vec<Vec<Due>>,
    /// A bit for each slot that has entries, so that the next one is found without looking at empty ones.
    occupied: Vec<u64>,
    /// The tick that is being fired: everything before it has fired.
    tick: u64,
    /// What the tick has left to fire, if it could not be fired at once.
    firing: Vec<Due>,
}

impl Wheel {
    /// An empty wheel whose time is `now_us`, with ticks of `tick_us`, which is above 0.
    #[must_use]
    pub fn new(now_us: u64, tick_us: u64) -> Self {
        Self {
            tick_us,
            slots: vec![Vec::new(); SLOTS],
            spares: Vec::new(),
            occupied: vec![0; SLOTS / WORD_BITS],
            tick: now_us / tick_us,
            firing: Vec::new(),
        }
    }

    /// Enters `user` at `at_us`; what is past fires with the next tick.
    pub fn enter(&mut self, user: u32, at_us: u64) {
        let tick = at_us.div_ceil(self.tick_us).max(self.tick);
        let slot = slot(tick);
        let entries = &mut self.slots[slot];
        if entries.capacity() == 0
            && let Some(spare) = self.spares.pop()
        {
            *entries = spare;
        }
        entries.push(Due { user, at_us });
        self.occupied[slot / WORD_BITS] |= 1 << (slot % WORD_BITS);
    }

    /// The next entry that is due at `until_us`, in the order of ticks.
    pub fn next_due(&mut self, until_us: u64) -> Option<Due> {
        loop {
            if let Some(due) = self.firing.pop() {
                return Some(due);
            }
            if self.tick * self.tick_us > until_us {
                return None;
            }
            self.take_slot();
        }
    }

    /// Moves what the current tick has into `firing`, and goes on to the next tick that can have something.
    fn take_slot(&mut self) {
        let now_us = self.tick * self.tick_us;
        let at = slot(self.tick);
        if self.occupied[at / WORD_BITS] & (1 << (at % WORD_BITS)) != 0 {
            let entries = &mut self.slots[at];
            let mut nth = 0;
            while nth < entries.len() {
                if entries[nth].at_us <= now_us {
                    self.firing.push(entries.swap_remove(nth));
                } else {
                    nth += 1;
                }
            }
            if entries.is_empty() {
                self.occupied[at / WORD_BITS] &= !(1 << (at % WORD_BITS));
                let emptied = std::mem::take(entries);
                if self.spares.len() < SPARES_MAX && emptied.capacity() <= SPARE_PLACES_MAX {
                    self.spares.push(emptied);
                }
            }
        }
        self.tick += 1;
        // Fired from the end: the earliest last.
        self.firing
            .sort_unstable_by_key(|due| std::cmp::Reverse(due.at_us));
    }

    /// Whether a tick was not fired to its end.
    #[must_use]
    pub fn is_firing(&self) -> bool {
        !self.firing.is_empty()
    }

    /// When to look again: at the next occupied slot, at most `within_us` ahead. An entry of a later turn may lie there; then
    /// nothing is due and one looks again.
    #[must_use]
    pub fn next_at_us(&self, within_us: u64) -> u64 {
        let ticks = (within_us / self.tick_us).min(SLOTS as u64 - 1);
        let mut ahead = 0;
        while ahead < ticks {
            let at = slot(self.tick + ahead);
            let bits = self.occupied[at / WORD_BITS] >> (at % WORD_BITS);
            if bits != 0 {
                ahead += u64::from(bits.trailing_zeros());
                break;
            }
            ahead += (WORD_BITS - at % WORD_BITS) as u64;
        }
        (self.tick + ahead.min(ticks)) * self.tick_us
    }
}

fn slot(tick: u64) -> usize {
    usize::try_from(tick % SLOTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_US: u64 = 200;

    #[test]
    fn it_holds_no_more_memory_than_what_it_has_entered_needs() {
        let mut wheel = Wheel::new(0, TICK_US);
        // Each turn of the wheel enters 64 a tick, and at another tick each time 2,000 more.
        let turn = SLOTS as u64;
        for tick in 1..4 * turn {
            let at_us = tick * TICK_US;
            let count = if tick % 997 == 0 { 2_000 } else { 64 };
            for user in 0..count {
                wheel.enter(user, at_us);
            }
            while wheel.next_due(at_us).is_some() {}
        }
        let vectors = wheel.slots.iter().chain(&wheel.spares);
        let places: usize = vectors.map(Vec::capacity).sum();
        // Never more than one slot had entries at a time.
        assert!(places <= SPARE_PLACES_MAX, "{places}");
    }

    #[test]
    fn entries_fire_at_their_tick_and_never_before_their_time() {
        let mut wheel = Wheel::new(0, TICK_US);
        let times = [
            0,
            1,
            199,
            200,
            201,
            50_000,
            3_276_800,
            10_000_000,
            3_600_000_000,
        ];
        for (user, at_us) in (0..).zip(times) {
            wheel.enter(user, at_us);
        }
        let mut fired = Vec::new();
        let mut now = 0;
        while fired.len() < times.len() {
            while let Some(due) = wheel.next_due(now) {
                assert!(
                    due.at_us <= now && now - due.at_us <= TICK_US,
                    "{due:?} at {now}"
                );
                fired.push(due.user);
            }
            now = wheel.next_at_us(u64::MAX).max(now + 1);
        }
        assert_eq!(fired, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_past_fires_with_the_next_tick() {
        let mut wheel = Wheel::new(1_000_000, TICK_US);
        wheel.enter(7, 5);
        assert_eq!(wheel.next_at_us(10_000), 1_000_000);
        assert_eq!(wheel.next_due(1_000_000), Some(Due { user: 7, at_us: 5 }));
        assert_eq!(wheel.next_due(1_000_000), None);
        // Without entries the wheel sleeps as long as it may.
        assert_eq!(wheel.next_at_us(10_000), 1_000_200 + 10_000);
    }
}
