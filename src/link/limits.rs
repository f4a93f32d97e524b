//! Every bound of a link, by name, with its default.

/// Places that a tag's note can tell apart: the most requests that one link can have under way.
pub const REQUESTS_CAPACITY: u32 = 1 << 16;

/// What one link allows. Both ends have their own; a server tells its client what it takes.
#[derive(Clone, Debug)]
pub struct LinkLimits {
    /// Requests under way at once, held polls among them. Default 16,384, at most [`REQUESTS_CAPACITY`].
    pub requests_max: u32,
    /// Bytes of a request's head and body together; larger ones travel over plain HTTP. Default 40 KiB.
    pub request_bytes_max: u32,
    /// Bytes of an answer's fields and body together. What is larger travels over plain HTTP, if the request may be
    /// repeated there. Default 64 KiB.
    pub answer_bytes_max: u32,
    /// The same for the answer to a request that must not be repeated. Default 1 MiB.
    pub unsafe_answer_bytes_max: u32,
    /// Bytes that wait to be written. Past it a server reads no more requests and lets calls wait with their answers, and
    /// a client refuses new requests. Default 512 KiB.
    pub output_bytes_max: u32,
    /// Answers of a client's one read, and requests of a server's, come from so many bytes at most. Default 64 KiB.
    pub read_bytes: u32,
    /// Time between two looks at whether the other side is alive, in milliseconds. A client that has heard nothing since
    /// the last look sends a ping. Default 2 s.
    pub ping_interval_ms: u32,
    /// Looks without a byte from the other side that end a link. Default 3.
    pub silent_looks_max: u32,
    /// For a write to make progress, in looks. Default 5.
    pub stuck_looks_max: u32,
    /// From the start of connecting to the server's hello, in milliseconds. Default 2 s.
    pub handshake_timeout_ms: u32,
}

impl Default for LinkLimits {
    fn default() -> Self {
        LinkLimits {
            requests_max: 16_384,
            request_bytes_max: 40 * 1024,
            answer_bytes_max: 64 * 1024,
            unsafe_answer_bytes_max: 1024 * 1024,
            output_bytes_max: 512 * 1024,
            read_bytes: 64 * 1024,
            ping_interval_ms: 2_000,
            silent_looks_max: 3,
            stuck_looks_max: 5,
            handshake_timeout_ms: 2_000,
        }
    }
}

/// Bytes that a frame has beside heads, fields and bodies, at most.
const FRAME_OVERHEAD_BYTES: usize = 64;

impl LinkLimits {
    /// The longest frame that a server takes.
    pub(super) fn request_frame_bytes_max(&self) -> usize {
        self.request_bytes_max as usize + FRAME_OVERHEAD_BYTES
    }

    /// The longest frame that a client takes.
    pub(super) fn answer_frame_bytes_max(&self) -> usize {
        self.answer_bytes_max.max(self.unsafe_answer_bytes_max) as usize + FRAME_OVERHEAD_BYTES
    }
}
