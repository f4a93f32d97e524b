//! A small hunt on a [`Disk`], and a workload whose outcome is known.

#![allow(dead_code, reason = "each test uses a part of it")]

use super::store_disk::Disk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trove::game::entry::Adjustment;
use trove::game::hunt::{HuntSpec, LifeStep, Treasure};
use trove::game::ids::{FindId, HuntId, PlayerId, TreasureId};
use trove::game::rules::{Limits, NewFind, What};
use trove::store::clock::ManualTime;
use trove::store::embedded::{EmbeddedStore, OpenError, Options};
use trove::store::{Store, StoreError};

pub(crate) const START: u64 = 1_800_000_000_000;
pub(crate) const PLAYERS: u64 = 3;

/// The seed of everything random, printed where a test fails.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("TROVE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20_260_101);
    println!("TROVE_TEST_SEED={seed}");
    seed
}

pub(crate) fn open(disk: &Disk, fatal: &Arc<AtomicUsize>) -> Result<EmbeddedStore, OpenError> {
    open_at(disk, fatal, Arc::new(ManualTime::new(START)))
}

/// With a clock to move.
pub(crate) fn open_at(
    disk: &Disk,
    fatal: &Arc<AtomicUsize>,
    time: Arc<ManualTime>,
) -> Result<EmbeddedStore, OpenError> {
    let (disk, fatal) = (disk.clone(), fatal.clone());
    let options = Options {
        time,
        limits: Limits {
            find_id_ttl_ms: 100_000,
            ..Limits::default()
        },
        cache_bytes: 1 << 20,
        on_fatal: Box::new(move |_| {
            fatal.fetch_add(1, Ordering::SeqCst);
        }),
        ..Options::new(std::path::Path::new("/nonexistent"))
    };
    EmbeddedStore::open_backend(options, move || disk.clone())
}

pub(crate) fn hunt() -> HuntId {
    HuntId::new("h").unwrap()
}

pub(crate) fn spec() -> HuntSpec {
    HuntSpec {
        id: hunt(),
        name: "H".into(),
        window_ms: 300_000,
        opens_at: Some(0),
        closes_at: None,
        treasures: (0..20)
            .map(|n| Treasure {
                id: TreasureId::new(&format!("t{n}")).unwrap(),
                name: None,
                coins: 1 << n,
                place: None,
                repeatable: n % 3 == 0,
            })
            .collect(),
    }
}

/// What the workload asks for, one after the other.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Hunt,
    Find(u64, u64),
    Poll(u64),
    Adjust(u64, i64),
    Close,
}

/// Different every time, the same for the same length.
pub(crate) fn asks(length: u64) -> Vec<Ask> {
    let mut asks = vec![Ask::Hunt];
    for n in 0..length {
        asks.push(match n % 7 {
            0 | 1 | 3 | 4 => Ask::Find(n % PLAYERS, n % 20),
            2 | 5 => Ask::Poll((n / 2) % PLAYERS),
            _ => Ask::Adjust(n % PLAYERS, 1 + i64::try_from(n).unwrap()),
        });
    }
    asks.push(Ask::Close);
    asks
}

/// A find of one of the hunt's treasures.
pub(crate) fn find_of(treasure: u64) -> NewFind {
    NewFind {
        what: What::Treasure(TreasureId::new(&format!("t{treasure}")).unwrap()),
        id: FindId::new(&format!("id-{treasure}")).ok(),
        found_at: None,
    }
}

pub(crate) async fn ask(store: &EmbeddedStore, ask: &Ask) -> Result<(), StoreError> {
    match ask {
        Ask::Hunt => store.put_hunt(spec()).await.map(|_| ()),
        Ask::Find(player, treasure) => {
            let finds = vec![(PlayerId(*player), find_of(*treasure))];
            store.record(&hunt(), finds).await.map(|_| ())
        }
        Ask::Poll(player) => store.credit(&hunt(), PlayerId(*player)).await.map(|_| ()),
        Ask::Adjust(player, coins) => {
            let adjustment = Adjustment {
                coins: *coins,
                reason: "r".into(),
                key: format!("k{coins}"),
                by: "b".into(),
            };
            let adjusted = store.adjust(&hunt(), PlayerId(*player), adjustment);
            adjusted.await.map(|_| ())
        }
        Ask::Close => store.step_hunt(&hunt(), LifeStep::Close).await.map(|_| ()),
    }
}

/// Balance and pending coins of each player once everything in `asks` was done, once or more often.
pub(crate) fn expected(asks: &[Ask]) -> BTreeMap<u64, (u64, u64)> {
    let mut pending: BTreeMap<u64, u64> = BTreeMap::new();
    let mut wallets: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for ask in asks {
        match ask {
            Ask::Find(player, treasure) if found.insert((*player, *treasure)) => {
                *pending.entry(*player).or_default() += 1 << treasure;
            }
            Ask::Poll(player) => {
                if let Some(collected) = pending.remove(player) {
                    wallets.entry(*player).or_default().0 += collected;
                }
            }
            Ask::Adjust(player, coins) => {
                wallets.entry(*player).or_default().0 += u64::try_from(*coins).unwrap();
            }
            _ => {}
        }
    }
    for (player, coins) in pending {
        wallets.entry(player).or_default().1 = coins;
    }
    wallets
}

pub(crate) async fn wallets(store: &EmbeddedStore) -> BTreeMap<u64, (u64, u64)> {
    let mut wallets = BTreeMap::new();
    for player in 0..PLAYERS {
        match store.wallet(&hunt(), PlayerId(player)).await {
            Ok(wallet) if wallet.seq > 0 => {
                wallets.insert(player, (wallet.balance, wallet.pending_coins));
            }
            Ok(_) | Err(StoreError::NoSuchHunt) => {}
            Err(error) => panic!("{error}"),
        }
    }
    wallets
}

pub(crate) async fn assert_holds(store: &EmbeddedStore, context: &str) {
    for audit in store.verify(None).await.unwrap() {
        assert!(audit.holds(), "{context}: {audit:#?}");
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
