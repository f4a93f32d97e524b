//! What can be read: wallets, histories, exports, audits, the feed.

use super::world::*;
use std::collections::BTreeMap;
use trove::game::entry::Entry;
use trove::game::ids::{PlayerId, PlayerName};
use trove::game::wallet::Wallet;
use trove::store::{ExportRow, FeedEvent, Health, Opening};

pub(crate) async fn opening_a_player_again_gives_the_same_number<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let bob = world.player("bob").await;
    assert_ne!(ada, bob);
    world.fixture.restart(1_000).await;
    let openings = ["ada", "new", "bob", "ada", "new"].map(|name| Opening {
        name: PlayerName::new(name).unwrap(),
        issued_at: None,
        known: None,
    });
    let opened = world.store().open_players(openings.into()).await.unwrap();
    let opened: Vec<PlayerId> = opened.into_iter().map(|player| player.unwrap()).collect();
    assert_eq!((opened[0], opened[2], opened[3]), (ada, bob, ada));
    assert_eq!(opened[1], opened[4]);
    assert!(
        world
            .store()
            .open_players(Vec::new())
            .await
            .unwrap()
            .is_empty()
    );
}

pub(crate) async fn history_is_paged_from_the_newest<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    for n in 1..=7 {
        world.adjust(ada, adjustment(n, &format!("k{n}"))).await;
    }
    // Neighbours must not show.
    world.adjust(PlayerId(ada.0 - 1), adjustment(1, "k")).await;
    world.adjust(PlayerId(ada.0 + 1), adjustment(1, "k")).await;
    let page = |before, limit| world.store().history(&world.hunt, ada, before, limit);
    let seqs = |entries: Vec<Entry>| -> Vec<u64> { entries.iter().map(|e| e.seq).collect() };
    assert_eq!(seqs(page(u64::MAX, 3).await.unwrap()), [7, 6, 5]);
    assert_eq!(seqs(page(5, 3).await.unwrap()), [4, 3, 2]);
    assert_eq!(seqs(page(2, 3).await.unwrap()), [1]);
    assert_eq!(seqs(page(8, 100).await.unwrap()).len(), 7);
    for (before, limit) in [(1, 3), (0, 3), (9, 0)] {
        assert!(page(before, limit).await.unwrap().is_empty());
    }
}

pub(crate) async fn a_wallets_sequence_grows_by_one_an_entry<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.find(ada, of("b")).await.unwrap();
    world.fixture.advance(1_000);
    world.find(ada, of("c")).await.unwrap();
    assert_eq!(world.wallet(ada).await.seq, 3);
    assert_eq!(world.wallet(ada).await.shown_seq, 0);
    world.fixture.advance(WINDOW_MS);
    let wallet = world.poll(ada).await.wallet;
    assert_eq!((wallet.seq, wallet.shown_seq), (6, 6));
    let history = world.history(ada).await;
    let seqs: Vec<u64> = history.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    assert!(history.windows(2).all(|pair| pair[0].at <= pair[1].at));
}

pub(crate) async fn an_export_has_every_wallet_and_every_entry<F: Fixture>() {
    let world = World::<F>::new().await;
    world.open_hunt(spec("other")).await;
    let ada = world.player("ada").await;
    let mut finds: Vec<_> = (0..1_500)
        .map(|n| (PlayerId(n % 200), coins(n, &format!("id-{n}"))))
        .collect();
    finds.push((ada, of("a")));
    world.record(finds).await;
    let mut wallets: BTreeMap<PlayerId, (Wallet, Option<PlayerName>)> = BTreeMap::new();
    let mut entries: BTreeMap<PlayerId, Vec<Entry>> = BTreeMap::new();
    for row in world.export().await {
        match row {
            ExportRow::Wallet {
                player,
                name,
                wallet,
            } => assert!(wallets.insert(player, (wallet, name)).is_none()),
            ExportRow::Entry { player, entry } => {
                assert!(wallets.contains_key(&player), "the wallet comes first");
                entries.entry(player).or_default().push(entry);
            }
        }
    }
    assert_eq!(wallets.len(), 201);
    assert_eq!(wallets[&ada].1, PlayerName::new("ada").ok());
    for (player, (wallet, _)) in &wallets {
        assert_eq!(*wallet, world.wallet(*player).await);
        assert_eq!(entries[player], world.history(*player).await);
    }
}

pub(crate) async fn an_export_that_nobody_reads_ends<F: Fixture>() {
    let world = World::<F>::new().await;
    let finds = (0..4_000)
        .map(|n| (PlayerId(n % 10), coins(1, &format!("id-{n}"))))
        .collect();
    world.record(finds).await;
    // More exports than may run at a time, each dropped after its first batch or before.
    for n in 0..20 {
        let mut receiver = world.store().export(&world.hunt).await.unwrap();
        if n % 2 == 0 {
            receiver.recv().await.unwrap().unwrap();
        }
    }
    world.verify().await;
    assert_eq!(world.export().await.len(), 4_010);
}

pub(crate) async fn the_audit_covers_all_hunts_or_one<F: Fixture>() {
    let world = World::<F>::new().await;
    world.open_hunt(spec("other")).await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.find(ada, of("b")).await.unwrap();
    world.poll(ada).await;
    let audits = world.store().verify(None).await.unwrap();
    assert_eq!(audits.len(), 2);
    let one = world.store().verify(Some(&world.hunt)).await.unwrap();
    assert_eq!((one.len(), one[0].wallets, one[0].entries), (1, 1, 4));
    assert_eq!((one[0].sums.recorded, one[0].sums.credited), (30, 30));
    assert!(one[0].holds() && one[0].discrepancies.is_empty());
}

pub(crate) async fn hunts_lists_each_hunt_with_its_totals<F: Fixture>() {
    let world = World::<F>::new().await;
    world.open_hunt(spec("other")).await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    let hunts = world.hunts().await;
    assert_eq!(hunts["h"].1.pending, 10);
    assert_eq!(hunts["other"].1.recorded, 0);
    assert_eq!(hunts["other"].0.spec, spec("other"));
}

pub(crate) async fn the_feed_tells_of_wallets_hunts_and_erasures_in_order<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    let mut feed = world.store().feed().unwrap();
    let mut events = Vec::new();
    world.find(ada, of("a")).await.unwrap();
    world.poll(ada).await;
    world.open_hunt(spec("other")).await;
    let name = PlayerName::new("ada").unwrap();
    world.store().erase(&name).await.unwrap();
    while !matches!(events.last(), Some(FeedEvent::Erased { .. })) {
        events.extend(feed.recv().await.unwrap());
    }
    let mut told = Vec::new();
    for event in &events {
        told.push(match event {
            FeedEvent::Wallet { player, wallet, .. } => {
                assert_eq!(*player, ada);
                format!("wallet {} {}", wallet.seq, wallet.balance)
            }
            FeedEvent::Hunt(hunt) => format!("hunt {} {}", hunt.spec.id, hunt.generation),
            FeedEvent::Erased { player } => {
                assert_eq!(*player, ada);
                "erased".into()
            }
            void @ (FeedEvent::Reload { .. } | FeedEvent::Reset { .. }) => panic!("{void:?}"),
        });
    }
    // Of several states in a row only the last need be told: what is told is in order, and the last states are.
    let all = [
        "wallet 1 0",
        "wallet 2 10",
        "hunt other 1",
        "hunt other 2",
        "erased",
    ];
    // Primaries of a cluster tell of what each holds by itself: a player's wallet and erasure, or hunts.
    let is_hunt = |event: &str| event.starts_with("hunt");
    for hunts in [true, false] {
        let ordered = |event: &str| F::HAS_ONE_FEED || is_hunt(event) == hunts;
        let mut rest = all.iter();
        let mut told = told.iter().filter(|event| ordered(event));
        assert!(
            told.all(|event| rest.any(|known| known == event)),
            "{events:?}"
        );
    }
    for last in ["wallet 2 10", "hunt other 2", "erased"] {
        assert!(
            told.iter().any(|event| event == last),
            "{last} is not among {told:?}"
        );
    }
    // A watcher who has gone holds nobody up.
    drop(feed);
    for n in 0..10 {
        world.find(PlayerId(n), of("a")).await.unwrap();
    }
}

pub(crate) async fn there_is_one_feed<F: Fixture>() {
    let world = World::<F>::new().await;
    assert!(world.store().feed().is_some());
    assert!(world.store().feed().is_none());
}

pub(crate) async fn the_store_is_up_and_its_clock_does_not_run_backwards<F: Fixture>() {
    let mut world = World::<F>::new().await;
    assert_eq!(world.store().health(), Health::Up);
    assert_eq!(world.store().now(), START);
    let epoch = world.store().epoch();
    world.fixture.advance(1_234);
    assert_eq!(world.store().now(), START + 1_234);
    if world.fixture.restart(10).await {
        assert_eq!(world.store().now(), START + 1_244);
        assert_eq!(world.store().epoch(), epoch, "nothing was cut");
    }
}
