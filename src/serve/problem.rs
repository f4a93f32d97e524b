//! What a client is told when something is wrong: RFC 9457, with a stable `code`.

use crate::game::document::DocumentError;
use crate::game::hunt::HuntError;
use crate::game::rules::{AdjustRefusal, Refusal};
use crate::game::wallet::WalletError;
use crate::store::{Erased, RecordRefusal, StoreError};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// The media type.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A problem: what is wrong, in one place for all routes.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code that programs act on.
    pub code: &'static str,
    /// The words for people.
    pub detail: String,
    /// Where in the request's body: a JSON pointer.
    pub pointer: Option<String>,
    /// Every finding, when there can be several.
    pub errors: Vec<DocumentError>,
    /// Seconds after which to try again; jittered when it is answered.
    pub retry_after_s: Option<u32>,
}

#[derive(Serialize)]
struct Wire<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<WireError<'a>>,
}

#[derive(Serialize)]
struct WireError<'a> {
    pointer: &'a str,
    detail: &'a str,
}

impl Problem {
    /// A problem with nothing but status, code and words.
    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code,
            detail: detail.into(),
            pointer: None,
            errors: Vec::new(),
            retry_after_s: None,
        }
    }

    /// A body that is not what it should be, and where.
    pub fn malformed(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: Some(pointer.into()),
            ..Self::new(422, "malformed_body", detail)
        }
    }

    /// An id, player or parameter in the path or query that cannot be one.
    pub fn parameter(name: &str, detail: impl std::fmt::Display) -> Self {
        Self::new(422, "bad_parameter", format!("{name} {detail}"))
    }

    /// Something to try again.
    pub fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            retry_after_s: Some(1),
            ..Self::new(503, code, detail)
        }
    }

    /// No token, or one that does not open this.
    pub fn unauthorized(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(401, code, detail)
    }

    /// No hunt has this id.
    pub fn no_such_hunt() -> Self {
        Self::new(404, "no_such_hunt", "there is no hunt with this id")
    }

    /// The hunt is archived.
    pub fn hunt_archived() -> Self {
        Self::new(410, "hunt_archived", "the hunt is archived")
    }

    /// The body as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let wire = Wire {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            pointer: self.pointer.as_deref(),
            errors: self
                .errors
                .iter()
                .map(|e| WireError {
                    pointer: &e.pointer,
                    detail: &e.detail,
                })
                .collect(),
        };
        serde_json::to_string(&wire).unwrap_or_else(|_| format!("{{\"code\":\"{}\"}}", self.code))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(least) = self.retry_after_s {
            // Spread over three seconds, so that a crowd does not return as one.
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(least + rand::random_range(0..3)),
            );
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSuchHunt => Self::no_such_hunt(),
            StoreError::Busy => Self::unavailable("store_busy", error.to_string()),
            StoreError::Full => Self::unavailable("store_full", error.to_string()),
            StoreError::FeedFull => Self::unavailable("feed_full", error.to_string()),
            StoreError::Unavailable(_) => {
                Self::unavailable("store_unavailable", "the store is out of reach")
            }
            StoreError::Unknown(_) => Self::unavailable(
                "outcome_unknown",
                "the store broke off; what was asked may or may not have been done: ask again with the same id",
            ),
            StoreError::NotDurable(_) => Self::unavailable(
                "not_durable",
                "too few copies have it yet for it to be safe: ask again with the same id",
            ),
            StoreError::Damaged(_) => {
                Self::new(500, "store_damaged", "what is stored cannot be read")
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match refusal {
            Refusal::NoSuchTreasure => (404, "no_such_treasure"),
            Refusal::IdRequired => (422, "id_required"),
            Refusal::FindConflict => (409, "find_conflict"),
            Refusal::HuntNotOpen(_) => (409, "hunt_not_open"),
            Refusal::HuntArchived => (410, "hunt_archived"),
            Refusal::FoundAtAhead => (422, "found_at_ahead"),
            Refusal::CoinsOutOfRange => (422, "coins_out_of_range"),
            Refusal::TooManyPending => (429, "too_many_pending"),
        };
        Self::new(status, code, refusal.to_string())
    }
}

impl From<Erased> for Problem {
    fn from(erased: Erased) -> Self {
        Self::new(410, "erased", erased.to_string())
    }
}

impl From<RecordRefusal> for Problem {
    fn from(refusal: RecordRefusal) -> Self {
        match refusal {
            RecordRefusal::Rule(refusal) => refusal.into(),
            RecordRefusal::Erased(erased) => erased.into(),
        }
    }
}

impl From<AdjustRefusal> for Problem {
    fn from(refusal: AdjustRefusal) -> Self {
        let (status, code) = match refusal {
            AdjustRefusal::Conflict => (409, "adjust_conflict"),
            AdjustRefusal::HuntArchived => (410, "hunt_archived"),
            AdjustRefusal::Wallet(WalletError::CoinsOutOfRange) => (422, "coins_out_of_range"),
            AdjustRefusal::Wallet(WalletError::InsufficientCoins) => (409, "insufficient_coins"),
        };
        Self::new(status, code, refusal.to_string())
    }
}

impl From<HuntError> for Problem {
    fn from(error: HuntError) -> Self {
        let (status, code) = match &error {
            HuntError::Archived => (410, "hunt_archived"),
            HuntError::TreasureFound(_) => (409, "treasure_found"),
            HuntError::RepeatableFound(_) => (409, "treasure_found"),
            HuntError::ClosesAtPassed => (409, "closes_at_passed"),
            HuntError::NotClosed(_) => (409, "hunt_not_closed"),
            HuntError::Pending(_) => (409, "hunt_has_pending"),
        };
        Self::new(status, code, error.to_string())
    }
}
