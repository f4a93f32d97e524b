//! A small disk for the store, which a case's fault can fill: a `tmpfs` of the run's own. Mounting it needs root.

use crate::refusal::Refusal;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Its size: the free space that `trove` insists on (64 MiB), an append-only file's growth, and as much again.
const SIZE: &str = "size=512m";
const FILLER: &str = "filler";
const CHUNK_BYTES: usize = 1 << 20;

/// The disk; unmounted when dropped.
pub struct Disk {
    /// Where it is mounted.
    pub path: PathBuf,
}

impl Disk {
    /// Mounts it, or takes over what a harness that was killed has left.
    ///
    /// # Errors
    /// When this process may not mount.
    pub fn mount(path: PathBuf) -> Result<Self, Refusal> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let is_there = |line: &str| line.split(' ').nth(1) == path.to_str();
        if !mounts.lines().any(is_there) {
            let failed = |error: &dyn std::fmt::Display| {
                Refusal::unreachable(format!(
                    "fill_disk needs a disk of its own, and mounting one at {} needs root: {error}",
                    path.display()
                ))
            };
            std::fs::create_dir_all(&path).map_err(|error| failed(&error))?;
            let options = std::ffi::CString::new(SIZE).map_err(|error| failed(&error))?;
            mount(
                "tmpfs",
                &path,
                "tmpfs",
                MountFlags::empty(),
                Some(options.as_c_str()),
            )
            .map_err(|error| failed(&error))?;
        }
        let disk = Self { path };
        disk.empty()?;
        Ok(disk)
    }

    /// Writes until no space is left: how many bytes that took.
    ///
    /// # Errors
    /// When writing fails for another reason.
    pub fn fill(&self) -> Result<u64, Refusal> {
        let failed = |error: std::io::Error| {
            Refusal::unreachable(format!("{}: {error}", self.path.display()))
        };
        let mut file = std::fs::File::create(self.path.join(FILLER)).map_err(failed)?;
        let chunk = vec![0_u8; CHUNK_BYTES];
        let mut size = CHUNK_BYTES;
        let mut written = 0;
        loop {
            match file.write(&chunk[..size]) {
                Ok(length) => written += length as u64,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                    // What is left is less than this.
                    if size == 1 {
                        return Ok(written);
                    }
                    size /= 2;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Gives the space back.
    ///
    /// # Errors
    /// When the filler cannot be removed.
    pub fn empty(&self) -> Result<(), Refusal> {
        let filler: &Path = &self.path.join(FILLER);
        match std::fs::remove_file(filler) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(
                Refusal::unreachable(format!("{}: {error}", filler.display())),
            ),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Detached: a process that has not quite ended may have a file open.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}
