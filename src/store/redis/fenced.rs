//! How often the store's fences held: against commands whose caller believes in another epoch, time, generation or server than
//! there is, and against answers that nothing covers yet. Counted a command each time it is sent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use trove_streams::fence::FenceError;
use trove_streams::{ErrorCode, ServerError};

/// What held a command back. After the first four nothing was done; after the others it may have been, and was not
/// acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// Its caller's epoch is not the store's.
    Epoch,
    /// The server's clock is ahead of what its caller holds possible.
    Clock,
    /// The hunt has another generation, or is frozen.
    Generation,
    /// The server is a replica, or has lost its primary.
    Role,
    /// The server's history is no longer the one that was written to.
    History,
    /// Too few replicas, or the disk, had it in time.
    TooFew,
    /// As many wait for the fence as may.
    FenceFull,
    /// The fence could not be written.
    FenceBroken,
}

impl Fenced {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Epoch,
        Self::Clock,
        Self::Generation,
        Self::Role,
        Self::History,
        Self::TooFew,
        Self::FenceFull,
        Self::FenceBroken,
    ];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Clock => "clock",
            Self::Generation => "generation",
            Self::Role => "role",
            Self::History => "history",
            Self::TooFew => "too_few",
            Self::FenceFull => "fence_full",
            Self::FenceBroken => "fence_broken",
        }
    }

    /// What a server's error says; `None` if it is no fence's.
    pub(super) fn by_error(error: &ServerError) -> Option<Self> {
        match &error.code {
            ErrorCode::ReadOnly | ErrorCode::MasterDown => Some(Self::Role),
            ErrorCode::Other(code) => match code.as_str() {
                "EPOCH" => Some(Self::Epoch),
                "CLOCK" => Some(Self::Clock),
                "GENERATION" => Some(Self::Generation),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn by_fence(error: &FenceError) -> Self {
        match error {
            FenceError::OtherHistory => Self::History,
            FenceError::TooFew { .. } => Self::TooFew,
            FenceError::TooMany => Self::FenceFull,
            _ => Self::FenceBroken,
        }
    }
}

/// A count of each.
#[derive(Debug, Default)]
pub(super) struct FencedCounts([AtomicU64; Fenced::ALL.len()]);

impl FencedCounts {
    pub(super) fn count(&self, what: Fenced) {
        self.0[what as usize].fetch_add(1, Relaxed);
    }

    /// In the order of [`Fenced::ALL`].
    pub(super) fn read(&self) -> [u64; Fenced::ALL.len()] {
        std::array::from_fn(|place| self.0[place].load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_in_its_own_place() {
        let counts = FencedCounts::default();
        for (times, what) in Fenced::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| counts.count(what));
        }
        assert_eq!(counts.read(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn an_error_that_no_fence_gave_is_not_counted() {
        let error = |code: &str| ServerError {
            code: code.into(),
            message: String::new(),
        };
        assert_eq!(Fenced::by_error(&error("EPOCH")), Some(Fenced::Epoch));
        assert_eq!(Fenced::by_error(&error("READONLY")), Some(Fenced::Role));
        for code in ["ERR", "OOM", "FULL"] {
            assert_eq!(Fenced::by_error(&error(code)), None, "{code}");
        }
    }
}
