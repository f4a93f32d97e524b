//! The ring of what this instance executed: bounded in bytes, entries and age.
//!
//! An item is **settled** while the store is known to hold it in the epoch that is. A new epoch unsettles everything; what
//! lies before the cut of its partition is settled again without asking ([`Ring::judge`]), the rest is offered. Age puts out
//! only what is settled: a store that was away for long is offered all that it may have lost.

use super::item::{Item, Kind};
use crate::game::Millis;
use crate::game::ids::{PlayerId, PlayerName};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most items, whatever they weigh.
pub(super) const RING_ENTRIES_MAX: usize = 500_000;

/// An item, and what is known of it.
struct Kept {
    item: Arc<Item>,
    /// The epoch in which the store had it; its caller's, so it may be one too low.
    epoch: u64,
    settled: bool,
    /// How often it was offered without an answer that settled it.
    offers: u8,
    /// The latest time at which the store did it: its own, or that of its being brought back, or found there.
    at: Millis,
    pushed: Instant,
    bytes: usize,
}

/// Where a partition's epoch began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct Cut {
    /// The time of the last entry that the epoch before left. What was done before that is there.
    pub(in crate::store::redis) ms: Millis,
    /// The epoch before.
    pub(in crate::store::redis) of: u64,
}

/// See the module.
pub(super) struct Ring {
    /// `None` where an item was purged.
    items: VecDeque<Option<Kept>>,
    /// The number of the first of `items`; numbers are never used again.
    first: u64,
    count: usize,
    bytes: usize,
    bytes_max: usize,
    age_max: Duration,
    /// Erasures among the items: they hold a name that is to go.
    erasures: usize,
    /// Names that an item is about, with their numbers.
    names: HashMap<PlayerName, PlayerId>,
}

impl Ring {
    pub(super) fn new(bytes_max: usize, age_max: Duration) -> Self {
        Self {
            items: VecDeque::new(),
            first: 0,
            count: 0,
            bytes: 0,
            bytes_max,
            age_max,
            erasures: 0,
            names: HashMap::new(),
        }
    }

    /// Keeps an item. Gives how many that were not settled had to go for it.
    pub(super) fn push(&mut self, item: Arc<Item>, epoch: u64, settled: bool) -> u64 {
        if let Item::Player { name, player, .. } = &*item
            && self.names.insert(name.clone(), *player) == Some(*player)
        {
            // It is here already; the earlier one is the surer to survive.
            return 0;
        }
        let bytes = item.bytes();
        let at = item.dated().map_or(0, |(_, at)| at);
        self.bytes += bytes;
        self.count += 1;
        self.erasures += usize::from(item.kind() == Kind::Erasure);
        self.items.push_back(Some(Kept {
            item,
            epoch,
            settled,
            offers: 0,
            at,
            pushed: Instant::now(),
            bytes,
        }));
        self.evict(epoch)
    }

    /// Puts out what is too old or too much. Gives how much of it was not settled.
    pub(super) fn evict(&mut self, epoch: u64) -> u64 {
        let mut lost = 0;
        while let Some(front) = self.items.front() {
            let over = self.bytes > self.bytes_max || self.items.len() > RING_ENTRIES_MAX;
            let goes = front.as_ref().is_none_or(|kept| {
                over || (kept.settled
                    && kept.epoch >= epoch
                    && kept.pushed.elapsed() > self.age_max)
            });
            if !goes {
                break;
            }
            lost += u64::from(front.as_ref().is_some_and(|kept| !kept.settled));
            self.first += 1;
            if let Some(Some(kept)) = self.items.pop_front() {
                self.forget(&kept);
            }
        }
        lost
    }

    fn forget(&mut self, kept: &Kept) {
        self.bytes -= kept.bytes;
        self.count -= 1;
        self.erasures -= usize::from(kept.item.kind() == Kind::Erasure);
        if let Item::Player { name, player, .. } = &*kept.item
            && self.names.get(name) == Some(player)
        {
            self.names.remove(name);
        }
    }

    /// The number of a name, if an item says so.
    pub(super) fn number_of(&self, name: &PlayerName) -> Option<PlayerId> {
        self.names.get(name).copied()
    }

    /// A new epoch: settles what is known to be there, by the cuts of the partitions, and nothing else.
    pub(super) fn judge(&mut self, epoch: u64, cut_of: impl Fn(PlayerId) -> Cut) {
        for kept in self.items.iter_mut().flatten() {
            if kept.settled && kept.epoch == epoch {
                continue;
            }
            kept.settled = kept.settled
                && kept.item.dated().is_some_and(|(player, _)| {
                    let cut = cut_of(player);
                    kept.epoch == cut.of && kept.at < cut.ms
                });
            if kept.settled {
                kept.epoch = epoch;
            }
        }
    }

    /// What is to be offered, with the numbers that the answers are told by.
    pub(super) fn open(&self, kinds: impl Fn(Kind) -> bool) -> Vec<(u64, Arc<Item>)> {
        let numbered = (self.first..).zip(&self.items);
        numbered
            .filter_map(|(number, kept)| Some((number, kept.as_ref()?)))
            .filter(|(_, kept)| !kept.settled && kinds(kept.item.kind()))
            .map(|(number, kept)| (number, kept.item.clone()))
            .collect()
    }

    /// These are being offered.
    pub(super) fn offers(&mut self, items: &[(u64, Arc<Item>)]) {
        for (number, _) in items {
            if let Some(kept) = self.place(*number).and_then(Option::as_mut) {
                kept.offers = kept.offers.saturating_add(1);
            }
        }
    }

    /// Where the item with this number is, or was.
    fn place(&mut self, number: u64) -> Option<&mut Option<Kept>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.items.get_mut(at)
    }

    /// How many are to be offered.
    pub(super) fn open_count(&self) -> usize {
        let open = self.items.iter().flatten();
        open.filter(|kept| !kept.settled).count()
    }

    /// The store has an item in this epoch, by what was not done later than `at`; 0 where that is not known.
    ///
    /// What was brought back (`is_back`) was done later than at first: a failover may take it once more, so its age counts from
    /// now. So it does for what is found there after an offer whose answer was lost, for that may have brought it back. What was
    /// found there keeps its age: failovers that follow each other sooner than it runs out would else fill the ring with
    /// everything since the first of them, and each would offer all of it.
    pub(super) fn settle(&mut self, number: u64, epoch: u64, at: Millis, is_back: bool) {
        let Some(place) = self.place(number) else {
            return;
        };
        let Some(kept) = place else { return };
        (kept.settled, kept.epoch) = (true, epoch);
        kept.at = kept.at.max(at);
        let is_young_again = is_back || kept.offers > 1;
        kept.offers = 0;
        if is_young_again && let Some(mut kept) = place.take() {
            // In the order of ages: where it was it would keep all behind it.
            kept.pushed = Instant::now();
            self.items.push_back(Some(kept));
        }
    }

    /// Forgets an item that cannot come back.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(kept) = self.place(number).and_then(Option::take) {
            self.forget(&kept);
        }
    }

    /// Forgets everything about a player. Says whether there was anything, and how much that was not settled.
    pub(super) fn purge(&mut self, player: PlayerId) -> (bool, u64) {
        let of_player = |kept: &Option<Kept>| {
            let of = kept.as_ref().and_then(|kept| kept.item.player());
            of == Some(player)
        };
        let (mut any, mut open) = (false, 0);
        for at in 0..self.items.len() {
            if of_player(&self.items[at])
                && let Some(kept) = self.items[at].take()
            {
                any = true;
                open += u64::from(!kept.settled);
                self.forget(&kept);
            }
        }
        (any, open)
    }

    /// Everything, with its epochs; 0 for what was done later than it says itself, so that it is offered whatever
    /// the next cut is.
    pub(super) fn all(&self) -> Vec<(u64, Arc<Item>)> {
        let epoch = |kept: &Kept| match kept.item.dated() {
            Some((_, at)) if kept.at > at => 0,
            _ => kept.epoch,
        };
        let kept = self.items.iter().flatten();
        kept.map(|kept| (epoch(kept), kept.item.clone())).collect()
    }

    /// Forgets everything: another store is used from now on.
    pub(super) fn clear(&mut self) {
        self.first += self.items.len() as u64;
        self.items.clear();
        self.names.clear();
        (self.count, self.bytes, self.erasures) = (0, 0, 0);
    }

    /// Erasures held.
    pub(super) fn erasures(&self) -> usize {
        self.erasures
    }

    /// Items and bytes held.
    pub(super) fn holds(&self) -> (usize, usize) {
        (self.count, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::entry::Find;
    use crate::game::ids::{FindId, HuntId};

    const ADA: PlayerId = PlayerId(1);

    fn find(player: PlayerId, at: Millis) -> Arc<Item> {
        let find = Find {
            seq: 1,
            id: FindId::new("f").unwrap(),
            treasure: None,
            coins: 1,
            found_at: at,
            expires_at: at + 1,
            repeatable: true,
        };
        let hunt = HuntId::new("h").unwrap();
        Arc::new(Item::Find {
            hunt,
            player,
            find,
            at,
        })
    }

    fn named(name: &str, player: PlayerId) -> Arc<Item> {
        Arc::new(Item::Player {
            name: PlayerName::new(name).unwrap(),
            player,
            issued_at: None,
            at: None,
        })
    }

    fn ring(age: Duration) -> Ring {
        Ring::new(1 << 20, age)
    }

    fn open(ring: &mut Ring) -> Vec<u64> {
        let open = ring.open(|_| true);
        open.into_iter()
            .filter_map(|(_, item)| item.dated().map(|(_, at)| at))
            .collect()
    }

    #[test]
    fn what_is_young_again_does_not_keep_what_is_old() {
        let mut ring = ring(Duration::ZERO);
        ring.push(find(ADA, 1), 7, false);
        for at in 2..5 {
            ring.push(find(PlayerId(2), at), 7, false);
        }
        ring.age_max = Duration::from_secs(60);
        // The first had to be offered twice, the others' primary answered at once.
        let open = ring.open(|_| true);
        assert_eq!(open.len(), 4);
        ring.offers(&open);
        for number in 1..4 {
            ring.settle(number, 8, 0, false);
        }
        let open = ring.open(|_| true);
        ring.offers(&open);
        assert_eq!(
            open.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            [0]
        );
        ring.settle(0, 8, 0, false);
        assert_eq!(ring.holds().0, 4);
        for kept in ring.items.iter_mut().flatten() {
            if kept.at > 1 {
                kept.pushed = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
            }
        }
        ring.evict(8);
        let left: Vec<_> = ring
            .all()
            .into_iter()
            .filter_map(|(_, item)| item.dated())
            .collect();
        assert_eq!(left, [(ADA, 1)]);
    }

    #[test]
    fn what_lies_before_the_cut_survived_and_the_rest_is_offered() {
        let mut ring = ring(Duration::MAX);
        for at in 1..=5 {
            ring.push(find(ADA, at), 7, true);
        }
        ring.push(find(ADA, 2), 6, true);
        ring.judge(8, |_| Cut { ms: 3, of: 7 });
        assert_eq!(
            open(&mut ring),
            [3, 4, 5, 2],
            "one is of an epoch before that"
        );
        // A second failover before they were offered: what was lost stays lost, wherever that cut is.
        ring.judge(9, |_| Cut { ms: 100, of: 8 });
        assert_eq!(open(&mut ring), [3, 4, 5, 2]);
        let first = ring.open(|_| true)[0].0;
        ring.settle(first, 9, 0, false);
        assert_eq!(open(&mut ring), [4, 5, 2]);
        ring.judge(9, |_| Cut::default());
        assert_eq!(open(&mut ring), [4, 5, 2], "the same epoch once more");
    }

    #[test]
    fn what_was_brought_back_is_as_young_as_that() {
        let mut ring = ring(Duration::MAX);
        ring.push(find(ADA, 100), 7, true);
        ring.push(find(ADA, 110), 7, true);
        ring.judge(8, |_| Cut { ms: 90, of: 7 });
        for (number, _) in ring.open(|_| true) {
            ring.settle(number, 8, 200 + number, true);
        }
        assert_eq!(open(&mut ring), [0; 0]);
        assert!(
            ring.all().iter().all(|(epoch, _)| *epoch == 0),
            "a journal that is read after this would not know"
        );
        // The second failover's cut is after what was done, and before it was brought back.
        ring.judge(9, |_| Cut { ms: 201, of: 8 });
        assert_eq!(open(&mut ring), [110]);
    }

    #[test]
    fn age_puts_out_only_what_is_settled() {
        let mut ring = ring(Duration::ZERO);
        ring.push(find(ADA, 1), 8, false);
        ring.evict(8);
        assert_eq!(open(&mut ring), [1]);
        let number = ring.open(|_| true)[0].0;
        ring.settle(number, 8, 0, false);
        // Any age is too old.
        std::thread::sleep(Duration::from_nanos(1));
        ring.evict(8);
        assert_eq!(ring.holds(), (0, 0));
    }

    #[test]
    fn only_what_was_brought_back_is_young_again() {
        // The last: an answer was lost, so the first offer may have brought it back.
        for (is_back, offers, left) in [(true, 1, 1), (false, 1, 0), (false, 2, 1)] {
            let mut ring = ring(Duration::from_millis(500));
            ring.push(find(ADA, 1), 8, false);
            let open = ring.open(|_| true);
            for _ in 0..offers {
                ring.offers(&open);
            }
            std::thread::sleep(Duration::from_millis(501));
            ring.settle(open[0].0, 8, 0, is_back);
            ring.evict(8);
            assert_eq!(ring.holds().0, left, "{is_back} {offers}");
        }
    }

    #[test]
    fn it_is_bounded_in_bytes_and_says_what_it_cost() {
        let one = find(ADA, 1).bytes();
        let mut ring = Ring::new(3 * one, Duration::MAX);
        for at in 1..=3 {
            assert_eq!(ring.push(find(ADA, at), 7, true), 0);
        }
        ring.judge(8, |_| Cut::default());
        assert_eq!(ring.push(find(ADA, 4), 8, true), 1);
        assert_eq!(ring.holds(), (3, 3 * one));
    }

    #[test]
    fn a_name_is_kept_once_and_goes_with_its_player() {
        let mut ring = ring(Duration::MAX);
        let name = PlayerName::new("ada").unwrap();
        ring.push(named("ada", ADA), 7, true);
        ring.push(named("ada", ADA), 7, true);
        ring.push(find(ADA, 1), 7, true);
        ring.push(find(PlayerId(2), 2), 7, true);
        assert_eq!((ring.number_of(&name), ring.holds().0), (Some(ADA), 3));
        let number = ring.all().len();
        assert_eq!(number, 3);
        ring.judge(8, |_| Cut::default());
        assert_eq!(ring.purge(ADA), (true, 2));
        assert_eq!((ring.number_of(&name), open(&mut ring)), (None, vec![2]));
        assert_eq!(ring.purge(ADA), (false, 0));
        ring.clear();
        assert_eq!(ring.holds(), (0, 0));
    }
}
