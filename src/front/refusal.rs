//! What the front itself refuses, each with its status and a stable code.

use std::time::Duration;

/// A request that the front answers on its own, and after which it closes the connection (but for [`Refusal::NoAnswer`]).
///
/// The wording of a title may change; a code does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// A method or target that is not one, or a request line of another shape.
    BadRequestLine,
    /// A target with a fragment, a byte that no target has, an authority, or `*` for another method than OPTIONS.
    BadTarget,
    /// An absolute target whose authority is not the `Host`.
    TargetHostMismatch,
    /// A header field that breaks the grammar: a space before the colon, folding, a control byte.
    BadField,
    /// A line that ends in LF alone, or has a CR inside.
    BareLineBreak,
    /// No `Host` in HTTP/1.1, several, or one that cannot be a host.
    BadHost,
    /// `Content-Length` that is not one plain number, or is there twice.
    BadContentLength,
    /// `Content-Length` together with `Transfer-Encoding`.
    LengthAndCoding,
    /// `Transfer-Encoding` that is there twice, or lists `chunked` anywhere but once and last, or in HTTP/1.0.
    BadTransferEncoding,
    /// A transfer coding other than `chunked`.
    UnknownTransferCoding,
    /// `Connection` that names a field which frames or routes the request.
    BadConnection,
    /// A chunk whose size, extension, end or trailer breaks the grammar or its bound.
    BadChunk,
    /// The connection's input ended in the middle of a body.
    IncompleteBody,
    /// The head did not arrive in time.
    HeaderTimeout,
    /// The body did not arrive in time.
    BodyTimeout,
    /// A body above its limit.
    BodyTooLarge,
    /// A target above its limit.
    TargetTooLong,
    /// An `Expect` other than `100-continue`.
    UnknownExpectation,
    /// A head above its limit.
    HeadTooLarge,
    /// More fields than allowed.
    TooManyFields,
    /// CONNECT, or a method with a name above its limit.
    UnknownMethod,
    /// Another version than HTTP/1.0 and HTTP/1.1.
    UnknownVersion,
    /// The backend panicked, or its answer could not be sent.
    Internal,
    /// The backend did not begin its answer in time.
    AnswerTimeout,
    /// The backend took the request and let go of it.
    NoAnswer,
    /// No room for another connection. The last: [`Refusal::ALL`] has as many.
    TooManyConnections,
}

/// An answer that a front gave by itself, for those who count.
#[derive(Clone, Copy, Debug)]
pub struct OwnAnswer {
    /// What it said.
    pub why: Refusal,
    /// Since the first byte of the request, or the last of its head where all of it came at once. 0 for a connection that
    /// found no place.
    pub took: Duration,
    /// [`Backend::call`](super::Backend::call) had the request, and has been told by
    /// [`Backend::give_up`](super::Backend::give_up).
    pub was_called: bool,
}

impl Refusal {
    /// All of them, in the order of their declaration.
    pub const ALL: [Refusal; Refusal::TooManyConnections as usize + 1] = {
        use Refusal::*;
        [
            BadRequestLine,
            BadTarget,
            TargetHostMismatch,
            BadField,
            BareLineBreak,
            BadHost,
            BadContentLength,
            LengthAndCoding,
            BadTransferEncoding,
            UnknownTransferCoding,
            BadConnection,
            BadChunk,
            IncompleteBody,
            HeaderTimeout,
            BodyTimeout,
            BodyTooLarge,
            TargetTooLong,
            UnknownExpectation,
            HeadTooLarge,
            TooManyFields,
            UnknownMethod,
            UnknownVersion,
            Internal,
            AnswerTimeout,
            NoAnswer,
            TooManyConnections,
        ]
    };

    /// Whether it is no fault of the client's. 501 and 505 are: they ask for what HTTP/1.1 servers need not know.
    #[must_use]
    pub fn is_server_fault(self) -> bool {
        use Refusal::*;
        matches!(
            self,
            Internal | AnswerTimeout | NoAnswer | TooManyConnections
        )
    }

    /// Whether the client was too slow to send.
    #[must_use]
    pub fn is_slow_client(self) -> bool {
        matches!(self, Refusal::HeaderTimeout | Refusal::BodyTimeout)
    }

    /// Status, stable code and title.
    #[must_use]
    pub fn describe(self) -> (u16, &'static str, &'static str) {
        use Refusal::*;
        match self {
            BadRequestLine => (400, "bad_request_line", "The request line is malformed"),
            BadTarget => (400, "bad_target", "The request target is malformed"),
            TargetHostMismatch => (
                400,
                "target_host_mismatch",
                "The target's authority is not the Host",
            ),
            BadField => (400, "bad_field", "A header field is malformed"),
            BareLineBreak => (400, "bare_line_break", "A line does not end in CRLF"),
            BadHost => (400, "bad_host", "Exactly one valid Host is needed"),
            BadContentLength => (
                400,
                "bad_content_length",
                "Content-Length is malformed or repeated",
            ),
            LengthAndCoding => (
                400,
                "length_and_coding",
                "Content-Length and Transfer-Encoding exclude each other",
            ),
            BadTransferEncoding => (
                400,
                "bad_transfer_encoding",
                "Transfer-Encoding is malformed",
            ),
            UnknownTransferCoding => (
                501,
                "unknown_transfer_coding",
                "Only the transfer coding chunked is understood",
            ),
            BadConnection => (
                400,
                "bad_connection",
                "Connection names a field that must reach the server",
            ),
            BadChunk => (400, "bad_chunk", "The chunked body is malformed"),
            IncompleteBody => (400, "incomplete_body", "The body ended early"),
            HeaderTimeout => (408, "header_timeout", "The request's head took too long"),
            BodyTimeout => (408, "body_timeout", "The request's body took too long"),
            BodyTooLarge => (413, "body_too_large", "The request's body is too large"),
            TargetTooLong => (414, "target_too_long", "The request target is too long"),
            UnknownExpectation => (
                417,
                "unknown_expectation",
                "Only 100-continue can be expected",
            ),
            HeadTooLarge => (431, "head_too_large", "The request's head is too large"),
            TooManyFields => (
                431,
                "too_many_fields",
                "The request has too many header fields",
            ),
            UnknownMethod => (501, "unknown_method", "The method is not supported"),
            UnknownVersion => (
                505,
                "unknown_version",
                "Only HTTP/1.0 and HTTP/1.1 are spoken here",
            ),
            Internal => (500, "internal", "The server failed to answer"),
            AnswerTimeout => (503, "answer_timeout", "The answer took too long"),
            NoAnswer => (502, "no_answer", "No answer arrived from the server"),
            TooManyConnections => (503, "too_many_connections", "The server is full"),
        }
    }

    /// The answer's body: a problem document (RFC 9457).
    #[must_use]
    pub fn problem_json(self) -> String {
        let (status, code, title) = self.describe();
        format!(r#"{{"type":"about:blank","title":"{title}","status":{status},"code":"{code}"}}"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_listed_once_and_has_a_code_of_its_own() {
        for (place, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, place);
            let (status, code, _) = refusal.describe();
            let others = Refusal::ALL.iter().filter(|other| **other != refusal);
            assert!(
                others
                    .map(|other| other.describe().1)
                    .all(|other| other != code)
            );
            assert!(!refusal.is_server_fault() || matches!(status, 500 | 502 | 503));
        }
    }
}
