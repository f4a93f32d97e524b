//! A request's head: parsed by `httparse`, then held to what it is lenient about.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memchr;

use super::chunk::is_token;
use super::framing::{Framing, Seen, connection_options};
use super::limits::{FIELDS_CAPACITY, Limits};
use super::refusal::Refusal;
use super::target::{is_host, split_target};
use super::trace::TraceParent;

/// Where a request came from and when; what [`Head::parse`] cannot read from the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// When the last byte of the request's head was read.
    pub arrived: Instant,
}

/// How long a client took to send a request's head, where not all of it came at once; among the request's extensions then.
#[derive(Clone, Copy, Debug)]
pub struct Sending(pub Duration);

/// Room for the fields of a head, on the caller's stack: [`Head::parse`] borrows it.
pub type FieldSlots<'h> = [MaybeUninit<httparse::Header<'h>>; FIELDS_CAPACITY];

/// Empty [`FieldSlots`]; costs nothing.
#[must_use]
pub const fn field_slots<'h>() -> FieldSlots<'h> {
    [const { MaybeUninit::uninit() }; FIELDS_CAPACITY]
}

const ABSENT: u8 = u8::MAX;

/// Positions of the fields that the product asks for on its fastest path, found in the one pass over all fields.
#[derive(Clone, Copy, Debug)]
struct Known {
    host: u8,
    authorization: u8,
    if_none_match: u8,
    prefer: u8,
    traceparent: u8,
    upgrade: u8,
}

/// The head of one request, borrowed from the read buffer.
///
/// What exists as a `Head` is unambiguous: it has one host, one framing, CRLF line ends, and a target of the characters
/// that a target may have.
#[derive(Debug)]
pub struct Head<'h> {
    method: &'h str,
    target: &'h str,
    path: &'h str,
    query: Option<&'h str>,
    fields: &'h [httparse::Header<'h>],
    known: Known,
    framing: Framing,
    origin: Origin,
    sending: Duration,
    bytes: usize,
    minor: u8,
    keep_alive: bool,
    expects_continue: bool,
    is_upgrade: bool,
    has_connection_fields: bool,
}

impl<'h> Head<'h> {
    /// Reads one head from the start of `input`; `Ok(None)` when it is not complete yet.
    ///
    /// # Errors
    /// What the request is refused with. The connection cannot be read any further then.
    pub fn parse(
        input: &'h [u8],
        slots: &'h mut FieldSlots<'h>,
        limits: &Limits,
        origin: Origin,
    ) -> Result<Option<Head<'h>>, Refusal> {
        let fields_max = (limits.fields_max as usize).min(FIELDS_CAPACITY);
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(input, &mut slots[..fields_max]);
        let bytes = match parsed {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return too_long(input, limits).map_or(Ok(None), Err),
            Err(error) => return Err(refuse(error, input)),
        };
        let httparse::Request {
            method: Some(method),
            path: Some(target),
            version: Some(minor),
            headers: fields,
        } = request
        else {
            return Err(Refusal::BadRequestLine);
        };
        if target.len() > limits.target_bytes_max as usize {
            return Err(Refusal::TargetTooLong);
        }
        if bytes > limits.head_bytes_max as usize {
            return Err(Refusal::HeadTooLarge);
        }
        if !lines_end_in_crlf(&input[..bytes]) {
            return Err(Refusal::BareLineBreak);
        }
        if method == "CONNECT" || method.len() > limits.method_bytes_max as usize {
            return Err(Refusal::UnknownMethod);
        }
        let mut seen = Seen::default();
        let mut known = Known {
            host: ABSENT,
            authorization: ABSENT,
            if_none_match: ABSENT,
            prefer: ABSENT,
            traceparent: ABSENT,
            upgrade: ABSENT,
        };
        for (index, field) in (0u8..).zip(fields.iter()) {
            // The length sorts out nearly every field without a comparison.
            match field.name.len() {
                4 if is(field, "host") => {
                    seen.hosts = seen.hosts.saturating_add(1);
                    known.host = index;
                }
                6 if is(field, "prefer") => first(&mut known.prefer, index),
                6 if is(field, "expect") => seen.expect(field.value)?,
                7 if is(field, "upgrade") => {
                    seen.fields_of_connection = true;
                    first(&mut known.upgrade, index);
                }
                2 if is(field, "te") => seen.fields_of_connection = true,
                7 if is(field, "trailer") => seen.fields_of_connection = true,
                16 if is(field, "proxy-connection") => seen.fields_of_connection = true,
                10 if is(field, "keep-alive") => seen.fields_of_connection = true,
                10 if is(field, "connection") => seen.connection(field.value)?,
                11 if is(field, "traceparent") => first(&mut known.traceparent, index),
                13 if is(field, "authorization") => first(&mut known.authorization, index),
                13 if is(field, "if-none-match") => first(&mut known.if_none_match, index),
                14 if is(field, "content-length") => seen.content_length(field.value)?,
                17 if is(field, "transfer-encoding") => seen.transfer_encoding(field.value)?,
                _ => {}
            }
        }
        let framing = seen.framing(minor)?;
        let host = match (seen.hosts, minor) {
            (1, _) => Some(fields[usize::from(known.host)].value),
            (0, 0) => None,
            _ => return Err(Refusal::BadHost),
        };
        if !host.is_none_or(is_host) {
            return Err(Refusal::BadHost);
        }
        let (path, query) = split_target(method, target, host)?;
        Ok(Some(Head {
            method,
            target,
            path,
            query,
            fields,
            known,
            framing,
            origin,
            sending: Duration::ZERO,
            bytes,
            minor,
            keep_alive: if minor == 0 {
                seen.keep_alive && !seen.close
            } else {
                !seen.close
            },
            is_upgrade: seen.upgrade && minor == 1 && framing == Framing::Empty && method == "GET",
            has_connection_fields: seen.fields_of_connection,
            expects_continue: seen.expects_continue && minor == 1 && framing != Framing::Empty,
        }))
    }

    /// The method, as sent (methods are case-sensitive).
    #[must_use]
    pub fn method(&self) -> &'h str {
        self.method
    }

    /// The target as sent, at times absolute (`http://host/path?query`).
    #[must_use]
    pub fn target(&self) -> &'h str {
        self.target
    }

    /// The target's path, starting with `/`, not decoded; `*` for `OPTIONS *`.
    #[must_use]
    pub fn path(&self) -> &'h str {
        self.path
    }

    /// What follows the path's `?`.
    #[must_use]
    pub fn query(&self) -> Option<&'h str> {
        self.query
    }

    /// 0 or 1, for HTTP/1.0 and HTTP/1.1.
    #[must_use]
    pub fn minor_version(&self) -> u8 {
        self.minor
    }

    /// All fields in the order sent, also those that concern the connection only.
    pub fn fields(&self) -> impl Iterator<Item = (&'h str, &'h [u8])> + use<'h> {
        self.fields.iter().map(|field| (field.name, field.value))
    }

    /// The value of the first field of this name, in whatever case. Walks all fields: the named accessors do not.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'h [u8]> {
        self.fields
            .iter()
            .find(|field| is(field, name))
            .map(|field| field.value)
    }

    /// `Host`.
    #[must_use]
    pub fn host(&self) -> Option<&'h [u8]> {
        self.at(self.known.host)
    }

    /// `Authorization`, the first if there are several.
    #[must_use]
    pub fn authorization(&self) -> Option<&'h [u8]> {
        self.at(self.known.authorization)
    }

    /// `If-None-Match`, the first if there are several.
    #[must_use]
    pub fn if_none_match(&self) -> Option<&'h [u8]> {
        self.at(self.known.if_none_match)
    }

    /// `Prefer`, the first if there are several.
    #[must_use]
    pub fn prefer(&self) -> Option<&'h [u8]> {
        self.at(self.known.prefer)
    }

    /// The same head, which took its client so long to send after its first byte.
    #[must_use]
    pub fn sent_over(self, sending: Duration) -> Self {
        Head { sending, ..self }
    }

    /// How long its client took to send it after its first byte, with its body if that was wanted whole. 0 if it came at
    /// once.
    #[must_use]
    #[inline]
    pub fn sending(&self) -> Duration {
        self.sending
    }

    /// The trace that it belongs to.
    #[must_use]
    pub fn trace(&self) -> Option<TraceParent> {
        TraceParent::parse(self.traceparent()?)
    }

    /// `traceparent`, the first if there are several.
    #[must_use]
    pub fn traceparent(&self) -> Option<&'h [u8]> {
        self.at(self.known.traceparent)
    }

    /// The protocols of `Upgrade`, where `Connection` names it too and the request is a GET of HTTP/1.1 without a body.
    #[must_use]
    pub fn upgrade(&self) -> Option<&'h [u8]> {
        self.at(self.known.upgrade).filter(|_| self.is_upgrade)
    }

    /// Whether any of the fields concerns this connection only, or is named by one that does. (`Content-Length` does
    /// not count.)
    #[must_use]
    pub fn has_connection_fields(&self) -> bool {
        self.has_connection_fields
    }

    /// Whether `Connection` names this field, which then concerns this connection only.
    #[must_use]
    pub fn connection_names(&self, name: &str) -> bool {
        let mut lists = self
            .fields()
            .filter(|(field, _)| field.eq_ignore_ascii_case("connection"));
        lists.any(|(_, list)| {
            connection_options(list).any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
        })
    }

    /// How the end of the body is known.
    #[must_use]
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// The other end of the connection.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.origin.peer
    }

    /// When the last byte of the head was read.
    #[must_use]
    pub fn arrived(&self) -> Instant {
        self.origin.arrived
    }

    /// Where the request came from and when.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Bytes that the head took of the input.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the client lets the connection live past this request.
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the client waits for `100 Continue` before it sends the body.
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    fn at(&self, index: u8) -> Option<&'h [u8]> {
        self.fields.get(usize::from(index)).map(|field| field.value)
    }
}

fn is(field: &httparse::Header<'_>, name: &str) -> bool {
    field.name.eq_ignore_ascii_case(name)
}

fn first(slot: &mut u8, index: u8) {
    if *slot == ABSENT {
        *slot = index;
    }
}

/// `httparse` takes a bare LF for a line end; a proxy in front may not, and then the two read different requests.
/// One branchless pass, which the compiler turns into vector code.
fn lines_end_in_crlf(head: &[u8]) -> bool {
    let pairs = head.iter().zip(&head[1..]);
    let broken = pairs.fold(false, |broken, (a, b)| {
        broken | ((*a == b'\r') ^ (*b == b'\n'))
    });
    !broken && head[0] != b'\n'
}

/// Whether a head that is not complete yet already breaks a limit.
fn too_long(input: &[u8], limits: &Limits) -> Option<Refusal> {
    let head_max = limits.head_bytes_max as usize;
    let line_max = limits.method_bytes_max as usize + 1 + limits.target_bytes_max as usize;
    if input.len() <= line_max.min(head_max) {
        return None;
    }
    let start = input
        .iter()
        .position(|byte| !b"\r\n".contains(byte))
        .unwrap_or(input.len());
    let line = &input[start..];
    let target = memchr(b' ', line).map_or(&line[..0], |space| &line[space + 1..]);
    let target_len = memchr::memchr3(b' ', b'\r', b'\n', target).unwrap_or(target.len());
    if target_len > limits.target_bytes_max as usize {
        return Some(Refusal::TargetTooLong);
    }
    (input.len() > head_max).then_some(Refusal::HeadTooLarge)
}

fn refuse(error: httparse::Error, input: &[u8]) -> Refusal {
    match error {
        httparse::Error::TooManyHeaders => Refusal::TooManyFields,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Refusal::BadField,
        httparse::Error::NewLine => Refusal::BareLineBreak,
        httparse::Error::Version => {
            // Something that calls itself another HTTP is told so; anything else is just malformed.
            let start = input
                .iter()
                .position(|byte| !b"\r\n".contains(byte))
                .unwrap_or(0);
            let line = input[start..]
                .split(|byte| b"\r\n".contains(byte))
                .next()
                .unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let version = match words[..] {
                [_, _, version] => version.strip_prefix(b"HTTP/"),
                _ => None,
            };
            match version {
                Some([b'0'..=b'9'] | [b'0'..=b'9', b'.', b'0'..=b'9']) => Refusal::UnknownVersion,
                _ => Refusal::BadRequestLine,
            }
        }
        httparse::Error::Token | httparse::Error::Status => Refusal::BadRequestLine,
    }
}

/// Whether a field's name and value can be written to the wire without changing what the message means.
pub(super) fn is_writable_field(name: impl AsRef<[u8]>, value: &[u8]) -> bool {
    let name = name.as_ref();
    is_writable_value(value)
        && !name.is_empty()
        && name.iter().fold(true, |all, byte| all & is_token(*byte))
}

/// The same for the value alone.
pub(super) fn is_writable_value(value: &[u8]) -> bool {
    // No early way out: the compiler makes vector code of the second line, which an `all` would not be.
    let good = |byte: u8| (byte >= b' ' && byte != 0x7f) || byte == b'\t';
    value.iter().fold(true, |all, byte| all & good(*byte))
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
