//! Why a run cannot begin or go on: one line for whoever started it, and the exit status.

use std::fmt::Display;

/// What went wrong, in the terms of the exit status.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The case, or what was asked for, cannot be meant so. Status 2.
    #[error("{0}")]
    Usage(String),
    /// Something that the run needs is missing or does not answer. Status 3.
    #[error("{0}")]
    Unreachable(String),
}

impl Refusal {
    /// Status 2.
    pub fn usage(text: impl Display) -> Self {
        Self::Usage(text.to_string())
    }

    /// Status 3.
    pub fn unreachable(text: impl Display) -> Self {
        Self::Unreachable(text.to_string())
    }

    /// The process's exit status.
    #[must_use]
    pub const fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
        }
    }
}
