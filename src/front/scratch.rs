//! The buffers of one event loop, lent to whichever connection has its turn.
//!
//! An idle connection owns no buffer at all: it reads into the loop's and writes from the loop's, and keeps only an
//! incomplete request or what the socket would not take.

use std::cell::Cell;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use super::limits::READ_BUFFER_BYTES;

/// What a turn of one connection works with.
pub(super) struct Scratch {
    /// Bytes read; those not yet consumed are `input[start..end]`.
    pub(super) input: Box<[u8]>,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Answers of this turn that have not been written.
    pub(super) out: Vec<u8>,
    /// `date: …\r\n`, as of `date_s`.
    pub(super) date: Vec<u8>,
    date_s: u64,
    /// Requests answered in this turn.
    pub(super) requests: u32,
    /// Bytes written in this turn.
    pub(super) written: usize,
    /// Bytes read in this turn.
    pub(super) taken: usize,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    /// Takes the loop's buffers, or makes new ones if they are lent out (a connection polled inside another's turn).
    /// `unix_s`: the time that `Date` shall show.
    pub(super) fn take(unix_s: u64) -> Box<Scratch> {
        let mut scratch = SCRATCH
            .try_with(Cell::take)
            .ok()
            .flatten()
            .unwrap_or_else(|| {
                Box::new(Scratch {
                    input: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
                    start: 0,
                    end: 0,
                    out: Vec::with_capacity(8 * 1024),
                    date: Vec::new(),
                    date_s: u64::MAX,
                    requests: 0,
                    written: 0,
                    taken: 0,
                })
            });
        if scratch.date_s != unix_s {
            scratch.date_s = unix_s;
            scratch.date = date_field(unix_s).into_bytes();
        }
        scratch
    }

    pub(super) fn give_back(mut self: Box<Self>) {
        self.start = 0;
        self.end = 0;
        self.requests = 0;
        self.written = 0;
        self.taken = 0;
        self.out.clear();
        self.out.shrink_to(256 * 1024);
        // At the end of the thread there is nobody left to lend to.
        let _ = SCRATCH.try_with(|slot| slot.set(Some(self)));
    }

    pub(super) fn pending(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Takes up what a connection kept.
    pub(super) fn load(&mut self, carry: &mut Vec<u8>) {
        debug_assert_eq!(self.end, 0);
        self.input[..carry.len()].copy_from_slice(carry);
        self.end = carry.len();
        carry.clear();
    }

    /// Leaves with a connection what it has not consumed.
    pub(super) fn stow(&self, carry: &mut Vec<u8>) {
        let left = &self.input[self.start..self.end];
        carry.reserve_exact(left.len());
        carry.extend_from_slice(left);
    }

    /// The free end of the read buffer, at least half of it.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 && self.end > self.input.len() / 2 {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.input[self.end..]
    }
}

pub(super) fn date_field(unix_s: u64) -> String {
    let mut field = String::with_capacity(40);
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s);
    // Writing to a String cannot fail.
    let _ = write!(field, "date: {}\r\n", httpdate::HttpDate::from(at));
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_in_the_form_of_the_field() {
        assert_eq!(
            date_field(784_111_777),
            "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        );
    }

    #[test]
    fn what_is_stowed_is_what_is_loaded() {
        let mut scratch = Scratch::take(1);
        scratch.input[..5].copy_from_slice(b"abcde");
        scratch.end = 5;
        scratch.consume(2);
        let mut carry = Vec::new();
        scratch.stow(&mut carry);
        assert_eq!(carry, b"cde");
        scratch.give_back();
        let mut scratch = Scratch::take(1);
        scratch.load(&mut carry);
        assert_eq!(&scratch.input[scratch.start..scratch.end], b"cde");
    }
}
