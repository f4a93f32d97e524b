//! What lies beside the store's file, to know a file that was put back from a copy: its history may have been cut, so
//! a new epoch must begin.
//!
//! The file says which start wrote it last, and in which inode; this note, outside of it, says the same, and after a
//! clean stop when the inode changed last. Restoring the file alone, or the note with it, in place or not, makes one of
//! these differ. So does touching the file's mode or moving it: then clients are told to look again, which harms nobody.

use super::state::State;
use crate::game::Millis;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The note's name.
const FILE_NAME: &str = "incarnation";
/// After a crash nothing says when the inode changed last. It cannot have been much later than the time of the last
/// batch, in milliseconds, unless somebody put something else into it.
const CHANGED_AFTER_BATCH_MS_MAX: u64 = 60_000;

/// The file as it is found, and the note beside it.
pub(super) struct Beside {
    /// Of the note.
    pub(super) path: PathBuf,
    /// Device and inode of the store's file.
    pub(super) inode: (u64, u64),
    file: PathBuf,
    changed_ns: i128,
    note: Option<(u64, Option<i128>)>,
}

fn changed_ns(file: &Path) -> i128 {
    std::fs::metadata(file).map_or(0, |m| {
        i128::from(m.ctime()) * 1_000_000_000 + i128::from(m.ctime_nsec())
    })
}

impl Beside {
    /// Reads both. To be called before the file is opened for writing.
    pub(super) fn new(file: &Path) -> Self {
        let path = file.with_file_name(FILE_NAME);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut words = text.split_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        let changed = words.next().map(|word| word.parse().unwrap_or_default());
        Self {
            path,
            inode: std::fs::metadata(file).map_or((0, 0), |m| (m.dev(), m.ino())),
            changed_ns: changed_ns(file),
            file: file.to_owned(),
            note: number.map(|number| (number, changed)),
        }
    }

    /// Whether the file is another one than the last start left, or holds something else.
    pub(super) fn is_restored(&self, state: &State) -> bool {
        let (Some((number, device, inode)), Some((noted, changed_ns))) =
            (state.incarnation, self.note)
        else {
            return true;
        };
        let put_back = match changed_ns {
            Some(changed_ns) => changed_ns != self.changed_ns,
            None => {
                let changed_ms = Millis::try_from(self.changed_ns / 1_000_000).unwrap_or(0);
                changed_ms > state.alive_at + CHANGED_AFTER_BATCH_MS_MAX
            }
        };
        noted != number || (device, inode) != self.inode || put_back
    }

    /// Notes which start is running.
    pub(super) fn say_running(&self, incarnation: u64) -> std::io::Result<()> {
        std::fs::write(&self.path, incarnation.to_string())
    }

    /// Notes that the start ended cleanly, and how it left the file. To be called once the file is closed.
    pub(super) fn say_stopped(&self, incarnation: u64) {
        let text = format!("{incarnation} {}", changed_ns(&self.file));
        if let Err(error) = std::fs::write(&self.path, text) {
            tracing::warn!(%error, "the clean stop could not be noted");
        }
    }
}
