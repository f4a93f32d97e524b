//! Who a request's token speaks for.

use super::balance::{PlayerKey, player_key};
use super::instance::lock;
use super::presence::Presence;
use crate::auth::{TOKEN_BYTES_MAX, TokenCache, TokenKeys};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is kept beside a verified token.
struct Slot {
    key: PlayerKey,
    /// When its player was last marked as present.
    marked_at: u32,
}

/// The players, as far as the shim knows them: by tokens that it verified, or else by tokens as they are.
pub(super) struct Players {
    keys: Option<TokenKeys>,
    verified: Mutex<TokenCache<Slot>>,
    presence: Arc<Presence>,
}

impl Players {
    /// Without keys no token is verified, and nobody counts as online.
    pub(super) fn new(keys: Option<TokenKeys>, tokens_max: usize, presence: Arc<Presence>) -> Self {
        Self {
            keys,
            verified: Mutex::new(TokenCache::new(tokens_max)),
            presence,
        }
    }

    /// The key of the player that an `Authorization` speaks for: of its verified `sub`, or of its bytes.
    pub(super) fn key(&self, authorization: &[u8]) -> Option<PlayerKey> {
        let token = bearer(authorization)?;
        let known = self.with_verified(token, |slot| slot.key);
        Some(known.unwrap_or_else(|| player_key(token)))
    }

    /// A heartbeat with this `Authorization` came. It counts only with a valid token.
    pub(super) fn present(&self, authorization: &[u8]) {
        let Some(token) = bearer(authorization) else {
            return;
        };
        let tick = self.presence.tick();
        let unmarked = self.with_verified(token, |slot| {
            let unmarked = slot.marked_at != tick;
            slot.marked_at = tick;
            unmarked.then_some(slot.key)
        });
        if let Some(Some(player)) = unmarked {
            self.presence.mark(player);
        }
    }

    /// Players online.
    pub(super) fn online(&self) -> usize {
        self.presence.online()
    }

    fn with_verified<T>(&self, token: &[u8], use_slot: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let keys = self.keys.as_ref()?;
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let now_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            });
        let mut verified = lock(&self.verified);
        if let Some(entry) = verified.get(token, now_ms) {
            return Some(use_slot(&mut entry.slot));
        }
        let claims = keys.verify(std::str::from_utf8(token).ok()?, now_ms).ok()?;
        let slot = Slot {
            key: player_key(claims.player.as_str().as_bytes()),
            marked_at: u32::MAX,
        };
        Some(use_slot(&mut verified.insert(token, claims, slot).slot))
    }
}

/// The token of `Authorization: Bearer …`; the scheme's case does not matter.
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}
