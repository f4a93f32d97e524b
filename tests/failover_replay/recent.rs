//! The ends of the feeds, which are read in one go after a failover.

use super::*;
use trove_streams::redis;

const ADA: PlayerId = PlayerId(7);
const BEN: PlayerId = PlayerId(8);

/// Finds with its credit, at times of their own: two entries each.
async fn play(world: &World, store: &RedisStore, player: PlayerId, times: u32) {
    for _ in 0..times {
        world.advance(1_000);
        let id = format!("{}", world.now());
        find(store, player, with_id(&id)).await;
        world.advance(1_000);
        credit(store, player).await;
    }
}

fn recent(store: &RedisStore, player: PlayerId, since: u64) -> Option<Vec<Entry>> {
    store.recent(&hunt(), player, since)
}

/// The last of a history since then, newest first, as looked up.
async fn looked_up(store: &RedisStore, player: PlayerId, since: u64) -> Vec<Entry> {
    let mut entries = history(store, player).await;
    entries.reverse();
    entries.retain(|entry| entry.at >= since);
    entries
}

async fn fail_over(world: &mut World, store: &RedisStore) {
    let epoch = store.epoch();
    world.save();
    world.lose();
    recovered(store, epoch).await;
}

#[tokio::test]
async fn after_a_failover_the_last_window_of_every_history_is_in_memory() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    play(&world, &store, ADA, 300).await;
    play(&world, &store, BEN, 1).await;
    assert_eq!(recent(&store, ADA, world.now()), None, "nothing has failed");
    fail_over(&mut world, &store).await;
    // 602 entries, one a second, of which the last 300 are of this window.
    let since = world.now() - WINDOW_MS + 10_000;
    let known = recent(&store, ADA, since).unwrap();
    assert!((280..300).contains(&known.len()), "{}", known.len());
    assert_eq!(known, looked_up(&store, ADA, since).await);
    assert_eq!(
        recent(&store, BEN, since).unwrap(),
        looked_up(&store, BEN, since).await
    );
    assert_eq!(recent(&store, PlayerId(9), since), Some(Vec::new()));
    assert_eq!(recent(&store, ADA, START), None, "it goes no further back");
    // What comes later is not among them, and what was is as it was.
    play(&world, &store, ADA, 1).await;
    assert_eq!(recent(&store, ADA, since), Some(known));
    fail_over(&mut world, &store).await;
    assert_eq!(
        recent(&store, ADA, since).unwrap(),
        looked_up(&store, ADA, since).await
    );
}

#[tokio::test]
async fn what_came_back_is_among_what_is_recent() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    play(&world, &store, ADA, 1).await;
    world.save();
    let epoch = store.epoch();
    find(&store, ADA, of("a")).await;
    assert_eq!(credit(&store, ADA).await.balance, 13);
    world.lose();
    recovered(&store, epoch).await;
    assert_eq!(returned(&store, ReplayKind::Credit), 1);
    let known = recent(&store, ADA, START).unwrap();
    assert_eq!(known, looked_up(&store, ADA, START).await);
    assert_eq!(known.iter().map(|entry| entry.seq).max(), Some(4));
}

#[tokio::test]
async fn what_is_kept_of_the_feeds_is_bounded_and_kept_for_a_while_only() {
    let mut world = World::new();
    let options = Options {
        // Three of each partition.
        recent_entries_max: 12,
        recent_kept: Duration::from_secs(3),
        ..world.options()
    };
    let store = world.connect_with(options).await;
    open_hunt(&store, "h").await;
    play(&world, &store, ADA, 3).await;
    fail_over(&mut world, &store).await;
    let all = looked_up(&store, ADA, START).await;
    assert_eq!(all.len(), 6);
    let third = all[2].at;
    assert_eq!(recent(&store, ADA, third), None);
    assert_eq!(recent(&store, ADA, third + 1).unwrap(), all[..2]);
    until("it is let go", async || {
        recent(&store, ADA, third + 1).is_none().then_some(())
    })
    .await;
}

/// Follows the store's feed; gives what can be awaited until all is void.
fn follow(store: &RedisStore) -> tokio::sync::mpsc::UnboundedReceiver<u64> {
    let mut feed = store.feed().unwrap();
    let (resets, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(events) = feed.recv().await {
            for event in events {
                if let FeedEvent::Reset { epoch } = event {
                    let _ = resets.send(epoch);
                }
            }
        }
    });
    told
}

#[tokio::test]
async fn whose_feed_goes_on_is_known_by_the_wallet_after_the_last_entry() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    let mut told = follow(&store);
    let ada = open(&store, "ada", START).await.unwrap();
    let ben = open(&store, "ben", START).await.unwrap();
    play(&world, &store, ada, 2).await;
    play(&world, &store, ben, 1).await;
    find(&store, ada, of("a")).await;
    // What came before the last entry that is left was before the epoch. Each partition has one.
    world.advance(1_000);
    for number in 100..200 {
        find(&store, PlayerId(number), of("a")).await;
    }
    assert_eq!(store.recent_wallet(1, ada), None);
    tokio::time::sleep(Duration::from_millis(300)).await;
    fail_over(&mut world, &store).await;
    assert_eq!(told.recv().await, Some(store.epoch()));
    for player in [ada, ben] {
        let known = store.recent_wallet(1, player);
        assert_eq!(known, Some(wallet(&store, player).await));
        assert!(store.vouches_for(player));
    }
    assert_eq!(store.recent_wallet(1, ada).unwrap().pending_finds, 1);
    assert_eq!(store.recent_wallet(2, ada), None);
    let nobody = PlayerId(9);
    assert_eq!(store.recent_wallet(1, nobody), None);
    assert!(!store.vouches_for(nobody));
}

#[tokio::test]
async fn whose_feed_was_cut_is_known_by_what_is_left_of_it_and_all_that_came_since_is_told() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    let mut feed = store.feed().unwrap();
    let ada = open(&store, "ada", START).await.unwrap();
    play(&world, &store, ada, 2).await;
    let name = PlayerName::new("eve").unwrap();
    let eve = open(&store, "eve", START).await.unwrap();
    play(&world, &store, eve, 1).await;
    store.erase(&name).await.unwrap();
    world.advance(1_000);
    for number in 100..200 {
        find(&store, PlayerId(number), of("a")).await;
    }
    world.save();
    let epoch = store.epoch();
    play(&world, &store, ada, 1).await;
    let lost = wallet(&store, ada).await;
    // The feed has told of it, so it does not go on from there.
    let told = async |feed: &mut tokio::sync::mpsc::Receiver<Vec<FeedEvent>>,
                      is: &dyn Fn(&FeedEvent) -> bool| {
        let patience = tokio::time::timeout(PATIENCE, async {
            while !feed.recv().await.unwrap().iter().any(is) {}
        });
        patience.await.unwrap();
    };
    let shows = |seq: u64| {
        move |event: &FeedEvent| {
            matches!(event, FeedEvent::Wallet { player, wallet, .. }
                if *player == ada && wallet.seq == seq)
        }
    };
    told(&mut feed, &shows(lost.seq)).await;
    world.lose();
    told(
        &mut feed,
        &|event| matches!(event, FeedEvent::Reset { epoch: of } if *of > epoch),
    )
    .await;
    // It came back before the feed was read.
    let back = wallet(&store, ada).await;
    assert_eq!((back.balance, back.seq), (lost.balance, lost.seq));
    assert_eq!(store.recent_wallet(1, ada), Some(back));
    assert!(store.vouches_for(ada));
    assert!(!store.vouches_for(eve));
    play(&world, &store, ada, 1).await;
    told(&mut feed, &shows(back.seq + 2)).await;
}

/// Waits until a server is being asked for ends of feeds, and breaks everybody's links to it, once. Returns when it has begun
/// to look; to be joined.
fn break_links_at_the_first_read(port: u16) -> std::thread::JoinHandle<()> {
    let (looks, begun) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let client = redis::Client::open(("127.0.0.1", port)).unwrap();
        let mut connection = client.get_connection().unwrap();
        looks.send(()).unwrap();
        let began = Instant::now();
        loop {
            let stats: String = redis::cmd("INFO")
                .arg("commandstats")
                .query(&mut connection)
                .unwrap();
            if stats.contains("cmdstat_xrevrange:") {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "no feed's end was read");
        }
        let killed: u32 = redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal"])
            .query(&mut connection)
            .unwrap();
        assert!(killed > 0);
    });
    begun.recv().unwrap();
    thread
}

#[tokio::test]
async fn a_feed_whose_reading_broke_off_is_read_over_the_next_link() {
    let mut world = World::new();
    let store = world.connect().await;
    open_hunt(&store, "h").await;
    let since = world.now();
    world.advance(1_000);
    // Two dozen reads, with pauses.
    let players = 100..6_100;
    for first in players.clone().step_by(500) {
        let some = (first..first + 500).map(|player| (PlayerId(player), of("a")));
        store.record(&hunt(), some.collect()).await.unwrap();
    }
    let epoch = store.epoch();
    world.save();
    world.lose();
    let breaking = break_links_at_the_first_read(world.server.port);
    recovered(&store, epoch).await;
    breaking.join().unwrap();
    for player in players {
        let known = recent(&store, PlayerId(player), since).map(|entries| entries.len());
        assert_eq!(known, Some(1), "{player}");
    }
}
