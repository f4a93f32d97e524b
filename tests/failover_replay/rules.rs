//! The rules by which what was lost comes back.

use super::*;

const ADA: PlayerId = PlayerId(7);
const BEN: PlayerId = PlayerId(8);

#[tokio::test]
async fn what_was_lost_comes_back_and_what_survived_is_untouched() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    find(&store, ADA, of("a")).await;
    find(&store, BEN, of("a")).await;
    assert_eq!(credit(&store, BEN).await.balance, 10);
    world.save();
    let before = kinds(&store, BEN).await;
    // The credit of a find that survives, a find with its credit, a find alone, and a grant.
    assert_eq!(credit(&store, ADA).await.balance, 10);
    find(&store, ADA, of("b")).await;
    assert_eq!(credit(&store, ADA).await.balance, 30);
    find(&store, ADA, with_id("one")).await;
    let granted = store.adjust(&hunt(), ADA, adjustment(5, "k")).await;
    granted.unwrap().outcome.unwrap();
    let (was, epoch) = (wallet(&store, ADA).await, store.epoch());
    world.lose();
    recovered(&store, epoch).await;
    let is = wallet(&store, ADA).await;
    assert_eq!(
        (is.balance, is.pending_coins),
        (was.balance, was.pending_coins)
    );
    assert_eq!(is.balance, 35);
    assert_eq!(kinds(&store, BEN).await, before);
    let count = |kind| returned(&store, kind);
    assert_eq!(
        [
            count(ReplayKind::Find),
            count(ReplayKind::Credit),
            count(ReplayKind::Adjustment)
        ],
        [2, 2, 1]
    );
    assert_eq!(credit(&store, ADA).await.balance, 38);
    verify(&store).await;
    // Asked again, the same find is a repeat.
    find(&store, ADA, with_id("one")).await;
    assert_eq!(credit(&store, ADA).await.balance, 38);
    verify(&store).await;
}

#[tokio::test]
async fn a_restart_that_loses_nothing_brings_nothing_back() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    let ada = open(&store, "ada", START).await.unwrap();
    for nth in 0..20 {
        find(&store, ada, with_id(&nth.to_string())).await;
        credit(&store, ada).await;
        world.advance(10);
    }
    let (before, epoch) = (kinds(&store, ada).await, store.epoch());
    world.save();
    world.lose();
    recovered(&store, epoch).await;
    assert_eq!(kinds(&store, ada).await, before);
    assert_eq!(store.replay_counts().replayed, [0; 7]);
    assert_eq!(store.replay_counts().dropped, [0; 6]);
    verify(&store).await;
}

#[tokio::test]
async fn a_credit_comes_back_though_its_window_has_closed_meanwhile() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    find(&store, ADA, of("a")).await;
    world.save();
    world.advance(WINDOW_MS);
    assert_eq!(credit(&store, ADA).await.balance, 10);
    find(&store, BEN, of("a")).await;
    assert_eq!(credit(&store, BEN).await.balance, 10);
    world.time.advance(WINDOW_MS + 1);
    let epoch = store.epoch();
    world.lose();
    recovered(&store, epoch).await;
    assert_eq!(kinds(&store, ADA).await, "fC");
    assert_eq!(kinds(&store, BEN).await, "fC");
    let entries = history(&store, ADA).await;
    let Change::Replay(find, replayed) = &entries[1].change else {
        panic!("{entries:?}")
    };
    assert_eq!(replayed.credited_at, find.expires_at);
    assert!(entries[1].at > find.expires_at);
    assert_eq!(wallet(&store, ADA).await.balance, 10);
    assert_eq!(wallet(&store, BEN).await.balance, 10);
    verify(&store).await;
}

#[tokio::test]
async fn a_credit_of_a_find_that_has_expired_since_reinstates_it() {
    let mut world = World::new();
    let (early, late) = (
        world.connect().await,
        // It has no recovery to wait for, so it expires at once what the other has not offered yet.
        world.connect().await,
    );
    open_hunt(&early, "h").await;
    find(&early, ADA, of("a")).await;
    world.save();
    assert_eq!(credit(&late, ADA).await.balance, 10);
    drop(early);
    let hasty = Options {
        recovery: Duration::ZERO,
        ..world.options()
    };
    let epoch = late.epoch();
    // The instance that holds the credit is held up until the other has expired the find.
    let () = world.server.run(&["CONFIG", "SET", "requirepass", ""]);
    world.time.advance(WINDOW_MS + 1);
    world.server.kill();
    let saved = world.server.copy_of_saved();
    let mut other = World {
        server: saved,
        time: world.time.clone(),
    };
    other.tell_time(other.now());
    let expirer = other.connect_with(hasty).await;
    until("the find has expired", async || {
        (kinds(&expirer, ADA).await == "fe").then_some(())
    })
    .await;
    drop(expirer);
    other.save();
    world.server.take_saved_of(&mut other.server);
    world.tell_time(world.now());
    recovered(&late, epoch).await;
    assert_eq!(kinds(&late, ADA).await, "feR");
    assert_eq!(wallet(&late, ADA).await.balance, 10);
    assert_eq!(returned(&late, ReplayKind::Credit), 1);
    verify(&late).await;
    // An operator's reinstatement does not credit it twice.
    let all = late.reinstate(&hunt(), 0, u64::MAX).await.unwrap();
    assert_eq!(all.finds, 0);
    verify(&late).await;
}

#[tokio::test]
async fn a_closed_hunt_takes_back_what_was_lost_and_an_archived_one_drops_it() {
    let mut world = World::new();
    let store = world.connect().await;
    for id in ["h", "gone"] {
        open_hunt(&store, id).await;
    }
    world.save();
    let gone = HuntId::new("gone").unwrap();
    find(&store, ADA, of("a")).await;
    credit(&store, ADA).await;
    find(&store, BEN, of("b")).await;
    try_find(&store, &gone, ADA, of("a"))
        .await
        .unwrap()
        .unwrap();
    store.credit(&gone, ADA).await.unwrap();
    step(&store, "h", LifeStep::Close).await;
    step(&store, "gone", LifeStep::Close).await;
    step(&store, "gone", LifeStep::Archive).await;
    let epoch = store.epoch();
    world.lose();
    recovered(&store, epoch).await;
    // Each change comes back: one was closed, the other closed and archived.
    assert_eq!(returned(&store, ReplayKind::Hunt), 3);
    assert_eq!(wallet(&store, ADA).await.balance, 10);
    assert_eq!(wallet(&store, BEN).await.pending_coins, 20);
    assert_eq!(dropped(&store, Dropped::Archived), 2);
    let refused = try_find(&store, &hunt(), BEN, of("a")).await.unwrap();
    assert!(refused.is_err(), "the hunt is closed again: {refused:?}");
    verify(&store).await;
}

#[tokio::test]
async fn a_hunt_that_was_made_and_lost_comes_back_with_its_finds() {
    let mut world = World::new();
    let (one, other) = (world.connect().await, world.connect().await);
    open_hunt(&one, "old").await;
    world.save();
    open_hunt(&one, "h").await;
    until("the other sees the hunt", async || {
        other.wallet(&hunt(), ADA).await.ok()
    })
    .await;
    // Another instance than the one that holds the hunt.
    find(&other, ADA, of("a")).await;
    credit(&other, ADA).await;
    let epoch = one.epoch();
    world.lose();
    recovered(&one, epoch).await;
    recovered(&other, epoch).await;
    until("the credit is back", async || {
        let wallet = other.wallet(&hunt(), ADA).await.ok()?;
        (wallet.balance == 10).then_some(())
    })
    .await;
    verify(&one).await;
    find(&one, ADA, of("b")).await;
    assert_eq!(credit(&one, ADA).await.balance, 30);
    verify(&other).await;
}

#[tokio::test]
async fn what_was_erased_stays_erased() {
    let mut world = World::new();
    let (one, other) = (world.connect().await, world.connect().await);
    let mut feed = other.feed().unwrap();
    open_hunt(&one, "h").await;
    let name = PlayerName::new("ada").unwrap();
    let ada = open(&one, "ada", START).await.unwrap();
    find(&other, ada, of("a")).await;
    assert_eq!(open(&other, "ada", START).await.unwrap(), ada);
    world.save();
    find(&other, ada, of("b")).await;
    credit(&other, ada).await;
    assert!(one.erase(&name).await.unwrap().existed);
    // The other's ring is purged by what the feed tells.
    let told = async {
        while let Some(events) = feed.recv().await {
            let erased = |event: &FeedEvent| matches!(event, FeedEvent::Erased { .. });
            if events.iter().any(erased) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    let epoch = one.epoch();
    world.lose();
    recovered(&one, epoch).await;
    recovered(&other, epoch).await;
    assert_eq!(returned(&one, ReplayKind::Erasure), 1);
    assert!(open(&one, "ada", START).await.is_err());
    let refused = try_find(&one, &hunt(), ada, of("b")).await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(returned(&other, ReplayKind::Credit), 0);
    // A token from after the erasure opens a new wallet, also after the failover.
    let again = open(&one, "ada", START + 1_000_000).await.unwrap();
    assert_ne!(again, ada);
    verify(&one).await;
}

#[tokio::test]
async fn a_revocation_waits_for_the_credits_that_it_takes_from() {
    let mut world = World::new();
    let (one, other) = (world.connect().await, world.connect().await);
    open_hunt(&one, "h").await;
    find(&one, ADA, of("a")).await;
    world.save();
    assert_eq!(credit(&one, ADA).await.balance, 10);
    let taken = other.adjust(&hunt(), ADA, adjustment(-4, "k")).await;
    taken.unwrap().outcome.unwrap();
    let epoch = one.epoch();
    world.lose();
    recovered(&one, epoch).await;
    recovered(&other, epoch).await;
    until("both are back", async || {
        (wallet(&one, ADA).await.balance == 6).then_some(())
    })
    .await;
    verify(&one).await;
}

#[tokio::test]
async fn a_reinstatement_that_was_lost_comes_back_also_when_the_expiry_was_lost_with_it() {
    for save_after_expiry in [false, true] {
        let mut world = World::new();
        let store = world.connect().await;
        open_hunt(&store, "h").await;
        find(&store, ADA, of("a")).await;
        world.save();
        // A stop of the clock is an outage on record.
        world.time.set_wall(world.now() + WINDOW_MS + 1);
        world.tell_time(world.now());
        until("the find expires by the outage", async || {
            let entries = history(&store, ADA).await;
            let by_outage = entries.iter().any(|entry| {
                matches!(
                    entry.change,
                    Change::Expire(_, trove::game::entry::ExpiryReason::StoreOutage)
                )
            });
            by_outage.then_some(())
        })
        .await;
        if save_after_expiry {
            world.save();
        }
        let done = store.reinstate(&hunt(), 0, u64::MAX).await.unwrap();
        assert_eq!(done.finds, 1);
        let epoch = store.epoch();
        world.lose();
        recovered(&store, epoch).await;
        assert_eq!(kinds(&store, ADA).await, "fer");
        assert_eq!(wallet(&store, ADA).await.balance, 10);
        verify(&store).await;
        let again = store.reinstate(&hunt(), 0, u64::MAX).await.unwrap();
        assert_eq!(again.finds, 0);
    }
}

#[tokio::test]
async fn a_second_failover_before_everything_is_back_loses_nothing_either() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    world.save();
    for nth in 0..40 {
        find(&store, PlayerId(nth), of("a")).await;
        credit(&store, PlayerId(nth)).await;
        world.advance(1);
    }
    for _ in 0..3 {
        let epoch = store.epoch();
        world.lose();
        until("the next epoch has begun", async || {
            (store.epoch() > epoch).then_some(())
        })
        .await;
    }
    let epoch = store.epoch();
    recovered(&store, epoch - 1).await;
    for nth in 0..40 {
        assert_eq!(wallet(&store, PlayerId(nth)).await.balance, 10, "{nth}");
    }
    verify(&store).await;
}

#[tokio::test]
async fn nothing_expires_while_what_was_lost_may_come_back() {
    let mut world = World::new();
    let options = Options {
        recovery: Duration::from_secs(2),
        ..world.options()
    };
    let store = world.connect_with(options).await;
    open_hunt(&store, "h").await;
    find(&store, ADA, of("a")).await;
    world.save();
    let epoch = store.epoch();
    world.time.advance(WINDOW_MS + 1);
    world.lose();
    until("a new epoch begins", async || {
        (store.epoch() > epoch).then_some(())
    })
    .await;
    // A poll neither expires it nor credits it.
    while store.health() != Health::Up {
        if let Ok(credited) = store.credit(&hunt(), ADA).await
            && store.health() == Health::Recovering
        {
            assert!(credited.entries.is_empty(), "{credited:?}");
            assert_eq!(credited.wallet.pending_finds, 1);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until("it expires afterwards", async || {
        (kinds(&store, ADA).await == "fe").then_some(())
    })
    .await;
    verify(&store).await;
}

#[tokio::test]
async fn the_ring_is_bounded_and_what_it_cannot_hold_is_counted_when_it_is_lost() {
    let mut world = World::new();
    let options = Options {
        replay_bytes_max: 4_000,
        ..world.options()
    };
    let store = world.connect_with(options).await;
    open_hunt(&store, "h").await;
    world.save();
    for nth in 0..100 {
        find(&store, PlayerId(nth), of("a")).await;
    }
    let counts = store.replay_counts();
    assert!(counts.bytes <= 4_000 && counts.items > 3, "{counts:?}");
    let epoch = store.epoch();
    world.lose();
    recovered(&store, epoch).await;
    let back = returned(&store, ReplayKind::Find);
    assert!(
        back > 3 && back <= counts.items as u64,
        "{back} of {counts:?}"
    );
    verify(&store).await;
}

/// What comes back when the new primary's clock is another.
async fn with_the_clock_stepped(step_ms: i64) {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    find(&store, ADA, of("a")).await;
    world.save();
    world.advance(1_000);
    assert_eq!(credit(&store, ADA).await.balance, 10);
    find(&store, BEN, of("b")).await;
    let epoch = store.epoch();
    world.server.start_again();
    // Only the server's clock: what this process reckons is corrected by what it sees there.
    world
        .time
        .set_wall(world.now().saturating_add_signed(step_ms));
    world.tell_time(world.now());
    recovered(&store, epoch).await;
    assert_eq!(wallet(&store, ADA).await.balance, 10);
    let entries = history(&store, ADA).await;
    assert!(entries.is_sorted_by_key(|entry| entry.at), "{entries:?}");
    verify(&store).await;
    if step_ms > 0 {
        // Its window lies behind the step: nobody could poll, so it is an operator's to give back.
        until("what ran out by the step has expired", async || {
            (kinds(&store, BEN).await == "fe").then_some(())
        })
        .await;
        assert_eq!(
            store.reinstate(&hunt(), 0, u64::MAX).await.unwrap().finds,
            1
        );
    } else {
        assert_eq!(credit(&store, BEN).await.balance, 20);
    }
    // The store works on.
    find(&store, ADA, with_id("after")).await;
    assert_eq!(credit(&store, ADA).await.balance, 13);
    verify(&store).await;
}

#[tokio::test]
async fn a_new_primary_whose_clock_is_ten_minutes_ahead_gets_everything_back() {
    with_the_clock_stepped(600_000).await;
}

#[tokio::test]
async fn a_new_primary_whose_clock_is_ten_minutes_behind_gets_everything_back() {
    with_the_clock_stepped(-600_000).await;
}

#[tokio::test]
async fn what_was_brought_back_and_is_lost_once_more_comes_back_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let options = Options {
        journal_dir: Some(dir.path().to_owned()),
        ..world.options()
    };
    let store = world.connect_with(options.clone()).await;
    open_hunt(&store, "h").await;
    world.save();
    find(&store, ADA, of("a")).await;
    credit(&store, ADA).await;
    drop(store);
    // The find is lost; somebody else plays on, and that survives what follows.
    world.lose();
    world.advance(1_000);
    let other = world.connect().await;
    find(&other, ADA, of("b")).await;
    world.save();
    // It comes back, later than what survives; and is lost again.
    let store = until("the journal is let go", async || {
        RedisStore::connect(&world.server.url(), options.clone())
            .await
            .ok()
    })
    .await;
    until("the find is back", async || {
        let seen = store.wallet(&hunt(), ADA).await.ok()?;
        (store.health() == Health::Up && seen.balance == 10).then_some(())
    })
    .await;
    let epoch = store.epoch();
    world.lose();
    recovered(&store, epoch).await;
    assert_eq!(credit(&store, ADA).await.balance, 30);
    verify(&store).await;
}

#[tokio::test]
async fn a_find_whose_first_answer_never_came_is_kept_by_whoever_answered_it_again() {
    let mut world = World::new();
    let first = world.connect().await;
    open_hunt(&first, "h").await;
    let second = world.connect().await;
    world.save();
    find(&first, ADA, with_id("x")).await;
    first
        .adjust(&hunt(), ADA, adjustment(5, "key"))
        .await
        .unwrap()
        .outcome
        .unwrap();
    // As far as the client knows, it is this instance that did it.
    for _ in 0..3 {
        find(&second, ADA, with_id("x")).await;
    }
    let again = second.adjust(&hunt(), ADA, adjustment(5, "key")).await;
    again.unwrap().outcome.unwrap();
    drop(first);
    let (epoch, kept) = (second.epoch(), second.replay_counts().items);
    find(&second, ADA, with_id("x")).await;
    assert_eq!(second.replay_counts().items, kept, "once is enough");
    world.lose();
    recovered(&second, epoch).await;
    let wallet = credit(&second, ADA).await;
    assert_eq!((wallet.balance, wallet.pending_finds), (8, 0));
    verify(&second).await;
}
