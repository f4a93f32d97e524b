//! A Redis whose append-only file has no room left, as clients outside see it. The disk is a `tmpfs` of the test's own, which
//! only root may mount: where that is not allowed the test says so and is skipped.

#![allow(clippy::unwrap_used)]

mod http_site;
mod redis_server;

use http_site::{Ask, Player, Site, wait};
use redis_server::Server;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk; unmounted when dropped.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { dir }),
            other => {
                eprintln!(
                    "SKIPPED: a disk that can be filled cannot be mounted here; it needs root: {other:?}"
                );
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Writes until there is no room for one byte more.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let mut size = 1 << 20;
        while size > 0 {
            match file.write(&vec![0; size]) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => size /= 2,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .output();
    }
}

/// A player, and the finds that were acknowledged.
struct Phone {
    player: Player,
    name: String,
    acknowledged: Vec<String>,
    asked: usize,
}

impl Phone {
    /// Asks for the next find. Gives the code of its refusal, if it is refused; it is asked for again then.
    fn finds(&mut self) -> Option<String> {
        let id = format!("{}-{}", self.name, self.asked);
        let answer = self.player.find(&json!({"treasure": "r", "id": id}));
        if matches!(answer.status, 200 | 201) {
            self.acknowledged.push(id);
            self.asked += 1;
            return None;
        }
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.field("retry-after").is_some());
        Some(answer.json()["code"].as_str().unwrap().to_owned())
    }

    fn coins(&self) -> u64 {
        self.acknowledged.len() as u64 * 3
    }
}

fn through_a_full_disk(
    redis: &mut Server,
    disk: &Disk,
    players: usize,
    settings: &[(&str, &str)],
    refusals: &[&str],
) {
    let mut all = vec![
        ("poll.jitter", "0"),
        ("store.connect_wait_ms", "30000"),
        ("store.response_timeout_ms", "1500"),
        // Nothing is brought back: what was acknowledged is on the disk.
        ("store.replay_bytes_max", "0"),
    ];
    all.extend(settings);
    let mut site = Site::stopped(&all).store_at(&redis.url());
    site.start_again();
    site.open_h();
    let mut phones: Vec<Phone> = (0..players)
        .map(|n| Phone {
            player: site.player(&format!("p{n}")),
            name: format!("p{n}"),
            acknowledged: Vec::new(),
            asked: 0,
        })
        .collect();
    for phone in &mut phones {
        assert_eq!(phone.finds(), None);
        wait("the first find to be credited", || {
            phone.player.poll()["balance"] == 3
        });
    }
    let health = |is: &str| {
        wait(&format!("the store to be {is}"), || {
            site.client().send(Ask::get("/health")).json()["store"] == is
        });
    };
    health("up");
    disk.fill();
    // The file's last page may have room for a few.
    for phone in &mut phones {
        let mut refused = None;
        wait("a find to be refused", || {
            refused = phone.finds();
            refused.is_some()
        });
        let refused = refused.unwrap();
        assert!(refusals.contains(&refused.as_str()), "{refused}");
    }
    // Where an answer must be safe, a find that was written before the file was found to be full is one that nobody knows the
    // fate of: what its player sees may be old.
    let may_be_old = refusals.contains(&"not_durable");
    if !may_be_old {
        health("full");
    }
    for _ in 0..20 {
        for phone in &mut phones {
            let answer = phone.player.poll();
            let sum = |name: &str| answer[name].as_u64().unwrap();
            assert!(may_be_old || answer.get("stale").is_none(), "{answer}");
            assert!(
                sum("balance") >= 3 && sum("balance") <= phone.coins(),
                "{answer}"
            );
        }
    }
    disk.empty();
    for phone in &mut phones {
        wait("finds to be taken again", || phone.finds().is_none());
        let coins = phone.coins();
        wait("all to be credited", || {
            phone.player.poll()["balance"] == coins
        });
    }
    health("up");
    // What the server wrote survives its end.
    wait("the file to be written", || {
        let info: String = redis.run(&["INFO", "persistence"]);
        [
            "aof_last_write_status:ok",
            "aof_buffer_length:0",
            "aof_pending_bio_fsync:0",
        ]
        .iter()
        .all(|line| info.lines().any(|is| is == *line))
    });
    redis.start_again();
    for phone in &mut phones {
        let coins = phone.coins();
        wait("the balance to be true", || {
            let answer = phone.player.poll();
            answer.get("stale").is_none() && answer["balance"] == coins
        });
        for id in &phone.acknowledged {
            let again = phone.player.find(&json!({"treasure": "r", "id": id}));
            assert_eq!(again.is(200)["duplicate"], true, "{id}");
        }
    }
    let finds: usize = phones.iter().map(|phone| phone.acknowledged.len()).sum();
    println!("{finds} finds were acknowledged, each of them is there");
    site.verifies();
}

fn args(disk: &Disk) -> Vec<String> {
    let words = [
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--auto-aof-rewrite-percentage",
        "0",
        "--dir",
    ];
    let mut args: Vec<String> = words.map(str::to_owned).into();
    args.push(disk.path().to_str().unwrap().to_owned());
    args
}

#[test]
fn a_redis_whose_disk_is_full_takes_no_finds_and_loses_none() {
    let Some(disk) = Disk::mount() else {
        return;
    };
    let args = args(&disk);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut redis = Server::with(&args);
    through_a_full_disk(&mut redis, &disk, 6, &[], &["store_full"]);
    drop(redis);
}

#[test]
fn with_fsync_no_find_is_acknowledged_that_a_full_disk_does_not_have() {
    let Some(binary) = redis_server::with_waitaof() else {
        return;
    };
    let Some(disk) = Disk::mount() else {
        return;
    };
    let args = args(&disk);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut redis = Server::of(&binary, &args);
    let settings = [
        ("store.durability", "fsync"),
        ("store.durability_wait_ms", "3000"),
        // A fence may have to wait for the one before it.
        ("store.find_wait_ms", "10000"),
    ];
    // What was written before the file was found to be full has an answer that is not safe.
    let refusals = ["store_full", "not_durable"];
    through_a_full_disk(&mut redis, &disk, 2, &settings, &refusals);
    drop(redis);
}
