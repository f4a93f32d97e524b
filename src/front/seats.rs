//! Places for connections: admission, and one deadline each.
//!
//! A timer of the runtime costs a lock and a tree operation each time it is set, which for a request of 4 µs would be a
//! tenth of it. Here a deadline is one store into an array, at a coarse tick, and a sweep over the whole array at each
//! tick: 20,000 connections are 80 KB, read in about 5 µs ten times a second.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::Waker;

/// Granularity of all timers of the front, in milliseconds.
pub const TICK_MS: u32 = 100;

/// No deadline is set.
const NONE: u32 = 0;
/// The deadline has passed, and the connection has not looked at it yet.
const FIRED: u32 = u32::MAX;

/// One entry per connection, by the seat's number.
pub(super) struct Seats {
    deadlines: Box<[AtomicU32]>,
    wakers: Box<[Mutex<Option<Waker>>]>,
    /// The answer that the connection waits for has been written without it.
    written: Box<[AtomicBool]>,
    free: Mutex<Vec<u32>>,
    /// Seats ever taken: the sweep ends there.
    high: AtomicU32,
    open: AtomicU32,
    /// Ticks since the start; begins at 1 so that no deadline equals `NONE`.
    now: AtomicU32,
}

impl Seats {
    pub(super) fn new(count: u32) -> Self {
        Seats {
            deadlines: (0..count).map(|_| AtomicU32::new(NONE)).collect(),
            wakers: (0..count).map(|_| Mutex::new(None)).collect(),
            written: (0..count).map(|_| AtomicBool::new(false)).collect(),
            free: Mutex::new(Vec::new()),
            high: AtomicU32::new(0),
            open: AtomicU32::new(0),
            now: AtomicU32::new(1),
        }
    }

    /// Takes a seat while fewer than `max` are taken.
    pub(super) fn take(&self, max: u32) -> Option<u32> {
        let mut free = lock(&self.free);
        let open = self.open.load(Relaxed);
        if open >= max {
            return None;
        }
        let seat = match free.pop() {
            Some(seat) => seat,
            None => {
                let seat = self.high.load(Relaxed);
                if seat as usize >= self.deadlines.len() {
                    return None;
                }
                self.high.store(seat + 1, Relaxed);
                seat
            }
        };
        self.open.store(open + 1, Relaxed);
        Some(seat)
    }

    pub(super) fn give_back(&self, seat: u32) {
        self.deadlines[seat as usize].store(NONE, Relaxed);
        self.written[seat as usize].store(false, Relaxed);
        let waker = lock(&self.wakers[seat as usize]).take();
        drop(waker);
        let mut free = lock(&self.free);
        free.push(seat);
        self.open.fetch_sub(1, Relaxed);
    }

    /// Seats taken now.
    pub(super) fn open(&self) -> u32 {
        self.open.load(Relaxed)
    }

    pub(super) fn set_waker(&self, seat: u32, waker: &Waker) {
        *lock(&self.wakers[seat as usize]) = Some(waker.clone());
    }

    /// Sets the deadline `ms` from now, rounded up to ticks.
    pub(super) fn arm(&self, seat: u32, ms: u32) {
        let deadline = self
            .now
            .load(Relaxed)
            .saturating_add(ms.div_ceil(TICK_MS) + 1);
        self.deadlines[seat as usize].store(deadline.min(FIRED - 1), Relaxed);
    }

    pub(super) fn disarm(&self, seat: u32) {
        self.deadlines[seat as usize].store(NONE, Relaxed);
    }

    /// Notes that the connection's answer has been written.
    pub(super) fn set_written(&self, seat: u32) {
        self.written[seat as usize].store(true, Relaxed);
    }

    /// Whether it has been; clears it.
    pub(super) fn take_written(&self, seat: u32) -> bool {
        let written = &self.written[seat as usize];
        let was = written.load(Relaxed);
        if was {
            written.store(false, Relaxed);
        }
        was
    }

    /// Whether the deadline has passed; clears it.
    pub(super) fn take_fired(&self, seat: u32) -> bool {
        let deadline = &self.deadlines[seat as usize];
        let fired = deadline.load(Relaxed) == FIRED;
        if fired {
            deadline.store(NONE, Relaxed);
        }
        fired
    }

    /// Moves the clock on to `now_ticks` and wakes every connection whose deadline has passed.
    pub(super) fn tick(&self, now_ticks: u32) {
        self.now.store(now_ticks, Relaxed);
        let high = self.high.load(Relaxed) as usize;
        for (deadline, waker) in self.deadlines[..high].iter().zip(&self.wakers[..high]) {
            let at = deadline.load(Relaxed);
            if at != NONE
                && at <= now_ticks
                && deadline
                    .compare_exchange(at, FIRED, Relaxed, Relaxed)
                    .is_ok()
            {
                wake(waker);
            }
        }
    }

    /// Wakes the connection of one seat.
    pub(super) fn wake(&self, seat: u32) {
        wake(&self.wakers[seat as usize]);
    }

    pub(super) fn wake_all(&self) {
        let high = self.high.load(Relaxed) as usize;
        self.wakers[..high].iter().for_each(wake);
    }
}

fn wake(slot: &Mutex<Option<Waker>>) {
    let waker = lock(slot).clone();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// A lock held by a thread that panicked still guards whole values here: each is written by one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_taken_up_to_the_limit_and_used_again() {
        let seats = Seats::new(3);
        let taken: Vec<u32> = std::iter::from_fn(|| seats.take(2)).collect();
        assert_eq!(taken, [0, 1]);
        assert_eq!(seats.take(3), Some(2));
        assert_eq!(seats.take(9), None);
        seats.give_back(1);
        assert_eq!((seats.open(), seats.take(3)), (2, Some(1)));
    }

    #[test]
    fn a_deadline_fires_once_and_not_early() {
        let seats = Seats::new(1);
        let seat = seats.take(1).unwrap();
        seats.arm(seat, 250);
        for now in 1..5 {
            seats.tick(now);
            assert!(!seats.take_fired(seat), "at {now}");
        }
        seats.tick(5);
        assert!(seats.take_fired(seat));
        seats.tick(6);
        assert!(!seats.take_fired(seat));
    }

    #[test]
    fn a_seat_given_back_has_no_deadline() {
        let seats = Seats::new(1);
        let seat = seats.take(1).unwrap();
        seats.arm(seat, 1);
        seats.give_back(seat);
        let seat = seats.take(1).unwrap();
        seats.tick(1000);
        assert!(!seats.take_fired(seat));
    }
}
