//! The embedded store under the conformance suite.

use crate::store_suite::world::{Fixture, START};
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle};
use std::sync::Arc;
use tempfile::TempDir;
use trove::game::rules::Limits;
use trove::store::Store;
use trove::store::clock::ManualTime;
use trove::store::embedded::{EmbeddedStore, Options};

/// An embedded store in a directory of its own.
pub(crate) struct Embedded {
    dir: TempDir,
    time: Arc<ManualTime>,
    limits: Limits,
    store: Option<EmbeddedStore>,
}

impl Embedded {
    fn start(&mut self) {
        let options = Options {
            limits: self.limits,
            time: self.time.clone(),
            min_free_bytes: 0,
            on_fatal: Box::new(|reason| panic!("{reason}")),
            ..Options::new(self.dir.path())
        };
        self.store = Some(EmbeddedStore::open(options).unwrap());
    }

    async fn stop(&mut self) {
        if let Some(store) = self.store.take() {
            store.stop().await.unwrap();
        }
    }

    /// Stops the store, reads its file, and starts it again.
    async fn read<T>(&mut self, read: impl FnOnce(&redb::ReadTransaction) -> T) -> T {
        self.stop().await;
        let db = redb::Builder::new()
            .open_read_only(self.dir.path().join("trove.redb"))
            .unwrap();
        let result = read(&db.begin_read().unwrap());
        drop(db);
        self.start();
        result
    }
}

impl Fixture for Embedded {
    async fn fresh(limits: Limits) -> Self {
        let mut fixture = Self {
            dir: tempfile::tempdir().unwrap(),
            time: Arc::new(ManualTime::new(START)),
            limits,
            store: None,
        };
        fixture.start();
        fixture
    }

    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn advance(&self, ms: u64) {
        self.time.advance(ms);
    }

    fn step_clock(&self, ms: u64) -> bool {
        self.time.set_wall(self.store().now() + ms);
        true
    }

    async fn restart(&mut self, away_ms: u64) -> bool {
        self.stop().await;
        self.time.advance(away_ms);
        self.start();
        true
    }

    async fn holds_text(&mut self, text: &str) -> bool {
        let text = text.as_bytes().to_vec();
        let holds = move |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        self.read(|txn| {
            // Every table whose keys or values could hold text; one that is not named here fails the test.
            let mut found = false;
            for table in txn.list_tables().unwrap() {
                match table.name() {
                    "meta" | "players" => {}
                    "hunts" | "totals" => {
                        let name = table.name().to_owned();
                        let table: TableDefinition<'_, u32, &[u8]> = TableDefinition::new(&name);
                        for row in txn.open_table(table).unwrap().iter().unwrap() {
                            found |= holds(row.unwrap().1.value());
                        }
                    }
                    "names" => {
                        let table: TableDefinition<'_, u64, &str> = TableDefinition::new("names");
                        for row in txn.open_table(table).unwrap().iter().unwrap() {
                            found |= holds(row.unwrap().1.value().as_bytes());
                        }
                    }
                    "rows" => {
                        let table: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
                        for row in txn.open_table(table).unwrap().iter().unwrap() {
                            let (key, value) = row.unwrap();
                            found |= holds(key.value()) || holds(value.value());
                        }
                    }
                    // Numbers, digests and times.
                    "found" | "erased_names" | "erased" | "due" | "feed" => {}
                    other => panic!("what does the table {other} hold?"),
                }
            }
            let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
            for row in txn.open_table(meta).unwrap().iter().unwrap() {
                found |= holds(row.unwrap().1.value());
            }
            let players: TableDefinition<'_, &str, u64> = TableDefinition::new("players");
            for row in txn.open_table(players).unwrap().iter().unwrap() {
                found |= holds(row.unwrap().0.value().as_bytes());
            }
            found
        })
        .await
    }

    async fn rows(&mut self) -> u64 {
        self.read(|txn| {
            let rows: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
            txn.open_table(rows).unwrap().len().unwrap()
        })
        .await
    }
}
