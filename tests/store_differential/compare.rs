//! Everything that can be read, side by side.

use crate::bench::Bench;
use trove::game::entry::Entry;
use trove::game::ids::PlayerId;

impl Bench {
    /// Compares everything that can be read.
    pub(crate) async fn compare(&mut self, histories: &mut [Vec<Entry>]) {
        let hunt = self.hunt();
        for side in &self.sides {
            let hunts = side.store.hunts().await.unwrap();
            assert_eq!(hunts[0].1, self.model.totals, "{}", side.name);
            for audit in side.store.verify(None).await.unwrap() {
                assert!(audit.holds(), "{}: {audit:#?}", side.name);
            }
            for (player, history) in histories.iter_mut().enumerate() {
                let wallet = side
                    .store
                    .wallet(&hunt, side.numbers[player])
                    .await
                    .unwrap();
                let expected = self
                    .model
                    .players
                    .get(&PlayerId(player as u64))
                    .map(|player| player.wallet);
                assert_eq!(
                    wallet,
                    expected.unwrap_or_default(),
                    "{} player {player}",
                    side.name
                );
                let mut is = side
                    .store
                    .history(&hunt, side.numbers[player], u64::MAX, usize::MAX)
                    .await
                    .unwrap();
                is.reverse();
                assert_eq!(is.len() as u64, wallet.seq);
                if side.name == self.sides[0].name {
                    *history = is;
                    continue;
                }
                assert_eq!(is, *history, "{} player {player}", side.name);
            }
            // Pages from anywhere, also across the links that skip entries.
            for (player, history) in histories
                .iter()
                .enumerate()
                .filter(|(_, history)| history.len() > 40)
            {
                let before = 1 + history.len() / 3;
                let page = side
                    .store
                    .history(&hunt, side.numbers[player], before as u64, 7)
                    .await
                    .unwrap();
                let expected: Vec<Entry> = history[..before - 1]
                    .iter()
                    .rev()
                    .take(7)
                    .cloned()
                    .collect();
                assert_eq!(
                    page, expected,
                    "{} player {player} before {before}",
                    side.name
                );
            }
        }
    }
}
