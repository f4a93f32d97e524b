//! The chunked transfer coding, read strictly and from any split of the input.

/// What a chunked body broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// A size, extension, line end or trailer that breaks the grammar.
    Malformed,
    /// A size line, all extensions together, or the trailers, above their bound.
    TooLong,
}

/// What [`ChunkDecoder::decode`] found in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStep {
    /// `skip` bytes of framing, then `len` bytes of the body. Both are consumed.
    Data {
        /// Bytes before the data.
        skip: usize,
        /// Bytes of data.
        len: usize,
    },
    /// All of the input was framing; more is needed.
    More,
    /// The body ended after `consumed` bytes; what follows belongs to the next request.
    End {
        /// Bytes of the input that belong to the body's end.
        consumed: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    SizeStart,
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty line that ends it all.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

/// Decodes one chunked body; holds no data, 32 bytes of state.
///
/// Stricter than RFC 9112 in what only attackers use: no white space between a size and its CRLF, at most 15 hex digits,
/// extensions and trailers bounded and thrown away, no bare CR or LF, no control bytes.
#[derive(Clone, Debug)]
pub struct ChunkDecoder {
    state: State,
    /// Bytes of the current chunk still to come.
    left: u64,
    /// Bytes of the current size line.
    line: u32,
    /// Bytes of extensions so far, of all chunks.
    extensions: u32,
    /// Bytes of trailers so far.
    trailers: u32,
    line_max: u32,
    overhead_max: u32,
}

impl ChunkDecoder {
    /// `line_max`: bytes of one size line. `overhead_max`: bytes of all extensions, and of all trailers.
    #[must_use]
    pub fn new(line_max: u32, overhead_max: u32) -> Self {
        ChunkDecoder {
            state: State::SizeStart,
            left: 0,
            line: 0,
            extensions: 0,
            trailers: 0,
            line_max,
            overhead_max,
        }
    }

    /// Whether the last chunk and its trailers have been read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::End
    }

    /// Takes the next piece of the input; to be called again with what was not consumed.
    ///
    /// # Errors
    /// The body cannot be trusted any further, nor can what follows it.
    pub fn decode(&mut self, input: &[u8]) -> Result<ChunkStep, ChunkError> {
        let mut at = 0;
        while at < input.len() {
            if self.state == State::Data {
                // A chunk's size is bounded by the input here, so the cast back cannot cut it.
                let len = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(input.len() - at);
                self.left -= len as u64;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                return Ok(ChunkStep::Data { skip: at, len });
            }
            if self.state == State::End {
                return Ok(ChunkStep::End { consumed: at });
            }
            self.framing(input[at])?;
            at += 1;
        }
        if self.state == State::End {
            return Ok(ChunkStep::End { consumed: at });
        }
        Ok(ChunkStep::More)
    }

    fn framing(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.state = match (self.state, byte) {
            (State::SizeStart, _) => {
                self.left = hex(byte).ok_or(ChunkError::Malformed)?;
                self.line = 1;
                State::Size
            }
            (State::Size, b'\r') => State::SizeLf,
            (State::Size, b';') => self.extension()?,
            (State::Size, _) => {
                let digit = hex(byte).ok_or(ChunkError::Malformed)?;
                self.line += 1;
                if self.line > 15 {
                    return Err(ChunkError::TooLong);
                }
                self.left = self.left << 4 | digit;
                State::Size
            }
            (State::Extension, b'\r') => State::SizeLf,
            (State::Extension, b'\t' | b' '..=b'~') => self.extension()?,
            (State::SizeLf, b'\n') if self.left == 0 => State::TrailerStart,
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::SizeStart,
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::TrailerStart | State::TrailerName, _) if is_token(byte) => {
                self.trailer(State::TrailerName)?
            }
            (State::TrailerName, b':') => self.trailer(State::TrailerValue)?,
            (State::TrailerValue, b'\r') => self.trailer(State::TrailerLf)?,
            (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => {
                self.trailer(State::TrailerValue)?
            }
            (State::TrailerLf, b'\n') => self.trailer(State::TrailerStart)?,
            (State::EndLf, b'\n') => State::End,
            _ => return Err(ChunkError::Malformed),
        };
        Ok(())
    }

    fn extension(&mut self) -> Result<State, ChunkError> {
        self.line += 1;
        self.extensions += 1;
        if self.line > self.line_max || self.extensions > self.overhead_max {
            return Err(ChunkError::TooLong);
        }
        Ok(State::Extension)
    }

    fn trailer(&mut self, next: State) -> Result<State, ChunkError> {
        self.trailers += 1;
        if self.trailers > self.overhead_max {
            return Err(ChunkError::TooLong);
        }
        Ok(next)
    }
}

fn hex(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

/// Whether a byte may stand in a method or a field's name (RFC 9110, `tchar`).
pub(super) fn is_token(byte: u8) -> bool {
    static TOKEN: [bool; 256] = {
        let mut table = [false; 256];
        let allowed =
            b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut i = 0;
        while i < allowed.len() {
            table[allowed[i] as usize] = true;
            i += 1;
        }
        table
    };
    TOKEN[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder() -> ChunkDecoder {
        ChunkDecoder::new(256, 4096)
    }

    /// Feeds `pieces`; returns the body and what is left over once it has ended, or None if it has not.
    fn run(pieces: &[&[u8]]) -> Result<(Vec<u8>, Option<Vec<u8>>), ChunkError> {
        let (mut decoder, mut body, mut after) = (decoder(), Vec::new(), None::<Vec<u8>>);
        for piece in pieces {
            let mut rest = *piece;
            loop {
                if let Some(after) = &mut after {
                    after.extend_from_slice(rest);
                    break;
                }
                match decoder.decode(rest)? {
                    ChunkStep::Data { skip, len } => {
                        body.extend_from_slice(&rest[skip..skip + len]);
                        rest = &rest[skip + len..];
                    }
                    ChunkStep::More => break,
                    ChunkStep::End { consumed } => {
                        rest = &rest[consumed..];
                        after = Some(Vec::new());
                    }
                }
            }
        }
        Ok((body, after))
    }

    #[test]
    fn every_split_of_a_body_decodes_alike() {
        let wire = b"5\r\nhello\r\n00A;ext=\"v a l\";y\r\n, treasure\r\n0\r\nTrailer: x\r\nB:\r\n\r\nGET /";
        for cut in 0..wire.len() {
            let (a, b) = wire.split_at(cut);
            let (body, after) = run(&[a, b]).unwrap();
            assert_eq!(body, b"hello, treasure");
            assert_eq!(after.as_deref(), Some(&b"GET /"[..]), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = wire.chunks(1).collect();
        assert_eq!(
            run(&bytes).unwrap(),
            (b"hello, treasure".to_vec(), Some(b"GET /".to_vec()))
        );
    }

    #[test]
    fn what_breaks_the_grammar_is_refused() {
        for wire in [
            &b"\r\n"[..],
            b" 5\r\nhello",
            b"5 \r\nhello",
            b"+5\r\nhello",
            b"-5\r\nhello",
            b"0x5\r\nhello",
            b"g\r\n",
            b";x\r\n",
            b"5\nhello",
            b"5\rhello",
            b"5\r\nhelloX",
            b"5\r\nhello\n",
            b"5\r\nhello\rX",
            b"5;a\nb\r\nhello",
            b"5;a\x00\r\nhello",
            b"5;a\rb\r\nhello",
            b"0\r\n\n",
            b"0\r\n\rX",
            b"0\r\n x: y\r\n\r\n",
            b"0\r\nx : y\r\n\r\n",
            b"0\r\nx\r\n\r\n",
            b"0\r\n: y\r\n\r\n",
            b"0\r\nx: y\n\r\n",
            b"0\r\nx: \x00\r\n\r\n",
            b"0\r\nx: y\r\n z\r\n\r\n",
            b"\xef\xbc\x95\r\nhello",
        ] {
            assert_eq!(
                run(&[wire]),
                Err(ChunkError::Malformed),
                "{:?}",
                wire.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn sizes_extensions_and_trailers_are_bounded() {
        let endless = [b"0".repeat(16), b"FFFFFFFFFFFFFFFFF".to_vec()];
        for digits in endless {
            assert_eq!(run(&[&digits]), Err(ChunkError::TooLong));
        }
        let line = [b"5;".to_vec(), b"x".repeat(255)].concat();
        assert_eq!(run(&[&line]), Err(ChunkError::TooLong));
        let many = b"1;0123456789\r\nx\r\n".repeat(400);
        assert_eq!(run(&[&many]), Err(ChunkError::TooLong));
        let trailers = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(700)].concat();
        assert_eq!(run(&[&trailers]), Err(ChunkError::TooLong));
    }

    #[test]
    fn the_largest_size_does_not_overflow() {
        let mut decoder = decoder();
        let step = decoder.decode(b"FFFFFFFFFFFFFFF\r\nab").unwrap();
        assert_eq!(step, ChunkStep::Data { skip: 17, len: 2 });
    }
}
