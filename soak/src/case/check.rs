//! What a case may say: ranges, and relations between keys. The first thing that is wrong is told, by its key.

use super::scale::WINDOW_MIN;
use super::{Behaviour, Case, CaseError, Curve, Fault, FaultKind, Kind, StoreKind, System};
use std::time::Duration;

/// The most users of a case: those of one process.
pub const USERS_MAX: u32 = 200_000;
/// The longest event.
pub const DURATION_MAX: Duration = Duration::from_secs(31 * 86_400);
/// The most faults in a case; each may come again by `every`.
pub const FAULTS_MAX: usize = 200;
/// The most instances in a group.
pub const INSTANCES_MAX: u32 = 16;
/// The shortest interval of the record: what is shorter costs more to write than it says.
pub const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// For how long replicas can be cut off before their primary dies: Sentinel's patience, and a cluster's is longer.
const LOSE_MAX: Duration = Duration::from_millis(900);
/// The shortest tick of a generator.
pub(super) const TICK_MIN: Duration = Duration::from_micros(10);
/// The longest tick of a generator: latency is read up to two of them too high.
pub(super) const TICK_MAX: Duration = Duration::from_millis(10);
/// The shortest time between two actions of a user, in the run.
pub const ACTION_INTERVAL_MIN: Duration = Duration::from_millis(1);

type Checked = Result<(), CaseError>;

/// Checks everything that does not need a file.
pub(super) fn all(case: &Case) -> Checked {
    must(case.faults.len() <= FAULTS_MAX, "faults", || {
        format!("there are more than {FAULTS_MAX}; a fault can come again by every")
    })?;
    top(case)?;
    load(case)?;
    behaviour(case)?;
    network(case)?;
    system(&case.system)?;
    for (at, fault) in case.faults.iter().enumerate() {
        self::fault(case, fault, &format!("faults.{at}"))?;
    }
    objectives(case)?;
    bounds(case)
}

/// An error about this key, unless it holds.
fn must(holds: bool, key: &str, why: impl FnOnce() -> String) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(CaseError::key(key, why()))
    }
}

fn share(value: f64, key: &str) -> Checked {
    must((0.0..=1.0).contains(&value), key, || {
        format!("{value} is no share: it has to be from 0 to 1")
    })
}

fn text(time: Duration) -> String {
    humantime_serde::re::humantime::format_duration(time).to_string()
}

fn top(case: &Case) -> Checked {
    let name = &case.name;
    must(
        (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)),
        "name",
        || "it has to be 1 to 64 letters, digits, '.', '_' or '-'".to_owned(),
    )?;
    must(!case.question.trim().is_empty(), "question", || {
        "a case says which question it answers".to_owned()
    })?;
    must(
        case.compress.is_finite() && (1.0..=100_000.0).contains(&case.compress),
        "compress",
        || format!("{} is not from 1 to 100000", case.compress),
    )?;
    must(
        !case.duration.is_zero() && case.duration <= DURATION_MAX,
        "duration",
        || format!("it has to be above 0 and at most {}", text(DURATION_MAX)),
    )?;
    let lasts = case.event_lasts();
    must(case.interval >= INTERVAL_MIN, "interval", || {
        format!("it has to be at least {}", text(INTERVAL_MIN))
    })?;
    must(case.interval <= lasts, "interval", || {
        let (interval, lasts) = (text(case.interval), text(lasts));
        format!("{interval} is longer than the event, which lasts {lasts} (duration / compress)")
    })?;
    must(case.warmup < lasts, "warmup", || {
        let (warmup, lasts) = (text(case.warmup), text(lasts));
        format!(
            "{warmup} leaves nothing to judge of the event, which lasts {lasts} (duration / compress)"
        )
    })?;
    must(case.scaled(case.window) >= WINDOW_MIN, "window", || {
        format!(
            "{} / compress {} is below {}, the shortest that a run can have; lower compress or raise window",
            text(case.window),
            case.compress,
            text(WINDOW_MIN)
        )
    })?;
    must(case.settle <= Duration::from_secs(3600), "settle", || {
        "it has to be at most 1h".to_owned()
    })
}

fn load(case: &Case) -> Checked {
    let load = &case.load;
    must((1..=USERS_MAX).contains(&load.users), "load.users", || {
        format!("{} is not from 1 to {USERS_MAX}", load.users)
    })?;
    must(
        load.arrive_over < case.event_lasts(),
        "load.arrive_over",
        || "users have to arrive before the event (duration / compress) is over".to_owned(),
    )?;
    must(
        (TICK_MIN..=TICK_MAX).contains(&load.tick),
        "load.tick",
        || {
            let (tick, min, max) = (text(load.tick), text(TICK_MIN), text(TICK_MAX));
            format!("{tick} is not from {min} to {max}")
        },
    )?;
    match &load.curve {
        Curve::Constant | Curve::Csv { .. } | Curve::Recording { .. } => Ok(()),
        Curve::Ramp { from, over } => {
            share(*from, "load.curve.from")?;
            must(*over <= case.duration, "load.curve.over", || {
                format!(
                    "{} is longer than duration, {}",
                    text(*over),
                    text(case.duration)
                )
            })
        }
        Curve::Steps { users } => {
            must(
                (1..=1000).contains(&users.len()),
                "load.curve.users",
                || "it needs 1 to 1000 steps".to_owned(),
            )?;
            let most = users.iter().max().copied().unwrap_or(0);
            must(most <= load.users, "load.curve.users", || {
                format!("a step of {most} is above load.users, {}", load.users)
            })
        }
        Curve::Spike { base, at, lasts } => {
            share(*base, "load.curve.base")?;
            must(!lasts.is_zero(), "load.curve.lasts", || {
                "a spike lasts longer than 0".to_owned()
            })?;
            must(*at + *lasts <= case.duration, "load.curve.lasts", || {
                format!(
                    "the spike ends at {}, after duration, {}",
                    text(*at + *lasts),
                    text(case.duration)
                )
            })
        }
    }
}

fn behaviour(case: &Case) -> Checked {
    let behaviour = &case.behaviour;
    for (value, key) in [
        (behaviour.conditional_share, "behaviour.conditional_share"),
        (behaviour.bulk_share, "behaviour.bulk_share"),
        (behaviour.find_retry_share, "behaviour.find_retry_share"),
        (behaviour.abandon_share, "behaviour.abandon_share"),
    ] {
        share(value, key)?;
    }
    for (every, key) in [
        (behaviour.poll_interval, "behaviour.poll_interval"),
        (behaviour.heartbeat_interval, "behaviour.heartbeat_interval"),
        (behaviour.find_interval, "behaviour.find_interval"),
        (behaviour.history_interval, "behaviour.history_interval"),
        (behaviour.catalogue_interval, "behaviour.catalogue_interval"),
    ] {
        let scaled = case.scaled(every);
        must(
            every.is_zero() || scaled >= ACTION_INTERVAL_MIN,
            key,
            || {
                format!(
                    "{} / compress is below {}; 0s turns it off",
                    text(every),
                    text(ACTION_INTERVAL_MIN)
                )
            },
        )?;
    }
    must(!behaviour.timeout.is_zero(), "behaviour.timeout", || {
        "it has to be above 0".to_owned()
    })?;
    must(
        (1..=2).contains(&behaviour.connections),
        "behaviour.connections",
        || format!("{} is not 1 or 2", behaviour.connections),
    )?;
    must(
        (2..=65_536).contains(&behaviour.heartbeat_bytes),
        "behaviour.heartbeat_bytes",
        || "a JSON body has 2 to 65536 bytes".to_owned(),
    )?;
    must(
        !behaviour.poll_interval.is_zero() || behaviour.find_interval.is_zero(),
        "behaviour.poll_interval",
        || {
            "without polls no find is ever collected: turn finds off too (find_interval = \"0s\")"
                .to_owned()
        },
    )?;
    must(
        !behaviour.poll_interval.is_zero() || case.system.url_template.is_empty(),
        "behaviour.poll_interval",
        || "system.url_template is polled, and polls are off".to_owned(),
    )
}

fn network(case: &Case) -> Checked {
    let network = &case.network;
    share(network.loss, "network.loss")?;
    must(
        network.loss == 0.0 || network.loss < 0.5,
        "network.loss",
        || "a network that loses half of everything is none: it has to be below 0.5".to_owned(),
    )?;
    must(
        network.foreground.is_zero() == network.background.is_zero(),
        "network.background",
        || "network.foreground and network.background are given together, or neither".to_owned(),
    )?;
    let round = (network.latency + network.jitter) * 2;
    must(round < case.behaviour.timeout, "network.latency", || {
        format!(
            "there and back may take {}, and behaviour.timeout gives up after {}",
            text(round),
            text(case.behaviour.timeout)
        )
    })
}

fn system(system: &System) -> Checked {
    let there = !system.address.is_empty();
    if there {
        let address = &system.address;
        must(plain_http(address), "system.address", || {
            format!("{address} is not http://host:port")
        })?;
    }
    for (at, address) in system.ops_addresses.iter().enumerate() {
        let key = format!("system.ops_addresses.{at}");
        must(there, &key, || {
            "the harness knows where what it starts listens; it goes with system.address".to_owned()
        })?;
        must(plain_http(address), &key, || {
            format!("{address} is not http://host:port")
        })?;
    }
    let template = &system.url_template;
    must(template.is_empty() || there, "system.url_template", || {
        "it is for a server that is not Trove's: system.address says where".to_owned()
    })?;
    must(
        template.is_empty()
            || (template.starts_with('/') && template.bytes().all(|byte| byte.is_ascii_graphic())),
        "system.url_template",
        || "it is a path with {player} in it, such as /wallet/{player}".to_owned(),
    )?;
    must(
        (1..=INSTANCES_MAX).contains(&system.instances),
        "system.instances",
        || format!("{} is not from 1 to {INSTANCES_MAX}", system.instances),
    )?;
    if !there && system.store == StoreKind::Embedded {
        must(system.instances == 1, "system.instances", || {
            "the embedded store belongs to one instance; more need system.store = \"redis\""
                .to_owned()
        })?;
        must(!system.second_group, "system.second_group", || {
            "the embedded store belongs to one instance; a second group needs system.store = \"redis\"".to_owned()
        })?;
    }
    must(
        !system.second_group || system.shim,
        "system.second_group",
        || "only the shim can switch to it; it needs system.shim = true".to_owned(),
    )?;
    must(system.replicas <= 4, "system.replicas", || {
        "it has to be at most 4".to_owned()
    })?;
    must(
        system.store != StoreKind::RedisSentinel || system.replicas > 0,
        "system.replicas",
        || "Sentinel has nothing to fail over to without a replica".to_owned(),
    )?;
    for key in system.settings.keys() {
        must(
            key.split('.').count() >= 2 && !key.split('.').any(str::is_empty),
            "system.settings",
            || format!("{key} is not \"section.key\""),
        )?;
    }
    Ok(())
}

/// Whether it is `http://host:port` and no more.
fn plain_http(address: &str) -> bool {
    address
        .strip_prefix("http://")
        .and_then(|rest| rest.trim_end_matches('/').rsplit_once(':'))
        .is_some_and(|(host, port)| {
            !host.is_empty()
                && !host.contains('/')
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
}

fn fault(case: &Case, fault: &Fault, key: &str) -> Checked {
    use FaultKind as F;
    let system = &case.system;
    let what = format!("{key}.what");
    let redis = system.store != StoreKind::Embedded;
    let replicated = matches!(
        system.store,
        StoreKind::RedisSentinel | StoreKind::RedisCluster
    );
    match fault.what {
        F::Stampede | F::DoubleLoad | F::CutClients => {}
        _ => must(system.address.is_empty(), &what, || {
            "the harness can only break processes that it starts; system.address names others"
                .to_owned()
        })?,
    }
    match fault.what {
        F::KillRedis | F::StopRedis | F::CutRedis | F::SlowRedis => must(redis, &what, || {
            "there is no Redis with system.store = \"embedded\"".to_owned()
        })?,
        F::FailoverRedis => must(replicated, &what, || {
            "only system.store = \"redis_sentinel\" or \"redis_cluster\" can fail over".to_owned()
        })?,
        F::LoseRedis => {
            must(replicated && system.replicas > 0, &what, || {
                "only system.store = \"redis_sentinel\" or \"redis_cluster\" with replicas can lose what a primary alone knew"
                    .to_owned()
            })?;
            must(fault.lasts < LOSE_MAX, &format!("{key}.lasts"), || {
                let max = text(LOSE_MAX);
                format!("it has to be below {max}, or the replicas are given up for dead too")
            })?;
        }
        F::KillShim | F::RestartShim => must(system.shim, &what, || {
            "there is no shim with system.shim = false".to_owned()
        })?,
        F::Switch => must(system.second_group, &what, || {
            "there is nothing to switch to without system.second_group = true".to_owned()
        })?,
        F::KillInstance
        | F::StopInstance
        | F::RestartInstance
        | F::CutClients
        | F::FillDisk
        | F::Stampede
        | F::DoubleLoad => {}
    }
    let lasting = matches!(
        fault.what,
        F::StopInstance
            | F::LoseRedis
            | F::StopRedis
            | F::CutRedis
            | F::SlowRedis
            | F::CutClients
            | F::FillDisk
            | F::DoubleLoad
    );
    must(
        lasting != fault.lasts.is_zero(),
        &format!("{key}.lasts"),
        || {
            if lasting {
                "it has to be said how long this lasts".to_owned()
            } else {
                "this is done at once, and does not last".to_owned()
            }
        },
    )?;
    let can_stay_away =
        replicated && system.replicas > 0 && matches!(fault.what, F::KillRedis | F::LoseRedis);
    must(
        fault.away.is_zero() || can_stay_away,
        &format!("{key}.away"),
        || "only a Redis server that has replicas can stay away".to_owned(),
    )?;
    if matches!(
        fault.what,
        F::KillInstance | F::StopInstance | F::RestartInstance
    ) {
        must(
            fault.which < system.instances,
            &format!("{key}.which"),
            || format!("{} of {} instances, from 0", fault.which, system.instances),
        )?;
    }
    must(fault.at < case.duration, &format!("{key}.at"), || {
        format!(
            "{} is not within duration, {}",
            text(fault.at),
            text(case.duration)
        )
    })?;
    must(
        fault.times <= 1 || !fault.every.is_zero(),
        &format!("{key}.times"),
        || "it comes again only with every".to_owned(),
    )?;
    let every = case.scaled(fault.every);
    must(
        every.is_zero() || every >= Duration::from_secs(1) && every > fault.lasts + fault.away,
        &format!("{key}.every"),
        || {
            format!(
                "{} / compress is {} in the run: it has to be 1s at least, and longer than lasts and away",
                text(fault.every),
                text(every)
            )
        },
    )?;
    must(
        fault.allow_for.is_zero() || fault.allow_for >= fault.lasts,
        &format!("{key}.allow_for"),
        || {
            "it counts from the fault's beginning, and has to be as long as lasts at least"
                .to_owned()
        },
    )?;
    let allows = !fault.allow_failed.is_empty() || !fault.allow_p99.is_zero();
    must(
        !allows || !fault.allow_for.is_zero(),
        &format!("{key}.allow_for"),
        || "allow_failed and allow_p99 need it: for how long they count".to_owned(),
    )
}

/// How often users of a case do what such a request is for; zero: never.
fn interval_of(behaviour: &Behaviour, kind: Kind) -> Duration {
    match kind {
        Kind::Poll => behaviour.poll_interval,
        Kind::Heartbeat => behaviour.heartbeat_interval,
        Kind::Find if behaviour.bulk_share < 1.0 => behaviour.find_interval,
        Kind::BulkFind if behaviour.bulk_share > 0.0 => behaviour.find_interval,
        Kind::Find | Kind::BulkFind => Duration::ZERO,
        Kind::History => behaviour.history_interval,
        Kind::Catalogue => behaviour.catalogue_interval,
    }
}

fn objectives(case: &Case) -> Checked {
    for (at, objective) in case.objectives.iter().enumerate() {
        let key = |name: &str| format!("objectives.{at}.{name}");
        let request = objective.request;
        let only_polls = !case.system.url_template.is_empty();
        must(
            (!only_polls || request == Kind::Poll)
                && (!interval_of(&case.behaviour, request).is_zero()
                    || matches!(case.load.curve, Curve::Recording { .. })),
            &key("request"),
            || format!("the case sends no {}", request.as_str()),
        )?;
        share(objective.error_ratio, &key("error_ratio"))?;
        must(
            objective.percentile > 0.0 && objective.percentile < 100.0,
            &key("percentile"),
            || format!("{} is not above 0 and below 100", objective.percentile),
        )?;
        must(!objective.below.is_zero(), &key("below"), || {
            "nothing is faster than 0".to_owned()
        })?;
        must(
            objective.failed_above <= case.behaviour.timeout,
            &key("failed_above"),
            || {
                format!(
                    "{} is never seen: behaviour.timeout gives up after {}",
                    text(objective.failed_above),
                    text(case.behaviour.timeout)
                )
            },
        )?;
    }
    Ok(())
}

fn bounds(case: &Case) -> Checked {
    let bounds = &case.bounds;
    must(!bounds.behind_max.is_zero(), "bounds.behind_max", || {
        "nothing leaves without any delay: it has to be above 0".to_owned()
    })?;
    share(bounds.reconcile_ratio, "bounds.reconcile_ratio")?;
    share(bounds.invalid_share_max, "bounds.invalid_share_max")?;
    for (value, key) in [
        (bounds.leak_slope_per_hour, "bounds.leak_slope_per_hour"),
        (bounds.leak_growth, "bounds.leak_growth"),
    ] {
        must(value.is_finite() && value > 0.0, key, || {
            format!("{value} is not above 0")
        })?;
    }
    Ok(())
}
