//! A front over byte streams that are no sockets: whatever pieces they take and give, the same bytes come out.

mod front_site;

use std::sync::Arc;

use front_site::{Gate, Running, large, site};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use trove::front::{Connection, Front, Limits};

/// Every kind of request once, the last of which closes.
fn conversation() -> Vec<u8> {
    let mut bytes = b"GET /now?a HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    bytes.extend(b"HEAD /call/bob HTTP/1.1\r\nHost: x\r\n\r\n");
    bytes.extend(b"GET /call/bob HTTP/1.1\r\nHost: x\r\n\r\n");
    bytes.extend(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n");
    bytes.extend(large(3000));
    bytes.extend(b"POST /elsewhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n");
    bytes.extend(b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    bytes.extend(b"GET /stream/5 HTTP/1.1\r\nHost: x\r\n\r\n");
    bytes.extend(b"GET /large-chunks/2 HTTP/1.1\r\nHost: x\r\n\r\n");
    bytes.extend(b"GET /large/40000 HTTP/1.1\r\nHost: x\r\n\r\n");
    bytes.extend(b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    bytes
}

/// What a front answers to it over a stream that holds `buffer` bytes in each direction, without its dates.
fn answered(buffer: usize) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let backend = Arc::new(site(Arc::new(Gate::default())));
        let limits = Limits {
            connections_max: 1,
            ..Limits::default()
        };
        let front = Front::new(backend, limits).expect("limits that hold together");
        let (near, far) = tokio::io::duplex(buffer);
        let peer = ([127, 0, 0, 1], 1).into();
        let connection = Connection::admit(&front, far, peer).expect("room");
        let served = tokio::spawn(connection);
        let (mut reader, mut writer) = tokio::io::split(near);
        let sender = tokio::spawn(async move {
            writer
                .write_all(&conversation())
                .await
                .expect("all is read");
            writer
        });
        let mut answers = Vec::new();
        reader
            .read_to_end(&mut answers)
            .await
            .expect("an orderly end");
        drop((reader, sender.await.expect("the sender")));
        served.await.expect("a connection that ends well");
        assert_eq!(front.connections(), 0);
        without_dates(&answers)
    })
}

fn without_dates(answers: &[u8]) -> Vec<u8> {
    let lines = answers.split_inclusive(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.starts_with(b"date: "))
        .collect::<Vec<_>>()
        .concat()
}

#[test]
fn the_answers_do_not_depend_on_the_stream() {
    // How an echo is cut into chunks follows the pieces it came in; the rest may not differ. Its length is known here,
    // so that even the echo is the same.
    let expected = answered(1 << 20);
    assert!(expected.ends_with(b"content-length: 9\r\n\r\nnow GET -"));
    for buffer in [1, 2, 3, 7, 64, 1000, 5000, 70_000] {
        assert!(answered(buffer) == expected, "with {buffer} bytes");
    }
    let server = Running::start();
    let mut client = server.connect();
    client.send(&conversation());
    assert!(without_dates(&client.rest()) == expected, "over a socket");
}
