//! What can go wrong with a command, and whether it may have been carried out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ParsingError, RedisError};

use crate::connection::DownReason;

/// Why a command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no link to a server now. Nothing was sent.
    #[error("no connection to the store")]
    NotConnected {
        /// Why not; `None` while the first attempt is under way.
        #[source]
        reason: Option<Arc<DownReason>>,
    },
    /// As many commands as the connection allows are under way. Nothing was sent.
    #[error("{commands} commands would exceed the {max} that may be in flight")]
    TooManyInFlight {
        /// How many commands were to be sent at once.
        commands: usize,
        /// [`Config::in_flight_max`](crate::Config::in_flight_max).
        max: usize,
    },
    /// A script was called with another number of keys than its name says. Nothing was sent.
    #[error("the script {script} takes {expected} keys, not {given}")]
    KeyCount {
        /// The script's name.
        script: String,
        /// How many keys it takes.
        expected: usize,
        /// How many it was given.
        given: usize,
    },
    /// A read was to block for longer than the connection is made for. Nothing was sent.
    #[error("the connection is made for reads that block for {max:?} at most, not {asked:?}")]
    BlocksTooLong {
        /// How long the read was to block.
        asked: Duration,
        /// [`Config::block_max`](crate::Config::block_max).
        max: Duration,
    },
    /// There was no answer in time. The server may have carried the command out, or may yet.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// How long the answer was waited for.
        after: Duration,
    },
    /// The link broke, or was given up, while the command was under way. It may have been carried out.
    #[error("the link to the store broke while the command was under way")]
    LinkLost {
        /// What broke it.
        #[source]
        source: RedisError,
    },
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server answered with something else than the command's reply. It was carried out.
    #[error("an unexpected reply to {command}")]
    UnexpectedReply {
        /// What was asked.
        command: &'static str,
        /// What was wrong with the reply.
        #[source]
        source: ParsingError,
    },
}

/// What is known of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was certainly not carried out: sending it again, or to another server, does it at most once.
    NotExecuted,
    /// The server ran it and it ended with an error. For one command nothing was changed. A script has changed what it
    /// wrote before the error, which is nothing if it does all its checks before its first write.
    Failed,
    /// It was carried out, but the answer was not understood.
    Executed,
    /// It may have been carried out, and may yet be while the server has it in a buffer. Ask the data before trying again.
    Unknown,
}

impl Error {
    /// What is known of the command. For a batch: of each of its commands.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NotConnected { .. }
            | Self::TooManyInFlight { .. }
            | Self::KeyCount { .. }
            | Self::BlocksTooLong { .. } => Outcome::NotExecuted,
            Self::TimedOut { .. } | Self::LinkLost { .. } => Outcome::Unknown,
            Self::Server(error) => error.outcome(),
            Self::UnexpectedReply { .. } => Outcome::Executed,
        }
    }

    /// The server's error, if it answered with one.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Server(error) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn unexpected(command: &'static str, source: impl Into<ParsingError>) -> Self {
        Self::UnexpectedReply {
            command,
            source: source.into(),
        }
    }
}

/// An error that the server answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// Its first word.
    pub code: ErrorCode,
    /// The rest of it, as the server put it.
    pub message: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}

impl std::error::Error for ServerError {}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The first word of a server's error.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
            /// Any other, such as the codes that scripts answer with (`redis.error_reply('EPOCH 7')` has the code `EPOCH`).
            Other(String),
        }

        impl ErrorCode {
            /// The word.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Other(code) => code,
                }
            }
        }

        impl From<&str> for ErrorCode {
            fn from(code: &str) -> Self {
                match code {
                    $($text => Self::$name,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }
    };
}

error_codes! {
    /// A general error: wrong arguments, or a script that failed.
    Err = "ERR",
    /// A key holds another type.
    WrongType = "WRONGTYPE",
    /// Over `maxmemory`, and the command would need more.
    Oom = "OOM",
    /// The server is a replica.
    ReadOnly = "READONLY",
    /// The server does not know the script.
    NoScript = "NOSCRIPT",
    /// The server is reading its data from disk.
    Loading = "LOADING",
    /// The server is a replica that has lost its master.
    MasterDown = "MASTERDOWN",
    /// The server stopped being a master while the read was blocked.
    Unblocked = "UNBLOCKED",
    /// A script has been running for longer than the server's limit.
    Busy = "BUSY",
    /// Too few replicas are connected (`min-replicas-to-write`).
    NoReplicas = "NOREPLICAS",
    /// The server cannot write to its disk and therefore takes no writes.
    Misconf = "MISCONF",
    /// The connection has not authenticated.
    NoAuth = "NOAUTH",
    /// User and password are not right.
    WrongPass = "WRONGPASS",
    /// The user may not do this.
    NoPerm = "NOPERM",
    /// The slot is another node's.
    Moved = "MOVED",
    /// The slot is being moved to another node.
    Ask = "ASK",
    /// The slot is being moved and its keys are apart.
    TryAgain = "TRYAGAIN",
    /// The keys lie in several slots.
    CrossSlot = "CROSSSLOT",
    /// The cluster does not serve the slot.
    ClusterDown = "CLUSTERDOWN",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ServerError {
    /// What is known of the command: the codes by which a server refuses before it runs anything are
    /// [`Outcome::NotExecuted`]. (Inside a script, `OOM`, `READONLY`, `NOREPLICAS` and `MISCONF` come with its first write
    /// or not at all.)
    pub fn outcome(&self) -> Outcome {
        match self.code {
            ErrorCode::Err | ErrorCode::WrongType | ErrorCode::Other(_) => Outcome::Failed,
            _ => Outcome::NotExecuted,
        }
    }

    /// Whether this server is not, or no longer, one to talk to: the link is dropped and the address resolved again.
    pub(crate) fn condemns_the_link(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::ReadOnly | ErrorCode::Loading | ErrorCode::MasterDown | ErrorCode::Unblocked
        )
    }

    fn new(code: &str, message: &str) -> Self {
        // Before 7.0 the error of a command inside a script arrives wrapped:
        // ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -READONLY You can't write …
        if code == "ERR"
            && message.starts_with("Error running script")
            && let Some((_, inner)) = message.split_once(": -")
        {
            let (code, message) = inner.split_once(' ').unwrap_or((inner, ""));
            return Self {
                code: code.into(),
                message: message.to_owned(),
            };
        }
        Self {
            code: code.into(),
            message: message.to_owned(),
        }
    }
}

impl From<redis::ServerError> for ServerError {
    fn from(error: redis::ServerError) -> Self {
        Self::new(error.code(), error.details().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_wrapped_by_an_old_servers_script_is_unwrapped() {
        let error = ServerError::new(
            "ERR",
            "Error running script (call to f_8f2b): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
        );
        assert_eq!(error.code, ErrorCode::ReadOnly);
        assert!(error.condemns_the_link());
        let plain = ServerError::new(
            "ERR",
            "Error running script (call to f_8f2b): @user_script:1: user_script:1: x",
        );
        assert_eq!(plain.code, ErrorCode::Err);
    }

    #[test]
    fn the_codes_of_scripts_are_kept() {
        let error = ServerError::new("EPOCH", "7");
        assert_eq!(
            (error.code.as_str(), error.message.as_str()),
            ("EPOCH", "7")
        );
        assert_eq!(error.outcome(), Outcome::Failed);
        assert_eq!(ServerError::new("OOM", "").outcome(), Outcome::NotExecuted);
    }
}
