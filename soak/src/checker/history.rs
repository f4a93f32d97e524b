//! Checks of a page of history, which tells when each credit was made.

use super::wallet::Wallet;
use super::{Checker, kind};
use crate::books::{Told, ids};
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
    #[serde(default)]
    coins: i64,
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
}

impl Checker {
    /// A page of the newest entries. It says nothing of the cursor: between the two the store's history may have been cut,
    /// which the next poll tells.
    pub fn looked_back(&mut self, user: u32, wallet: &mut Wallet, body: &[u8]) {
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
                "expiry"
                    if entry.reason.as_deref() == Some("window")
                        && took_ms.is_none_or(|took_ms| took_ms <= self.window_ms) =>
                {
                    let text = format!("{find} found at {found_at}, expired at {}", entry.at);
                    self.found(user, kind::EXPIRED_UNLAWFULLY, text);
                }
                _ => {}
            }
        }
        if std::mem::take(&mut wallet.looks_back) {
            self.learn_fates(user, wallet, &page);
        }
    }

    /// What became of open finds, as far as the cursor: what came later the next polls tell.
    fn learn_fates(&mut self, user: u32, wallet: &mut Wallet, page: &Page<'_>) {
        let Some(cursor) = wallet.cursor else { return };
        for entry in page.entries.iter().filter(|entry| entry.seq <= cursor.seq) {
            let told = match &*entry.kind {
                "credit" | "reinstatement" => Told::Credited,
                "expiry" => Told::Expired,
                _ => continue,
            };
            let (Some(id), Some(found_at)) = (&entry.find, entry.found_at) else {
                continue;
            };
            let Some(number) = ids::find_number(id) else {
                continue;
            };
            let Some(open) = wallet.finish(number) else {
                continue;
            };
            match told {
                Told::Credited => self.counts.credits += 1,
                _ => self.counts.expiries += 1,
            }
            let coins = u64::try_from(entry.coins).unwrap_or(0);
            self.same_coins(user, open.coins, coins, id);
            self.enter(user, number, told, (coins, found_at, entry.seq));
        }
        if page.entries.last().is_some_and(|entry| entry.seq > 1) {
            // There is more than a page. What is still open is left to the books.
            for open in wallet.open_mut() {
                open.lost = true;
            }
        }
    }
}
