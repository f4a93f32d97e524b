//! Public answers that the shim keeps.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use shim_site::{Server, Shim, answer, until};

#[test]
fn public_answers_are_given_from_memory_while_they_are_fresh() {
    let server = Server::start(|seen, stream| {
        let cache = match seen.target.as_str() {
            "/public" => "public, max-age=60",
            "/brief" => "public, max-age=1",
            _ => "no-store",
        };
        let body = format!("{} {:?}", seen.target, seen.field("accept-encoding"));
        let fields = [
            ("cache-control", cache),
            ("etag", "W/\"7\""),
            ("vary", "accept-encoding"),
            ("x-instance-id", "i-7"),
        ];
        answer(stream, 200, &fields, body.as_bytes())
    });
    let shim = Shim::start(&[server.group("blue")]);
    let get = |target: &str, fields: &str| {
        shim.ask(format!("GET {target} HTTP/1.1\r\nhost: x\r\n{fields}\r\n"))
    };
    let first = get("/public", "");
    assert_eq!(first.field("x-instance-id"), Some("i-7"));
    for _ in 0..3 {
        let kept = get("/public", "");
        assert_eq!(kept.body, first.body);
        assert_eq!(kept.field("x-instance-id"), Some("the-shim"));
        assert!(kept.field("age").is_some());
    }
    assert_eq!(server.count(), 1);
    assert_eq!(get("/public", "if-none-match: \"7\"\r\n").status, 304);
    assert_eq!(
        get("/public", "accept-encoding: gzip\r\n").text(),
        r#"/public Some("gzip")"#
    );
    assert_eq!(server.count(), 2);
    get("/public", "cache-control: no-cache\r\n");
    assert_eq!(server.count(), 3);
    get("/private", "");
    get("/private", "");
    assert_eq!(server.count(), 5);
    get("/brief", "");
    until("it is asked for again", || {
        get("/brief", "");
        server.count() >= 7
    });
    assert!(shim.metric("trove_shim_cache_hits_total") >= 4.0);
}
