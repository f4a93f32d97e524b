//! Every bound of the front, by name, with its default and the relations between them.

use std::fmt;

/// Most header fields the front can ever be told to accept: the size of the array that a head is parsed into, on the
/// stack.
pub const FIELDS_CAPACITY: usize = 128;

/// Size of the one buffer that all connections of a loop read into, in bytes.
///
/// Also the largest piece of a request body that is handed to a backend at once.
pub const READ_BUFFER_BYTES: usize = 64 * 1024;

/// What one front allows. Times are milliseconds; a timer fires up to two [`TICK_MS`](super::TICK_MS) late.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections open at once. Past it, new ones are answered 503 and closed; none of the old ones is touched.
    /// `serve` lowers it to what the descriptor limit leaves after `descriptors_reserved`. Default 100,000.
    pub connections_max: u32,
    /// Connections that the kernel may hold ready to be accepted (it caps this by `net.core.somaxconn`). Default 4,096.
    pub backlog_max: u32,
    /// Refused connections that may linger at once, so that their clients can read the 503. Past it they are dropped
    /// unanswered. Default 64.
    pub refusals_max: u32,
    /// Descriptors left to the rest of the process (store, files, upstreams). Default 256, at most half of the limit.
    pub descriptors_reserved: u32,

    /// Bytes of a request's line and fields together; past it 431. Default 16 KiB.
    pub head_bytes_max: u32,
    /// Header fields of a request; past it 431. Default 100.
    pub fields_max: u32,
    /// Bytes of a request's target; past it 414. Default 8 KiB.
    pub target_bytes_max: u32,
    /// Bytes of a method's name; past it 501. Default 32.
    pub method_bytes_max: u32,
    /// Bytes of a request's body, unless the backend says otherwise for the request; past it 413. Default 8 MiB.
    pub body_bytes_max: u64,
    /// Bytes of a body that a backend may ask to have whole before it is offered the request. Default 4 KiB.
    pub small_body_bytes_max: u32,
    /// Bytes of one chunk's size line: digits and extensions. Past it 400. Default 256.
    pub chunk_line_bytes_max: u32,
    /// Bytes of all chunk extensions of a body, and of its trailers. Past it 400. Default 4 KiB.
    pub chunk_overhead_bytes_max: u32,

    /// Bytes that a client may send ahead of the answer it waits for. Past it, they stay in the socket. Default 16 KiB.
    pub pipelined_bytes_max: u32,
    /// Bytes of answers collected before they are written, and so about the most that a slow reader makes a connection
    /// hold, beside one frame of a response body. Default 64 KiB.
    pub output_bytes_max: u32,
    /// Requests answered for one connection before the others get their turn. Default 64.
    pub requests_per_turn: u32,
    /// Bytes written for one connection before the others get their turn; also the largest single write. Default 256 KiB.
    pub turn_bytes_max: u32,
    /// Bytes of a body that nobody wanted, read and thrown away to keep the connection. Past it, it is closed. Default 64 KiB.
    pub discard_bytes_max: u32,
    /// Bytes thrown away after the last answer, while waiting for the client to close. Default 1 MiB.
    pub linger_bytes_max: u32,

    /// From the accept to the first byte. Default 30 s.
    pub silent_timeout_ms: u32,
    /// From the first byte of a request to the end of its head, however the bytes trickle in; past it 408. Default 10 s.
    pub header_timeout_ms: u32,
    /// For each `body_progress_bytes` of a body (or what is left of it) while the backend waits for them; past it 408.
    /// Default 20 s.
    pub body_timeout_ms: u32,
    /// How much of a body must arrive within `body_timeout_ms`. Default 1 KiB.
    pub body_progress_bytes: u32,
    /// Between an answer and the first byte of the next request. Default 75 s.
    pub idle_timeout_ms: u32,
    /// For a write to make progress while the client's window is shut; past it the connection is cut. Default 20 s.
    pub write_timeout_ms: u32,
    /// For the backend to begin its answer; past it 503. Default 120 s (a poll may be held for 55 s).
    pub answer_timeout_ms: u32,
    /// How long a closed connection stays to let the client read its last answer. Default 2 s.
    pub linger_timeout_ms: u32,
    /// From the start of draining to the end of whatever is still open. Default 5 s.
    pub drain_deadline_ms: u32,

    /// `Retry-After` of refused connections: this many seconds at least. Default 1.
    pub retry_after_s_min: u32,
    /// And this many at most, so that they do not all return at once. Default 5.
    pub retry_after_s_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 100_000,
            backlog_max: 4096,
            refusals_max: 64,
            descriptors_reserved: 256,
            head_bytes_max: 16 * 1024,
            fields_max: 100,
            target_bytes_max: 8 * 1024,
            method_bytes_max: 32,
            body_bytes_max: 8 * 1024 * 1024,
            small_body_bytes_max: 4 * 1024,
            chunk_line_bytes_max: 256,
            chunk_overhead_bytes_max: 4 * 1024,
            pipelined_bytes_max: 16 * 1024,
            output_bytes_max: 64 * 1024,
            requests_per_turn: 64,
            turn_bytes_max: 256 * 1024,
            discard_bytes_max: 64 * 1024,
            linger_bytes_max: 1024 * 1024,
            silent_timeout_ms: 30_000,
            header_timeout_ms: 10_000,
            body_timeout_ms: 20_000,
            body_progress_bytes: 1024,
            idle_timeout_ms: 75_000,
            write_timeout_ms: 20_000,
            answer_timeout_ms: 120_000,
            linger_timeout_ms: 2_000,
            drain_deadline_ms: 5_000,
            retry_after_s_min: 1,
            retry_after_s_max: 5,
        }
    }
}

/// Two limits that contradict each other, named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsError(&'static str);

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for LimitsError {}

impl Limits {
    /// Checks the relations that the rest of the front relies on.
    ///
    /// # Errors
    /// The first relation that does not hold, naming both sides.
    pub fn check(&self) -> Result<(), LimitsError> {
        let half_buffer = (READ_BUFFER_BYTES / 2) as u64;
        let rules = [
            (
                self.fields_max as usize <= FIELDS_CAPACITY,
                "fields_max is above what a head is parsed into (128)",
            ),
            (
                u64::from(self.head_bytes_max) + u64::from(self.small_body_bytes_max)
                    <= half_buffer,
                "head_bytes_max and small_body_bytes_max together are above half of the read buffer (32 KiB)",
            ),
            (
                u64::from(self.pipelined_bytes_max) <= half_buffer,
                "pipelined_bytes_max is above half of the read buffer (32 KiB)",
            ),
            (
                self.target_bytes_max < self.head_bytes_max,
                "target_bytes_max must be below head_bytes_max",
            ),
            (
                self.chunk_line_bytes_max >= 18,
                "chunk_line_bytes_max is too small for a chunk's size (18)",
            ),
            (
                self.requests_per_turn > 0
                    && self.turn_bytes_max >= 4096
                    && self.output_bytes_max > 0,
                "requests_per_turn, turn_bytes_max (4 KiB) or output_bytes_max is too small to make progress",
            ),
            (
                self.retry_after_s_min <= self.retry_after_s_max,
                "retry_after_s_min is above retry_after_s_max",
            ),
            (
                (1..=4_000_000).contains(&self.connections_max) && self.refusals_max <= 10_000,
                "connections_max is not 1 to 4,000,000 (each has a place of 28 bytes), or refusals_max is above 10,000",
            ),
            (
                ![
                    self.silent_timeout_ms,
                    self.header_timeout_ms,
                    self.body_timeout_ms,
                    self.idle_timeout_ms,
                    self.write_timeout_ms,
                    self.answer_timeout_ms,
                    self.linger_timeout_ms,
                ]
                .contains(&0),
                "a timeout is 0",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, says)) => Err(LimitsError(says)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_together() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn a_contradiction_is_named() {
        let limits = Limits {
            target_bytes_max: 20_000,
            ..Limits::default()
        };
        assert_eq!(
            limits.check().unwrap_err().to_string(),
            "target_bytes_max must be below head_bytes_max"
        );
    }
}
