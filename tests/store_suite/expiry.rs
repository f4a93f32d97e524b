//! Rule 3: what runs out is recorded as expired, with its reason, also for a player who never polls again.

use super::world::*;
use trove::game::entry::{Change, Entry, ExpiryReason};
use trove::game::ids::PlayerId;

fn reason(entry: &Entry) -> ExpiryReason {
    match &entry.change {
        Change::Expire(_, reason) => *reason,
        other => panic!("no expiry: {other:?}"),
    }
}

pub(crate) async fn a_find_of_a_player_who_never_polls_expires_within_ten_seconds<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS + 1);
    let history = world.until_settled(ada).await;
    assert_eq!(words(&history), ["find", "expire"]);
    assert_eq!(reason(&history[1]), ExpiryReason::Window);
    let late_ms = history[1].at - (START + WINDOW_MS);
    assert!((1..=10_000).contains(&late_ms), "{late_ms} ms");
    world.verify().await;
}

pub(crate) async fn many_players_who_never_poll_all_expire<F: Fixture>() {
    let world = World::<F>::new().await;
    let mut players: Vec<PlayerId> = Vec::new();
    for n in 0..40 {
        players.push(world.player(&format!("player-{n}")).await);
    }
    // More wallets than one sweep visits would take long to open by name; numbers are as good.
    players.extend((1..=2_500).map(PlayerId));
    for part in players.chunks(500) {
        let finds = part.iter().map(|player| (*player, of("a"))).collect();
        world.record(finds).await;
    }
    world.fixture.advance(WINDOW_MS + 1);
    world
        .until("all have expired", || async {
            world.totals().await.pending == 0
        })
        .await;
    assert_eq!(world.totals().await.expired, 25_400);
    world.verify().await;
}

pub(crate) async fn the_sweeper_leaves_what_can_still_be_credited<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(1_000);
    world.find(ada, of("b")).await.unwrap();
    world.fixture.advance(WINDOW_MS - 500);
    world
        .until("the first has expired", || async {
            world.wallet(ada).await.pending_finds == 1
        })
        .await;
    let wallet = world.wallet(ada).await;
    assert_eq!(wallet.due_at, START + 1_000 + WINDOW_MS);
    assert_eq!(world.poll(ada).await.wallet.balance, 20);
    world.verify().await;
}

pub(crate) async fn what_runs_out_while_the_store_is_down_expires_by_outage<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, of("a")).await.unwrap();
    world.find(bob, of("b")).await.unwrap();
    if !world.fixture.restart(WINDOW_MS + 1_000).await {
        return;
    }
    assert_eq!(words(&world.poll(ada).await.entries), ["expire"]);
    for player in [ada, bob] {
        let history = world.until_settled(player).await;
        assert_eq!(reason(&history[1]), ExpiryReason::StoreOutage);
    }
    world.verify().await;
}

pub(crate) async fn what_ran_out_before_the_store_went_down_expires_by_its_window<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let (ada, bob) = (world.player("ada").await, world.player("bob").await);
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS + 1);
    // Something is written after the window has passed, so the store is known to have been up.
    world.find(bob, of("b")).await.unwrap();
    if !world.fixture.restart(2_000).await {
        return;
    }
    let history = world.until_settled(ada).await;
    assert_eq!(reason(&history[1]), ExpiryReason::Window);
    assert_eq!(world.poll(bob).await.wallet.balance, 20);
}

pub(crate) async fn a_find_survives_a_restart_within_its_window<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    if !world.fixture.restart(WINDOW_MS).await {
        return;
    }
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    assert!(world.fixture.restart(1_000).await);
    assert_eq!(world.poll(ada).await.wallet.balance, 10);
    world.verify().await;
}

pub(crate) async fn a_step_of_the_clock_is_an_outage<F: Fixture>() {
    let mut world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    if !world.fixture.step_clock(WINDOW_MS + 5_001) {
        return;
    }
    let history = world.until_settled(ada).await;
    assert_eq!(reason(&history[1]), ExpiryReason::StoreOutage);
    assert_eq!(history[1].at, START + WINDOW_MS + 5_001);
    // The outage stays on record.
    if world.fixture.restart(0).await {
        let late = of("b").at(START + 1);
        world.find(ada, late).await.unwrap();
        let history = world.history(ada).await;
        assert_eq!(reason(&history[3]), ExpiryReason::StoreOutage);
    }
    world.verify().await;
}

pub(crate) async fn a_small_step_of_the_clock_is_none<F: Fixture>() {
    let world = World::<F>::new().await;
    let ada = world.player("ada").await;
    world.find(ada, of("a")).await.unwrap();
    world.fixture.advance(WINDOW_MS - 100);
    if !world.fixture.step_clock(5_000) {
        return;
    }
    let history = world.until_settled(ada).await;
    assert_eq!(reason(&history[1]), ExpiryReason::Window);
}
