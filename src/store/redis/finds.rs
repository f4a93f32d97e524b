//! Recording finds.

use super::cache::CachedHunt;
use super::entry::{FeedEntry, Kind, Ledger, What as Recorded_, parse};
use super::hunts::{LOCK_MS, LOOK_AGAIN};
use super::jobs::{Answer, Job, Reader, integer};
use super::replay::item::Item;
use super::shared::{Core, id_digest};
use crate::game::Millis;
use crate::game::entry::{Change, Entry, ExpiryReason, Find};
use crate::game::hunt::HuntState;
use crate::game::ids::{FindId, HuntId, PlayerId};
use crate::game::rules::{self, Decision, Identity, NewFind, Refusal, What};
use crate::game::wallet::Wallet;
use crate::store::{Erased, RecordOutcome, RecordRefusal, Recorded, StoreError};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trove_streams::keys::base62;
use trove_streams::{EntryId, Partition};

/// The most finds that one call of the script records, so that none keeps others waiting.
const FINDS_A_CALL_MAX: usize = 64;

/// A find on its way: where its outcome goes, and under what it is remembered.
struct Asked<'a> {
    index: usize,
    new: &'a NewFind,
    identity: Identity,
    /// The treasure's number.
    treasure: Option<u32>,
}

/// What a script says of one find.
enum Outcome {
    Is(RecordOutcome),
    /// It was recorded before, at this time.
    Repeated(Find, Millis),
    /// It was not looked at; ask again.
    Again,
    /// Other partitions would have to lend so many coins.
    Needs(u64),
}

/// What the operator said last, as scripts have it.
pub(super) fn operator_letter(state: Option<HuntState>) -> &'static str {
    match state {
        Some(HuntState::Open) => "o",
        Some(HuntState::Closed) => "c",
        Some(HuntState::Archived) => "a",
        Some(HuntState::Draft) | None => "-",
    }
}

impl Core {
    /// See [`crate::store::Store::record`].
    pub(super) async fn record(
        &self,
        id: &HuntId,
        finds: &[(PlayerId, NewFind)],
    ) -> Result<Recorded, StoreError> {
        if self.shared.feed_full.load(Ordering::Relaxed) {
            return Err(StoreError::FeedFull);
        }
        let mut outcomes: Vec<Option<RecordOutcome>> = finds.iter().map(|_| None).collect();
        let mut wallets: HashMap<PlayerId, Wallet> = HashMap::new();
        let mut repeated: HashMap<usize, Millis> = HashMap::new();
        let finds = &*self.settled_finds(finds).await?;
        let epoch = self.shared.epoch();
        let began = Instant::now();
        loop {
            let hunt = self.hunt(id).await?;
            let stale = self
                .record_open(&hunt, finds, &mut outcomes, (&mut wallets, &mut repeated))
                .await?;
            if !stale {
                break;
            }
            self.catch_up(&hunt, began)
                .await
                .map_err(|error| after(error, &outcomes))?;
        }
        let replay = &self.shared.replay;
        let now = self.shared.clock.now();
        let acknowledged = |(index, (player, _)): (usize, &(PlayerId, NewFind))| {
            let (find, at) = match &outcomes[index] {
                Some(Ok(Decision::Recorded(entry, _))) => match &entry.change {
                    Change::Find(find) => (find, entry.at),
                    _ => return None,
                },
                // The first answer may never have come to whoever recorded it: it is this one that a client relies on.
                Some(Ok(Decision::Duplicate(find))) => {
                    let at = *repeated.get(&index)?;
                    if !replay.keeps_repeated((id, *player, find.seq), at, now) {
                        return None;
                    }
                    (find, at)
                }
                _ => return None,
            };
            Some(Item::Find {
                hunt: id.clone(),
                player: *player,
                find: find.clone(),
                at,
            })
        };
        let items = finds.iter().enumerate().filter_map(acknowledged).collect();
        replay.keep(items, epoch).await?;
        let lost = || Err(RecordRefusal::Rule(Refusal::NoSuchTreasure));
        Ok(Recorded {
            outcomes: outcomes
                .into_iter()
                .map(|outcome| outcome.unwrap_or_else(lost))
                .collect(),
            wallets: wallets.into_iter().collect(),
        })
    }

    /// The finds with the numbers that their players have since the last failover.
    async fn settled_finds<'a>(
        &self,
        finds: &'a [(PlayerId, NewFind)],
    ) -> Result<Cow<'a, [(PlayerId, NewFind)]>, StoreError> {
        let replay = &self.shared.replay;
        let Some((first, _)) = finds.first() else {
            return Ok(Cow::Borrowed(finds));
        };
        replay.settled_player(*first).await?;
        if !replay.any_moved() {
            return Ok(Cow::Borrowed(finds));
        }
        let settled = finds.iter().cloned();
        Ok(settled
            .map(|(player, find)| (replay.moved(player), find))
            .collect())
    }

    /// Reads a hunt again whose generation was not the partition's; waits while it is being changed.
    pub(super) async fn catch_up(
        &self,
        hunt: &CachedHunt,
        began: Instant,
    ) -> Result<(), StoreError> {
        let id = &hunt.hunt.spec.id;
        if began.elapsed() > Duration::from_millis(2 * LOCK_MS) {
            return Err(StoreError::Busy);
        }
        if self.load_hunt(id).await?.hunt.generation > hunt.hunt.generation {
            return Ok(());
        }
        if began.elapsed() > Duration::from_millis(LOCK_MS) {
            return self.repair_hunt(id).await;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        Ok(())
    }

    /// Records what has no outcome yet. Says whether some of it met another generation of the hunt.
    async fn record_open(
        &self,
        hunt: &CachedHunt,
        finds: &[(PlayerId, NewFind)],
        outcomes: &mut [Option<RecordOutcome>],
        (wallets, repeated): (&mut HashMap<PlayerId, Wallet>, &mut HashMap<usize, Millis>),
    ) -> Result<bool, StoreError> {
        let now = self.shared.clock.now();
        let mut refused = Vec::new();
        let mut calls: Vec<(PlayerId, Vec<Asked<'_>>)> = Vec::new();
        let mut call_of: HashMap<PlayerId, usize> = HashMap::new();
        for (index, (player, new)) in finds
            .iter()
            .enumerate()
            .filter(|(index, _)| outcomes[*index].is_none())
        {
            let identity = match rules::identify(&hunt.hunt, new, now) {
                Ok(identity) => identity,
                Err(refusal) => {
                    refused.push((index, refusal));
                    continue;
                }
            };
            let call = match call_of.get(player) {
                Some(call) if calls[*call].1.len() < FINDS_A_CALL_MAX => *call,
                _ => {
                    calls.push((*player, Vec::new()));
                    call_of.insert(*player, calls.len() - 1);
                    calls.len() - 1
                }
            };
            let treasure = match &new.what {
                What::Treasure(id) => hunt.hunt.treasure(id).map(|(_, number)| number),
                What::Coins(_) => None,
            };
            calls[call].1.push(Asked {
                index,
                new,
                identity,
                treasure,
            });
        }
        if !refused.is_empty() {
            // What this instance's copy of the hunt refuses may be right by a later one: a call without finds asks.
            calls.push((PlayerId(0), Vec::new()));
        }
        let mut jobs = Vec::with_capacity(calls.len());
        for (player, asked) in &calls {
            jobs.push(self.record_job(hunt, *player, asked)?);
        }
        let mut stale = false;
        let mut failure = None;
        let mut short = Vec::new();
        for ((player, asked), answer) in calls.iter().zip(self.run_all(&jobs).await) {
            match answer {
                Answer::Reply(value) => {
                    let mut reader = Reader::new(value)?;
                    let at = reader.number()?;
                    let wallet = reader.wallet()?;
                    for ask in asked {
                        let outcome = match self.outcome(hunt, at, ask, &mut reader)? {
                            Outcome::Is(outcome) => outcome,
                            Outcome::Repeated(find, at) => {
                                repeated.insert(ask.index, at);
                                Ok(Decision::Duplicate(find))
                            }
                            Outcome::Again => {
                                stale = true;
                                continue;
                            }
                            Outcome::Needs(coins) => {
                                short.push((ask.index, *player, coins));
                                continue;
                            }
                        };
                        if let Ok(Decision::Recorded(..)) = &outcome {
                            wallets.insert(*player, wallet);
                            if let Some(treasure) = ask.treasure {
                                let partition = self.shared.partition_of(*player).index();
                                self.shared
                                    .hunts
                                    .noted(hunt.hunt.number, partition, treasure);
                            }
                        }
                        outcomes[ask.index] = Some(outcome);
                    }
                    if asked.is_empty() {
                        for (index, refusal) in refused.drain(..) {
                            outcomes[index] = Some(Err(refusal.into()));
                        }
                    }
                }
                Answer::Generation => stale = true,
                Answer::Failed(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            return Err(after(error, outcomes));
        }
        self.shared.wrote();
        // One at a time: what it is lent, or is refused, decides about the others, which are asked again.
        if let Some((index, player, coins)) = short.first() {
            stale |= short.len() > 1;
            let partition = self.shared.partition_of(*player);
            if self
                .borrow(hunt, partition, *coins)
                .await
                .map_err(|error| after(error, outcomes))?
            {
                stale = true;
            } else {
                outcomes[*index] = Some(Err(Refusal::CoinsOutOfRange.into()));
            }
        }
        Ok(stale)
    }

    /// Lets other partitions of a hunt lend one coins that it may record. Says whether they had as many.
    pub(super) async fn borrow(
        &self,
        hunt: &CachedHunt,
        partition: Partition,
        coins: u64,
    ) -> Result<bool, StoreError> {
        let number = hunt.number_text();
        let job = |of: Partition, give: u64, take: u64| {
            Job::new(
                &self.shared.scripts.lend,
                vec![self.shared.keys.partition(of).state()],
            )
            .arg(&number)
            .number(self.shared.share(of))
            .number(give)
            .number(take)
        };
        let mut lent = 0;
        for other in self
            .shared
            .partitions()
            .into_iter()
            .filter(|other| *other != partition)
        {
            if lent < coins {
                let given = integer(&self.ask(job(other, coins - lent, 0)).await?)?;
                lent += u64::try_from(given).unwrap_or_default();
            }
        }
        if lent > 0 {
            self.ask(job(partition, 0, lent)).await?;
        }
        Ok(lent >= coins)
    }

    fn record_job(
        &self,
        hunt: &CachedHunt,
        player: PlayerId,
        asked: &[Asked<'_>],
    ) -> Result<Job<'_>, StoreError> {
        let shared = &self.shared;
        let number = hunt.number_text();
        let partition = shared.partition_of(player);
        let keys = shared.keys.partition(partition);
        let keys = vec![
            keys.state(),
            keys.feed(),
            keys.wallet(&number, player.0),
            keys.due(),
            keys.erased(),
            keys.found(&number),
            keys.outages(),
        ];
        let (spec, limits) = (&hunt.hunt.spec, &shared.options.limits);
        let mut job = Job::new(&shared.scripts.record, keys)
            .arg(&number)
            .arg(base62(player.0))
            .number(hunt.hunt.generation)
            .arg(operator_letter(hunt.hunt.operator));
        job.push_maybe(spec.opens_at);
        job.push_maybe(spec.closes_at);
        job.push_number(spec.window_ms);
        job.push_number(limits.pending_finds_max);
        job.push_number(limits.find_id_ttl_ms);
        job.push_number(shared.share(partition));
        for ask in asked {
            let treasure = match &ask.new.what {
                What::Treasure(id) => hunt.hunt.treasure(id),
                What::Coins(_) => None,
            };
            let coins = match (&ask.new.what, treasure) {
                (What::Coins(coins), _) => *coins,
                (_, Some((treasure, _))) => treasure.coins,
                // `identify` has found it in the same copy of the hunt.
                (_, None) => return Err(StoreError::NoSuchHunt),
            };
            let note = ask.treasure.is_some_and(|number| {
                shared
                    .hunts
                    .must_note(hunt.hunt.number, partition.index(), number)
            });
            match &ask.identity {
                Identity::Once(number) => {
                    job.push(format!("o{number}"));
                }
                Identity::Client(id) => {
                    let mut field = [b'r'; 17];
                    field[1..].copy_from_slice(&id_digest(id.as_str()));
                    job.push(field);
                }
            }
            job.push_maybe(ask.treasure.map(u64::from));
            job.push_number(coins);
            job.push_maybe(ask.new.found_at);
            match &ask.identity {
                Identity::Once(_) => {
                    job.push("0");
                    job.push("-");
                }
                Identity::Client(id) => {
                    job.push("1");
                    job.push(id.as_str());
                }
            }
            job.push(if note { "1" } else { "0" });
        }
        Ok(job)
    }

    fn outcome(
        &self,
        hunt: &CachedHunt,
        at: Millis,
        ask: &Asked<'_>,
        reply: &mut Reader,
    ) -> Result<Outcome, StoreError> {
        let kind = reply.text()?;
        match kind.as_str() {
            "f" => {
                let (seq, found_at, expiry) = (reply.number()?, reply.number()?, reply.text()?);
                let find = made(hunt, ask, seq, found_at)?;
                let entry = Entry {
                    seq,
                    at,
                    change: Change::Find(find.clone()),
                };
                let reason = match expiry.as_str() {
                    "" => return Ok(Outcome::Is(Ok(Decision::Recorded(entry, None)))),
                    "o" => ExpiryReason::StoreOutage,
                    _ => ExpiryReason::Window,
                };
                let expired = Entry {
                    seq: seq + 1,
                    at,
                    change: Change::Expire(find, reason),
                };
                Ok(Outcome::Is(Ok(Decision::Recorded(entry, Some(expired)))))
            }
            "d" => {
                let (id, text) = (reply.text()?, reply.text()?);
                let (prior, at) = first_answer(hunt, &id, &text)?;
                Ok(if same_content(&prior, &ask.new.what) {
                    Outcome::Repeated(prior, at)
                } else {
                    Outcome::Is(Err(Refusal::FindConflict.into()))
                })
            }
            _ => {
                let refusal = match reply.text()?.as_str() {
                    "erased" => return Ok(Outcome::Is(Err(Erased.into()))),
                    "again" => return Ok(Outcome::Again),
                    "share" => return Ok(Outcome::Needs(reply.number()?)),
                    "ahead" => Refusal::FoundAtAhead,
                    "archived" => Refusal::HuntArchived,
                    "closed" => Refusal::HuntNotOpen(HuntState::Closed),
                    "draft" => Refusal::HuntNotOpen(HuntState::Draft),
                    "many" => Refusal::TooManyPending,
                    "range" => Refusal::CoinsOutOfRange,
                    _ => {
                        return Err(StoreError::Damaged(
                            "the entry of a remembered find is missing".into(),
                        ));
                    }
                };
                Ok(Outcome::Is(Err(refusal.into())))
            }
        }
    }
}

/// An error after some of the work was done says that the rest is unknown.
fn after(error: StoreError, outcomes: &[Option<RecordOutcome>]) -> StoreError {
    if outcomes
        .iter()
        .any(|outcome| matches!(outcome, Some(Ok(Decision::Recorded(..)))))
    {
        StoreError::Unknown(format!("some of the finds are recorded, then: {error}"))
    } else {
        error
    }
}

fn made(
    hunt: &CachedHunt,
    ask: &Asked<'_>,
    seq: u64,
    found_at: Millis,
) -> Result<Find, StoreError> {
    let (treasure, coins) = match &ask.new.what {
        What::Coins(coins) => (None, *coins),
        What::Treasure(id) => {
            let (treasure, _) = hunt.hunt.treasure(id).ok_or(StoreError::NoSuchHunt)?;
            (Some(id.clone()), treasure.coins)
        }
    };
    let id = match (&ask.identity, &treasure) {
        (Identity::Client(id), _) => id.clone(),
        (Identity::Once(_), Some(id)) => {
            FindId::new(id.as_str()).map_err(|error| StoreError::Damaged(error.to_string()))?
        }
        (Identity::Once(_), None) => return Err(StoreError::Damaged("a find of nothing".into())),
    };
    Ok(Find {
        seq,
        id,
        treasure,
        coins,
        found_at,
        expires_at: found_at + hunt.hunt.spec.window_ms,
        repeatable: matches!(ask.identity, Identity::Client(_)),
    })
}

/// The find that an entry of the feed recorded, and when.
fn first_answer(hunt: &CachedHunt, id: &str, text: &str) -> Result<(Find, Millis), StoreError> {
    let damaged = || StoreError::Damaged(format!("entry {id} of the feed records no find"));
    let id: EntryId = id.parse().map_err(|_| damaged())?;
    match parse(id, text) {
        Ok(FeedEntry::Ledger(Ledger {
            what: Recorded_::Find(Kind::Found, find),
            ..
        })) => Ok((find.named(hunt).ok_or_else(damaged)?, id.ms)),
        _ => Err(damaged()),
    }
}

/// Rule 5: the content is the treasure, and for a find without one its coins.
fn same_content(find: &Find, what: &What) -> bool {
    match (&find.treasure, what) {
        (Some(made), What::Treasure(asked)) => made == asked,
        (None, What::Coins(coins)) => find.coins == *coins,
        _ => false,
    }
}
