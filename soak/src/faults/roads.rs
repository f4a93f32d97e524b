//! Faults of the network and of the disk.

use super::{Scene, Seen, seen};
use crate::refusal::Refusal;
use crate::system::road::{Road, Traffic};
use std::time::Duration;

/// How late every byte is on a slow network, each way.
const SLOW_BY: Duration = Duration::from_millis(50);

impl Scene {
    pub(super) fn cut_redis(&self, lasts: Duration) -> Result<Seen, Refusal> {
        self.on(
            &self.system.redis_roads,
            "the network to Redis",
            Traffic::Cut,
            lasts,
        )
    }

    pub(super) fn slow_redis(&self, lasts: Duration) -> Result<Seen, Refusal> {
        self.on(
            &self.system.redis_roads,
            "the network to Redis",
            Traffic::Late(SLOW_BY),
            lasts,
        )
    }

    pub(super) fn cut_clients(&self, lasts: Duration) -> Result<Seen, Refusal> {
        self.on(
            &self.system.client_roads,
            "the users' network",
            Traffic::Cut,
            lasts,
        )
    }

    fn on(
        &self,
        roads: &[Road],
        target: &str,
        traffic: Traffic,
        lasts: Duration,
    ) -> Result<Seen, Refusal> {
        if roads.is_empty() {
            return Err(Refusal::unreachable(format!("{target} has no road")));
        }
        roads.iter().for_each(|road| road.set(traffic));
        self.wait(lasts);
        roads.iter().for_each(|road| road.set(Traffic::Flows));
        let what = match traffic {
            Traffic::Cut => "nothing passed".to_owned(),
            Traffic::Late(by) => format!("every byte came {by:?} late"),
            Traffic::Flows => "everything passed".to_owned(),
        };
        Ok(seen(target, format!("{what} for {lasts:?}")))
    }

    pub(super) fn fill_disk(&self, lasts: Duration) -> Result<Seen, Refusal> {
        let disk = self.system.disk.as_ref();
        let disk = disk.ok_or_else(|| Refusal::unreachable("the store has no disk of its own"))?;
        let bytes = disk.fill();
        if bytes.is_ok() {
            self.wait(lasts);
        }
        disk.empty()?;
        let bytes = bytes?;
        Ok(seen(
            "the store's disk",
            format!("filled with {bytes} bytes for {lasts:?}"),
        ))
    }
}
