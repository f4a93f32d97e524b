//! The settings: a commented default file that is compiled in, under a file, under the environment, under flags.
//!
//! - [`sources`] lays the sources over one another and refuses what it does not know.
//! - [`limits`] says what each value may be, and which settings depend on each other.
//! - [`shim`]: the shim's own sections. [`sla`]: objectives. [`telemetry`]: the log and traces.

mod limits;
mod shim;
mod sla;
mod sources;
mod telemetry;

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use shim::{
    HeartbeatRule, INSTANCES_MAX, Network, ShimHealthSettings, ShimSettings, ShimUpstreamSettings,
    UpstreamGroup,
};
pub use sla::SlaSettings;
pub use sources::{Origin, environment};
pub use telemetry::{LogFormat, LogLevel, LogSettings, TraceSettings};

/// The commented default settings, as `trove config` prints them.
pub const DEFAULTS: &str = include_str!("../../config/trove.toml");

/// What precedes the name of a store's directory.
pub(crate) const EMBEDDED: &str = "embedded:";

/// All settings. Every field is documented in [`DEFAULTS`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // The default file is the documentation, so that there is one.
pub struct Settings {
    pub server: ServerSettings,
    pub store: StoreSettings,
    pub game: GameSettings,
    pub poll: PollSettings,
    pub auth: AuthSettings,
    pub limits: LimitSettings,
    pub cors: CorsSettings,
    pub log: LogSettings,
    pub trace: TraceSettings,
    pub sla: SlaSettings,
    pub shim: ShimSettings,
    pub shim_upstream: ShimUpstreamSettings,
    pub shim_health: ShimHealthSettings,
}

/// The listeners and the life of the process.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ServerSettings {
    pub listen: SocketAddr,
    pub ops_listen: SocketAddr,
    pub link_peers: Vec<String>,
    pub instance_id: String,
    pub notice_ms: u64,
    pub drain_ms: u64,
}

/// Where the truth is kept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct StoreSettings {
    pub url: String,
    pub find_wait_ms: u64,
    pub cache_bytes: usize,
    pub min_free_bytes: u64,
    pub partitions: u16,
    pub key_prefix: String,
    pub instances: u32,
    pub feed_bytes_max: u64,
    pub connect_wait_ms: u64,
    pub response_timeout_ms: u64,
    pub durability: Durability,
    pub replicas_min: u32,
    pub durability_wait_ms: u64,
    pub recovery_ms: u64,
    pub replay_bytes_max: usize,
    pub replay_age_ms: u64,
    pub journal_dir: PathBuf,
}

/// What must have a change before it is answered and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Durability {
    Async,
    Replicated,
    Fsync,
}

/// The rules' limits.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct GameSettings {
    pub pending_finds_max: u64,
    pub find_id_ttl_ms: u64,
}

/// The poll.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PollSettings {
    pub interval_ms: u64,
    pub jitter: f64,
    pub credit_wait_ms: u64,
    pub recent_max: usize,
    pub held_max: usize,
    pub catalogue_max_age_s: u64,
}

/// Keys and tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct AuthSettings {
    pub token_keys_file: PathBuf,
    pub admin_keys_file: PathBuf,
    pub token_cache_max: usize,
    pub iat_ahead_s: u64,
}

/// Bounds on what clients may send and hold.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LimitSettings {
    pub body_bytes_max: usize,
    pub hunt_bytes_max: usize,
    pub bulk_bytes_max: usize,
    pub bulk_finds_max: usize,
    pub inline_json_bytes_max: usize,
    pub wallets_max: usize,
    pub connections_max: usize,
    pub header_ms: u64,
    pub body_ms: u64,
    pub idle_ms: u64,
    pub write_ms: u64,
}

/// Browsers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CorsSettings {
    pub allowed_origins: Vec<String>,
}

/// What flags say; each stands above every other source.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--listen`
    pub listen: Option<String>,
    /// `--ops-listen`
    pub ops_listen: Option<String>,
    /// `--store`
    pub store: Option<String>,
    /// `--instance-id`
    pub instance_id: Option<String>,
    /// `--listen` of the shim.
    pub shim_listen: Option<String>,
    /// `--ops-listen` of the shim.
    pub shim_ops_listen: Option<String>,
    /// Every `--upstream`; none leaves the setting as it is.
    pub upstreams: Vec<String>,
}

/// Why the settings cannot be used. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings file {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{}, line {line}: {message}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// No setting has this name.
    #[error("{origin}: there is no setting {key}{}; `trove config` lists them all", perhaps(.near.as_deref()))]
    Unknown {
        /// Where it was said.
        origin: Origin,
        /// The name.
        key: String,
        /// A setting whose name is close to it.
        near: Option<String>,
    },
    /// The value is of another kind, or outside what the setting allows.
    #[error("{origin}: {key} {what}")]
    Value {
        /// Where it was said.
        origin: Origin,
        /// The setting.
        key: String,
        /// What the value must be.
        what: String,
    },
    /// Two settings contradict each other.
    #[error(
        "{first} ({first_value}) must not be {relation} {second} ({second_value}); change one of them"
    )]
    Relation {
        /// One of the two.
        first: &'static str,
        /// Its value.
        first_value: String,
        /// What it must not be to the other.
        relation: &'static str,
        /// The other.
        second: &'static str,
        /// Its value.
        second_value: String,
    },
}

fn perhaps(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!(", perhaps {near} is meant"))
}

impl Settings {
    /// Reads the settings: the defaults, under `file`, under the variables of `env` that begin with `TROVE_`, under
    /// `flags`.
    ///
    /// # Errors
    /// The first thing that is wrong, with the source and the setting it is about.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: Overrides,
    ) -> Result<Self, SettingsError> {
        let mut layers = sources::Layers::new();
        if let Some(path) = file {
            layers.file(path)?;
        }
        layers.environment(env)?;
        layers.flags(flags)?;
        let settings = layers.settings()?;
        limits::relations(&settings)?;
        Ok(settings)
    }

    /// This instance's name: the setting, or else the machine's name, or else a random one. Ask once: a random one is
    /// another one each time.
    #[must_use]
    pub fn instance_id(&self) -> String {
        if !self.server.instance_id.is_empty() {
            return self.server.instance_id.clone();
        }
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        if !matches!(&*host, "localhost" | "(none)") && limits::is_instance_id(&host) {
            host.into_owned()
        } else {
            format!("trove-{:08x}", rand::random::<u32>())
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        sources::Layers::new()
            .settings()
            .expect("a test holds the default file to its types")
    }
}

/// Where the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorePlace<'a> {
    /// In a directory of this machine.
    Embedded(&'a Path),
    /// On a Redis or Valkey server, by its URL, which may carry a password.
    Redis(&'a str),
}

impl StoreSettings {
    /// Where the store is.
    #[must_use]
    pub fn place(&self) -> StorePlace<'_> {
        match self.url.strip_prefix(EMBEDDED) {
            Some(dir) => StorePlace::Embedded(Path::new(dir)),
            None => StorePlace::Redis(&self.url),
        }
    }

    /// The embedded store's directory, if the store is one.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        match self.place() {
            StorePlace::Embedded(dir) => Some(dir),
            StorePlace::Redis(_) => None,
        }
    }

    /// The store's address for people, without user and password.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.place() {
            StorePlace::Embedded(dir) => dir.display().to_string(),
            StorePlace::Redis(url) => match url.split_once("://") {
                Some((scheme, rest)) => {
                    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                    format!("{scheme}://{host}")
                }
                None => "redis".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
