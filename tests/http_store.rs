//! Stores that cannot be used: each is a clear line and a status, and changes nothing.

#![allow(missing_docs, clippy::unwrap_used)]

mod http_site;

use http_site::{Ask, Site, trove, wait};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Starts a server that is to fail, and gives its last line.
fn fails(site: &Site, status: i32) -> String {
    let url = site.store_url();
    let listen = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"];
    let output = trove(
        &site.env,
        &[&["serve", "--store", &url], &listen[..]].concat(),
    )
    .output()
    .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{err}");
    let last = err.lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("trove: "), "{err}");
    // What is above it is the log, a JSON object a line.
    for line in err.lines().rev().skip(1) {
        assert!(line.starts_with('{'), "{err}");
    }
    last
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// A file system of so many bytes that goes away with the test; `None`, and said, where it may not be made.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(dir: &Path, bytes: u64) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs", dir.to_str().unwrap()])
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(dir.to_owned()));
        }
        println!("no file system can be mounted here: this test needs root");
        None
    }

    fn remount(&self, how: &str) {
        let done = run(
            "mount",
            &["-o", &format!("remount,{how}"), self.0.to_str().unwrap()],
        );
        assert!(done.status.success(), "{done:?}");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["-l", self.0.to_str().unwrap()])
            .output();
    }
}

#[test]
fn a_second_server_on_the_same_store_ends_and_the_first_goes_on() {
    let site = Site::start();
    site.open_h();
    let said = fails(&site, 3);
    assert!(
        said.contains("another process is using the store"),
        "{said}"
    );
    site.player("ann").finds("r", "one");
    assert!(
        site.store().join("trove.sock").exists(),
        "the socket is still the first one's"
    );
    site.verifies();
}

#[test]
fn a_damaged_file_is_named_and_left_as_it_is() {
    let mut site = Site::start();
    site.open_h();
    for n in 0..50 {
        site.player(&format!("p{n}")).finds("r", "one");
    }
    assert!(site.stop().success());
    let file = site.store().join("trove.redb");
    let whole = fs::read(&file).unwrap();
    let overwritten = |from: usize, to: usize| {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0xa5);
        bytes
    };
    for (what, bytes) in [
        (
            "no store at all",
            b"this is a text and no store\n".repeat(1_000),
        ),
        ("the head overwritten", overwritten(0, 512)),
        ("cut in the head", whole[..100].to_vec()),
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("empty", Vec::new()),
    ] {
        fs::write(&file, &bytes).unwrap();
        let said = fails(&site, 3);
        assert!(
            said.contains("damaged") && said.contains("restore it from a backup"),
            "{what}: {said}"
        );
        let verify = site.run(&["verify"]);
        assert_eq!(verify.status.code(), Some(3), "{what}: {verify:?}");
        assert_eq!(String::from_utf8(verify.stderr).unwrap().lines().count(), 1);
        assert!(
            fs::read(&file).unwrap() == bytes,
            "{what}: the file was changed"
        );
    }
    fs::write(&file, &whole).unwrap();
    site.start_again();
    assert_eq!(site.player("p7").poll()["pending"].as_u64().unwrap() + 3, 3);
    site.verifies();
}

#[test]
fn a_directory_that_cannot_be_is_named() {
    let site = Site::stopped(&[]);
    let file = site.dir().join("file");
    fs::write(&file, "x").unwrap();
    let site = site.store_in(&file.join("store"));
    // With its keys in the environment nothing is written before the store is.
    let said = fails(&site, 3);
    assert!(
        said.contains("cannot open the store in") && said.contains("Not a directory"),
        "{said}"
    );
    let missing = site.run(&["verify"]);
    assert!(matches!(missing.status.code(), Some(2 | 3)), "{missing:?}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let site = Site::stopped(&[]);
    let dir = site.dir().join("read-only");
    let Some(small) = Small::mount(&dir, 1 << 20) else {
        return;
    };
    small.remount("ro");
    let site = site.store_in(&dir.join("store"));
    let said = fails(&site, 3);
    assert!(
        said.contains("cannot open the store in") && said.contains("Read-only"),
        "{said}"
    );
}

#[test]
fn an_address_in_use_is_named() {
    let site = Site::start();
    let other = Site::stopped(&[]);
    let address = site.public().to_string();
    let url = other.store_url();
    let output = trove(
        &other.env,
        &["serve", "--store", &url, "--listen", &address],
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let err = String::from_utf8(output.stderr).unwrap();
    let last = err.lines().last().unwrap();
    assert!(
        last.contains(&format!("cannot listen on {address}")),
        "{last}"
    );
}

/// Fills a disk under a server in one of two ways, and gives the space back. Where the server itself keeps away from the
/// end of the disk, nothing is written any more; where it runs into the end, something small may still fit.
fn full_disk(min_free_bytes: &str) {
    let keeps_away = min_free_bytes != "0";
    let site = Site::stopped(&[
        ("store.min_free_bytes", min_free_bytes),
        ("poll.credit_wait_ms", "100"),
    ]);
    let dir = site.dir().join("small");
    let Some(_small) = Small::mount(&dir, 24 << 20) else {
        return;
    };
    let mut site = site.store_in(&dir.join("store"));
    site.start_again();
    site.open_h();
    let (mut ann, mut bob) = (site.player("ann"), site.player("bob"));
    ann.finds("r", "one");
    wait("the credit", || ann.poll()["balance"] == 3);
    ann.finds("r", "two");
    bob.finds("r", "one");
    let filler = dir.join("filler");
    // Nothing more is to fit; the copy ends when the disk does.
    let _ = fs::write(&filler, vec![7u8; 32 << 20]);
    let mut acknowledged = vec!["one".to_owned(), "two".to_owned()];
    let mut full = false;
    // A file that has room inside takes a few more.
    for n in 0..20_000 {
        let id = format!("f{n}");
        let answer = bob.find(&json!({"treasure": "r", "id": id}));
        match answer.status {
            201 => acknowledged.push(id),
            429 => drop(bob.poll()),
            _ => {
                answer.is_problem(503, "store_full");
                assert!(answer.field("retry-after").is_some());
                full = true;
                break;
            }
        }
    }
    assert!(full, "the disk is full and every find was recorded");
    let poll = ann.poll();
    let (balance, pending) = (
        poll["balance"].as_u64().unwrap(),
        poll["pending"].as_u64().unwrap(),
    );
    assert_eq!(balance + pending, 6, "polls go on, from memory: {poll}");
    assert!(poll.get("stale").is_none());
    let grant = json!({"coins": 1, "reason": "r", "key": "k"}).to_string();
    let granted = site.manage(Ask::post("/hunts/h/players/ann/adjust", grant.clone()));
    let new = site.player("new").send(Ask::get("/treasure/h"));
    for answer in [granted, new] {
        if keeps_away || answer.status != 200 {
            answer.is_problem(503, "store_full");
        }
    }
    if keeps_away {
        assert_eq!(
            site.client().send(Ask::get("/health")).is(200)["store"],
            "full"
        );
    }
    let history = ann.send(Ask::get("/treasure/h/history")).is(200);
    assert!(!history["entries"].as_array().unwrap().is_empty());
    fs::remove_file(&filler).unwrap();
    wait("the store to find its room", || {
        site.client().send(Ask::get("/health")).is(200)["store"] == "up"
    });
    site.manage(Ask::post("/hunts/h/players/ann/adjust", grant))
        .is(200);
    wait("what was pending to be credited", || {
        ann.poll()["balance"] == 7
    });
    bob.finds("r", "after");
    let rows = site.export("h");
    for id in acknowledged {
        assert!(
            rows.iter()
                .any(|row| row["kind"] == "find" && row["find"] == id),
            "{id} is gone"
        );
    }
    site.verifies();
    site.kill();
    site.start_again();
    assert_eq!(site.player("ann").poll()["balance"], 7);
    site.verifies();
}

#[test]
fn a_disk_that_is_full_refuses_finds_and_loses_none() {
    full_disk("0");
}

#[test]
fn a_disk_that_is_about_to_be_full_refuses_finds_and_loses_none() {
    full_disk("4194304");
}

#[test]
fn a_disk_that_is_full_from_the_start_is_named() {
    let site = Site::stopped(&[("store.min_free_bytes", "0")]);
    let dir = site.dir().join("small");
    let Some(_small) = Small::mount(&dir, 1 << 20) else {
        return;
    };
    let _ = fs::write(dir.join("filler"), vec![7u8; 2 << 20]);
    let site = site.store_in(&dir.join("store"));
    let said = fails(&site, 3);
    assert!(
        said.contains("No space left") || said.contains("full"),
        "{said}"
    );
}
