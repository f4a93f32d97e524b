//! nginx and HAProxy with a directory of their own, and a server behind them that keeps what came, byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A proxy that listens on a socket in its directory; ended when dropped.
pub(crate) struct Proxy {
    child: Child,
    dir: TempDir,
}

impl Proxy {
    /// nginx as Debian ships it, passing everything on to `upstream`. It waits one second for what its client owes.
    pub(crate) fn nginx(upstream: SocketAddr) -> Proxy {
        let dir = tempfile::tempdir().expect("a directory");
        let config = format!(
            "daemon off; master_process off; worker_processes 1; pid pid; error_log stderr crit;
             events {{ worker_connections 256; }}
             http {{
               access_log off;
               client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
               client_header_timeout 1s; client_body_timeout 1s; keepalive_timeout 1s; client_max_body_size 8m;
               server {{
                 listen unix:{socket};
                 location / {{
                   proxy_pass http://{upstream};
                   proxy_http_version 1.1;
                   proxy_set_header Connection \"\";
                 }}
               }}
             }}",
            socket = dir.path().join("socket").display(),
        );
        std::fs::write(dir.path().join("config"), config).expect("its settings");
        let mut command = program("nginx");
        command.arg("-p").arg(dir.path()).args(["-c", "config"]);
        Proxy::start(command, dir)
    }

    /// HAProxy likewise.
    pub(crate) fn haproxy(upstream: SocketAddr) -> Proxy {
        let dir = tempfile::tempdir().expect("a directory");
        let config = format!(
            "global
               maxconn 256
             defaults
               mode http
               timeout connect 5s
               timeout client 1s
               timeout http-request 1s
               timeout server 5s
             frontend front
               bind {socket}
               default_backend back
             backend back
               server one {upstream}\n",
            socket = dir.path().join("socket").display(),
        );
        std::fs::write(dir.path().join("config"), config).expect("its settings");
        let mut command = program("haproxy");
        command
            .args(["-db", "-q", "-f"])
            .arg(dir.path().join("config"));
        Proxy::start(command, dir)
    }

    fn start(mut command: Command, dir: TempDir) -> Proxy {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("nginx and haproxy are installed (./test does)");
        let mut proxy = Proxy { child, dir };
        let start = Instant::now();
        while UnixStream::connect(proxy.socket()).is_err() {
            let ended = proxy.child.try_wait().expect("its state");
            assert!(ended.is_none(), "it ended with {ended:?}");
            assert!(start.elapsed() < PATIENCE, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        proxy
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("socket")
    }

    /// Sends `bytes` and reads until the proxy closes.
    pub(crate) fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        let stream = UnixStream::connect(self.socket()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        exchange(stream, bytes)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that Debian may keep where only root looks.
fn program(name: &str) -> Command {
    let path = Path::new("/usr/sbin").join(name);
    if path.exists() {
        Command::new(path)
    } else {
        Command::new(name)
    }
}

/// Sends `bytes` and reads until the other side closes or resets.
pub(crate) fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(bytes);
    let (mut all, mut room) = (Vec::new(), [0; 65_536]);
    loop {
        match stream.read(&mut room) {
            Ok(0) => return all,
            Ok(read) => all.extend_from_slice(&room[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return all,
            Err(error) => panic!("{error} after {:?}", all.escape_ascii().to_string()),
        }
    }
}

/// A server that takes one request a connection and keeps its bytes.
pub(crate) struct Keeper {
    pub(crate) address: SocketAddr,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
}

impl Keeper {
    pub(crate) fn start() -> Keeper {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let keeper = Keeper {
            address: listener.local_addr().expect("its address"),
            kept: Arc::default(),
            stop: Arc::default(),
        };
        let (kept, stop) = (keeper.kept.clone(), keeper.stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(SeqCst) {
                    return;
                }
                let kept = kept.clone();
                std::thread::spawn(move || keep(stream, &kept));
            }
        });
        keeper
    }

    /// What has come since this was asked last.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.kept.lock().expect("no one panics with it"))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads to the end of a body by whichever framing there is, and answers. The proxy is told that nothing more is taken.
fn keep(mut stream: TcpStream, kept: &Mutex<Vec<Vec<u8>>>) {
    let (mut all, mut room) = (Vec::new(), [0; 65_536]);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    while !is_whole(&all) {
        match stream.read(&mut room) {
            Ok(read @ 1..) => all.extend_from_slice(&room[..read]),
            _ => return,
        }
    }
    let status = if all.starts_with(b"GET /health/ready ") {
        "200 OK"
    } else if contains(&all, b"trove-link") {
        "404 Not Found"
    } else {
        kept.lock().expect("no one panics with it").push(all);
        "200 OK"
    };
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nkept\n");
    let _ = stream.write_all(answer.as_bytes());
}

pub(crate) fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

fn is_whole(all: &[u8]) -> bool {
    let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
    let body = &all[end + 4..];
    let value = |name: &str| {
        let mut lines = head.split("\r\n").skip(1);
        lines.find_map(|line| {
            Some(
                line.split_once(':')
                    .filter(|(have, _)| *have == name)?
                    .1
                    .trim(),
            )
        })
    };
    match (value("transfer-encoding"), value("content-length")) {
        // An empty line that is no chunk's end, perhaps behind trailers.
        (Some(_), _) => {
            let has_last = body.starts_with(b"0\r\n") || contains(body, b"\r\n0\r\n");
            has_last && body.ends_with(b"\r\n\r\n")
        }
        (None, Some(length)) => body.len() >= length.parse().unwrap_or(0),
        (None, None) => true,
    }
}
