//! Turns for the reads that everybody asks for at once after a failover: wallets and players' numbers. A new primary must not
//! be flooded with them; and on a cluster, those that wait for a primary that is away must not take the turns of the others'.

use std::sync::Arc;
use tokio::sync::Semaphore;
use trove_streams::Partition;

/// Such reads that one instance has under way at a time; on a cluster, where each partition has its share of them, at least
/// one a partition.
pub const RELOADS_AT_ONCE_MAX: usize = 256;

/// See the module.
pub(super) struct Turns {
    /// One of all partitions together, or one each.
    by_partition: Vec<Arc<Semaphore>>,
    /// For reads of several partitions at once, which a server behind any of them may hold up.
    across: Arc<Semaphore>,
}

impl Turns {
    pub(super) fn new(partitions: u16, is_cluster: bool) -> Self {
        let groups = if is_cluster {
            usize::from(partitions).max(1)
        } else {
            1
        };
        let each = (RELOADS_AT_ONCE_MAX / groups).max(1);
        Self {
            by_partition: (0..groups)
                .map(|_| Arc::new(Semaphore::new(each)))
                .collect(),
            across: Arc::new(Semaphore::new(RELOADS_AT_ONCE_MAX)),
        }
    }

    /// The turns for reads of one partition.
    pub(super) fn of(&self, partition: Partition) -> Arc<Semaphore> {
        let at = usize::from(partition.index()) % self.by_partition.len();
        self.by_partition[at].clone()
    }

    /// The turns for a read of these partitions.
    pub(super) fn of_all(&self, mut partitions: impl Iterator<Item = Partition>) -> Arc<Semaphore> {
        match partitions.next() {
            Some(first) if partitions.all(|other| other == first) => self.of(first),
            _ => self.across.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trove_streams::Partitions;

    #[test]
    fn a_partition_whose_reads_wait_takes_no_turn_of_another_on_a_cluster() {
        let partitions = Partitions::new(4).unwrap();
        let [one, other] = [0, 1].map(|index| partitions.get(index).unwrap());
        let turns = Turns::new(4, true);
        assert_eq!(turns.of(one).available_permits(), RELOADS_AT_ONCE_MAX / 4);
        let of_one = turns.of(one);
        let _taken: Vec<_> = std::iter::from_fn(|| of_one.try_acquire().ok()).collect();
        assert_eq!(turns.of_all([one, one].into_iter()).available_permits(), 0);
        assert!(turns.of(other).available_permits() > 0);
        assert!(turns.of_all([one, other].into_iter()).available_permits() > 0);
        assert_eq!(Turns::new(256, true).of(one).available_permits(), 1);
    }

    #[test]
    fn one_server_s_turns_are_shared_by_all_partitions() {
        let partitions = Partitions::new(4).unwrap();
        let [one, other] = [0, 1].map(|index| partitions.get(index).unwrap());
        let turns = Turns::new(4, false);
        let of_one = turns.of(one);
        let taken: Vec<_> = std::iter::from_fn(|| of_one.try_acquire().ok()).collect();
        assert_eq!(taken.len(), RELOADS_AT_ONCE_MAX);
        assert_eq!(turns.of(other).available_permits(), 0);
    }
}
