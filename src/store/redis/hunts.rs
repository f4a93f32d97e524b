//! Hunts: reading them, and changing one so that the change holds in every partition when it is answered.
//!
//! A change locks the hunt, **freezes** it in every partition (no find is recorded meanwhile; what has been found and what
//! is pending is read), judges by the rules, **commits** the document, and **thaws** every partition with the generation
//! that the hunt has then. The commit is the moment at which the change becomes true: it carries the lock's token and is
//! refused once somebody else has taken the lock over. Whoever breaks off leaves partitions frozen; a find that meets one
//! for longer than the lock lasts repeats the change with nothing to change, which thaws them.

use super::cache::CachedHunt;
use super::jobs::{Answer, Job, Reader, integer};
use super::replay::item::Item;
use super::shared::{Core, random_hex};
use super::state::PartitionState;
use crate::game::Millis;
use crate::game::entry::Totals;
use crate::game::hunt::{Hunt, HuntError, HuntSpec, LifeStep};
use crate::game::ids::HuntId;
use crate::store::{Put, StoreError};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trove_streams::redis::{Value, cmd, from_redis_value};
use trove_streams::{Call, EntryId};

/// How long a hunt stays locked if whoever changes it breaks off.
pub(super) const LOCK_MS: u64 = 5_000;
/// How long a change waits for another one.
const LOCK_WAIT: Duration = Duration::from_secs(8);
/// The pause between two looks at a hunt that is being changed.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(3);
/// Documents above this are read and written on a thread of their own.
const DOCUMENT_BYTES_INLINE_MAX: usize = 32 * 1024;

/// What the partitions know of a hunt while it is frozen.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    now: Millis,
    found: BTreeSet<u32>,
    pending_coins: u64,
    pending_finds: u64,
}

/// Whether a change makes the hunt where there is none, and with which number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Create {
    No,
    Next,
    With(u32),
}

/// What a change comes to.
pub(super) enum Judged<T> {
    /// Nothing changes.
    Keep(T),
    /// The hunt is this from now on.
    Write(Box<Hunt>, T),
}

async fn blocking<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    if size <= DOCUMENT_BYTES_INLINE_MAX {
        return Ok(work());
    }
    crate::blocking::spawn(work)
        .await
        .map_err(|_| StoreError::Damaged("reading a hunt panicked".into()))
}

impl Core {
    /// The hunt as it was last read, or as it is if it never was.
    pub(super) async fn hunt(&self, id: &HuntId) -> Result<Arc<CachedHunt>, StoreError> {
        match self.shared.hunts.get(id) {
            Some(hunt) => Ok(hunt),
            None => self.load_hunt(id).await,
        }
    }

    /// Reads a hunt.
    pub(super) async fn load_hunt(&self, id: &HuntId) -> Result<Arc<CachedHunt>, StoreError> {
        let mut get = cmd("GET");
        get.arg(self.shared.keys.hunt_document(id.as_str()));
        match self.read(&get).await? {
            Value::BulkString(bytes) => {
                let hunt =
                    blocking(bytes.len(), move || serde_json::from_slice::<Hunt>(&bytes)).await?;
                let mut hunt =
                    hunt.map_err(|error| StoreError::Damaged(format!("hunt {id}: {error}")))?;
                hunt.index();
                Ok(self.shared.hunts.put(hunt))
            }
            _ => {
                // An empty server has no hunts either, and must not be believed.
                self.check_identity().await?;
                Err(StoreError::NoSuchHunt)
            }
        }
    }

    /// Makes sure that the server holds the store that is known.
    pub(super) async fn check_identity(&self) -> Result<(), StoreError> {
        let known = self
            .shared
            .known()
            .map(|known| known.identity)
            .unwrap_or_default();
        let call = self
            .shared
            .scripts
            .alive
            .call(&[self.shared.keys.identity()])
            .arg(known);
        match self.hunts_call(&call).await? {
            Value::Array(items) => {
                if let [Value::Int(_), Value::Int(epoch)] = items[..]
                    && u64::try_from(epoch).is_ok_and(|epoch| epoch > self.shared.epoch())
                {
                    return self.meet_epoch().await;
                }
                Ok(())
            }
            _ => self.meet_epoch().await,
        }
    }

    /// Runs a script of the slot of the hunts, or of the store.
    async fn hunts_call(&self, call: &Call<'_>) -> Result<Value, StoreError> {
        match self.commands.run(call).await {
            Ok(value) => {
                self.shared.heard();
                Ok(value)
            }
            Err(error) => Err(self.shared.failed(&error)),
        }
    }

    /// Every hunt's number and generation.
    pub(super) async fn index(&self) -> Result<Vec<(HuntId, u64)>, StoreError> {
        let value = self
            .read(cmd("HGETALL").arg(self.shared.keys.hunts()))
            .await?;
        let fields: HashMap<String, String> =
            from_redis_value(value).map_err(|error| StoreError::Damaged(error.to_string()))?;
        if fields.is_empty() {
            self.check_identity().await?;
        }
        let hunt = |(name, value): (String, String)| {
            let id = HuntId::new(name.strip_prefix("h:")?).ok()?;
            Some((id, value.split_once(' ')?.1.parse().ok()?))
        };
        Ok(fields.into_iter().filter_map(hunt).collect())
    }

    /// Every hunt as it is.
    pub(super) async fn all_hunts(&self) -> Result<Vec<Arc<CachedHunt>>, StoreError> {
        let mut hunts = Vec::new();
        for (id, generation) in self.index().await? {
            let cached = self
                .shared
                .hunts
                .get(&id)
                .filter(|cached| cached.hunt.generation >= generation);
            hunts.push(match cached {
                Some(hunt) => hunt,
                None => self.load_hunt(&id).await?,
            });
        }
        hunts.sort_by(|a, b| a.hunt.spec.id.cmp(&b.hunt.spec.id));
        Ok(hunts)
    }

    /// The hunt with this number, at least as it was in this generation.
    pub(super) async fn hunt_by_number(
        &self,
        number: u32,
        generation: u64,
    ) -> Result<Arc<CachedHunt>, StoreError> {
        let known = self.shared.hunts.by_number(number);
        match known {
            Some(hunt) if hunt.hunt.generation >= generation => Ok(hunt),
            Some(hunt) => self.load_hunt(&hunt.hunt.spec.id).await,
            None => {
                self.all_hunts().await?;
                self.shared
                    .hunts
                    .by_number(number)
                    .ok_or(StoreError::NoSuchHunt)
            }
        }
    }

    /// Every hunt with its totals, each partition's as of one moment.
    pub(super) async fn hunts_with_totals(&self) -> Result<Vec<(Arc<Hunt>, Totals)>, StoreError> {
        let hunts = self.all_hunts().await?;
        let states = self.partition_states().await?;
        let mut listed = Vec::with_capacity(hunts.len());
        for cached in hunts {
            let mut totals = Totals::default();
            for state in &states {
                let part = state.totals(cached.hunt.number).0;
                totals
                    .add(&part)
                    .map_err(|_| StoreError::Damaged("the totals leave their range".into()))?;
            }
            listed.push((cached.hunt.clone(), totals));
        }
        Ok(listed)
    }

    /// Every partition's state.
    pub(super) async fn partition_states(&self) -> Result<Vec<PartitionState>, StoreError> {
        let shared = &self.shared;
        let ask = |partition| {
            let mut ask = cmd("HGETALL");
            ask.arg(shared.keys.partition(partition).state());
            ask
        };
        let values = self
            .read_all(shared.partitions().into_iter().map(ask).collect())
            .await?;
        let states: Result<Vec<_>, _> = values.into_iter().map(PartitionState::read).collect();
        let states = states?;
        if states
            .iter()
            .any(|state| state.epoch() != self.shared.epoch())
        {
            self.meet_epoch().await?;
        }
        Ok(states)
    }

    /// See [`crate::store::Store::put_hunt`].
    pub(super) async fn put_hunt(
        &self,
        spec: HuntSpec,
    ) -> Result<Result<(Arc<Hunt>, Put), HuntError>, StoreError> {
        self.shared.replay.hunts_known().await?;
        let id = spec.id.clone();
        let judge = move |hunt: Option<&Hunt>, number: u32, frozen: &Frozen| match hunt {
            None => Judged::Write(Box::new(Hunt::new(number, spec.clone())), Ok(Put::Created)),
            Some(hunt) => {
                let mut next = hunt.clone();
                match next.replace(spec.clone(), &frozen.found) {
                    Err(error) => Judged::Keep(Err(error)),
                    Ok(()) if next.generation == hunt.generation => Judged::Keep(Ok(Put::Replaced)),
                    Ok(()) => Judged::Write(Box::new(next), Ok(Put::Replaced)),
                }
            }
        };
        let (put, hunt) = self.change(&id, Create::Next, judge).await?;
        Ok(put.map(|put| (hunt, put)))
    }

    /// See [`crate::store::Store::step_hunt`].
    pub(super) async fn step_hunt(
        &self,
        id: &HuntId,
        step: LifeStep,
    ) -> Result<Result<Arc<Hunt>, HuntError>, StoreError> {
        self.shared.replay.hunts_known().await?;
        let judge = move |hunt: Option<&Hunt>, _, frozen: &Frozen| {
            let Some(hunt) = hunt else {
                return Judged::Keep(Ok(()));
            };
            let mut next = hunt.clone();
            let pending = if frozen.pending_coins == 0 {
                frozen.pending_finds
            } else {
                frozen.pending_coins
            };
            match next.step(step, frozen.now, pending) {
                Err(error) => Judged::Keep(Err(error)),
                Ok(()) if next.generation == hunt.generation => Judged::Keep(Ok(())),
                Ok(()) => Judged::Write(Box::new(next), Ok(())),
            }
        };
        let (stepped, hunt) = self.change(id, Create::No, judge).await?;
        Ok(stepped.map(|()| hunt))
    }

    /// Thaws a hunt that somebody left frozen.
    pub(super) async fn repair_hunt(&self, id: &HuntId) -> Result<(), StoreError> {
        tracing::warn!(
            hunt = id.as_str(),
            "a change of the hunt broke off; it is ended"
        );
        self.change(id, Create::No, |_, _, _| Judged::Keep(()))
            .await
            .map(drop)
    }

    pub(super) async fn change<T>(
        &self,
        id: &HuntId,
        create: Create,
        judge: impl Fn(Option<&Hunt>, u32, &Frozen) -> Judged<T>,
    ) -> Result<(T, Arc<Hunt>), StoreError> {
        let token = random_hex::<8>()?;
        let began = Instant::now();
        loop {
            let (generation, next) = self.lock_hunt(id, &token, began).await?;
            let next = match create {
                Create::With(number) => number,
                Create::No | Create::Next => next,
            };
            if generation.is_none() && create == Create::No {
                self.unlock_hunt(id, &token).await;
                return Err(StoreError::NoSuchHunt);
            }
            let changed = self
                .change_locked(id, &token, generation, next, &judge)
                .await;
            self.unlock_hunt(id, &token).await;
            match changed {
                Ok(Some(done)) => return Ok(done),
                // Somebody was faster to take the number, or the lock.
                Ok(None) if began.elapsed() < LOCK_WAIT => {}
                Ok(None) => return Err(StoreError::Busy),
                Err(error) => return Err(error),
            }
        }
    }

    async fn change_locked<T>(
        &self,
        id: &HuntId,
        token: &str,
        generation: Option<u64>,
        next: u32,
        judge: &impl Fn(Option<&Hunt>, u32, &Frozen) -> Judged<T>,
    ) -> Result<Option<(T, Arc<Hunt>)>, StoreError> {
        let epoch = self.shared.epoch();
        let known = match generation {
            None => None,
            Some(generation) => match self.shared.hunts.get(id) {
                Some(cached) if cached.hunt.generation == generation => Some(cached),
                _ => Some(self.load_hunt(id).await?),
            },
        };
        let number = known.as_ref().map_or(next, |cached| cached.hunt.number);
        let frozen = match self.freeze(number, token).await {
            Ok(frozen) => frozen,
            Err(error) => {
                if let Some(cached) = &known {
                    let _ = self
                        .thaw(number, token, cached.hunt.generation, false)
                        .await;
                }
                return Err(error);
            }
        };
        let hunt = known.as_ref().map(|cached| &*cached.hunt);
        match judge(hunt, next, &frozen) {
            Judged::Keep(answer) => {
                let Some(cached) = known else {
                    return Err(StoreError::NoSuchHunt);
                };
                self.thaw(number, token, cached.hunt.generation, false)
                    .await?;
                Ok(Some((answer, cached.hunt.clone())))
            }
            Judged::Write(hunt, answer) => {
                let generation = hunt.generation;
                let size = hunt.spec.treasures.len() * 100;
                let (document, hunt) =
                    blocking(size, move || (serde_json::to_vec(&*hunt), hunt)).await?;
                let document = document.map_err(|error| StoreError::Damaged(error.to_string()))?;
                let keys = [
                    self.shared.keys.hunts(),
                    self.shared.keys.hunt_document(id.as_str()),
                ];
                let call = self.shared.scripts.hunt_commit.call(&keys);
                let call = call
                    .arg(id.as_str())
                    .arg(token)
                    .arg(number)
                    .arg(generation)
                    .arg(document);
                let sent = self.sending(keys.iter().take(1).map(String::as_str));
                let committed = integer(&self.hunts_call(&call).await?)? == 1;
                if !committed {
                    if let Some(cached) = &known {
                        self.thaw(number, token, cached.hunt.generation, false)
                            .await?;
                    }
                    return Ok(None);
                }
                let cached = self.shared.hunts.put(*hunt);
                let thawed = self.thaw(number, token, generation, true).await;
                // After the thaw, so that what is not safe in time leaves nothing frozen.
                for covered in self.covered(&[&keys[0]], &sent).await {
                    covered?;
                }
                thawed?;
                let item = Item::Hunt(Box::new((*cached.hunt).clone()));
                self.shared.replay.keep(vec![item], epoch).await?;
                Ok(Some((answer, cached.hunt.clone())))
            }
        }
    }

    async fn lock_hunt(
        &self,
        id: &HuntId,
        token: &str,
        began: Instant,
    ) -> Result<(Option<u64>, u32), StoreError> {
        loop {
            let call = self
                .shared
                .scripts
                .hunt_lock
                .call(&[self.shared.keys.hunts()]);
            match self
                .hunts_call(&call.arg(id.as_str()).arg(token).arg(LOCK_MS))
                .await?
            {
                Value::Array(items) => {
                    let mut reader = Reader::new(Value::Array(items))?;
                    let entry = reader.text()?;
                    let next = reader.number()?;
                    let generation = entry
                        .split_once(' ')
                        .and_then(|(_, generation)| generation.parse().ok());
                    return Ok((
                        generation,
                        u32::try_from(next).map_err(|_| StoreError::Full)?,
                    ));
                }
                _ if began.elapsed() > LOCK_WAIT => return Err(StoreError::Busy),
                _ => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    async fn unlock_hunt(&self, id: &HuntId, token: &str) {
        let call = self
            .shared
            .scripts
            .hunt_unlock
            .call(&[self.shared.keys.hunts()]);
        // A lock that stays ends by itself.
        let _ = self.hunts_call(&call.arg(id.as_str()).arg(token)).await;
    }

    async fn freeze(&self, number: u32, token: &str) -> Result<Frozen, StoreError> {
        let text_of_number = number.to_string();
        let job = |partition| {
            let keys = self.shared.keys.partition(partition);
            let keys = vec![keys.state(), keys.found(&text_of_number)];
            Job::new(&self.shared.scripts.freeze, keys)
                .arg(&text_of_number)
                .arg(token)
        };
        let jobs: Vec<Job<'_>> = self.shared.partitions().into_iter().map(job).collect();
        let mut frozen = Frozen::default();
        for answer in self.run_all(&jobs).await {
            let mut reader = match answer {
                Answer::Reply(value) => Reader::new(value)?,
                Answer::Generation => return Err(StoreError::Busy),
                Answer::Failed(error) => return Err(error),
            };
            frozen.now = frozen.now.max(reader.number()?);
            frozen.found.extend(set_bits(&reader.bytes()?));
            frozen.pending_coins += reader.number()?;
            frozen.pending_finds += reader.number()?;
        }
        Ok(frozen)
    }

    async fn thaw(
        &self,
        number: u32,
        token: &str,
        generation: u64,
        tell: bool,
    ) -> Result<(), StoreError> {
        let partitions = self.shared.partitions();
        let job = |partition: &_| {
            let keys = self.shared.keys.partition(*partition);
            Job::new(&self.shared.scripts.thaw, vec![keys.state(), keys.feed()])
                .arg(number.to_string())
                .arg(token)
                .number(generation)
                .arg(if tell { "1" } else { "0" })
        };
        let jobs: Vec<Job<'_>> = partitions.iter().map(job).collect();
        for (partition, answer) in partitions.iter().zip(self.run_all(&jobs).await) {
            let mut reader = match answer {
                Answer::Reply(value) => Reader::new(value)?,
                Answer::Generation => return Err(StoreError::Busy),
                Answer::Failed(error) => return Err(error),
            };
            let _thawed = reader.number()?;
            self.shared
                .set_position(*partition, EntryId::new(reader.number()?, reader.number()?));
        }
        Ok(())
    }
}

/// The numbers of the bits that are set, as `SETBIT` counts them.
fn set_bits(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    (0_u32..).zip(bytes).flat_map(|(index, byte)| {
        (0..8)
            .filter(move |bit| byte & (0x80 >> bit) != 0)
            .map(move |bit| index * 8 + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_left_as_redis_does() {
        let bits: Vec<u32> = set_bits(&[0b1000_0001, 0, 0b0100_0000]).collect();
        assert_eq!(bits, [0, 7, 17]);
    }
}
