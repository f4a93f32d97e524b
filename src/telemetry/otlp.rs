//! Sends spans to a collector by OTLP over HTTP (`POST /v1/traces`, protobuf), on a thread of its own. The event loop gives a
//! span to a bounded queue and goes on; what the queue or the collector does not take is dropped and counted.

use super::span::Span;
use crate::config::TraceSettings;
use crate::metrics::labels::Cause;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as OtlpSpan, Status, span::SpanKind, status::StatusCode,
};
use prometheus_client::metrics::counter::Counter;
use prost::Message;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The most spans of one request to the collector.
const BATCH_MAX: usize = 512;
/// The most of a collector's answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// An endpoint: `http://HOST:PORT` and a path before `/v1/traces`, if there is one.
///
/// # Errors
/// What it must be.
pub fn parse_endpoint(text: &str) -> Result<(String, String), String> {
    let form = || "it must be http://HOST:PORT, such as http://127.0.0.1:4318".to_owned();
    let uri: http::Uri = text.parse().map_err(|_| form())?;
    let authority = uri.authority().ok_or_else(form)?;
    if uri.scheme_str() != Some("http") || uri.query().is_some() || authority.as_str().contains('@')
    {
        return Err(form());
    }
    let port = authority.port_u16().unwrap_or(4318);
    let base = uri.path().trim_end_matches('/');
    Ok((
        format!("{}:{port}", authority.host()),
        format!("{base}/v1/traces"),
    ))
}

/// See the module.
#[derive(Debug)]
pub struct Exporter {
    /// `None` once it is ending.
    sender: Mutex<Option<SyncSender<Span>>>,
    ended: Mutex<Receiver<()>>,
    dropped: Counter,
    sent: Counter,
}

impl Exporter {
    /// Starts it, if the settings name a collector.
    #[must_use]
    pub fn start(settings: &TraceSettings, role: &'static str, instance: &str) -> Option<Self> {
        let (address, path) = parse_endpoint(&settings.otlp_endpoint).ok()?;
        let (sender, spans) = sync_channel(settings.queue_max);
        let (end, ended) = sync_channel(1);
        let (dropped, sent) = (Counter::default(), Counter::default());
        let mut sending = Sending {
            address,
            path,
            resource: resource(role, instance),
            spans,
            every: Duration::from_millis(settings.export_ms),
            timeout: Duration::from_millis(settings.timeout_ms),
            dropped: dropped.clone(),
            sent: sent.clone(),
            is_away: false,
        };
        let run = move || {
            sending.run();
            let _ = end.send(());
        };
        let thread = std::thread::Builder::new()
            .name("trove-traces".into())
            .spawn(run);
        if let Err(error) = thread {
            tracing::error!(%error, "there is no thread for traces: none are sent");
            return None;
        }
        Some(Self {
            sender: Mutex::new(Some(sender)),
            ended: Mutex::new(ended),
            dropped,
            sent,
        })
    }

    /// Gives it a span, or drops that where too many wait already. Never blocks.
    pub fn send(&self, span: Span) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match &*sender {
            Some(sender) => matches!(
                sender.try_send(span),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            ),
            None => true,
        };
        if refused {
            self.dropped.inc();
        }
    }

    /// Spans dropped, and spans sent.
    #[must_use]
    pub fn counters(&self) -> (Counter, Counter) {
        (self.dropped.clone(), self.sent.clone())
    }

    /// Takes no more, and waits until the rest is sent, for so long at most.
    pub fn end(&self, wait: Duration) {
        self.sender
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(wait);
    }
}

/// What the thread has.
struct Sending {
    address: String,
    path: String,
    resource: Resource,
    spans: Receiver<Span>,
    every: Duration,
    timeout: Duration,
    dropped: Counter,
    sent: Counter,
    /// Whether the last attempt failed: it is logged once, not at each.
    is_away: bool,
}

impl Sending {
    fn run(&mut self) {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "traces are not sent"),
        };
        while let Some(batch) = self.batch() {
            let count = batch.len() as u64;
            let outcome = runtime.block_on(async {
                let posting = self.post(batch);
                tokio::time::timeout(self.timeout, posting).await
            });
            let outcome = outcome.unwrap_or_else(|_| Err("it did not answer in time".into()));
            match outcome {
                Ok(()) => {
                    self.sent.inc_by(count);
                    if std::mem::take(&mut self.is_away) {
                        tracing::info!("the collector of traces is back");
                    }
                }
                Err(error) => {
                    self.dropped.inc_by(count);
                    if !std::mem::replace(&mut self.is_away, true) {
                        tracing::warn!(
                            error,
                            "the collector of traces does not take them; they are dropped"
                        );
                    }
                }
            }
        }
    }

    /// What has come together within a while, or as much as goes into one request. `None` at the end.
    fn batch(&self) -> Option<Vec<Span>> {
        let mut batch = vec![self.spans.recv().ok()?];
        let until = Instant::now() + self.every;
        while batch.len() < BATCH_MAX {
            match self
                .spans
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(span) => batch.push(span),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Some(batch)
    }

    /// One request on a connection of its own: there is one a second at most times.
    async fn post(&self, batch: Vec<Span>) -> Result<(), String> {
        let spans: Vec<OtlpSpan> = batch.into_iter().flat_map(otlp_spans).collect();
        let export = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(InstrumentationScope {
                        name: "trove".into(),
                        version: env!("CARGO_PKG_VERSION").into(),
                        ..InstrumentationScope::default()
                    }),
                    spans,
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let stream = TcpStream::connect(&self.address)
            .await
            .map_err(|error| text(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| text(&error))?;
        let connection = tokio::spawn(connection);
        let request = http::Request::post(&self.path)
            .header("host", &self.address)
            .header("content-type", "application/x-protobuf")
            .body(Full::new(Bytes::from(export.encode_to_vec())))
            .map_err(|error| text(&error))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| text(&error))?;
        let status = response.status();
        let _ = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        connection.abort();
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("it answers {status}"))
        }
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    value_of(key, any_value::Value::StringValue(value.to_owned()))
}

fn value_of(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn resource(role: &str, instance: &str) -> Resource {
    Resource {
        attributes: vec![
            text("service.name", &format!("trove-{role}")),
            text("service.instance.id", instance),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ],
        ..Resource::default()
    }
}

/// The request's span, and one for each of its waits for the store.
fn otlp_spans(span: Span) -> Vec<OtlpSpan> {
    let mut attributes = vec![
        text("http.route", span.route),
        value_of(
            "http.response.status_code",
            any_value::Value::IntValue(span.status.into()),
        ),
    ];
    for cause in Cause::ALL {
        let seconds = span.parts.part(*cause).as_secs_f64();
        if seconds > 0.0 {
            let key = format!("trove.{}_s", cause.as_str());
            attributes.push(value_of(&key, any_value::Value::DoubleValue(seconds)));
        }
    }
    let of = |name: &str, id: [u8; 8], parent: Vec<u8>, kind: SpanKind, (from, to): (u64, u64)| {
        OtlpSpan {
            trace_id: span.trace.to_vec(),
            span_id: id.to_vec(),
            parent_span_id: parent,
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: from,
            end_time_unix_nano: to,
            ..OtlpSpan::default()
        }
    };
    let parent = span.parent.map(Vec::from).unwrap_or_default();
    let mut own = of(span.route, span.id, parent, SpanKind::Server, span.time_ns);
    own.attributes = attributes;
    if span.status >= 500 {
        own.status = Some(Status {
            code: StatusCode::Error.into(),
            ..Status::default()
        });
    }
    let children = span.children.iter().map(|(name, id, time)| {
        let name = format!("store {name}");
        of(&name, *id, span.id.to_vec(), SpanKind::Client, *time)
    });
    std::iter::once(own).chain(children).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_plain_address() {
        let is = |text: &str, address: &str, path: &str| {
            assert_eq!(
                parse_endpoint(text),
                Ok((address.into(), path.into())),
                "{text}"
            );
        };
        is("http://127.0.0.1:4318", "127.0.0.1:4318", "/v1/traces");
        is("http://collector", "collector:4318", "/v1/traces");
        is("http://[::1]:99/otlp/", "[::1]:99", "/otlp/v1/traces");
        for wrong in [
            "",
            "127.0.0.1:4318",
            "https://c:4318",
            "http://u:p@c:4318",
            "http://c?x=1",
        ] {
            assert!(parse_endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
