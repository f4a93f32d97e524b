//! Sorting more rows than memory holds. Rows are gathered up to a bound in bytes, sorted, and written as a run to a nameless
//! file in the run's directory; at the end the runs are merged. When there are [`RUNS_MAX`] of them they are first merged
//! into one, so descriptors and buffers are bounded too. (The crates that do this bring a thread pool and a documentation
//! tester along as build dependencies.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// The most bytes of rows in memory, of one sort.
pub const SORT_BYTES_MAX: usize = 32 << 20;
/// The most runs that are open at a time.
pub const RUNS_MAX: usize = 64;
/// The buffer of each.
const RUN_BUFFER_BYTES: usize = 64 << 10;

/// Something of fixed size that can be sorted.
pub trait Row: Ord + Copy {
    /// Its bytes in a file.
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Default;
    /// As bytes.
    fn encode(&self) -> Self::Bytes;
    /// From bytes.
    ///
    /// # Errors
    /// They are no such row.
    fn decode(bytes: &Self::Bytes) -> io::Result<Self>;
}

/// Takes rows in any order.
#[derive(Debug)]
pub struct Sorter<R> {
    dir: PathBuf,
    rows: Vec<R>,
    rows_max: usize,
    runs: Vec<File>,
    written: usize,
}

impl<R: Row> Sorter<R> {
    /// A sort that keeps at most so many bytes of rows in memory, and the others in `dir`.
    #[must_use]
    pub fn new(dir: &Path, bytes_max: usize) -> Self {
        Self {
            dir: dir.to_owned(),
            rows: Vec::new(),
            rows_max: (bytes_max / size_of::<R>()).max(2),
            runs: Vec::new(),
            written: 0,
        }
    }

    /// One more row.
    ///
    /// # Errors
    /// A run cannot be written.
    pub fn push(&mut self, row: R) -> io::Result<()> {
        if self.rows.len() >= self.rows_max {
            self.write_run()?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// How many runs had to be written.
    #[must_use]
    pub const fn runs_written(&self) -> usize {
        self.written
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.rows.sort_unstable();
        if self.runs.len() >= RUNS_MAX {
            let merged = Merge::<R>::new(std::mem::take(&mut self.runs), Vec::new())?;
            let run = write_all(&self.dir, merged)?;
            self.runs.push(run);
        }
        let run = write_all(&self.dir, self.rows.drain(..).map(Ok))?;
        self.runs.push(run);
        self.written += 1;
        Ok(())
    }

    /// The rows in order.
    ///
    /// # Errors
    /// The runs cannot be read.
    pub fn sorted(mut self) -> io::Result<Merge<R>> {
        self.rows.sort_unstable();
        Merge::new(self.runs, self.rows)
    }
}

fn write_all<R: Row>(dir: &Path, rows: impl Iterator<Item = io::Result<R>>) -> io::Result<File> {
    let file = tempfile::tempfile_in(dir)?;
    let mut to = BufWriter::with_capacity(RUN_BUFFER_BYTES, file);
    for row in rows {
        to.write_all(row?.encode().as_ref())?;
    }
    let mut file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// Rows of several sorted runs, in order.
#[derive(Debug)]
pub struct Merge<R> {
    /// Of each run the next row, least first.
    heads: BinaryHeap<Reverse<(R, usize)>>,
    runs: Vec<Run<R>>,
}

#[derive(Debug)]
enum Run<R> {
    File(BufReader<File>, PhantomData<R>),
    Memory(std::vec::IntoIter<R>),
}

impl<R: Row> Run<R> {
    fn next(&mut self) -> io::Result<Option<R>> {
        match self {
            Self::Memory(rows) => Ok(rows.next()),
            Self::File(file, _) => {
                let mut bytes = R::Bytes::default();
                match file.read_exact(bytes.as_mut()) {
                    Ok(()) => R::decode(&bytes).map(Some),
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

impl<R: Row> Merge<R> {
    fn new(files: Vec<File>, rows: Vec<R>) -> io::Result<Self> {
        let files = files.into_iter().map(|file| {
            let file = BufReader::with_capacity(RUN_BUFFER_BYTES, file);
            Run::File(file, PhantomData)
        });
        let mut runs: Vec<Run<R>> = files.collect();
        runs.push(Run::Memory(rows.into_iter()));
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (at, run) in runs.iter_mut().enumerate() {
            if let Some(row) = run.next()? {
                heads.push(Reverse((row, at)));
            }
        }
        Ok(Self { heads, runs })
    }

    fn advance(&mut self) -> io::Result<Option<R>> {
        let Some(mut head) = self.heads.peek_mut() else {
            return Ok(None);
        };
        let Reverse((row, at)) = *head;
        match self.runs[at].next()? {
            Some(next) => *head = Reverse((next, at)),
            None => {
                std::collections::binary_heap::PeekMut::pop(head);
            }
        }
        Ok(Some(row))
    }
}

impl<R: Row> Iterator for Merge<R> {
    type Item = io::Result<R>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Row for u64 {
        type Bytes = [u8; 8];
        fn encode(&self) -> [u8; 8] {
            self.to_le_bytes()
        }
        fn decode(bytes: &[u8; 8]) -> io::Result<Self> {
            Ok(Self::from_le_bytes(*bytes))
        }
    }

    #[test]
    fn rows_of_hundreds_of_runs_come_out_in_order_and_none_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut sorter = Sorter::new(dir.path(), 80);
        let count = 2_500_u64;
        // A step that is prime to the count goes through all of them.
        for at in 0..count {
            sorter.push(at * 1_009 % count).expect("pushed");
        }
        assert!(
            sorter.runs_written() > 3 * RUNS_MAX,
            "{}",
            sorter.runs_written()
        );
        assert!(sorter.runs.len() <= RUNS_MAX + 1);
        let sorted: io::Result<Vec<u64>> = sorter.sorted().expect("merged").collect();
        assert_eq!(sorted.expect("read"), (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_sorted_is_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let sorter = Sorter::<u64>::new(dir.path(), 80);
        assert_eq!(sorter.sorted().expect("merged").count(), 0);
    }
}
