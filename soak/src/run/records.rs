//! The run's files: lines appended whole.
//!
//! Each line is written by one call, so a crash of the harness leaves at most one unfinished line at a file's end; a
//! crash of the machine may also lose what was not synced yet, which is a minute at most.

use crate::record::read_lines;
use crate::refusal::Refusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a line may stay unsynced.
const SYNC_EVERY: Duration = Duration::from_secs(60);

/// Appends to the files of a run's directory.
pub struct Records {
    dir: PathBuf,
    files: BTreeMap<&'static str, File>,
    synced: Instant,
}

impl Records {
    /// Of a directory that exists.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            files: BTreeMap::new(),
            synced: Instant::now(),
        }
    }

    /// Appends a line.
    ///
    /// # Errors
    /// When it cannot be written: a run that cannot be recorded is worth nothing.
    pub fn append(&mut self, file: &'static str, line: &impl Serialize) -> Result<(), Refusal> {
        self.write(file, line).map_err(|error| {
            Refusal::unreachable(format!("{}: {error}", self.dir.join(file).display()))
        })
    }

    fn write(&mut self, name: &'static str, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let file = match self.files.entry(name) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let path = self.dir.join(name);
                entry.insert(OpenOptions::new().create(true).append(true).open(path)?)
            }
        };
        file.write_all(&bytes)?;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Syncs all files.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        self.files.values().try_for_each(File::sync_data)
    }
}

/// Keeps of a file only the whole lines that are to be kept, for a run that goes on before them.
///
/// # Errors
/// When it cannot be read or written.
pub fn keep<T: DeserializeOwned + Serialize>(
    dir: &Path,
    file: &str,
    is_kept: impl Fn(&T) -> bool,
) -> io::Result<()> {
    let path = dir.join(file);
    if !path.exists() {
        return Ok(());
    }
    let new = path.with_extension("new");
    let mut out = BufWriter::new(File::create(&new)?);
    for line in read_lines::<T>(&path)? {
        let line = line?;
        if is_kept(&line) {
            serde_json::to_writer(&mut out, &line)?;
            out.write_all(b"\n")?;
        }
    }
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    std::fs::rename(&new, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_last_line_is_skipped_and_then_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut records = Records::new(dir.path());
        for number in [1, 2, 30] {
            records.append("numbers.jsonl", &number).expect("written");
        }
        let path = dir.path().join("numbers.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).expect("it");
        file.write_all(b"[4").expect("written");
        keep::<u32>(dir.path(), "numbers.jsonl", |number| *number < 10).expect("kept");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "1\n2\n");
        keep::<u32>(dir.path(), "none", |_| true).expect("nothing to keep");
    }
}
