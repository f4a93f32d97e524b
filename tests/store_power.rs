//! Power cuts under the embedded store, at every write of a workload.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

mod store_disk;
#[path = "store_disk/workload.rs"]
mod workload;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store_disk::{Disk, Survives};
use trove::game::entry::{Adjustment, Entry};
use trove::game::ids::{PlayerId, PlayerName};
use trove::game::wallet::Wallet;
use trove::store::clock::ManualTime;
use trove::store::embedded::EmbeddedStore;
use trove::store::{Opening, Store};
use workload::*;

/// Opens what a cut left and holds it against what was acknowledged: after so many of `asks`, or one more.
async fn check_cut(image: Vec<u8>, asks: &[Ask], acknowledged: usize, context: &str) {
    let fatal = Arc::new(AtomicUsize::new(0));
    let store = match open(&Disk::with_content(image), &fatal) {
        Ok(store) => store,
        Err(error) => panic!("{context}: {error}"),
    };
    assert_holds(&store, context).await;
    let now = wallets(&store).await;
    let one_more = (acknowledged + 1).min(asks.len());
    assert!(
        now == expected(&asks[..acknowledged]) || now == expected(&asks[..one_more]),
        "{context}: {acknowledged} were acknowledged, and there is {now:?}"
    );
    // Whoever got no answer asks again, and whoever got one may.
    for each in asks {
        ask(&store, each).await.unwrap();
    }
    assert_holds(&store, context).await;
    let again = wallets(&store).await;
    let all = expected(asks);
    for (player, (balance, pending)) in &again {
        let (wanted, left) = all[player];
        assert_eq!(balance + pending, wanted + left, "{context}: {player}");
    }
    store.stop().await.unwrap();
}

#[test]
fn a_power_cut_at_any_write_loses_nothing_acknowledged() {
    let seed = seed();
    let runtime = runtime();
    let fatal = Arc::new(AtomicUsize::new(0));
    let disk = Disk::recording();
    let asks = asks(21);
    let mut acknowledged_at = Vec::new();
    let opened_at = runtime.block_on(async {
        let store = open(&disk, &fatal).unwrap();
        let opened_at = disk.taken();
        for each in &asks {
            ask(&store, each).await.unwrap();
            acknowledged_at.push(disk.taken());
        }
        store.stop().await.unwrap();
        opened_at
    });
    let tape = disk.tape();
    println!(
        "{} steps, {opened_at} of them to make the store",
        tape.len()
    );
    let opened_at = usize::try_from(opened_at).unwrap();
    for cut in opened_at..=tape.len() {
        let acknowledged = acknowledged_at.partition_point(|at| *at <= cut as u64);
        for survives in Survives::EACH {
            let context = format!("cut at {cut} of {}, {survives:?}", tape.len());
            let image = tape.cut(cut, survives, seed ^ cut as u64);
            runtime.block_on(check_cut(image, &asks, acknowledged, &context));
        }
    }
    assert_eq!(fatal.load(Ordering::SeqCst), 0);
}

/// How far each wallet's history was acknowledged, and after which step of the disk its caller knew.
type Acknowledged = Rc<RefCell<Vec<(u64, PlayerId, u64)>>>;

const CALLERS: u64 = 16;
/// Cuts of the long workload, each at a random step, unless `TROVE_TEST_CUTS` says otherwise.
const CUTS: usize = 250;

async fn history(store: &EmbeddedStore, player: PlayerId) -> Vec<Entry> {
    let entries = store.history(&hunt(), player, u64::MAX, usize::MAX);
    let mut entries = entries.await.unwrap_or_default();
    entries.reverse();
    entries
}

/// One caller: finds, polls and adjusts for a few players that others use too.
async fn call(
    store: Rc<EmbeddedStore>,
    disk: Disk,
    players: Rc<Vec<PlayerId>>,
    seed: u64,
    acknowledged: Acknowledged,
) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let note = |player: PlayerId, wallet: Wallet| {
        let known = (disk.taken(), player, wallet.seq);
        acknowledged.borrow_mut().push(known);
    };
    for _ in 0..12 {
        let player = players[random.random_range(0..players.len())];
        match random.random_range(0..6) {
            0..3 => {
                let finds = vec![
                    (player, find_of(random.random_range(0..20))),
                    (player, find_of(random.random_range(0..20))),
                ];
                let recorded = store.record(&hunt(), finds).await.unwrap();
                recorded.wallets.iter().for_each(|(p, w)| note(*p, *w));
            }
            3 | 4 => {
                let credited = store.credit(&hunt(), player).await.unwrap();
                note(player, credited.wallet);
            }
            _ => {
                let adjustment = Adjustment {
                    coins: random.random_range(1..10),
                    reason: "r".into(),
                    key: format!("{}", random.random_range(0..1_000)),
                    by: "b".into(),
                };
                let adjusted = store.adjust(&hunt(), player, adjustment).await.unwrap();
                note(player, adjusted.wallet);
            }
        }
    }
}

/// Callers side by side, the sweeper among them, ids that are forgotten, an erasure, a restart.
async fn long_workload(disk: &Disk, seed: u64) -> (Vec<(u64, PlayerId, u64)>, Rc<Vec<PlayerId>>) {
    let fatal = Arc::new(AtomicUsize::new(0));
    let time = Arc::new(ManualTime::new(START));
    let acknowledged = Acknowledged::default();
    let mut store = Rc::new(open_at(disk, &fatal, time.clone()).unwrap());
    ask(&store, &Ask::Hunt).await.unwrap();
    let name = |n| PlayerName::new(&format!("player-{n}")).unwrap();
    let openings = (0..12).map(|n| Opening {
        name: name(n),
        issued_at: None,
        known: None,
    });
    let opened = store.open_players(openings.collect()).await.unwrap();
    let players: Rc<Vec<_>> = Rc::new(opened.into_iter().map(|p| p.unwrap()).collect());
    for round in 0..4 {
        let callers: Vec<_> = (0..CALLERS)
            .map(|n| {
                let seed = seed ^ (round * CALLERS + n);
                let (disk, players) = (disk.clone(), players.clone());
                let call = call(store.clone(), disk, players, seed, acknowledged.clone());
                tokio::task::spawn_local(call)
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        if round == 1 {
            store.erase(&name(3)).await.unwrap();
        }
        time.advance(if round == 2 { 300_001 } else { 120_000 });
        if round == 2 {
            let pending = async || store.hunts().await.unwrap()[0].1.pending;
            while pending().await > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        } else {
            // Only this round's callers had it, and they are done.
            Rc::try_unwrap(store).ok().unwrap().stop().await.unwrap();
            store = Rc::new(open_at(disk, &fatal, time.clone()).unwrap());
        }
    }
    store.stop().await.unwrap();
    assert_eq!(fatal.load(Ordering::SeqCst), 0);
    (acknowledged.take(), players)
}

#[test]
fn a_power_cut_among_many_callers_leaves_the_start_of_every_history() {
    let seed = seed();
    let runtime = runtime();
    let disk = Disk::recording();
    let local = tokio::task::LocalSet::new();
    let (acknowledged, players) = local.block_on(&runtime, long_workload(&disk, seed));
    let tape = disk.tape();
    println!("{} steps, {} answers", tape.len(), acknowledged.len());
    let whole = |image: Vec<u8>| {
        let disk = Disk::with_content(image);
        open(&disk, &Arc::new(AtomicUsize::new(0)))
    };
    let mut finally: HashMap<PlayerId, Vec<Entry>> = HashMap::new();
    runtime.block_on(async {
        let store = whole(disk.content()).unwrap();
        for player in players.iter() {
            finally.insert(*player, history(&store, *player).await);
        }
        store.stop().await.unwrap();
    });
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let cuts = std::env::var("TROVE_TEST_CUTS").ok();
    for nth in 0..cuts.and_then(|text| text.parse().ok()).unwrap_or(CUTS) {
        // Not while the file is made: a real one then has another name.
        let cut = random.random_range(50..=tape.len());
        let survives = Survives::EACH[nth % Survives::EACH.len()];
        let context = format!("cut at {cut} of {}, {survives:?}", tape.len());
        let image = tape.cut(cut, survives, seed ^ nth as u64);
        runtime.block_on(async {
            let store = whole(image).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_holds(&store, &context).await;
            for player in players.iter() {
                let left = history(&store, *player).await;
                let known = acknowledged
                    .iter()
                    .filter(|(at, of, _)| *at <= cut as u64 && of == player)
                    .map(|(.., seq)| *seq)
                    .max()
                    .unwrap_or(0);
                assert!(left.len() as u64 >= known, "{context}: {player} lost some");
                let all = &finally[player];
                assert!(all.starts_with(&left), "{context}: {player} has others");
            }
            store.stop().await.unwrap();
        });
    }
}
