//! A recording as load: read ahead by a thread of its own, so that the generator's loop does not wait for a disk.

use super::{Event, Reader, files};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

/// Events handed over at a time.
const LOT: usize = 4_096;
/// Lots that wait.
const LOTS_MAX: usize = 8;

/// What is still to come of a recording.
#[derive(Debug)]
pub struct Replay {
    lots: Receiver<io::Result<Vec<Event>>>,
    lot: std::vec::IntoIter<Event>,
    next: Option<Event>,
    /// Whether everything has been taken.
    pub ended: bool,
    /// Why reading ended early, if it did.
    pub broken: Option<String>,
}

impl Replay {
    /// Reads a recording from `from_us` on.
    ///
    /// # Errors
    /// It is not there, or is no recording.
    pub fn start(path: &Path, from_us: u64) -> io::Result<Self> {
        let files = files(path)?;
        // What is no recording is told before anything is sent.
        for file in &files {
            Reader::open(BufReader::new(File::open(file)?)).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", file.display()))
            })?;
        }
        let (send, lots) = sync_channel(LOTS_MAX);
        std::thread::Builder::new()
            .name("recording".to_owned())
            .spawn(move || {
                let mut lot = Vec::with_capacity(LOT);
                for file in files {
                    let read =
                        File::open(&file).and_then(|file| Reader::open(BufReader::new(file)));
                    let mut reader = match read {
                        Ok(reader) => reader,
                        Err(error) => {
                            let _ = send.send(Err(error));
                            return;
                        }
                    };
                    loop {
                        match reader.event() {
                            Ok(Some(event)) if event.at_us < from_us => {}
                            Ok(Some(event)) => lot.push(event),
                            Ok(None) => break,
                            Err(error) => {
                                let _ = send.send(Err(error));
                                return;
                            }
                        }
                        if lot.len() == LOT
                            && send
                                .send(Ok(std::mem::replace(&mut lot, Vec::with_capacity(LOT))))
                                .is_err()
                        {
                            return;
                        }
                    }
                    if reader.torn {
                        let text = format!("{} is cut off or damaged", file.display());
                        let _ = send.send(Ok(std::mem::take(&mut lot)));
                        let _ = send.send(Err(io::Error::other(text)));
                        return;
                    }
                }
                let _ = send.send(Ok(lot));
            })?;
        Ok(Self {
            lots,
            lot: Vec::new().into_iter(),
            next: None,
            ended: false,
            broken: None,
        })
    }

    /// When the next event is, if it has been read.
    pub fn next_us(&mut self) -> Option<u64> {
        while self.next.is_none() && !self.ended {
            self.next = self.lot.next();
            if self.next.is_some() {
                break;
            }
            match self.lots.try_recv() {
                Ok(Ok(lot)) => self.lot = lot.into_iter(),
                Ok(Err(error)) => {
                    self.broken = Some(error.to_string());
                    self.ended = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.ended = true,
            }
        }
        self.next.map(|event| event.at_us)
    }

    /// The next event, if it is not later than `until_us`.
    pub fn take(&mut self, until_us: u64) -> Option<Event> {
        if self.next_us()? > until_us {
            return None;
        }
        self.next.take()
    }
}
