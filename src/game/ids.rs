//! Names: hunts, treasures, finds, players.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The longest hunt, treasure or find id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// The longest player name, in bytes.
pub const PLAYER_BYTES_MAX: usize = 128;

/// Why a string is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty, or longer than the kind allows.
    #[error("must be 1 to {max} characters long")]
    Length {
        /// The kind's longest id.
        max: usize,
    },
    /// Has a character outside the kind's set.
    #[error("may only hold {allowed}")]
    Character {
        /// The kind's set, for people.
        allowed: &'static str,
    },
}

fn check(text: &str, max: usize, extra: &[u8], allowed: &'static str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > max {
        return Err(IdError::Length { max });
    }
    let fits =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-') || extra.contains(&b);
    if text.bytes().all(fits) {
        Ok(())
    } else {
        Err(IdError::Character { allowed })
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $max:expr, $extra:expr, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the length and the characters.
            ///
            /// # Errors
            /// Says which of the two is wrong.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check(text, $max, $extra, $allowed)?;
                Ok(Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(&text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

const ID_CHARACTERS: &str = "the characters A-Z a-z 0-9 . _ -";

id!(
    /// A hunt's id: 1 to 64 of `A–Z a–z 0–9 . _ -`.
    HuntId, ID_BYTES_MAX, b"", ID_CHARACTERS
);
id!(
    /// A treasure's id within its hunt: 1 to 64 of `A–Z a–z 0–9 . _ -`.
    TreasureId, ID_BYTES_MAX, b"", ID_CHARACTERS
);
id!(
    /// A find's id within its hunt and player: the treasure's id for a treasure found once, the client's otherwise.
    FindId, ID_BYTES_MAX, b"", ID_CHARACTERS
);
id!(
    /// A player's name, as the token's `sub` says it: 1 to 128 of `A–Z a–z 0–9 . _ - : @`.
    PlayerName, PLAYER_BYTES_MAX, b":@", "the characters A-Z a-z 0-9 . _ - : @"
);

/// The random number under which everything but one map knows a player (rule 12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PlayerId(pub u64);

impl fmt::Display for PlayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_hold_letters_digits_dot_underscore_and_dash_only() {
        assert!(HuntId::new("Berlin-2026_a.b").is_ok());
        for bad in ["a b", "a/b", "ä", "a:b", "a@b", "a\0", "%41"] {
            assert!(
                matches!(HuntId::new(bad), Err(IdError::Character { .. })),
                "{bad:?}"
            );
        }
        assert!(PlayerName::new("user:7@example.org").is_ok());
        assert!(PlayerName::new("a b").is_err());
    }

    #[test]
    fn ids_have_a_longest_length() {
        assert!(TreasureId::new(&"a".repeat(64)).is_ok());
        assert_eq!(
            TreasureId::new(&"a".repeat(65)),
            Err(IdError::Length { max: 64 })
        );
        assert!(PlayerName::new(&"a".repeat(128)).is_ok());
        assert_eq!(
            PlayerName::new(&"a".repeat(129)),
            Err(IdError::Length { max: 128 })
        );
        assert_eq!(FindId::new(""), Err(IdError::Length { max: 64 }));
    }
}
