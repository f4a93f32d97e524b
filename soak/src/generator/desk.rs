//! The thread that turns counts into records, so that the loop does not wait for the encoding of histograms nor for whoever
//! reads the output.

use super::Output;
use super::tally::Tally;
use crate::record::Finding;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Intervals and lots of findings that may wait for the desk.
const LETTERS_MAX: usize = 64;

enum Letter {
    Interval(Box<Tally>),
    Findings(Vec<Finding>),
}

/// The loop's side.
pub(super) struct Desk {
    letters: Option<SyncSender<Letter>>,
    used: Receiver<Box<Tally>>,
    thread: Option<JoinHandle<()>>,
    /// Letters that the desk had no room for.
    pub(super) lost: u64,
}

impl Desk {
    /// Starts the thread.
    pub(super) fn open(out: SyncSender<Output>) -> io::Result<Self> {
        let (letters, inbox) = sync_channel(LETTERS_MAX);
        let (give_back, used) = sync_channel(2);
        let thread = std::thread::Builder::new()
            .name("generator-desk".to_owned())
            .spawn(move || {
                for letter in inbox {
                    let delivered = match letter {
                        Letter::Interval(mut tally) => {
                            let delivered = out.send(Output::Interval(tally.interval())).is_ok();
                            tally.clear();
                            // The loop takes it for the interval after next; more than two are not needed.
                            let _ = give_back.try_send(tally);
                            delivered
                        }
                        Letter::Findings(findings) => findings
                            .into_iter()
                            .all(|finding| out.send(Output::Finding(finding)).is_ok()),
                    };
                    if !delivered {
                        // Nobody listens any more.
                        return;
                    }
                }
                let _ = out.send(Output::Ended);
            })?;
        Ok(Self {
            letters: Some(letters),
            used,
            thread: Some(thread),
            lost: 0,
        })
    }

    /// Hands over an interval's counts and takes empty ones.
    pub(super) fn interval(&mut self, tally: Box<Tally>) -> Box<Tally> {
        self.put(Letter::Interval(tally));
        self.used.try_recv().unwrap_or_default()
    }

    /// Hands over findings.
    pub(super) fn findings(&mut self, findings: Vec<Finding>) {
        if !findings.is_empty() {
            self.put(Letter::Findings(findings));
        }
    }

    fn put(&mut self, letter: Letter) {
        if let Some(letters) = &self.letters
            && let Err(TrySendError::Full(_)) = letters.try_send(letter)
        {
            self.lost += 1;
        }
    }

    /// Lets the thread finish what it has.
    pub(super) fn close(&mut self) {
        self.letters = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
