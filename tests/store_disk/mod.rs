//! A disk in memory under redb, that keeps what was written apart from what was synced, and can be made to fail.
//!
//! Every write, change of length and sync is one step. A [`Disk`] remembers all steps, so that one run of a workload
//! gives the image that a power cut at any of its steps leaves behind: everything synced before, and of what was
//! written since, whatever a seed says.

#![allow(dead_code, reason = "each test uses a part of it")]

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use redb::StorageBackend;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

/// The size of what a disk writes whole or not at all, in bytes; a torn write ends at a multiple of it.
const SECTOR_BYTES: usize = 512;

/// One step.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Bytes written at an offset.
    Write(u64, Vec<u8>),
    /// The file's length was set.
    SetLen(u64),
    /// Everything before is on disk.
    Sync,
}

/// What survives of the writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survives {
    /// Nothing.
    None,
    /// All of it.
    All,
    /// The first few writes.
    Prefix,
    /// Any of them, in any order.
    Subset,
    /// Any of them, each whole or in part.
    Torn,
}

impl Survives {
    /// Every way.
    pub(crate) const EACH: [Survives; 5] = [
        Self::None,
        Self::All,
        Self::Prefix,
        Self::Subset,
        Self::Torn,
    ];
}

#[derive(Debug, Default)]
struct State {
    /// What the running process reads: everything written.
    content: Vec<u8>,
    steps: Vec<Step>,
    /// Whether steps are remembered.
    recording: bool,
    taken: u64,
    /// From this step on, for so many steps, writes fail for want of space.
    full: Option<(u64, u64)>,
    /// The length that the file cannot grow beyond.
    capacity: Option<u64>,
    /// From this step on syncs fail.
    sync_fails_from: Option<u64>,
    /// From this step on reads give garbage.
    garbage_from: Option<u64>,
}

/// The disk. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// An empty disk that remembers its steps.
    pub(crate) fn recording() -> Self {
        let disk = Self::default();
        disk.state().recording = true;
        disk
    }

    /// A disk that holds this.
    pub(crate) fn with_content(content: Vec<u8>) -> Self {
        let disk = Self::default();
        disk.state().content = content;
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Steps so far.
    pub(crate) fn taken(&self) -> u64 {
        self.state().taken
    }

    /// What the disk holds, synced or not.
    pub(crate) fn content(&self) -> Vec<u8> {
        self.state().content.clone()
    }

    /// Lets `count` writes fail for want of space, after `after` more steps.
    pub(crate) fn fill_up(&self, after: u64, count: u64) {
        let mut state = self.state();
        state.full = Some((state.taken + after, count));
    }

    /// Lets the file grow no further than it is, or without bound.
    pub(crate) fn stop_growth(&self, stop: bool) {
        let mut state = self.state();
        state.capacity = stop.then_some(state.content.len() as u64);
    }

    /// Lets every sync fail from now on.
    pub(crate) fn fail_syncs(&self) {
        let mut state = self.state();
        state.sync_fails_from = Some(state.taken);
    }

    /// Lets every read give garbage from now on.
    pub(crate) fn read_garbage(&self) {
        let mut state = self.state();
        state.garbage_from = Some(state.taken);
    }

    /// Everything that a workload did, to be cut afterwards.
    pub(crate) fn tape(&self) -> Tape {
        Tape(self.state().steps.clone())
    }
}

/// The steps of a workload.
pub(crate) struct Tape(Vec<Step>);

impl Tape {
    /// Steps on it.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What the disk holds after a power cut before step `cut`.
    pub(crate) fn cut(&self, cut: usize, survives: Survives, seed: u64) -> Vec<u8> {
        let synced = self.0[..cut]
            .iter()
            .rposition(|step| matches!(step, Step::Sync))
            .map_or(0, |at| at + 1);
        let mut content = Vec::new();
        for step in &self.0[..synced] {
            apply(&mut content, step);
        }
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let unsynced = &self.0[synced..cut];
        let prefix = random.random_range(0..=unsynced.len());
        for (nth, step) in unsynced.iter().enumerate() {
            let kept = match survives {
                Survives::None => false,
                Survives::All => true,
                Survives::Prefix => nth < prefix,
                Survives::Subset | Survives::Torn => random.random(),
            };
            match step {
                Step::Write(offset, data) if kept && survives == Survives::Torn => {
                    let sectors = data.len().div_ceil(SECTOR_BYTES);
                    let from = random.random_range(0..=sectors) * SECTOR_BYTES;
                    let to = (random.random_range(0..=sectors) * SECTOR_BYTES).min(data.len());
                    if from < to {
                        let part = data[from..to].to_vec();
                        apply(&mut content, &Step::Write(offset + from as u64, part));
                    }
                }
                step if kept => apply(&mut content, step),
                _ => {}
            }
        }
        content
    }
}

fn apply(content: &mut Vec<u8>, step: &Step) {
    match step {
        Step::Write(offset, data) => {
            let from = usize::try_from(*offset).unwrap();
            let to = from + data.len();
            if content.len() < to {
                content.resize(to, 0);
            }
            content[from..to].copy_from_slice(data);
        }
        Step::SetLen(len) => content.resize(usize::try_from(*len).unwrap(), 0),
        Step::Sync => {}
    }
}

impl State {
    fn step(&mut self, step: Step) -> Result<(), Error> {
        let at = self.taken;
        self.taken += 1;
        if matches!(step, Step::Sync) {
            if self.sync_fails_from.is_some_and(|from| at >= from) {
                return Err(Error::other("the disk is gone"));
            }
        } else {
            let end = match &step {
                Step::Write(offset, data) => offset + data.len() as u64,
                Step::SetLen(len) => *len,
                Step::Sync => 0,
            };
            let full = self
                .full
                .is_some_and(|(from, count)| (from..from + count).contains(&at));
            if full || self.capacity.is_some_and(|capacity| end > capacity) {
                return Err(Error::from(ErrorKind::StorageFull));
            }
        }
        apply(&mut self.content, &step);
        if self.recording {
            self.steps.push(step);
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.state().content.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let state = self.state();
        let from = usize::try_from(offset).unwrap();
        let bytes = state
            .content
            .get(from..from + out.len())
            .ok_or(ErrorKind::UnexpectedEof)?;
        if state.garbage_from.is_some_and(|at| state.taken >= at) {
            out.fill(0xa5);
        } else {
            out.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.state().step(Step::SetLen(len))
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.state().step(Step::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.state().step(Step::Write(offset, data.to_vec()))
    }
}
