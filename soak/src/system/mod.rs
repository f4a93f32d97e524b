//! The system under test: what the case asks for, started on free ports of 127.0.0.1 in the run's directory; or one that is
//! there already.
//!
//! - [`processes`]: start, signal, end; [`spawn`] sees to it that none outlives the harness.
//! - [`redis_nodes`]: Redis, with Sentinel or as a cluster. [`servers`]: `trove serve` and `trove shim`.
//! - [`hunt`]: the hunt and the users' tokens. [`state`]: ports and keys, kept for a resumption; [`ports`] finds free ones.
//! - [`road`]: a TCP proxy that holds bytes up; [`disk`]: a disk that can be filled. Both only where a fault needs them.
//! - [`http`]: the harness's own requests.

pub mod disk;
pub mod http;
pub mod hunt;
pub mod ports;
pub mod processes;
pub mod redis_nodes;
pub mod road;
pub mod servers;
mod spawn;
pub mod state;

use crate::case::{Case, FaultKind, Priority, StoreKind};
use crate::refusal::Refusal;
use disk::Disk;
use processes::Processes;
use redis_nodes::{INNER_ADDRESS, RedisNodes, node_name};
use road::Road;
use state::State;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Its directory in the run's.
pub const DIR: &str = "system";
const NO_ADDRESS: &str = "system.address must be http://host:port";

/// What is tested. Its processes end with it.
pub struct System {
    /// The processes that the harness started.
    pub processes: Processes,
    /// The Redis servers, if it started any.
    pub redis: Option<RedisNodes>,
    /// Between instances and each Redis server, if a fault needs them.
    pub redis_roads: Vec<Road>,
    /// Between users and each target, if a fault needs them.
    pub client_roads: Vec<Road>,
    /// The store's disk, if a fault fills it.
    pub disk: Option<Disk>,
    case: Arc<Case>,
    dir: PathBuf,
    trove: PathBuf,
    store_url: String,
    /// The system that was there already.
    external: Option<SocketAddr>,
    state: Mutex<State>,
}

fn has(case: &Case, kinds: &[FaultKind]) -> bool {
    case.faults.iter().any(|fault| kinds.contains(&fault.what))
}

impl System {
    /// Starts what the case asks for, from what the directory holds, and opens the hunt. `segment` counts resumptions.
    ///
    /// # Errors
    /// When the case asks for what cannot be, or something is missing or does not come up.
    pub fn start(
        case: &Arc<Case>,
        run_dir: &Path,
        segment: u32,
        wall_ms: u64,
    ) -> Result<Self, Refusal> {
        check(case)?;
        let dir = run_dir.join(DIR);
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs)
            .map_err(|error| Refusal::unreachable(format!("{}: {error}", logs.display())))?;
        // Redis and the embedded store change their directory or are told theirs: it must not depend on ours.
        let dir = dir
            .canonicalize()
            .map_err(|error| Refusal::unreachable(format!("{}: {error}", dir.display())))?;
        let state = State::open(&dir)?;
        let disk = if has(case, &[FaultKind::FillDisk]) {
            Some(Disk::mount(dir.join("disk"))?)
        } else {
            None
        };
        let mut system = Self {
            processes: Processes::new(segment, case.system.priority),
            redis: None,
            redis_roads: Vec::new(),
            client_roads: Vec::new(),
            disk,
            case: case.clone(),
            trove: trove(case)?,
            store_url: String::new(),
            external: None,
            dir,
            state: Mutex::new(state),
        };
        if case.system.address.is_empty() {
            system.start_own()?;
        } else {
            system.external = Some(resolve(&case.system.address)?);
            let key = |name: &str| std::env::var(name).unwrap_or_default();
            system
                .state()
                .take_keys(key("TROVE_TOKEN_KEY"), key("TROVE_ADMIN_KEY"))?;
            system.store_url = key("TROVE_STORE__URL");
        }
        if case.system.url_template.is_empty() {
            system.open_hunt(wall_ms)?;
        }
        if has(case, &[FaultKind::CutClients]) {
            for (nth, target) in system.targets().into_iter().enumerate() {
                let from = system
                    .state()
                    .address(&format!("client-road-{nth}"), None)?;
                system.client_roads.push(Road::start(from, target, None)?);
            }
        }
        Ok(system)
    }

    fn start_own(&mut self) -> Result<(), Refusal> {
        let asked = self.case.system.clone();
        let disk = self.disk.as_ref().map(|disk| disk.path.clone());
        if asked.store == StoreKind::Embedded {
            let store = disk.as_ref().unwrap_or(&self.dir).join("store");
            self.store_url = format!("embedded:{}", store.display());
        } else {
            let roads = self.redis_road_addresses()?;
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            let nodes = RedisNodes::start(
                &asked,
                &self.dir,
                disk.as_deref(),
                state,
                &self.processes,
                roads,
            )?;
            self.store_url = nodes.url();
            self.redis = Some(nodes);
        }
        self.start_group(&self.live_group())?;
        if asked.shim {
            self.start_shim()?;
        }
        Ok(())
    }

    /// Lays the roads to Redis, before the servers start that are to be reached on them.
    fn redis_road_addresses(&mut self) -> Result<Option<Vec<SocketAddr>>, Refusal> {
        if !has(&self.case, &[FaultKind::CutRedis, FaultKind::SlowRedis]) {
            return Ok(None);
        }
        let is_cluster = self.case.system.store == StoreKind::RedisCluster;
        for nth in 0..redis_nodes::count(&self.case.system) as usize {
            let mut state = self.state();
            // A cluster's servers keep a second port above their own; the same rule as where they start.
            let to = state.address(&node_name(nth), is_cluster.then_some(10_000))?;
            let from = state.address(&format!("redis-road-{nth}"), None)?;
            drop(state);
            let inner = Ipv4Addr::from(INNER_ADDRESS);
            self.redis_roads.push(Road::start(from, to, Some(inner))?);
        }
        Ok(Some(
            self.redis_roads.iter().map(|road| road.from).collect(),
        ))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The live group's name.
    pub(crate) fn live_group(&self) -> String {
        self.state().live().to_owned()
    }

    /// The keys as the environment gives them to `trove`.
    fn keys(&self) -> BTreeMap<String, String> {
        let state = self.state();
        let keys = [
            ("TROVE_TOKEN_KEY", state.token_key()),
            ("TROVE_ADMIN_KEY", state.admin_key()),
        ];
        let given = keys.into_iter().filter(|(_, key)| !key.is_empty());
        given
            .map(|(name, key)| (name.to_owned(), key.to_owned()))
            .collect()
    }

    /// Which kinds of processes are to be scheduled otherwise than usual, and how they are, in the words of the record.
    #[must_use]
    pub fn priorities(&self) -> Vec<(String, String)> {
        let told = |(kind, priority): (&str, Priority)| {
            let how = match (priority, spawn::may_be_real_time()) {
                (Priority::Normal, _) => return None,
                (Priority::RealTime, Ok(())) => "real time".to_owned(),
                (Priority::RealTime, Err(why)) => {
                    format!("normal, for real time was refused: {why}")
                }
            };
            Some((format!("{kind}'s priority"), how))
        };
        let kinds = self.case.system.priority.by_kind().into_iter();
        kinds.filter_map(told).collect()
    }

    /// Where users connect.
    #[must_use]
    pub fn targets(&self) -> Vec<SocketAddr> {
        if !self.client_roads.is_empty() {
            return self.client_roads.iter().map(|road| road.from).collect();
        }
        if let Some(external) = self.external {
            return vec![external];
        }
        if let Some(shim) = self.processes.one(servers::SHIM) {
            return vec![shim.address];
        }
        let live = servers::instances(&self.case, &self.live_group());
        let running = live.iter().filter_map(|name| self.processes.one(name));
        running.map(|one| one.address).collect()
    }

    /// The `Host` of requests.
    #[must_use]
    pub fn host(&self) -> String {
        match self.case.system.address.strip_prefix("http://") {
            Some(host) => host.trim_end_matches('/').to_owned(),
            None => "soak.test".to_owned(),
        }
    }

    /// The hunt.
    #[must_use]
    pub fn hunt(&self) -> String {
        self.state().hunt().to_owned()
    }

    /// The admin key, for bulk finds.
    #[must_use]
    pub fn admin_key(&self) -> Option<String> {
        Some(self.state().admin_key().to_owned()).filter(|key| !key.is_empty())
    }

    /// The server that commands go to.
    fn manage_url(&self) -> Result<String, Refusal> {
        let target = self.external.or_else(|| {
            let live = servers::instances(&self.case, &self.live_group());
            live.iter()
                .find_map(|name| self.processes.one(name))
                .map(|one| one.address)
        });
        let target = target.ok_or_else(|| Refusal::unreachable("no server runs"))?;
        Ok(format!("http://{target}"))
    }

    /// What `--store` is given: of a system that was there already, what `TROVE_STORE__URL` says.
    #[must_use]
    pub fn store_url(&self) -> Option<&str> {
        Some(self.store_url.as_str()).filter(|url| !url.is_empty())
    }

    /// Where the store's files are, if it is embedded.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Refuses what no system can be.
fn check(case: &Case) -> Result<(), Refusal> {
    let asked = &case.system;
    let is_external = !asked.address.is_empty();
    let own_only = case.faults.iter().find(|fault| {
        !matches!(
            fault.what,
            FaultKind::Stampede | FaultKind::DoubleLoad | FaultKind::CutClients
        )
    });
    if let (true, Some(fault)) = (is_external, own_only) {
        let what = fault.what;
        return Err(Refusal::usage(format!(
            "faults: {what:?} cannot be done to a system that the harness has not started (system.address)"
        )));
    }
    if is_external {
        return Ok(());
    }
    if asked.instances == 0 {
        return Err(Refusal::usage("system.instances must be at least 1"));
    }
    let is_embedded = asked.store == StoreKind::Embedded;
    if is_embedded && (asked.instances > 1 || asked.second_group) {
        return Err(Refusal::usage(
            "system.store = \"embedded\" is one file that one server uses: system.instances must be 1, without second_group",
        ));
    }
    for fault in &case.faults {
        let needs = match fault.what {
            FaultKind::Switch if !asked.second_group || !asked.shim => {
                "system.second_group and system.shim"
            }
            FaultKind::KillShim | FaultKind::RestartShim if !asked.shim => "system.shim",
            FaultKind::KillRedis
            | FaultKind::LoseRedis
            | FaultKind::StopRedis
            | FaultKind::CutRedis
            | FaultKind::SlowRedis
                if is_embedded =>
            {
                "system.store on Redis"
            }
            FaultKind::FailoverRedis
                if !matches!(
                    asked.store,
                    StoreKind::RedisSentinel | StoreKind::RedisCluster
                ) =>
            {
                "system.store = \"redis_sentinel\" or \"redis_cluster\""
            }
            FaultKind::CutClients if !asked.shim && asked.second_group => "system.shim",
            _ => continue,
        };
        return Err(Refusal::usage(format!(
            "faults: {:?} needs {needs}",
            fault.what
        )));
    }
    Ok(())
}

/// The program: the one that the case names, or the one beside the harness.
fn trove(case: &Case) -> Result<PathBuf, Refusal> {
    let named = &case.system.trove;
    let path = if named.as_os_str().is_empty() {
        let own = std::env::current_exe()
            .map_err(|error| Refusal::unreachable(format!("where the harness is: {error}")))?;
        own.with_file_name("trove")
    } else {
        named.clone()
    };
    let is_needed = case.system.url_template.is_empty() || case.system.address.is_empty();
    if is_needed && !path.is_file() {
        return Err(Refusal::unreachable(format!(
            "there is no {}; build it, or name it with --set system.trove=PATH",
            path.display()
        )));
    }
    Ok(path)
}

fn resolve(address: &str) -> Result<SocketAddr, Refusal> {
    let host = address
        .strip_prefix("http://")
        .ok_or_else(|| Refusal::usage(NO_ADDRESS))?;
    let host = host.trim_end_matches('/');
    let mut found = host
        .to_socket_addrs()
        .map_err(|error| Refusal::unreachable(format!("{NO_ADDRESS}: {host}: {error}")))?;
    found
        .next()
        .ok_or_else(|| Refusal::unreachable(format!("{host} has no address")))
}
