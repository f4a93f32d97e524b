//! What is still to come of a request's body, on the wire.

use bytes::{Bytes, BytesMut};

use super::chunk::{ChunkDecoder, ChunkError, ChunkStep};
use super::refusal::Refusal;

/// The rest of a body.
#[derive(Debug)]
pub(super) enum Intake {
    Done,
    Length(u64),
    Chunked(ChunkDecoder),
}

impl Intake {
    /// Takes what `input` has of the body, up to its end. Returns the bytes consumed, and the data in them, if any.
    /// `left`: bytes that a chunked body may still have.
    ///
    /// # Errors
    /// The coding is malformed, or has more data than is left.
    pub(super) fn take(
        &mut self,
        input: &[u8],
        left: u64,
    ) -> Result<(usize, Option<Bytes>), Refusal> {
        let (consumed, piece, done) = match self {
            Intake::Done => (0, None, true),
            Intake::Length(left) => {
                let len = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= len as u64;
                (len, Some(Bytes::copy_from_slice(&input[..len])), *left == 0)
            }
            Intake::Chunked(decoder) => decode_chunks(decoder, input, left)?,
        };
        if done {
            *self = Intake::Done;
        }
        Ok((consumed, piece))
    }
}

/// Consumes chunks up to the end of the input or of the body. Returns the bytes consumed, the data, and whether the body
/// has ended.
fn decode_chunks(
    decoder: &mut ChunkDecoder,
    input: &[u8],
    left: u64,
) -> Result<(usize, Option<Bytes>, bool), Refusal> {
    let mut data = BytesMut::new();
    let mut at = 0;
    loop {
        match decoder.decode(&input[at..]) {
            Ok(ChunkStep::Data { skip, len }) => {
                if (data.len() + len) as u64 > left {
                    return Err(Refusal::BodyTooLarge);
                }
                if data.is_empty() {
                    data.reserve(input.len() - at - skip);
                }
                data.extend_from_slice(&input[at + skip..at + skip + len]);
                at += skip + len;
            }
            Ok(ChunkStep::More) => return Ok((input.len(), some(data), false)),
            Ok(ChunkStep::End { consumed }) => return Ok((at + consumed, some(data), true)),
            Err(ChunkError::Malformed | ChunkError::TooLong) => return Err(Refusal::BadChunk),
        }
    }
}

fn some(data: BytesMut) -> Option<Bytes> {
    (!data.is_empty()).then(|| data.freeze())
}
