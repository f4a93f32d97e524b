//! A disk that fills up, that fails to sync, or that gives back something else, under the embedded store.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

mod store_disk;
#[path = "store_disk/workload.rs"]
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store_disk::Disk;
use trove::game::entry::{Change, ExpiryReason};
use trove::game::ids::PlayerId;
use trove::store::clock::ManualTime;
use trove::store::embedded::EmbeddedStore;
use trove::store::{Health, Store, StoreError};
use workload::*;

fn no_fatal() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The steps that one ask takes, counted on a disk of its own.
async fn steps_of(prepared: &[u8], wanted: &Ask) -> u64 {
    let disk = Disk::with_content(prepared.to_vec());
    let store = open(&disk, &no_fatal()).unwrap();
    let before = disk.taken();
    ask(&store, wanted).await.unwrap();
    let taken = disk.taken() - before;
    store.stop().await.unwrap();
    taken
}

/// A store after a few asks, closed.
async fn prepared(asks: &[Ask]) -> Vec<u8> {
    let disk = Disk::default();
    let store = open(&disk, &no_fatal()).unwrap();
    for each in asks {
        ask(&store, each).await.unwrap();
    }
    store.stop().await.unwrap();
    disk.content()
}

#[test]
fn a_disk_that_is_full_at_any_write_changes_nothing_and_works_again() {
    runtime().block_on(async {
        let done = asks(12);
        let content = prepared(&done[..10]).await;
        let next = Ask::Find(1, 19);
        let mut with_next = done[..10].to_vec();
        with_next.push(next.clone());
        let steps = steps_of(&content, &next).await;
        assert!(steps > 5, "{steps}");
        for after in 0..steps {
            let context = format!("full after {after} of {steps} steps");
            let fatal = no_fatal();
            let disk = Disk::with_content(content.clone());
            let store = open(&disk, &fatal).unwrap();
            disk.fill_up(after, 1);
            match ask(&store, &next).await {
                Err(StoreError::Full) => {
                    assert_eq!(wallets(&store).await, expected(&done[..10]), "{context}");
                }
                // The step was a sync, which needs no space.
                Ok(()) => {}
                Err(other) => panic!("{context}: {other}"),
            }
            assert_holds(&store, &context).await;
            ask(&store, &next).await.unwrap();
            assert_eq!(wallets(&store).await, expected(&with_next), "{context}");
            assert_eq!(store.health(), Health::Up);
            assert_holds(&store, &context).await;
            store.stop().await.unwrap();
            assert_eq!(fatal.load(Ordering::SeqCst), 0, "{context}");
            // What is on disk says the same.
            let store = open(&Disk::with_content(disk.content()), &fatal).unwrap();
            assert_eq!(wallets(&store).await, expected(&with_next), "{context}");
            store.stop().await.unwrap();
        }
    });
}

#[test]
fn a_file_that_cannot_grow_refuses_writes_until_it_can() {
    runtime().block_on(async {
        let fatal = no_fatal();
        let disk = Disk::default();
        let store = open(&disk, &fatal).unwrap();
        ask(&store, &Ask::Hunt).await.unwrap();
        disk.stop_growth(true);
        let mut refused = None;
        let mut adjusted = 0;
        for n in 1..20_000 {
            match ask(&store, &Ask::Adjust(n % PLAYERS, i64::try_from(n).unwrap())).await {
                Ok(()) => adjusted += n,
                Err(StoreError::Full) => {
                    refused = Some(n);
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
        let refused = refused.expect("the file never had to grow");
        assert_eq!(store.health(), Health::Full);
        let sum = |all: std::collections::BTreeMap<u64, (u64, u64)>| -> u64 {
            all.values().map(|(balance, _)| balance).sum()
        };
        assert_eq!(sum(wallets(&store).await), adjusted, "reads go on");
        assert_holds(&store, "full").await;
        disk.stop_growth(false);
        until("the store notices that there is room", || {
            store.health() == Health::Up
        })
        .await;
        let n = i64::try_from(refused).unwrap();
        ask(&store, &Ask::Adjust(0, n)).await.unwrap();
        assert_eq!(sum(wallets(&store).await), adjusted + refused);
        store.stop().await.unwrap();
        assert_eq!(fatal.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn what_runs_out_while_the_disk_is_full_expires_by_outage() {
    runtime().block_on(async {
        let (disk, fatal) = (Disk::default(), no_fatal());
        let time = Arc::new(ManualTime::new(START));
        let store = open_at(&disk, &fatal, time.clone()).unwrap();
        ask(&store, &Ask::Hunt).await.unwrap();
        ask(&store, &Ask::Find(1, 1)).await.unwrap();
        disk.stop_growth(true);
        let mut coins = 0;
        while ask(&store, &Ask::Adjust(0, coins + 1)).await.is_ok() {
            coins += 1;
        }
        assert_eq!(store.health(), Health::Full);
        time.set_hung(300_001);
        time.advance(300_001);
        disk.stop_growth(false);
        while store.hunts().await.unwrap()[0].1.pending > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        time.set_hung(0);
        // What runs out afterwards does so by its window.
        ask(&store, &Ask::Find(1, 2)).await.unwrap();
        time.advance(300_001);
        ask(&store, &Ask::Poll(1)).await.unwrap();
        let history = store.history(&hunt(), PlayerId(1), u64::MAX, 10);
        let history = history.await.unwrap();
        let mut reasons = Vec::new();
        for entry in history.iter().rev() {
            if let Change::Expire(_, reason) = &entry.change {
                reasons.push(*reason);
            }
        }
        assert_eq!(reasons, [ExpiryReason::StoreOutage, ExpiryReason::Window]);
        let reinstated = store.reinstate(&hunt(), 0, u64::MAX).await.unwrap();
        assert_eq!(reinstated.coins, 2);
        assert_holds(&store, "afterwards").await;
        store.stop().await.unwrap();
        assert_eq!(fatal.load(Ordering::SeqCst), 0);
    });
}

/// Whether the store, out of order, acknowledges nothing and says that it is down.
async fn assert_down(store: &EmbeddedStore, fatal: &AtomicUsize) {
    for each in [Ask::Find(1, 19), Ask::Find(2, 19), Ask::Adjust(0, 1_000)] {
        assert!(ask(store, &each).await.is_err());
    }
    assert!(matches!(store.health(), Health::Down(_)));
    assert_eq!(fatal.load(Ordering::SeqCst), 1, "it is said once");
}

#[test]
fn a_sync_that_fails_ends_the_store_and_nothing_more_is_acknowledged() {
    runtime().block_on(async {
        let done = asks(12);
        let content = prepared(&done[..10]).await;
        let fatal = no_fatal();
        let disk = Disk::with_content(content);
        let store = open(&disk, &fatal).unwrap();
        disk.fail_syncs();
        let answer = ask(&store, &Ask::Find(1, 18)).await;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        assert_eq!(fatal.load(Ordering::SeqCst), 1);
        assert_down(&store, &fatal).await;
        // Stopping neither hangs nor makes anything of it good.
        let _ = store.stop().await;
        let store = open(&Disk::with_content(disk.content()), &no_fatal()).unwrap();
        assert_holds(&store, "afterwards").await;
        let now = wallets(&store).await;
        let mut with_next = done[..10].to_vec();
        with_next.push(Ask::Find(1, 18));
        assert!(now == expected(&done[..10]) || now == expected(&with_next));
        store.stop().await.unwrap();
    });
}

#[test]
fn a_disk_that_gives_back_garbage_ends_the_store_rather_than_its_thread() {
    runtime().block_on(async {
        // More than the cache holds, so that pages are read again.
        let disk = Disk::default();
        let fatal = no_fatal();
        let store = open(&disk, &fatal).unwrap();
        ask(&store, &Ask::Hunt).await.unwrap();
        for n in 0..40 {
            let finds = (0..500)
                .map(|m| (PlayerId(n * 500 + m), find_of(1)))
                .collect();
            store.record(&hunt(), finds).await.unwrap();
        }
        disk.read_garbage();
        let mut refused = 0;
        for player in 0..200 {
            refused += u64::from(ask(&store, &Ask::Find(player * 97, 19)).await.is_err());
        }
        assert!(refused > 0);
        // However it ended, whoever asks is answered, and the stop does not hang.
        let _ = store.health();
        let _ = store.stop().await;
    });
}
