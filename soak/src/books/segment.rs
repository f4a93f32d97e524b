//! The books' files. A segment is a header and blocks; a block is a length, a CRC-32 and entries of fixed size, written at
//! once. Each start of the harness begins a new segment, so a block that a crash tore is the last of its segment: it is
//! skipped and counted. A damaged block with others behind it is an error, for then the books cannot be believed.

use super::{Entry, Told, UNSYNCED_ENTRIES_MAX};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// The size of an entry in a file.
pub const ENTRY_BYTES: usize = 48;
/// The most entries of a block.
pub const BLOCK_ENTRIES_MAX: usize = 1024;
/// A segment that is longer is followed by a new one.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// More than this behind a damaged block was synced after it.
const TORN_BYTES_MAX: u64 = 2 * (UNSYNCED_ENTRIES_MAX * ENTRY_BYTES) as u64;

const MAGIC: [u8; 8] = *b"TRVBOOK1";
/// Length and CRC of a block.
const HEAD_BYTES: usize = 8;

/// The entry as little-endian bytes.
pub(super) fn encode(entry: &Entry) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[0..4].copy_from_slice(&entry.user.to_le_bytes());
    bytes[4] = entry.told.code();
    bytes[8..16].copy_from_slice(&entry.find.to_le_bytes());
    bytes[16..24].copy_from_slice(&entry.coins.to_le_bytes());
    bytes[24..32].copy_from_slice(&entry.found_at.to_le_bytes());
    bytes[32..40].copy_from_slice(&entry.seq.to_le_bytes());
    bytes[40..48].copy_from_slice(&entry.at_ms.to_le_bytes());
    bytes
}

/// The entry in these bytes.
pub(super) fn decode(bytes: &[u8; ENTRY_BYTES]) -> io::Result<Entry> {
    let user = bytes[0..4].try_into().map(u32::from_le_bytes);
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    Ok(Entry {
        user: user.map_err(io::Error::other)?,
        told: Told::of_code(bytes[4])
            .ok_or_else(|| io::Error::other("the books hold an entry of an unknown kind"))?,
        find: word(8),
        coins: word(16),
        found_at: word(24),
        seq: word(32),
        at_ms: word(40),
    })
}

/// The segments of the books, oldest first.
pub(super) fn segments(dir: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let path = file?.path();
        let number = path
            .extension()
            .is_some_and(|extension| extension == "book")
            .then(|| path.file_stem()?.to_str()?.parse().ok())
            .flatten();
        if let Some(number) = number {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// A segment that is being written.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    file: File,
    bytes: u64,
    block: Vec<u8>,
}

impl SegmentWriter {
    /// A new segment of this number.
    pub(super) fn create(dir: &Path, number: u32) -> io::Result<Self> {
        let path = dir.join(format!("{number:08}.book"));
        let mut file = File::create_new(path)?;
        file.write_all(&MAGIC)?;
        // The name, too, has to be there after a power cut.
        File::open(dir)?.sync_all()?;
        Ok(Self {
            file,
            bytes: MAGIC.len() as u64,
            block: Vec::with_capacity(HEAD_BYTES + BLOCK_ENTRIES_MAX * ENTRY_BYTES),
        })
    }

    /// Appends entries, at most [`BLOCK_ENTRIES_MAX`], as one block.
    pub(super) fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.block.clear();
        self.block.extend_from_slice(&[0; HEAD_BYTES]);
        for entry in entries {
            self.block.extend_from_slice(&encode(entry));
        }
        let length = u32::try_from(self.block.len() - HEAD_BYTES).map_err(io::Error::other)?;
        let crc = crc32fast::hash(&self.block[HEAD_BYTES..]);
        self.block[0..4].copy_from_slice(&length.to_le_bytes());
        self.block[4..8].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all(&self.block)?;
        self.bytes += self.block.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= SEGMENT_BYTES_MAX
    }
}

/// Gives every entry of the books to `each`, in the order in which they were made. Returns how many torn tails were skipped.
///
/// # Errors
/// A file cannot be read, a block in the middle is damaged, or `each` fails.
pub(super) fn read_all(
    dir: &Path,
    mut each: impl FnMut(Entry) -> io::Result<()>,
) -> io::Result<u64> {
    let mut torn = 0;
    for (_, path) in segments(dir)? {
        torn += u64::from(!read_segment(&path, &mut each)?);
    }
    Ok(torn)
}

/// Returns whether the segment ends with a whole block.
fn read_segment(path: &Path, each: &mut impl FnMut(Entry) -> io::Result<()>) -> io::Result<bool> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    let damaged = || io::Error::other(format!("{} is damaged in its middle", path.display()));
    let mut magic = [0; MAGIC.len()];
    if read_up_to(&mut file, &mut magic)? < MAGIC.len() {
        return Ok(false);
    }
    if magic != MAGIC {
        return Err(io::Error::other(format!("{} is no book", path.display())));
    }
    let mut block = Vec::new();
    loop {
        let mut head = [0; HEAD_BYTES];
        match read_up_to(&mut file, &mut head)? {
            0 => return Ok(true),
            HEAD_BYTES => {}
            _ => return Ok(false),
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let whole = length > 0
            && length.is_multiple_of(ENTRY_BYTES)
            && length <= BLOCK_ENTRIES_MAX * ENTRY_BYTES;
        if whole {
            block.resize(length, 0);
            let sound = read_up_to(&mut file, &mut block)? == length
                && crc32fast::hash(&block) == u32::from_le_bytes([c0, c1, c2, c3]);
            if sound {
                let (entries, _) = block.as_chunks::<ENTRY_BYTES>();
                for entry in entries {
                    each(decode(entry)?)?;
                }
                continue;
            }
        }
        // What a crash can tear was not synced yet: after a power cut any of its blocks may be any bytes.
        let mut behind = file.take(TORN_BYTES_MAX + 1);
        let behind = io::copy(&mut behind, &mut io::sink())?;
        return if behind > TORN_BYTES_MAX {
            Err(damaged())
        } else {
            Ok(false)
        };
    }
}

/// Fills as much of the buffer as there is.
fn read_up_to(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < into.len() {
        match from.read(&mut into[have..])? {
            0 => break,
            more => have += more,
        }
    }
    Ok(have)
}
