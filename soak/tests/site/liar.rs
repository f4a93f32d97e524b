//! A broken build: a `trove` that hides the real server behind a proxy of the test's, which does to requests and answers what
//! a fault in the product would. The harness starts it as it starts any `trove`.

use super::{trove, until};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A request or an answer: its first line, its fields, its body.
pub struct Message {
    pub first: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Message {
    fn read(from: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        let mut next = |line: &mut String| {
            line.clear();
            let length = from.read_line(line).ok()?;
            *line = line.trim_end().to_owned();
            (length > 0).then_some(())
        };
        next(&mut line)?;
        let first = line.clone();
        let mut fields = Vec::new();
        loop {
            next(&mut line)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            fields.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut message = Self {
            first,
            fields,
            body: Vec::new(),
        };
        let length = message
            .field("content-length")
            .and_then(|length| length.parse().ok());
        message.body = vec![0; length.unwrap_or(0)];
        from.read_exact(&mut message.body).ok()?;
        Some(message)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.fields.retain(|(key, _)| key != name);
        self.fields.push((name.to_owned(), value.to_owned()));
    }

    fn write(&self, to: &mut TcpStream) -> Option<()> {
        let mut bytes = format!("{}\r\n", self.first).into_bytes();
        for (name, value) in &self.fields {
            if name != "content-length" {
                bytes.extend(format!("{name}: {value}\r\n").bytes());
            }
        }
        let has_body = !self.first.contains(" 204 ") && !self.first.contains(" 304 ");
        if has_body
            && (!self.body.is_empty()
                || self.first.starts_with("HTTP")
                || self.first.starts_with("POST"))
        {
            bytes.extend(format!("content-length: {}\r\n", self.body.len()).bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        to.write_all(&bytes).ok()
    }

    /// Whether it is a poll of a player's, as a request.
    pub fn is_poll(&self) -> bool {
        self.first.starts_with("GET /treasure/") && !self.first.contains("/history")
    }

    /// Whether it reports a find, as a request.
    pub fn is_find(&self) -> bool {
        self.first.starts_with("POST /treasure/")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What a broken build does.
pub trait Mischief: Send + Sync + 'static {
    /// To a request, before the server sees it. An answer: the server never does.
    fn request(&self, _request: &mut Message) -> Option<Message> {
        None
    }
    /// To an answer.
    fn answer(&self, _request: &Message, _answer: &mut Message) {}
    /// When the server is there.
    fn begins(&self, _server: SocketAddr) {}
}

/// The program to name as `system.trove`. Its first `serve` has the mischief in front.
pub fn broken_trove(dir: &Path, mischief: impl Mischief) -> PathBuf {
    let hidden = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    };
    let (program, wanted) = (dir.join("trove"), dir.join("listen"));
    // It says where it was told to listen, and listens elsewhere.
    let script = format!(
        "#!/bin/bash\nargs=()\nserve=$1\nwhile [ $# -gt 0 ]; do\n\
         if [ \"$serve\" = serve ] && [ \"$1\" = --listen ]; then\n\
         echo \"$2\" > {wanted}.new; mv {wanted}.new {wanted}; args+=(--listen {hidden}); shift 2\n\
         else args+=(\"$1\"); shift; fi\ndone\nexec {} \"${{args[@]}}\"\n",
        trove().display(),
        wanted = wanted.display(),
    );
    std::fs::write(&program, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    std::thread::spawn(move || {
        let mut listen = String::new();
        until("it is told where to listen", || {
            listen = std::fs::read_to_string(&wanted).unwrap_or_default();
            !listen.is_empty()
        });
        until("the hidden server", || TcpStream::connect(hidden).is_ok());
        let listener = TcpListener::bind(listen.trim()).unwrap();
        mischief.begins(hidden);
        let mischief = Arc::new(mischief);
        for near in listener.incoming().map_while(Result::ok) {
            let mischief = mischief.clone();
            std::thread::spawn(move || lie(near, hidden, &*mischief));
        }
    });
    program
}

fn lie(near: TcpStream, server: SocketAddr, mischief: &dyn Mischief) -> Option<()> {
    let far = TcpStream::connect(server).ok()?;
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (mut answers, mut requests) = (near.try_clone().ok()?, far.try_clone().ok()?);
    let (mut near, mut far) = (BufReader::new(near), BufReader::new(far));
    loop {
        let mut request = Message::read(&mut near)?;
        let answer = match mischief.request(&mut request) {
            Some(forged) => forged,
            None => {
                request.write(&mut requests)?;
                let mut answer = Message::read(&mut far)?;
                mischief.answer(&request, &mut answer);
                answer
            }
        };
        answer.write(&mut answers)?;
    }
}
