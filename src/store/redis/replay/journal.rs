//! The ring on disk, so that an instance that ends together with the primary loses nothing either.
//!
//! A directory of one instance's own holds two files at most, one JSON object a line. A thread of its own encodes, appends and
//! syncs them, in the order in which they were handed over: whoever writes is told when its lines are on disk, and what waits
//! meanwhile shares one sync. The loop that answers requests hands over what the ring keeps anyway, and encodes nothing. When the newer file is
//! as old or as large as the ring may be, the older one goes. What a crash left of a last line is passed over.

use super::item::Item;
use crate::store::redis::options::{ConnectError, Options};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Writes that wait for the thread; one more waits before it is handed over.
pub(super) const WRITES_WAITING_MAX: usize = 1_024;
/// Writes that share one sync at most.
const WRITES_A_SYNC_MAX: usize = 256;
/// Bytes from which on a sync is not shared with more: so much is held encoded, and one write beyond it.
const BYTES_A_SYNC: usize = 4 << 20;
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
    /// Append these items of an epoch; say when they are on disk.
    Append(u64, Vec<Arc<Item>>, oneshot::Sender<io::Result<()>>),
    /// From here on the journal is this and nothing else.
    Rewrite(Vec<(u64, Arc<Item>)>),
}

/// What became of an order.
enum Handed {
    /// The thread has it, or has ended.
    Over(io::Result<()>),
    /// It has its place in the queue for room.
    Waits(Pin<Box<dyn Future<Output = io::Result<()>> + Send>>),
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
        items: Vec<Arc<Item>>,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let (done, wait) = oneshot::channel();
        let handed = self.hand_over(Order::Append(epoch, items, done));
        async move {
            match handed {
                Handed::Over(sent) => sent?,
                Handed::Waits(sent) => sent.await?,
            }
            wait.await.map_err(|_| thread_ended())?
        }
    }

    /// From here on the journal holds these and nothing else.
    pub(super) fn rewrite(&self, items: Vec<(u64, Arc<Item>)>) {
        match self.hand_over(Order::Rewrite(items)) {
            // Without its thread there is no journal to rewrite.
            Handed::Over(_) => {}
            Handed::Waits(sent) => drop(tokio::spawn(sent)),
        }
    }

    /// Hands an order to the thread, or has it wait for room behind those that wait already. Its place is that of this call,
    /// whenever the future is awaited: what is written after a rewrite must not be wiped by it.
    fn hand_over(&self, order: Order) -> Handed {
        let orders = self.orders.clone();
        let sent = async move { orders.send(order).await.map_err(|_| thread_ended()) };
        // A task that has used up its turn would not get into the queue.
        let mut sent = Box::pin(tokio::task::unconstrained(sent));
        let mut at_once = Context::from_waker(Waker::noop());
        match sent.as_mut().poll(&mut at_once) {
            Poll::Ready(sent) => Handed::Over(sent),
            Poll::Pending => Handed::Waits(sent),
        }
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("its thread has ended")
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

fn encode(mut to: impl Write, epoch: u64, item: &Item) -> io::Result<()> {
    serde_json::to_writer(&mut to, &LineRef { epoch, item })?;
    to.write_all(b"\n")
}

/// Encodes items at the end of `bytes`; all of them or none.
fn encode_all(bytes: &mut Vec<u8>, epoch: u64, items: &[Arc<Item>]) -> io::Result<()> {
    let before = bytes.len();
    let encoded = items
        .iter()
        .try_for_each(|item| encode(&mut *bytes, epoch, item));
    if encoded.is_err() {
        bytes.truncate(before);
    }
    encoded
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
                    Order::Append(epoch, items, done) => {
                        match encode_all(&mut bytes, epoch, &items) {
                            Ok(()) => told.push(done),
                            Err(error) => tell(&mut vec![done], &Err(error)),
                        }
                        if bytes.len() > BYTES_A_SYNC {
                            let written = self.append(&std::mem::take(&mut bytes));
                            tell(&mut told, &written);
                        }
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
        if let Some(file) = &mut self.file {
            let mut buffered = BufWriter::new(&mut *file);
            for (epoch, item) in lines {
                encode(&mut buffered, epoch, item)?;
            }
            buffered.flush()?;
            drop(buffered);
            file.sync_data()?;
            self.bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        }
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

    fn item(player: u64) -> Arc<Item> {
        Arc::new(Item::Player {
            name: PlayerName::new(&format!("p{player}")).unwrap(),
            player: PlayerId(player),
            issued_at: None,
            at: None,
        })
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
        journal.write(3, vec![item(1), item(2)]).await.unwrap();
        journal.write(3, vec![item(3)]).await.unwrap();
        close(journal, dir.path());
        let (_, newest) = files(dir.path()).unwrap().pop().unwrap();
        let mut file = OpenOptions::new().append(true).open(newest).unwrap();
        file.write_all(b"{\"epoch\":3,\"item\":{\"Pla").unwrap();
        let (journal, players) = open(dir.path(), 1 << 20);
        assert_eq!(players, [1, 2, 3]);
        journal.write(4, vec![item(4)]).await.unwrap();
        close(journal, dir.path());
        assert_eq!(open(dir.path(), 1 << 20).1, [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn many_at_once_are_written_in_the_order_in_which_they_were_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), 64 << 20);
        let mut next = 0;
        let mut parts = |sizes: &[u64]| {
            let part = |size: &u64| {
                let part: Vec<_> = (next..next + size).map(item).collect();
                next += size;
                journal.write(1, part)
            };
            sizes.iter().map(part).collect::<Vec<_>>()
        };
        // A bulk among single ones; more than share a sync, by their bytes and by their number.
        let mut writes = parts(&[1, 10_000, 1, 100_000, 1]);
        writes.extend(parts(&[1; 600]));
        // Whoever waits last is told all the same.
        for write in writes.into_iter().rev() {
            write.await.unwrap();
        }
        close(journal, dir.path());
        let (_, players) = open(dir.path(), 64 << 20);
        assert!(players.iter().copied().eq(0..next), "{}", players.len());
    }

    #[tokio::test]
    async fn orders_that_wait_for_room_keep_their_places_among_one_another() {
        let (orders, mut waiting) = mpsc::channel(1);
        let journal = Journal { orders };
        let player = |item: &Item| item.player().unwrap().0;
        let first = journal.write(1, vec![item(1)]);
        // These wait: what is written after a purge is not to be wiped by it, though it is asked for first.
        let second = journal.write(1, vec![item(2)]);
        journal.rewrite(vec![(1, item(1)), (1, item(2))]);
        let third = journal.write(1, vec![item(3)]);
        let writes = tokio::spawn(async move { tokio::join!(third, second, first) });
        let mut seen = Vec::new();
        while seen.len() < 4 {
            seen.push(match waiting.recv().await.unwrap() {
                Order::Append(_, items, done) => {
                    done.send(Ok(())).unwrap();
                    items.iter().map(|item| player(item)).collect::<Vec<_>>()
                }
                Order::Rewrite(items) => {
                    let players = items.iter().map(|(_, item)| player(item));
                    [0].into_iter().chain(players).collect()
                }
            });
        }
        assert_eq!(seen, [vec![1], vec![2], vec![0, 1, 2], vec![3]]);
        let (third, second, first) = writes.await.unwrap();
        assert!(first.is_ok() && second.is_ok() && third.is_ok());
        // Without a thread nothing is promised.
        drop(waiting);
        assert!(journal.write(1, vec![item(4)]).await.is_err());
    }

    #[tokio::test]
    async fn it_never_holds_more_than_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), 100);
        for player in 0..50 {
            journal.write(1, vec![item(player)]).await.unwrap();
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
        journal.write(1, vec![item(1), item(2)]).await.unwrap();
        journal.rewrite(vec![(1, item(2))]);
        journal.write(1, vec![item(3)]).await.unwrap();
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
