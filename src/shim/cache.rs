//! Public answers that are kept for as long as they say (RFC 9111): the catalogue, the board, the statistics.
//!
//! Only what a server calls `public` with a `max-age` is kept, only if it was asked for with GET, answered 200 in whole
//! and sets no cookie. A player's answers are `no-store` and never come here.

use super::instance::lock;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, request, response};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest that an answer is kept, whatever it says.
const AGE_MAX: Duration = Duration::from_secs(3_600);
/// What an entry costs beside its key, fields and body.
const ENTRY_BYTES: usize = 512;
/// The longest target that is a key.
const TARGET_BYTES_MAX: usize = 1_024;

/// What an answer was asked for with, as far as it may depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    host: Option<HeaderValue>,
    target: String,
    encoding: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Key {
    /// The key of a request whose answer may be a kept one, or be kept; `None` for all others.
    pub(super) fn of(parts: &request::Parts) -> Option<Self> {
        let fields = &parts.headers;
        let is_plain = matches!(parts.method, Method::GET | Method::HEAD)
            && ![
                header::RANGE,
                header::CACHE_CONTROL,
                header::PRAGMA,
                header::CONTENT_LENGTH,
            ]
            .iter()
            .any(|name| fields.contains_key(name));
        let target = parts.uri.path_and_query()?.as_str();
        if !is_plain || target.len() > TARGET_BYTES_MAX {
            return None;
        }
        let one = |name: HeaderName| {
            let mut values = fields.get_all(name).iter();
            let first = values.next().cloned();
            values.next().is_none().then_some(first)
        };
        Some(Self {
            host: one(header::HOST)?,
            target: target.to_owned(),
            encoding: one(header::ACCEPT_ENCODING)?,
            origin: one(header::ORIGIN)?,
        })
    }
}

/// An answer that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    fields: HeaderMap,
    body: Bytes,
    since: Instant,
    until: Instant,
    bytes: usize,
}

impl Kept {
    /// The answer to a request: 304 if the client has it already.
    pub(super) fn answer(&self, asked: &HeaderMap, now: Instant) -> http::Response<Bytes> {
        let mut response = http::Response::new(Bytes::new());
        let tag = self.fields.get(header::ETAG).map(HeaderValue::as_bytes);
        let has_it = tag.is_some_and(|tag| names(asked, tag));
        *response.headers_mut() = self.fields.clone();
        let age = now.duration_since(self.since).as_secs();
        response.headers_mut().insert(header::AGE, age.into());
        if has_it {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            *response.body_mut() = self.body.clone();
        }
        response
    }
}

/// Whether `If-None-Match` names a tag; compared weakly, as RFC 9110 wants it here.
fn names(asked: &HeaderMap, tag: &[u8]) -> bool {
    let strong = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_owned();
    let tag = strong(tag);
    asked
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .any(|named| named == b"*" || strong(named) == tag)
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Key, Arc<Kept>>,
    bytes: usize,
}

/// The answers that are kept, within a bound.
#[derive(Clone)]
pub(super) struct Cache {
    entries: Arc<Mutex<Entries>>,
    bytes_max: usize,
    answer_bytes_max: usize,
}

impl Cache {
    /// Keeps `bytes_max` in all, and no body above `answer_bytes_max`.
    pub(super) fn new(bytes_max: usize, answer_bytes_max: usize) -> Self {
        Self {
            entries: Arc::default(),
            bytes_max,
            answer_bytes_max,
        }
    }

    /// The answer for a key, while it is fresh.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<Arc<Kept>> {
        let kept = lock(&self.entries).by_key.get(key).cloned()?;
        (now < kept.until).then_some(kept)
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.entries).bytes
    }

    /// Forgets everything, as when other servers take over.
    pub(super) fn clear(&self) {
        *lock(&self.entries) = Entries::default();
    }

    /// Begins to keep an answer, if it is one to keep. `age` of an answer that an upstream cache kept counts.
    pub(super) fn begin(
        &self,
        key: Key,
        method: &Method,
        head: &response::Parts,
    ) -> Option<Keeping> {
        if self.bytes_max == 0 || method != Method::GET || head.status != StatusCode::OK {
            return None;
        }
        let fields = &head.headers;
        let varies = fields.get_all(header::VARY).iter().all(|value| {
            value.as_bytes().split(|byte| *byte == b',').all(|name| {
                let name = name.trim_ascii();
                [&b"accept-encoding"[..], b"origin"]
                    .iter()
                    .any(|known| name.eq_ignore_ascii_case(known))
            })
        });
        if !varies || fields.contains_key(header::SET_COOKIE) {
            return None;
        }
        let age = fields
            .get(header::AGE)
            .and_then(|age| age.to_str().ok()?.parse().ok())
            .map_or(Duration::ZERO, Duration::from_secs);
        let fresh = max_age(fields)?.min(AGE_MAX).checked_sub(age)?;
        if fresh.is_zero() {
            return None;
        }
        let mut fields = fields.clone();
        for dropped in [
            "server-timing",
            "x-instance-id",
            "connection",
            "transfer-encoding",
            "content-length",
        ] {
            fields.remove(dropped);
        }
        let now = Instant::now();
        Some(Keeping {
            cache: self.clone(),
            key,
            fields,
            since: now,
            until: now + fresh,
            pieces: Vec::new(),
            bytes: 0,
        })
    }

    fn insert(&self, key: Key, kept: Kept) {
        let mut entries = lock(&self.entries);
        if let Some(old) = entries.by_key.remove(&key) {
            entries.bytes -= old.bytes;
        }
        if entries.bytes + kept.bytes > self.bytes_max {
            let now = Instant::now();
            let Entries { by_key, bytes } = &mut *entries;
            by_key.retain(|_, old| {
                let stays = now < old.until;
                *bytes -= if stays { 0 } else { old.bytes };
                stays
            });
        }
        // What is still too much makes room in no order: the next request brings it back.
        while entries.bytes + kept.bytes > self.bytes_max {
            let Some(key) = entries.by_key.keys().next().cloned() else {
                return;
            };
            if let Some(old) = entries.by_key.remove(&key) {
                entries.bytes -= old.bytes;
            }
        }
        entries.bytes += kept.bytes;
        entries.by_key.insert(key, Arc::new(kept));
    }
}

/// How long an answer is fresh, if it is public.
fn max_age(fields: &HeaderMap) -> Option<Duration> {
    let mut public = false;
    let mut seconds = None;
    for value in fields.get_all(header::CACHE_CONTROL) {
        for directive in value.to_str().ok()?.split(',').map(str::trim) {
            let (name, argument) = directive.split_once('=').unwrap_or((directive, ""));
            match &*name.to_ascii_lowercase() {
                "public" => public = true,
                "max-age" if seconds.is_none() => seconds = argument.trim_matches('"').parse().ok(),
                // For caches such as this one it stands above max-age.
                "s-maxage" => seconds = argument.trim_matches('"').parse().ok(),
                "no-store" | "no-cache" | "private" => return None,
                _ => {}
            }
        }
    }
    seconds.filter(|_| public).map(Duration::from_secs)
}

/// An answer that is being kept while it passes through.
pub(super) struct Keeping {
    cache: Cache,
    key: Key,
    fields: HeaderMap,
    since: Instant,
    until: Instant,
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl fmt::Debug for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeping").field(&self.key).finish()
    }
}

impl Keeping {
    /// One more piece of the body.
    pub(super) fn add(&mut self, piece: &Bytes) {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes <= self.cache.answer_bytes_max {
            self.pieces.push(piece.clone());
        } else {
            self.pieces = Vec::new();
        }
    }

    /// The body is complete.
    pub(super) fn done(self) {
        if self.bytes > self.cache.answer_bytes_max {
            return;
        }
        let body = Bytes::from(self.pieces.concat());
        let fields: usize = self
            .fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        let kept = Kept {
            bytes: ENTRY_BYTES + self.key.target.len() + fields + body.len(),
            fields: self.fields,
            body,
            since: self.since,
            until: self.until,
        };
        self.cache.insert(self.key, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: &str) -> Key {
        let (parts, ()) = http::Request::get(target).body(()).unwrap().into_parts();
        Key::of(&parts).unwrap()
    }

    fn head(fields: &[(&str, &str)]) -> response::Parts {
        let builder = fields
            .iter()
            .fold(http::Response::builder(), |builder, (name, value)| {
                builder.header(*name, *value)
            });
        builder.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_what_is_public_for_a_while_is_kept() {
        let cache = Cache::new(1 << 20, 1 << 20);
        for (fields, is_kept) in [
            (&[("cache-control", "public, max-age=5")][..], true),
            (&[("cache-control", "max-age=5, Public")], true),
            (
                &[("cache-control", "public"), ("cache-control", "max-age=5")],
                true,
            ),
            (
                &[
                    ("cache-control", "public, max-age=5"),
                    ("vary", "Accept-Encoding, origin"),
                ],
                true,
            ),
            (
                &[("cache-control", "public, max-age=5"), ("vary", "cookie")],
                false,
            ),
            (
                &[("cache-control", "public, max-age=5"), ("vary", "*")],
                false,
            ),
            (
                &[
                    ("cache-control", "public, max-age=5"),
                    ("set-cookie", "a=b"),
                ],
                false,
            ),
            (
                &[("cache-control", "public, max-age=5"), ("age", "5")],
                false,
            ),
            (&[("cache-control", "public, max-age=0")], false),
            (&[("cache-control", "public, max-age=5, s-maxage=0")], false),
            (&[("cache-control", "public, max-age=5, no-store")], false),
            (&[("cache-control", "private, max-age=5")], false),
            (&[("cache-control", "max-age=5")], false),
            (&[("cache-control", "public")], false),
            (&[], false),
        ] {
            let keeping = cache.begin(key("/a"), &Method::GET, &head(fields));
            assert_eq!(keeping.is_some(), is_kept, "{fields:?}");
        }
        let public = head(&[("cache-control", "public, max-age=5")]);
        assert!(cache.begin(key("/a"), &Method::HEAD, &public).is_none());
    }

    #[test]
    fn the_bound_holds_and_a_large_answer_is_not_kept() {
        let cache = Cache::new(10_000, 2_000);
        let keep = |target: &str, bytes: usize| {
            let public = head(&[("cache-control", "public, max-age=5"), ("etag", "W/\"1\"")]);
            let mut keeping = cache.begin(key(target), &Method::GET, &public).unwrap();
            keeping.add(&Bytes::from(vec![b'x'; bytes]));
            keeping.done();
        };
        for n in 0..50 {
            keep(&format!("/{n}"), 1_500);
            assert!(cache.bytes() <= 10_000);
            assert!(cache.get(&key(&format!("/{n}")), Instant::now()).is_some());
        }
        keep("/large", 2_001);
        assert!(cache.get(&key("/large"), Instant::now()).is_none());
        let kept = cache.get(&key("/49"), Instant::now()).unwrap();
        let mut asked = HeaderMap::new();
        assert_eq!(kept.answer(&asked, Instant::now()).body().len(), 1_500);
        asked.insert("if-none-match", HeaderValue::from_static("\"0\", \"1\""));
        assert_eq!(kept.answer(&asked, Instant::now()).status(), 304);
        cache.clear();
        assert_eq!(cache.bytes(), 0);
    }
}
