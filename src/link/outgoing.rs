//! A request on its way into a link.

use std::net::SocketAddr;

use super::client::plain;
use super::frame::{self, RequestFrame, Tag};
use crate::front::{FieldLines, Framing, Head, TraceParent, is_framing};

/// A request as its client sent it, and what goes along.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its head.
    pub head: &'a Head<'a>,
    /// The bytes that the head was parsed from.
    pub raw: &'a [u8],
    /// All of its body.
    pub body: &'a [u8],
    /// Whom it is from.
    pub client: SocketAddr,
    /// Whether they came over TLS.
    pub is_secure: bool,
    /// How long the client may be kept waiting, in milliseconds.
    pub deadline_ms: u32,
    /// A word of the sender's own: [`Delivery::mark`](super::Delivery::mark) and
    /// [`Returned::mark`](super::Returned::mark) say it again.
    pub mark: u32,
    /// Fields to be added.
    pub extra: Option<FieldLines<'a>>,
    /// Whether a field of this name is left out, beside those that concern the connection only. `None`: none is, and
    /// the head can be copied as it is.
    pub leaves_out: Option<fn(&str) -> bool>,
    /// The trace that the server is told of, in the head or in what is added.
    pub trace: Option<TraceParent>,
}

impl Outgoing<'_> {
    /// An upper bound of its bytes.
    pub(super) fn bytes_max(&self) -> usize {
        // A head that is written anew gains a space after each colon.
        let spaces = self.head.fields().count();
        let extra = self.extra.map_or(0, |lines| lines.as_bytes().len());
        self.raw.len() + spaces + extra + self.body.len()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, tag: Tag) {
        let request = RequestFrame {
            tag,
            deadline_ms: self.deadline_ms,
            client: plain(self.client),
            is_secure: self.is_secure,
            head: &[],
            body: self.body,
        };
        frame::push_request(out, &request, |out| self.write_head(out));
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        let as_it_is = !self.head.has_connection_fields() && self.leaves_out.is_none();
        // A chunked body arrives here whole; it has no length yet.
        debug_assert!(self.head.framing() != Framing::Chunked);
        if as_it_is {
            // All but the empty line.
            out.extend_from_slice(self.raw.strip_suffix(b"\r\n").unwrap_or(self.raw));
        } else {
            self.write_fields(out);
        }
        if let Some(lines) = self.extra {
            out.extend_from_slice(lines.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        let head = self.head;
        out.extend_from_slice(head.method().as_bytes());
        out.push(b' ');
        out.extend_from_slice(head.target().as_bytes());
        out.extend_from_slice(if head.minor_version() == 0 {
            b" HTTP/1.0\r\n"
        } else {
            b" HTTP/1.1\r\n"
        });
        for (name, value) in head.fields() {
            let is_length = name.eq_ignore_ascii_case("content-length");
            let left_out = (is_framing(name) && !is_length)
                || head.connection_names(name)
                || self.leaves_out.is_some_and(|leaves_out| leaves_out(name));
            if !left_out {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}
