//! What a run's system is made of, kept in its directory so that a resumption finds the same: ports, keys, the hunt.

use super::ports::Ports;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Where it is kept, in the system's directory. It holds keys: only its owner may read it.
const FILE: &str = "state.json";
/// Random bytes of a key; in hexadecimal twice as many characters.
const KEY_BYTES: usize = 32;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    ports: BTreeMap<String, u16>,
    token_key: String,
    admin_key: String,
    hunt: String,
    live: String,
}

/// The state, written down with each change.
pub struct State {
    path: PathBuf,
    kept: Kept,
    free: Ports,
}

impl State {
    /// What the directory says, or a new one with random keys.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(dir: &Path) -> Result<Self, Refusal> {
        let path = dir.join(FILE);
        let failed = |error: &dyn std::fmt::Display| {
            Refusal::unreachable(format!("{}: {error}", path.display()))
        };
        let kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(&error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Kept {
                token_key: random_key().map_err(|error| failed(&error))?,
                admin_key: random_key().map_err(|error| failed(&error))?,
                live: super::servers::GROUPS[0].to_owned(),
                ..Kept::default()
            },
            Err(error) => return Err(failed(&error)),
        };
        let state = Self {
            path,
            kept,
            free: Ports::default(),
        };
        state.save()?;
        Ok(state)
    }

    fn save(&self) -> Result<(), Refusal> {
        let write = || -> std::io::Result<()> {
            let new = self.path.with_extension("new");
            let mut options = OpenOptions::new();
            options.create(true).truncate(true).write(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(&self.kept)?)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)
        };
        write().map_err(|error| Refusal::unreachable(format!("{}: {error}", self.path.display())))
    }

    /// The address of a process: the one it has had, or a free one.
    ///
    /// # Errors
    /// When none is free.
    pub fn address(&mut self, name: &str, with_above: Option<u16>) -> Result<SocketAddr, Refusal> {
        if let Some(port) = self.kept.ports.get(name) {
            return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, *port)));
        }
        let address = self.free.take(with_above)?;
        self.kept.ports.insert(name.to_owned(), address.port());
        self.save()?;
        Ok(address)
    }

    /// Signs tokens of players.
    #[must_use]
    pub fn token_key(&self) -> &str {
        &self.kept.token_key
    }

    /// Opens what operators may do.
    #[must_use]
    pub fn admin_key(&self) -> &str {
        &self.kept.admin_key
    }

    /// Takes the keys of a system that is already there.
    ///
    /// # Errors
    /// When they cannot be written down.
    pub fn take_keys(&mut self, token_key: String, admin_key: String) -> Result<(), Refusal> {
        self.kept.token_key = token_key;
        self.kept.admin_key = admin_key;
        self.save()
    }

    /// The run's hunt; empty: there is none yet.
    #[must_use]
    pub fn hunt(&self) -> &str {
        &self.kept.hunt
    }

    /// Remembers it.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn set_hunt(&mut self, hunt: &str) -> Result<(), Refusal> {
        hunt.clone_into(&mut self.kept.hunt);
        self.save()
    }

    /// The group of instances that is live.
    #[must_use]
    pub fn live(&self) -> &str {
        &self.kept.live
    }

    /// Remembers that another one is.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn set_live(&mut self, group: &str) -> Result<(), Refusal> {
        group.clone_into(&mut self.kept.live);
        self.save()
    }
}

fn random_key() -> std::io::Result<String> {
    let mut bytes = [0_u8; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
