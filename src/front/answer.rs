//! Answers written straight into a connection's output.

use super::apart::{Apart, FieldLines};
use super::head::is_writable_field;
use super::refusal::Refusal;

/// Header fields checked and put on the wire's form once, to be copied into many answers.
#[derive(Clone, Debug, Default)]
pub struct FieldBlock(Vec<u8>);

/// A field that cannot be sent: its name or value has a byte that would change the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwritableField(String);

impl std::fmt::Display for UnwritableField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the header field {:?} cannot be written", self.0)
    }
}

impl std::error::Error for UnwritableField {}

impl FieldBlock {
    /// Fields of `(name, value)`, in this order. The front writes framing, `Date` and `Connection`: they have no place here.
    ///
    /// # Errors
    /// The first field with a byte that a header field cannot have.
    pub fn new(fields: &[(&str, &str)]) -> Result<FieldBlock, UnwritableField> {
        let mut block = Vec::new();
        for (name, value) in fields {
            if !is_writable_field(name, value.as_bytes()) || is_framing(name) {
                return Err(UnwritableField((*name).to_owned()));
            }
            push_field(&mut block, name.as_bytes(), value.as_bytes());
        }
        Ok(FieldBlock(block))
    }

    /// The fields as lines.
    #[must_use]
    pub fn lines(&self) -> FieldLines<'_> {
        FieldLines(&self.0)
    }
}

/// Fields that the front alone writes, or drops because they concern one connection only.
#[must_use]
pub fn is_framing(name: impl AsRef<[u8]>) -> bool {
    const OURS: [&[u8]; 8] = [
        b"connection",
        b"content-length",
        b"transfer-encoding",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    ];
    // Nearly every name is of another length, which one bit tells.
    const LENGTHS: u32 = 1 << 2 | 1 << 7 | 1 << 10 | 1 << 14 | 1 << 16 | 1 << 17;
    let name = name.as_ref();
    name.len() < 32
        && LENGTHS & (1 << name.len()) != 0
        && OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

/// What `Connection` an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// HTTP/1.1's default: no field.
    Implied,
    /// An HTTP/1.0 client asked for it, and must be told.
    KeepAlive,
    Close,
}

/// What the front knows of the answer to a request before it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub(super) persistence: Persistence,
    /// HEAD: the same head as for GET, and no body.
    pub(super) head_only: bool,
    /// `date: …\r\n`
    pub(super) date: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Empty,
    Fields,
    Done,
    Broken,
}

/// Writes one answer into the connection's output buffer: status, then fields, then body. Nothing is allocated.
///
/// The front writes `Date`, `Connection` and `Content-Length`. An answer written out of order, or with a byte that no
/// field can have, is taken back and answered 500.
#[derive(Debug)]
pub struct Answer<'a> {
    out: &'a mut Vec<u8>,
    shape: Shape<'a>,
    start: usize,
    status: u16,
    stage: Stage,
    /// Status and framing are left to whoever takes the parts; see [`Apart`].
    apart: bool,
    /// Where the body starts, once the answer is done.
    body_from: usize,
    /// The length of the body that HEAD leaves out.
    length: Option<u64>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, shape: Shape<'a>) -> Self {
        let start = out.len();
        Answer {
            out,
            shape,
            start,
            status: 0,
            stage: Stage::Empty,
            apart: false,
            body_from: start,
            length: None,
        }
    }

    /// An answer of which only fields and body are written.
    pub(super) fn apart(out: &'a mut Vec<u8>, head_only: bool) -> Self {
        let shape = Shape {
            persistence: Persistence::Implied,
            head_only,
            date: b"",
        };
        Answer {
            apart: true,
            ..Answer::new(out, shape)
        }
    }

    /// Begins the answer. `status` is 200 to 599.
    pub fn status(&mut self, status: u16) -> &mut Self {
        if self.stage == Stage::Empty && (200..=599).contains(&status) {
            self.status = status;
            self.stage = Stage::Fields;
            if !self.apart {
                push_head(self.out, status, self.shape);
            }
        } else {
            self.stage = Stage::Broken;
        }
        self
    }

    /// `Content-Type`.
    pub fn content_type(&mut self, value: &str) -> &mut Self {
        self.field("content-type", value)
    }

    /// One field.
    pub fn field(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        let value = value.as_ref();
        if self.stage == Stage::Fields && is_writable_field(name, value) && !is_framing(name) {
            push_field(self.out, name.as_bytes(), value);
        } else {
            self.stage = Stage::Broken;
        }
        self
    }

    /// Fields prepared before; the cheapest way.
    pub fn block(&mut self, fields: &FieldBlock) -> &mut Self {
        if self.stage == Stage::Fields {
            self.out.extend_from_slice(&fields.0);
        } else {
            self.stage = Stage::Broken;
        }
        self
    }

    /// A field whose value is written in place by `write`; the value is checked afterwards.
    pub fn field_with(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        if self.stage != Stage::Fields || is_framing(name) {
            self.stage = Stage::Broken;
            return self;
        }
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        let from = self.out.len();
        write(self.out);
        if self.out.len() < from || !is_writable_field(name, &self.out[from..]) {
            self.stage = Stage::Broken;
        }
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// Ends the answer with this body. HEAD, 204 and 304 send none of it.
    pub fn body(&mut self, body: &[u8]) {
        if self.stage != Stage::Fields {
            self.stage = Stage::Broken;
            return;
        }
        self.stage = Stage::Done;
        self.push_length(body.len() as u64);
        if self.has_body() {
            self.out.extend_from_slice(body);
        }
    }

    /// Ends an answer to HEAD, of which the body of GET would have `length` bytes.
    pub fn length_only(&mut self, length: u64) {
        if self.stage != Stage::Fields || !self.shape.head_only {
            self.stage = Stage::Broken;
            return;
        }
        self.stage = Stage::Done;
        self.push_length(length);
    }

    /// Fields that were checked before.
    pub fn lines(&mut self, lines: FieldLines<'_>) -> &mut Self {
        if self.stage == Stage::Fields {
            self.out.extend_from_slice(lines.0);
        } else {
            self.stage = Stage::Broken;
        }
        self
    }

    /// Ends the answer with a body that `write` appends to the buffer, so that it need not be built elsewhere first.
    ///
    /// Its length is known only then: the body is moved up to make room for `Content-Length`, which for a few hundred
    /// bytes costs less than a second buffer.
    pub fn body_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.stage != Stage::Fields {
            self.stage = Stage::Broken;
            return;
        }
        self.stage = Stage::Done;
        let from = self.out.len();
        write(self.out);
        let Some(body) = self.out.len().checked_sub(from) else {
            self.stage = Stage::Broken;
            return;
        };
        if self.apart && self.has_body() {
            self.body_from = from;
            return;
        }
        self.push_length(body as u64);
        if self.has_body() {
            // The length was written behind the body; it belongs before it.
            self.out[from..].rotate_left(body);
        } else {
            self.out.drain(from..from + body);
            self.body_from = self.out.len();
        }
    }

    /// The end of the fields.
    fn push_length(&mut self, length: u64) {
        if self.apart {
            self.body_from = self.out.len();
            self.length = (!is_bodiless(self.status) && self.shape.head_only).then_some(length);
        } else {
            push_length(self.out, self.status, length);
        }
    }

    fn has_body(&self) -> bool {
        !self.shape.head_only && !is_bodiless(self.status)
    }

    /// [`Answer::finish`], for an answer that was taken apart.
    pub(super) fn finish_apart(mut self) -> Result<Apart, Refusal> {
        if self.stage == Stage::Fields {
            self.body(b"");
        }
        let apart = Apart {
            status: self.status,
            fields_bytes: self.body_from - self.start,
            length: self.length,
        };
        self.finish().map(|()| apart)
    }

    /// Ends an answer that has no body; takes back one that was not written well.
    pub(super) fn finish(mut self) -> Result<(), Refusal> {
        if self.stage == Stage::Fields {
            self.body(b"");
        }
        if self.stage == Stage::Done {
            return Ok(());
        }
        self.out.truncate(self.start);
        Err(Refusal::Internal)
    }
}

/// Statuses whose answers never have a body.
pub(super) fn is_bodiless(status: u16) -> bool {
    status < 200 || status == 204 || status == 304
}

/// Status line, `Date` and `Connection`.
pub(super) fn push_head(out: &mut Vec<u8>, status: u16, shape: Shape<'_>) {
    push_status_line(out, status);
    out.extend_from_slice(shape.date);
    match shape.persistence {
        Persistence::Implied => {}
        Persistence::KeepAlive => out.extend_from_slice(b"connection: keep-alive\r\n"),
        Persistence::Close => out.extend_from_slice(b"connection: close\r\n"),
    }
}

fn push_status_line(out: &mut Vec<u8>, status: u16) {
    let common: &[u8] = match status {
        200 => b"HTTP/1.1 200 OK\r\n",
        204 => b"HTTP/1.1 204 No Content\r\n",
        304 => b"HTTP/1.1 304 Not Modified\r\n",
        _ => {
            out.extend_from_slice(b"HTTP/1.1 ");
            push_number(out, status.into());
            out.push(b' ');
            let reason = http::StatusCode::from_u16(status)
                .ok()
                .and_then(|status| status.canonical_reason());
            out.extend_from_slice(reason.unwrap_or("").as_bytes());
            b"\r\n"
        }
    };
    out.extend_from_slice(common);
}

pub(super) fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// `Content-Length`, where the status has one, and the empty line.
pub(super) fn push_length(out: &mut Vec<u8>, status: u16, length: u64) {
    if !is_bodiless(status) {
        out.extend_from_slice(b"content-length: ");
        push_number(out, length);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A whole refusal, with the fields that `sign` adds unless they cannot be sent. `retry_after_s` is sent with a 503.
pub(super) fn push_refusal(
    out: &mut Vec<u8>,
    refusal: Refusal,
    (head_only, date): (bool, &[u8]),
    retry_after_s: u32,
    sign: impl Fn(&mut Answer<'_>),
) {
    let (status, _, _) = refusal.describe();
    let shape = Shape {
        persistence: Persistence::Close,
        head_only,
        date,
    };
    for is_signed in [true, false] {
        let mut answer = Answer::new(out, shape);
        answer
            .status(status)
            .content_type("application/problem+json")
            .field("cache-control", "no-store");
        if status == 503 {
            answer.field_with("retry-after", |out| push_number(out, retry_after_s.into()));
        }
        if is_signed {
            sign(&mut answer);
        }
        answer.body(refusal.problem_json().as_bytes());
        if answer.finish().is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_goes_without_a_signature_that_cannot_be_sent() {
        let write = |value: &str| {
            let mut out = b"before".to_vec();
            push_refusal(
                &mut out,
                Refusal::AnswerTimeout,
                (false, b""),
                7,
                |answer| {
                    answer.field("x-a", value);
                },
            );
            String::from_utf8(out).unwrap()
        };
        let (signed, unsigned) = (write("b"), write("b\r\nc: d"));
        assert!(signed.starts_with("beforeHTTP/1.1 503 ") && signed.contains("\r\nx-a: b\r\n"));
        assert_eq!(unsigned, signed.replace("x-a: b\r\n", ""));
        assert!(unsigned.contains("\r\nretry-after: 7\r\n"));
    }

    fn shape(head_only: bool) -> Shape<'static> {
        Shape {
            persistence: Persistence::Implied,
            head_only,
            date: b"date: D\r\n",
        }
    }

    fn written(head_only: bool, write: impl FnOnce(&mut Answer<'_>)) -> Result<String, Refusal> {
        let mut out = b"before ".to_vec();
        let mut answer = Answer::new(&mut out, shape(head_only));
        write(&mut answer);
        let result = answer.finish();
        let text = String::from_utf8(out).unwrap();
        let own = text.strip_prefix("before ").unwrap().to_owned();
        if result.is_err() {
            assert_eq!(own, "", "a broken answer leaves nothing behind");
        }
        result.map(|()| own)
    }

    #[test]
    fn a_body_written_in_place_reads_like_one_copied_in() {
        let copied = written(false, |a| {
            a.status(200).content_type("text/plain").body(b"hello")
        })
        .unwrap();
        let in_place = written(false, |a| {
            a.status(200)
                .content_type("text/plain")
                .body_with(|out| out.extend_from_slice(b"hello"));
        });
        assert_eq!(
            copied,
            "HTTP/1.1 200 OK\r\ndate: D\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
        );
        assert_eq!(in_place.unwrap(), copied);
    }

    #[test]
    fn head_has_the_same_head_and_no_body() {
        let get = written(false, |a| a.status(404).body(b"hello")).unwrap();
        for head in [
            written(true, |a| a.status(404).body(b"hello")).unwrap(),
            written(true, |a| {
                a.status(404)
                    .body_with(|out| out.extend_from_slice(b"hello"))
            })
            .unwrap(),
        ] {
            assert_eq!(format!("{head}hello"), get);
        }
    }

    #[test]
    fn statuses_without_a_body_have_no_length() {
        for status in [204, 304] {
            let text = written(false, |a| {
                a.status(status).field("etag", "W/\"1.2\"").body(b"ignored")
            })
            .unwrap();
            assert!(text.ends_with("etag: W/\"1.2\"\r\n\r\n"), "{text}");
            assert!(!text.contains("length"));
        }
    }

    #[test]
    fn an_answer_that_would_change_the_message_is_taken_back() {
        for broken in [
            written(false, |a| a.status(200).field("x", "a\r\nb: c").body(b"")),
            written(false, |a| a.status(200).field("x y", "a").body(b"")),
            written(false, |a| {
                a.status(200).field("Content-Length", "3").body(b"")
            }),
            written(false, |a| a.field("x", "a").status(200).body(b"")),
            written(false, |a| a.status(100).body(b"")),
            written(false, |a| {
                a.status(200)
                    .field_with("x", |out| out.extend_from_slice(b"\n"))
                    .body(b"")
            }),
            written(false, |a| {
                a.status(200).body(b"once");
                a.body(b"twice");
            }),
            written(false, |_| {}),
        ] {
            assert_eq!(broken, Err(Refusal::Internal));
        }
    }

    #[test]
    fn a_block_refuses_framing_and_line_breaks() {
        assert!(FieldBlock::new(&[("x-instance-id", "a"), ("cache-control", "no-store")]).is_ok());
        assert!(FieldBlock::new(&[("connection", "close")]).is_err());
        assert!(FieldBlock::new(&[("x", "a\nb")]).is_err());
    }
}
