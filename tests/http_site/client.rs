//! A client on a plain socket: what it sends and what comes back is in plain sight, and nothing is retried.

use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {self:?} {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Holds the answer to a status and gives its JSON.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        if self.body.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }

    /// Holds the answer to being a problem with this status and code, and gives it.
    #[track_caller]
    pub fn is_problem(&self, status: u16, code: &str) -> Value {
        let text = self.text();
        assert_eq!(self.status, status, "{text}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["code"], code, "{text}");
        assert_eq!(problem["status"], status, "{text}");
        assert_eq!(problem["type"], "about:blank", "{text}");
        assert!(problem["title"].is_string(), "{text}");
        problem
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: String,
    pub path: String,
    pub fields: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

impl Ask {
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            fields: Vec::new(),
            body: None,
        }
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", path).body(body)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    pub fn bearer(self, token: &str) -> Self {
        self.with("Authorization", &format!("Bearer {token}"))
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: trove\r\n", self.method, self.path);
        for (name, value) in &self.fields {
            bytes += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            bytes += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut bytes = (bytes + "\r\n").into_bytes();
        bytes.extend(self.body.iter().flatten());
        bytes
    }
}

/// One keep-alive connection, made again when it was closed.
#[derive(Debug)]
pub struct Client {
    pub address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

/// Longer than anything takes that is not stuck.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    /// A client on a connection that is there.
    pub fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            address: stream.peer_addr().unwrap(),
            stream: Some(BufReader::new(stream)),
        }
    }

    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            stream: None,
        }
    }

    /// Sends a request and reads its answer.
    #[track_caller]
    pub fn send(&mut self, ask: Ask) -> Answer {
        self.try_send(&ask)
            .unwrap_or_else(|error| panic!("{} {}: {error}", ask.method, ask.path))
    }

    pub fn try_send(&mut self, ask: &Ask) -> io::Result<Answer> {
        // A server that refuses a body stops reading it: its answer is there all the same.
        let started = self.start(ask);
        let sent = match (self.finish(ask.method == "HEAD"), started) {
            (Err(_), Err(error)) => Err(error),
            (finished, _) => finished,
        };
        if sent.is_err() {
            self.stream = None;
        }
        sent
    }

    /// Sends a request without waiting for its answer.
    pub fn start(&mut self, ask: &Ask) -> io::Result<()> {
        self.connection()?.get_mut().write_all(&ask.bytes())
    }

    /// Sends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection()?.get_mut().write_all(bytes)
    }

    /// Resets the connection, whatever is under way, as when a phone has gone.
    pub fn cut(&mut self) {
        if let Some(stream) = self.stream.take() {
            let socket = socket2::SockRef::from(stream.get_ref());
            socket.set_linger(Some(Duration::ZERO)).expect("a socket");
        }
    }

    fn connection(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            self.stream = Some(BufReader::new(stream));
        }
        Ok(self.stream.as_mut().expect("connected above"))
    }

    /// Reads one answer.
    pub fn finish(&mut self, head_only: bool) -> io::Result<Answer> {
        let stream = self.connection()?;
        let mut answer = read_head(stream)?;
        while answer.status == 100 {
            answer = read_head(stream)?;
        }
        let bodyless = head_only || matches!(answer.status, 204 | 304);
        let length = answer
            .field("content-length")
            .map(|n| n.parse::<usize>().expect("a length is a number"));
        if bodyless {
        } else if let Some(length) = length {
            answer.body = vec![0; length];
            stream.read_exact(&mut answer.body)?;
        } else if answer.field("transfer-encoding") == Some("chunked") {
            answer.body = read_chunks(stream)?;
        } else {
            stream.read_to_end(&mut answer.body)?;
        }
        if answer.field("connection") == Some("close") {
            self.stream = None;
        }
        Ok(answer)
    }
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 || !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn read_head(stream: &mut impl BufRead) -> io::Result<Answer> {
    let status = line(stream)?;
    let status = status
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    let mut fields = Vec::new();
    loop {
        let line = line(stream)?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Answer {
        status,
        fields,
        body: Vec::new(),
    })
}

fn read_chunks(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(&line(stream)?, 16)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let before = body.len();
        body.resize(before + size, 0);
        stream.read_exact(&mut body[before..])?;
        line(stream)?;
        if size == 0 {
            return Ok(body);
        }
    }
}
