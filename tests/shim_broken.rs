//! Instances that break off over plain HTTP: what is sent again, and that nobody gets another's answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod shim_site;

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use shim_site::{PATIENCE, Seen, Server, Shim, answer, group, until};

/// A server that closes after so many bytes of its answer, on every first request of a target.
fn breaking() -> Server {
    let seen_before: Mutex<HashSet<String>> = Mutex::default();
    Server::start(move |seen, stream| {
        let full = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789";
        let bytes = seen.target.strip_prefix("/break/").and_then(|rest| {
            let (bytes, _) = rest.split_once('/')?;
            bytes.parse::<usize>().ok()
        });
        let bytes = bytes.unwrap_or(full.len()).min(full.len());
        if bytes < full.len() && seen_before.lock().unwrap().insert(seen.target.clone()) {
            let _ = stream.write_all(&full[..bytes]);
            return false;
        }
        stream.write_all(full).is_ok()
    })
}

#[test]
fn a_request_is_sent_again_only_where_that_is_safe() {
    let server = breaking();
    let shim = Shim::start(&[server.group("blue")]);
    let key = "idempotency-key: k\r\n";
    let body = "content-length: 2\r\n\r\nhi";
    let chunks = "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let large = format!("content-length: 100000\r\n\r\n{}", "x".repeat(100_000));
    for (n, (method, fields, bytes, status, times)) in [
        // Not a byte of the answer came.
        ("GET", "\r\n".to_owned(), 0, 200, 2),
        ("HEAD", "\r\n".to_owned(), 0, 200, 2),
        ("GET", body.to_owned(), 0, 200, 2),
        ("POST", format!("{key}{body}"), 0, 200, 2),
        ("PUT", format!("{key}{chunks}"), 0, 200, 2),
        ("POST", format!("{key}{large}"), 0, 502, 1),
        ("POST", body.to_owned(), 0, 502, 1),
        ("POST", chunks.to_owned(), 0, 502, 1),
        ("PUT", body.to_owned(), 0, 502, 1),
        ("DELETE", "\r\n".to_owned(), 0, 502, 1),
        ("POST", "\r\n".to_owned(), 0, 502, 1),
        // Some did.
        ("GET", "\r\n".to_owned(), 1, 502, 1),
        ("GET", "\r\n".to_owned(), 20, 502, 1),
        ("POST", format!("{key}{body}"), 8, 502, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("/break/{bytes}/{n}");
        let mut client = shim.connect();
        client.send(format!("{method} {target} HTTP/1.1\r\nhost: x\r\n{fields}").as_bytes());
        let reply = client.reply_to(method);
        let came = server.seen.lock().unwrap();
        let came: Vec<&Seen> = came.iter().filter(|seen| seen.target == target).collect();
        assert_eq!(
            (reply.status, came.len()),
            (status, times),
            "{method} {fields:.60} {bytes}"
        );
        assert!(came.windows(2).all(|two| two[0].body == two[1].body));
    }
}

#[test]
fn an_answer_that_breaks_off_is_cut_and_its_connection_is_not_used_again() {
    let server = breaking();
    let shim = Shim::start(&[server.group("blue")]);
    for n in 0..10 {
        let mut client = shim.connect();
        client.send(format!("GET /break/44/{n} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        let text = String::from_utf8(client.rest_or_reset()).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(!text.contains("0123456789"));
        let reply = shim.ask("GET /whole HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(reply.text(), "0123456789");
    }
    until("they are counted", || {
        shim.metric("trove_shim_cut_answers_total") > 9.5
    });
}

#[test]
fn an_idle_connection_closed_at_the_moment_of_reuse_does_not_surface() {
    // Each connection answers once, and closes when the next request comes, without a byte.
    let server = Server::start(|seen, stream| {
        seen.nth == 0 && answer(stream, 200, &[], seen.target.as_bytes())
    });
    let shim = Shim::start(&[server.group("blue")]);
    let mut client = shim.connect();
    for n in 0..200 {
        let (method, body) = if n % 4 == 3 {
            ("POST", "hi")
        } else {
            ("GET", "")
        };
        let length = body.len();
        let request =
            format!("{method} /{n} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
        client.send(request.as_bytes());
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, &*format!("/{n}")));
    }
    let seen = server.seen.lock().unwrap();
    let posts = seen.iter().filter(|seen| seen.method == "POST");
    assert_eq!(posts.count(), 50, "a write without a key is sent once");
}

/// Whose answer it is, among thousands of players over few connections and a server that does everything wrong.
#[test]
fn no_player_ever_gets_another_s_answer_from_a_server_that_misbehaves() {
    let seed: u64 =
        std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let odd = |seed: u64| {
        let random = Mutex::new(SmallRng::seed_from_u64(seed));
        Server::start(move |seen, stream| {
            let owner = seen.field("authorization").unwrap_or("nobody").to_owned();
            let body = format!("{owner} ").repeat(1 + owner.len() % 5);
            let (what, cut) = {
                let mut random = random.lock().unwrap();
                (
                    random.random_range(0..24),
                    random.random_range(0..body.len()),
                )
            };
            let head = |more: &str| format!("HTTP/1.1 200 OK\r\n{more}\r\n");
            let whole = format!(
                "{}{body}",
                head(&format!("content-length: {}\r\n", body.len()))
            );
            match what {
                // Nothing, and the end.
                0 => return false,
                // A part of it.
                1 => {
                    let _ = stream.write_all(&whole.as_bytes()[..whole.len() - cut - 1]);
                    return false;
                }
                // All, and the end without a word of it.
                2 => {
                    let _ = stream.write_all(whole.as_bytes());
                    return false;
                }
                3 => {
                    let close = format!("content-length: {}\r\nconnection: close\r\n", body.len());
                    let _ = stream.write_all(format!("{}{body}", head(&close)).as_bytes());
                    return false;
                }
                // A second answer that nobody asked for.
                4 => {
                    let _ = stream.write_all(format!("{whole}{whole}").as_bytes());
                }
                // In two pieces.
                5..8 => {
                    let (first, second) = whole.split_at(whole.len() - cut);
                    let _ = stream.write_all(first.as_bytes());
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    let _ = stream.write_all(second.as_bytes());
                }
                8 => {
                    let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
                    let _ = stream.write_all(
                        format!("{}{chunks}", head("transfer-encoding: chunked\r\n")).as_bytes(),
                    );
                }
                // A broken chunk.
                9 => {
                    let chunks = format!("{:x}\r\n{body}XX0\r\n\r\n", body.len());
                    let _ = stream.write_all(
                        format!("{}{chunks}", head("transfer-encoding: chunked\r\n")).as_bytes(),
                    );
                }
                _ => {
                    let _ = stream.write_all(whole.as_bytes());
                }
            }
            true
        })
    };
    let servers = [odd(seed), odd(seed ^ 1)];
    let settings = [
        ("SHIM_HEALTH__EJECT_MS", "100"),
        ("SHIM_UPSTREAM__REQUESTS_MAX", "8"),
    ];
    let shim = Shim::with(&[group("blue", &[&servers[0], &servers[1]])], &settings);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..24u64 {
            let (shim, answered) = (&shim, &answered);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed ^ (thread << 8));
                let connect = || {
                    let stream = TcpStream::connect(shim.public).unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    BufReader::new(stream)
                };
                let mut client = connect();
                for n in 0..250 {
                    let player = format!("Bearer {}.{thread}.{n}", random.random::<u32>());
                    let request = format!(
                        "GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: {player}\r\n\r\n"
                    );
                    let _ = client.get_mut().write_all(request.as_bytes());
                    let Some((status, body)) = whole_answer(&mut client) else {
                        client = connect();
                        continue;
                    };
                    if status == 200 {
                        answered.fetch_add(1, SeqCst);
                        let mut parts = body.split_terminator(' ');
                        while let Some(bearer) = parts.next() {
                            let token = parts.next().unwrap_or_default();
                            assert_eq!(format!("{bearer} {token}"), player, "SEED={seed}");
                        }
                    } else {
                        assert!(matches!(status, 502 | 503), "{status}: {body}");
                    }
                }
            });
        }
    });
    assert!(answered.load(SeqCst) > 3_000, "{answered:?} of 6000");
}

/// One answer, or nothing if the connection ended in it.
fn whole_answer(reader: &mut BufReader<TcpStream>) -> Option<(u16, String)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let status = line.get(9..12)?.parse().ok()?;
    let (mut length, mut is_chunked) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("transfer-encoding", _)) => is_chunked = true,
            Some(_) => {}
            None if line == "\r\n" => break,
            None => return None,
        }
    }
    let mut body = Vec::new();
    while is_chunked {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..size]);
        is_chunked = size > 0;
    }
    if length > 0 {
        body.resize(length, 0);
        reader.read_exact(&mut body).ok()?;
    }
    Some((status, String::from_utf8(body).ok()?))
}
