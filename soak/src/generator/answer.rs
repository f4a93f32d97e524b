//! Answers off the wire: HTTP/1.1 heads by `httparse`, bodies by length, in chunks, or to the end of the connection.

use crate::checker::Cursor;
use std::borrow::Cow;

/// The longest head that is taken.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The longest body that is kept to be looked at; one that is not looked at may be of any length.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most fields of a head.
const FIELDS_MAX: usize = 64;

/// What a head says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// Bytes of the head.
    pub bytes: usize,
    /// How its body ends.
    pub framing: Framing,
    /// Whether the server closes the connection after it.
    pub closes: bool,
    /// The cursor in its `ETag`.
    pub cursor: Option<Cursor>,
    /// Whether it has an `ETag` that is no cursor.
    pub other_etag: bool,
    /// `Retry-After`, seconds.
    pub retry_after_s: Option<u32>,
    /// `Trove-Next-Poll-Ms`.
    pub next_poll_ms: Option<u32>,
    /// `Trove-Stale`.
    pub stale: bool,
    /// `Server-Timing`, microseconds, in the order of [`super::tally::PARTS`].
    pub parts_us: [Option<u32>; super::tally::PARTS.len()],
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// After so many bytes.
    Length(u64),
    /// With a chunk of nothing.
    Chunked,
    /// With the connection.
    Close,
}

/// What bytes hold.
#[derive(Debug, PartialEq)]
pub enum Read<'a> {
    /// Not a whole answer yet; it is not worth looking again before there are so many bytes.
    Incomplete(usize),
    /// The head, and the rest of the body need not be kept: so many bytes of it are still to come.
    Skip(Head, u64),
    /// A whole answer, its body, and how many bytes it took.
    Whole(Head, Cow<'a, [u8]>, usize),
    /// Not HTTP, or longer than is taken.
    Malformed,
}

/// Reads an answer from the beginning of `bytes`. `ended`: the connection has ended. `look`: whether the body is wanted.
#[must_use]
pub fn read(bytes: &[u8], ended: bool, look: bool) -> Read<'_> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let head_bytes = match response.parse(bytes) {
        Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => {
            return Read::Incomplete(bytes.len() + 1);
        }
        _ => return Read::Malformed,
    };
    let Some(head) = head(&response, head_bytes) else {
        return Read::Malformed;
    };
    let body = &bytes[head_bytes..];
    match head.framing {
        Framing::Length(length) => {
            let have = body.len() as u64;
            if have >= length {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Read::Whole(head, Cow::Borrowed(&body[..length]), head_bytes + length)
            } else if !look {
                Read::Skip(head, length - have)
            } else {
                match usize::try_from(length) {
                    Ok(length) if length <= BODY_BYTES_MAX => Read::Incomplete(head_bytes + length),
                    _ => Read::Malformed,
                }
            }
        }
        Framing::Close if ended => Read::Whole(head, Cow::Borrowed(body), bytes.len()),
        Framing::Chunked => match unchunk(body) {
            Chunks::Whole(whole, took) => Read::Whole(head, Cow::Owned(whole), head_bytes + took),
            Chunks::Incomplete if body.len() <= BODY_BYTES_MAX => {
                // Looked at again when a quarter more has come, so that a long body costs no more than a few looks.
                Read::Incomplete(bytes.len() + 1 + body.len() / 4096 * 1024)
            }
            _ => Read::Malformed,
        },
        Framing::Close if body.len() <= BODY_BYTES_MAX => Read::Incomplete(bytes.len() + 1),
        Framing::Close => Read::Malformed,
    }
}

fn head(response: &httparse::Response<'_, '_>, bytes: usize) -> Option<Head> {
    let status = response.code?;
    let mut head = Head {
        status,
        bytes,
        framing: Framing::Close,
        closes: response.version == Some(0),
        cursor: None,
        other_etag: false,
        retry_after_s: None,
        next_poll_ms: None,
        stale: false,
        parts_us: [None; super::tally::PARTS.len()],
    };
    let mut length = None;
    let mut chunked = false;
    for field in response.headers.iter() {
        let (name, value) = (field.name, field.value);
        // By length first: most fields are of no interest.
        match name.len() {
            4 if name.eq_ignore_ascii_case("etag") => {
                head.cursor = Cursor::from_etag(value);
                head.other_etag = head.cursor.is_none();
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                if value.eq_ignore_ascii_case(b"close") {
                    head.closes = true;
                } else if value.eq_ignore_ascii_case(b"keep-alive") {
                    head.closes = false;
                }
            }
            11 if name.eq_ignore_ascii_case("retry-after") => {
                head.retry_after_s = number(value).and_then(|s| u32::try_from(s).ok());
            }
            11 if name.eq_ignore_ascii_case("trove-stale") => head.stale = true,
            13 if name.eq_ignore_ascii_case("server-timing") => timing(value, &mut head.parts_us),
            14 if name.eq_ignore_ascii_case("content-length") => {
                let told = number(value)?;
                if length.is_some_and(|length| length != told) {
                    return None;
                }
                length = Some(told);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                chunked = value.eq_ignore_ascii_case(b"chunked");
                if !chunked {
                    return None;
                }
            }
            18 if name.eq_ignore_ascii_case("trove-next-poll-ms") => {
                head.next_poll_ms = number(value).and_then(|ms| u32::try_from(ms).ok());
            }
            _ => {}
        }
    }
    head.framing = match (status, chunked, length) {
        (..200 | 204 | 304, ..) => Framing::Length(0),
        (_, true, None) => Framing::Chunked,
        (_, true, Some(_)) => return None,
        (_, false, Some(length)) => Framing::Length(length),
        (_, false, None) => Framing::Close,
    };
    head.closes |= head.framing == Framing::Close;
    Some(head)
}

/// `shim;dur=0.031, queue;dur=0, app;dur=0.012`, each in milliseconds.
fn timing(value: &[u8], parts_us: &mut [Option<u32>; super::tally::PARTS.len()]) {
    for metric in value.split(|b| *b == b',') {
        let metric = metric.trim_ascii();
        let name_ends = memchr::memchr(b';', metric).unwrap_or(metric.len());
        let name = &metric[..name_ends];
        let Some(part) = super::tally::PARTS
            .iter()
            .position(|part| part.as_bytes() == name)
        else {
            continue;
        };
        let duration = metric[name_ends..]
            .split(|b| *b == b';')
            .find_map(|parameter| parameter.trim_ascii().strip_prefix(b"dur="));
        parts_us[part] = duration.and_then(microseconds);
    }
}

/// Milliseconds in decimal as microseconds.
fn microseconds(value: &[u8]) -> Option<u32> {
    let dot = memchr::memchr(b'.', value);
    let whole = number(&value[..dot.unwrap_or(value.len())])?;
    let mut us = whole.checked_mul(1_000)?;
    let digits = dot.map_or(&[][..], |dot| &value[dot + 1..]);
    for (digit, place) in digits.iter().zip([100, 10, 1]) {
        us += u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?) * place;
    }
    u32::try_from(us).ok()
}

/// Digits alone.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(number)
}

enum Chunks {
    Whole(Vec<u8>, usize),
    Incomplete,
    Malformed,
}

fn unchunk(bytes: &[u8]) -> Chunks {
    let mut whole = Vec::new();
    let mut at = 0;
    loop {
        let (size_bytes, size) = match httparse::parse_chunk_size(&bytes[at..]) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) => return Chunks::Incomplete,
            Err(_) => return Chunks::Malformed,
        };
        at += size_bytes;
        let Some(size) = usize::try_from(size)
            .ok()
            .filter(|size| *size <= BODY_BYTES_MAX)
        else {
            return Chunks::Malformed;
        };
        if size == 0 {
            // Trailers, up to an empty line.
            loop {
                let Some(line) = memchr::memchr(b'\n', &bytes[at..]) else {
                    return Chunks::Incomplete;
                };
                let empty = bytes[at..at + line].trim_ascii().is_empty();
                at += line + 1;
                if empty {
                    return Chunks::Whole(whole, at);
                }
            }
        }
        if bytes.len() < at + size + 2 {
            return Chunks::Incomplete;
        }
        whole.extend_from_slice(&bytes[at..at + size]);
        if &bytes[at + size..at + size + 2] != b"\r\n" {
            return Chunks::Malformed;
        }
        at += size + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8], ended: bool) -> (Head, Vec<u8>, usize) {
        match read(bytes, ended, true) {
            Read::Whole(head, body, took) => (head, body.into_owned(), took),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_of_any_framing_is_read_to_its_end_at_every_cut() {
        let answers: [&[u8]; 4] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: 1\r\n\r\n",
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n",
        ];
        for answer in answers {
            for cut in 0..answer.len() {
                let read = read(&answer[..cut], false, true);
                assert!(
                    matches!(read, Read::Incomplete(more) if more > cut && more <= answer.len() + 1),
                    "{read:?} at {cut}"
                );
            }
            let (head, body, took) = whole(&[answer, b"HTTP/1.1"].concat(), false);
            assert_eq!(took, answer.len());
            let expected: &[u8] = if head.status == 200 { b"hello" } else { b"" };
            assert_eq!(body, expected);
        }
    }

    #[test]
    fn a_body_without_a_length_ends_with_the_connection() {
        let answer = b"HTTP/1.1 200 OK\r\n\r\nhello";
        assert!(matches!(read(answer, false, true), Read::Incomplete(_)));
        let (head, body, _) = whole(answer, true);
        assert!(head.closes);
        assert_eq!(body, b"hello");
    }

    #[test]
    fn the_fields_of_a_poll_are_understood() {
        let (head, ..) = whole(
            b"HTTP/1.1 200 OK\r\nETag: W/\"17.4\"\r\nTrove-Next-Poll-Ms: 1203\r\nTrove-Stale: true\r\nRetry-After: 3\r\n\
            Server-Timing: shim;dur=0.031, queue;dur=1, app;dur=12.0005;desc=x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            false,
        );
        assert_eq!(head.cursor, Some(Cursor { epoch: 17, seq: 4 }));
        assert_eq!(head.parts_us, [Some(31), Some(1_000), Some(12_000), None]);
        assert_eq!(
            (head.next_poll_ms, head.retry_after_s),
            (Some(1203), Some(3))
        );
        assert!(head.stale && head.closes);
    }

    #[test]
    fn a_long_body_that_nobody_looks_at_is_not_kept() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5000000000\r\n\r\nhello";
        assert!(matches!(
            read(answer, false, false),
            Read::Skip(_, 4_999_999_995)
        ));
        assert_eq!(read(answer, false, true), Read::Malformed);
    }

    #[test]
    fn what_is_ambiguous_is_malformed() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n",
        ] {
            assert_eq!(
                read(answer.as_bytes(), false, true),
                Read::Malformed,
                "{answer}"
            );
        }
    }
}
