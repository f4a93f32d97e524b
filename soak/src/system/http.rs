//! The harness's own requests: health, metrics. Blocking, with a time-out; never on the generator's thread.

use std::net::SocketAddr;
use std::time::Duration;

/// The largest answer that is read, bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// A client with a time-out for everything.
#[derive(Clone)]
pub struct Client(ureq::Agent);

impl Client {
    /// One that waits so long at most.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // A connection kept idle may belong to a process that has been killed since.
            .max_idle_connections(0)
            .build();
        Self(config.new_agent())
    }

    /// The status and body of a GET.
    ///
    /// # Errors
    /// When there is no whole answer in time.
    pub fn get(&self, url: &str) -> Result<(u16, String), String> {
        let mut answer = self.0.get(url).call().map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body.read_to_string().map_err(|error| error.to_string())?;
        Ok((status, text))
    }

    /// Whether a server says that it is ready.
    #[must_use]
    pub fn is_ready(&self, address: SocketAddr) -> bool {
        matches!(
            self.get(&format!("http://{address}/health/ready")),
            Ok((200, _))
        )
    }
}
