//! What an instance does by itself: it says that it is up, looks whether the store is still the one that it knows, expires
//! finds that have run out, forgets clients' ids past their time, and measures the feeds.

use super::entry::{FeedEntry, Kind, Ledger, What, parse};
use super::jobs::{Answer, Job, read_failed};
use super::shared::{CUT_OFF_MS, Core, id_digest, random_hex};
use crate::game::Millis;
use crate::game::ids::PlayerId;
use crate::store::StoreError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trove_streams::keys::parse_base62;
use trove_streams::redis::{Cmd, Value, cmd, from_redis_value};
use trove_streams::{Batch, EntryId, feed};

/// How often an instance says that it is up.
const TICK: Duration = Duration::from_secs(1);
/// How often the server's clock is looked at.
const CLOCK_INTERVAL: Duration = Duration::from_secs(5);
/// By how much a lease outlasts the pause between two uses of it.
const LEASE_SLACK: Duration = Duration::from_secs(1);
/// Wallets that are looked for at a time in one partition to be swept.
const SWEEP_WALLETS: usize = 200;
/// Wallets swept in one write. Hundreds of scripts at once hold up everybody's polls: in a run with 10,000 players, their
/// slowest 1 % for 50 to 150 ms.
const SWEEP_AT_ONCE: usize = 64;
/// The pause after each write, in times that it took: a sweep leaves the store four fifths of its time.
const SWEEP_PAUSE: u32 = 4;
/// The longest of these pauses: a store that is slow for once must not keep this instance from saying that it is up.
const SWEEP_PAUSE_MAX: Duration = Duration::from_millis(100);
/// For how long a sweep leaves pauses. What has not been swept by then, or is more than was looked for, is swept without, for a
/// find that has run out must not wait for its expiry.
const SWEEP_CALM: Duration = Duration::from_secs(1);
/// Entries passed at a time in one partition to forget ids.
const FORGET_ENTRIES: usize = 500;
/// The share of the feeds' cap from which on it is said.
const FEED_ALARM_PERCENT: u64 = 80;

/// See the module.
pub(super) struct House {
    core: Core,
    token: String,
    alarmed: bool,
}

/// When something was last done, and how often it is.
struct Every {
    interval: Duration,
    last: Option<Instant>,
}

impl Every {
    fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: None,
        }
    }

    fn is_due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= self.interval);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

impl House {
    pub(super) fn new(core: Core) -> Result<Self, StoreError> {
        Ok(Self {
            core,
            token: random_hex::<8>()?,
            alarmed: false,
        })
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        let options = self.core.shared.options.clone();
        let mut tick = Every::new(TICK);
        let mut clock = Every::new(CLOCK_INTERVAL);
        let mut sweep = Every::new(options.sweep_interval);
        let mut forget = Every::new(options.forget_interval);
        let mut measure = Every::new(options.measure_interval);
        let pause = TICK
            .min(options.sweep_interval)
            .min(options.forget_interval)
            .min(options.measure_interval);
        loop {
            if tick.is_due()
                && let Err(error) = self.tick().await
            {
                tracing::debug!(%error, "the store does not answer");
            }
            // Of a cluster some primary may be away: the others' part is looked after all the same.
            let commands = &self.core.commands;
            let is_there = commands.is_cluster() || commands.state().up().is_some();
            if self.core.shared.disowned().is_none() && is_there {
                let done = async {
                    if clock.is_due() {
                        self.core.meet_clock().await?;
                    }
                    let measured = if measure.is_due() {
                        self.measure().await
                    } else {
                        Ok(())
                    };
                    if self.core.shared.replay.is_recovering() {
                        return measured;
                    }
                    let shared = &self.core.shared;
                    shared.replay.age(shared.epoch());
                    let (sweeps, forgets) = (sweep.is_due(), forget.is_due());
                    if (sweeps || forgets) && self.has_lease(options.sweep_interval).await? {
                        if sweeps {
                            self.core.sweep().await?;
                        }
                        if forgets {
                            self.core.forget().await?;
                        }
                    }
                    measured
                };
                if let Err(error) = done.await {
                    tracing::warn!(%error, "the store's housekeeping broke off; it goes on with the next round");
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn tick(&self) -> Result<(), StoreError> {
        let core = &self.core;
        if core.shared.disowned().is_some() && core.commands.state().up().is_some() {
            return core.meet_epoch().await;
        }
        // A tick passes between two answers; what is longer is an outage, also where the link survived it.
        let silent_ms = core.shared.unheard_ms();
        core.check_identity().await?;
        if silent_ms > 2 * CUT_OFF_MS {
            let now = core.shared.clock.now();
            core.record_outage(now.saturating_sub(silent_ms), now)
                .await?;
        }
        Ok(())
    }

    async fn has_lease(&self, interval: Duration) -> Result<bool, StoreError> {
        let shared = &self.core.shared;
        let ms = u64::try_from((interval + LEASE_SLACK).as_millis()).unwrap_or(u64::MAX);
        let call = shared
            .scripts
            .lease
            .call(&[shared.keys.lease("sweeper")])
            .arg(&self.token)
            .arg(ms);
        let reply = self
            .core
            .commands
            .run(&call)
            .await
            .map_err(|error| shared.failed(&error))?;
        Ok(reply == Value::Int(1))
    }

    /// Measures the feeds, and says when they near their cap.
    async fn measure(&mut self) -> Result<(), StoreError> {
        let shared = &self.core.shared;
        let ask = |partition| {
            let mut ask = cmd("MEMORY");
            ask.arg("USAGE")
                .arg(shared.keys.partition(partition).feed());
            ask
        };
        let asks: Vec<Cmd> = shared.partitions().into_iter().map(ask).collect();
        let sizes = self.core.read_all(asks).await?;
        let bytes = sizes
            .iter()
            .map(|size| {
                if let Value::Int(bytes) = size {
                    *bytes
                } else {
                    0
                }
            })
            .sum::<i64>();
        let bytes = u64::try_from(bytes).unwrap_or_default();
        shared.feed_bytes.store(bytes, Ordering::Relaxed);
        let Some(most) = shared.options.feed_bytes_max else {
            return Ok(());
        };
        let full = bytes >= most;
        if full != shared.feed_full.swap(full, Ordering::Relaxed) {
            if full {
                tracing::error!(
                    bytes,
                    most,
                    "the feeds hold as many bytes as they may; new finds are refused"
                );
            } else {
                tracing::info!(bytes, most, "the feeds have room again");
            }
        }
        let alarm = bytes >= most / 100 * FEED_ALARM_PERCENT;
        if alarm && !self.alarmed {
            tracing::warn!(
                bytes,
                most,
                "the feeds hold {FEED_ALARM_PERCENT} % of the bytes that they may"
            );
        }
        self.alarmed = alarm;
        Ok(())
    }
}

/// A member of what is due, taken apart: the hunt's number as text, and the player.
fn due_member(member: &str) -> Option<(&str, PlayerId)> {
    let (hunt, player) = member.split_once(':')?;
    Some((hunt, PlayerId(parse_base62(player.as_bytes())?)))
}

impl Core {
    /// Expires finds that have run out, in every partition. Harmless when two do it: the script decides by the wallet.
    pub(super) async fn sweep(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        loop {
            let (due, is_all) = self.due_before(self.shared.clock.now()).await?;
            let members: Vec<(&str, PlayerId)> =
                due.iter().filter_map(|member| due_member(member)).collect();
            let mut settled = 0;
            for part in members.chunks(SWEEP_AT_ONCE) {
                let sent = Instant::now();
                settled += self.expire(part).await?;
                if is_all && began.elapsed() < SWEEP_CALM {
                    let pause = sent.elapsed() * SWEEP_PAUSE;
                    tokio::time::sleep(pause.min(SWEEP_PAUSE_MAX)).await;
                }
            }
            if settled == 0 {
                return Ok(());
            }
        }
    }

    /// Expires what has run out of these wallets. Gives how many had something to be settled.
    async fn expire(&self, wallets: &[(&str, PlayerId)]) -> Result<usize, StoreError> {
        let job = |(hunt, player): &(&str, PlayerId)| self.settle_job(hunt, *player, "expire");
        let jobs: Vec<Job<'_>> = wallets.iter().map(job).collect();
        let mut settled = 0;
        for answer in self.run_all(&jobs).await {
            match answer {
                // Without a text after the time, the server's clock is still behind this one.
                Answer::Reply(Value::Array(reply))
                    if matches!(reply.get(1), Some(Value::BulkString(_))) =>
                {
                    settled += 1
                }
                Answer::Reply(_) => {}
                Answer::Generation => return Err(StoreError::Busy),
                Answer::Failed(_) if self.commands.is_cluster() => {}
                Answer::Failed(error) => return Err(error),
            }
        }
        Ok(settled)
    }

    /// Wallets with something due, and whether these are all that there are.
    async fn due_before(&self, now: Millis) -> Result<(Vec<String>, bool), StoreError> {
        let ask = |partition| {
            let mut ask = cmd("ZRANGEBYSCORE");
            ask.arg(self.shared.keys.partition(partition).due());
            ask.arg("-inf")
                .arg(format!("({now}"))
                .arg("LIMIT")
                .arg(0)
                .arg(SWEEP_WALLETS);
            ask
        };
        let asks = self.shared.partitions().into_iter().map(ask);
        let (mut due, mut is_all) = (Vec::new(), true);
        for reply in self
            .commands
            .each(asks.fold(Batch::new(), Batch::cmd))
            .await
        {
            let reply = match reply {
                Ok(reply) => reply,
                // A primary that is away holds up its own part only.
                Err(_) if self.commands.is_cluster() => continue,
                Err(error) => return Err(read_failed(self.shared.failed(&error))),
            };
            let members: Vec<String> =
                from_redis_value(reply).map_err(|error| StoreError::Damaged(error.to_string()))?;
            is_all &= members.len() < SWEEP_WALLETS;
            due.extend(members);
        }
        Ok((due, is_all))
    }

    /// Forgets clients' find ids past their time, by walking the feeds from where the last walk ended.
    pub(super) async fn forget(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        for (partition, state) in shared
            .partitions()
            .into_iter()
            .zip(self.partition_states().await?)
        {
            let keys = shared.keys.partition(partition);
            let mut position = state.forgotten();
            loop {
                let ttl_ms = shared.options.limits.find_id_ttl_ms;
                let Some(to) = shared.clock.now().checked_sub(ttl_ms + 1) else {
                    break;
                };
                let Some(from) = position.successor() else {
                    break;
                };
                let to = EntryId::new(to, u64::MAX);
                let read =
                    feed::read_range(&self.commands, &keys.feed(), from, to, FORGET_ENTRIES).await;
                let entries = read.map_err(|error| shared.failed(&error))?;
                let Some(last) = entries.last() else { break };
                position = last.id;
                let mut jobs = Vec::new();
                for entry in &entries {
                    let text = entry
                        .field("e")
                        .and_then(|text| std::str::from_utf8(text).ok())
                        .unwrap_or_default();
                    let Ok(FeedEntry::Ledger(Ledger {
                        hunt,
                        player,
                        what: What::Find(Kind::Found, find),
                        ..
                    })) = parse(entry.id, text)
                    else {
                        continue;
                    };
                    let Some(id) = &find.id else { continue };
                    let mut field = [b'r'; 17];
                    field[1..].copy_from_slice(&id_digest(id.as_str()));
                    let hunt = hunt.to_string();
                    let keys = vec![keys.state(), keys.wallet(&hunt, player.0)];
                    let job = Job::new(&shared.scripts.forget, keys).arg(&hunt);
                    jobs.push(job.arg(field).arg(entry.id.to_string()));
                }
                for answer in self.run_all(&jobs).await {
                    if let Answer::Failed(error) = answer {
                        return Err(error);
                    }
                }
                let mut note = cmd("HSET");
                note.arg(keys.state()).arg("forgotten").arg(position);
                self.read(&note).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_names_hunt_and_player() {
        assert_eq!(due_member("3:A"), Some(("3", PlayerId(10))));
        assert_eq!(due_member("3"), None);
        assert_eq!(due_member("3:/"), None);
    }
}
