//! Faults of Redis.

use super::{Scene, Seen, seen};
use crate::case::StoreKind;
use crate::refusal::Refusal;
use crate::system::redis_nodes::{ASK_AGAIN, MASTER, RedisNodes, ask, info, node_name, wait_until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// After how long without a new primary a Sentinel is told again to fail over.
///
/// Not in step with the ten seconds after which a Sentinel looks at a replica again: one that has seen it as a primary once
/// and sees it so ten seconds later makes it a replica again, however often it was promoted in between.
const TELL_AGAIN: Duration = Duration::from_secs(7);
/// Between two looks whether a server that was away has its place: that takes Sentinels 10 to 20 s, and nothing waits for it.
const HAS_A_PLACE_AGAIN: Duration = Duration::from_millis(500);

impl Scene {
    fn nodes(&self) -> Result<&RedisNodes, Refusal> {
        let nodes = self.system.redis.as_ref();
        nodes.ok_or_else(|| Refusal::unreachable("the store is not on Redis"))
    }

    /// A primary, by its number.
    fn primary(&self, which: u32) -> Result<usize, Refusal> {
        let primaries = self.nodes()?.primaries();
        let nth = which as usize % primaries.len().max(1);
        let found = primaries.get(nth).copied();
        found.ok_or_else(|| Refusal::unreachable("no Redis server says that it is a primary"))
    }

    /// Whether another takes over when a primary fails.
    fn has_heirs(&self) -> bool {
        let system = &self.case.system;
        system.replicas > 0
            && matches!(
                system.store,
                StoreKind::RedisSentinel | StoreKind::RedisCluster
            )
    }

    pub(super) fn kill_redis(&self, which: u32, away: Duration) -> Result<Seen, Refusal> {
        let old = self.primary(which)?;
        let name = node_name(old);
        let began = Instant::now();
        self.system.processes.end(&name, Signal::KILL)?;
        if !self.has_heirs() {
            self.system.processes.start_again(&name)?;
            self.until_it_answers(old)?;
            let took = began.elapsed().as_secs_f64();
            return Ok(seen(
                name,
                format!("killed; answers again after {took:.2} s, from its append-only file"),
            ));
        }
        let note = format!("killed; {}", self.succession(old, began, away)?);
        Ok(seen(name, note))
    }

    /// As [`Self::kill_redis`], when its replicas have not heard from it for a while.
    pub(super) fn lose_redis(
        &self,
        which: u32,
        lasts: Duration,
        away: Duration,
    ) -> Result<Seen, Refusal> {
        let nodes = self.nodes()?;
        let old = self.primary(which)?;
        let (name, at) = (node_name(old), nodes.nodes[old]);
        let heirs = self.replicas_of(old);
        let signal = |signal: Signal| {
            let send = |nth: &usize| self.system.processes.signal(&node_name(*nth), signal);
            heirs.iter().try_for_each(send)
        };
        signal(Signal::STOP)?;
        // What they have received they will read when they go on: the connection has to go too, and they cannot make a new
        // one meanwhile.
        let cut = ask::<u64>(at, &["CLIENT", "KILL", "TYPE", "replica"]);
        let offset = || {
            info(at, "replication", "master_repl_offset")?
                .parse::<u64>()
                .ok()
        };
        let heard = offset();
        self.wait(lasts);
        let wrote = offset();
        let began = Instant::now();
        self.system.processes.end(&name, Signal::KILL)?;
        signal(Signal::CONT)?;
        cut.map_err(|error| Refusal::unreachable(format!("{name}: {error}")))?;
        let lost = wrote.zip(heard).map_or(0, |(wrote, heard)| wrote - heard);
        let note = format!(
            "killed with {lost} bytes of writes that no replica has; {}",
            self.succession(old, began, away)?
        );
        Ok(seen(name, note))
    }

    /// Waits until another has taken the place of `old`, which was ended at `began` and stays `away`, and `old` follows it.
    fn succession(&self, old: usize, began: Instant, away: Duration) -> Result<String, Refusal> {
        let name = node_name(old);
        let heir = self.until_another_is_primary(old)?;
        let took = began.elapsed();
        self.wait(away.saturating_sub(took));
        let took = took.as_secs_f64();
        self.system.processes.start_again(&name)?;
        self.until_it_has_a_place(old)?;
        let back = began.elapsed().as_secs_f64();
        Ok(format!(
            "{} is the primary after {took:.2} s, {name} has its place again after {back:.2} s",
            node_name(heir)
        ))
    }

    /// Waits until a server that was away leads or follows, and every Sentinel knows it: a failover before that is undone by a
    /// Sentinel that has not seen the last one.
    fn until_it_has_a_place(&self, nth: usize) -> Result<(), Refusal> {
        let nodes = self.nodes()?;
        let what = format!("{} to lead or follow", node_name(nth));
        wait_until(&what, HAS_A_PLACE_AGAIN, || {
            (nodes.follows(nth) || nodes.primaries().contains(&nth)) && nodes.sentinels_agree()
        })
        .map(drop)
    }

    pub(super) fn stop_redis(&self, which: u32, lasts: Duration) -> Result<Seen, Refusal> {
        let old = self.primary(which)?;
        let name = node_name(old);
        self.system.processes.signal(&name, Signal::STOP)?;
        self.wait(lasts);
        self.system.processes.signal(&name, Signal::CONT)?;
        let went_on = Instant::now();
        self.until_it_answers(old)?;
        if self.has_heirs() {
            // Whether the Sentinels had noticed depends on how long it was stopped: it leads or follows in the end.
            self.until_it_has_a_place(old)?;
        }
        let now = self.primary(which)?;
        let took = went_on.elapsed().as_secs_f64();
        let note = format!(
            "stopped for {lasts:?}; {} is the primary {took:.2} s after it went on",
            node_name(now)
        );
        Ok(seen(name, note))
    }

    pub(super) fn fail_over_redis(&self, which: u32) -> Result<Seen, Refusal> {
        let nodes = self.nodes()?;
        let old = self.primary(which)?;
        let began = Instant::now();
        let failed =
            |error: ::redis::RedisError| Refusal::unreachable(format!("the failover: {error}"));
        if self.case.system.store == StoreKind::RedisCluster {
            let replica = self.replica_of(old)?;
            ask::<()>(nodes.nodes[replica], &["CLUSTER", "FAILOVER"]).map_err(failed)?;
        } else {
            let sentinel = nodes.sentinels.first();
            let sentinel = sentinel.ok_or_else(|| Refusal::unreachable("there is no Sentinel"))?;
            // Soon after another failover it may say that no replica is good enough yet.
            let mut refused = None;
            let asked = wait_until("a Sentinel to begin the failover", ASK_AGAIN, || {
                refused = ask::<()>(*sentinel, &["SENTINEL", "FAILOVER", MASTER]).err();
                refused.is_none()
            });
            if let (Err(_), Some(error)) = (asked, refused) {
                return Err(failed(error));
            }
        }
        // A Sentinel gives up a failover that it was told to do, and does not try again by itself.
        let mut asked = Instant::now();
        let heir = self.until_another_is_primary_and(old, || {
            let sentinel = nodes.sentinels.first();
            if let Some(sentinel) = sentinel.filter(|_| asked.elapsed() > TELL_AGAIN) {
                asked = Instant::now();
                // Refused while one is under way.
                let _ = ask::<()>(*sentinel, &["SENTINEL", "FAILOVER", MASTER]);
            }
        })?;
        let took = began.elapsed().as_secs_f64();
        self.until_it_has_a_place(old)?;
        let note = format!(
            "told to fail over; {} is the primary after {took:.2} s",
            node_name(heir)
        );
        Ok(seen(node_name(old), note))
    }

    fn until_it_answers(&self, nth: usize) -> Result<(), Refusal> {
        let at = self.nodes()?.nodes[nth];
        let answers = || info(at, "persistence", "loading").is_some_and(|loading| loading == "0");
        self.system
            .processes
            .wait(&node_name(nth), "answering", answers)
            .map(drop)
    }

    /// Waits until a former replica of `old` says that it is a primary, and the Sentinels, where there are any, agree: which.
    fn until_another_is_primary(&self, old: usize) -> Result<usize, Refusal> {
        self.until_another_is_primary_and(old, || {})
    }

    /// The same, doing something meanwhile.
    fn until_another_is_primary_and(
        &self,
        old: usize,
        mut meanwhile: impl FnMut(),
    ) -> Result<usize, Refusal> {
        let nodes = self.nodes()?;
        let before = nodes.primaries();
        let mut heir = None;
        let leads = |nth: &usize| {
            info(nodes.nodes[*nth], "replication", "role").is_some_and(|role| role == "master")
        };
        // In a cluster the others lead too: the heir is one that did not.
        let led = |nth: &usize| *nth == old || (nodes.sentinels.is_empty() && before.contains(nth));
        wait_until("another Redis server to take over", ASK_AGAIN, || {
            let now = nodes.primaries();
            heir = now.into_iter().find(|nth| !led(nth) && leads(nth));
            meanwhile();
            heir.is_some()
        })?;
        heir.ok_or_else(|| Refusal::unreachable("no other Redis server took over"))
    }

    /// A replica of a cluster's primary.
    fn replica_of(&self, primary: usize) -> Result<usize, Refusal> {
        let found = self.replicas_of(primary).first().copied();
        found.ok_or_else(|| Refusal::unreachable(format!("{} has no replica", node_name(primary))))
    }

    /// The replicas of a primary, as they say themselves.
    fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let Ok(nodes) = self.nodes() else {
            return Vec::new();
        };
        let port = nodes.reached[primary].port().to_string();
        let follows = |nth: &usize| {
            info(nodes.nodes[*nth], "replication", "master_port").is_some_and(|of| of == port)
        };
        (0..nodes.nodes.len()).filter(follows).collect()
    }
}
