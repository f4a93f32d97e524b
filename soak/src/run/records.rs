//! The run's files: lines appended whole, read back line by line.
//!
//! Each line is written by one call, so a crash of the harness leaves at most one unfinished line at a file's end; a
//! crash of the machine may also lose what was not synced yet, which is a minute at most.

use crate::refusal::Refusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
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
        self.write(file, line)
            .map_err(|error| Refusal::unreachable(format!("{}: {error}", self.dir.join(file).display())))
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

/// The lines of a file in order, in constant memory; nothing where there is no file. What is no such line is skipped: the
/// unfinished one at the end, after a crash.
///
/// # Errors
/// When the file cannot be read.
pub fn read<T: DeserializeOwned>(dir: &Path, file: &str) -> io::Result<impl Iterator<Item = T>> {
    let lines = match File::open(dir.join(file)) {
        Ok(file) => Some(BufReader::new(file).lines().map_while(Result::ok)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(lines.into_iter().flatten().filter_map(|line| serde_json::from_str(&line).ok()))
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
    for line in read::<T>(dir, file)?.filter(is_kept) {
        serde_json::to_writer(&mut out, &line)?;
        out.write_all(b"\n")?;
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
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
        let all = |dir: &Path| -> Vec<u32> { read(dir, "numbers.jsonl").expect("read").collect() };
        assert_eq!(all(dir.path()), [1, 2, 30]);
        keep::<u32>(dir.path(), "numbers.jsonl", |number| *number < 10).expect("kept");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "1\n2\n");
        assert_eq!(read::<u32>(dir.path(), "none").expect("nothing").count(), 0);
    }
}
