//! What answers are written with, lent from one to the next.

use std::cell::Cell;

use super::scratch::date_field;

/// What tickets write with; one a thread.
#[derive(Default)]
pub(super) struct Pen {
    pub(super) out: Vec<u8>,
    /// The field with the date, for all answers of its second.
    pub(super) date: Vec<u8>,
    date_s: u64,
}

thread_local! {
    static PEN: Cell<Option<Box<Pen>>> = const { Cell::new(None) };
}

impl Pen {
    pub(super) fn take(unix_s: u64) -> Box<Pen> {
        let mut pen = PEN.try_with(Cell::take).ok().flatten().unwrap_or_default();
        if pen.date_s != unix_s {
            pen.date_s = unix_s;
            pen.date = date_field(unix_s).into_bytes();
        }
        pen
    }

    pub(super) fn give_back(mut self: Box<Self>) {
        self.out.clear();
        self.out.shrink_to(64 * 1024);
        // At the end of the thread there is nobody left to lend to.
        let _ = PEN.try_with(|slot| slot.set(Some(self)));
    }
}
