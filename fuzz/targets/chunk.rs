//! Chunked bodies: in whatever pieces the bytes come, the decoder gives what a slower reading of all of them gives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trove_fuzz::front::{ChunkDecoder, ChunkError, ChunkStep};

const LINE_MAX: u32 = 32;
const OVERHEAD_MAX: u32 = 64;

/// The body, and the bytes that it took on the wire: `None` if it has not ended.
type Decoded = Result<(Vec<u8>, Option<usize>), ChunkError>;

fuzz_target!(|input: &[u8]| {
    let Some((&seed, wire)) = input.split_first() else {
        return;
    };
    let whole = decode(&[wire]);
    let mut pieces = Vec::new();
    let (mut rest, mut state) = (wire, u32::from(seed) | 1);
    while !rest.is_empty() {
        state = state.wrapping_mul(0x9e37_79b1).rotate_left(7);
        let (piece, left) = rest.split_at((state as usize % 9).min(rest.len()));
        pieces.push(piece);
        rest = left;
    }
    assert_eq!(decode(&pieces), whole, "cut with {seed}");
    match (&whole, read(wire)) {
        (Ok((body, end)), Some((slow, slow_end))) => {
            assert_eq!((body, end), (&slow, &slow_end));
        }
        (Err(_), None) => {}
        // The bounds are the decoder's alone: nothing well formed is refused but for them.
        (Err(ChunkError::TooLong), Some(_)) => {}
        (quick, slow) => panic!("{quick:?}, slowly {slow:?}"),
    }
});

fn decode(pieces: &[&[u8]]) -> Decoded {
    let mut decoder = ChunkDecoder::new(LINE_MAX, OVERHEAD_MAX);
    let (mut body, mut taken) = (Vec::new(), 0);
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            match decoder.decode(rest)? {
                ChunkStep::Data { skip, len } => {
                    assert!(skip + len > 0 && !decoder.is_done());
                    body.extend_from_slice(&rest[skip..skip + len]);
                    taken += skip + len;
                    rest = &rest[skip + len..];
                }
                ChunkStep::More => {
                    taken += rest.len();
                    rest = &[];
                }
                ChunkStep::End { consumed } => {
                    assert!(decoder.is_done());
                    return Ok((body, Some(taken + consumed)));
                }
            }
        }
    }
    assert!(!decoder.is_done());
    Ok((body, None))
}

/// The same from all bytes at once, without bounds. `None`: malformed. It knows no state but its place.
fn read(wire: &[u8]) -> Option<(Vec<u8>, Option<usize>)> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = line(wire, at) else {
            return broken_off(wire, at, body, is_size);
        };
        let size = size_of(line)?;
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        let data = wire.get(at..).unwrap_or_default();
        if (data.len() as u128) < size {
            body.extend_from_slice(data);
            return Some((body, None));
        }
        let size = usize::try_from(size).ok()?;
        body.extend_from_slice(&data[..size]);
        at += size;
        let end = &wire[at..wire.len().min(at + 2)];
        if !b"\r\n".starts_with(end) {
            return None;
        }
        if end.len() < 2 {
            return Some((body, None));
        }
        at += 2;
    }
    loop {
        let Some(line) = line(wire, at) else {
            return broken_off(wire, at, body, is_trailer);
        };
        at += line.len() + 2;
        if line.is_empty() {
            return Some((body, Some(at)));
        }
        if !is_trailer(line, true) {
            return None;
        }
    }
}

/// A line that ends in CRLF, without it.
fn line(wire: &[u8], at: usize) -> Option<&[u8]> {
    let rest = &wire[at..];
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&rest[..end])
}

/// What the input ends with has no end of a line: is it the start of one?
fn broken_off(
    wire: &[u8],
    at: usize,
    body: Vec<u8>,
    is_line: fn(&[u8], bool) -> bool,
) -> Option<(Vec<u8>, Option<usize>)> {
    let rest = &wire[at..];
    let (line, ends) = match rest.strip_suffix(b"\r") {
        Some(line) => (line, true),
        None => (rest, false),
    };
    let starts = rest.is_empty() || is_line(line, ends);
    starts.then_some((body, None))
}

fn is_size(line: &[u8], whole: bool) -> bool {
    size_of(line).is_some() || (!whole && line.is_empty())
}

/// The size that a line begins with. At most as many digits as the decoder takes are of interest; more are its bound's.
fn size_of(line: &[u8]) -> Option<u128> {
    let mut parts = line.splitn(2, |byte| *byte == b';');
    let digits = parts.next()?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let extension = parts.next().unwrap_or_default();
    if !extension
        .iter()
        .all(|byte| *byte == b'\t' || (b' '..=b'~').contains(byte))
    {
        return None;
    }
    let size = digits.iter().fold(0u128, |size, digit| {
        let digit = char::from(*digit).to_digit(16).unwrap_or(0);
        size.saturating_mul(16).saturating_add(digit.into())
    });
    Some(size)
}

fn is_trailer(line: &[u8], whole: bool) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let colon = line.iter().position(|byte| *byte == b':');
    let name = &line[..colon.unwrap_or(line.len())];
    let value = colon.map_or(&[][..], |at| &line[at + 1..]);
    let has_name = !name.is_empty() || (line.is_empty() && whole);
    let ends = colon.is_some() || !whole || line.is_empty();
    let is_value = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    has_name && ends && name.iter().all(is_token) && value.iter().all(is_value)
}
