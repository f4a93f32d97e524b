//! What a server says of itself.

use std::fmt;
use std::str::FromStr;

use redis::Value;

use crate::endpoint::Endpoint;

/// A version of the server, such as 7.0.15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 7 in 7.0.15.
    pub major: u16,
    /// 0 in 7.0.15.
    pub minor: u16,
    /// 15 in 7.0.15.
    pub patch: u16,
}

impl Version {
    /// `major.minor.patch`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A text that does not start with numbers separated by dots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server's version is numbers separated by dots")]
pub struct ParseVersionError;

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Missing numbers are 0; what follows the third (`-rc1`) is ignored.
    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let mut numbers = text.splitn(3, '.').map(|part| {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            part[..digits].parse::<u16>().map_err(|_| ParseVersionError)
        });
        Ok(Self {
            major: numbers.next().ok_or(ParseVersionError)??,
            minor: numbers.next().unwrap_or(Ok(0))?,
            patch: numbers.next().unwrap_or(Ok(0))?,
        })
    }
}

/// Which history of writes a server holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The server process: another one after each restart.
    pub run_id: String,
    /// The replication id: another one when a replica is promoted, when the process restarts, and also, without any loss,
    /// when a master that has no backlog gets its first replica or has had none for an hour.
    ///
    /// The two cannot be told apart for certain: a process that was a replica for a moment and was promoted again keeps its
    /// `run_id`, and its second replication id, the mark of that, goes with the next change without loss. And that entries
    /// which one reader knows are still there says nothing of those that others were promised. So whoever depends on no
    /// acknowledged write being lost must take every new id for a loss; Trove begins a new epoch, which costs its clients one
    /// reset.
    pub replid: String,
}

/// What a server said of itself when the link to it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Where it was found.
    pub endpoint: Option<Endpoint>,
    /// The version of Redis that it is, or (Valkey) says to be compatible with.
    pub version: Version,
    /// `redis`, or what else it calls itself, such as `valkey`.
    pub flavor: String,
    /// Which history of writes it holds.
    pub history: History,
    /// The replication id that it had before it was promoted; zeros if it was not.
    pub replid_before: String,
    /// How many replicas are connected to it.
    pub replicas: u32,
    /// What it does when its memory is full, such as `noeviction`.
    pub maxmemory_policy: Option<String>,
    /// How many clients it takes.
    pub maxclients: Option<u64>,
    /// Whether it is still reading its data from disk.
    pub loading: bool,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: String,
}

impl ServerInfo {
    /// Whether this server was a replica of the one with the history `before` when it was promoted. What `before` had
    /// acknowledged and not yet replicated is lost.
    pub fn was_promoted_from(&self, before: &History) -> bool {
        self.replid_before == before.replid
    }

    /// Reads the reply to `INFO`, of the sections that are there.
    pub(crate) fn read(info: &Value) -> Option<(Self, String)> {
        let text = match info {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
            Value::VerbatimString { text, .. } => text,
            _ => return None,
        };
        let mut server = Self {
            flavor: "redis".to_owned(),
            ..Self::default()
        };
        let mut role = String::new();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            match name {
                "redis_version" => server.version = value.parse().ok()?,
                "server_name" => server.flavor = value.to_owned(),
                "redis_mode" => server.mode = value.to_owned(),
                "run_id" => server.history.run_id = value.to_owned(),
                "master_replid" => server.history.replid = value.to_owned(),
                "master_replid2" => server.replid_before = value.to_owned(),
                "connected_slaves" => server.replicas = value.parse().ok()?,
                "maxmemory_policy" => server.maxmemory_policy = Some(value.to_owned()),
                "maxclients" => server.maxclients = value.parse().ok(),
                "loading" => server.loading = value == "1",
                "role" => role = value.to_owned(),
                _ => {}
            }
        }
        Some((server, role))
    }
}

/// The first word of the reply to `ROLE`: `master`, `slave` or `sentinel`.
pub(crate) fn read_role(reply: &Value) -> Option<String> {
    match reply {
        Value::Array(items) => match items.first()? {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared_by_number() {
        assert_eq!("7.0.15".parse(), Ok(Version::new(7, 0, 15)));
        assert_eq!("8.2".parse(), Ok(Version::new(8, 2, 0)));
        assert_eq!("8.0.0-rc1".parse(), Ok(Version::new(8, 0, 0)));
        assert_eq!("".parse::<Version>(), Err(ParseVersionError));
        assert!(Version::new(6, 10, 0) > Version::new(6, 2, 9));
    }

    #[test]
    fn info_is_read_whatever_sections_it_has() {
        let info = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nredis_mode:standalone\r\nrun_id:abc\r\n\
                    # Replication\r\nrole:master\r\nconnected_slaves:2\r\nmaster_replid:def\r\nmaster_replid2:old\r\n";
        let (server, role) = ServerInfo::read(&Value::BulkString(info.into())).unwrap();
        assert_eq!(role, "master");
        assert_eq!((server.flavor.as_str(), server.replicas), ("valkey", 2));
        assert!(server.was_promoted_from(&History {
            run_id: "x".into(),
            replid: "old".into()
        }));
        assert_eq!(server.maxclients, None);
    }
}
