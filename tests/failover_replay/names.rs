//! Players' names and numbers through failovers.

use super::*;

/// What was not saved is lost, and then `ada` comes to be by an instance that knows nothing of the number before, and perhaps finds
/// something. The server goes on from there. Gives the new number.
async fn comes_to_be_elsewhere(world: &mut World, finds: Option<NewFind>) -> PlayerId {
    world.server.kill();
    let mut other = World {
        server: world.server.copy_of_saved(),
        time: world.time.clone(),
    };
    other.tell_time(other.now());
    let stranger = other.connect().await;
    let ada = open(&stranger, "ada", START).await.unwrap();
    if let Some(new) = finds {
        find(&stranger, ada, new).await;
    }
    drop(stranger);
    other.save();
    world.server.take_saved_of(&mut other.server);
    world.tell_time(world.now());
    ada
}

#[tokio::test]
async fn a_player_who_was_lost_and_came_to_be_again_elsewhere_has_one_wallet() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    world.save();
    let ada = open(&store, "ada", START).await.unwrap();
    find(&store, ada, of("a")).await;
    assert_eq!(credit(&store, ada).await.balance, 10);
    let epoch = store.epoch();
    let second = comes_to_be_elsewhere(&mut world, Some(of("b"))).await;
    assert_ne!(second, ada);
    recovered(&store, epoch).await;
    assert_eq!(open(&store, "ada", START).await.unwrap(), second);
    let one = wallet(&store, second).await;
    assert_eq!((one.balance, one.pending_coins), (10, 20));
    // What is still on its way to the old number lands in the one wallet, too.
    assert_eq!(credit(&store, ada).await.balance, 30);
    verify(&store).await;
}

#[tokio::test]
async fn a_number_that_was_another_ones_for_a_while_is_its_players_again() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    world.save();
    let mut blank = world.server.copy_of_saved();
    let ada = open(&store, "ada", START).await.unwrap();
    find(&store, ada, of("a")).await;
    let epoch = store.epoch();
    let second = comes_to_be_elsewhere(&mut world, None).await;
    assert_ne!(second, ada);
    recovered(&store, epoch).await;
    assert_eq!(wallet(&store, second).await.pending_coins, 10);
    // A history in which neither was ever heard of: the name has the number again that it had first.
    let epoch = store.epoch();
    blank.run::<()>(&["SAVE"]);
    world.server.kill();
    world.server.take_saved_of(&mut blank);
    world.tell_time(world.now());
    recovered(&store, epoch).await;
    assert_eq!(open(&store, "ada", START).await.unwrap(), ada);
    assert_eq!(wallet(&store, ada).await.pending_coins, 10);
    find(&store, ada, of("b")).await;
    assert_eq!(credit(&store, ada).await.balance, 30);
    verify(&store).await;
}

#[tokio::test]
async fn of_the_names_only_those_are_offered_that_may_be_lost() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    let names = 400;
    for nth in 0..names {
        open(&store, &format!("player-{nth}"), START).await.unwrap();
    }
    // Every partition has something newer, which survives.
    world.advance(1_000);
    for number in 100..200 {
        find(&store, PlayerId(number), of("a")).await;
    }
    world.save();
    let late = open(&store, "late", START).await.unwrap();
    let epoch = store.epoch();
    world.lose();
    recovered(&store, epoch).await;
    let stats: String = world.server.run(&["INFO", "commandstats"]);
    let calls = stats.split("cmdstat_evalsha:calls=").nth(1).unwrap();
    let calls: u64 = calls.split(',').next().unwrap().parse().unwrap();
    assert!(calls < names, "{calls} scripts ran");
    assert_eq!(returned(&store, ReplayKind::Player), 1);
    assert_eq!(open(&store, "late", START).await.unwrap(), late);
}

#[tokio::test]
async fn a_name_that_is_only_looked_up_again_is_not_kept_anew_and_one_of_another_number_is() {
    let world = World::new();
    let age = Duration::from_millis(50);
    let options = Options {
        replay_age_max: age,
        ..world.options()
    };
    let store = world.connect_with(options).await;
    let look_up = async |name: &str, known| {
        let opening = Opening {
            name: PlayerName::new(name).unwrap(),
            issued_at: Some(START),
            known,
        };
        store.open_players(vec![opening]).await.unwrap()[0].unwrap()
    };
    let items = || store.replay_counts().items;
    let ada = look_up("ada", None).await;
    assert_eq!(items(), 1, "the first who is told of it keeps it");
    tokio::time::sleep(2 * age).await;
    look_up("ben", None).await;
    assert_eq!(items(), 1, "what is old has reached the replicas");
    assert_eq!(look_up("ada", Some(ada)).await, ada);
    assert_eq!(items(), 1);
    // This process knew another player of that name.
    let other = PlayerId(ada.0 ^ 1);
    assert_eq!(look_up("ada", Some(other)).await, ada);
    assert_eq!(items(), 2);
}
