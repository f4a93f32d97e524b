//! From an `http::Response` to the wire: its head, and the framing of its body.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap};
use http::response::Parts;
use http_body::SizeHint;

use super::answer::{
    Persistence, Shape, is_bodiless, is_framing, push_field, push_head, push_number,
};
use super::framing::connection_options;
use super::refusal::Refusal;

/// Pieces of a body up to this size are copied behind what is already to be written; larger ones are written from where
/// they are.
const COPIED_BYTES_MAX: usize = 16 * 1024;

/// How the end of a response's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delimiter {
    /// No body at all.
    None,
    /// `Content-Length`, of which this much is still to come.
    Length(u64),
    Chunked,
    /// The connection's end, for HTTP/1.0.
    Close,
}

/// The body broke its promise: it was longer or shorter than the length that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongLength;

/// Writes the head of a response. Returns how its body ends, and whether the connection goes on.
///
/// `minor` is the client's version. Hop-by-hop fields are dropped and framing is written anew; a `Date` of the
/// backend's own is kept.
///
/// # Errors
/// An answer that cannot be framed: an interim status, or a length that contradicts itself. Nothing is written then.
pub(super) fn write_head(
    out: &mut Vec<u8>,
    parts: &Parts,
    hint: &SizeHint,
    minor: u8,
    shape: Shape<'_>,
) -> Result<(Delimiter, Persistence), Refusal> {
    let status = parts.status.as_u16();
    if status < 200 {
        return Err(Refusal::Internal);
    }
    let declared = declared_length(&parts.headers)?;
    if !shape.head_only
        && !is_bodiless(status)
        && declared.is_some_and(|n| hint.exact().is_some_and(|m| m != n))
    {
        return Err(Refusal::Internal);
    }
    let length = match (shape.head_only, hint.exact()) {
        _ if is_bodiless(status) => None,
        // The body of an answer to HEAD is usually gone by now, and its size says nothing about the one of GET.
        (true, Some(0) | None) => declared,
        (_, exact) => exact.or(declared),
    };
    let delimiter = match length {
        _ if shape.head_only || is_bodiless(status) => Delimiter::None,
        Some(length) => Delimiter::Length(length),
        None if minor == 0 => Delimiter::Close,
        None => Delimiter::Chunked,
    };
    let dropped: Vec<&[u8]> = parts
        .headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| connection_options(value.as_bytes()))
        .collect();
    let asks_close = dropped
        .iter()
        .any(|option| option.eq_ignore_ascii_case(b"close"));
    let persistence = if asks_close || delimiter == Delimiter::Close {
        Persistence::Close
    } else {
        shape.persistence
    };

    let date = if parts.headers.contains_key(DATE) {
        &[][..]
    } else {
        shape.date
    };
    push_head(
        out,
        status,
        Shape {
            persistence,
            date,
            ..shape
        },
    );
    for (name, value) in &parts.headers {
        let name = name.as_str();
        if !is_framing(name)
            && !dropped
                .iter()
                .any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
        {
            push_field(out, name.as_bytes(), value.as_bytes());
        }
    }
    if let Some(length) = length {
        out.extend_from_slice(b"content-length: ");
        push_number(out, length);
        out.extend_from_slice(b"\r\n");
    } else if delimiter == Delimiter::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok((delimiter, persistence))
}

fn declared_length(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    match (number, values.next()) {
        (Some(number), None) => Ok(Some(number)),
        _ => Err(Refusal::Internal),
    }
}

impl Delimiter {
    /// Frames one piece of the body. Returns what is too large to be copied: it goes on the wire after `out`, and then,
    /// if the flag is set, CRLF.
    ///
    /// # Errors
    /// More bytes than were announced; nothing of this piece is written.
    pub(super) fn frame(
        &mut self,
        piece: Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(Bytes, bool), WrongLength> {
        // An empty chunk would end the body.
        if piece.is_empty() {
            return Ok((Bytes::new(), false));
        }
        if let Delimiter::Length(left) = self {
            *left = left.checked_sub(piece.len() as u64).ok_or(WrongLength)?;
        }
        let chunked = *self == Delimiter::Chunked;
        if chunked {
            push_hex(out, piece.len());
            out.extend_from_slice(b"\r\n");
        }
        if piece.len() > COPIED_BYTES_MAX {
            return Ok((piece, chunked));
        }
        out.extend_from_slice(&piece);
        if chunked {
            out.extend_from_slice(b"\r\n");
        }
        Ok((Bytes::new(), false))
    }

    /// Ends the body.
    ///
    /// # Errors
    /// Fewer bytes than were announced.
    pub(super) fn end(self, out: &mut Vec<u8>) -> Result<(), WrongLength> {
        match self {
            Delimiter::Length(left) if left > 0 => Err(WrongLength),
            Delimiter::Chunked => {
                out.extend_from_slice(b"0\r\n\r\n");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn push_hex(out: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(number >> (digit * 4)) & 15]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(
        response: http::Response<()>,
        hint: SizeHint,
        minor: u8,
        head_only: bool,
    ) -> Result<(String, Delimiter, Persistence), Refusal> {
        let mut out = Vec::new();
        let shape = Shape {
            persistence: Persistence::Implied,
            head_only,
            date: b"date: D\r\n",
        };
        let (delimiter, persistence) =
            write_head(&mut out, &response.into_parts().0, &hint, minor, shape)?;
        Ok((String::from_utf8(out).unwrap(), delimiter, persistence))
    }

    fn response(status: u16, fields: &[(&str, &str)]) -> http::Response<()> {
        let builder = http::Response::builder().status(status);
        fields
            .iter()
            .fold(builder, |builder, (name, value)| {
                builder.header(*name, *value)
            })
            .body(())
            .unwrap()
    }

    #[test]
    fn a_known_size_is_announced_and_an_unknown_one_is_chunked() {
        let (text, delimiter, _) =
            head(response(200, &[]), SizeHint::with_exact(7), 1, false).unwrap();
        assert_eq!(
            (text.as_str(), delimiter),
            (
                "HTTP/1.1 200 OK\r\ndate: D\r\ncontent-length: 7\r\n\r\n",
                Delimiter::Length(7)
            )
        );
        let (text, delimiter, _) = head(response(200, &[]), SizeHint::default(), 1, false).unwrap();
        assert!(
            text.ends_with("transfer-encoding: chunked\r\n\r\n") && delimiter == Delimiter::Chunked
        );
        let (text, delimiter, persistence) =
            head(response(200, &[]), SizeHint::default(), 0, false).unwrap();
        assert!(!text.contains("transfer-encoding") && !text.contains("content-length"));
        assert_eq!(
            (delimiter, persistence),
            (Delimiter::Close, Persistence::Close)
        );
    }

    #[test]
    fn hop_by_hop_fields_are_dropped_and_an_own_date_is_kept() {
        let fields = [
            ("connection", "close, x-own"),
            ("x-own", "1"),
            ("keep-alive", "3"),
            ("date", "then"),
            ("a", "b"),
        ];
        let (text, _, persistence) =
            head(response(200, &fields), SizeHint::with_exact(0), 1, false).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 200 OK\r\nconnection: close\r\ndate: then\r\na: b\r\ncontent-length: 0\r\n\r\n"
        );
        assert_eq!(persistence, Persistence::Close);
    }

    #[test]
    fn head_keeps_the_length_of_get() {
        let (text, delimiter, _) = head(
            response(200, &[("content-length", "9")]),
            SizeHint::with_exact(0),
            1,
            true,
        )
        .unwrap();
        assert!(text.ends_with("content-length: 9\r\n\r\n") && delimiter == Delimiter::None);
        let (text, ..) = head(response(200, &[]), SizeHint::with_exact(0), 1, true).unwrap();
        assert!(!text.contains("content-length"));
    }

    #[test]
    fn what_cannot_be_framed_is_an_error() {
        assert!(head(response(101, &[]), SizeHint::with_exact(0), 1, false).is_err());
        assert!(
            head(
                response(200, &[("content-length", "9")]),
                SizeHint::with_exact(8),
                1,
                false
            )
            .is_err()
        );
        let twice = [("content-length", "9"), ("content-length", "9")];
        assert!(head(response(200, &twice), SizeHint::default(), 1, false).is_err());
    }

    #[test]
    fn bodies_that_break_their_length_are_noticed() {
        let mut out = Vec::new();
        let mut delimiter = Delimiter::Length(3);
        assert_eq!(
            delimiter.frame(Bytes::from_static(b"ab"), &mut out),
            Ok((Bytes::new(), false))
        );
        assert_eq!(delimiter.end(&mut out), Err(WrongLength));
        assert_eq!(
            delimiter.frame(Bytes::from_static(b"cd"), &mut out),
            Err(WrongLength)
        );
    }

    #[test]
    fn chunks_are_written_in_hex() {
        for (size, hex) in [
            (1, "1"),
            (15, "f"),
            (16, "10"),
            (255, "ff"),
            (4096, "1000"),
            (16_384, "4000"),
        ] {
            let mut out = Vec::new();
            let mut delimiter = Delimiter::Chunked;
            assert_eq!(
                delimiter.frame(Bytes::from(vec![b'x'; size]), &mut out),
                Ok((Bytes::new(), false))
            );
            assert_eq!(
                out,
                [hex.as_bytes(), b"\r\n", &vec![b'x'; size], b"\r\n"].concat()
            );
        }
        let mut out = Vec::new();
        let (direct, tail) = Delimiter::Chunked
            .frame(Bytes::from(vec![b'x'; 70_000]), &mut out)
            .unwrap();
        assert_eq!(
            (out.as_slice(), direct.len(), tail),
            (&b"11170\r\n"[..], 70_000, true)
        );
    }
}
