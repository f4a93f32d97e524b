//! Tokens made by hand, good ones and forged ones.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use std::time::SystemTime;

pub const TOKEN_KEY: &str = "the-tests-own-token-key.thirty-two-bytes-and-more";
pub const ADMIN_KEY: &str = "the-tests-own-admin-key";

/// What a token says, and what signs it.
pub struct Forged<'a> {
    pub header: Value,
    pub claims: Value,
    pub key: &'a str,
}

pub fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

impl Default for Forged<'_> {
    fn default() -> Self {
        let now = seconds_now();
        Self {
            header: json!({"alg": "HS256", "typ": "JWT"}),
            claims: json!({"sub": "p", "iat": now, "exp": now + 3_600}),
            key: TOKEN_KEY,
        }
    }
}

pub fn forge(forged: &Forged<'_>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&forged.header), part(&forged.claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(forged.key.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    format!("{signed}.{signature}")
}

/// A good token.
pub fn token(player: &str) -> String {
    let now = seconds_now();
    forge(&Forged {
        claims: json!({"sub": player, "iat": now, "exp": now + 3_600}),
        ..Forged::default()
    })
}
