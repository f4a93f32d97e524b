//! The books' thread: takes entries through a bounded channel and appends them. What a crash of the harness or of the machine
//! can take with it is bounded, so that a resumed run knows which numbers of finds may have been used without its knowing.

use super::segment::{self, SegmentWriter};
use super::{BLOCK_ENTRIES_MAX, Books, Entry, ids};
use crate::record::files;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most entries that wait for the thread: a second of all that 10,000 users are told, several times over.
pub const QUEUE_ENTRIES_MAX: usize = 65_536;
/// The most entries that have been written and not synced.
pub const UNSYNCED_ENTRIES_MAX: usize = 16_384;
/// How long what was written may stay unsynced.
pub const UNSYNCED_MAX: Duration = Duration::from_secs(1);
/// The most entries that a crash can take with it.
pub const LOST_ENTRIES_MAX: u64 =
    (QUEUE_ENTRIES_MAX + UNSYNCED_ENTRIES_MAX + BLOCK_ENTRIES_MAX) as u64;
/// How far before the greatest number in the books a lost one may lie: a find gets its number when it begins, and is entered
/// when it leaves, which for a user whose connection is busy, or in bulk, is after others.
pub const OUT_OF_ORDER_MAX: u64 = 16_384;
/// How long an entry may wait for its block to fill.
const BLOCK_WAIT_MAX: Duration = Duration::from_millis(100);

const CUTS: &str = "cuts.jsonl";

/// Where a resumed run knows that entries may be missing: finds after `after` and before `until` may have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cut {
    pub(super) after: u64,
    pub(super) until: u64,
}

/// The books of a run, open for entries. Dropping it writes and syncs what it has taken.
#[derive(Debug)]
pub struct Writer {
    to: Option<SyncSender<Entry>>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the books of the run in `dir`, after what is already in them.
///
/// # Errors
/// They cannot be written.
pub fn writer(dir: &Path) -> io::Result<Writer> {
    let dir = dir.join(files::BOOKS);
    std::fs::create_dir_all(&dir)?;
    let last = segment::segments(&dir)?
        .last()
        .map_or(0, |(number, _)| *number);
    let mut number = last + 1;
    let mut current = SegmentWriter::create(&dir, number)?;
    let (to, from) = sync_channel(QUEUE_ENTRIES_MAX);
    let thread = std::thread::Builder::new()
        .name("books".to_owned())
        .spawn(move || {
            let written = write(&from, &mut current, || {
                number += 1;
                SegmentWriter::create(&dir, number)
            });
            // From here on enter() says no, and every interval is without a verdict; the words say why.
            if let Err(error) = written {
                eprintln!("soak: the books cannot be written: {error}");
            }
        })?;
    Ok(Writer {
        to: Some(to),
        thread: Some(thread),
    })
}

impl Books for Writer {
    fn enter(&mut self, entry: Entry) -> bool {
        self.to
            .as_ref()
            .is_some_and(|to| to.try_send(entry).is_ok())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; the missing entries are found by the comparison.
            let _ = thread.join();
        }
    }
}

/// Writes until the channel is closed and empty.
fn write(
    from: &Receiver<Entry>,
    current: &mut SegmentWriter,
    mut next_segment: impl FnMut() -> io::Result<SegmentWriter>,
) -> io::Result<()> {
    let mut block: Vec<Entry> = Vec::with_capacity(BLOCK_ENTRIES_MAX);
    let mut unsynced = 0;
    let mut synced_at = Instant::now();
    let mut open = true;
    while open {
        let block_until = Instant::now() + BLOCK_WAIT_MAX;
        while block.len() < BLOCK_ENTRIES_MAX {
            let wait = block_until.saturating_duration_since(Instant::now());
            match from.recv_timeout(wait) {
                Ok(entry) => block.push(entry),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    open = false;
                    break;
                }
            }
        }
        if !block.is_empty() {
            current.append(&block)?;
            unsynced += block.len();
            block.clear();
        }
        let due = unsynced + BLOCK_ENTRIES_MAX > UNSYNCED_ENTRIES_MAX
            || synced_at.elapsed() >= UNSYNCED_MAX;
        if unsynced > 0 && (due || !open) {
            current.sync()?;
            unsynced = 0;
        }
        if unsynced == 0 {
            synced_at = Instant::now();
            if current.is_full() {
                *current = next_segment()?;
            }
        }
    }
    Ok(())
}

/// The first number of a find that a resumed run may give: past all that the books hold and all that a crash may have taken
/// from them. Notes those for the comparison, which accepts finds in the ledger that bear such a number.
///
/// # Errors
/// The books cannot be read, or the note cannot be written.
pub fn resume(dir: &Path) -> io::Result<u64> {
    let dir = dir.join(files::BOOKS);
    std::fs::create_dir_all(&dir)?;
    let mut last = cuts(&dir)?
        .last()
        .map_or(0, |cut| cut.until.saturating_sub(1));
    segment::read_all(&dir, |entry| {
        if entry.find & ids::ONCE == 0 {
            last = last.max(entry.find);
        }
        Ok(())
    })?;
    let cut = Cut {
        after: last.saturating_sub(OUT_OF_ORDER_MAX),
        until: last + LOST_ENTRIES_MAX + 1,
    };
    let mut line = serde_json::to_string(&cut)?;
    line.push('\n');
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join(CUTS))?;
    file.write_all(line.as_bytes())?;
    file.sync_all()?;
    Ok(cut.until)
}

/// The notes of [`resume`], in order.
pub(super) fn cuts(dir: &Path) -> io::Result<Vec<Cut>> {
    match std::fs::read_to_string(dir.join(CUTS)) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
