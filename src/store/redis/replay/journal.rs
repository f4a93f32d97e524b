//! The ring on disk, so that an instance that ends together with the primary loses nothing either.
//!
//! A directory of one instance's own holds two files at most, one JSON object a line. A thread of its own appends and syncs
//! them: whoever writes is told when its lines are on disk, and what waits meanwhile shares one sync. When the newer file is
//! as old or as large as the ring may be, the older one goes. What a crash left of a last line is passed over.

use super::item::Item;
use crate::store::redis::options::{ConnectError, Options};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Writes that wait for the thread; one more waits before it is handed over.
pub(super) const WRITES_WAITING_MAX: usize = 1_024;
/// Writes that share one sync at most.
const WRITES_A_SYNC_MAX: usize = 256;
const LOCK_NAME: &str = "journal.lock";
const FILE_PREFIX: &str = "replay-";

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store::redis) struct Line {
    pub(super) epoch: u64,
    pub(super) item: Item,
}

/// As [`Line`], to be written.
#[derive(Serialize)]
struct LineRef<'a> {
    epoch: u64,
    item: &'a Item,
}

enum Order {
    /// Append these bytes; say when they are on disk.
    Append(Vec<u8>, oneshot::Sender<io::Result<()>>),
    /// From here on the journal is this and nothing else.
    Rewrite(Vec<(u64, Arc<Item>)>),
}

/// The journal of one instance. Dropped, its thread ends.
pub(in crate::store::redis) struct Journal {
    orders: mpsc::Sender<Order>,
}

impl Journal {
    /// Opens the journal in `dir`, made if it is missing, and reads what it holds. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be used, or another process uses it.
    pub(in crate::store::redis) fn open(
        dir: &Path,
        bytes_max: usize,
        age_max: Duration,
    ) -> io::Result<(Self, Vec<Line>)> {
        fs::create_dir_all(dir)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(LOCK_NAME))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                io::Error::other("another process uses this journal; each instance needs its own")
            }
            TryLockError::Error(error) => error,
        })?;
        let lines = read(dir)?;
        let mut writer = Writer {
            dir: dir.to_owned(),
            _lock: lock,
            number: files(dir)?.last().map_or(0, |(number, _)| *number),
            file: None,
            bytes: 0,
            began: Instant::now(),
            bytes_max,
            age_max,
        };
        writer.rewrite(lines.iter().map(|line| (line.epoch, &line.item)))?;
        let (orders, waiting) = mpsc::channel(WRITES_WAITING_MAX);
        std::thread::Builder::new()
            .name("replay-journal".into())
            .spawn(move || writer.run(waiting))?;
        Ok((Self { orders }, lines))
    }

    /// Writes items; the future ends when they are on disk.
    pub(super) fn write(
        &self,
        epoch: u64,
        items: &[Item],
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let mut bytes = Vec::with_capacity(256 * items.len());
        let encoded = items.iter().try_for_each(|item| {
            let line = LineRef { epoch, item };
            encode(&mut bytes, &line)
        });
        let orders = self.orders.clone();
        async move {
            encoded?;
            let (done, wait) = oneshot::channel();
            let gone = || io::Error::other("its thread has ended");
            orders
                .send(Order::Append(bytes, done))
                .await
                .map_err(|_| gone())?;
            wait.await.map_err(|_| gone())?
        }
    }

    /// From here on the journal holds these and nothing else.
    pub(super) fn rewrite(&self, items: Vec<(u64, Arc<Item>)>) {
        let orders = self.orders.clone();
        if let Err(mpsc::error::TrySendError::Full(order)) = orders.try_send(Order::Rewrite(items))
        {
            tokio::spawn(async move { orders.send(order).await });
        }
    }
}

/// Opens the journal, where there is to be one.
///
/// # Errors
/// As [`Journal::open`].
pub(in crate::store::redis) async fn opened(
    options: &Options,
) -> Result<Option<(Journal, Vec<Line>)>, ConnectError> {
    let Some(dir) = options.journal_dir.clone() else {
        return Ok(None);
    };
    let shown = dir.display().to_string();
    let (bytes_max, age_max) = (options.replay_bytes_max, options.replay_age_max);
    let opened = crate::blocking::spawn(move || Journal::open(&dir, bytes_max, age_max));
    let why = |error: &dyn std::fmt::Display| {
        ConnectError::Options(format!("the replay journal in {shown}: {error}"))
    };
    let opened = opened.await.map_err(|error| why(&error))?;
    opened.map(Some).map_err(|error| why(&error))
}

fn encode(bytes: &mut Vec<u8>, line: &LineRef<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *bytes, line)?;
    bytes.push(b'\n');
    Ok(())
}

/// The files by number.
fn files(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(FILE_PREFIX)?.parse().ok());
        if let Some(number) = number {
            files.push((number, path));
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn read(dir: &Path) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut torn = 0;
    for (_, path) in files(dir)? {
        for line in BufReader::new(File::open(path)?).split(b'\n') {
            match serde_json::from_slice::<Line>(&line?) {
                Ok(mut line) => {
                    if let Item::Hunt(hunt) = &mut line.item {
                        hunt.index();
                    }
                    lines.push(line);
                }
                Err(_) => torn += 1,
            }
        }
    }
    if torn > 0 {
        tracing::warn!(torn, "lines of the replay journal cannot be read");
    }
    Ok(lines)
}

/// What the thread has.
struct Writer {
    dir: PathBuf,
    /// Held as long as the files are written.
    _lock: File,
    number: u64,
    file: Option<File>,
    bytes: usize,
    began: Instant,
    bytes_max: usize,
    age_max: Duration,
}

impl Writer {
    fn run(mut self, mut waiting: mpsc::Receiver<Order>) {
        let mut orders = Vec::new();
        loop {
            if waiting.blocking_recv_many(&mut orders, WRITES_A_SYNC_MAX) == 0 {
                return;
            }
            let mut bytes = Vec::new();
            let mut told = Vec::new();
            for order in orders.drain(..) {
                match order {
                    Order::Append(more, done) => {
                        bytes.extend_from_slice(&more);
                        told.push(done);
                    }
                    Order::Rewrite(items) => {
                        let written = self.append(&std::mem::take(&mut bytes)).and_then(|()| {
                            self.rewrite(items.iter().map(|(epoch, item)| (*epoch, &**item)))
                        });
                        tell(&mut told, &written);
                    }
                }
            }
            let written = self.append(&bytes);
            tell(&mut told, &written);
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.bytes > self.bytes_max || self.began.elapsed() > self.age_max {
            self.turn()?;
            for (_, path) in files(&self.dir)?.iter().rev().skip(2) {
                fs::remove_file(path)?;
            }
        }
        if self.file.is_none() {
            self.turn()?;
        }
        let Some(file) = &mut self.file else {
            return Err(io::Error::other("no file"));
        };
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if written.is_err() {
            // What a write that failed left behind must not run into the next line.
            self.file = None;
        }
        self.bytes += bytes.len();
        written
    }

    /// Goes on in a new file.
    fn turn(&mut self) -> io::Result<()> {
        self.number += 1;
        let path = self.dir.join(format!("{FILE_PREFIX}{}", self.number));
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(path)?;
        File::open(&self.dir)?.sync_all()?;
        (self.file, self.bytes, self.began) = (Some(file), 0, Instant::now());
        Ok(())
    }

    /// Makes the journal these lines and nothing else.
    fn rewrite<'a>(&mut self, lines: impl Iterator<Item = (u64, &'a Item)>) -> io::Result<()> {
        let older = files(&self.dir)?;
        self.turn()?;
        let mut bytes = Vec::new();
        for (epoch, item) in lines {
            encode(&mut bytes, &LineRef { epoch, item })?;
        }
        if let Some(file) = &mut self.file {
            file.write_all(&bytes)?;
            file.sync_data()?;
        }
        self.bytes = bytes.len();
        for (_, path) in older {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

fn tell(told: &mut Vec<oneshot::Sender<io::Result<()>>>, written: &io::Result<()>) {
    if let Err(error) = written {
        tracing::error!(%error, "the replay journal cannot be written");
    }
    for done in told.drain(..) {
        let copy = match written {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        // Whoever asked may have gone.
        let _ = done.send(copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::ids::{PlayerId, PlayerName};

    fn item(player: u64) -> Item {
        Item::Player {
            name: PlayerName::new(&format!("p{player}")).unwrap(),
            player: PlayerId(player),
            issued_at: None,
        }
    }

    fn open(dir: &Path, bytes_max: usize) -> (Journal, Vec<u64>) {
        let (journal, lines) = Journal::open(dir, bytes_max, Duration::from_secs(60)).unwrap();
        let players = lines.iter().filter_map(|line| line.item.player());
        (journal, players.map(|player| player.0).collect())
    }

    /// Lets go of the journal, and waits for its thread to let go of the directory.
    fn close(journal: Journal, dir: &Path) {
        drop(journal);
        let lock = File::open(dir.join(LOCK_NAME)).unwrap();
        lock.lock().unwrap();
    }

    #[tokio::test]
    async fn what_was_written_is_read_again_and_a_torn_line_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, before) = open(dir.path(), 1 << 20);
        assert!(before.is_empty());
        journal.write(3, &[item(1), item(2)]).await.unwrap();
        journal.write(3, &[item(3)]).await.unwrap();
        close(journal, dir.path());
        let (_, newest) = files(dir.path()).unwrap().pop().unwrap();
        let mut file = OpenOptions::new().append(true).open(newest).unwrap();
        file.write_all(b"{\"epoch\":3,\"item\":{\"Pla").unwrap();
        let (journal, players) = open(dir.path(), 1 << 20);
        assert_eq!(players, [1, 2, 3]);
        journal.write(4, &[item(4)]).await.unwrap();
        close(journal, dir.path());
        assert_eq!(open(dir.path(), 1 << 20).1, [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn it_never_holds_more_than_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), 100);
        for player in 0..50 {
            journal.write(1, &[item(player)]).await.unwrap();
        }
        assert!(files(dir.path()).unwrap().len() <= 2);
        close(journal, dir.path());
        let (_, players) = open(dir.path(), 100);
        assert_eq!(players.last(), Some(&49));
        assert!(players.len() < 10, "{players:?}");
    }

    #[tokio::test]
    async fn what_was_purged_is_gone_from_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), 1 << 20);
        journal.write(1, &[item(1), item(2)]).await.unwrap();
        journal.rewrite(vec![(1, Arc::new(item(2)))]);
        journal.write(1, &[item(3)]).await.unwrap();
        close(journal, dir.path());
        assert_eq!(open(dir.path(), 1 << 20).1, [2, 3]);
    }

    #[test]
    fn two_processes_do_not_share_one() {
        let dir = tempfile::tempdir().unwrap();
        let _one = open(dir.path(), 100);
        assert!(Journal::open(dir.path(), 100, Duration::ZERO).is_err());
    }
}
