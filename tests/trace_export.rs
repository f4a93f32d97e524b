//! Traces by OTLP: what a collector gets, and what becomes of them when it is away.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod http_site;
mod shim_site;

use http_site::{Ask, Site, series, token, wait};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message as _;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

/// A collector that keeps what it gets. It lives as long as the test.
struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Vec<(String, ExportTraceServiceRequest)>>>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = got.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while reader.read_line(&mut head).unwrap_or(0) > 2 {}
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().parse::<usize>().unwrap())
                });
                let mut body = vec![0; length.unwrap_or(0)];
                if reader.read_exact(&mut body).is_err() {
                    continue;
                }
                kept.lock()
                    .unwrap()
                    .push((head, ExportTraceServiceRequest::decode(&*body).unwrap()));
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { address, got }
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().unwrap();
        let resources = got.iter().flat_map(|(_, request)| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

fn site(endpoint: &str, more: &[(&str, &str)]) -> Site {
    let mut settings = vec![
        ("trace.otlp_endpoint", endpoint),
        ("trace.export_ms", "20"),
        ("trace.every", "0"),
    ];
    settings.extend(more);
    Site::with(&settings)
}

fn counted(site: &Site, name: &str) -> u64 {
    series(&site.ops().send(Ask::get("/metrics")).text(), name)
}

#[test]
fn a_collector_gets_the_spans_of_requests_whose_clients_record_them() {
    let collector = Collector::start("200 OK");
    let site = site(&format!("http://{}", collector.address), &[]);
    site.open_h();
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let find = |flags: &str, id: &str| {
        let body = json!({"treasure": "r", "id": id}).to_string();
        let ask = Ask::post("/treasure/h/finds", body).bearer(&token("alice"));
        site.client()
            .send(ask.with("traceparent", &format!("00-{trace}-{parent}-{flags}")))
            .is(201);
    };
    find("00", "not-recorded");
    find("01", "recorded");
    // A poll from memory, too: the second one is.
    for _ in 0..2 {
        let ask = Ask::get("/treasure/h").bearer(&token("bob"));
        site.client()
            .send(ask.with("traceparent", &format!("00-{trace}-{parent}-01")))
            .is(200);
    }
    let named = |name: &str| {
        collector
            .spans()
            .into_iter()
            .filter(|span| span.name == name)
            .collect::<Vec<_>>()
    };
    wait("the spans", || {
        named("find").len() == 1 && named("poll").len() == 2
    });
    let find = named("find").remove(0);
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    assert_eq!(
        (hex(&find.trace_id), hex(&find.parent_span_id)),
        (trace.into(), parent.into())
    );
    assert_eq!(find.kind, i32::from(SpanKind::Server));
    assert!(find.start_time_unix_nano < find.end_time_unix_nano);
    let keys: Vec<&str> = find
        .attributes
        .iter()
        .map(|attribute| &*attribute.key)
        .collect();
    assert_eq!(&keys[..2], ["http.route", "http.response.status_code"]);
    assert!(keys.contains(&"trove.store_s"), "{keys:?}");
    let record = named("store record");
    assert_eq!(record.len(), 1);
    assert_eq!(
        (&record[0].parent_span_id, &record[0].trace_id),
        (&find.span_id, &find.trace_id)
    );
    assert!(record[0].start_time_unix_nano >= find.start_time_unix_nano);
    assert!(record[0].end_time_unix_nano <= find.end_time_unix_nano);
    let (head, request) = collector.got.lock().unwrap()[0].clone();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(
        head.to_lowercase()
            .contains("content-type: application/x-protobuf"),
        "{head}"
    );
    let resource = format!("{:?}", request.resource_spans[0].resource);
    assert!(
        resource.contains("trove-serve") && resource.contains("site-1"),
        "{resource}"
    );
    wait("the count", || {
        counted(&site, "trove_traces_sent_total") == 3
    });
    assert_eq!(counted(&site, "trove_traces_dropped_total"), 0);
    let all = format!("{:?}", collector.got.lock().unwrap());
    assert!(
        !all.contains("alice") && !all.contains("recorded"),
        "no name, no id"
    );
}

#[test]
fn a_trace_that_begins_at_the_shim_has_its_span_first_and_the_server_s_below() {
    let collector = Collector::start("200 OK");
    let endpoint = format!("http://{}", collector.address);
    // The server would choose none by itself.
    let site = site(&endpoint, &[]);
    site.open_h();
    let settings = [
        ("TRACE__OTLP_ENDPOINT", &*endpoint),
        ("TRACE__EXPORT_MS", "20"),
        ("TRACE__EVERY", "1"),
    ];
    let address = site.public();
    let shim = shim_site::Shim::with(&[format!("blue={address}")], &settings);
    shim.until_linked(address, 2);
    let poll = format!(
        "GET /treasure/h HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        token("carol")
    );
    assert_eq!(shim.ask(poll).status, 200);
    wait("both spans", || {
        let polls = collector.spans();
        polls.iter().filter(|span| span.name == "poll").count() == 2
    });
    let mut polls = collector.spans();
    polls.retain(|span| span.name == "poll");
    polls.sort_by_key(|span| span.parent_span_id.len());
    let [first, below] = &polls[..] else {
        panic!("{polls:?}");
    };
    assert!(first.parent_span_id.is_empty());
    assert_eq!(
        (&below.parent_span_id, &below.trace_id),
        (&first.span_id, &first.trace_id)
    );
}

#[test]
fn without_a_collector_requests_are_answered_and_their_spans_counted_as_dropped() {
    // Nobody listens there: the port was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let mut site = site(&endpoint, &[("trace.every", "1")]);
    site.open_h();
    let mut player = site.player("one");
    for _ in 0..50 {
        player.poll();
    }
    wait("all to be dropped", || {
        counted(&site, "trove_traces_dropped_total") >= 52
    });
    assert_eq!(counted(&site, "trove_traces_sent_total"), 0);
    let complaints = site
        .log()
        .iter()
        .filter(|line| line.contains("the collector of traces"))
        .count();
    assert_eq!(complaints, 1, "it is said once");
    assert!(site.stop().success());
}

#[test]
fn a_collector_that_does_not_answer_holds_nobody_up_and_the_queue_is_bounded() {
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut site = site(
        &endpoint,
        &[
            ("trace.every", "1"),
            ("trace.queue_max", "8"),
            ("trace.timeout_ms", "60000"),
        ],
    );
    site.open_h();
    let mut player = site.player("one");
    for _ in 0..1_000 {
        player.poll();
    }
    // One batch is with the collector, eight spans wait, and the rest is gone; the polls were answered all the same.
    wait("most to be dropped", || {
        counted(&site, "trove_traces_dropped_total") > 400
    });
    assert!(site.stop().success(), "and it stops");
}

#[test]
fn a_collector_that_refuses_is_no_success() {
    let collector = Collector::start("503 Service Unavailable");
    let site = site(
        &format!("http://{}", collector.address),
        &[("trace.every", "1")],
    );
    site.open_h();
    wait("the spans to be dropped", || {
        counted(&site, "trove_traces_dropped_total") >= 2
    });
    assert_eq!(counted(&site, "trove_traces_sent_total"), 0);
}

#[test]
fn what_waits_is_sent_when_the_server_stops() {
    let collector = Collector::start("200 OK");
    let endpoint = format!("http://{}", collector.address);
    let mut site = site(
        &endpoint,
        &[("trace.every", "1"), ("trace.export_ms", "60000")],
    );
    site.open_h();
    assert!(site.stop().success());
    assert!(collector.spans().iter().any(|span| span.name == "put_hunt"));
}
