//! Reading bodies: bounded, parsed by simd-json in place, large ones off the event loop.

use super::problem::Problem;
use axum::body::Body;
use http_body::Body as _;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};

/// Reads a body of at most `bytes_max` bytes.
///
/// # Errors
/// 413 past the limit, 400 when the body breaks off.
pub async fn read(mut body: Body, bytes_max: usize) -> Result<Vec<u8>, Problem> {
    // Piece by piece into memory that is reserved but not touched: gathered first and joined at the end, 8 MiB would hold
    // the event loop for milliseconds.
    let announced = body.size_hint().exact().unwrap_or(0);
    let reserved = usize::try_from(announced).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(reserved.min(bytes_max));
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Problem::new(400, "body_incomplete", "the body broke off"))?;
        let Some(piece) = frame.data_ref() else {
            continue;
        };
        if bytes.len() + piece.len() > bytes_max {
            return Err(Problem::new(
                413,
                "body_too_large",
                format!("the body is longer than the {bytes_max} bytes that are taken here"),
            ));
        }
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// Parses JSON, using `bytes` as scratch space.
///
/// # Errors
/// 422 that names the place by a JSON pointer.
pub fn parse<T: DeserializeOwned>(bytes: &mut [u8]) -> Result<T, Problem> {
    let syntax = |error: simd_json::Error| {
        Problem::malformed(
            "",
            format!("the body is not valid JSON: {}", reason(&error)),
        )
    };
    let mut deserializer = simd_json::Deserializer::from_slice(bytes).map_err(syntax)?;
    serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| Problem::malformed(pointer(error.path()), reason(error.inner())))
}

/// What simd-json's words come to, without its positions in a buffer that nobody sees: `ExpectedString at character 7`
/// becomes `expected string`.
fn reason(error: &simd_json::Error) -> String {
    let text = error.to_string();
    let words = text
        .split_once(" at character ")
        .map_or(text.as_str(), |(words, _)| words);
    if !words.bytes().all(|b| b.is_ascii_alphabetic()) {
        // A message of serde's own, which names fields.
        return words.to_owned();
    }
    let mut plain = String::with_capacity(words.len() + 4);
    for letter in words.chars() {
        if letter.is_ascii_uppercase() && !plain.is_empty() {
            plain.push(' ');
        }
        plain.push(letter.to_ascii_lowercase());
    }
    plain
}

/// Reads and parses a body: on the loop up to `inline_bytes_max` bytes, on a thread of its own beyond.
///
/// # Errors
/// As [`read`] and [`parse`].
pub async fn take<T: DeserializeOwned + Send + 'static>(
    body: Body,
    bytes_max: usize,
    inline_bytes_max: usize,
) -> Result<T, Problem> {
    let mut bytes = read(body, bytes_max).await?;
    if bytes.len() <= inline_bytes_max {
        return parse(&mut bytes);
    }
    off_loop(move || parse(&mut bytes)).await?
}

/// Runs what would hold the event loop on another thread.
///
/// # Errors
/// 500 when it panics.
pub async fn off_loop<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Problem::new(500, "internal_error", "the request could not be worked on"))
}

/// A JSON pointer (RFC 6901).
fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => {
                pointer.push('/');
                pointer.push_str(itoa::Buffer::new().format(*index));
            }
            Segment::Map { key } => {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::game::document::HuntDocument;

    fn wrong(json: &str) -> (Option<String>, String) {
        let problem = parse::<HuntDocument>(&mut json.as_bytes().to_vec()).unwrap_err();
        (problem.pointer, problem.detail)
    }

    #[test]
    fn an_error_in_a_document_is_named_by_its_pointer() {
        let (pointer, _) = wrong(
            r#"{"id":"h","name":"H","treasures":[{"id":"t","coins":1},{"id":"u","coins":-1}]}"#,
        );
        assert_eq!(pointer.as_deref(), Some("/treasures/1/coins"));
        let (pointer, detail) =
            wrong(r#"{"id":"h","name":"H","treasures":[{"id":"t","coins":1,"coin/s":1}]}"#);
        assert_eq!(pointer.as_deref(), Some("/treasures/0/coin~1s"));
        assert!(detail.contains("unknown field"), "{detail}");
        let (pointer, detail) = wrong(r#"{"id":"h","treasures":[]}"#);
        assert_eq!(pointer.as_deref(), Some(""));
        assert!(detail.contains("missing field `name`"), "{detail}");
        let (pointer, detail) = wrong(r#"{"id":"h","name":7,"treasures":[]}"#);
        assert_eq!(
            (pointer.as_deref(), detail.as_str()),
            (Some("/name"), "expected string")
        );
    }

    #[test]
    fn broken_json_is_refused() {
        for json in [
            "",
            "{",
            "[1,]",
            "{} {}",
            "nul",
            "{\"id\":\"\u{0}\"}",
            "\u{feff}{}",
        ] {
            assert_eq!(wrong(json).0.as_deref(), Some(""), "{json:?}");
        }
    }

    #[test]
    fn deep_nesting_does_not_exhaust_the_stack() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        wrong(&deep);
        wrong(&format!("{{\"id\":{deep}}}"));
    }
}
