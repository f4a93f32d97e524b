//! From a head in the read buffer to an `http::Request`.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Uri, Version};

use super::answer::is_framing;
use super::body::Body;
use super::framing::connection_options;
use super::head::{Head, Sending};
use super::refusal::Refusal;

/// The request as a service gets it: target in origin form, hop-by-hop fields dropped (`content-length` stays: it tells
/// the body's size), [`Origin`](super::Origin) among its extensions. `raw` is the head that `head` was parsed from.
///
/// All values share one copy of the head, so that a request costs one allocation for them instead of one each.
///
/// # Errors
/// What `http` does not take although the head was well formed.
pub(super) fn build(head: &Head<'_>, raw: &[u8], body: Body) -> Result<Request<Body>, Refusal> {
    let block = Bytes::copy_from_slice(raw);
    let share = |part: &[u8]| {
        // Every part is a slice of `raw`; its distance from the start is its place in the copy.
        let from = part.as_ptr() as usize - raw.as_ptr() as usize;
        block.slice(from..from + part.len())
    };
    let mut request = Request::new(body);
    *request.method_mut() =
        Method::from_bytes(head.method().as_bytes()).map_err(|_| Refusal::BadRequestLine)?;
    *request.version_mut() = if head.minor_version() == 0 {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    };
    let target = if head.target().starts_with('/') || head.target() == "*" {
        PathAndQuery::from_maybe_shared(share(head.target().as_bytes()))
    } else {
        match head.query() {
            Some(query) => format!("{}?{query}", head.path()).parse(),
            None => head.path().parse(),
        }
    };
    *request.uri_mut() = Uri::from(target.map_err(|_| Refusal::BadTarget)?);

    let mut fields = HeaderMap::with_capacity(head.fields().count());
    let mut dropped: Vec<&[u8]> = Vec::new();
    for (name, value) in head.fields() {
        if name.eq_ignore_ascii_case("connection") {
            dropped.extend(connection_options(value));
            continue;
        }
        if is_framing(name) && !name.eq_ignore_ascii_case("content-length") {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Refusal::BadField)?;
        let value = if value.is_empty() {
            Bytes::new()
        } else {
            share(value)
        };
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Refusal::BadField)?;
        fields
            .try_append(name, value)
            .map_err(|_| Refusal::TooManyFields)?;
    }
    for name in dropped {
        if let Ok(name) = HeaderName::from_bytes(name) {
            fields.remove(name);
        }
    }
    *request.headers_mut() = fields;
    request.extensions_mut().insert(head.origin());
    if !head.sending().is_zero() {
        request.extensions_mut().insert(Sending(head.sending()));
    }
    Ok(request)
}

/// The request that `head`, parsed from all of `raw`, and a body that is all there make, as
/// [`Backend::call`](super::Backend::call) takes it.
///
/// # Errors
/// What `http` does not take although the head was well formed.
pub fn whole_request(head: &Head<'_>, raw: &[u8], body: Bytes) -> Result<Request<Body>, Refusal> {
    build(head, raw, Body::whole(body))
}

#[cfg(test)]
mod tests {
    use super::super::head::{Origin, field_slots};
    use super::super::limits::Limits;
    use super::*;
    use std::time::Instant;

    fn built(raw: &[u8]) -> Result<Request<Body>, Refusal> {
        let mut slots = field_slots();
        let origin = Origin {
            peer: ([127, 0, 0, 1], 9).into(),
            arrived: Instant::now(),
        };
        let head = Head::parse(raw, &mut slots, &Limits::default(), origin)?.expect("a whole head");
        build(&head, raw, Body::empty())
    }

    #[test]
    fn hop_by_hop_fields_do_not_reach_the_service() {
        let raw = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nConnection: close, X-Own\r\nx-own: 1\r\nUpgrade: h2c\r\n\
            Keep-Alive: 3\r\nTE: trailers\r\nAccept: a\r\nAccept: b\r\nX-Empty:\r\n\r\n";
        let request = built(raw).unwrap();
        let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "host", "x-empty"]);
        assert_eq!(request.headers().get_all("accept").iter().count(), 2);
        assert_eq!(
            (request.uri().path(), request.uri().query()),
            ("/a", Some("b=c"))
        );
        assert_eq!(request.extensions().get::<Origin>().unwrap().peer.port(), 9);
    }

    #[test]
    fn an_absolute_target_becomes_a_local_one() {
        for (target, uri) in [
            ("http://x", "/"),
            ("HTTP://X/a?b", "/a?b"),
            ("https://x?b", "/?b"),
            ("/a?", "/a?"),
        ] {
            let raw = format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n");
            assert_eq!(built(raw.as_bytes()).unwrap().uri(), uri, "{target}");
        }
    }

    #[test]
    fn every_byte_that_a_target_may_have_is_one_that_http_takes() {
        for byte in 0..=255u8 {
            for (before, after) in [("/", "z"), ("/a?", "z")] {
                let raw = [
                    format!("GET {before}").as_bytes(),
                    &[byte],
                    after.as_bytes(),
                    b" HTTP/1.1\r\nhost: x\r\n\r\n",
                ]
                .concat();
                let mut slots = field_slots();
                let origin = Origin {
                    peer: ([127, 0, 0, 1], 9).into(),
                    arrived: Instant::now(),
                };
                if let Ok(Some(head)) = Head::parse(&raw, &mut slots, &Limits::default(), origin) {
                    assert!(
                        build(&head, &raw, Body::empty()).is_ok(),
                        "{before}{}",
                        byte.escape_ascii()
                    );
                }
            }
        }
    }
}
