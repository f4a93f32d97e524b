//! A front with a constant poll behind it, to measure the connection layer alone.
//!
//! `front_constant [ADDRESS]` (default `127.0.0.1:8085`): `/treasure/…` and `/health` are answered from memory, POST
//! `/heartbeat` with 204, and everything else by an axum router: `/slow/{name}`, and POST `/echo`.

use std::io::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use http::Request;
use trove::front::{
    Answer, Backend, Body, FieldBlock, Front, Head, Limits, Phase, ServiceFuture, descriptors_max,
};

struct Constant {
    fields: FieldBlock,
    router: Router,
}

const POLL: &[u8] = br#"{"hunt":"demo","player":"p0000001","balance":120,"credited":0,"finds":[],"expired":[],"pending":0,"cursor":"1.17","server_time":1764485000000,"next_poll_ms":1200}"#;

impl Backend for Constant {
    type Body = axum::body::Body;
    type Future = ServiceFuture<Router>;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        if head.path().starts_with("/treasure/") && matches!(head.method(), "GET" | "HEAD") {
            let micros = head.arrived().elapsed().as_micros();
            answer
                .status(200)
                .block(&self.fields)
                .field("etag", "W/\"1.17\"")
                .field("trove-next-poll-ms", "1200")
                // Writing into a Vec cannot fail.
                .field_with("server-timing", |out| {
                    drop(write!(out, "app;dur=0.{micros:03}"))
                })
                .body(POLL);
            return true;
        }
        if head.path() == "/health" {
            answer.status(200).content_type("text/plain").body(b"ok");
            return true;
        }
        false
    }

    fn call(&self, request: Request<Body>) -> Self::Future {
        ServiceFuture::new(self.router.clone(), request)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8085".to_owned());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!(
        "listening on {} (process {})",
        listener.local_addr()?,
        std::process::id()
    );
    let router = Router::new()
        .route(
            "/slow/{name}",
            get(|Path(name): Path<String>| async move { name }),
        )
        .route(
            "/heartbeat",
            post(|| async { http::StatusCode::NO_CONTENT }),
        )
        .route("/echo", post(|body: axum::body::Body| async move { body }));
    let fields = [
        ("content-type", "application/json"),
        ("cache-control", "no-store"),
        ("x-instance-id", "example"),
    ];
    let backend = Arc::new(Constant {
        fields: FieldBlock::new(&fields)?,
        router,
    });
    let front = Front::new(backend, Limits::default().within(descriptors_max()))?;
    let (phase, watched) = tokio::sync::watch::channel(Phase::Serving);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = phase.send(Phase::Draining);
        }
    });
    front.serve(listener, watched).await?;
    println!("{:?}", front.counters());
    Ok(())
}
