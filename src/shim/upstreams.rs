//! The groups of instances, and which of them is live.

use super::group::Group;
use super::instance::{Instance, InstanceCounters};
use super::links::Links;
use super::metrics::Metrics;
use super::pool::Pool;
use crate::config::{Settings, UpstreamGroup};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Why a group was not made live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SwitchError {
    /// No group has the name.
    NoSuchGroup,
    /// These instances are not healthy, each with why.
    Unwell(Vec<(String, String)>),
}

/// All groups. Requests go to the live one; those that are under way or wait when another becomes live end where they
/// are.
#[derive(Debug)]
pub struct Upstreams {
    groups: Vec<Arc<Group>>,
    live: AtomicUsize,
}

impl Upstreams {
    pub(super) fn new(
        groups: &[UpstreamGroup],
        settings: &Settings,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let limits = &settings.shim_upstream;
        let mut first_id = 0;
        let made = groups.iter().map(|group| {
            let first_id = &mut first_id;
            let instances = group.instances.iter().map(|address| {
                let pool = Pool::new(
                    limits.pool_idle_max,
                    Duration::from_millis(limits.pool_idle_ms),
                );
                let counters: InstanceCounters = metrics.of_instance(&group.name, address);
                let links = Links::new(*first_id, limits.links);
                *first_id += limits.links;
                Instance::new(address, pool, links, counters)
            });
            Group::new(
                group.name.clone(),
                instances.collect(),
                limits.clone(),
                settings.shim_health.clone(),
            )
        });
        Arc::new(Self {
            groups: made.collect(),
            live: AtomicUsize::new(0),
        })
    }

    /// The group that requests go to.
    #[must_use]
    pub fn live(&self) -> &Arc<Group> {
        &self.groups[self.live.load(Relaxed)]
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    /// The client of a request on a link has gone; `note` is its ticket's.
    pub(super) fn cancel(&self, note: u64) {
        let mut instances = self.groups.iter().flat_map(|group| group.instances());
        instances.any(|instance| instance.links.cancel(note));
    }

    /// Begins to check every instance of every group.
    pub(super) fn watch(&self) {
        for group in &self.groups {
            for index in 0..group.instances().len() {
                tokio::spawn(group.clone().watch(index));
            }
        }
    }

    /// Makes a group live, if all its instances answer now that they are healthy.
    pub(super) async fn switch(&self, name: &str) -> Result<(), SwitchError> {
        let found = self.groups.iter().position(|group| group.name() == name);
        let index = found.ok_or(SwitchError::NoSuchGroup)?;
        let group = &self.groups[index];
        let mut unwell = group.ask_all().await;
        for instance in group.instances() {
            let is_known = unwell
                .iter()
                .any(|(address, _)| address == instance.address());
            if instance.is_ejected() && !is_known {
                let why = "it is ejected: its last requests failed";
                unwell.push((instance.address().to_owned(), why.to_owned()));
            }
        }
        if !unwell.is_empty() {
            return Err(SwitchError::Unwell(unwell));
        }
        group.all_are_well();
        let before = self.live.swap(index, Relaxed);
        tracing::info!(
            from = self.groups[before].name(),
            to = name,
            "another group is live"
        );
        Ok(())
    }
}
