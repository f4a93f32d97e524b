//! The embedded store's file in the hands of others: other processes, other versions, copies, damage.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use redb::TableDefinition;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use trove::game::entry::Adjustment;
use trove::game::hunt::HuntSpec;
use trove::game::ids::{FindId, HuntId, PlayerId};
use trove::game::rules::{NewFind, What};
use trove::store::embedded::{AuditStore, EmbeddedStore, FILE_NAME, OpenError, Options};
use trove::store::{Health, Store, StoreError};

fn seed() -> u64 {
    let seed = std::env::var("TROVE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20_260_101);
    println!("TROVE_TEST_SEED={seed}");
    seed
}

fn open(dir: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(Options {
        min_free_bytes: 0,
        ..Options::new(dir)
    })
}

fn hunt() -> HuntId {
    HuntId::new("h").unwrap()
}

fn spec() -> HuntSpec {
    HuntSpec {
        id: hunt(),
        name: "H".into(),
        window_ms: 300_000,
        opens_at: Some(0),
        closes_at: None,
        treasures: Vec::new(),
    }
}

async fn grant(store: &EmbeddedStore, coins: i64) -> Result<u64, StoreError> {
    let adjustment = Adjustment {
        coins,
        reason: "r".into(),
        key: format!("k{coins}"),
        by: "b".into(),
    };
    let adjusted = store.adjust(&hunt(), PlayerId(1), adjustment).await?;
    Ok(adjusted.wallet.balance)
}

/// A store with a hunt, one player and some finds, stopped; its file.
async fn stopped_store() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.put_hunt(spec()).await.unwrap().unwrap();
    grant(&store, 5).await.unwrap();
    let finds = (0..2_000).map(|n| {
        let new = NewFind {
            what: What::Coins(n),
            id: FindId::new(&format!("id-{n}")).ok(),
            found_at: None,
        };
        (PlayerId(n % 300), new)
    });
    store.record(&hunt(), finds.collect()).await.unwrap();
    store.stop().await.unwrap();
    let file = dir.path().join(FILE_NAME);
    (dir, file)
}

#[tokio::test]
async fn a_second_handle_is_told_that_the_store_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::InUse(_))));
    assert!(matches!(
        AuditStore::open(dir.path()),
        Err(OpenError::InUse(_))
    ));
    store.put_hunt(spec()).await.unwrap().unwrap();
    grant(&store, 1).await.unwrap();
    store.stop().await.unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(grant(&store, 2).await, Ok(3));
    store.stop().await.unwrap();
    assert!(matches!(
        grant(&store, 3).await,
        Err(StoreError::Unavailable(_))
    ));
}

#[tokio::test]
async fn many_who_make_the_same_store_at_once_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = Arc::new(dir.path().join("deep/er"));
    let openers: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || open(&path))
        })
        .collect();
    let mut stores = Vec::new();
    for opener in openers {
        match opener.join().unwrap() {
            Ok(store) => stores.push(store),
            Err(OpenError::InUse(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(stores.len(), 1);
}

#[tokio::test]
async fn what_is_left_of_a_crash_while_the_file_was_made_is_swept_away() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("trove.redb.new"), [7; 10_000]).unwrap();
    let store = open(dir.path()).unwrap();
    store.put_hunt(spec()).await.unwrap().unwrap();
    store.stop().await.unwrap();
    assert!(!dir.path().join("trove.redb.new").exists());
}

#[tokio::test]
async fn a_file_that_is_no_store_is_said_to_be_damaged_and_left_alone() {
    let mut random = Pcg64Mcg::seed_from_u64(seed());
    for length in [0, 1, 100, 4_096, 5_000, 300_000] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE_NAME);
        let bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
        fs::write(&file, &bytes).unwrap();
        let error = open(dir.path()).err().unwrap();
        assert!(
            matches!(error, OpenError::Damaged { .. }),
            "{length}: {error}"
        );
        assert!(error.to_string().contains("restore it from a backup"));
        assert_eq!(fs::read(&file).unwrap(), bytes, "{length}");
        let error = AuditStore::open(dir.path()).err().unwrap();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_truncated_file_is_said_to_be_damaged() {
    let (dir, file) = stopped_store().await;
    let whole = fs::read(&file).unwrap();
    for part in [0, 1, 50, 90] {
        let length = whole.len() * part / 100;
        fs::write(&file, &whole[..length]).unwrap();
        match open(dir.path()) {
            Err(OpenError::Damaged { .. }) => {}
            Err(other) => panic!("{part} %: {other}"),
            Ok(_) => panic!("{part} %: it opened"),
        }
    }
}

/// Flips bytes in one place. Whatever comes of it: no panic, no hang, and what opens and answers adds up or says that
/// it does not.
#[tokio::test]
async fn flipped_bytes_are_refused_or_found_or_do_not_matter() {
    let (dir, file) = stopped_store().await;
    let whole = fs::read(&file).unwrap();
    let mut random = Pcg64Mcg::seed_from_u64(seed());
    let (mut refused, mut found, mut unharmed) = (0, 0, 0);
    for _ in 0..60 {
        fs::write(&file, &whole).unwrap();
        let at = random.random_range(0..whole.len() as u64);
        let mut page = vec![0; 64.min(whole.len() - usize::try_from(at).unwrap())];
        random.fill(&mut page[..]);
        let handle = fs::OpenOptions::new().write(true).open(&file).unwrap();
        handle.write_all_at(&page, at).unwrap();
        drop(handle);
        let store = match open(dir.path()) {
            Ok(store) => store,
            Err(OpenError::Damaged { .. }) => {
                refused += 1;
                continue;
            }
            Err(other) => panic!("at {at}: {other}"),
        };
        let audit = store.verify(None).await;
        match audit {
            Ok(audits) if audits.iter().all(trove::store::HuntAudit::holds) => unharmed += 1,
            _ => found += 1,
        }
        // Writing must not hang or end the process either.
        let _ = grant(&store, 7).await;
        let _ = store.stop().await;
        if let Ok(audit) = AuditStore::open(dir.path()) {
            let _ = audit.verify(None);
        }
    }
    println!("refused {refused}, found by the audit {found}, unharmed {unharmed}");
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let (dir, file) = stopped_store().await;
    let db = redb::Database::open(&file).unwrap();
    let txn = db.begin_write().unwrap();
    let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    txn.open_table(meta)
        .unwrap()
        .insert("schema", [2].as_slice())
        .unwrap();
    txn.commit().unwrap();
    db.close().unwrap();
    match open(dir.path()) {
        Err(OpenError::TooNew { found: 2, known: 1 }) => {}
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = open(&file.join("store")).err().unwrap();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(error.to_string().contains("file/store"), "{error}");
    assert!(matches!(
        AuditStore::open(dir.path()),
        Err(OpenError::Missing(_))
    ));
}

#[tokio::test]
async fn a_clean_restart_keeps_the_epoch_and_a_restored_copy_begins_another() {
    let (dir, file) = stopped_store().await;
    let epoch_of = async || {
        let store = open(dir.path()).unwrap();
        let epoch = store.epoch();
        grant(&store, i64::try_from(epoch % 1_000_000).unwrap() + 10)
            .await
            .unwrap();
        store.stop().await.unwrap();
        epoch
    };
    let copy = dir.path().join("copy");
    let note = dir.path().join("incarnation");
    let note_copy = dir.path().join("incarnation.copy");
    let first = epoch_of().await;
    assert_eq!(epoch_of().await, first, "a clean restart");
    fs::copy(&file, &copy).unwrap();
    fs::copy(&note, &note_copy).unwrap();
    assert_eq!(epoch_of().await, first, "a copy taken");

    let mut seen = vec![first];
    // The copy is written over the file in place, by itself and with the note; then the file is replaced by it.
    for (with_note, in_place) in [(false, true), (true, true), (false, false), (true, false)] {
        if !in_place {
            fs::remove_file(&file).unwrap();
        }
        fs::copy(&copy, &file).unwrap();
        if with_note {
            fs::copy(&note_copy, &note).unwrap();
        }
        let epoch = epoch_of().await;
        assert!(
            !seen.contains(&epoch),
            "with the note {with_note}, in place {in_place}: {epoch} again"
        );
        assert_eq!(epoch_of().await, epoch, "and a clean restart after it");
        seen.push(epoch);
    }
    // The same incarnation, and the copy from before its last writes.
    fs::copy(&file, &copy).unwrap();
    fs::copy(&note, &note_copy).unwrap();
    // The file system's clock moves in steps; what is changed within one cannot be told apart.
    let changed = |path: &Path| {
        let file = fs::metadata(path).unwrap();
        (file.ctime(), file.ctime_nsec())
    };
    let probe = dir.path().join("probe");
    fs::write(&probe, "").unwrap();
    while changed(&probe) <= changed(&file) {
        fs::write(&probe, "x").unwrap();
    }
    fs::copy(&copy, &file).unwrap();
    fs::copy(&note_copy, &note).unwrap();
    assert!(!seen.contains(&epoch_of().await));
}

/// A small file system of its own, if one may be mounted.
struct SmallDisk(PathBuf, #[allow(dead_code)] TempDir);

impl SmallDisk {
    fn mount(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&path)
            .output();
        match done {
            Ok(done) if done.status.success() => Some(Self(path, dir)),
            Ok(done) => {
                let why = String::from_utf8_lossy(&done.stderr).into_owned();
                println!("skipped: mounting is not permitted here: {why}");
                None
            }
            Err(error) => {
                println!("skipped: mounting is not possible here: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_changes_nothing_and_works_again() {
    let Some(disk) = SmallDisk::mount("size=8m") else {
        return;
    };
    let ballast = disk.0.join("ballast");
    // Both ways of being full: below the limit that is kept free, and without a byte left.
    for min_free_bytes in [1 << 20, 0] {
        let dir = disk.0.join(format!("store-{min_free_bytes}"));
        let store = EmbeddedStore::open(Options {
            min_free_bytes,
            ..Options::new(&dir)
        })
        .unwrap();
        store.put_hunt(spec()).await.unwrap().unwrap();
        let mut balance = grant(&store, 1).await.unwrap();
        // As much as fits.
        let mut file = fs::File::create(&ballast).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4_096]).is_ok() {}
        let mut refused = 0;
        for coins in 2..3_000 {
            match grant(&store, coins).await {
                Ok(now) => balance = now,
                Err(StoreError::Full) => {
                    refused = coins;
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 0, "it never was full");
        assert_eq!(store.health(), Health::Full);
        let wallet = store.wallet(&hunt(), PlayerId(1)).await.unwrap();
        assert_eq!(wallet.balance, balance);
        fs::remove_file(&ballast).unwrap();
        drop(file);
        while store.health() != Health::Up {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let now = grant(&store, refused).await.unwrap();
        assert_eq!(now, balance + u64::try_from(refused).unwrap());
        assert!(store.verify(None).await.unwrap()[0].holds());
        store.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_file_system_mounted_read_only_is_named() {
    let Some(disk) = SmallDisk::mount("size=8m") else {
        return;
    };
    let store = open(&disk.0).unwrap();
    store.put_hunt(spec()).await.unwrap().unwrap();
    store.stop().await.unwrap();
    let done = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(&disk.0)
        .status();
    if !done.is_ok_and(|status| status.success()) {
        println!("skipped: remounting is not permitted here");
        return;
    }
    let error = open(&disk.0).err().unwrap();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    let audit = AuditStore::open(&disk.0).unwrap();
    assert_eq!(audit.verify(None).unwrap().unwrap().len(), 1);
}
