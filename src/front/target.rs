//! Request targets and hosts: which bytes they may have, and how they are taken apart.

use memchr::memchr;

use super::refusal::Refusal;

/// Bytes of `Host`: a name or address with an optional port (RFC 3986 host without user, percent-encoding included).
pub(super) fn is_host(value: &[u8]) -> bool {
    value
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~:[]!$&'()*+;=%".contains(byte))
}

/// Bytes of a target: RFC 3986's, and of the rest only `[ ] ^ { | }`, which clients are known to send. No byte of a
/// fragment, no backslash (some servers take it for a slash), nothing above 126.
static TARGET_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let allowed =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?@!$&'()*+,;=%[]^{|}";
    let mut i = 0;
    while i < allowed.len() {
        table[allowed[i] as usize] = true;
        i += 1;
    }
    table
};

/// Path and query of a target. An absolute target is accepted when its authority is the `Host`.
pub(super) fn split_target<'h>(
    method: &str,
    target: &'h str,
    host: Option<&[u8]>,
) -> Result<(&'h str, Option<&'h str>), Refusal> {
    let bytes = target.as_bytes();
    if !bytes
        .iter()
        .fold(true, |good, byte| good & TARGET_BYTES[usize::from(*byte)])
    {
        return Err(Refusal::BadTarget);
    }
    let local = if bytes.first() == Some(&b'/') {
        target
    } else if target == "*" && method == "OPTIONS" {
        return Ok((target, None));
    } else {
        let rest = strip_prefix_ignoring_case(target, "http://")
            .or_else(|| strip_prefix_ignoring_case(target, "https://"))
            .ok_or(Refusal::BadTarget)?;
        let end = rest
            .bytes()
            .position(|byte| byte == b'/' || byte == b'?')
            .unwrap_or(rest.len());
        let (authority, local) = rest.split_at(end);
        if authority.is_empty() || !is_host(authority.as_bytes()) {
            return Err(Refusal::BadTarget);
        }
        if host.is_some_and(|host| !host.eq_ignore_ascii_case(authority.as_bytes())) {
            return Err(Refusal::TargetHostMismatch);
        }
        local
    };
    let (path, query) = match memchr(b'?', local.as_bytes()) {
        Some(at) => (&local[..at], Some(&local[at + 1..])),
        None => (local, None),
    };
    Ok((if path.is_empty() { "/" } else { path }, query))
}

fn strip_prefix_ignoring_case<'h>(text: &'h str, prefix: &str) -> Option<&'h str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix)
        .then(|| &text[prefix.len()..])
}
