//! Where keys come from: the environment, else a file that the settings name, else the store's directory.

use crate::config::Settings;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The most keys in one file.
const KEYS_MAX: usize = 64;
/// The largest file of keys, in bytes.
const FILE_BYTES_MAX: u64 = 65_536;
/// The longest name of a key, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Random bytes in a key that is made here; it is written as twice as many hexadecimal digits.
const MADE_BYTES: usize = 32;

/// The secrets of the environment. They are no settings, so that no settings file holds one.
#[derive(Clone, Default)]
pub struct Secrets {
    /// `TROVE_TOKEN_KEY`
    pub token_key: Option<String>,
    /// `TROVE_ADMIN_KEY`
    pub admin_key: Option<String>,
}

impl Secrets {
    /// Picks the secrets out of the environment's variables.
    #[must_use]
    pub fn from_env(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut secrets = Self::default();
        for (name, value) in variables {
            if name == TOKEN.variable {
                secrets.token_key = Some(value);
            } else if name == ADMIN.variable {
                secrets.admin_key = Some(value);
            }
        }
        secrets
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// Where a kind of key came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// The environment.
    Environment,
    /// A file that the settings name.
    File(PathBuf),
    /// A file in the store's directory, made by an earlier start.
    Kept(PathBuf),
    /// A file in the store's directory, made now.
    Made(PathBuf),
}

/// Why there are no keys to work with. No message holds a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No source has any.
    #[error("there is no {what}; set {variable} or {setting}{}", beside(.dir.as_deref()))]
    Missing {
        /// The kind of key.
        what: &'static str,
        /// The variable that could hold it.
        variable: &'static str,
        /// The setting that could name a file.
        setting: &'static str,
        /// The store's directory that has none.
        dir: Option<PathBuf>,
    },
    /// Two sources speak.
    #[error("both {variable} and {setting} are set; unset one of them")]
    TwoSources {
        /// The variable.
        variable: &'static str,
        /// The setting.
        setting: &'static str,
    },
    /// A key cannot be used.
    #[error("{at}: {why}")]
    Unfit {
        /// The variable, or the file and line.
        at: String,
        /// What is wrong with it.
        why: String,
    },
    /// Others than the owner may read a key that was made here.
    #[error("{} can be read by others (mode {mode:03o}); run: chmod 600 {}, and replace the key if others may have seen it", .path.display(), .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file system refused.
    #[error("cannot use the key file {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn beside(dir: Option<&Path>) -> String {
    dir.map_or_else(String::new, |dir| {
        format!(
            ", or name with --store the directory of a store that was served before ({} has none)",
            dir.display()
        )
    })
}

/// A kind of key.
pub(super) struct Kind {
    what: &'static str,
    variable: &'static str,
    setting: &'static str,
    file_name: &'static str,
    bytes_min: usize,
}

/// Keys that sign tokens. RFC 7518, section 3.2: a key for HS256 has at least 256 bits.
pub(super) const TOKEN: Kind = Kind {
    what: "token key",
    variable: "TROVE_TOKEN_KEY",
    setting: "auth.token_keys_file",
    file_name: "token.key",
    bytes_min: 32,
};

/// Keys of those who manage.
pub(super) const ADMIN: Kind = Kind {
    what: "admin key",
    variable: "TROVE_ADMIN_KEY",
    setting: "auth.admin_keys_file",
    file_name: "admin.key",
    bytes_min: 16,
};

/// A key and what it is called.
pub(super) struct NamedKey {
    pub(super) name: Option<String>,
    pub(super) key: String,
}

/// Finds the keys of a kind, at least one; makes one in `dir` if there are none and `make` says so.
pub(super) fn find(
    kind: &Kind,
    secret: Option<&str>,
    file: &Path,
    dir: Option<&Path>,
    make: bool,
) -> Result<(Vec<NamedKey>, KeySource), KeyError> {
    let has_file = !file.as_os_str().is_empty();
    if let Some(secret) = secret {
        if has_file {
            return Err(KeyError::TwoSources {
                variable: kind.variable,
                setting: kind.setting,
            });
        }
        let key = fit(kind, None, secret, || kind.variable.to_owned())?;
        return Ok((vec![key], KeySource::Environment));
    }
    if has_file {
        return Ok((read_list(kind, file)?, KeySource::File(file.to_owned())));
    }
    let missing = || KeyError::Missing {
        what: kind.what,
        variable: kind.variable,
        setting: kind.setting,
        dir: dir.map(Path::to_owned),
    };
    let dir = dir.ok_or_else(missing)?;
    let path = dir.join(kind.file_name);
    if let Some(key) = read_kept(kind, &path)? {
        return Ok((vec![key], KeySource::Kept(path)));
    }
    if !make {
        return Err(missing());
    }
    let made = make_kept(dir, &path).map_err(|source| KeyError::Io {
        path: path.clone(),
        source,
    })?;
    // What is there now is the key, also if another process was faster.
    let key = read_kept(kind, &path)?.ok_or_else(missing)?;
    let source = if made {
        KeySource::Made
    } else {
        KeySource::Kept
    };
    Ok((vec![key], source(path)))
}

/// The admin key to send to a server: the first that a server with the same settings takes.
///
/// # Errors
/// As [`super::Keys::load`].
pub fn admin_key(settings: &Settings, secrets: &Secrets) -> Result<String, KeyError> {
    let (secret, file) = (secrets.admin_key.as_deref(), &settings.auth.admin_keys_file);
    let (keys, _) = find(&ADMIN, secret, file, settings.store.dir(), false)?;
    let first = keys.into_iter().next();
    Ok(first.map_or_else(String::new, |key| key.key))
}

fn fit(
    kind: &Kind,
    name: Option<&str>,
    key: &str,
    at: impl Fn() -> String,
) -> Result<NamedKey, KeyError> {
    let unfit = |why| Err(KeyError::Unfit { at: at(), why });
    if key.len() < kind.bytes_min {
        return unfit(format!(
            "the {} is {} bytes long; it must be at least {}",
            kind.what,
            key.len(),
            kind.bytes_min
        ));
    }
    if !key.bytes().all(|b| b.is_ascii_graphic()) {
        return unfit(format!(
            "the {} may only hold visible ASCII characters",
            kind.what
        ));
    }
    Ok(NamedKey {
        name: name.map(str::to_owned),
        key: key.to_owned(),
    })
}

fn read_list(kind: &Kind, path: &Path) -> Result<Vec<NamedKey>, KeyError> {
    let io = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let text = read_bounded(File::open(path).map_err(io)?).map_err(io)?;
    let mut keys: Vec<NamedKey> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = || format!("{}, line {}", path.display(), index + 1);
        let unfit = |why: &str| KeyError::Unfit {
            at: at(),
            why: why.to_owned(),
        };
        let (name, key) = line
            .split_once(':')
            .ok_or_else(|| unfit("a key is written as name:key"))?;
        let (name, key) = (name.trim(), key.trim());
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(fits) {
            return Err(unfit("the name must be 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        if keys.iter().any(|other| other.name.as_deref() == Some(name)) {
            return Err(unfit("another key has the same name"));
        }
        if keys.iter().any(|other| other.key == key) {
            return Err(unfit("another name has the same key"));
        }
        if keys.len() == KEYS_MAX {
            return Err(unfit("there are more than 64 keys"));
        }
        keys.push(fit(kind, Some(name), key, at)?);
    }
    if keys.is_empty() {
        return Err(KeyError::Unfit {
            at: path.display().to_string(),
            why: format!("holds no {}; write one as name:key", kind.what),
        });
    }
    Ok(keys)
}

fn read_bounded(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "it is larger than 64 KiB",
        ));
    }
    Ok(text)
}

fn read_kept(kind: &Kind, path: &Path) -> Result<Option<NamedKey>, KeyError> {
    let io = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let text = read_bounded(file).map_err(io)?;
    fit(kind, None, text.trim(), || path.display().to_string()).map(Some)
}

/// Makes a random key that is either there whole, on disk, or not at all. `false` when there is one already.
fn make_kept(dir: &Path, path: &Path) -> io::Result<bool> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mut bytes = [0; MADE_BYTES + 8];
    getrandom::fill(&mut bytes)?;
    let (key, suffix) = bytes.split_at(MADE_BYTES);
    let draft = path.with_extension(format!("key.{}", hex(suffix)));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let made = writeln!(file, "{}", hex(key))
        .and_then(|()| file.sync_all())
        // A link, unlike a renaming, never replaces what another process put there meanwhile.
        .and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft)?;
    match made {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(error),
    }
    File::open(dir)?.sync_all()?;
    Ok(true)
}
