//! What the shim answers when it cannot give an instance's answer: RFC 9457, with a stable `code`.

use super::body::ShimBody;
use super::queue::Shed;
use crate::front::{Answer, FieldBlock};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};

/// Why a forwarded request has no answer of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Problem {
    /// It was not sent.
    Shed(Shed),
    /// The instance broke off, or gave no answer that can be passed on.
    BadGateway,
    /// The instance took too long.
    GatewayTimeout,
    /// The instance speaks HTTP/1.0: it must be told the length of a body, and this one's is unknown and large.
    LengthRequired,
    /// A heartbeat above its bound.
    HeartbeatTooLarge,
    /// The request's body failed; the front has the client's answer.
    ClientBody,
    /// Another method than this path has.
    MethodNotAllowed,
}

impl Problem {
    fn describe(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Shed(Shed::QueueFull) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "queue_full",
                "too many requests wait; try again later",
            ),
            Self::Shed(Shed::QueueDeadline) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "queue_deadline",
                "the request waited too long; try again later",
            ),
            Self::Shed(Shed::Unreachable | Shed::Connections) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "upstream_unreachable",
                "no server can be reached; the request was not sent; try again later",
            ),
            Self::BadGateway => (
                StatusCode::BAD_GATEWAY,
                "upstream_failed",
                "the server broke off; what was asked may or may not have been done",
            ),
            Self::GatewayTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "upstream_timeout",
                "the server did not answer in time; what was asked may or may not have been done",
            ),
            Self::LengthRequired => (
                StatusCode::LENGTH_REQUIRED,
                "length_required",
                "the server needs a Content-Length for a body of this size",
            ),
            Self::HeartbeatTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                "the heartbeat's body is too large",
            ),
            Self::ClientBody => (
                StatusCode::BAD_REQUEST,
                "incomplete_body",
                "the request's body did not arrive whole",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path takes other methods",
            ),
        }
    }

    /// Its status.
    pub(super) fn status(self) -> StatusCode {
        self.describe().0
    }

    fn document(self) -> (StatusCode, String) {
        let (status, code, detail) = self.describe();
        let title = status.canonical_reason().unwrap_or("Error");
        let body = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{},"code":"{code}","detail":"{detail}"}}"#,
            status.as_u16()
        );
        (status, body)
    }

    /// Writes the answer of a request that was not shed, with `fields`, up to its body, which is returned.
    pub(super) fn write(self, answer: &mut Answer<'_>, fields: &FieldBlock) -> String {
        let (status, body) = self.document();
        answer
            .status(status.as_u16())
            .content_type("application/problem+json")
            .field("cache-control", "no-store")
            .block(fields);
        body
    }

    /// The answer. A 503 says when to come back: from 1 to `retry_after_s_max` seconds, so that a crowd does not return
    /// as one.
    pub(super) fn response(
        self,
        retry_after_s_max: u32,
        instance_id: &HeaderValue,
    ) -> Response<ShimBody> {
        let (status, body) = self.document();
        let mut response = Response::new(ShimBody::Whole(Bytes::from(body)));
        *response.status_mut() = status;
        let fields = response.headers_mut();
        fields.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert("x-instance-id", instance_id.clone());
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = rand::random_range(1..=retry_after_s_max.max(1));
            fields.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
