//! What happens when there is no descriptor left. In a process of its own, whose limit is low.

mod front_site;

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use front_site::{Client, Running, until};
use socket2::{Domain, Socket, Type};

const NOW: &[u8] = b"GET /now HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[test]
fn without_descriptors_new_connections_are_told_and_old_ones_served() {
    if std::env::var_os("FRONT_FEW_DESCRIPTORS").is_some() {
        return with_few_descriptors();
    }
    let status = Command::new("sh")
        .args([
            "-c",
            r#"ulimit -n 200 && exec "$0" --nocapture without_descriptors"#,
        ])
        .arg0("sh")
        .arg(std::env::current_exe().expect("this test's program"))
        .env("FRONT_FEW_DESCRIPTORS", "1")
        .status()
        .expect("a shell");
    assert!(status.success());
}

fn with_few_descriptors() {
    assert_eq!(trove::front::descriptors_max(), 200);
    let server = Running::start();
    let mut old = server.connect();
    old.send(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(old.reply().status, 200);

    let mut stat = File::open("/proc/self/stat").expect("Linux");
    // The clients' own descriptors, while there are some.
    let sockets: Vec<Socket> = (0..20)
        .map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket"))
        .collect();
    let fillers: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!fillers.is_empty());

    let mut clients: Vec<Client> = Vec::new();
    for socket in sockets {
        socket
            .connect(&server.address.into())
            .expect("a connection that the kernel accepts");
        let mut client = Client::new(socket.into());
        client.try_send(NOW);
        clients.push(client);
    }
    until("all are told", || {
        server.counter(|counters| &counters.dropped_connections) == 20
    });
    let answers = clients.iter_mut().map(Client::rest_or_reset);
    let told = answers
        .filter(|answer| answer.starts_with(b"HTTP/1.1 503"))
        .count();
    // One that was closed before its request came has been reset.
    assert!(told > 0, "{told} of 20");

    old.send(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(old.reply().status, 200);

    // With nothing to accept the loop rests.
    let before = cpu_ticks(&mut stat);
    std::thread::sleep(Duration::from_millis(500));
    assert!(cpu_ticks(&mut stat) - before < 25, "the loop spins");

    // The descriptors of those clients must be free too, or the next one has none to connect with.
    drop((fillers, clients));
    let mut client = server.connect();
    client.send(NOW);
    assert_eq!(client.reply().status, 200);
}

/// CPU time of this process, in hundredths of a second.
fn cpu_ticks(stat: &mut File) -> u64 {
    let mut text = String::new();
    stat.rewind().expect("a file that can be read again");
    stat.read_to_string(&mut text).expect("text");
    let after_name = text.rsplit(')').next().expect("fields");
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}
