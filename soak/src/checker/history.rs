//! Checks of a page of history, which tells when each credit was made.

use super::{Checker, kind};
use serde::Deserialize;
use std::borrow::Cow;

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    entries: Vec<HistoryEntry<'a>>,
}

#[derive(Deserialize)]
struct HistoryEntry<'a> {
    seq: u64,
    at: u64,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    find: Option<Cow<'a, str>>,
    #[serde(default)]
    found_at: Option<u64>,
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
}

impl Checker {
    /// A page of the newest entries. It says nothing of the cursor: between the two the store's history may have been cut,
    /// which the next poll tells.
    pub fn looked_back(&mut self, user: u32, body: &[u8]) {
        let page: Page<'_> = match serde_json::from_slice(body) {
            Ok(page) => page,
            Err(error) => {
                self.found(user, kind::MALFORMED, format!("a page of history: {error}"));
                return;
            }
        };
        for pair in page.entries.windows(2) {
            if pair[0].seq != pair[1].seq + 1 {
                let text = format!("entry {} follows entry {}", pair[0].seq, pair[1].seq);
                self.found(user, kind::SEQUENCE, text);
            }
        }
        let mut credited: Vec<&str> = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let (Some(find), Some(found_at)) = (&entry.find, entry.found_at) else {
                continue;
            };
            let took_ms = entry.at.checked_sub(found_at);
            match &*entry.kind {
                "credit" => {
                    if took_ms.is_none_or(|took_ms| took_ms > self.window_ms) {
                        let text = format!("{find} found at {found_at}, credited at {}", entry.at);
                        self.found(user, kind::OUTSIDE_WINDOW, text);
                    }
                    if credited.contains(&&**find) {
                        self.found(
                            user,
                            kind::CREDITED_TWICE,
                            format!("{find}, by its history"),
                        );
                    }
                    credited.push(find);
                }
                "expiry" if entry.reason.as_deref() == Some("window") => {
                    if took_ms.is_none_or(|took_ms| took_ms <= self.window_ms) {
                        let text = format!("{find} found at {found_at}, expired at {}", entry.at);
                        self.found(user, kind::EXPIRED_UNLAWFULLY, text);
                    }
                }
                _ => {}
            }
        }
    }
}
