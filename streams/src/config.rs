//! The bounds of a connection, all in one place.

use std::time::Duration;

use crate::Script;
use crate::connection::Version;

/// How a [`Connection`](crate::Connection) behaves. Every wait and every queue of a connection is bounded by a field here.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long dialling, authenticating and looking at the server may take together.
    pub connect_timeout: Duration,
    /// How long an answer may take. With [`Config::block_max`] added, as an answer may queue behind a blocked read.
    pub response_timeout: Duration,
    /// The longest that a read may block on this connection; zero for a connection that takes no blocking reads. Keep
    /// blocking reads and commands on two connections: a command behind a blocked read waits for it.
    pub block_max: Duration,
    /// After so many time-outs in a row the link is dropped. Time-outs of commands that were under way at the same time
    /// count once. After a first one the server is probed at once, so a dead link is dropped after this many times the
    /// response time-out, whatever the traffic.
    pub timeouts_max: u32,
    /// How many commands may be under way. One more is refused at once with
    /// [`Error::TooManyInFlight`](crate::Error::TooManyInFlight). Each command of a batch counts; a batch of more than
    /// this many is always refused. Commands that timed out or whose caller went away no
    /// longer count; until the link is dropped, what is held of them is bounded by what the socket takes and as many again
    /// as this.
    pub in_flight_max: usize,
    /// The pause after the first failed attempt to connect. It doubles with each one, and half of it is random.
    pub backoff_min: Duration,
    /// The longest pause between two attempts. A link that lived for less than this does not reset the pause.
    pub backoff_max: Duration,
    /// How often the server's role and replication id are looked at while the link is up (one command each time). This
    /// finds a demoted server and a silent link also when there is no traffic.
    pub probe_interval: Duration,
    /// The oldest server version that is accepted.
    pub version_min: Version,
    /// The name of the connection in the server's `CLIENT LIST`; no spaces.
    pub client_name: Option<String>,
    /// Loaded into each server before its link is used, so that a new primary does not answer `NOSCRIPT` first.
    pub preload: Vec<Script>,
    /// Seeds the jitter; random if `None`.
    pub seed: Option<u64>,
}

impl Config {
    /// For commands: answers within 500 ms, 4,096 in flight, given up after three time-outs in a row.
    pub fn commands() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            block_max: Duration::ZERO,
            timeouts_max: 3,
            in_flight_max: 4096,
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(500),
            probe_interval: Duration::from_secs(1),
            version_min: Version::new(6, 2, 0),
            client_name: None,
            preload: Vec::new(),
            seed: None,
        }
    }

    /// For reads that block up to `block_max`: given up after one time-out, as a read is simply made again.
    pub fn blocking(block_max: Duration) -> Self {
        Self {
            block_max,
            timeouts_max: 1,
            in_flight_max: 64,
            ..Self::commands()
        }
    }

    /// How long an answer is waited for.
    pub(crate) fn patience(&self) -> Duration {
        self.response_timeout + self.block_max
    }
}
