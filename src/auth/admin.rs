//! The keys of those who manage.

use super::files::{self, ADMIN, KeyError, KeySource, NamedKey, Secrets};
use crate::config::Settings;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Named admin keys. Only their digests are held: they are all of one length, so that neither a key's content nor its
/// length shows in the time that a comparison takes.
pub struct AdminKeys(Vec<(Arc<str>, [u8; 32])>);

impl AdminKeys {
    /// Takes the keys from their sources; see [`super::Keys::load`].
    ///
    /// # Errors
    /// Says what is wrong with which source.
    pub fn load(
        settings: &Settings,
        secrets: &Secrets,
        store_dir: Option<&Path>,
    ) -> Result<(Self, KeySource), KeyError> {
        let file = &settings.auth.admin_keys_file;
        let (keys, source) =
            files::find(&ADMIN, secrets.admin_key.as_deref(), file, store_dir, true)?;
        Ok((Self::new(&keys), source))
    }

    fn new(keys: &[NamedKey]) -> Self {
        let digest = |key: &NamedKey| {
            let name = key.name.as_deref().unwrap_or("admin");
            (name.into(), Sha256::digest(&key.key).into())
        };
        Self(keys.iter().map(digest).collect())
    }

    /// The name of the key that `bearer` is, if it is one. Every key is compared, whichever it is.
    #[must_use]
    pub fn name(&self, bearer: &str) -> Option<Arc<str>> {
        let digest: [u8; 32] = Sha256::digest(bearer).into();
        let mut found = None;
        for (name, key) in &self.0 {
            if bool::from(key.ct_eq(&digest)) {
                found = Some(name);
            }
        }
        found.cloned()
    }
}

impl fmt::Debug for AdminKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}
