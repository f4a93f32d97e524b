//! The names of header fields that are not among the standard ones, so that none is read anew with each answer.

use http::HeaderName;

/// After how many milliseconds a player's next poll is wanted.
pub(super) const NEXT_POLL_MS: HeaderName = HeaderName::from_static("trove-next-poll-ms");
/// Whether the answer may be behind the store.
pub(super) const STALE: HeaderName = HeaderName::from_static("trove-stale");
/// Where the time went.
pub(super) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Which instance answered.
pub(super) const INSTANCE_ID: HeaderName = HeaderName::from_static("x-instance-id");
/// What a request is called in the logs.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The trace that a request belongs to (W3C Trace Context).
pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What a client would like (RFC 7240).
pub(super) const PREFER: HeaderName = HeaderName::from_static("prefer");
/// What of that was done.
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// The name of a change that must not be made twice.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
