//! Reading and writing records: a line at a time, and an unfinished last line is no line.

use super::Histogram;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::marker::PhantomData;
use std::path::Path;

/// The longest line of a record.
pub const LINE_BYTES_MAX: u64 = 4 << 20;

/// The greatest value of a histogram: an hour in microseconds.
pub const LATENCY_US_MAX: u64 = 3_600_000_000;

/// The records of a file, one after the other. A missing file has none; a last line that is cut off is left out. A line that is
/// no such record is skipped and counted: each crash of the harness may have left one.
///
/// # Errors
/// The file cannot be opened, or read.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> io::Result<Lines<T>> {
    let file = match File::open(path) {
        Ok(file) => Some(BufReader::new(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(Lines {
        file,
        skipped: 0,
        bytes: Vec::new(),
        of: PhantomData,
    })
}

/// See [`read_lines`].
#[derive(Debug)]
pub struct Lines<T> {
    file: Option<BufReader<File>>,
    skipped: u64,
    bytes: Vec<u8>,
    of: PhantomData<T>,
}

impl<T: DeserializeOwned> Lines<T> {
    fn read(&mut self) -> io::Result<Option<T>> {
        loop {
            let Some(file) = &mut self.file else {
                return Ok(None);
            };
            self.bytes.clear();
            let read = io::Read::take(file, LINE_BYTES_MAX).read_until(b'\n', &mut self.bytes)?;
            if read == 0 || self.bytes.last() != Some(&b'\n') {
                self.file = None;
                return Ok(None);
            }
            match serde_json::from_slice(&self.bytes) {
                Ok(record) => return Ok(Some(record)),
                Err(_) => self.skipped += 1,
            }
        }
    }

    /// How many lines were no records, so far.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl<T: DeserializeOwned> Iterator for Lines<T> {
    type Item = io::Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

impl Histogram {
    /// As the record holds it.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> io::Result<Self> {
        if histogram.is_empty() {
            return Ok(Self::default());
        }
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(histogram, &mut bytes)
            .map_err(io::Error::other)?;
        Ok(Self(base64::Engine::encode(
            &base64::prelude::BASE64_STANDARD,
            bytes,
        )))
    }

    /// The values; nothing if there are none.
    ///
    /// # Errors
    /// It is no such histogram.
    pub fn values(&self) -> io::Result<Option<hdrhistogram::Histogram<u64>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let bytes = STANDARD.decode(&self.0).map_err(io::Error::other)?;
        Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map(Some)
            .map_err(io::Error::other)
    }
}
