//! Writes a recording.

use super::{BLOCK_BYTES_MAX, Event, MAGIC, VERSION, code};
use std::io::{self, Write};

/// The longest event: two varints and a byte.
const EVENT_BYTES_MAX: usize = 21;

/// Writes one file of a recording.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    payload: Vec<u8>,
    last_us: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a file of a recording that began at `started_ms`.
    ///
    /// # Errors
    /// The writer's.
    pub fn begin(mut out: W, started_ms: u64) -> io::Result<Self> {
        let header = format!("{{\"started_ms\":{started_ms}}}");
        let length = u32::try_from(header.len()).map_err(io::Error::other)?;
        out.write_all(MAGIC)?;
        out.write_all(&[VERSION])?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        Ok(Self {
            out,
            payload: Vec::with_capacity(BLOCK_BYTES_MAX),
            last_us: 0,
        })
    }

    /// Adds an event, not earlier than the one before (one that is counts as of the same time).
    ///
    /// # Errors
    /// The writer's.
    pub fn event(&mut self, event: Event) -> io::Result<()> {
        if self.payload.len() + EVENT_BYTES_MAX > BLOCK_BYTES_MAX {
            self.flush()?;
        }
        let at_us = event.at_us.max(self.last_us);
        let time = if self.payload.is_empty() {
            at_us
        } else {
            at_us - self.last_us
        };
        varint(&mut self.payload, time);
        varint(&mut self.payload, event.user);
        self.payload.push(code(event.kind));
        self.last_us = at_us;
        Ok(())
    }

    /// Ends a block, so that what has been added can be read. About once a second is often enough.
    ///
    /// # Errors
    /// The writer's.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.payload.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(self.payload.len()).map_err(io::Error::other)?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out
            .write_all(&crc32fast::hash(&self.payload).to_le_bytes())?;
        self.out.write_all(&self.payload)?;
        self.payload.clear();
        self.out.flush()
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The writer's.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
