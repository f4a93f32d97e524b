//! What a user knows of its wallet.

use super::Cursor;

/// The most finds of one user whose fate is open; the user sends no further one meanwhile.
pub const OPEN_MAX: usize = 256;
/// How many finds with a known fate are remembered for what a finding says.
const RECENT: usize = 4;

/// A find whose fate is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Its number.
    pub number: u64,
    /// Its coins.
    pub coins: u64,
    /// When it was found, by the server; 0: not acknowledged yet.
    pub found_at: u64,
    /// Whether a poll left (or was under way) that may have come within the window.
    pub poll_in_window: bool,
    /// Whether a poll within the window was answered that had to credit it.
    pub had_to_be_credited: bool,
    /// Whether its loss has been found.
    pub lost: bool,
}

impl Open {
    pub(super) const fn is_acknowledged(&self) -> bool {
        self.found_at != 0
    }
}

/// What a user knows.
#[derive(Debug, Default)]
pub struct Wallet {
    /// The last cursor that was told; none: nothing is known.
    pub cursor: Option<Cursor>,
    /// The balance at that cursor.
    pub balance: u64,
    /// Whether it has held nothing and no poll of it has gone unheard: then the first answer tells all there is.
    pub is_untouched: bool,
    /// Entries before the cursor may not have been told: a page of history has to tell what became of open finds.
    pub looks_back: bool,
    open: Vec<Open>,
    recent: [u64; RECENT],
    recent_next: u8,
}

impl Wallet {
    /// Finds whose fate is open.
    #[must_use]
    pub fn open(&self) -> &[Open] {
        &self.open
    }

    pub(super) fn open_mut(&mut self) -> &mut [Open] {
        &mut self.open
    }

    /// Whether it may send one more find.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.open.len() < OPEN_MAX
    }

    pub(super) fn find(&mut self, number: u64) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.number == number)
    }

    pub(super) fn begin(&mut self, open: Open) {
        self.open.push(open);
    }

    /// Takes a find whose fate is known now.
    pub(super) fn finish(&mut self, number: u64) -> Option<Open> {
        let at = self.open.iter().position(|open| open.number == number)?;
        let open = self.open.swap_remove(at);
        self.recent[usize::from(self.recent_next)] = number;
        self.recent_next = (self.recent_next + 1) % 4;
        if self.open.is_empty() && self.open.capacity() > 8 {
            self.open.shrink_to_fit();
        }
        Some(open)
    }

    pub(super) fn was_finished(&self, number: u64) -> bool {
        self.recent.contains(&number)
    }
}
