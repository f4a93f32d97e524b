//! What the tests of the command line share: the built binary, directories that go away, servers that say what they are
//! told to say.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // Each test binary uses its part.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// What a run of the binary came to.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Holds the run to a status and an error of one line that contains `part`.
    #[track_caller]
    pub fn fails(&self, status: i32, part: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let lines: Vec<&str> = self.err.lines().collect();
        assert_eq!(lines.len(), 1, "{self:?}");
        assert!(lines[0].starts_with("trove: "), "{self:?}");
        assert!(lines[0].contains(part), "{part:?} is not in {self:?}");
    }

    #[track_caller]
    pub fn succeeds(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        assert_eq!(self.err, "", "{self:?}");
        self.out
    }
}

/// The binary in an environment without settings, in a directory of its own.
pub struct Trove {
    pub dir: Dir,
    env: Vec<(String, String)>,
}

impl Trove {
    pub fn new() -> Self {
        Self {
            dir: Dir::new(),
            env: Vec::new(),
        }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trove"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TROVE_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        Ran {
            status: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A directory that is removed with its content.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("trove-cli-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A request as the server saw it.
#[derive(Debug)]
pub struct Seen {
    pub line: String,
    pub authorization: Option<String>,
    pub body: String,
}

/// Answers one request with a status line and a body, and tells what was asked.
fn answer(stream: impl Read + Write, answer: &str) -> Seen {
    let mut stream = BufReader::new(stream);
    let mut seen = Seen {
        line: String::new(),
        authorization: None,
        body: String::new(),
    };
    stream.read_line(&mut seen.line).unwrap();
    seen.line = seen.line.trim_end().to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => seen.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    seen.body = String::from_utf8(body).unwrap();
    let (status, body) = answer.split_once('\n').unwrap();
    write!(
        stream.get_mut(),
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    seen
}

/// A server that gives one answer, `STATUS\nBODY`; its address, and what it was asked.
pub fn tcp_server(text: &'static str) -> (String, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, seen) = channel();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let _ = sender.send(answer(stream, text));
    });
    (url, seen)
}

/// The same on the socket in a store's directory, however long its path is.
pub fn socket_server(dir: &Path, text: &'static str) -> Receiver<Seen> {
    let opened = File::open(dir).unwrap();
    let path = format!("/proc/self/fd/{}/trove.sock", opened.as_raw_fd());
    let listener = UnixListener::bind(path).unwrap();
    let (sender, seen) = channel();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let _ = sender.send(answer(stream, text));
    });
    seen
}
