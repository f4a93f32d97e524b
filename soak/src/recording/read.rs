//! Reads a recording, a block at a time.

use super::{BLOCK_BYTES_MAX, Event, HEADER_BYTES_MAX, MAGIC, VERSION, kind};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The files of a recording, in order.
///
/// # Errors
/// There is nothing at the path, or no `*.troverec` file in the directory.
pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "troverec")
        {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(invalid(format!(
            "{} holds no *.troverec file",
            path.display()
        )));
    }
    Ok(files)
}

/// Reads one file.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
    payload: Vec<u8>,
    at: usize,
    last_us: u64,
    /// When the recording began, by the wall clock, milliseconds.
    pub started_ms: u64,
    /// Whether the file ended in the middle of a block, as after a crash, or with a damaged one.
    pub torn: bool,
}

#[derive(serde::Deserialize)]
struct Header {
    started_ms: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The input's; it is no recording, or of a later version.
    pub fn open(mut input: R) -> io::Result<Self> {
        let mut begins = [0; MAGIC.len() + 5];
        input.read_exact(&mut begins)?;
        let (magic, rest) = begins.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(invalid(
                "this is no recording: it does not begin with TROVEREC".to_owned(),
            ));
        }
        if rest[0] != VERSION {
            return Err(invalid(format!(
                "a recording of version {}; this reads {VERSION}",
                rest[0]
            )));
        }
        let length = u32::from_le_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        if length > HEADER_BYTES_MAX {
            return Err(invalid(format!("a header of {length} bytes")));
        }
        let mut header = vec![0; length];
        input.read_exact(&mut header)?;
        let header: Header = serde_json::from_slice(&header).map_err(io::Error::from)?;
        Ok(Self {
            input,
            payload: Vec::new(),
            at: 0,
            last_us: 0,
            started_ms: header.started_ms,
            torn: false,
        })
    }

    /// The next event; none at the end.
    ///
    /// # Errors
    /// The input's.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        let first = self.at >= self.payload.len();
        if first && !self.block()? {
            return Ok(None);
        }
        let (Some(time), Some(user), Some(code)) = (self.varint(), self.varint(), self.byte())
        else {
            self.torn = true;
            return Ok(None);
        };
        let at_us = if first {
            time
        } else {
            self.last_us.saturating_add(time)
        };
        // Files of one directory follow each other.
        self.last_us = at_us.max(self.last_us);
        Ok(Some(Event {
            at_us: self.last_us,
            user,
            kind: kind(code),
        }))
    }

    /// Reads the next block. False: there is none.
    fn block(&mut self) -> io::Result<bool> {
        self.payload.clear();
        self.at = 0;
        let mut begins = [0; 8];
        let got = read_up_to(&mut self.input, &mut begins)?;
        if got < begins.len() {
            self.torn |= got > 0;
            return Ok(false);
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = begins;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length == 0 || length > BLOCK_BYTES_MAX {
            self.torn = true;
            return Ok(false);
        }
        self.payload.resize(length, 0);
        let got = read_up_to(&mut self.input, &mut self.payload)?;
        if got < length || crc32fast::hash(&self.payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
            self.payload.clear();
            self.torn = true;
            return Ok(false);
        }
        Ok(true)
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.payload.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

fn read_up_to(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match input.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}
