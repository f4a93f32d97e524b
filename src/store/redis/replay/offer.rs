//! Offers of what this instance executed, kind by kind, and what the store answers to them.

use super::item::{Item, Kind};
use super::uncovered::{Place, Uncovered};
use super::{Dropped, Replay};
use crate::game::Millis;
use crate::game::entry::{Adjustment, Find};
use crate::game::hunt::{Hunt, HuntState};
use crate::game::ids::{HuntId, PlayerId, PlayerName};
use crate::game::rules::{AdjustDecision, AdjustRefusal};
use crate::game::wallet::WalletError;
use crate::store::StoreError;
use crate::store::redis::cache::CachedHunt;
use crate::store::redis::hunts::{Create, Frozen, Judged};
use crate::store::redis::jobs::{Answer, Job, Reader, integer, text};
use crate::store::redis::shared::{Core, id_digest, lock};
use crate::store::redis::state::PartitionState;
use crate::store::redis::wallets::{Outcome as Adjusting, adjusted};
use std::collections::HashMap;
use std::sync::Arc;
use trove_streams::keys::{base62, parse_base62};
use trove_streams::redis::{Value, cmd};

/// What became of an offer.
pub(super) enum Offered {
    /// It was lost and is there again, since this time of the store; 0 where that is not known.
    Back(Millis),
    /// It is there, by what was not done later than this.
    Kept(Millis),
    /// Not now; later perhaps.
    Later,
    /// It cannot come back.
    Not(Dropped),
}

/// What came of an offer; and where it was executed, if that counts only once fences cover it.
pub(super) type Offer = Result<(Offered, Option<Place>), StoreError>;

/// An item with its number in the ring.
pub(super) type Numbered = (u64, Arc<Item>);

impl Core {
    /// Lets the store execute names; what came of it is `uncovered` from then on.
    pub(super) async fn offer_names(
        &self,
        part: &[Numbered],
        uncovered: &mut Uncovered,
    ) -> Result<(), StoreError> {
        let shared = &self.shared;
        let mut jobs = Vec::with_capacity(part.len());
        let mut of = Vec::with_capacity(part.len());
        for (number, item) in part {
            let Item::Player {
                name,
                player,
                issued_at,
                at: _,
            } = &**item
            else {
                continue;
            };
            let keys = shared.keys.player(player.0);
            let keys = vec![
                keys.state(),
                shared.keys.players_by_name(name.as_str().as_bytes()),
                shared.keys.players_by_number(player.0),
                keys.erased_names(),
                keys.erased(),
            ];
            let mut job = Job::new(&shared.scripts.replay_name, keys)
                .arg("0")
                .arg(name.as_str())
                .arg(shared.name_digest(name.as_str())?);
            job.push_maybe(*issued_at);
            job.push(base62(player.0));
            jobs.push(job);
            of.push((*number, *player));
        }
        let answers = self.execute_offers(&jobs).await;
        for ((number, player), (answer, place)) in of.into_iter().zip(answers) {
            let offered = match answer {
                Answer::Reply(value) => {
                    let mut reader = Reader::new(value)?;
                    let now = reader.number()?;
                    match reader.text()?.as_str() {
                        "back" => {
                            shared.replay.regains_number(player);
                            Offered::Back(now)
                        }
                        "kept" => {
                            shared.replay.regains_number(player);
                            Offered::Kept(now)
                        }
                        "x" => {
                            shared.replay.purge(player);
                            Offered::Not(Dropped::Erased)
                        }
                        other => {
                            if let Some(to) = parse_base62(other.as_bytes()) {
                                shared.replay.rename(player, PlayerId(to));
                            }
                            Offered::Kept(now)
                        }
                    }
                }
                Answer::Generation => continue,
                Answer::Failed(error) => return Err(error),
            };
            uncovered.add(place, (number, Kind::Player, offered));
        }
        Ok(())
    }

    pub(super) async fn offer_hunt(&self, lost: &Hunt) -> Offer {
        if let Some(place) = self.has_hunt(lost).await? {
            return Ok((Offered::Kept(0), Some(place)));
        }
        let back = self.bring_back_hunt(lost).await?;
        let offered = if back {
            Offered::Back(0)
        } else {
            Offered::Kept(0)
        };
        Ok((offered, None))
    }

    /// Where a hunt stands, if it is there as it was or changed since, and all partitions know it so. Only looks: to change a
    /// hunt stops its finds everywhere, until fences cover that.
    async fn has_hunt(&self, lost: &Hunt) -> Result<Option<Place>, StoreError> {
        let id = &lost.spec.id;
        let key = self.shared.keys.hunts();
        let sent = self.sending(std::iter::once(key.as_str())).pop().flatten();
        let index = self.index().await?;
        let there = index.into_iter().find(|(other, _)| other == id);
        if there.is_none_or(|(_, generation)| generation < lost.generation) {
            return Ok(None);
        }
        let hunt = self.load_hunt(id).await?;
        let (number, generation) = (hunt.hunt.number, hunt.hunt.generation);
        let states = self.partition_states().await?;
        let known = |state: &PartitionState| state.generation(number) == Some(generation);
        Ok(states.iter().all(known).then_some((key, sent)))
    }

    /// Makes a hunt again what it was before a failover, unless it has been changed as often since. Its number may be
    /// another one then. Says whether anything was lost.
    async fn bring_back_hunt(&self, lost: &Hunt) -> Result<bool, StoreError> {
        let judge = |hunt: Option<&Hunt>, number: u32, _: &Frozen| {
            let number = match hunt {
                Some(hunt) if hunt.generation >= lost.generation => return Judged::Keep(false),
                Some(hunt) => hunt.number,
                None => number,
            };
            let mut back = lost.clone();
            back.number = number;
            Judged::Write(Box::new(back), true)
        };
        // Its own number, if it can be had: partitions of other servers may have kept what they hold under it.
        let hunts = self.all_hunts().await?;
        let is_taken = hunts
            .iter()
            .any(|other| other.hunt.number == lost.number && other.hunt.spec.id != lost.spec.id);
        let create = if is_taken {
            Create::Next
        } else {
            Create::With(lost.number)
        };
        let (back, _) = self.change(&lost.spec.id, create, judge).await?;
        Ok(back)
    }

    pub(super) async fn offer_erasure(
        &self,
        name: &PlayerName,
        player: Option<PlayerId>,
        at: Millis,
    ) -> Offer {
        let keys = &self.shared.keys;
        let word = name.as_str();
        let partition = keys.partition(keys.partitions().of_name(word.as_bytes()));
        let keys = vec![
            partition.state(),
            keys.players_by_name(word.as_bytes()),
            partition.erased_names(),
            partition.erased(),
        ];
        let job = Job::new(&self.shared.scripts.replay_erased, keys)
            .arg("0")
            .arg(word)
            .arg(self.shared.name_digest(word)?)
            .arg(player.map_or_else(String::new, |player| base62(player.0)))
            .number(at);
        let (answer, place) = self.execute_offer(job).await;
        match text(answer.reply()?)?.as_str() {
            "kept" => Ok((Offered::Kept(0), Some(place))),
            "lost" => {
                self.erase_as_of(name, player, at).await?;
                Ok((Offered::Back(0), None))
            }
            _ => Ok((Offered::Not(Dropped::Conflict), Some(place))),
        }
    }

    /// Lets the store execute finds, credits and reinstatements; what came of it is `uncovered` from then on.
    pub(super) async fn offer_finds(
        &self,
        part: &[Numbered],
        epoch: u64,
        uncovered: &mut Uncovered,
    ) -> Result<(), StoreError> {
        let mut hunts: HashMap<HuntId, Option<Arc<CachedHunt>>> = HashMap::new();
        let mut jobs = Vec::with_capacity(part.len());
        let mut of = Vec::with_capacity(part.len());
        for (number, item) in part {
            let (letter, hunt, player, find, at) = match &**item {
                Item::Find {
                    hunt,
                    player,
                    find,
                    at,
                } => ("f", hunt, player, find, at),
                Item::Credit {
                    hunt,
                    player,
                    find,
                    at,
                } => ("c", hunt, player, find, at),
                Item::Reinstatement {
                    hunt,
                    player,
                    find,
                    at,
                } => ("r", hunt, player, find, at),
                _ => continue,
            };
            let cached = match hunts.get(hunt) {
                Some(cached) => cached.clone(),
                None => {
                    let cached = match self.hunt(hunt).await {
                        Ok(cached) => Some(cached),
                        // Another instance may bring it back.
                        Err(StoreError::NoSuchHunt) => None,
                        Err(error) => return Err(error),
                    };
                    hunts.insert(hunt.clone(), cached.clone());
                    cached
                }
            };
            let Some(cached) = cached else { continue };
            let offered = if cached.hunt.operator == Some(HuntState::Archived) {
                Some(Offered::Not(Dropped::Archived))
            } else {
                match self.replay_job(&cached, *player, find, (letter, *at)) {
                    Some(job) => {
                        jobs.push(job);
                        of.push((*number, item.kind(), *player, cached.clone()));
                        None
                    }
                    None => Some(Offered::Not(Dropped::Missing)),
                }
            };
            if let Some(offered) = offered
                && !self.take(epoch, (*number, item.kind()), Ok(offered))
            {
                return Err(StoreError::Busy);
            }
        }
        let answers = self.execute_offers(&jobs).await;
        for ((number, kind, player, hunt), (answer, place)) in of.into_iter().zip(answers) {
            let offered = match answer {
                Answer::Reply(value) => self.offered(&hunt, player, value).await,
                Answer::Generation => self
                    .load_hunt(&hunt.hunt.spec.id)
                    .await
                    .map(|_| Offered::Later),
                Answer::Failed(error) => return Err(error),
            };
            let offer = offered.map(|offered| (offered, Some(place)));
            if !self.note_offer(epoch, (number, kind), offer, uncovered) {
                return Err(StoreError::Busy);
            }
        }
        Ok(())
    }

    /// `None` when the hunt no longer has the treasure.
    fn replay_job(
        &self,
        hunt: &CachedHunt,
        player: PlayerId,
        find: &Find,
        (letter, at): (&str, Millis),
    ) -> Option<Job<'_>> {
        let shared = &self.shared;
        let player = shared.replay.moved(player);
        let treasure = match &find.treasure {
            Some(id) => Some(*hunt.hunt.treasure_numbers.get(id)?),
            None => None,
        };
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
        ];
        let mut job = Job::new(&shared.scripts.replay, keys)
            .arg(&number)
            .arg(base62(player.0))
            .number(hunt.hunt.generation)
            .arg(letter);
        if find.repeatable {
            let mut field = [b'r'; 17];
            field[1..].copy_from_slice(&id_digest(find.id.as_str()));
            job.push(field);
        } else {
            job.push(format!("o{}", treasure?));
        }
        job.push_maybe(treasure.map(u64::from));
        job.push_number(find.coins);
        job.push_number(find.found_at);
        job.push_number(find.expires_at - find.found_at);
        job.push(if find.repeatable { "1" } else { "0" });
        job.push(if find.repeatable {
            find.id.as_str()
        } else {
            "-"
        });
        job.push_number(at);
        job.push_number(shared.options.limits.find_id_ttl_ms);
        job.push_number(shared.share(partition));
        Some(job)
    }

    async fn offered(
        &self,
        hunt: &CachedHunt,
        player: PlayerId,
        value: Value,
    ) -> Result<Offered, StoreError> {
        let mut reader = Reader::new(value)?;
        let (now, _wallet) = (reader.number()?, reader.wallet()?);
        let mut answer = reader.list()?;
        match answer.text()?.as_str() {
            "back" => Ok(Offered::Back(now)),
            "kept" => Ok(Offered::Kept(now)),
            _ => match answer.text()?.as_str() {
                "erased" => Ok(Offered::Not(Dropped::Erased)),
                "conflict" => Ok(Offered::Not(Dropped::Conflict)),
                "share" => {
                    let coins = answer.number()?;
                    let partition = self.shared.partition_of(self.shared.replay.moved(player));
                    if self.borrow(hunt, partition, coins).await? {
                        Ok(Offered::Later)
                    } else {
                        Ok(Offered::Not(Dropped::Coins))
                    }
                }
                "range" => Ok(Offered::Not(Dropped::Coins)),
                // A reinstatement waits for the find to have run out.
                "pending" => Ok(Offered::Later),
                _ => Ok(Offered::Not(Dropped::Missing)),
            },
        }
    }

    pub(super) async fn offer_adjustment(
        &self,
        id: &HuntId,
        player: PlayerId,
        adjustment: &Adjustment,
    ) -> Offer {
        let player = self.shared.replay.moved(player);
        let hunt = match self.hunt(id).await {
            Ok(hunt) => hunt,
            Err(StoreError::NoSuchHunt) => return Ok((Offered::Later, None)),
            Err(error) => return Err(error),
        };
        let mut is_erased = cmd("SISMEMBER");
        is_erased
            .arg(self.shared.keys.player(player.0).erased())
            .arg(base62(player.0));
        if integer(&self.read(&is_erased).await?)? == 1 {
            return Ok((Offered::Not(Dropped::Erased), None));
        }
        let job = self.adjust_job(&hunt, player, adjustment)?;
        let (answer, place) = self.execute_offer(job).await;
        let offered = match answer {
            Answer::Generation => {
                self.load_hunt(id).await?;
                Offered::Later
            }
            Answer::Failed(error) => return Err(error),
            Answer::Reply(value) => match adjusted(&hunt, adjustment, Reader::new(value)?)? {
                Adjusting::Needs(coins, _) => {
                    let partition = self.shared.partition_of(player);
                    if self.borrow(&hunt, partition, coins).await? {
                        Offered::Later
                    } else {
                        Offered::Not(Dropped::Coins)
                    }
                }
                Adjusting::Is(adjusted) => match adjusted.outcome {
                    Ok(AdjustDecision::Recorded(entry)) => Offered::Back(entry.at),
                    Ok(AdjustDecision::Duplicate(entry)) => Offered::Kept(entry.at),
                    Err(AdjustRefusal::Conflict) => Offered::Not(Dropped::Conflict),
                    Err(AdjustRefusal::HuntArchived) => Offered::Not(Dropped::Archived),
                    // The credits that it takes from may come back yet.
                    Err(AdjustRefusal::Wallet(WalletError::InsufficientCoins)) => Offered::Later,
                    Err(AdjustRefusal::Wallet(WalletError::CoinsOutOfRange)) => {
                        Offered::Not(Dropped::Coins)
                    }
                },
            },
        };
        Ok((offered, Some(place)))
    }
}

impl Replay {
    /// A player's name has the number again that it was lost with.
    fn regains_number(&self, player: PlayerId) {
        if self.any_moved() {
            lock(&self.moved).remove(&player);
        }
    }

    /// A player's name has got another number since it was lost.
    fn rename(&self, from: PlayerId, to: PlayerId) {
        lock(&self.moved).insert(from, to);
        self.any_moved
            .store(true, std::sync::atomic::Ordering::Release);
    }
}
