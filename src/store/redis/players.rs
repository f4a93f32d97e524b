//! Players: their numbers, and erasing them.
//!
//! A number is drawn so that it lies in the partition of the name, so that one script sees both, and erasing needs no
//! second partition.

use super::jobs::{Answer, Job, Reader, integer, text};
use super::replay::item::Item;
use super::shared::Core;
use crate::game::Millis;
use crate::game::ids::{PlayerId, PlayerName};
use crate::store::{Erased, Erasure, Opening, StoreError};
use trove_streams::keys::{base62, parse_base62};
use trove_streams::redis::Value;

/// How often another random number is drawn when one is taken; once is all but certain to be enough.
const DRAWS_MAX: u32 = 8;
/// Random numbers taken from the system at a time.
const NUMBERS_A_DRAW: usize = 32;
/// What the script puts before the number of a name that is new.
const NEW: &[u8] = b"+";
/// How often an erasure begins again because the name got another number meanwhile.
const ERASURES_MAX: u32 = 8;

impl Core {
    /// See [`crate::store::Store::open_players`].
    pub(super) async fn open_players(
        &self,
        players: &[Opening],
    ) -> Result<Vec<Result<PlayerId, Erased>>, StoreError> {
        let mut opened: Vec<Option<Result<(PlayerId, Millis), Erased>>> =
            players.iter().map(|_| None).collect();
        let epoch = self.shared.epoch();
        for draw in 0..DRAWS_MAX {
            let open: Vec<usize> = (0..players.len())
                .filter(|index| opened[*index].is_none())
                .collect();
            if open.is_empty() {
                break;
            }
            let mut jobs = Vec::with_capacity(open.len());
            for index in &open {
                jobs.push(self.open_job(&players[*index], draw > 0)?);
            }
            let mut failure = None;
            // A name that was there before is only looked up, which asks nothing of the replicas. Whatever comes to stand under
            // its number is covered by later fences, and its name with it.
            let is_new = |reply: &Value| {
                let text = match reply {
                    Value::Array(items) => items.get(1),
                    _ => None,
                };
                matches!(text, Some(Value::BulkString(text)) if text.starts_with(NEW))
            };
            let answers = self.run_covering(&jobs, is_new).await;
            for (index, answer) in open.iter().zip(answers) {
                match answer {
                    Answer::Reply(value) => {
                        let mut reader = Reader::new(value)?;
                        let at = reader.number()?;
                        match reader.text()?.as_str() {
                            "" => opened[*index] = Some(Err(Erased)),
                            "taken" => {}
                            number => {
                                let number = number.trim_start_matches('+');
                                opened[*index] = Some(Ok((parse_player(number)?, at)));
                            }
                        }
                    }
                    Answer::Generation => failure = Some(StoreError::Busy),
                    Answer::Failed(error) => failure = Some(error),
                }
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
        let opened: Option<Vec<_>> = opened.into_iter().collect();
        let opened = opened.ok_or(StoreError::Busy)?;
        // After a failover everybody is looked up again. Were they all offered in the next one, it would hold up its polls.
        let item = |(opening, opened): (&Opening, &Result<(PlayerId, Millis), Erased>)| {
            let (player, at) = opened
                .ok()
                .filter(|(player, _)| opening.known != Some(*player))?;
            Some(Item::Player {
                name: opening.name.clone(),
                player,
                issued_at: opening.issued_at,
                at: Some(at),
            })
        };
        let items = players.iter().zip(&opened).filter_map(item).collect();
        self.shared.replay.keep(items, epoch).await?;
        let player = |opened: Result<(PlayerId, Millis), Erased>| opened.map(|(player, _)| player);
        Ok(opened.into_iter().map(player).collect())
    }

    fn open_job(&self, opening: &Opening, again: bool) -> Result<Job<'_>, StoreError> {
        let name = opening.name.as_str();
        let digest = self.shared.name_digest(name)?;
        // A name that a failover took comes back with the number that this instance wrote under.
        let number = match self.shared.replay.number_of(&opening.name) {
            Some(player) if !again => player.0,
            _ => self.draw(name)?,
        };
        let keys = self.shared.keys.player(number);
        let keys = vec![
            keys.state(),
            self.shared.keys.players_by_name(name.as_bytes()),
            self.shared.keys.players_by_number(number),
            keys.erased_names(),
            keys.erased(),
        ];
        let mut job = Job::new(&self.shared.scripts.open, keys)
            .arg("0")
            .arg(name)
            .arg(digest);
        job.push_maybe(opening.issued_at);
        job.push(base62(number));
        Ok(job)
    }

    /// A random number in the partition of the name. Of 16 partitions one number in 16 is, so many are taken from the system
    /// at a time.
    fn draw(&self, name: &str) -> Result<u64, StoreError> {
        let partitions = self.shared.keys.partitions();
        let wanted = partitions.of_name(name.as_bytes());
        loop {
            let mut bytes = [0; 8 * NUMBERS_A_DRAW];
            getrandom::fill(&mut bytes)
                .map_err(|_| StoreError::Unavailable("the system has no randomness".into()))?;
            let (numbers, _) = bytes.as_chunks::<8>();
            let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
            if let Some(number) = numbers.find(|number| partitions.of_player(*number) == wanted) {
                return Ok(number);
            }
        }
    }

    /// See [`crate::store::Store::erase`].
    pub(super) async fn erase(&self, name: &PlayerName) -> Result<Erasure, StoreError> {
        self.shared.replay.hunts_known().await?;
        let epoch = self.shared.epoch();
        let mut erasure = Erasure::default();
        for _ in 0..ERASURES_MAX {
            let number = self.erase_begin(name).await?;
            if let Some(player) = number {
                erasure.revoked += self.revoke_everywhere(player).await?;
            }
            if self.erase_end(name, number, None).await? {
                erasure.existed = number.is_some();
                if let Some(player) = number {
                    self.shared.replay.purge(player);
                }
                let item = Item::Erasure {
                    name: name.clone(),
                    player: number,
                    at: self.shared.clock.now(),
                };
                self.shared.replay.keep(vec![item], epoch).await?;
                return Ok(erasure);
            }
        }
        Err(StoreError::Busy)
    }

    /// Erases again what a failover brought back, unless the name is somebody else's by now.
    pub(super) async fn erase_as_of(
        &self,
        name: &PlayerName,
        player: Option<PlayerId>,
        at: Millis,
    ) -> Result<(), StoreError> {
        let number = self.erase_begin(name).await?;
        if number.is_some() && number != player {
            return Ok(());
        }
        if let Some(player) = number {
            self.revoke_everywhere(player).await?;
            self.shared.replay.purge(player);
        }
        if self.erase_end(name, number, Some(at)).await? {
            Ok(())
        } else {
            Err(StoreError::Busy)
        }
    }

    async fn erase_begin(&self, name: &PlayerName) -> Result<Option<PlayerId>, StoreError> {
        let keys = &self.shared.keys;
        let partition = keys.partition(keys.partitions().of_name(name.as_str().as_bytes()));
        let keys = vec![
            partition.state(),
            keys.players_by_name(name.as_str().as_bytes()),
            partition.erased(),
        ];
        let job = Job::new(&self.shared.scripts.erase_begin, keys)
            .arg("0")
            .arg(name.as_str());
        match text(self.ask(job).await?)?.as_str() {
            "" => Ok(None),
            number => parse_player(number).map(Some),
        }
    }

    /// Revokes what is pending in every hunt there is. A hunt made later takes no find of this player.
    async fn revoke_everywhere(&self, player: PlayerId) -> Result<u64, StoreError> {
        let hunts = self.all_hunts().await?;
        let keys = self.shared.keys.player(player.0);
        let job = |number: &String| {
            let keys = vec![
                keys.state(),
                keys.feed(),
                keys.wallet(number, player.0),
                keys.due(),
            ];
            Job::new(&self.shared.scripts.revoke, keys)
                .arg(number)
                .arg(base62(player.0))
        };
        let numbers: Vec<String> = hunts.iter().map(|hunt| hunt.number_text()).collect();
        let jobs: Vec<Job<'_>> = numbers.iter().map(job).collect();
        let mut revoked = 0;
        for answer in self.run_all(&jobs).await {
            let mut reader = match answer {
                Answer::Reply(value) => Reader::new(value)?,
                Answer::Generation => return Err(StoreError::Busy),
                Answer::Failed(error) => return Err(error),
            };
            let (_now, _wallet) = (reader.number()?, reader.wallet()?);
            revoked += reader.number()?;
        }
        Ok(revoked)
    }

    async fn erase_end(
        &self,
        name: &PlayerName,
        number: Option<PlayerId>,
        at: Option<Millis>,
    ) -> Result<bool, StoreError> {
        let keys = &self.shared.keys;
        let word = name.as_str();
        let partition = keys.partition(keys.partitions().of_name(word.as_bytes()));
        let by_number = match number {
            Some(player) => keys.players_by_number(player.0),
            // Not used then, but a key of the same slot has to stand there.
            None => partition.erased(),
        };
        let keys = vec![
            partition.state(),
            partition.feed(),
            keys.players_by_name(word.as_bytes()),
            by_number,
            partition.erased_names(),
        ];
        let number = number.map_or_else(String::new, |player| base62(player.0));
        let mut job = Job::new(&self.shared.scripts.erase_end, keys)
            .arg("0")
            .arg(word)
            .arg(self.shared.name_digest(word)?)
            .arg(number);
        job.push_maybe(at);
        Ok(integer(&self.ask(job).await?)? == 1)
    }
}

fn parse_player(number: &str) -> Result<PlayerId, StoreError> {
    parse_base62(number.as_bytes())
        .map(PlayerId)
        .ok_or_else(|| StoreError::Damaged(format!("{number} is no player's number")))
}
