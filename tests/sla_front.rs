//! Answers of the connection layer's own: all are counted, and only those that are no fault of their client's burn the budget.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod http_site;
mod shim_site;

use http_site::{Ask, Client, Site, series, token, wait};
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};

/// One site of the two kinds: where players come, and where operators look.
struct Place {
    public: SocketAddr,
    ops: SocketAddr,
}

impl Place {
    fn counted(&self, code: &str) -> u64 {
        let text = Client::new(self.ops).send(Ask::get("/metrics")).text();
        series(
            &text,
            &format!("trove_front_answers_total{{code=\"{code}\"}}"),
        )
    }

    fn slow(&self) -> [u64; 4] {
        let text = Client::new(self.ops).send(Ask::get("/metrics")).text();
        ["client", "shim", "app", "store"].map(|cause| {
            series(
                &text,
                &format!("trove_slow_requests_total{{cause=\"{cause}\"}}"),
            )
        })
    }

    /// The polls of the last hour, and how many of them failed.
    fn polls(&self) -> (u64, u64) {
        let sla: Value = Client::new(self.ops).send(Ask::get("/sla")).json();
        let hour = &sla["objectives"][0]["windows"][2];
        let count = |name: &str| hour[name].as_u64().unwrap();
        (count("requests"), count("failed"))
    }

    /// The status of the answer to these bytes.
    fn ask(&self, bytes: &[u8]) -> u16 {
        let mut client = Client::new(self.public);
        client.raw(bytes).unwrap();
        client.finish(false).unwrap().status
    }
}

/// What clients do wrong costs nothing, and is seen; who finds no place is a failed poll.
fn holds_at(place: &Place) {
    let requests: [(&[u8], u16, &str); 5] = [
        (b"GET /treasure/h HTTP/1.1\r\n\r\n", 400, "bad_host"),
        (
            b"GET /treasure/h HTTP/1.1\r\nhost: x\r\n",
            408,
            "header_timeout",
        ),
        (
            b"POST /treasure/h/finds HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
            413,
            "body_too_large",
        ),
        (b"BREW /pot HTCPCP/1.0\r\n\r\n", 400, "bad_request_line"),
        (
            b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
            501,
            "unknown_method",
        ),
    ];
    for (request, status, code) in requests {
        assert_eq!(place.counted(code), 0, "{code} is there from the start");
        assert_eq!(place.ask(request), status, "{code}");
        wait(code, || place.counted(code) == 1);
    }
    assert_eq!(place.polls(), (0, 0));
    // The one who did not finish its head was slow, and nobody else was to blame.
    assert_eq!(place.slow(), [1, 0, 0, 0]);
    let full = [(); 2].map(|()| TcpStream::connect(place.public).unwrap());
    wait("there is no place", || {
        place.ask(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") == 503
    });
    drop(full);
    let turned_away = place.counted("too_many_connections");
    assert!(turned_away >= 1);
    assert_eq!(place.polls(), (turned_away, turned_away));
}

#[test]
fn what_a_server_refuses_is_counted_and_only_its_own_fault_burns_the_budget() {
    let site = Site::with(&[
        ("limits.connections_max", "2"),
        ("limits.header_ms", "300"),
        ("sla.slow_ms", "200"),
    ]);
    let ops = site.ops().address;
    holds_at(&Place {
        public: site.public(),
        ops,
    });
}

#[test]
fn what_the_shim_refuses_is_counted_and_only_its_own_fault_burns_the_budget() {
    let server = shim_site::Server::echo();
    let settings = [
        ("LIMITS__CONNECTIONS_MAX", "2"),
        ("LIMITS__HEADER_MS", "300"),
        ("SLA__SLOW_MS", "200"),
    ];
    let shim = shim_site::Shim::with(&[server.group("blue")], &settings);
    holds_at(&Place {
        public: shim.public,
        ops: shim.ops,
    });
}

#[test]
fn a_client_that_never_ends_its_body_is_told_408_and_is_to_blame_alone() {
    let site = Site::with(&[("limits.body_ms", "300"), ("sla.slow_ms", "200")]);
    site.open_h();
    let place = Place {
        public: site.public(),
        ops: site.ops().address,
    };
    let before = place.slow();
    let find = Ask::post("/treasure/h/finds", r#"{"treasure":"t"}"#).bearer(&token("ann"));
    let bytes = find.bytes();
    assert_eq!(place.ask(&bytes[..bytes.len() - 1]), 408);
    wait("it is counted", || place.counted("body_timeout") == 1);
    let text = site.ops().send(Ask::get("/metrics")).text();
    let of = |class: &str| {
        let labels = format!("{{route=\"find\",status_class=\"{class}\"}}");
        series(
            &text,
            &format!("trove_http_request_duration_seconds_count{labels}"),
        )
    };
    assert_eq!([of("4xx"), of("5xx")], [1, 0]);
    let after = place.slow();
    assert_eq!(after, [before[0] + 1, before[1], before[2], before[3]]);
}
