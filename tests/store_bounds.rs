//! The embedded store's limits: what waits is bounded, and nothing that waits can block the store for good.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

mod store_disk;
#[path = "store_disk/workload.rs"]
mod workload;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use store_disk::Disk;
use trove::game::ids::PlayerId;
use trove::store::embedded::{
    EmbeddedStore, FEED_BATCHES_MAX, LONG_READS_MAX, QUEUE_JOBS_MAX, QUEUE_WEIGHT_MAX,
};
use trove::store::{FeedEvent, Store, StoreError};
use workload::*;

fn store() -> EmbeddedStore {
    open(&Disk::default(), &Arc::new(AtomicUsize::new(0))).unwrap()
}

/// Lets a watcher lag until the writer waits for it; then nothing more is answered.
async fn hold_the_writer(store: &EmbeddedStore) {
    for n in 0..FEED_BATCHES_MAX as u64 {
        let finds = vec![(PlayerId(1_000 + n), find_of(1))];
        store.record(&hunt(), finds).await.unwrap();
    }
    // This one fills nothing any more: it is committed, and its event waits.
    let held = store.record(&hunt(), vec![(PlayerId(1), find_of(1))]);
    let answer = tokio::time::timeout(Duration::from_millis(50), held).await;
    assert!(answer.is_err(), "the writer was to wait");
}

#[tokio::test]
async fn a_full_queue_is_busy_and_what_it_took_is_done() {
    let store = store();
    ask(&store, &Ask::Hunt).await.unwrap();
    let mut feed = store.feed().unwrap();
    hold_the_writer(&store).await;
    let jobs: Vec<_> = (0..QUEUE_JOBS_MAX as u64 + 100)
        .map(|n| store.record(&hunt(), vec![(PlayerId(100_000 + n), find_of(2))]))
        .collect();
    let drain = tokio::spawn(async move {
        let mut wallets = 0;
        while let Some(events) = feed.recv().await {
            let of_wallets = |event: &&FeedEvent| matches!(event, FeedEvent::Wallet { .. });
            wallets += events.iter().filter(of_wallets).count();
        }
        wallets
    });
    let (mut done, mut busy) = (0, 0);
    for job in jobs {
        match job.await {
            Ok(recorded) => {
                assert!(recorded.outcomes[0].is_ok());
                done += 1;
            }
            Err(StoreError::Busy) => busy += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(done + busy, QUEUE_JOBS_MAX + 100);
    assert!(done >= QUEUE_JOBS_MAX && busy > 0, "{done} {busy}");
    let audit = &store.verify(None).await.unwrap()[0];
    assert!(audit.holds());
    assert_eq!(audit.wallets, (done + FEED_BATCHES_MAX + 1) as u64);
    store.stop().await.unwrap();
    drop(store);
    assert_eq!(drain.await.unwrap(), done + FEED_BATCHES_MAX + 1);
}

#[tokio::test]
async fn a_queue_of_few_large_jobs_is_busy_too() {
    let store = store();
    ask(&store, &Ask::Hunt).await.unwrap();
    let feed = store.feed().unwrap();
    hold_the_writer(&store).await;
    let batch: Vec<_> = (0..10_000).map(|n| (PlayerId(n), find_of(2))).collect();
    let jobs: Vec<_> = (0..QUEUE_WEIGHT_MAX / 10_000 + 2)
        .map(|_| store.record(&hunt(), batch.clone()))
        .collect();
    drop(feed);
    let mut busy = 0;
    for job in jobs {
        match job.await {
            Ok(recorded) => assert_eq!(recorded.outcomes.len(), 10_000),
            Err(StoreError::Busy) => busy += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(busy > 0);
    // One that is larger than the whole queue still gets its turn.
    let huge = (0..QUEUE_WEIGHT_MAX as u64 + 1).map(|n| (PlayerId(n % 50), find_of(2)));
    let recorded = store.record(&hunt(), huge.collect()).await.unwrap();
    assert_eq!(recorded.outcomes.len(), QUEUE_WEIGHT_MAX + 1);
    store.stop().await.unwrap();
}

#[tokio::test]
async fn a_watcher_who_reads_no_more_does_not_hold_up_the_stop() {
    let disk = Disk::default();
    let store = open(&disk, &Arc::new(AtomicUsize::new(0))).unwrap();
    ask(&store, &Ask::Hunt).await.unwrap();
    let feed = store.feed().unwrap();
    hold_the_writer(&store).await;
    store.stop().await.unwrap();
    drop(feed);
    // What was committed is there.
    let store = open(&disk, &Arc::new(AtomicUsize::new(0))).unwrap();
    let wallet = store.wallet(&hunt(), PlayerId(1)).await.unwrap();
    assert_eq!(wallet.pending_finds, 1);
    store.stop().await.unwrap();
}

#[tokio::test]
async fn answers_handed_to_an_event_loop_arrive_and_so_they_do_once_it_is_gone() {
    let store = store();
    ask(&store, &Ask::Hunt).await.unwrap();
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    store.answer_on(other.handle());
    for round in 0..2_u64 {
        let jobs: Vec<_> = (0..500)
            .map(|n| store.record(&hunt(), vec![(PlayerId(round * 500 + n), find_of(2))]))
            .collect();
        for job in jobs {
            assert!(job.await.unwrap().outcomes[0].is_ok());
        }
        if round == 0 {
            store.answer_on(&tokio::runtime::Handle::current());
        }
    }
    other.shutdown_background();
    let elsewhere = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    store.answer_on(elsewhere.handle());
    elsewhere.shutdown_background();
    let jobs: Vec<_> = (0..50)
        .map(|n| store.record(&hunt(), vec![(PlayerId(5_000 + n), find_of(2))]))
        .collect();
    for job in jobs {
        assert!(job.await.unwrap().outcomes[0].is_ok());
    }
    store.stop().await.unwrap();
}

#[tokio::test]
async fn an_export_whose_reader_takes_nothing_ends_with_an_error() {
    let store = store();
    ask(&store, &Ask::Hunt).await.unwrap();
    for first in (0..20_000).step_by(4_000) {
        let finds = (first..first + 4_000).map(|n| (PlayerId(n), find_of(1)));
        store.record(&hunt(), finds.collect()).await.unwrap();
    }
    // As many as may run at a time, and one more that has to wait for them.
    let mut idle = Vec::new();
    for _ in 0..LONG_READS_MAX {
        let mut export = store.export(&hunt()).await.unwrap();
        export.recv().await.unwrap().unwrap();
        idle.push(export);
    }
    assert!(store.verify(None).await.unwrap()[0].holds());
    for mut export in idle {
        let mut last = None;
        while let Some(rows) = export.recv().await {
            last = Some(rows.map(|rows| rows.len()));
        }
        assert!(matches!(last, Some(Err(StoreError::Unavailable(_)))));
    }
    store.stop().await.unwrap();
}

#[tokio::test]
async fn many_wallets_are_swept_in_batches_of_bounded_size() {
    let time = Arc::new(trove::store::clock::ManualTime::new(START));
    let disk = Disk::default();
    let options = trove::store::embedded::Options {
        time: time.clone(),
        ..trove::store::embedded::Options::new(std::path::Path::new("/nonexistent"))
    };
    let store = EmbeddedStore::open_backend(options, move || disk.clone()).unwrap();
    ask(&store, &Ask::Hunt).await.unwrap();
    let players = 12 * trove::store::embedded::SWEEP_WALLETS_MAX as u64;
    for first in (0..players).step_by(4_000) {
        let finds = (first..players.min(first + 4_000)).map(|n| (PlayerId(n), find_of(1)));
        store.record(&hunt(), finds.collect()).await.unwrap();
    }
    let batches = || {
        let batches = &store.writer_stats().batches;
        batches.load(std::sync::atomic::Ordering::Relaxed)
    };
    let before = batches();
    time.advance(300_001);
    let pending = async || store.hunts().await.unwrap()[0].1.pending;
    while pending().await > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(batches() - before >= 12);
    assert!(store.verify(None).await.unwrap()[0].holds());
    store.stop().await.unwrap();
}
