//! Players' tokens: JSON web tokens (RFC 7519) signed with HS256, with the claims `sub` (the player), `iat` and `exp`.

use super::files::{self, KeyError, KeySource, NamedKey, Secrets, TOKEN};
use super::hs256;
use crate::config::Settings;
use crate::game::ids::PlayerName;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::path::Path;

/// The longest token that is looked at, in bytes.
pub const TOKEN_BYTES_MAX: usize = 4_096;

/// What a verified token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Whom it speaks for.
    pub player: PlayerName,
    /// When it was issued, in milliseconds since the epoch.
    pub issued_at_ms: u64,
    /// From when on it is no longer taken, in milliseconds since the epoch.
    pub expires_at_ms: u64,
}

/// Why a token speaks for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No JSON web token, or one with parts that cannot be read.
    #[error("the token is malformed")]
    Malformed,
    /// Signed with another key, or changed.
    #[error("the token's signature is not valid")]
    BadSignature,
    /// Signed with anything but HS256, or not at all.
    #[error("the token is not signed with HS256")]
    WrongAlgorithm,
    /// It names a key that is not among the server's.
    #[error("the token names a key that this server does not have")]
    UnknownKid,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// It was issued, or begins to be valid, in the future.
    #[error("the token lies ahead of this server's clock")]
    IssuedAhead,
    /// Its `sub` is no player's name.
    #[error("the token's sub must be 1 to 128 of A-Z a-z 0-9 . _ - : @")]
    BadPlayer,
    /// It lacks a claim.
    #[error("the token has no {0} claim")]
    MissingClaim(&'static str),
    /// It was issued for another service: it has an `aud`, and this server is no audience (RFC 7519, section 4.1.3).
    #[error("the token is meant for another audience")]
    OtherAudience,
}

impl TokenError {
    /// A stable name for programs.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Malformed => "token_malformed",
            Self::BadSignature => "token_bad_signature",
            Self::WrongAlgorithm => "token_wrong_algorithm",
            Self::UnknownKid => "token_unknown_kid",
            Self::Expired => "token_expired",
            Self::IssuedAhead => "token_issued_ahead",
            Self::BadPlayer => "token_bad_player",
            Self::MissingClaim(_) => "token_missing_claim",
            Self::OtherAudience => "token_other_audience",
        }
    }
}

/// The keys that sign and verify tokens.
pub struct TokenKeys {
    keys: Vec<Key>,
    validation: Validation,
    iat_ahead_ms: u64,
}

struct Key {
    kid: Option<String>,
    sign: EncodingKey,
    verify: DecodingKey,
}

/// What a token's header must say before anything else of it is believed.
#[derive(Deserialize)]
struct Head {
    alg: Option<String>,
    kid: Option<String>,
}

#[derive(Deserialize)]
struct Payload {
    sub: Option<String>,
    iat: Option<f64>,
    exp: Option<f64>,
    nbf: Option<f64>,
}

#[derive(Serialize)]
struct SignedPayload<'a> {
    sub: &'a str,
    iat: u64,
    exp: u64,
}

impl TokenKeys {
    /// Takes the keys from their sources; see [`super::Keys::load`]. Random ones are made only if `make` says so.
    ///
    /// # Errors
    /// Says what is wrong with which source.
    pub fn load(
        settings: &Settings,
        secrets: &Secrets,
        store_dir: Option<&Path>,
        make: bool,
    ) -> Result<(Self, KeySource), KeyError> {
        let file = &settings.auth.token_keys_file;
        let (keys, source) =
            files::find(&TOKEN, secrets.token_key.as_deref(), file, store_dir, make)?;
        Ok((Self::new(&keys, settings.auth.iat_ahead_s), source))
    }

    fn new(keys: &[NamedKey], iat_ahead_s: u64) -> Self {
        hs256::install();
        // Times are checked here, against the store's clock; the crate would ask the system's.
        let mut validation = Validation::new(Algorithm::HS256);
        validation.required_spec_claims = HashSet::new();
        validation.validate_exp = false;
        let key = |NamedKey { name, key }: &NamedKey| Key {
            kid: name.clone(),
            sign: EncodingKey::from_secret(key.as_bytes()).expect("a key of 32 bytes is not empty"),
            verify: DecodingKey::from_secret(key.as_bytes())
                .expect("a key of 32 bytes is not empty"),
        };
        Self {
            keys: keys.iter().map(key).collect(),
            validation,
            iat_ahead_ms: iat_ahead_s * 1_000,
        }
    }

    /// What the token says, if one of the keys signed it and it is its time. A token with a `kid` is verified with the key
    /// of that name, or with those that have none; one without by any.
    ///
    /// # Errors
    /// Why the token speaks for nobody.
    pub fn verify(&self, token: &str, now_ms: u64) -> Result<Claims, TokenError> {
        let payload = self.verify_signature(token)?;
        let millis = |seconds: Option<f64>, claim| {
            seconds
                .map(to_millis)
                .ok_or(TokenError::MissingClaim(claim))
        };
        let sub = payload.sub.ok_or(TokenError::MissingClaim("sub"))?;
        let issued_at_ms = millis(payload.iat, "iat")?;
        let expires_at_ms = millis(payload.exp, "exp")?;
        let claims = Claims {
            player: PlayerName::new(&sub).map_err(|_| TokenError::BadPlayer)?,
            issued_at_ms,
            expires_at_ms,
        };
        if now_ms >= expires_at_ms {
            return Err(TokenError::Expired);
        }
        let begins_at = payload.nbf.map_or(0, to_millis).max(issued_at_ms);
        if begins_at > now_ms.saturating_add(self.iat_ahead_ms) {
            return Err(TokenError::IssuedAhead);
        }
        Ok(claims)
    }

    fn verify_signature(&self, token: &str) -> Result<Payload, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed);
        }
        let (head, _) = token.split_once('.').ok_or(TokenError::Malformed)?;
        let head = URL_SAFE_NO_PAD
            .decode(head)
            .map_err(|_| TokenError::Malformed)?;
        let head: Head = serde_json::from_slice(&head).map_err(|_| TokenError::Malformed)?;
        match head.alg.as_deref() {
            Some("HS256") => {}
            Some(_) => return Err(TokenError::WrongAlgorithm),
            None => return Err(TokenError::Malformed),
        }
        let named = |key: &&Key| head.kid.is_none() || key.kid.is_none() || key.kid == head.kid;
        let mut outcome = Err(TokenError::UnknownKid);
        for key in self.keys.iter().filter(named) {
            outcome = jsonwebtoken::decode::<Payload>(token, &key.verify, &self.validation)
                .map(|data| data.claims)
                .map_err(|error| match error.kind() {
                    ErrorKind::InvalidSignature => TokenError::BadSignature,
                    ErrorKind::InvalidAlgorithm => TokenError::WrongAlgorithm,
                    ErrorKind::InvalidAudience => TokenError::OtherAudience,
                    _ => TokenError::Malformed,
                });
            if !matches!(outcome, Err(TokenError::BadSignature)) {
                break;
            }
        }
        outcome
    }

    /// Signs a token for the player with the first key, valid for `ttl_s` seconds from `now_ms` on.
    ///
    /// # Panics
    /// Never: HMAC takes every key and JSON every claim of a token.
    #[must_use]
    pub fn sign(&self, player: &PlayerName, now_ms: u64, ttl_s: u64) -> String {
        let key = &self.keys[0]; // There is one: `files::find` gives no empty list.
        let mut header = Header::new(Algorithm::HS256);
        header.kid.clone_from(&key.kid);
        let iat = now_ms / 1_000;
        let payload = SignedPayload {
            sub: player.as_str(),
            iat,
            exp: iat.saturating_add(ttl_s),
        };
        jsonwebtoken::encode(&header, &payload, &key.sign).expect("HMAC signs everything")
    }
}

/// A NumericDate (seconds, perhaps with a fraction) in milliseconds.
fn to_millis(seconds: f64) -> u64 {
    // The conversion saturates: a date before the epoch is the epoch, one past all time is the end of time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let millis = (seconds * 1_000.0) as u64;
    millis
}

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|key| &key.kid))
            .finish()
    }
}
