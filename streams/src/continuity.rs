//! Whether what a reader sees next continues what it saw last, judged by the feed's counter.

use crate::EntryId;

/// How an entry continues the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is the next entry, or the first that this detector sees.
    Next,
    /// So many entries between the two are missing.
    Gap(u64),
    /// It is the same entry once more.
    Duplicate,
    /// The counter or the time went backwards: the history that was read before is no longer the feed's. The store lost
    /// writes in a failover, was restored from an older file, or the feed was made anew.
    Rollback,
}

/// Follows one feed and says of each id how it continues the last one.
///
/// A rollback is told from a counter that is not above the last one **at whatever time**: after a failover that lost
/// entries 8 and 9 the new primary appends another 8, later than the lost one, and Redis hands it to a reader that waits
/// behind 9's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapDetector {
    last: EntryId,
}

impl GapDetector {
    /// Goes on from `position`, the last id that was seen; [`EntryId::ZERO`] for nothing yet, from where the first entry
    /// is expected to have the counter 1.
    pub const fn new(position: EntryId) -> Self {
        Self { last: position }
    }

    /// The id that the next one is compared with.
    pub const fn position(&self) -> EntryId {
        self.last
    }

    /// Compares `id` with the last one and, unless it is a [`Step::Rollback`], makes it the last one. After a rollback the
    /// caller reloads what it derived from the feed and starts again with [`GapDetector::new`].
    pub fn observe(&mut self, id: EntryId) -> Step {
        let step = step(self.last, id);
        if step != Step::Rollback {
            self.last = id;
        }
        step
    }
}

/// How `next` continues `last`; see [`GapDetector`].
pub fn step(last: EntryId, next: EntryId) -> Step {
    if next == last {
        return Step::Duplicate;
    }
    if next.seq <= last.seq || next.ms < last.ms {
        return Step::Rollback;
    }
    match next.seq - last.seq {
        1 => Step::Next,
        distance => Step::Gap(distance - 1),
    }
}

/// What the store holds at a reader's position, as found by [`feed::continuity`](crate::feed::continuity).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// The feed goes on from the position; `behind` entries are waiting.
    Intact {
        /// How many entries lie behind the position.
        behind: u64,
    },
    /// Entries after the position are no longer there: they were trimmed or deleted before they were read.
    Gap {
        /// How many.
        lost: u64,
    },
    /// The feed's history no longer contains the position, or ends before it.
    RolledBack {
        /// The last id that the store gave out.
        last: EntryId,
    },
    /// The feed was made anew: all that it holds is later than the position, and its counter started again.
    Recreated {
        /// The last id that the store gave out.
        last: EntryId,
    },
    /// There is no such feed, though this reader has read from it.
    Missing,
}

impl Continuity {
    /// Whether a reader may simply read on.
    pub const fn is_intact(&self) -> bool {
        matches!(self, Self::Intact { .. })
    }
}

/// What is known of a stream when its continuity is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// The last id that was ever given out; it survives trimming.
    pub(crate) last: EntryId,
    /// The first entry that is still there.
    pub(crate) first: Option<EntryId>,
    /// Whether the entry at the position itself is still there.
    pub(crate) position_found: bool,
}

/// The rule of [`Continuity`]: `None` for a stream that does not exist.
pub(crate) fn judge(position: EntryId, evidence: Option<Evidence>) -> Continuity {
    let Some(Evidence {
        last,
        first,
        position_found,
    }) = evidence
    else {
        return if position == EntryId::ZERO {
            Continuity::Intact { behind: 0 }
        } else {
            Continuity::Missing
        };
    };
    let behind = last.seq.saturating_sub(position.seq);
    if position_found || position == last {
        return Continuity::Intact { behind };
    }
    let Some(first) = first else {
        // Everything was trimmed: only the last id is left to compare with.
        return if last.seq < position.seq || last < position {
            Continuity::RolledBack { last }
        } else {
            Continuity::Gap { lost: behind }
        };
    };
    if first.seq <= position.seq && first.ms > position.ms {
        return Continuity::Recreated { last };
    }
    if first.seq <= position.seq || last < position {
        return Continuity::RolledBack { last };
    }
    match first.seq - position.seq - 1 {
        0 => Continuity::Intact { behind },
        lost => Continuity::Gap { lost },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64, seq: u64) -> EntryId {
        EntryId::new(ms, seq)
    }

    #[test]
    fn each_step_is_told_from_two_ids() {
        assert_eq!(step(EntryId::ZERO, id(5, 1)), Step::Next);
        assert_eq!(step(id(5, 1), id(5, 2)), Step::Next);
        assert_eq!(step(id(5, 1), id(5, 1)), Step::Duplicate);
        assert_eq!(step(id(5, 1), id(9, 5)), Step::Gap(3));
        assert_eq!(step(EntryId::ZERO, id(9, 5)), Step::Gap(4));
        assert_eq!(
            step(id(5, 4), id(9, 4)),
            Step::Rollback,
            "another entry has our number"
        );
        assert_eq!(step(id(5, 4), id(9, 1)), Step::Rollback);
        assert_eq!(step(id(5, 4), id(4, 5)), Step::Rollback);
        assert_eq!(step(id(5, 4), id(4, 3)), Step::Rollback);
    }

    #[test]
    fn a_rollback_leaves_the_detector_where_it_was() {
        let mut detector = GapDetector::new(id(10, 10));
        assert_eq!(detector.observe(id(20, 3)), Step::Rollback);
        assert_eq!(detector.position(), id(10, 10));
        assert_eq!(detector.observe(id(20, 13)), Step::Gap(2));
        assert_eq!(detector.position(), id(20, 13));
    }

    #[test]
    fn continuity_is_judged_by_what_is_left_of_the_stream() {
        let evidence = |last, first, position_found| {
            Some(Evidence {
                last,
                first,
                position_found,
            })
        };
        let at = id(10, 5);
        assert_eq!(judge(EntryId::ZERO, None), Continuity::Intact { behind: 0 });
        assert_eq!(judge(at, None), Continuity::Missing);
        assert_eq!(
            judge(at, evidence(id(20, 9), Some(id(1, 1)), true)),
            Continuity::Intact { behind: 4 }
        );
        // Trimmed up to the position, or just behind it.
        assert_eq!(
            judge(at, evidence(id(20, 9), Some(id(11, 6)), false)),
            Continuity::Intact { behind: 4 }
        );
        assert_eq!(
            judge(at, evidence(at, None, false)),
            Continuity::Intact { behind: 0 }
        );
        assert_eq!(
            judge(at, evidence(id(20, 9), Some(id(15, 8)), false)),
            Continuity::Gap { lost: 2 }
        );
        assert_eq!(
            judge(at, evidence(id(20, 9), None, false)),
            Continuity::Gap { lost: 4 }
        );
        // The entry at the position is another one now, or the stream ends before it.
        assert_eq!(
            judge(at, evidence(id(20, 9), Some(id(1, 1)), false)),
            Continuity::RolledBack { last: id(20, 9) }
        );
        assert_eq!(
            judge(at, evidence(id(8, 3), Some(id(1, 1)), false)),
            Continuity::RolledBack { last: id(8, 3) }
        );
        assert_eq!(
            judge(at, evidence(id(8, 3), None, false)),
            Continuity::RolledBack { last: id(8, 3) }
        );
        assert_eq!(
            judge(at, evidence(id(12, 2), Some(id(11, 1)), false)),
            Continuity::Recreated { last: id(12, 2) }
        );
    }
}
