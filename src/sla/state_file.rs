//! The file that keeps the record of objectives over a restart.
//!
//! One line, `trove-sla 1 DIGEST`, then the record as postcard writes it; the digest is SHA-256 of the record. It is written
//! beside itself and renamed, so that a crash leaves the old one or the new one. A file that is damaged, or of a version
//! that is not known, is put aside and a new record begins: it is a record of how well things went, not of coins.

use super::recorder::Saved;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

const MAGIC: &str = "trove-sla 1 ";
/// Larger than any record; what is larger is none.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its content.
    #[error("it is damaged, or of another version")]
    Damaged,
}

fn digest_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Reads a record; `None` if there is no file.
///
/// # Errors
/// Why the file is none.
pub fn read(path: &Path) -> Result<Option<Saved>, ReadError> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let at = bytes.iter().position(|byte| *byte == b'\n');
    let (line, record) = bytes.split_at(at.ok_or(ReadError::Damaged)?);
    let record = &record[1..];
    let digest = line
        .strip_prefix(MAGIC.as_bytes())
        .ok_or(ReadError::Damaged)?;
    if digest != digest_of(record).as_bytes() {
        return Err(ReadError::Damaged);
    }
    postcard::from_bytes(record)
        .map(Some)
        .map_err(|_| ReadError::Damaged)
}

/// Writes a record.
///
/// # Errors
/// The file's; the old record is still there then.
pub fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let record = postcard::to_stdvec(saved).map_err(io::Error::other)?;
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(format!("{MAGIC}{}\n", digest_of(&record)).as_bytes())?;
    file.write_all(&record)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// Renames a file that cannot be read, so that whoever wants to can look at it. One that was put aside before is replaced.
pub fn put_aside(path: &Path) {
    let _ = fs::rename(path, path.with_extension("damaged"));
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Recorder;
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sla.state");
        assert!(read(&path).unwrap().is_none());
        let saved =
            Recorder::new(Vec::new(), 1_000_000_000_000).saved(1_000_000_060_000, [1, 2, 3, 4]);
        write(&path, &saved).unwrap();
        assert!(read(&path).unwrap().is_some());
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(read(&path), Err(ReadError::Damaged)), "{length}");
        }
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 1;
            fs::write(&path, &other).unwrap();
            assert!(matches!(read(&path), Err(ReadError::Damaged)), "{at}");
        }
        put_aside(&path);
        assert!(read(&path).unwrap().is_none());
        assert!(dir.path().join("sla.damaged").exists());
    }
}
