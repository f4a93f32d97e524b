//! Keys and tokens: who a player is, and who may manage.
//!
//! - [`files`]: where keys come from: the environment, files, or random ones kept in the store's directory.
//! - [`token`]: players' tokens, JWT signed with HS256; [`hs256`] is the only signature there is.
//! - [`admin`]: the keys of those who manage.
//! - [`cache`]: tokens that were verified, so that a poll verifies none twice.

mod admin;
mod cache;
mod files;
mod hs256;
mod token;

pub use admin::AdminKeys;
pub use cache::{Entry, TokenCache};
pub use files::{KeyError, KeySource, Secrets, admin_key};
pub use token::{Claims, TOKEN_BYTES_MAX, TokenError, TokenKeys};

use crate::config::Settings;
use crate::game::ids::PlayerName;
use std::path::Path;
use std::sync::Arc;

/// The keys that a server works with.
#[derive(Debug)]
pub struct Keys {
    /// They verify and sign players' tokens.
    pub tokens: TokenKeys,
    /// They are the operators'.
    pub admins: AdminKeys,
}

/// Where the keys came from, for the server to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOrigin {
    /// The token keys.
    pub token: KeySource,
    /// The admin keys.
    pub admin: KeySource,
}

impl Keys {
    /// Takes the keys from the environment or the files that the settings name. Without either they are random ones that
    /// are kept in `store_dir`, which is made if it is missing.
    ///
    /// # Errors
    /// Names the key and where it should have come from, never the key itself.
    pub fn load(
        settings: &Settings,
        secrets: &Secrets,
        store_dir: Option<&Path>,
    ) -> Result<(Self, KeyOrigin), KeyError> {
        let (tokens, token) = TokenKeys::load(settings, secrets, store_dir, true)?;
        let (admins, admin) = AdminKeys::load(settings, secrets, store_dir)?;
        Ok((Self { tokens, admins }, KeyOrigin { token, admin }))
    }

    /// See [`TokenKeys::verify`].
    ///
    /// # Errors
    /// Why the token speaks for nobody.
    pub fn verify(&self, token: &str, now_ms: u64) -> Result<Claims, TokenError> {
        self.tokens.verify(token, now_ms)
    }

    /// See [`TokenKeys::sign`].
    #[must_use]
    pub fn sign(&self, player: &PlayerName, now_ms: u64, ttl_s: u64) -> String {
        self.tokens.sign(player, now_ms, ttl_s)
    }

    /// The name of the admin key that this bearer token is, if it is one.
    #[must_use]
    pub fn admin(&self, bearer: &str) -> Option<Arc<str>> {
        self.admins.name(bearer)
    }
}

#[cfg(test)]
mod tests;
