//! A forwarded request and its answer as bytes of HTTP/1.1. Framing is always written anew, and answers are read as
//! strictly as requests: what could be read in two ways ends the connection.

use crate::front::{ChunkDecoder, ChunkError, ChunkStep};
use bytes::{Buf, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};

/// The most bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The most fields of an answer.
const FIELDS_MAX: usize = 128;
/// Bounds of an answer's chunk lines, and of its extensions and trailers in all.
const CHUNK_LINE_BYTES_MAX: u32 = 1024;
const CHUNK_OVERHEAD_BYTES_MAX: u32 = 64 * 1024;

/// How a request's body goes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyForm {
    None,
    Length(u64),
    Chunked,
}

/// Writes a request's head. The front has dropped what concerned the client's connection only. `closes` asks the instance
/// to close the connection after its answer.
pub(super) fn write_request(
    out: &mut Vec<u8>,
    parts: &Parts,
    form: BodyForm,
    host: &str,
    closes: bool,
) {
    let mut push = |bytes: &[u8]| out.extend_from_slice(bytes);
    push(parts.method.as_str().as_bytes());
    push(b" ");
    push(
        parts
            .uri
            .path_and_query()
            .map_or("/", |all| all.as_str())
            .as_bytes(),
    );
    push(b" HTTP/1.1\r\n");
    if !parts.headers.contains_key(header::HOST) {
        push(b"host: ");
        push(host.as_bytes());
        push(b"\r\n");
    }
    for (name, value) in &parts.headers {
        // The front has dealt with an expectation: it asks for the body when it is wanted.
        if name == header::CONTENT_LENGTH || name == header::EXPECT {
            continue;
        }
        push(name.as_str().as_bytes());
        push(b": ");
        push(value.as_bytes());
        push(b"\r\n");
    }
    match form {
        BodyForm::None => {
            // Servers may insist on a length for these.
            if matches!(parts.method, Method::POST | Method::PUT | Method::PATCH) {
                push(b"content-length: 0\r\n");
            }
        }
        BodyForm::Length(length) => {
            push(b"content-length: ");
            push(itoa::Buffer::new().format(length).as_bytes());
            push(b"\r\n");
        }
        BodyForm::Chunked => push(b"transfer-encoding: chunked\r\n"),
    }
    if closes {
        push(b"connection: close\r\n");
    }
    push(b"\r\n");
}

/// Writes one piece of a chunked body; an empty one is none.
pub(super) fn write_chunk(out: &mut Vec<u8>, piece: &[u8]) {
    if !piece.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
}

/// The end of a chunked body.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The head of an answer.
#[derive(Debug)]
pub(super) struct AnswerHead {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
    pub(super) body: AnswerBody,
    /// Whether the connection can carry another request when the body has been read.
    pub(super) keep_alive: bool,
    pub(super) is_http10: bool,
}

/// What is still to come of an answer's body.
#[derive(Debug)]
pub(super) enum AnswerBody {
    Done,
    Length(u64),
    Chunked(ChunkDecoder),
    /// Until the connection's end.
    Close,
}

/// An answer that is none, or that could be read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadAnswer(pub(super) &'static str);

/// Takes an answer's head off the input; `None` while it is not complete. Interim answers are skipped.
///
/// # Errors
/// It is none. The connection is of no use any more.
pub(super) fn read_head(
    input: &mut BytesMut,
    method: &Method,
) -> Result<Option<AnswerHead>, BadAnswer> {
    loop {
        let mut slots = [const { std::mem::MaybeUninit::uninit() }; FIELDS_MAX];
        let mut answer = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let parsed = config
            .parse_response_with_uninit_headers(&mut answer, input, &mut slots)
            .map_err(|_| BadAnswer("its head is malformed"))?;
        let httparse::Status::Complete(bytes) = parsed else {
            if input.len() > HEAD_BYTES_MAX {
                return Err(BadAnswer("its head is too large"));
            }
            return Ok(None);
        };
        let status = answer.code.unwrap_or(0);
        if (100..200).contains(&status) {
            if status == 101 {
                return Err(BadAnswer("it switches protocols"));
            }
            input.advance(bytes);
            continue;
        }
        let is_http10 = answer.version == Some(0);
        let status = StatusCode::from_u16(status).map_err(|_| BadAnswer("its status is none"))?;
        let framing = Framing::of(answer.headers)?;
        // All values share one copy of the head.
        let block = Bytes::copy_from_slice(&input[..bytes]);
        let start = input.as_ptr() as usize;
        let mut fields = HeaderMap::with_capacity(answer.headers.len() + 2);
        for field in answer.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes())
                .map_err(|_| BadAnswer("a field's name is none"))?;
            let value = if field.value.is_empty() {
                Bytes::new()
            } else {
                let from = field.value.as_ptr() as usize - start;
                block.slice(from..from + field.value.len())
            };
            let value = HeaderValue::from_maybe_shared(value)
                .map_err(|_| BadAnswer("a field's value is none"))?;
            fields.append(name, value);
        }
        drop_connection_fields(&mut fields);
        let (body, keep_alive) = framing.body(method, status, is_http10)?;
        input.advance(bytes);
        return Ok(Some(AnswerHead {
            status,
            fields,
            body,
            keep_alive,
            is_http10,
        }));
    }
}

/// Drops what concerned the connection to the instance: an instance that closes it does not close the client's.
fn drop_connection_fields(fields: &mut HeaderMap) {
    let options = fields.get_all(header::CONNECTION).iter();
    let names: Vec<HeaderName> = options
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|option| HeaderName::from_bytes(option.trim_ascii()).ok())
        // These say how long the answer is; a server that wants them dropped is not followed.
        .filter(|name| ![header::CONTENT_LENGTH, header::CONTENT_TYPE].contains(name))
        .collect();
    for name in names {
        fields.remove(name);
    }
    fields.remove(header::CONNECTION);
    fields.remove("keep-alive");
}

/// What an answer's fields say about its body and its connection.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

impl Framing {
    fn of(fields: &[httparse::Header<'_>]) -> Result<Self, BadAnswer> {
        let mut framing = Self::default();
        for field in fields {
            let name = field.name;
            if name.eq_ignore_ascii_case("content-length") {
                let digits = !field.value.is_empty() && field.value.iter().all(u8::is_ascii_digit);
                let number = std::str::from_utf8(field.value)
                    .ok()
                    .filter(|_| digits)
                    .and_then(|text| text.parse().ok());
                match (number, framing.length) {
                    (Some(number), None) => framing.length = Some(number),
                    _ => return Err(BadAnswer("its Content-Length is malformed or repeated")),
                }
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                if framing.chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(BadAnswer("its Transfer-Encoding is not chunked"));
                }
                framing.chunked = true;
            } else if name.eq_ignore_ascii_case("connection") {
                for option in field.value.split(|byte| *byte == b',') {
                    let option = option.trim_ascii();
                    framing.close |= option.eq_ignore_ascii_case(b"close");
                    framing.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
        }
        if framing.chunked && framing.length.is_some() {
            return Err(BadAnswer("it has a Content-Length and is chunked"));
        }
        Ok(framing)
    }

    fn body(
        &self,
        method: &Method,
        status: StatusCode,
        is_http10: bool,
    ) -> Result<(AnswerBody, bool), BadAnswer> {
        let keep_alive = !self.close && (!is_http10 || self.keep_alive);
        if method == Method::HEAD || matches!(status.as_u16(), 204 | 304) {
            return Ok((AnswerBody::Done, keep_alive));
        }
        if self.chunked && is_http10 {
            return Err(BadAnswer("it is chunked in HTTP/1.0"));
        }
        Ok(match (self.chunked, self.length) {
            (true, _) => {
                let decoder = ChunkDecoder::new(CHUNK_LINE_BYTES_MAX, CHUNK_OVERHEAD_BYTES_MAX);
                (AnswerBody::Chunked(decoder), keep_alive)
            }
            (false, Some(0)) => (AnswerBody::Done, keep_alive),
            (false, Some(length)) => (AnswerBody::Length(length), keep_alive),
            (false, None) => (AnswerBody::Close, false),
        })
    }
}

impl AnswerBody {
    /// Takes the next piece of the body off the input; `None` if more must be read, or if it is done.
    ///
    /// # Errors
    /// The chunked coding is malformed.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, BadAnswer> {
        let piece = match self {
            Self::Done => None,
            Self::Close => (!input.is_empty()).then(|| input.split().freeze()),
            Self::Length(left) => {
                let len = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= len as u64;
                let piece = (len > 0).then(|| input.split_to(len).freeze());
                if *left == 0 {
                    *self = Self::Done;
                }
                piece
            }
            Self::Chunked(decoder) => {
                let step = decoder.decode(input).map_err(|error| match error {
                    ChunkError::Malformed | ChunkError::TooLong => {
                        BadAnswer("a chunk of it is malformed")
                    }
                })?;
                match step {
                    ChunkStep::Data { skip, len } => {
                        input.advance(skip);
                        Some(input.split_to(len).freeze())
                    }
                    ChunkStep::More => {
                        input.clear();
                        // The last byte of the input may have been the last of the body.
                        if decoder.is_done() {
                            *self = Self::Done;
                        }
                        None
                    }
                    ChunkStep::End { consumed } => {
                        input.advance(consumed);
                        *self = Self::Done;
                        None
                    }
                }
            }
        };
        Ok(piece)
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Its whole length, where it is known from the head.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::Done => Some(0),
            Self::Length(left) => Some(*left),
            Self::Chunked(_) | Self::Close => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(wire: &str) -> Result<Option<AnswerHead>, BadAnswer> {
        read_head(&mut BytesMut::from(wire), &Method::GET)
    }

    #[test]
    fn an_answer_that_could_be_read_in_two_ways_is_none() {
        for wire in [
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx : y\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n",
        ] {
            assert!(head(wire).is_err(), "{wire:?}");
        }
    }

    #[test]
    fn the_end_of_a_body_is_known_as_the_head_says() {
        let of = |wire: &str, method: Method| {
            let head = read_head(&mut BytesMut::from(wire), &method);
            let head = head.unwrap().unwrap();
            (head.body.length(), head.keep_alive)
        };
        let get = || Method::GET;
        for (wire, method, expected) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
                get(),
                (Some(5), true),
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
                Method::HEAD,
                (Some(0), true),
            ),
            (
                "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
                get(),
                (Some(0), true),
            ),
            ("HTTP/1.1 204 No Content\r\n\r\n", get(), (Some(0), true)),
            ("HTTP/1.1 200 OK\r\n\r\n", get(), (None, false)),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n",
                get(),
                (None, true),
            ),
            (
                "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n",
                get(),
                (Some(5), false),
            ),
            (
                "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\n",
                get(),
                (Some(5), true),
            ),
            (
                "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 5\r\n\r\n",
                get(),
                (Some(5), false),
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
                get(),
                (Some(5), true),
            ),
        ] {
            assert_eq!(of(wire, method), expected, "{wire:?}");
        }
        assert!(head("HTTP/1.1 200 OK\r\ncontent-").unwrap().is_none());
    }

    #[test]
    fn what_an_instance_says_of_its_connection_is_not_said_to_the_client() {
        let wire = "HTTP/1.1 200 OK\r\nconnection: close, X-Own\r\nx-own: 1\r\nkeep-alive: timeout=5\r\ncontent-length: 0\r\nx: y\r\n\r\n";
        let head = head(wire).unwrap().unwrap();
        let mut names: Vec<&str> = head.fields.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "x"]);
        assert!(!head.keep_alive);
    }

    #[test]
    fn a_chunked_body_leaves_what_follows_it() {
        let mut input = BytesMut::from(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nmore",
        );
        let mut head = read_head(&mut input, &Method::GET).unwrap().unwrap();
        assert_eq!(head.body.take(&mut input).unwrap().unwrap(), "hello");
        assert_eq!(head.body.take(&mut input).unwrap(), None);
        assert!(head.body.is_done());
        assert_eq!(&input[..], b"more");
    }
}
