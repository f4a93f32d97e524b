//! Lays the sources of settings over one another. The default file is the list of what there is: its keys are the known
//! ones, and the type of a key's default is the key's type.

use super::{DEFAULTS, Overrides, Settings, SettingsError, limits};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What the name of each variable begins with.
const PREFIX: &str = "TROVE_";
/// Variables that are no settings: see [`crate::auth::Secrets`].
const SECRETS: [&str; 2] = ["TROVE_TOKEN_KEY", "TROVE_ADMIN_KEY"];

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a settings file.
    File(PathBuf),
    /// In an environment variable.
    Variable(String),
    /// By a flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The process's variables that concern Trove. What is no UTF-8 in them is replaced, and then refused where it matters.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        name.starts_with(PREFIX)
            .then(|| (name, value.to_string_lossy().into_owned()))
    })
}

/// The sources laid over one another so far.
pub(super) struct Layers(Table);

impl Layers {
    /// The defaults alone.
    pub(super) fn new() -> Self {
        Self(DEFAULTS.parse().expect("a test parses the default file"))
    }

    /// Lays a settings file over what is there.
    pub(super) fn file(&mut self, path: &Path) -> Result<(), SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
            path: path.to_owned(),
            source,
        })?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().map_or("", |span| &text[..span.start]);
            SettingsError::Syntax {
                path: path.to_owned(),
                line: 1 + before.matches('\n').count(),
                message: error.message().replace('\n', " "),
            }
        })?;
        let origin = Origin::File(path.to_owned());
        for (section, keys) in table {
            let Value::Table(keys) = keys else {
                return Err(match self.0.get(&section) {
                    Some(_) => {
                        value_error(&origin, &section, "is a section: [section], then its keys")
                    }
                    None => self.unknown(&origin, &section),
                });
            };
            if !self.0.contains_key(&section) {
                let key = keys.keys().next();
                let key = key.map_or_else(|| section.clone(), |key| format!("{section}.{key}"));
                return Err(self.unknown(&origin, &key));
            }
            for (key, value) in keys {
                self.set(&origin, &format!("{section}.{key}"), |_| Ok(value))?;
            }
        }
        Ok(())
    }

    /// Lays environment variables over what is there.
    pub(super) fn environment(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<(), SettingsError> {
        for (name, text) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if SECRETS.contains(&&*name) || is_service_link(rest) {
                continue;
            }
            let origin = Origin::Variable(name.clone());
            let key = rest.to_ascii_lowercase().replacen("__", ".", 1);
            if rest != rest.to_ascii_uppercase() {
                return Err(self.unknown(&origin, &key));
            }
            self.set(&origin, &key, |default| parse(default, &text))?;
        }
        Ok(())
    }

    /// Lays flags over what is there.
    pub(super) fn flags(&mut self, flags: Overrides) -> Result<(), SettingsError> {
        for (flag, key, value) in [
            ("--listen", "server.listen", flags.listen),
            ("--ops-listen", "server.ops_listen", flags.ops_listen),
            ("--store", "store.url", flags.store),
            ("--instance-id", "server.instance_id", flags.instance_id),
            ("--listen", "shim.listen", flags.shim_listen),
            ("--ops-listen", "shim.ops_listen", flags.shim_ops_listen),
        ] {
            if let Some(value) = value {
                self.set(&Origin::Flag(flag), key, |_| Ok(Value::String(value)))?;
            }
        }
        if !flags.upstreams.is_empty() {
            let groups = flags.upstreams.into_iter().map(Value::String).collect();
            let origin = Origin::Flag("--upstream");
            self.set(&origin, "shim.upstreams", |_| Ok(Value::Array(groups)))?;
        }
        Ok(())
    }

    /// The settings that the sources come to.
    pub(super) fn settings(self) -> Result<Settings, SettingsError> {
        Settings::deserialize(Value::Table(self.0)).map_err(|error| SettingsError::Value {
            origin: Origin::Flag("settings"),
            key: "cannot be read:".into(),
            what: error.message().replace('\n', " "),
        })
    }

    /// Sets a key to what `value` makes of its default.
    fn set(
        &mut self,
        origin: &Origin,
        key: &str,
        value: impl FnOnce(&Value) -> Result<Value, &'static str>,
    ) -> Result<(), SettingsError> {
        let slot = key.split_once('.').and_then(|(section, key)| {
            let section = self.0.get_mut(section)?.as_table_mut()?;
            section.get_mut(key)
        });
        let Some(slot) = slot else {
            return Err(self.unknown(origin, key));
        };
        let mut value = value(slot).map_err(|what| value_error(origin, key, what))?;
        if let (Value::Float(_), Value::Integer(whole)) = (&*slot, &value) {
            // Within the ranges of this product's settings the conversion is exact; outside it is refused either way.
            #[allow(clippy::cast_precision_loss)]
            let float = *whole as f64;
            value = Value::Float(float);
        }
        if slot.type_str() != value.type_str() {
            return Err(value_error(origin, key, kind(slot)));
        }
        limits::value(key, &value).map_err(|what| value_error(origin, key, &what))?;
        *slot = value;
        Ok(())
    }

    fn unknown(&self, origin: &Origin, key: &str) -> SettingsError {
        SettingsError::Unknown {
            origin: origin.clone(),
            key: key.to_owned(),
            near: self.near(key),
        }
    }

    /// The known key whose name is closest to `wrong`, if one is close.
    fn near(&self, wrong: &str) -> Option<String> {
        let bare = |key: &str| key.replace(['.', '_'], "");
        let leaf = |key: &str| key.rsplit('.').next().map(str::to_owned);
        let known = self.0.iter().flat_map(|(section, keys)| {
            let keys = keys.as_table().into_iter().flat_map(Table::keys);
            keys.map(move |key| format!("{section}.{key}"))
        });
        known
            .map(|key| {
                let close = strsim::jaro_winkler(&bare(&key), &bare(wrong));
                let same_leaf = leaf(&key) == leaf(wrong);
                // Without a section, the first of that name is as good as any.
                let close = match (same_leaf, wrong.contains('.')) {
                    (true, true) => 1.0 + close,
                    (true, false) => 2.0,
                    (false, _) => close,
                };
                (close, key)
            })
            .filter(|(close, _)| *close >= 0.9)
            .reduce(|best, one| if one.0 > best.0 { one } else { best })
            .map(|(_, key)| key)
    }
}

fn value_error(origin: &Origin, key: &str, what: &str) -> SettingsError {
    SettingsError::Value {
        origin: origin.clone(),
        key: key.to_owned(),
        what: what.to_owned(),
    }
}

fn kind(default: &Value) -> &'static str {
    match default {
        Value::Integer(_) => "must be a whole number",
        Value::Float(_) => "must be a number",
        Value::Array(_) => "must be a list",
        Value::Boolean(_) => "must be true or false",
        _ => "must be text",
    }
}

/// Reads a variable's text as a value of the kind that the default has.
fn parse(default: &Value, text: &str) -> Result<Value, &'static str> {
    let wrong = kind(default);
    match default {
        Value::Integer(_) => text
            .replace('_', "")
            .parse()
            .map(Value::Integer)
            .map_err(|_| wrong),
        Value::Float(_) => text.parse().map(Value::Float).map_err(|_| wrong),
        Value::Boolean(_) => text.parse().map(Value::Boolean).map_err(|_| wrong),
        Value::Array(items)
            if items
                .first()
                .is_some_and(|item| !item.is_str() && !item.is_table()) =>
        {
            let numbers = text.split(',').map(str::trim);
            let numbers = numbers.map(|number| number.parse().map(Value::Float));
            let numbers: Result<Vec<_>, _> = numbers.collect();
            numbers.map(Value::Array).map_err(|_| wrong)
        }
        Value::Array(_) => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            let items = items.map(|item| Value::String(item.to_owned()));
            Ok(Value::Array(items.collect()))
        }
        _ => Ok(Value::String(text.to_owned())),
    }
}

/// Whether the rest of a variable's name is one that Kubernetes sets in every container beside a service called `trove`
/// (`TROVE_PORT`, `TROVE_SERVICE_HOST`, `TROVE_PORT_8080_TCP_ADDR`): such a cluster must not keep the server from starting.
fn is_service_link(rest: &str) -> bool {
    let words = rest
        .split('_')
        .skip_while(|word| !matches!(*word, "SERVICE" | "PORT"));
    let words: Vec<&str> = words.collect();
    !rest.contains("__")
        && match words[..] {
            ["SERVICE", "HOST"] | ["PORT"] => true,
            ["SERVICE", "PORT", ..] => true,
            ["PORT", number, "TCP" | "UDP" | "SCTP", ref what @ ..] => {
                number.bytes().all(|b| b.is_ascii_digit())
                    && matches!(what, [] | ["PROTO" | "PORT" | "ADDR"])
            }
            _ => false,
        }
}
