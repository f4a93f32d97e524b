//! The frames of a link, on the wire and parsed: plain functions over bytes.
//!
//! A frame is its length (of all that follows it), a kind, and what the kind has. Numbers are little-endian.
//!
//! | kind | from | what follows it |
//! |---|---|---|
//! | 1 hello | server | version u16, requests_max u32, request_bytes_max u32, answer_bytes_max u32 |
//! | 2 request | client | flags u8, tag, deadline_ms u32, address (4 or 16 bytes), port u16, head_bytes u32, head, body |
//! | 3 answer | server | flags u8, status u16, tag, field_bytes u32, fields, body |
//! | 4 cancel | client | tag |
//! | 5 cancelled | server | tag |
//! | 6 refused | server | why u8, tag |
//! | 7 leaving | server | nothing |
//! | 8 ping, 9 pong | both | nothing |
//!
//! A tag is a place (u32) and a serial number (u32) that grows by one, around its end, each time the place is used.

use std::net::{IpAddr, SocketAddr};

/// The version that this code speaks, and the token of `Upgrade`.
pub const PROTOCOL: &str = "trove-link/1";

/// The number of the version in a hello.
pub const VERSION: u16 = 1;

/// Bytes before a frame's kind.
pub const LENGTH_BYTES: usize = 4;

/// Bytes of an answer before its fields, length included.
pub(super) const ANSWER_HEAD_BYTES: usize = LENGTH_BYTES + 16;

const HELLO: u8 = 1;
const REQUEST: u8 = 2;
const ANSWER: u8 = 3;
const CANCEL: u8 = 4;
const CANCELLED: u8 = 5;
const REFUSED: u8 = 6;
const LEAVING: u8 = 7;
const PING: u8 = 8;
const PONG: u8 = 9;

/// The client's address has 16 bytes.
const FLAG_V6: u8 = 1;
/// The client came over TLS.
const FLAG_SECURE: u8 = 2;
/// In place of an answer's body stands the length (u64) that the answer to GET would have.
const FLAG_LENGTH: u8 = 1;

/// Names one request of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Below the server's `requests_max`. Used again once its request has had its last frame.
    pub place: u32,
    /// One more than the place's last.
    pub serial: u32,
}

/// What a server says of itself first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u16,
    /// Requests that may be under way at once, and so the places of tags.
    pub requests_max: u32,
    /// Bytes of a request's head and body together.
    pub request_bytes_max: u32,
    /// Bytes of an answer's fields and body together.
    pub answer_bytes_max: u32,
}

/// A request, as it stands in the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFrame<'a> {
    /// Its name.
    pub tag: Tag,
    /// How long the client of the link still waits, in milliseconds.
    pub deadline_ms: u32,
    /// Whom it is from.
    pub client: SocketAddr,
    /// Whether they came over TLS.
    pub is_secure: bool,
    /// From the request line to the empty line.
    pub head: &'a [u8],
    /// All of the body.
    pub body: &'a [u8],
}

/// An answer, as it stands in the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFrame<'a> {
    /// Whose answer.
    pub tag: Tag,
    /// 200 to 599.
    pub status: u16,
    /// Lines of `name: value` and CRLF.
    pub fields: &'a [u8],
    /// All of the body.
    pub body: &'a [u8],
    /// To HEAD: the length of GET's body.
    pub length: Option<u64>,
}

/// Why a server did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refused {
    /// It is leaving. Nothing was done.
    Leaving = 1,
    /// The answer is too large for a link; the request has been carried out.
    AnswerTooLarge = 2,
    /// The body of the answer broke off; the request has been carried out.
    AnswerBroke = 3,
    /// The deadline went by; it may yet be carried out.
    DeadlinePassed = 4,
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table above says what each is")]
pub enum Frame<'a> {
    Hello(Hello),
    Request(RequestFrame<'a>),
    Answer(AnswerFrame<'a>),
    Cancel(Tag),
    Cancelled(Tag),
    Refused(Refused, Tag),
    Leaving,
    Ping,
    Pong,
}

/// What ends a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// More bytes than any frame may have.
    #[error("a frame of {0} bytes is over the bound")]
    TooLong(usize),
    /// A kind that this version does not know.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// The bytes are not what the kind has.
    #[error("a malformed frame of the kind {0}")]
    Malformed(u8),
    /// A kind that the other side must not send, or not now.
    #[error("a frame that has no place here")]
    OutOfPlace,
    /// The other side speaks another version.
    #[error("the other side speaks version {0}")]
    Version(u16),
    /// An answer to a request that was not made, or that has been answered.
    #[error("an answer to a request that is not under way")]
    NotUnderWay,
    /// A tag whose place is out of bounds or taken, or whose serial is not the next.
    #[error("a tag that is not the next of its place")]
    WrongTag,
    /// A request whose head and body do not agree.
    #[error("a request whose body is not the one that its head announces")]
    WrongBody,
}

/// The first frame of `input`, without its length, and the bytes that it takes with it. `None` when it is not all there.
///
/// # Errors
/// It is longer than `frame_bytes_max`, or has no kind.
pub fn split(input: &[u8], frame_bytes_max: usize) -> Result<Option<(&[u8], usize)>, FrameError> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > frame_bytes_max {
        return Err(FrameError::TooLong(length));
    }
    if length == 0 {
        return Err(FrameError::Malformed(0));
    }
    Ok(rest
        .get(..length)
        .map(|frame| (frame, LENGTH_BYTES + length)))
}

/// Reads one frame, as [`split`] gives it.
///
/// # Errors
/// It is not a frame.
pub fn parse(frame: &[u8]) -> Result<Frame<'_>, FrameError> {
    let (&kind, rest) = frame.split_first().ok_or(FrameError::Malformed(0))?;
    let parsed = match kind {
        ANSWER => parse_answer(rest),
        REQUEST => parse_request(rest),
        HELLO => parse_hello(rest),
        CANCEL => parse_tag(rest).map(Frame::Cancel),
        CANCELLED => parse_tag(rest).map(Frame::Cancelled),
        REFUSED => parse_refused(rest),
        LEAVING => rest.is_empty().then_some(Frame::Leaving),
        PING => rest.is_empty().then_some(Frame::Ping),
        PONG => rest.is_empty().then_some(Frame::Pong),
        unknown => return Err(FrameError::UnknownKind(unknown)),
    };
    parsed.ok_or(FrameError::Malformed(kind))
}

/// Takes parts off the front of a frame.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (part, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*part)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn tag(&mut self) -> Option<Tag> {
        Some(Tag {
            place: self.u32()?,
            serial: self.u32()?,
        })
    }

    fn slice(&mut self, bytes: u32) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(bytes as usize)?;
        self.0 = rest;
        Some(part)
    }

    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn parse_hello(rest: &[u8]) -> Option<Frame<'static>> {
    let mut cursor = Cursor(rest);
    let hello = Hello {
        version: cursor.u16()?,
        requests_max: cursor.u32()?,
        request_bytes_max: cursor.u32()?,
        answer_bytes_max: cursor.u32()?,
    };
    // A later version may have more to say.
    Some(Frame::Hello(hello))
}

fn parse_request(rest: &[u8]) -> Option<Frame<'_>> {
    let mut cursor = Cursor(rest);
    let flags = cursor.u8()?;
    if flags & !(FLAG_V6 | FLAG_SECURE) != 0 {
        return None;
    }
    let tag = cursor.tag()?;
    let deadline_ms = cursor.u32()?;
    let address = if flags & FLAG_V6 != 0 {
        IpAddr::from(cursor.take::<16>()?)
    } else {
        IpAddr::from(cursor.take::<4>()?)
    };
    let client = SocketAddr::new(address, cursor.u16()?);
    let head_bytes = cursor.u32()?;
    let head = cursor.slice(head_bytes)?;
    Some(Frame::Request(RequestFrame {
        tag,
        deadline_ms,
        client,
        is_secure: flags & FLAG_SECURE != 0,
        head,
        body: cursor.0,
    }))
}

fn parse_answer(rest: &[u8]) -> Option<Frame<'_>> {
    let mut cursor = Cursor(rest);
    let flags = cursor.u8()?;
    let status = cursor.u16()?;
    let tag = cursor.tag()?;
    let field_bytes = cursor.u32()?;
    let fields = cursor.slice(field_bytes)?;
    let (body, length) = match flags {
        0 => (cursor.0, None),
        FLAG_LENGTH => {
            let length = u64::from_le_bytes(cursor.take()?);
            (cursor.end(&[][..])?, Some(length))
        }
        _ => return None,
    };
    (200..=599)
        .contains(&status)
        .then_some(Frame::Answer(AnswerFrame {
            tag,
            status,
            fields,
            body,
            length,
        }))
}

fn parse_tag(rest: &[u8]) -> Option<Tag> {
    let mut cursor = Cursor(rest);
    let tag = cursor.tag()?;
    cursor.end(tag)
}

fn parse_refused(rest: &[u8]) -> Option<Frame<'static>> {
    let mut cursor = Cursor(rest);
    let why = match cursor.u8()? {
        1 => Refused::Leaving,
        2 => Refused::AnswerTooLarge,
        3 => Refused::AnswerBroke,
        4 => Refused::DeadlinePassed,
        _ => return None,
    };
    let tag = cursor.tag()?;
    cursor.end(Frame::Refused(why, tag))
}

/// Leaves room for a length; [`close_frame`] fills it in.
fn open_frame(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    at
}

fn close_frame(out: &mut [u8], at: usize) {
    let length = u32::try_from(out.len() - at - LENGTH_BYTES).expect("a frame within its bound");
    out[at..at + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

fn push_tag(out: &mut Vec<u8>, tag: Tag) {
    out.extend_from_slice(&tag.place.to_le_bytes());
    out.extend_from_slice(&tag.serial.to_le_bytes());
}

/// Writes a hello.
pub fn push_hello(out: &mut Vec<u8>, hello: &Hello) {
    let at = open_frame(out, HELLO);
    out.extend_from_slice(&hello.version.to_le_bytes());
    for number in [
        hello.requests_max,
        hello.request_bytes_max,
        hello.answer_bytes_max,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    close_frame(out, at);
}

/// Writes a request whose head `write_head` appends.
pub(super) fn push_request(
    out: &mut Vec<u8>,
    request: &RequestFrame<'_>,
    write_head: impl FnOnce(&mut Vec<u8>),
) {
    let at = open_frame(out, REQUEST);
    let v6 = if request.client.is_ipv6() { FLAG_V6 } else { 0 };
    let secure = if request.is_secure { FLAG_SECURE } else { 0 };
    out.push(v6 | secure);
    push_tag(out, request.tag);
    out.extend_from_slice(&request.deadline_ms.to_le_bytes());
    match request.client.ip() {
        IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
    }
    out.extend_from_slice(&request.client.port().to_le_bytes());
    let head_at = out.len() + 4;
    out.extend_from_slice(&[0; 4]);
    write_head(out);
    let head_bytes = u32::try_from(out.len() - head_at).expect("a head within its bound");
    out[head_at - 4..head_at].copy_from_slice(&head_bytes.to_le_bytes());
    out.extend_from_slice(request.body);
    close_frame(out, at);
}

/// Writes a request.
pub fn push_whole_request(out: &mut Vec<u8>, request: &RequestFrame<'_>) {
    push_request(out, request, |out| out.extend_from_slice(request.head));
}

/// Puts another tag into a request, as [`split`] gives it.
pub(super) fn set_request_tag(frame: &mut [u8], tag: Tag) {
    if let Some(room) = frame.get_mut(2..10) {
        room[..4].copy_from_slice(&tag.place.to_le_bytes());
        room[4..].copy_from_slice(&tag.serial.to_le_bytes());
    }
}

/// Writes the room that an answer's head takes; [`close_answer`] fills it in.
pub(super) fn open_answer(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; ANSWER_HEAD_BYTES]);
    at
}

/// Fills in the head of the answer that starts at `at` and ends with `out`.
pub(super) fn close_answer(
    out: &mut Vec<u8>,
    at: usize,
    tag: Tag,
    (status, fields_bytes, length): (u16, usize, Option<u64>),
) {
    if let Some(length) = length {
        out.extend_from_slice(&length.to_le_bytes());
    }
    let flags = if length.is_some() { FLAG_LENGTH } else { 0 };
    let field_bytes = u32::try_from(fields_bytes).expect("fields within their bound");
    let head = &mut out[at + LENGTH_BYTES..at + ANSWER_HEAD_BYTES];
    head[0] = ANSWER;
    head[1] = flags;
    head[2..4].copy_from_slice(&status.to_le_bytes());
    head[4..8].copy_from_slice(&tag.place.to_le_bytes());
    head[8..12].copy_from_slice(&tag.serial.to_le_bytes());
    head[12..16].copy_from_slice(&field_bytes.to_le_bytes());
    close_frame(out, at);
}

/// Writes an answer.
pub fn push_answer(out: &mut Vec<u8>, answer: &AnswerFrame<'_>) {
    let at = open_answer(out);
    out.extend_from_slice(answer.fields);
    out.extend_from_slice(answer.body);
    let parts = (answer.status, answer.fields.len(), answer.length);
    close_answer(out, at, answer.tag, parts);
}

/// Writes any frame.
pub fn push(out: &mut Vec<u8>, frame: &Frame<'_>) {
    let (kind, tag) = match frame {
        Frame::Cancel(tag) => (CANCEL, Some(*tag)),
        Frame::Cancelled(tag) => (CANCELLED, Some(*tag)),
        Frame::Refused(_, tag) => (REFUSED, Some(*tag)),
        Frame::Leaving => (LEAVING, None),
        Frame::Ping => (PING, None),
        Frame::Pong => (PONG, None),
        Frame::Hello(hello) => return push_hello(out, hello),
        Frame::Request(request) => return push_whole_request(out, request),
        Frame::Answer(answer) => return push_answer(out, answer),
    };
    let at = open_frame(out, kind);
    if let Frame::Refused(why, _) = frame {
        out.push(*why as u8);
    }
    if let Some(tag) = tag {
        push_tag(out, tag);
    }
    close_frame(out, at);
}
