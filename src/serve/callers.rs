//! Whose token a request carries.

use super::app::{App, Seen, bearer, looked_up, token_problem};
use super::problem::Problem;
use super::waits::StoreWait;
use crate::auth::Claims;
use crate::game::ids::{PlayerId, PlayerName};
use crate::metrics::StoreCommand;
use crate::store::Opening;
use axum::http::HeaderMap;
use std::sync::Arc;
use std::time::Instant;

/// The most players who are looked up for polls that have been answered already.
pub const OPENINGS_MAX: usize = 4_096;

/// A token's player.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The name.
    pub name: PlayerName,
    /// The number.
    pub player: PlayerId,
}

/// What a token says before the store is asked.
enum Recognised {
    /// The player is known.
    Known(Caller),
    /// The store has to say which number the name has.
    Named(Named),
}

struct Named {
    token: String,
    claims: Claims,
    /// From before the last reset or erasure.
    before: Option<Seen>,
    /// How many of these there were.
    forgotten: u64,
}

impl App {
    /// The player whose token the request carries. A player comes to be when first seen here.
    ///
    /// # Errors
    /// 401 without a token, or with one that opens nothing; 503 when the store is needed and away.
    pub async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        match self.recognise(headers)? {
            Recognised::Known(caller) => Ok(caller),
            Recognised::Named(named) => self.open(named).await,
        }
    }

    /// The same for a poll, which waits for the store no longer than for a credit where the player was known before a reset:
    /// after a failover everybody is looked up anew at about the same time. True: this is who it was then; what is known of
    /// that player from then can be shown, and nothing else. The looking up goes on. `until`: [`Self::patience`].
    ///
    /// # Errors
    /// As [`Self::caller`].
    pub async fn caller_of_poll(
        self: &Arc<Self>,
        headers: &HeaderMap,
        until: Instant,
    ) -> Result<(Caller, bool), Problem> {
        let named = match self.recognise(headers)? {
            Recognised::Known(caller) => return Ok((caller, false)),
            Recognised::Named(named) => named,
        };
        let Some(before) = named.before else {
            return Ok((self.open(named).await?, false));
        };
        let caller = Caller {
            name: named.claims.player.clone(),
            player: before.player,
        };
        let Ok(turn) = self.openings.clone().try_acquire_owned() else {
            return Ok((caller, true));
        };
        let app = self.clone();
        let opening = tokio::spawn(async move {
            let _turn = turn;
            app.open(named).await
        });
        let waits = StoreWait::begin(StoreCommand::OpenPlayers.as_str());
        let opened = tokio::time::timeout_at(until.into(), opening).await;
        drop(waits);
        match opened {
            Ok(Ok(opened)) => Ok((opened?, false)),
            // It panicked, or takes longer.
            Ok(Err(_)) | Err(_) => Ok((caller, true)),
        }
    }

    fn recognise(&self, headers: &HeaderMap) -> Result<Recognised, Problem> {
        let token = bearer(headers)?;
        let now = self.store.now();
        let mut hot = self.hot();
        let forgotten = hot.forgotten();
        let (claims, before) = match hot.tokens.get(token.as_bytes(), now) {
            Some(entry) => {
                let vouched =
                    |seen: &Seen| !self.is_recovering() && self.store.vouches_for(seen.player);
                if let Some(seen) = entry
                    .slot
                    .as_mut()
                    .filter(|seen| seen.as_of == forgotten || vouched(seen))
                {
                    seen.as_of = forgotten;
                    return Ok(Recognised::Known(Caller {
                        name: entry.claims.player.clone(),
                        player: seen.player,
                    }));
                }
                (entry.claims.clone(), entry.slot)
            }
            None => {
                let claims = self.keys().verify(token, now).map_err(token_problem)?;
                hot.tokens.insert(token.as_bytes(), claims.clone(), None);
                (claims, None)
            }
        };
        Ok(Recognised::Named(Named {
            token: token.to_owned(),
            claims,
            before,
            forgotten,
        }))
    }

    async fn open(&self, named: Named) -> Result<Caller, Problem> {
        let Named {
            token,
            claims,
            before,
            forgotten,
        } = named;
        let opening = Opening {
            name: claims.player.clone(),
            issued_at: Some(claims.issued_at_ms),
            known: before.map(|before| before.player),
        };
        let opened = self
            .ask(
                StoreCommand::OpenPlayers,
                self.store.open_players(vec![opening]),
            )
            .await
            .map_err(looked_up);
        let unsure = opened.is_err();
        let opened = match (opened, before) {
            (Ok(opened), _) => opened,
            // The number from before the store was reset is better than no answer.
            (Err(_), Some(before)) => vec![Ok(before.player)],
            (Err(error), _) => return Err(error.into()),
        };
        let Some(Ok(player)) = opened.into_iter().next() else {
            return Err(Problem::unauthorized(
                "erased",
                "the player was erased after this token was issued",
            ));
        };
        let mut hot = self.hot();
        // An erasure since then may be of this player, whose number the token must not open again.
        if hot.forgotten() == forgotten
            && !unsure
            && let Some(entry) = hot.tokens.get(token.as_bytes(), self.store.now())
        {
            entry.slot = Some(Seen {
                player,
                place: 0,
                as_of: forgotten,
            });
        }
        drop(hot);
        Ok(Caller {
            name: claims.player,
            player,
        })
    }
}
