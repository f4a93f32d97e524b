//! Power cuts under the embedded store, at every write of a workload.

mod store_disk;
#[path = "store_disk/workload.rs"]
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store_disk::{Disk, Survives};
use trove::store::Store;
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
