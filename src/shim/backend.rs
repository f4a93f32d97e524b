//! What stands behind the shim's front.

use super::balance::PlayerKey;
use super::blame::{self, Came};
use super::body::ShimBody;
use super::cache::{Cache, Key};
use super::forward::{Forwarding, add_timing, write_timing};
use super::heartbeat::{Heartbeats, Verdict};
use super::metrics::{Metrics, Route};
use super::peers::Peers;
use super::players::Players;
use super::problem::Problem;
use super::replay::ReplayBody;
use super::upstreams::Upstreams;
use crate::front::{self, Answer, Backend, FieldBlock, Head, Offer, Origin, OwnAnswer, Tried};
use crate::sla::Sla;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bounds that the backend itself keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) heartbeat_bytes_max: usize,
    pub(super) body_bytes_max: u64,
    pub(super) replay_bytes_max: usize,
    pub(super) retry_after_s_max: u32,
}

/// The shim as its front sees it.
pub(super) struct Shim {
    pub(super) upstreams: Arc<Upstreams>,
    pub(super) heartbeats: Heartbeats,
    pub(super) players: Players,
    pub(super) peers: Peers,
    pub(super) cache: Cache,
    pub(super) metrics: Metrics,
    pub(super) sla: Arc<Sla>,
    pub(super) bounds: Bounds,
    pub(super) instance_id: HeaderValue,
    /// `x-instance-id`, prepared.
    pub(super) own_fields: FieldBlock,
    pub(super) draining: AtomicBool,
}

/// The shim, as a backend for a front.
pub(super) struct ShimBackend(pub(super) Arc<Shim>);

impl Shim {
    /// Whether it has been told to stop.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// This process's health: whether to send it requests, and what it says of itself.
    pub(super) fn health(&self, ready: bool) -> (StatusCode, String) {
        let draining = self.is_draining();
        let status = if ready && draining {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        };
        let live = self.upstreams.live();
        let usable = live
            .instances()
            .iter()
            .filter(|one| one.is_usable())
            .count();
        let body = serde_json::json!({
            "status": if draining { "draining" } else { "ok" },
            "upstream": live.name(),
            "instances": live.instances().len(),
            "usable": usable,
            "instance": self.instance_id.to_str().unwrap_or_default(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        (status, body.to_string())
    }

    /// Takes over what is counted elsewhere, before the metrics are written.
    pub(super) fn read_metrics(&self, front: &front::Front<ShimBackend>) {
        self.metrics.read(
            &self.upstreams,
            front.counters(),
            front.connections(),
            self.players.online(),
            self.cache.bytes(),
        );
    }

    fn heartbeat(&self, authorization: Option<&[u8]>) {
        self.metrics.heartbeats.inc();
        if let Some(authorization) = authorization {
            self.players.present(authorization);
        }
    }

    /// Answers a heartbeat whose body, if it has one, is all there.
    fn beat_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) {
        self.heartbeat(head.authorization());
        let took = head.arrived().elapsed();
        self.metrics.own_request(Route::Heartbeat, 204, took);
        answer
            .status(204)
            .block(&self.own_fields)
            .field_with("server-timing", |out| write_timing(out, took));
    }

    fn problem(&self, problem: Problem, route: Route, arrived: Instant) -> Response<ShimBody> {
        if let Problem::Shed(reason) = problem {
            self.metrics.shed(reason);
        }
        let bounds = &self.bounds;
        let mut response = problem.response(bounds.retry_after_s_max, &self.instance_id);
        let took = arrived.elapsed();
        self.metrics
            .request(route, response.status().as_u16(), took);
        add_timing(response.headers_mut(), took, Duration::ZERO);
        response
    }

    /// An answer of the shim's own.
    fn own(
        &self,
        mut response: Response<ShimBody>,
        route: Route,
        arrived: Instant,
    ) -> Response<ShimBody> {
        let took = arrived.elapsed();
        self.metrics
            .own_request(route, response.status().as_u16(), took);
        let fields = response.headers_mut();
        fields.insert("x-instance-id", self.instance_id.clone());
        let mut timing = Vec::with_capacity(24);
        write_timing(&mut timing, took);
        if let Ok(timing) = HeaderValue::from_maybe_shared(Bytes::from(timing)) {
            fields.insert("server-timing", timing);
        }
        response
    }

    fn beat(&self, parts: &Parts, arrived: Instant) -> Response<ShimBody> {
        let authorization = parts.headers.get(header::AUTHORIZATION);
        self.heartbeat(authorization.map(HeaderValue::as_bytes));
        let mut response = Response::new(ShimBody::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        self.own(response, Route::Heartbeat, arrived)
    }

    async fn answer(self: Arc<Self>, request: Request<front::Body>) -> Response<ShimBody> {
        let (mut parts, body) = request.into_parts();
        let origin = parts.extensions.get::<Origin>().copied();
        let mut came = Came::of(&parts);
        let arrived = came.arrived;
        let was_tried = parts
            .extensions
            .get()
            .is_some_and(|Tried(times)| *times > 0);
        let bounds = &self.bounds;
        let mut body = ReplayBody::new(body, 0);
        let body_wait = body.waited();
        match self
            .heartbeats
            .look(parts.method.as_str(), parts.uri.path())
        {
            Verdict::Other => {}
            Verdict::Heartbeat => return self.finish_beat(&parts, body, arrived).await,
            Verdict::PerhapsByBody => {
                let max = bounds.heartbeat_bytes_max;
                let fits = body.length().is_none_or(|length| length <= max as u64);
                let whole = if fits {
                    body.read_ahead(max).await
                } else {
                    Ok(None)
                };
                match whole {
                    Err(_) => return self.problem(Problem::ClientBody, Route::Other, arrived),
                    Ok(Some(whole)) => {
                        let (method, path) = (parts.method.as_str(), parts.uri.path());
                        if self.heartbeats.has_marker(method, path, &whole) {
                            return self.beat(&parts, arrived);
                        }
                    }
                    Ok(None) => {}
                }
            }
        }
        if is_health(parts.uri.path()) {
            // GET and HEAD were answered at once unless they had a body.
            return self.problem(Problem::MethodNotAllowed, Route::Other, arrived);
        }
        let key = self.player_of(&parts);
        let cache_key = if key.is_none() { Key::of(&parts) } else { None };
        if let Some(kept) = cache_key
            .as_ref()
            .and_then(|key| self.cache.get(key, Instant::now()))
        {
            self.metrics.cache_hits.inc();
            let response = kept.answer(&parts.headers, Instant::now());
            return self.own(response.map(ShimBody::Whole), Route::Cached, arrived);
        }
        if let Some(origin) = origin {
            came.trace = Some(self.peers.tell(&mut parts.headers, origin.peer));
        }
        let forwarding = Forwarding {
            group: &self.upstreams.live().clone(),
            parts: &parts,
            key,
            metrics: &self.metrics,
            keep: cache_key.map(|key| (&self.cache, key)),
            replay_bytes_max: bounds.replay_bytes_max,
            came,
            body_wait: body_wait.clone(),
            sla: &self.sla,
            was_tried,
        };
        match forwarding.run(body).await {
            Ok(response) => response,
            Err(problem) => {
                let route = route_of(&parts);
                blame::failed(&self, problem, route, &came, body_wait.get());
                self.problem(problem, route, arrived)
            }
        }
    }

    /// A heartbeat is answered when its body is over, of which nothing is kept.
    async fn finish_beat(
        &self,
        parts: &Parts,
        mut body: ReplayBody,
        arrived: Instant,
    ) -> Response<ShimBody> {
        let mut left = self.bounds.heartbeat_bytes_max;
        loop {
            match std::future::poll_fn(|cx| body.poll_piece(cx)).await {
                Ok(None) => return self.beat(parts, arrived),
                Ok(Some(piece)) => match left.checked_sub(piece.len()) {
                    Some(less) => left = less,
                    None => {
                        let problem = Problem::HeartbeatTooLarge;
                        return self.problem(problem, Route::Heartbeat, arrived);
                    }
                },
                Err(_) => return self.problem(Problem::ClientBody, Route::Heartbeat, arrived),
            }
        }
    }

    /// The player whose poll a request is.
    fn player_of(&self, parts: &Parts) -> Option<PlayerKey> {
        if !is_poll(parts.method.as_str(), parts.uri.path()) {
            return None;
        }
        let authorization = parts.headers.get(header::AUTHORIZATION)?;
        self.players.key(authorization.as_bytes())
    }
}

/// What a request that is forwarded is counted as.
pub(super) fn route_of(parts: &Parts) -> Route {
    if is_poll(parts.method.as_str(), parts.uri.path()) {
        Route::Poll
    } else {
        Route::Other
    }
}

/// Whether a request is a poll: `GET /treasure/{hunt}`.
pub(super) fn is_poll(method: &str, path: &str) -> bool {
    let hunt = path.strip_prefix("/treasure/");
    matches!(method, "GET" | "HEAD")
        && hunt.is_some_and(|hunt| !hunt.is_empty() && !hunt.contains('/'))
}

pub(super) fn is_health(path: &str) -> bool {
    matches!(path, "/health" | "/health/live" | "/health/ready")
}

impl Backend for ShimBackend {
    type Body = ShimBody;
    type Future = Pin<Box<dyn Future<Output = Response<ShimBody>> + Send>>;

    fn answer_now(&self, head: &Head<'_>, answer: &mut Answer<'_>) -> bool {
        let shim = &*self.0;
        if shim.heartbeats.look(head.method(), head.path()) == Verdict::Heartbeat {
            shim.beat_now(head, answer);
            return true;
        }
        if matches!(head.method(), "GET" | "HEAD") && is_health(head.path()) {
            let (status, body) = shim.health(head.path() != "/health/live");
            let took = head.arrived().elapsed();
            shim.metrics
                .own_request(Route::Health, status.as_u16(), took);
            answer
                .status(status.as_u16())
                .content_type("application/json")
                .field("cache-control", "no-store")
                .block(&shim.own_fields)
                .field_with("server-timing", |out| write_timing(out, took))
                .body(body.as_bytes());
            return true;
        }
        false
    }

    fn wants_whole(&self, head: &Head<'_>) -> bool {
        let shim = &*self.0;
        shim.heartbeats.look(head.method(), head.path()) != Verdict::Other || shim.has_links()
    }

    fn answer_whole(&self, head: &Head<'_>, body: &[u8], answer: &mut Answer<'_>) -> bool {
        let shim = &*self.0;
        let (method, path) = (head.method(), head.path());
        let is_one = match shim.heartbeats.look(method, path) {
            Verdict::Other => false,
            Verdict::Heartbeat => true,
            Verdict::PerhapsByBody => {
                body.len() <= shim.bounds.heartbeat_bytes_max
                    && shim.heartbeats.has_marker(method, path, body)
            }
        };
        if is_one {
            shim.beat_now(head, answer);
        }
        is_one
    }

    fn take(&self, offer: &mut Offer<'_>) {
        self.0.take(offer);
    }

    fn gone(&self, note: u64) {
        self.0.upstreams.cancel(note);
    }

    fn read_slowly(&self, answered_after: Duration, reading: Duration) {
        self.0.sla.note_reading(answered_after, reading);
    }

    fn sign(&self, took: Duration, answer: &mut Answer<'_>) {
        answer
            .block(&self.0.own_fields)
            .field_with("server-timing", |out| write_timing(out, took));
    }

    fn refused(&self, own: &OwnAnswer) {
        blame::refused(&self.0, own);
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<u64> {
        let bounds = &self.0.bounds;
        Some(match self.0.heartbeats.look(head.method(), head.path()) {
            Verdict::Heartbeat => bounds.heartbeat_bytes_max as u64,
            Verdict::Other | Verdict::PerhapsByBody => bounds.body_bytes_max,
        })
    }

    fn call(&self, request: Request<front::Body>) -> Self::Future {
        Box::pin(self.0.clone().answer(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_is_told_by_its_path() {
        for (method, path, is_one) in [
            ("GET", "/treasure/h", true),
            ("HEAD", "/treasure/h", true),
            ("POST", "/treasure/h", false),
            ("GET", "/treasure/", false),
            ("GET", "/treasure/h/history", false),
            ("GET", "/hunts/h", false),
        ] {
            assert_eq!(is_poll(method, path), is_one, "{method} {path}");
        }
    }
}
