//! The table of malformed and smuggling requests, sent byte for byte also to nginx and HAProxy in front of the same server:
//! every difference between them and the shim is written down with its reason, and none is unexplained.

#[path = "proxies/differences.rs"]
mod differences;
mod front_table;
mod proxies;
mod shim_site;

use std::collections::BTreeMap;
use std::net::TcpStream;

use differences::Fate::*;
use differences::{Difference, Fate, HAPROXY, NGINX};
use front_table::{ODD, REFUSED};
use proxies::{Keeper, Proxy, contains, exchange};
use shim_site::{PATIENCE, Shim};

/// What follows on the same connection, and ends it.
const BEHIND: &[u8] = b"GET /behind HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// Sends bytes to a proxy and reads until it closes.
type Ask<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

#[test]
fn every_difference_to_nginx_and_haproxy_is_explained() {
    let keeper = Keeper::start();
    let shim = Shim::start(&[format!("blue={}", keeper.address)]);
    let nginx = Proxy::nginx(keeper.address);
    let haproxy = Proxy::haproxy(keeper.address);
    let ask_shim = |bytes: &[u8]| {
        let stream = TcpStream::connect(shim.public).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        exchange(stream, bytes)
    };
    let peers: [(&str, Ask<'_>, &[Difference]); 3] = [
        ("shim", &ask_shim, &[]),
        ("nginx", &|bytes| nginx.ask(bytes), NGINX),
        ("haproxy", &|bytes| haproxy.ask(bytes), HAPROXY),
    ];
    let mut failures = Vec::new();
    for (peer, ask, differences) in peers {
        let mut explained = BTreeMap::new();
        for Difference { fate, why, rows } in differences {
            assert!(!why.is_empty());
            for row in *rows {
                let twice = explained.insert(*row, *fate);
                assert_eq!(twice, None, "{row} is explained twice");
            }
        }
        for (name, request, expected) in rows() {
            let fate = fate(&keeper, ask, &request);
            let explained = explained.remove(&*name);
            if fate == expected {
                if explained.is_some() {
                    println!("{peer}: {name:?} is no difference in this version, or this time");
                }
                continue;
            }
            let expected = explained.unwrap_or(expected);
            if fate != expected {
                failures.push(format!("{peer}: {name:?} is {fate:?}, not {expected:?}"));
            }
        }
        let unknown: Vec<_> = explained.into_keys().collect();
        assert!(unknown.is_empty(), "{peer}: no such rows: {unknown:?}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// All of the table, and what is over-long: name, bytes, and what the shim does.
fn rows() -> Vec<(String, Vec<u8>, Fate)> {
    let refused = REFUSED.iter().map(|row| {
        (
            row.name.to_owned(),
            row.request.to_vec(),
            Refused(row.status),
        )
    });
    let odd = ODD.iter().map(|(name, request)| {
        // HTTP/1.0 ends with its answer unless it is asked to go on.
        let fate = if name.starts_with("HTTP/1.0") {
            PassedAlone
        } else {
            Passed
        };
        ((*name).to_owned(), request.to_vec(), fate)
    });
    let get = |target: &str, fields: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").into_bytes()
    };
    let long = [
        ("longest target", get(&format!("/{}", "a".repeat(8191)), ""), Passed),
        ("target too long", get(&format!("/{}", "a".repeat(8192)), ""), Refused(414)),
        ("most fields", get("/now", &"A: b\r\n".repeat(99)), Passed),
        ("too many fields", get("/now", &"A: b\r\n".repeat(100)), Refused(431)),
        ("field too long", get("/now", &format!("A: {}\r\n", "a".repeat(16_400))), Refused(431)),
        ("name too long", get("/now", &format!("{}: b\r\n", "a".repeat(16_400))), Refused(431)),
        (
            "too many extensions",
            [
                &b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;"[..],
                &[b'a'; 300],
                b"\r\nx\r\n0\r\n\r\n",
            ]
            .concat(),
            Refused(400),
        ),
        (
            "trailers too long",
            [
                &b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: "[..],
                &[b'a'; 5000],
                b"\r\n\r\n",
            ]
            .concat(),
            Refused(400),
        ),
    ]
    .map(|(name, request, fate)| (name.to_owned(), request, fate));
    refused.chain(odd).chain(long).collect()
}

/// Sends a request with another behind it and sees what comes of both.
///
/// Whatever the proxy makes of them, a server gets as many requests as the client gets answers from it: anything else
/// would be an answer that goes to somebody else's question.
fn fate(keeper: &Keeper, ask: Ask<'_>, request: &[u8]) -> Fate {
    keeper.take();
    let answers = ask(&[request, BEHIND].concat());
    let shown = answers.escape_ascii().to_string();
    let kept = keeper.take();
    let theirs = shown.matches("kept\\n").count();
    assert!(
        theirs <= kept.len(),
        "{} requests, {theirs} answers: {shown}",
        kept.len()
    );
    let is_behind = |bytes: &Vec<u8>| bytes.starts_with(b"GET /behind ");
    let followed = kept.iter().any(is_behind);
    let swallowed = kept
        .iter()
        .any(|bytes| !is_behind(bytes) && contains(bytes, b"/behind"));
    let passed = kept.iter().any(|bytes| !is_behind(bytes));
    match (passed, followed) {
        _ if swallowed => Swallowed,
        (true, true) => Passed,
        (true, false) => PassedAlone,
        (false, _) if answers.is_empty() => Dropped,
        (false, _) => match shown.get(9..12).and_then(|status| status.parse().ok()) {
            Some(status) if followed => Answered(status),
            Some(status) => Refused(status),
            None => Otherwise,
        },
    }
}
