//! A shim in a process of its own, and servers behind it that do what a test says.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of it; a test may fail"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[path = "../front_site/mod.rs"]
#[allow(unused_imports, reason = "its site is another's")]
mod front_site;
pub(crate) mod speaker;

pub(crate) use front_site::{Client, PATIENCE, Reply, until};

pub(crate) const TOKEN_KEY: &str = "a-token-key-of-more-than-32-bytes!";
pub(crate) const ADMIN_KEY: &str = "an-admin-key-of-16-bytes";

/// A process that goes away with its owner.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub(crate) fn terminate(&self) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(status.expect("kill").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The binary without settings of the environment, with the tests' keys.
pub(crate) fn trove(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trove"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TROVE_") {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .env("TROVE_TOKEN_KEY", TOKEN_KEY)
        .env("TROVE_ADMIN_KEY", ADMIN_KEY)
        .env("TROVE_LOG__FORMAT", "json")
        .stdin(Stdio::null());
    command
}

/// Starts a process that says where it listens: public and operations.
pub(crate) fn start(mut command: Command) -> (Process, SocketAddr, SocketAddr) {
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary");
    let log = BufReader::new(child.stderr.take().expect("its log"));
    let process = Process(child);
    let (sender, receiver) = std::sync::mpsc::channel();
    // The log is read to its end, so that the process never waits for its reader.
    std::thread::spawn(move || {
        let show = std::env::var_os("SHOW_LOG").is_some();
        for line in log.lines().map_while(Result::ok) {
            if show {
                eprintln!("{line}");
            }
            if line.contains(r#""message":"ready""#) {
                let address = |name: &str| -> SocketAddr {
                    let key = format!(r#""{name}":""#);
                    let from = line.find(&key).expect("an address") + key.len();
                    let text = line[from..].split('"').next().expect("its end");
                    text.parse().expect("an address")
                };
                let _ = sender.send((address("public"), address("ops")));
            }
        }
    });
    let (public, ops) = receiver
        .recv_timeout(Duration::from_secs(60))
        .expect("a process that is ready");
    (process, public, ops)
}

/// Signs a token for each player.
pub(crate) fn tokens(players: &[String]) -> Vec<String> {
    let args: Vec<&str> = std::iter::once("token")
        .chain(players.iter().map(String::as_str))
        .collect();
    let output = trove(&args).output().expect("the binary");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// A running shim.
pub(crate) struct Shim {
    pub(crate) process: Process,
    pub(crate) public: SocketAddr,
    pub(crate) ops: SocketAddr,
}

impl Shim {
    /// In front of groups, `NAME=address,address`.
    pub(crate) fn start(groups: &[String]) -> Shim {
        Shim::with(groups, &[])
    }

    /// With settings, `("SHIM__QUEUE_MS", "5")`.
    pub(crate) fn with(groups: &[String], settings: &[(&str, &str)]) -> Shim {
        let mut args = vec![
            "shim",
            "--listen",
            "127.0.0.1:0",
            "--ops-listen",
            "127.0.0.1:0",
        ];
        args.extend(["--instance-id", "the-shim"]);
        for group in groups {
            args.extend(["--upstream", group]);
        }
        let mut command = trove(&args);
        // Tests need not wait for what is meant for people.
        command
            .env("TROVE_SHIM_HEALTH__INTERVAL_MS", "100")
            .env("TROVE_SHIM_HEALTH__TIMEOUT_MS", "100")
            .env("TROVE_LOG__LEVEL", "debug");
        for (name, value) in settings {
            command.env(format!("TROVE_{name}"), value);
        }
        let (process, public, ops) = start(command);
        Shim {
            process,
            public,
            ops,
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.public).expect("a connection"))
    }

    /// Sends `bytes` on a new connection and reads one answer.
    pub(crate) fn ask(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut client = self.connect();
        client.send(bytes.as_ref());
        client.reply()
    }

    /// Asks the operations listener.
    pub(crate) fn ask_ops(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut client = Client::new(TcpStream::connect(self.ops).expect("a connection"));
        client.send(bytes.as_ref());
        client.reply()
    }

    /// The value of a series, `name{labels}`.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let reply = self.ask_ops("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        let value = reply
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("{series} in {}", reply.text()));
        value.parse().expect("a number")
    }

    /// What is said of an instance.
    pub(crate) fn instance(&self, address: SocketAddr) -> serde_json::Value {
        let reply = self.ask_ops("GET /shim/upstreams HTTP/1.1\r\nhost: x\r\n\r\n");
        let all: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
        let groups = all["upstreams"].as_array().expect("groups");
        let mut instances = groups
            .iter()
            .flat_map(|group| group["instances"].as_array().expect("instances"));
        let found = instances.find(|one| one["address"] == address.to_string());
        found.expect("the instance").clone()
    }

    pub(crate) fn until_linked(&self, address: SocketAddr, links: u64) {
        until("it has its links", || {
            self.instance(address)["links"] == links
        });
    }

    pub(crate) fn until_usable(&self, address: SocketAddr, usable: bool) {
        until("the shim notices", || {
            let instance = self.instance(address);
            instance["usable"] == usable && !instance["healthy"].is_null()
        });
    }
}

/// A request as a server behind the shim got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Which of the server's connections it came on, and as the how manieth there.
    pub(crate) connection: usize,
    pub(crate) nth: usize,
    /// Whom a link said that it is from; `None` over plain HTTP.
    pub(crate) linked: Option<SocketAddr>,
}

impl Seen {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice in {:?}", self.fields);
        value
    }
}

/// What a server does with a request: it writes what it wants, and says whether the connection goes on.
pub(crate) type Handler = dyn Fn(&Seen, &mut TcpStream) -> bool + Send + Sync;

/// A server behind the shim.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// All that came, but health checks and requests for a link.
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    /// The status of health checks; 0 closes without an answer.
    pub(crate) health: Arc<AtomicU16>,
    pub(crate) checks: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Server {
    pub(crate) fn start(
        handler: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Server {
        Server::speaking(handler, None)
    }

    /// One that also speaks links.
    pub(crate) fn speaking(
        handler: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
        links: Option<Arc<speaker::Handler>>,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server {
            address: listener.local_addr().expect("its address"),
            seen: Arc::default(),
            health: Arc::new(AtomicU16::new(200)),
            checks: Arc::default(),
            stop: Arc::default(),
            open: Arc::default(),
        };
        let (seen, health, checks) = (
            server.seen.clone(),
            server.health.clone(),
            server.checks.clone(),
        );
        let (stop, open) = (server.stop.clone(), server.open.clone());
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { continue };
                if stop.load(SeqCst) {
                    return;
                }
                let _ = stream.set_nodelay(true);
                open.lock().unwrap().push(stream.try_clone().unwrap());
                let (seen, health, checks) = (seen.clone(), health.clone(), checks.clone());
                let (handler, links) = (handler.clone(), links.clone());
                std::thread::spawn(move || {
                    let links = links.as_deref();
                    serve(
                        stream,
                        connection,
                        &seen,
                        (&health, &checks),
                        (&*handler, links),
                    );
                });
            }
        });
        server
    }

    /// One that echoes method, target and body.
    pub(crate) fn echo() -> Server {
        Server::start(|seen, stream| {
            let body = [
                format!("{} {}\n", seen.method, seen.target).as_bytes(),
                &seen.body,
            ]
            .concat();
            answer(stream, 200, &[], &body)
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().expect("a request").clone()
    }

    /// Takes no more connections and cuts those that there are.
    pub(crate) fn stop(&self) {
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// As a group of its own.
    pub(crate) fn group(&self, name: &str) -> String {
        format!("{name}={}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A group of several servers.
pub(crate) fn group(name: &str, servers: &[&Server]) -> String {
    let addresses: Vec<String> = servers
        .iter()
        .map(|server| server.address.to_string())
        .collect();
    format!("{name}={}", addresses.join(","))
}

/// Writes an answer with its length; always goes on.
pub(crate) fn answer(
    stream: &mut TcpStream,
    status: u16,
    fields: &[(&str, &str)],
    body: &[u8],
) -> bool {
    let mut head = format!(
        "HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let bytes = [head.as_bytes(), body].concat();
    stream.write_all(&bytes).is_ok()
}

fn serve(
    mut stream: TcpStream,
    connection: usize,
    seen: &Mutex<Vec<Seen>>,
    (health, checks): (&AtomicU16, &AtomicUsize),
    (handler, links): (&Handler, Option<&speaker::Handler>),
) {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
    let mut nth = 0;
    while let Some(mut request) = read_request(&mut reader) {
        request.connection = connection;
        request.nth = nth;
        if request.target == "/health/ready" {
            checks.fetch_add(1, SeqCst);
            let status = health.load(SeqCst);
            if status != 0 {
                answer(&mut stream, status, &[], b"");
            }
            break;
        }
        if request.field("upgrade").is_some() {
            if let Some(links) = links {
                return speaker::speak(&mut stream, connection, seen, links);
            }
            answer(&mut stream, 404, &[], b"");
            break;
        }
        nth += 1;
        seen.lock().unwrap().push(request.clone());
        if !handler(&request, &mut stream) {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

/// Reads a request, its body decoded.
fn read_request(reader: &mut impl std::io::BufRead) -> Option<Seen> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        fields.push((name.to_owned(), value.to_owned()));
    }
    let mut seen = Seen {
        method,
        target,
        fields,
        body: Vec::new(),
        connection: 0,
        nth: 0,
        linked: None,
    };
    if let Some(length) = seen.field("content-length") {
        assert_eq!(seen.field("transfer-encoding"), None, "{seen:?}");
        let mut body = vec![0; length.parse().expect("a length")];
        reader.read_exact(&mut body).ok()?;
        seen.body = body;
    } else if seen.field("transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            seen.body.extend_from_slice(&chunk[..size]);
        }
    }
    Some(seen)
}

/// Waits for less than [`PATIENCE`] until there is nothing left to wait for.
pub(crate) fn wait_exit(process: &mut Process) -> i32 {
    let start = Instant::now();
    loop {
        if let Some(status) = process.0.try_wait().expect("the process") {
            return status.code().expect("a status");
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
