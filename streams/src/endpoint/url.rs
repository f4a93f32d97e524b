//! The URL of a store.

use std::fmt;
use std::str::FromStr;

use super::{Credentials, Endpoint};

/// Which server, or servers, a store's URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One server.
    Server(Endpoint),
    /// The master of a name that these sentinels watch.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Endpoint>,
        /// The master's name.
        master: String,
        /// How one logs in to the sentinels.
        credentials: Credentials,
    },
    /// A cluster, by some of its nodes.
    Cluster(Vec<Endpoint>),
}

/// The URL of a store:
///
/// - `redis://[user:password@]host[:port][/db]`, and `rediss://…` over TLS;
/// - `redis+sentinel://[user:password@]host[:port],host[:port]…/MASTER[/db]`, where user and password are the server's; the
///   sentinels' are `?sentinel_username=…&sentinel_password=…`;
/// - `redis+cluster://[user:password@]host[:port],host[:port]…`.
///
/// Ports are 6379 and 26379 (Sentinel) unless given; IPv6 addresses stand in brackets; `%xx` escapes are decoded in user,
/// password, and master. Printed, it shows no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    /// What it names.
    pub target: Target,
    /// How one logs in to the server.
    pub credentials: Credentials,
    /// The number of the database.
    pub db: i64,
    /// Whether links are encrypted.
    pub tls: bool,
}

/// A text that is no URL of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It starts with another scheme.
    #[error("a store's URL starts with redis://, rediss://, redis+sentinel:// or redis+cluster://")]
    Scheme,
    /// An address in it is not understood.
    #[error("{address:?} is not host:port")]
    Address {
        /// The address.
        address: String,
    },
    /// `redis://` and `rediss://` name one server.
    #[error(
        "redis:// and rediss:// take one address; several are for redis+sentinel:// and redis+cluster://"
    )]
    SeveralAddresses,
    /// A Sentinel URL without the master's name.
    #[error(
        "the path of redis+sentinel:// must name the master, like redis+sentinel://host:26379/mymaster"
    )]
    NoMaster,
    /// The database is not a number.
    #[error("{db:?} is not the number of a database")]
    Database {
        /// What stands in its place.
        db: String,
    },
    /// A parameter is not known here.
    #[error("the parameter {name:?} is not known")]
    Parameter {
        /// Its name.
        name: String,
    },
    /// A `%` that is not followed by two hexadecimal digits, or bytes that are not UTF-8.
    #[error("a % in a URL must be followed by two hexadecimal digits of UTF-8 text")]
    Escape,
    /// The URL is right, but needs something that this connection does not have.
    #[error("{what}")]
    Unsupported {
        /// What, and what to do about it.
        what: &'static str,
    },
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // A password may contain an @ that was not escaped; an address cannot.
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (parse_credentials(credentials)?, hosts),
            None => (Credentials::default(), authority),
        };
        let mut sentinel_credentials = Credentials::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (scheme, name) {
                ("redis+sentinel", "sentinel_username") => {
                    sentinel_credentials.username = Some(unescape(value)?);
                }
                ("redis+sentinel", "sentinel_password") => {
                    sentinel_credentials.password = Some(unescape(value)?);
                }
                _ => {
                    return Err(UrlError::Parameter {
                        name: name.to_owned(),
                    });
                }
            }
        }
        let (target, db) = match scheme {
            "redis" | "rediss" => {
                if hosts.contains(',') {
                    return Err(UrlError::SeveralAddresses);
                }
                (
                    Target::Server(parse_endpoint(hosts, 6379)?),
                    parse_db(path)?,
                )
            }
            "redis+sentinel" => {
                let (master, db) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(UrlError::NoMaster);
                }
                let target = Target::Sentinel {
                    sentinels: parse_endpoints(hosts, 26379)?,
                    master: unescape(master)?,
                    credentials: sentinel_credentials,
                };
                (target, parse_db(db)?)
            }
            "redis+cluster" => match parse_db(path)? {
                0 => (Target::Cluster(parse_endpoints(hosts, 6379)?), 0),
                _ => {
                    return Err(UrlError::Database {
                        db: path.to_owned(),
                    });
                }
            },
            _ => return Err(UrlError::Scheme),
        };
        Ok(Self {
            target,
            credentials,
            db,
            tls: scheme == "rediss",
        })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |endpoints: &[Endpoint]| {
            let texts: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
            texts.join(",")
        };
        match &self.target {
            Target::Server(endpoint) => {
                write!(
                    f,
                    "redis{}://{endpoint}/{}",
                    if self.tls { "s" } else { "" },
                    self.db
                )
            }
            Target::Sentinel {
                sentinels, master, ..
            } => write!(
                f,
                "redis+sentinel://{}/{master}/{}",
                list(sentinels),
                self.db
            ),
            Target::Cluster(nodes) => write!(f, "redis+cluster://{}", list(nodes)),
        }
    }
}

fn parse_db(text: &str) -> Result<i64, UrlError> {
    if text.is_empty() {
        return Ok(0);
    }
    match text.parse::<u32>() {
        Ok(db) => Ok(db.into()),
        Err(_) => Err(UrlError::Database {
            db: text.to_owned(),
        }),
    }
}

fn parse_credentials(text: &str) -> Result<Credentials, UrlError> {
    let part = |text: &str| match text {
        "" => Ok(None),
        text => unescape(text).map(Some),
    };
    let (username, password) = text.split_once(':').unwrap_or((text, ""));
    Ok(Credentials {
        username: part(username)?,
        password: part(password)?,
    })
}

fn parse_endpoints(text: &str, port: u16) -> Result<Vec<Endpoint>, UrlError> {
    text.split(',')
        .map(|address| parse_endpoint(address, port))
        .collect()
}

fn parse_endpoint(text: &str, default_port: u16) -> Result<Endpoint, UrlError> {
    let wrong = || UrlError::Address {
        address: text.to_owned(),
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if port.is_empty() => (host, None),
                None => return Err(wrong()),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(wrong)?,
        None => default_port,
    };
    if host.is_empty() {
        return Err(wrong());
    }
    Ok(Endpoint::new(host, port))
}

fn unescape(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).ok_or(UrlError::Escape)?;
        let digits = std::str::from_utf8(digits).map_err(|_| UrlError::Escape)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(UrlError::Escape);
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| UrlError::Escape)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<StoreUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn the_url_of_one_server_is_read() {
        let url = parse("redis://ada:p%40ss@store.example:7000/3").unwrap();
        assert_eq!(
            url.target,
            Target::Server(Endpoint::new("store.example", 7000))
        );
        assert_eq!(url.credentials.username.as_deref(), Some("ada"));
        assert_eq!(url.credentials.password.as_deref(), Some("p@ss"));
        assert_eq!((url.db, url.tls), (3, false));
        let url = parse("rediss://:secret@[::1]").unwrap();
        assert_eq!(url.target, Target::Server(Endpoint::new("::1", 6379)));
        assert_eq!(url.credentials.username, None);
        assert!(url.tls);
    }

    #[test]
    fn the_url_of_a_sentinel_names_the_master() {
        let url =
            parse("redis+sentinel://u:p@a:1,b,[::1]:3/hunt%2Fone/2?sentinel_password=s").unwrap();
        assert_eq!(
            url.target,
            Target::Sentinel {
                sentinels: vec![
                    Endpoint::new("a", 1),
                    Endpoint::new("b", 26379),
                    Endpoint::new("::1", 3)
                ],
                master: "hunt/one".into(),
                credentials: Credentials {
                    username: None,
                    password: Some("s".into())
                },
            }
        );
        assert_eq!(url.db, 2);
        assert_eq!(parse("redis+sentinel://a:1"), Err(UrlError::NoMaster));
    }

    #[test]
    fn the_url_of_a_cluster_is_read() {
        let url = parse("redis+cluster://a:1,b:2").unwrap();
        assert_eq!(
            url.target,
            Target::Cluster(vec![Endpoint::new("a", 1), Endpoint::new("b", 2)])
        );
        assert!(matches!(
            parse("redis+cluster://a:1/2"),
            Err(UrlError::Database { .. })
        ));
    }

    #[test]
    fn what_is_no_url_of_a_store_is_refused() {
        assert_eq!(parse("localhost:6379"), Err(UrlError::Scheme));
        assert_eq!(parse("http://localhost"), Err(UrlError::Scheme));
        assert_eq!(parse("redis://a,b"), Err(UrlError::SeveralAddresses));
        for text in [
            "redis://",
            "redis://:6379",
            "redis://a:0",
            "redis://a:b",
            "redis://a:1:2",
            "redis://[::1",
            "redis://[::1]x",
        ] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, UrlError::Address { .. }), "{text}: {error}");
        }
        assert!(matches!(
            parse("redis://a/x"),
            Err(UrlError::Database { .. })
        ));
        assert!(matches!(
            parse("redis://a?protocol=3"),
            Err(UrlError::Parameter { .. })
        ));
        for text in [
            "redis://a%:b@c",
            "redis://a:%zz@c",
            "redis://a:%+f@c",
            "redis://a:%ff@c",
        ] {
            assert_eq!(parse(text), Err(UrlError::Escape), "{text}");
        }
    }

    #[test]
    fn no_password_is_printed() {
        let url = parse("redis+sentinel://ada:hush@a/m?sentinel_password=hush").unwrap();
        assert_eq!(url.to_string(), "redis+sentinel://a:26379/m/0");
        assert!(!format!("{url:?}").contains("hush"));
    }
}
