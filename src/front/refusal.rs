//! What the front itself refuses, each with its status and a stable code.

/// A request that the front answers on its own, and after which it closes the connection.
///
/// The wording of a title may change; a code does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// No room for another connection.
    TooManyConnections,
}

impl Refusal {
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
