//! Which instances are well: by asking them (active), and by what becomes of requests (passive).
//!
//! An instance is *usable* when its checks say healthy and it is not ejected. Active checks may take out every instance
//! (the group then uses all); passive ejection never takes the usable ones below half of a group, so that a fault which
//! all instances share, such as their store's, cannot empty it.

use super::group::Group;
use super::instance::{Checks, Instance, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::{info, warn};

/// The most that the time of an ejection is multiplied by.
const EJECTION_FACTOR_MAX: u32 = 16;
/// A check's answer is read up to its status line only.
const STATUS_LINE_BYTES_MAX: usize = 512;

/// What one look at an instance came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It answered below 500.
    Well,
    /// It answered that it is not.
    Unwell(String),
    /// No answer.
    Silent(String),
}

impl Group {
    pub(super) fn note_success(&self, index: usize) {
        self.instances()[index].failures_in_row.store(0, Relaxed);
    }

    pub(super) fn note_failure(&self, index: usize) {
        let instance = &self.instances()[index];
        let failures = instance.failures_in_row.fetch_add(1, Relaxed) + 1;
        if failures >= self.health.eject_failures && instance.is_usable() {
            self.eject(instance);
        }
    }

    fn eject(&self, instance: &Instance) {
        let unusable = self.instances().iter().filter(|one| !one.is_usable());
        if (unusable.count() + 1) * 2 > self.instances().len() {
            return;
        }
        let mut checks = lock(&instance.checks);
        let factor = 1u32 << checks.ejections_in_row.min(EJECTION_FACTOR_MAX.ilog2());
        let ms = self.health.eject_ms * u64::from(factor);
        checks.ejections_in_row += 1;
        checks.ejected_until_ms = Some(self.now_ms() + ms);
        drop(checks);
        instance.counters.ejections.inc();
        instance.usable.store(false, Relaxed);
        instance.failures_in_row.store(0, Relaxed);
        instance.pool.clear();
        warn!(
            group = self.name(),
            instance = instance.address(),
            ms,
            "ejected after failed requests"
        );
    }

    /// Takes what a check found. Whether the instance is usable follows.
    pub(super) fn judge(self: &Arc<Self>, index: usize, verdict: &Verdict) {
        let instance = &self.instances()[index];
        let now_ms = self.now_ms();
        let mut checks = lock(&instance.checks);
        let healthy = checks.take(verdict, self.health.rise, self.health.fall);
        if checks.ejected_until_ms.is_some_and(|until| until <= now_ms) {
            checks.ejected_until_ms = None;
        } else if checks.ejected_until_ms.is_none()
            && healthy
            && instance.failures_in_row.load(Relaxed) == 0
            && instance.recovering_since_ms.load(Relaxed) == 0
        {
            checks.ejections_in_row = 0;
        }
        let usable = healthy && checks.ejected_until_ms.is_none();
        drop(checks);
        let was_usable = instance.usable.swap(usable, Relaxed);
        match (was_usable, usable) {
            (false, true) => {
                let since = if self.health.slow_start_ms > 0 {
                    now_ms
                } else {
                    0
                };
                instance.recovering_since_ms.store(since, Relaxed);
                info!(
                    group = self.name(),
                    instance = instance.address(),
                    "in use again"
                );
                self.serve_queue();
            }
            (true, false) => {
                instance.pool.clear();
                warn!(
                    group = self.name(),
                    instance = instance.address(),
                    ?verdict,
                    "out of use"
                );
            }
            _ => {}
        }
    }

    /// Asks every instance at once. The addresses of those that are not healthy, each with why.
    pub(super) async fn ask_all(self: &Arc<Self>) -> Vec<(String, String)> {
        let asking: Vec<_> = (0..self.instances().len())
            .map(|index| {
                let group = self.clone();
                tokio::spawn(async move { group.ask(index).await })
            })
            .collect();
        let mut unwell = Vec::new();
        for (instance, asked) in self.instances().iter().zip(asking) {
            let verdict = asked
                .await
                .unwrap_or_else(|error| Verdict::Silent(error.to_string()));
            if let Verdict::Unwell(why) | Verdict::Silent(why) = verdict {
                unwell.push((instance.address().to_owned(), why));
            }
        }
        unwell
    }

    /// Takes all instances for healthy, with their full share: each has just answered so.
    pub(super) fn all_are_well(&self) {
        for instance in self.instances() {
            lock(&instance.checks).healthy = Some(true);
            instance.recovering_since_ms.store(0, Relaxed);
            instance.usable.store(true, Relaxed);
        }
    }

    /// Asks one instance.
    pub(super) async fn ask(&self, index: usize) -> Verdict {
        let instance = &self.instances()[index];
        let timeout = Duration::from_millis(self.health.timeout_ms);
        match tokio::time::timeout(timeout, status_of(instance, &self.health.path)).await {
            Ok(Ok(status)) if status < 500 => Verdict::Well,
            Ok(Ok(status)) => Verdict::Unwell(format!("it answered {status}")),
            Ok(Err(error)) => Verdict::Silent(error.to_string()),
            Err(_) => Verdict::Silent(format!("no answer within {} ms", self.health.timeout_ms)),
        }
    }

    /// Checks an instance for ever, and keeps its pool free of connections that are too old.
    pub(super) async fn watch(self: Arc<Self>, index: usize) {
        let interval = Duration::from_millis(self.health.interval_ms);
        loop {
            let began = Instant::now();
            let instance = &self.instances()[index];
            if let Err(error) = instance.resolve().await {
                self.judge(index, &Verdict::Silent(error.to_string()));
            } else {
                let verdict = self.ask(index).await;
                self.judge(index, &verdict);
            }
            instance.pool.sweep(Instant::now());
            // Spread by up to a tenth, so that many shims do not ask in step.
            let jitter = rand::random_range(0.9..1.1);
            tokio::time::sleep(interval.mul_f64(jitter).saturating_sub(began.elapsed())).await;
        }
    }
}

impl Checks {
    /// Counts a verdict; whether the instance is healthy now. The first verdict decides at once, and so does an answer
    /// that says no: an instance that drains must not be sent requests while it is asked again.
    fn take(&mut self, verdict: &Verdict, rise: u32, fall: u32) -> bool {
        let healthy = match verdict {
            Verdict::Well => {
                self.good_in_row = self.good_in_row.saturating_add(1);
                self.bad_in_row = 0;
                self.healthy != Some(false) || self.good_in_row >= rise
            }
            Verdict::Unwell(_) => {
                self.good_in_row = 0;
                self.bad_in_row = self.bad_in_row.saturating_add(1);
                false
            }
            Verdict::Silent(_) => {
                self.good_in_row = 0;
                self.bad_in_row = self.bad_in_row.saturating_add(1);
                self.healthy == Some(true) && self.bad_in_row < fall
            }
        };
        self.healthy = Some(healthy);
        self.last = match verdict {
            Verdict::Well => "well".to_owned(),
            Verdict::Unwell(why) | Verdict::Silent(why) => why.clone(),
        };
        healthy
    }
}

/// The status that an instance answers, on a connection of its own: whether it takes new ones is part of the question.
async fn status_of(instance: &Instance, path: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(instance.socket_address().await?).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nuser-agent: trove-shim\r\naccept: */*\r\nconnection: close\r\n\r\n",
        instance.address()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut room = [0; STATUS_LINE_BYTES_MAX];
    let mut read = 0;
    while !room[..read].contains(&b'\n') {
        // A full buffer reads 0 as well.
        match stream.read(&mut room[read..]).await? {
            0 => return Err(std::io::Error::other("it gave no HTTP answer")),
            more => read += more,
        }
    }
    let line = room[..read].split(|byte| *byte == b'\n').next();
    let line = line.unwrap_or_default();
    let status = std::str::from_utf8(line).ok().and_then(|text| {
        let rest = text.strip_prefix("HTTP/1.")?;
        rest.get(2..5)?.parse::<u16>().ok()
    });
    if let Some(status) = status {
        instance
            .is_http10
            .store(line.starts_with(b"HTTP/1.0"), Relaxed);
        return Ok(status);
    }
    Err(std::io::Error::other("it gave no HTTP answer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Verdict {
        Verdict::Silent("x".into())
    }

    #[test]
    fn the_first_check_decides_and_later_ones_need_several() {
        let mut checks = Checks::default();
        assert!(!checks.take(&silent(), 2, 3), "the first");
        assert!(!checks.take(&Verdict::Well, 2, 3));
        assert!(checks.take(&Verdict::Well, 2, 3), "two good ones");
        assert!(checks.take(&silent(), 2, 3) && checks.take(&silent(), 2, 3));
        assert!(!checks.take(&silent(), 2, 3), "three bad ones");

        let mut checks = Checks::default();
        assert!(checks.take(&Verdict::Well, 2, 3), "the first");
        assert!(
            !checks.take(&Verdict::Unwell("it answered 503".into()), 2, 3),
            "an answer that says no"
        );
    }
}
