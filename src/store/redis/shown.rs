//! Up to where each partition's feed is known to be safe, because a fence covered it. What is read up to there needs no fence of
//! its own: a poll that has nothing to collect asks nothing of the replicas, even while there are none.

use super::replay::ring::Cut;
use super::shared::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use trove_streams::{EntryId, History, Partition};

/// In which history and epoch, and up to which entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UpTo {
    history: History,
    epoch: u64,
    last: EntryId,
}

/// See the module. Bounded by the number of partitions.
#[derive(Debug, Default)]
pub(super) struct Shown(Mutex<HashMap<Partition, UpTo>>);

impl Shown {
    /// A fence of `history` covers a partition's feed up to `last`. `epoch` is the one that its caller believes in.
    pub(super) fn note(&self, partition: Partition, history: &History, epoch: u64, last: EntryId) {
        let mut shown = lock(&self.0);
        match shown.get_mut(&partition) {
            Some(known) if known.history == *history => {
                known.epoch = known.epoch.max(epoch);
                known.last = known.last.max(last);
            }
            _ => {
                let history = history.clone();
                let up_to = UpTo {
                    history,
                    epoch,
                    last,
                };
                shown.insert(partition, up_to);
            }
        }
    }

    /// Up to where a partition's feed is known to be safe in `history`, which is that of `epoch`, whose beginning is `cut`.
    ///
    /// The history after a failover is the one before it, up to the cut: what was safe there up to the cut is what it was. The
    /// entries at the very time of the cut may be of either, so they do not count.
    pub(super) fn up_to(
        &self,
        partition: Partition,
        history: &History,
        (epoch, cut): (u64, Cut),
    ) -> Option<EntryId> {
        let mut shown = lock(&self.0);
        let known = shown.get_mut(&partition)?;
        if known.history != *history {
            if known.epoch != cut.of || known.epoch >= epoch {
                return None;
            }
            *known = UpTo {
                history: history.clone(),
                epoch,
                last: known.last.min(EntryId::new(cut.ms, 0)),
            };
        }
        Some(known.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trove_streams::Partitions;

    fn history(replid: &str) -> History {
        History {
            run_id: "r".into(),
            replid: replid.into(),
        }
    }

    fn partition() -> Partition {
        Partitions::new(4).unwrap().get(1).unwrap()
    }

    const BEFORE: (u64, Cut) = (7, Cut { ms: 0, of: 0 });

    #[test]
    fn what_a_fence_covered_is_safe_and_nothing_else() {
        let shown = Shown::default();
        let (old, at) = (history("a"), partition());
        assert_eq!(shown.up_to(at, &old, BEFORE), None);
        shown.note(at, &old, 7, EntryId::new(50, 5));
        shown.note(at, &old, 7, EntryId::new(40, 4));
        assert_eq!(shown.up_to(at, &old, BEFORE), Some(EntryId::new(50, 5)));
        let other = Partitions::new(4).unwrap().get(2).unwrap();
        assert_eq!(shown.up_to(other, &old, BEFORE), None);
        assert_eq!(
            shown.up_to(at, &history("b"), BEFORE),
            None,
            "of another history nothing is known"
        );
    }

    #[test]
    fn after_a_failover_what_was_safe_is_so_up_to_the_cut() {
        let (old, new, at) = (history("a"), history("b"), partition());
        for (cut_ms, safe) in [
            (80, EntryId::new(50, 5)),
            (50, EntryId::new(50, 0)),
            (30, EntryId::new(30, 0)),
        ] {
            let shown = Shown::default();
            shown.note(at, &old, 7, EntryId::new(50, 5));
            let cut = Cut { ms: cut_ms, of: 7 };
            assert_eq!(shown.up_to(at, &new, (8, cut)), Some(safe));
            // And it stays so, while what is covered from then on comes to it.
            assert_eq!(shown.up_to(at, &new, (8, cut)), Some(safe));
            shown.note(at, &new, 8, EntryId::new(90, 9));
            assert_eq!(shown.up_to(at, &new, (8, cut)), Some(EntryId::new(90, 9)));
            assert_eq!(shown.up_to(at, &old, (8, cut)), None);
        }
    }

    #[test]
    fn a_failover_that_nobody_here_saw_leaves_nothing_known() {
        let shown = Shown::default();
        shown.note(partition(), &history("a"), 7, EntryId::new(50, 5));
        let cut = Cut { ms: 80, of: 8 };
        assert_eq!(shown.up_to(partition(), &history("c"), (9, cut)), None);
    }

    #[test]
    fn an_epoch_that_another_primary_began_changes_nothing_about_this_one() {
        let shown = Shown::default();
        let at = partition();
        shown.note(at, &history("a"), 7, EntryId::new(50, 5));
        shown.note(at, &history("a"), 8, EntryId::ZERO);
        let cut = Cut { ms: 60, of: 8 };
        let up_to = shown.up_to(at, &history("b"), (9, cut));
        assert_eq!(up_to, Some(EntryId::new(50, 5)));
    }
}
