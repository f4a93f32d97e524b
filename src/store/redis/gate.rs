//! What happens on every new link before anything else is sent over it: is this the store that is known, is its history the
//! one of the epoch, and was this instance cut off from it.

use super::options::ConnectError;
use super::replay::ring::Cut;
use super::shared::{CUT_OFF_MS, Core, Known, Shared, random_hex};
use crate::game::Millis;
use crate::game::wallet::OUTAGES_MAX;
use crate::store::StoreError;
use crate::store::clock::{Steered, TimeSource};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use trove_streams::redis::{Cmd, Value, cmd, from_redis_value};
use trove_streams::{BoxFuture, EntryId, Error, Fresh, Partition, Prepare, Router, Script, State};

/// The layout that this version writes. A store with a higher one is refused; a lower one would be raised here.
pub(super) const SCHEMA_VERSION: u32 = 1;

type Failure = Box<dyn StdError + Send + Sync>;

/// Sends commands before or beside everybody else.
pub(super) enum Line<'a> {
    Fresh(&'a Fresh<'a>),
    Open(&'a Router),
}

impl Line<'_> {
    /// Whether the store is on a cluster, each of whose primaries has its part of it.
    fn is_of_cluster(&self) -> bool {
        match self {
            Self::Fresh(fresh) => fresh.is_of_cluster(),
            Self::Open(router) => router.is_cluster(),
        }
    }

    /// Whether what lies at `key` is to be looked after on this line; on a cluster's primary, its own.
    fn looks_after(&self, key: &str) -> bool {
        match self {
            Self::Fresh(fresh) => fresh.holds(key),
            Self::Open(_) => true,
        }
    }

    /// For how long, in milliseconds, the primary that holds `key` has not answered, where it is not the only server.
    fn unheard_ms(&self, key: &str) -> Option<u64> {
        match self {
            Self::Fresh(fresh) if fresh.is_of_cluster() => {
                Some(fresh.unheard(key).map_or(0, |unheard| {
                    u64::try_from(unheard.as_millis()).unwrap_or(u64::MAX)
                }))
            }
            _ => None,
        }
    }

    /// The replication ids of the primaries that are up.
    fn replids(&self) -> Vec<String> {
        match self {
            Self::Fresh(_) => Vec::new(),
            Self::Open(router) => {
                let replid = |up: trove_streams::Up| up.server.history.replid.clone();
                router.ups().into_iter().map(replid).collect()
            }
        }
    }

    async fn query(&self, cmd: &Cmd) -> Result<Value, Error> {
        match self {
            Self::Fresh(fresh) => fresh.query(cmd).await,
            Self::Open(connection) => connection.query(cmd).await,
        }
    }

    /// Runs a script by its text: a new server does not know it by its hash.
    async fn eval(&self, script: &Script, key: &str, args: &[&str]) -> Result<Value, Error> {
        let mut eval = cmd("EVAL");
        eval.arg(script.source()).arg(1).arg(key).arg(args);
        self.query(&eval).await
    }
}

/// Looks at the store on each new link of the commands' connection; with `commands` false, of the feed's, where it only
/// makes sure that the store is the known one.
pub(super) struct Gate {
    pub(super) shared: Arc<Shared>,
    pub(super) commands: bool,
}

impl Prepare for Gate {
    fn prepare<'a>(&'a self, fresh: Fresh<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let line = Line::Fresh(&fresh);
            let server = fresh.up().server.clone();
            if !self.commands {
                return self.shared.is_known_on(&line).await;
            }
            if let Some(policy) = &server.maxmemory_policy
                && policy != "noeviction"
            {
                self.shared
                    .set_disowned(Some(ConnectError::Evicts(policy.clone()).to_string()));
                return Err(Box::new(ConnectError::Evicts(policy.clone())));
            }
            let looked = self
                .shared
                .look(&line, &server.history.replid, &server.version.to_string())
                .await;
            match looked {
                Ok(()) => self.shared.set_disowned(None),
                Err(error) => {
                    if let Some(refused) = error.downcast_ref::<ConnectError>() {
                        self.shared.set_disowned(Some(refused.to_string()));
                    }
                    return Err(error);
                }
            }
            Ok(())
        })
    }
}

/// The identity's fields; empty where there is no store.
pub(super) async fn identity_fields(
    shared: &Shared,
    line: &Line<'_>,
) -> Result<HashMap<String, String>, Failure> {
    let reply = line
        .query(cmd("HGETALL").arg(shared.keys.identity()))
        .await?;
    Ok(from_redis_value(reply)?)
}

fn number<T: std::str::FromStr + Default>(fields: &HashMap<String, String>, name: &str) -> T {
    fields
        .get(name)
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

impl Shared {
    async fn is_known_on(&self, line: &Line<'_>) -> Result<(), Failure> {
        let fields = identity_fields(self, line).await?;
        match (self.known(), fields.get("identity")) {
            (Some(known), Some(identity)) if known.identity == *identity => Ok(()),
            _ => Err(Box::new(ConnectError::Identity(
                "the server does not hold the store that is known".into(),
            ))),
        }
    }

    /// Looks at the store behind a new link. What it does may be done again.
    pub(super) async fn look(
        &self,
        line: &Line<'_>,
        replid: &str,
        version: &str,
    ) -> Result<(), Failure> {
        let before = self.epoch();
        let stepped_from = self.measure_on(line).await?;
        let mut fields = identity_fields(self, line).await?;
        if fields.is_empty() {
            if self.known().is_some() {
                return Err(Box::new(ConnectError::Identity(
                    "the server is empty: it has lost the store, or is another one".into(),
                )));
            }
            if !self.options.create {
                return Err(Box::new(ConnectError::Identity(
                    "the server holds no store".into(),
                )));
            }
            self.make(line, replid).await?;
            fields = identity_fields(self, line).await?;
        }
        let found = self.read_known(&fields, version)?;
        // On one server the identity's being there says enough; of a cluster each primary has its own part to lose.
        if line.is_of_cluster() && fields.contains_key("whole") {
            self.miss_nothing(line).await?;
        }
        match self.known() {
            Some(known) if known.identity != found.identity => {
                // An operator's word that is younger than this instance's last contact is meant for this instance.
                let last_heard = self.clock.now().saturating_sub(self.unheard_ms());
                if number::<u64>(&fields, "accepted_ms") < last_heard {
                    return Err(Box::new(ConnectError::Identity(format!(
                        "the server holds another store ({}) than the one that is known ({})",
                        found.identity, known.identity
                    ))));
                }
                self.replay.clear();
                self.set_known(found);
                self.replace_epoch(self.raise(line, replid, (false, 0)).await?);
            }
            _ => {
                self.set_known(found);
                self.set_epoch(self.raise(line, replid, (false, before)).await?);
            }
        }
        self.bring_partitions(line).await?;
        self.note_absence(line, &fields, stepped_from).await?;
        self.heard();
        self.recover_from(before, &fields);
        Ok(())
    }

    fn read_known(
        &self,
        fields: &HashMap<String, String>,
        version: &str,
    ) -> Result<Known, Failure> {
        let schema: u32 = number(fields, "schema");
        if schema > SCHEMA_VERSION {
            return Err(Box::new(ConnectError::Schema {
                found: schema,
                known: SCHEMA_VERSION,
            }));
        }
        let partitions: u16 = number(fields, "partitions");
        if partitions != self.options.partitions {
            return Err(Box::new(ConnectError::Partitions {
                found: partitions,
                wanted: self.options.partitions,
            }));
        }
        match (fields.get("identity"), fields.get("secret")) {
            (Some(identity), Some(secret)) => Ok(Known {
                identity: identity.clone(),
                secret: secret.clone().into_bytes(),
                created_ms: number(fields, "created_ms"),
                schema,
                version: version.to_owned(),
            }),
            _ => Err(Box::new(ConnectError::Identity(
                "the server holds something that is no store".into(),
            ))),
        }
    }

    /// When every primary of a cluster is there for the first time: brings all partitions to the epoch that the last of them
    /// began, and puts on record that none is missing, so that one which is missing later has been lost.
    pub(super) async fn whole_cluster(&self, router: &Router) -> Result<(), Failure> {
        let line = Line::Open(router);
        let fields = identity_fields(self, &line).await?;
        if fields.contains_key("whole") {
            self.miss_nothing(&line).await?;
        }
        self.bring_partitions(&line).await?;
        let mut note = cmd("HSET");
        note.arg(self.keys.identity()).arg("whole").arg(1);
        line.query(&note).await?;
        if self.replay.is_held() {
            self.replay.begin();
        }
        Ok(())
    }

    /// Makes a store on an empty server.
    async fn make(&self, line: &Line<'_>, replid: &str) -> Result<(), Failure> {
        let (identity, secret) = (random_hex::<16>()?, random_hex::<32>()?);
        let (schema, partitions) = (
            SCHEMA_VERSION.to_string(),
            self.options.partitions.to_string(),
        );
        let args = [identity.as_str(), &schema, &partitions, &secret, replid];
        line.eval(&self.scripts.init, &self.keys.identity(), &args)
            .await?;
        Ok(())
    }

    async fn raise(
        &self,
        line: &Line<'_>,
        replid: &str,
        (accept, seen): (bool, u64),
    ) -> Result<u64, Failure> {
        let (accept, seen) = (if accept { "1" } else { "0" }, seen.to_string());
        let others = line.replids();
        let mut args = vec![replid, accept, &seen];
        if line.is_of_cluster() {
            args.push("1");
            args.extend(others.iter().map(String::as_str));
        }
        let reply = line
            .eval(&self.scripts.raise_epoch, &self.keys.identity(), &args)
            .await?;
        Ok(from_redis_value(reply)?)
    }

    /// Makes sure that the partitions which the line looks after are there. A primary that comes back empty may take itself
    /// for one until it hears from the others; nothing is to follow from it.
    async fn miss_nothing(&self, line: &Line<'_>) -> Result<(), Failure> {
        for partition in self.partitions() {
            let key = self.keys.partition(partition).state();
            if !line.looks_after(&key) {
                continue;
            }
            match line.query(cmd("EXISTS").arg(&key)).await {
                Ok(Value::Int(0)) => {
                    return Err(format!(
                        "the primary that holds partition {partition} has lost it; if what is left is the store to be used \
                         from now on, run `trove store accept`"
                    )
                    .into());
                }
                Ok(_) => {}
                Err(_) if matches!(line, Line::Open(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Brings the partitions that the line looks after to the store's epoch, and takes the positions of the feeds.
    pub(super) async fn bring_partitions(&self, line: &Line<'_>) -> Result<(), Failure> {
        for partition in self.partitions() {
            let key = self.keys.partition(partition).state();
            if !line.looks_after(&key) {
                continue;
            }
            match self.bring(line, partition, &key).await {
                // Another primary is away: when it is back, its link is prepared, and that brings its own.
                Err(error) if line.is_of_cluster() && error.is::<Error>() => {
                    if let Line::Fresh(_) = line {
                        return Err(error);
                    }
                }
                brought => brought?,
            }
        }
        Ok(())
    }

    async fn bring(&self, line: &Line<'_>, partition: Partition, key: &str) -> Result<(), Failure> {
        let epoch = self.epoch().to_string();
        let reply = line
            .eval(&self.scripts.partition_epoch, key, &[&epoch])
            .await?;
        let (is, ms, n, cut_ms, cut_of): (u64, u64, u64, u64, u64) = from_redis_value(reply)?;
        let cut = Cut {
            ms: cut_ms,
            of: cut_of,
        };
        self.replay.set_cut(usize::from(partition.index()), cut);
        self.set_epoch(is);
        self.set_position(partition, EntryId::new(ms, n));
        Ok(())
    }

    /// Lets a recovery begin where an epoch is new to this instance, or new at all.
    fn recover_from(&self, before: u64, fields: &HashMap<String, String>) {
        let epoch = self.epoch();
        // A store's first epoch begins when it is made.
        let first = epoch == number::<u64>(fields, "created_ms").max(1);
        let recovery_ms = u64::try_from(self.options.recovery.as_millis()).unwrap_or(u64::MAX);
        let is_young = epoch.saturating_add(recovery_ms) > self.clock.now();
        let begins = match before {
            // What a journal held is judged, however old the epoch is.
            0 => !self.replay.is_empty() || (is_young && !first),
            before => before != epoch || self.replay.is_held(),
        };
        if begins {
            self.replay.begin();
        }
    }

    /// Puts on record that this instance was cut off from the store, or that nobody was there.
    async fn note_absence(
        &self,
        line: &Line<'_>,
        fields: &HashMap<String, String>,
        stepped_from: Option<Millis>,
    ) -> Result<(), Failure> {
        let now = self.clock.now();
        let unheard_ms = self.unheard_ms();
        let last_entry = self
            .partitions()
            .into_iter()
            .map(|partition| self.position(partition).ms)
            .max();
        let alive = number::<u64>(fields, "alive_ms").max(last_entry.unwrap_or(0));
        let mut all_from = stepped_from.unwrap_or(now);
        // Instances say that they are up once a second; twice that is nobody.
        if alive + 2 * CUT_OFF_MS < now {
            all_from = all_from.min(alive);
        }
        let mut told = now;
        for partition in self.partitions() {
            let key = self.keys.partition(partition).outages();
            if !line.looks_after(&key) {
                continue;
            }
            let unheard_ms = line.unheard_ms(&key).unwrap_or(unheard_ms);
            let mut from = all_from;
            if self.has_heard() && unheard_ms > CUT_OFF_MS {
                from = from.min(now.saturating_sub(unheard_ms));
            }
            if from == now {
                continue;
            }
            if from < told {
                told = from;
                tracing::warn!(
                    from,
                    to = now,
                    "the store was out of reach; what ran out meanwhile expires by an outage"
                );
            }
            let (from, to, most) = (from.to_string(), now.to_string(), OUTAGES_MAX.to_string());
            line.eval(&self.scripts.outage, &key, &[&from, &to, &most])
                .await?;
        }
        Ok(())
    }

    /// Follows the server's clock. Gives from when it stepped forward, if it did since this instance last heard from it.
    async fn measure_on(&self, line: &Line<'_>) -> Result<Option<Millis>, Failure> {
        let Some(server_time) = &self.server_time else {
            return Ok(None);
        };
        let before = server_time.monotonic_ms();
        let (seconds, micros): (u64, u64) = from_redis_value(line.query(&cmd("TIME")).await?)?;
        let after = server_time.monotonic_ms();
        server_time.measured(seconds * 1_000 + micros / 1_000, (before, after));
        Ok(match self.clock.steer() {
            Steered::Forward(from, _) if self.has_heard() => Some(from),
            _ => None,
        })
    }

    /// Takes the store on the server, whatever it is, as the one to be used; makes one on an empty server. A new epoch
    /// begins.
    pub(super) async fn accept_on(
        &self,
        line: &Line<'_>,
        replid: &str,
        version: &str,
    ) -> Result<(), Failure> {
        self.measure_on(line).await?;
        if identity_fields(self, line).await?.is_empty() {
            self.make(line, replid).await?;
        }
        let found = self.read_known(&identity_fields(self, line).await?, version)?;
        let is_other = self
            .known()
            .is_some_and(|known| known.identity != found.identity);
        let known = if is_other { 0 } else { self.epoch() };
        let epoch = self.raise(line, replid, (true, known)).await?;
        if is_other {
            self.replay.clear();
        }
        self.set_known(found);
        self.replace_epoch(epoch);
        self.bring_partitions(line).await?;
        self.heard();
        self.replay.begin();
        self.set_disowned(None);
        Ok(())
    }
}

impl Core {
    /// Brings all partitions of a cluster to the epoch, as far as their primaries are there. A link that is new looks after its own
    /// primary's only, and what was executed in the others' is judged by where their epoch began: without that all of it is
    /// offered, of a minute in which nothing of it was lost (32,000 items at 10,000 players, and each failover more).
    pub(super) async fn bring_all(&self) -> Result<(), StoreError> {
        if !self.commands.is_cluster() {
            return Ok(());
        }
        let _one_at_a_time = self.clock_gate.lock().await;
        let line = Line::Open(&self.commands);
        let brought = self.shared.bring_partitions(&line).await;
        brought.map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    /// Looks at the store again, because a script or a tick found it to be another one or of another epoch.
    pub(super) async fn meet_epoch(&self) -> Result<(), StoreError> {
        let asked_with = self.shared.epoch();
        let _one_at_a_time = self.clock_gate.lock().await;
        if self.shared.epoch() != asked_with {
            return Ok(());
        }
        // Of a cluster it is enough that the primary which holds the identity is there.
        let home = self.commands.server_of(&self.shared.keys.identity());
        let state = home.map(|home| home.state());
        let Some(up) = state.as_ref().and_then(State::up) else {
            return Err(StoreError::Unavailable("no connection to the store".into()));
        };
        let line = Line::Open(&self.commands);
        let looked = self
            .shared
            .look(
                &line,
                &up.server.history.replid,
                &up.server.version.to_string(),
            )
            .await;
        match looked {
            Ok(()) => {
                self.shared.set_disowned(None);
                Ok(())
            }
            Err(error) => {
                if error.downcast_ref::<ConnectError>().is_some() {
                    self.shared.set_disowned(Some(error.to_string()));
                }
                Err(StoreError::Unavailable(error.to_string()))
            }
        }
    }
}
