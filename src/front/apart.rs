//! Answers as status, fields and body, for a wire that is not HTTP's own; and fields that came over such a wire.

use memchr::memchr;

use super::answer::{Answer, is_framing};
use super::chunk::is_token;
use super::head::is_writable_value;
use super::refusal::Refusal;

/// An [`Answer`] that was written without HTTP's framing: its fields, then its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The status, 200 to 599.
    pub status: u16,
    /// Bytes of the fields, each `name: value` and CRLF, at the start of what was written. The body is the rest.
    pub fields_bytes: usize,
    /// The length that an answer to HEAD announces of the body that it leaves out.
    pub length: Option<u64>,
}

impl Apart {
    /// Lets `write` write an answer to the end of `out`, by the rules of
    /// [`Backend::answer_now`](super::Backend::answer_now). `None` when it gives false: then `out` is as before.
    ///
    /// # Errors
    /// It wrote an answer that cannot be sent. Then too `out` is as before.
    pub fn write(
        out: &mut Vec<u8>,
        head_only: bool,
        write: impl FnOnce(&mut Answer<'_>) -> bool,
    ) -> Result<Option<Apart>, Refusal> {
        let start = out.len();
        let mut answer = Answer::apart(out, head_only);
        if write(&mut answer) {
            answer.finish_apart().map(Some)
        } else {
            out.truncate(start);
            Ok(None)
        }
    }
}

/// Field lines of somebody else's writing that were found fit to be sent as they are.
#[derive(Clone, Copy, Debug)]
pub struct FieldLines<'a>(pub(super) &'a [u8]);

impl<'a> FieldLines<'a> {
    /// `lines` as they are, if each is `name: value` and CRLF, without a byte that a field cannot have, and none frames
    /// the message or concerns one connection only.
    #[must_use]
    pub fn check(lines: &'a [u8]) -> Option<Self> {
        let mut rest = lines;
        while let Some(end) = memchr(b'\n', rest) {
            let line = rest[..end].strip_suffix(b"\r")?;
            // The first byte that no name has must be the colon.
            let colon = line.iter().position(|byte| !is_token(*byte))?;
            let name = &line[..colon];
            let is_good = colon > 0 && line[colon] == b':' && is_writable_value(&line[colon + 1..]);
            if !is_good || is_framing(name) {
                return None;
            }
            rest = &rest[end + 1..];
        }
        rest.is_empty().then_some(FieldLines(lines))
    }

    /// The lines.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_taken_apart_has_the_parts_of_the_whole() {
        let mut out = b"before".to_vec();
        let apart = Apart::write(&mut out, false, |answer| {
            answer
                .status(200)
                .field("etag", "1")
                .body_with(|out| out.extend_from_slice(b"hello"));
            true
        });
        let fields_bytes = "etag: 1\r\n".len();
        assert_eq!(
            apart,
            Ok(Some(Apart {
                status: 200,
                fields_bytes,
                length: None
            }))
        );
        assert_eq!(out, b"beforeetag: 1\r\nhello");
    }

    #[test]
    fn an_answer_to_head_keeps_its_length_and_no_body() {
        for in_place in [false, true] {
            let mut out = Vec::new();
            let apart = Apart::write(&mut out, true, |answer| {
                answer.status(404).field("a", "b");
                if in_place {
                    answer.body_with(|out| out.extend_from_slice(b"hello"));
                } else {
                    answer.body(b"hello");
                }
                true
            });
            assert_eq!(apart.unwrap().unwrap().length, Some(5));
            assert_eq!(out, b"a: b\r\n");
        }
    }

    #[test]
    fn what_is_declined_or_broken_leaves_nothing() {
        let mut out = b"before".to_vec();
        let declined = Apart::write(&mut out, false, |answer| {
            answer.status(200).field("a", "b");
            false
        });
        assert_eq!(declined, Ok(None));
        let broken = Apart::write(&mut out, false, |answer| {
            answer.status(200).field("connection", "close");
            true
        });
        assert_eq!((broken, out), (Err(Refusal::Internal), b"before".to_vec()));
    }

    #[test]
    fn lines_that_would_change_the_message_are_refused() {
        for good in ["", "a: b\r\n", "a:\r\nb-c: \"d\", e\r\n"] {
            assert!(FieldLines::check(good.as_bytes()).is_some(), "{good:?}");
        }
        for bad in [
            "a: b",
            "a: b\n",
            "a b: c\r\n",
            ": c\r\n",
            "a\r\n",
            "\r\n",
            "a: b\r\n\r\n",
            "a: b\rc\r\n",
            "a: b\0\r\n",
            "Content-Length: 3\r\n",
            "a: b\r\ntransfer-encoding: chunked\r\n",
            "a: b\r\n c: d\r\n",
        ] {
            assert!(FieldLines::check(bad.as_bytes()).is_none(), "{bad:?}");
        }
    }
}
