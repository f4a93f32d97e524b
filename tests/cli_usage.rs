//! The command line from outside: help, statuses, one-line errors, settings, tokens, keys, the simulation.

#![allow(missing_docs, clippy::unwrap_used)]

mod cli_support;

use cli_support::Trove;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Child;
use std::time::{SystemTime, UNIX_EPOCH};

const KEY: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn every_command_has_help() {
    let trove = Trove::new();
    for command in [
        "",
        "serve",
        "shim",
        "shim switch",
        "token",
        "hunt",
        "hunt put",
        "hunt list",
        "hunt show",
        "hunt open",
        "hunt close",
        "hunt archive",
        "adjust",
        "reinstate",
        "export",
        "verify",
        "store",
        "store info",
        "store accept",
        "sla",
        "sla rules",
        "config",
        "openapi",
        "simulate",
    ] {
        for flag in ["--help", "-h"] {
            let args: Vec<&str> = command.split_whitespace().chain([flag]).collect();
            let help = trove.run(&args).succeeds();
            let usage = format!("Usage: trove {command}");
            assert!(help.contains(usage.trim_end()), "{command}: {help}");
        }
    }
    assert_eq!(
        trove.run(&["--version"]).succeeds(),
        format!("trove {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn what_later_versions_bring_does_not_exist_yet() {
    let trove = Trove::new();
    for command in ["soak", "board", "recording"] {
        trove
            .run(&[command])
            .fails(2, &format!("unrecognized subcommand '{command}'"));
    }
}

#[test]
fn wrong_usage_is_one_line_that_leads_to_help() {
    let trove = Trove::new();
    for (args, part) in [
        ("", "requires a subcommand"),
        ("hunt", "see trove hunt --help"),
        ("hunt put", "<FILE>; see trove hunt put --help"),
        ("hunt shwo", "'show'"),
        (
            "hunt show a/b",
            "may only hold the characters A-Z a-z 0-9 . _ -; see trove hunt show --help",
        ),
        ("token", "<PLAYER>"),
        ("token a --count 2 --prefix p", "cannot be used with"),
        ("token --count 2", "--prefix <P>"),
        ("token --count 0 --prefix p", "0 is not in"),
        ("token a --ttl 1w", "must be a number with s, m, h or d"),
        ("token ä", "may only hold the characters"),
        (
            "adjust h p 0 --reason r --key k",
            "a whole number other than 0",
        ),
        (
            "adjust h p -1.5 --reason r --key k",
            "a whole number other than 0",
        ),
        ("adjust h p 5", "--reason <TEXT> --key <KEY>"),
        (
            "reinstate h --from noon --to 5",
            "milliseconds since the epoch, or a time such as",
        ),
        (
            "reinstate h --from 6 --to 5",
            "--to must not be before --from",
        ),
        ("export h --format xml", "must be jsonl or csv"),
        ("verify a b", "unexpected argument 'b'"),
        ("config x", "unexpected argument 'x'"),
        ("simulate --hours 0", "0 is not in"),
        ("serve --port 1", "unexpected argument '--port'"),
        ("hunt show h --server https://h", "speaks http only"),
        ("hunt show h --server h:1", "must be http://HOST:PORT"),
        ("hunt show h --server http://u:p@h", "without a user"),
    ] {
        let args: Vec<&str> = args.split_whitespace().collect();
        trove.run(&args).fails(2, part);
    }
}

#[test]
fn output_that_nobody_reads_to_the_end_is_no_error() {
    let trove = Trove::new().env("TROVE_TOKEN_KEY", KEY);
    let mut child = trove
        .command(&["token", "--count", "100000", "--prefix", "p"])
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = trove.command(&["config"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(
        output
            .stderr
            .starts_with(b"trove: cannot write the output: ")
    );
}

#[test]
fn the_printed_settings_are_taken_as_a_file() {
    let trove = Trove::new();
    let printed = trove.run(&["config"]).succeeds();
    assert_eq!(printed, include_str!("../config/trove.toml"));
    let file = trove.file(
        "t.toml",
        &printed.replace("drain_ms = 5000", "drain_ms = 5000\ndrain_sm = 1"),
    );
    trove.run(&["serve", "--config", &file]).fails(
        2,
        "t.toml: there is no setting server.drain_sm, perhaps server.drain_ms is meant",
    );
}

#[test]
fn wrong_settings_are_one_line_that_names_source_and_setting() {
    let serve = |text: &str, env: &[(&str, &str)], flags: &[&str]| {
        let trove = Trove::new();
        let file = trove.file("t.toml", text);
        let trove = env
            .iter()
            .fold(trove, |trove, (name, value)| trove.env(name, value));
        trove.run(&[&["serve", "--config", &file], flags].concat())
    };
    serve("[poll]\ninterval_ms = 1", &[], &[])
        .fails(2, "poll.interval_ms is 1; it must be 100 to 3600000");
    serve("[poll\n", &[], &[]).fails(2, "t.toml, line 1: ");
    serve("", &[("TROVE_POLL__JITTER", "9")], &[]).fails(2, "TROVE_POLL__JITTER: poll.jitter is 9");
    serve("", &[("TROVE_POL__JITTER", "9")], &[]).fails(2, "perhaps poll.jitter is meant");
    serve("", &[], &["--listen", "x"]).fails(2, "--listen: server.listen is \"x\"");
    serve("", &[], &["--store", "mysql://h:1"]).fails(2, "is a mysql address");
    serve("", &[], &["--store", "redis://h"]).fails(2, "set TROVE_TOKEN_KEY");
    serve("", &[], &["--ops-listen", "127.0.0.1:8080"])
        .fails(2, "server.ops_listen (127.0.0.1:8080)");
    serve("", &[("TROVE_TOKEN_KEY", "short")], &[])
        .fails(2, "TROVE_TOKEN_KEY: the token key is 5 bytes long");
    Trove::new()
        .run(&["serve", "--config", "none.toml"])
        .fails(2, "cannot read the settings file none.toml");
}

/// A server that is ended when the test is.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, waits until it has made its keys, and ends it.
fn make_keys(trove: &Trove, args: &[&str], dir: &Path) {
    let ports = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--ops-listen",
        "127.0.0.1:0",
    ];
    let mut server = Server(trove.command(&[&ports, args].concat()).spawn().unwrap());
    let made = || dir.join("token.key").exists() && dir.join("admin.key").exists();
    while !made() {
        if server.0.try_wait().unwrap().is_some() {
            assert!(made(), "the server ended without keys in {}", dir.display());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn flags_stand_above_the_environment_and_that_above_the_file() {
    let trove = Trove::new().env("TROVE_STORE__URL", "embedded:./by-env");
    let file = trove.file("t.toml", "[store]\nurl = \"embedded:./by-file\"\n");
    let dir = |name: &str| trove.dir.0.join(name);
    make_keys(
        &trove,
        &["--config", &file, "--store", "embedded:./by-flag"],
        &dir("by-flag"),
    );
    assert!(!dir("by-env").exists() && !dir("by-file").exists());
    make_keys(&trove, &["--config", &file], &dir("by-env"));
    assert!(!dir("by-file").exists());
}

#[test]
fn keys_that_a_server_makes_are_private_and_sign_tokens() {
    let trove = Trove::new();
    let dir = trove.dir.0.join("trove-data");
    trove
        .run(&["token", "anna"])
        .fails(2, "there is no token key; set TROVE_TOKEN_KEY");
    assert!(!dir.exists(), "asking for a token made a store's directory");
    make_keys(&trove, &[], &dir);
    let mode = |name: &str| {
        std::fs::metadata(dir.join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        (mode("token.key"), mode("admin.key"), mode("")),
        (0o600, 0o600, 0o700)
    );
    let key = std::fs::read_to_string(dir.join("token.key")).unwrap();
    for store in ["trove-data", "embedded:trove-data"] {
        let token = trove.run(&["token", "anna", "--store", store]).succeeds();
        verify(token.trim_end(), key.trim_end());
    }
    std::fs::set_permissions(dir.join("token.key"), PermissionsExt::from_mode(0o644)).unwrap();
    trove.run(&["token", "anna"]).fails(
        2,
        "token.key can be read by others (mode 644); run: chmod 600",
    );
}

/// Verifies a token without the product's code: its header and its claims.
fn verify(token: &str, key: &str) -> (serde_json::Value, serde_json::Value) {
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, payload) = message.split_once('.').unwrap();
    let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.chain_update(message)
        .verify_slice(&base64(signature))
        .unwrap();
    let json = |part| serde_json::from_slice(&base64(part)).unwrap();
    (json(header), json(payload))
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |byte: u8| (0u32..).zip(DIGITS).find(|(_, d)| **d == byte).unwrap().0;
    let chunks = text.as_bytes().chunks(4).flat_map(|chunk| {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 6 | digit(*byte));
        let bits = bits << (6 * (4 - chunk.len()));
        (0..chunk.len() - 1).map(move |i| (bits >> (16 - 8 * i) & 0xFF) as u8)
    });
    chunks.collect()
}

#[test]
fn a_token_says_who_since_when_and_until_when() {
    let trove = Trove::new().env("TROVE_TOKEN_KEY", KEY);
    let seconds = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let before = seconds();
    let out = trove
        .run(&["token", "anna", "bob@example.org", "--ttl", "90m"])
        .succeeds();
    let after = seconds();
    let tokens: Vec<_> = out.lines().map(|token| verify(token, KEY)).collect();
    let players: Vec<_> = tokens
        .iter()
        .map(|(_, claims)| claims["sub"].as_str().unwrap())
        .collect();
    assert_eq!(players, ["anna", "bob@example.org"]);
    for (header, claims) in &tokens {
        assert_eq!(*header, serde_json::json!({"typ": "JWT", "alg": "HS256"}));
        let iat = claims["iat"].as_u64().unwrap();
        assert!((before..=after).contains(&iat));
        assert_eq!(claims["exp"], iat + 90 * 60);
    }
}

#[test]
fn many_tokens_are_numbered_from_one() {
    let trove = Trove::new().env("TROVE_TOKEN_KEY", KEY);
    let out = trove
        .run(&["token", "--count", "3", "--prefix", "p-"])
        .succeeds();
    let player = |token| verify(token, KEY).1["sub"].as_str().unwrap().to_owned();
    assert_eq!(
        out.lines().map(player).collect::<Vec<_>>(),
        ["p-1", "p-2", "p-3"]
    );
    let long = "p".repeat(126);
    let ran = trove.run(&["token", "--count", "100", "--prefix", &long]);
    ran.fails(2, "must be 1 to 128 characters long");
    assert_eq!(ran.out, "");
}

#[test]
fn the_first_key_of_a_file_signs_and_is_named() {
    let trove = Trove::new();
    let file = trove.file(
        "keys",
        &format!("# May\nmay:{KEY}\napril:{}\n", KEY.to_uppercase()),
    );
    let trove = trove.env("TROVE_AUTH__TOKEN_KEYS_FILE", &file);
    let token = trove.run(&["token", "anna"]).succeeds();
    assert_eq!(verify(token.trim_end(), KEY).0["kid"], "may");
    let trove = trove.env("TROVE_TOKEN_KEY", KEY);
    trove
        .run(&["token", "anna"])
        .fails(2, "both TROVE_TOKEN_KEY and auth.token_keys_file are set");
}

#[test]
fn a_simulation_gives_the_same_counts_for_the_same_seed() {
    let trove = Trove::new();
    let counts = |seed: &str, threads: &str| {
        let out = trove
            .run(&[
                "simulate",
                "--hours",
                "3",
                "--players",
                "20",
                "--seed",
                seed,
                "--threads",
                threads,
            ])
            .succeeds();
        let (counts, timing) = out.trim_end().rsplit_once('\n').unwrap();
        assert!(timing.starts_with("took "), "{out}");
        counts.to_owned()
    };
    let first = counts("7", "1");
    assert_eq!(first, counts("7", "2"));
    let polls = first
        .lines()
        .find(|line| line.starts_with("polls "))
        .unwrap();
    assert!(polls.ends_with(" 180000"), "{first}");
    assert!(first.ends_with("every invariant holds"), "{first}");
    let digest = |out: &str| {
        out.lines()
            .find(|line| line.starts_with("digest"))
            .map(str::to_owned)
    };
    assert_ne!(digest(&first), digest(&counts("8", "1")));
}
