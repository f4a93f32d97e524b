//! `trove export` and `trove verify`, on stores made through the library and through a server's socket.

#![allow(missing_docs, clippy::unwrap_used)]

mod cli_support;

use cli_support::{Trove, socket_server};
use redb::{Database, TableDefinition};
use serde_json::Value;
use std::path::Path;
use trove::game::document::HuntDocument;
use trove::game::entry::{Adjustment, Totals};
use trove::game::hunt::LifeStep;
use trove::game::ids::{HuntId, PlayerName, TreasureId};
use trove::game::rules::{NewFind, What};
use trove::store::embedded::{EmbeddedStore, Options};
use trove::store::{Opening, Store};

/// Makes a store with two hunts: in `h` anna has collected 5 of her coins and was given 2, bob has 7 pending; `empty` has
/// nothing. The store stays open until it is stopped.
async fn make(dir: &Path) -> EmbeddedStore {
    let store = EmbeddedStore::open(Options::new(dir)).unwrap();
    for document in [
        r#"{"id":"h","name":"H","treasures":[{"id":"oak","coins":5},{"id":"elm","coins":7}]}"#,
        r#"{"id":"empty","name":"E","treasures":[]}"#,
    ] {
        let document: HuntDocument = serde_json::from_str(document).unwrap();
        store
            .put_hunt(document.validate().unwrap())
            .await
            .unwrap()
            .unwrap();
    }
    let hunt = HuntId::new("h").unwrap();
    store
        .step_hunt(&hunt, LifeStep::Open)
        .await
        .unwrap()
        .unwrap();
    let opening = |name| Opening {
        name: PlayerName::new(name).unwrap(),
        issued_at: None,
        known: None,
    };
    let players = store
        .open_players(vec![opening("anna"), opening("bob")])
        .await
        .unwrap();
    let (anna, bob) = (players[0].unwrap(), players[1].unwrap());
    let find = |treasure| NewFind {
        what: What::Treasure(TreasureId::new(treasure).unwrap()),
        id: None,
        found_at: None,
    };
    let finds = vec![(anna, find("oak")), (bob, find("elm"))];
    let recorded = store.record(&hunt, finds).await.unwrap();
    assert!(recorded.outcomes.iter().all(Result::is_ok));
    store.credit(&hunt, anna).await.unwrap();
    let adjustment = Adjustment {
        coins: 2,
        reason: "because, well".into(),
        key: "k".into(),
        by: "admin".into(),
    };
    store
        .adjust(&hunt, anna, adjustment)
        .await
        .unwrap()
        .outcome
        .unwrap();
    store
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn with_store() -> Trove {
    let trove = Trove::new();
    runtime().block_on(async {
        let store = make(&trove.dir.0.join("data")).await;
        store.stop().await.unwrap();
    });
    trove
}

#[test]
fn a_store_that_adds_up_is_verified_with_its_sums() {
    let trove = with_store();
    let out = trove.run(&["verify", "--store", "data"]).succeeds();
    let line = "  recorded 14 = credited 7 + expired 0 + pending 7 + revoked 0\n";
    assert!(
        out.contains("h: adds up\n") && out.contains("empty: adds up\n"),
        "{out}"
    );
    assert!(
        out.contains(line) && out.contains("  2 wallets, 4 entries, as of feed position "),
        "{out}"
    );
    let out = trove
        .run(&["verify", "h", "--store", "embedded:data"])
        .succeeds();
    assert!(out.contains(line) && !out.contains("empty"), "{out}");
    trove
        .run(&["verify", "none", "--store", "data"])
        .fails(1, "there is no hunt none in data");
    trove
        .run(&["verify", "--store", "nowhere"])
        .fails(2, "there is no store in nowhere; name its directory");
}

#[test]
fn a_store_that_does_not_add_up_fails() {
    let trove = with_store();
    {
        let totals: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("totals");
        let db = Database::open(trove.dir.0.join("data/trove.redb")).unwrap();
        let txn = db.begin_write().unwrap();
        let wrong = Totals {
            recorded: 15,
            credited: 8,
            pending: 7,
            ..Totals::default()
        };
        {
            use redb::ReadableTable;
            let mut table = txn.open_table(totals).unwrap();
            let hunts: Vec<u32> = table
                .iter()
                .unwrap()
                .map(|row| row.unwrap().0.value())
                .collect();
            for hunt in hunts {
                table
                    .insert(
                        hunt,
                        postcard::to_stdvec(&(wrong, 1_u64)).unwrap().as_slice(),
                    )
                    .unwrap();
            }
        }
        txn.commit().unwrap();
    }
    let ran = trove.run(&["verify", "h", "--store", "data"]);
    ran.fails(
        1,
        "the ledger does not add up in h; stop the server and keep a copy of data",
    );
    assert!(ran.out.contains("h: DOES NOT ADD UP\n"), "{ran:?}");
    assert!(
        ran.out
            .contains("  wrong: the totals say recorded 15, the ledger says 14\n"),
        "{ran:?}"
    );
}

#[test]
fn a_damaged_store_is_out_of_reach() {
    let trove = with_store();
    let path = trove.dir.0.join("data/trove.redb");
    let whole = std::fs::read(&path).unwrap();
    let commands = [&["verify"][..], &["export", "h"]];
    let run = |command: &[&str]| trove.run(&[command, &["--store", "data"]].concat());
    std::fs::write(&path, b"no store at all").unwrap();
    for command in commands {
        run(command).fails(3, "trove.redb is damaged or not a store");
    }
    // Wherever the file is cut or overwritten, it is one line, whatever the line says.
    let pages = 4_096..whole.len();
    for at in pages.step_by(whole.len() / 24) {
        let mut zeroed = whole.clone();
        zeroed[at..(at + 4_096).min(whole.len())].fill(0xFF);
        for bytes in [&whole[..at], &zeroed] {
            std::fs::write(&path, bytes).unwrap();
            for command in commands {
                let ran = run(command);
                if ran.status != 0 {
                    assert!([1, 3].contains(&ran.status), "{at}: {ran:?}");
                    ran.fails(ran.status, "");
                }
            }
        }
    }
}

#[test]
fn an_export_as_json_lines_has_every_wallet_and_its_entries() {
    let trove = with_store();
    let out = trove.run(&["export", "h", "--store", "data"]).succeeds();
    let rows: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &str| {
        let start = rows.iter().position(|row| row["name"] == name).unwrap();
        let player = &rows[start]["player"];
        rows[start..]
            .iter()
            .take_while(|row| row["player"] == *player)
            .collect::<Vec<_>>()
    };
    let (anna, bob) = (of("anna"), of("bob"));
    assert_eq!(anna.len() + bob.len(), rows.len());
    let kinds = |rows: &[&Value]| {
        rows.iter()
            .map(|row| row["kind"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&anna), ["wallet", "find", "credit", "adjust"]);
    assert_eq!(kinds(&bob), ["wallet", "find"]);
    assert_eq!(
        (anna[0]["balance"].as_u64(), anna[0]["seq"].as_u64()),
        (Some(7), Some(3))
    );
    assert_eq!(
        (bob[0]["balance"].as_u64(), bob[0]["pending"].as_u64()),
        (Some(0), Some(7))
    );
    assert_eq!(
        (
            &anna[2]["treasure"],
            &anna[2]["coins"],
            &anna[2]["find_seq"]
        ),
        (&"oak".into(), &5.into(), &1.into())
    );
    assert_eq!(
        (&anna[3]["reason"], &anna[3]["by"]),
        (&"because, well".into(), &"admin".into())
    );
}

#[test]
fn an_export_as_csv_has_the_same_rows_under_names() {
    let trove = with_store();
    let csv = trove
        .run(&["export", "h", "--format", "csv", "--store", "data"])
        .succeeds();
    let jsonl = trove
        .run(&["export", "h", "--format", "jsonl", "--store", "data"])
        .succeeds();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let names = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), jsonl.lines().count());
    for (row, line) in rows.iter().zip(jsonl.lines()) {
        let json: Value = serde_json::from_str(line).unwrap();
        for (name, cell) in names.iter().zip(row) {
            let expected = match &json[name] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(cell, expected, "{name} of {line}");
        }
    }
    assert_eq!(
        trove
            .run(&["export", "empty", "--format", "csv", "--store", "data"])
            .succeeds()
            .lines()
            .count(),
        1
    );
    let ran = trove.run(&["export", "none", "--store", "data"]);
    ran.fails(1, "there is no hunt none in data");
    assert_eq!(ran.out, "");
}

#[test]
fn a_store_in_use_is_asked_through_its_server() {
    let trove = Trove::new();
    // Longer than the path of a socket may be.
    let name = "d".repeat(120);
    let dir = trove.dir.0.join(&name);
    let runtime = runtime();
    let store = runtime.block_on(make(&dir));

    trove
        .run(&["verify", "--store", &name])
        .fails(3, "cannot reach the server that uses ");

    let seen = socket_server(
        &dir,
        "200 OK\n{\"holds\":true,\"hunts\":[{\"hunt\":\"h\",\"holds\":true,\"feed_position\":9,\
        \"wallets\":1,\"entries\":2,\"sums\":{\"recorded\":5,\"credited\":5,\"expired\":0,\"pending\":0,\"revoked\":0},\
        \"discrepancies\":[],\"discrepancy_count\":0}]}",
    );
    let out = trove.run(&["verify", "h", "--store", &name]).succeeds();
    assert_eq!(seen.recv().unwrap().line, "GET /verify?hunt=h HTTP/1.1");
    assert!(
        out.contains("1 wallets, 2 entries, as of feed position 9"),
        "{out}"
    );

    let again = |answer| {
        std::fs::remove_file(dir.join("trove.sock")).unwrap();
        socket_server(&dir, answer)
    };
    let seen = again(
        "200 OK\n{\"holds\":false,\"hunts\":[{\"hunt\":\"h\",\"holds\":false,\"feed_position\":9,\
        \"wallets\":1,\"entries\":2,\"sums\":{\"recorded\":6,\"credited\":5,\"expired\":0,\"pending\":0,\"revoked\":0},\
        \"discrepancies\":[\"one\"],\"discrepancy_count\":3}]}",
    );
    let ran = trove.run(&["verify", "--store", &name]);
    assert_eq!(seen.recv().unwrap().line, "GET /verify HTTP/1.1");
    ran.fails(1, "does not add up in h");
    assert!(ran.out.contains("  wrong: one\n  and 2 more\n"), "{ran:?}");

    let seen = again("200 OK\na,b\n1,2\n");
    let out = trove
        .run(&["export", "h", "--format", "csv", "--store", &name])
        .succeeds();
    assert_eq!(
        seen.recv().unwrap().line,
        "GET /export/h?format=csv HTTP/1.1"
    );
    assert_eq!(out, "a,b\n1,2\n");

    again(
        "404 Not Found\n{\"detail\":\"there is no hunt with this id\",\"code\":\"no_such_hunt\"}",
    );
    trove
        .run(&["export", "none", "--store", &name])
        .fails(1, "there is no hunt with this id (no_such_hunt)");

    runtime.block_on(store.stop()).unwrap();
    trove.run(&["verify", "--store", &name]).succeeds();
}
