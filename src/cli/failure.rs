//! How a command ends when it does not go well: one line on standard error, and a status.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// The statuses of the process that say more than that it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The work ran, and the answer is no.
    No,
    /// The command or the settings are wrong.
    Usage,
    /// Something that the work depends on is out of reach.
    Unreachable,
    /// Whoever read the output has gone; nobody is left to be told.
    NobodyReads,
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(super) struct Failure {
    exit: Exit,
    what: String,
}

impl Failure {
    /// A failure with the words for it, which say what is wrong and what to do.
    pub(super) fn new(exit: Exit, what: impl Display) -> Self {
        Self {
            exit,
            what: what.to_string(),
        }
    }

    /// The words for it.
    pub(super) fn words(self) -> String {
        self.what
    }

    /// Tells the user, in one line whatever the words hold.
    pub(super) fn report(&self) -> ExitCode {
        let code = match self.exit {
            Exit::NobodyReads => return ExitCode::SUCCESS,
            Exit::No => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
        };
        let words: Vec<&str> = self.what.split(char::is_control).map(str::trim).collect();
        eprintln!("trove: {}", words.join(" ").trim());
        ExitCode::from(code)
    }
}

/// Writing what was asked for failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            Self::new(Exit::NobodyReads, error)
        } else {
            Self::new(
                Exit::Unreachable,
                format_args!("cannot write the output: {error}"),
            )
        }
    }
}
