//! What a head's fields say about its body and its connection, where only one reading is allowed.

use super::refusal::Refusal;

/// How the end of a request's body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    Empty,
    /// `Content-Length`, above 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// What the fields said about framing and the connection.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) hosts: u8,
    length: Option<u64>,
    coding: Option<Coding>,
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    /// `Connection` names `upgrade`.
    pub(super) upgrade: bool,
    /// A field is there that no one behind this server shall see.
    pub(super) fields_of_connection: bool,
    pub(super) expects_continue: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    Misused,
    Unknown,
}

impl Seen {
    pub(super) fn content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        // `str::parse` would take a sign. Twice the same is refused as well: no honest client sends it.
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value)
            .ok()
            .filter(|_| digits)
            .and_then(|text| text.parse().ok());
        match (number, self.length) {
            (Some(number), None) => self.length = Some(number),
            _ => return Err(Refusal::BadContentLength),
        }
        Ok(())
    }

    pub(super) fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.coding.is_some() {
            return Err(Refusal::BadTransferEncoding);
        }
        let names_chunked = value
            .windows(7)
            .any(|window| window.eq_ignore_ascii_case(b"chunked"));
        self.fields_of_connection = true;
        self.coding = Some(if value.eq_ignore_ascii_case(b"chunked") {
            Coding::Chunked
        } else if names_chunked || value.is_empty() {
            Coding::Misused
        } else {
            Coding::Unknown
        });
        Ok(())
    }

    pub(super) fn framing(&self, minor: u8) -> Result<Framing, Refusal> {
        match (self.coding, self.length) {
            (Some(_), Some(_)) => Err(Refusal::LengthAndCoding),
            (Some(_), None) if minor == 0 => Err(Refusal::BadTransferEncoding),
            (Some(Coding::Chunked), None) => Ok(Framing::Chunked),
            (Some(Coding::Misused), None) => Err(Refusal::BadTransferEncoding),
            (Some(Coding::Unknown), None) => Err(Refusal::UnknownTransferCoding),
            (None, None | Some(0)) => Ok(Framing::Empty),
            (None, Some(length)) => Ok(Framing::Length(length)),
        }
    }

    pub(super) fn connection(&mut self, value: &[u8]) -> Result<(), Refusal> {
        self.fields_of_connection = true;
        for option in connection_options(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if PROTECTED
                .iter()
                .any(|name| option.eq_ignore_ascii_case(name.as_bytes()))
            {
                return Err(Refusal::BadConnection);
            }
        }
        Ok(())
    }

    pub(super) fn expect(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(Refusal::UnknownExpectation);
        }
        self.expects_continue = true;
        Ok(())
    }
}

/// Fields that `Connection` may not have dropped: a client that asks for it wants this server and the next to see
/// different requests.
const PROTECTED: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "authorization",
    "cookie",
    "content-type",
    "forwarded",
    "x-forwarded-for",
];

/// The comma-separated options of a `Connection` field.
pub fn connection_options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty())
}
