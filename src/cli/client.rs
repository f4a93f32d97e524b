//! A small HTTP/1.1 client: one request a connection, to a server over TCP or to the socket in a store's directory.

use super::failure::{Exit, Failure};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The server's socket in the store's directory.
pub(super) const SOCKET: &str = "trove.sock";
/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a server may take to begin its answer. Reinstating and auditing much takes long.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// The largest answer that is kept in memory.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The most findings of an answer that are repeated.
const FINDINGS_MAX: usize = 3;

enum Address {
    Tcp(String, u16),
    /// A directory with a socket in it.
    Unix(PathBuf),
}

/// Somebody to ask.
pub(super) struct Client {
    address: Address,
    host: String,
    /// What precedes every path, where the server stands behind a proxy.
    prefix: String,
    /// What to call the server in messages.
    name: String,
    bearer: Option<String>,
}

impl Client {
    /// A client of a server at `http://HOST[:PORT][/PREFIX]`.
    pub(super) fn tcp(url: &str, bearer: Option<String>) -> Result<Self, Failure> {
        let wrong = |what| Failure::new(Exit::Usage, format_args!("--server {url}: {what}"));
        let uri: http::Uri = url.parse().map_err(|_| wrong("must be http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong(
                    "this version speaks http only; name the server's own address",
                ));
            }
            _ => return Err(wrong("must be http://HOST:PORT")),
        }
        let authority = uri
            .authority()
            .filter(|authority| !authority.as_str().contains('@'));
        let authority =
            authority.ok_or_else(|| wrong("must be http://HOST:PORT, without a user"))?;
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        Ok(Self {
            address: Address::Tcp(host.to_owned(), uri.port_u16().unwrap_or(80)),
            host: authority.to_string(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            name: url.to_owned(),
            bearer,
        })
    }

    /// A client of the server that has the store in this directory.
    pub(super) fn unix(dir: &Path) -> Self {
        Self {
            address: Address::Unix(dir.to_owned()),
            host: "trove".into(),
            prefix: String::new(),
            name: format!("the server that uses {}", dir.display()),
            bearer: None,
        }
    }

    /// What to call the server in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn unreachable(&self, why: impl Display) -> Failure {
        let hint = match self.address {
            Address::Tcp(..) => "start it, or name another with --server",
            Address::Unix(_) => "it may be starting or stopping; try again",
        };
        Failure::new(
            Exit::Unreachable,
            format_args!("cannot reach {}: {why}; {hint}", self.name),
        )
    }

    /// The whole answer to a request, if it is one of success.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Bytes, Failure> {
        self.whole(self.send(method, path, body).await?).await
    }

    /// The beginning of the answer to a request, if it is one of success.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::HOST, &self.host)
            .header(
                header::ACCEPT,
                "application/json, application/problem+json, */*",
            );
        if let Some(bearer) = &self.bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {bearer}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let request = request
            .body(body)
            .map_err(|error| Failure::new(Exit::Usage, error))?;
        let response = match &self.address {
            Address::Tcp(host, port) => {
                let stream = self
                    .within(TcpStream::connect((host.as_str(), *port)))
                    .await?;
                self.exchange(stream, request).await?
            }
            Address::Unix(dir) => {
                let stream = self.within(connect_in(dir)).await?;
                self.exchange(stream, request).await?
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = self.whole(response).await?;
        Err(self.refusal(status, &body))
    }

    async fn within<S>(&self, connect: impl Future<Output = io::Result<S>>) -> Result<S, Failure> {
        match tokio::time::timeout(CONNECT_MAX, connect).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.unreachable(error)),
            Err(_) => Err(self.unreachable("it does not answer")),
        }
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Failure>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error))?;
        tokio::spawn(connection);
        let answer = tokio::time::timeout(ANSWER_MAX, sender.send_request(request));
        match answer.await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(error)),
            Err(_) => Err(self.unreachable("it does not answer")),
        }
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Bytes, Failure> {
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        match body.collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => Err(self.unreachable(error)),
        }
    }

    /// What an answer that is not one of success comes to (RFC 9457).
    fn refusal(&self, status: StatusCode, body: &[u8]) -> Failure {
        let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
        let exit = match status.as_u16() {
            401 | 403 => Exit::Usage,
            429 => Exit::Unreachable,
            400..=499 => Exit::No,
            _ => Exit::Unreachable,
        };
        let mut what = problem.detail.or(problem.title).unwrap_or_else(|| {
            let reason = status.canonical_reason().unwrap_or("something unknown");
            format!("{} {reason}", status.as_u16())
        });
        if let Some(pointer) = problem.pointer.filter(|pointer| !pointer.is_empty()) {
            what = format!("{pointer}: {what}");
        }
        if problem.errors.len() > 1 {
            let shown = problem.errors.iter().take(FINDINGS_MAX);
            let shown: Vec<String> = shown
                .map(|finding| format!("{}: {}", finding.pointer, finding.detail))
                .collect();
            what = shown.join(", ");
            if problem.errors.len() > FINDINGS_MAX {
                what.push_str(&format!(
                    ", and {} more",
                    problem.errors.len() - FINDINGS_MAX
                ));
            }
        }
        if let Some(code) = problem.code {
            what.push_str(&format!(" ({code})"));
        }
        if exit == Exit::Usage {
            what.push_str("; set TROVE_ADMIN_KEY, or name the server's store with --store");
        }
        Failure::new(exit, format_args!("{} refused: {what}", self.name))
    }
}

/// A problem document; whatever else answers leaves it empty.
#[derive(Default, Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    code: Option<String>,
    pointer: Option<String>,
    #[serde(default)]
    errors: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    pointer: String,
    detail: String,
}

/// Connects to the socket in a directory. Its path goes through the opened directory: a socket's path is at most 107 bytes
/// long, and a directory's may be longer.
async fn connect_in(dir: &Path) -> io::Result<UnixStream> {
    let dir = File::open(dir)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd());
    UnixStream::connect(path).await
}

/// Runs a command's requests.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| Failure::new(Exit::Unreachable, error))?
        .block_on(work)
}
