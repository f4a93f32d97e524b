//! What each setting may be, and how settings depend on each other.

use super::{Durability, EMBEDDED, Settings, SettingsError, shim, sla, telemetry};
use crate::link::LinkPeers;
use std::net::SocketAddr;
use toml::Value;

const DAY_MS: i64 = 24 * 3_600_000;
const MIB: i64 = 1 << 20;
const TIB: i64 = 1 << 40;

/// The least and the greatest value of each whole number.
pub(super) const RANGES: [(&str, i64, i64); 35] = [
    ("server.notice_ms", 0, 600_000),
    ("server.drain_ms", 0, 600_000),
    ("store.cache_bytes", MIB, TIB),
    ("store.min_free_bytes", 0, TIB),
    ("store.find_wait_ms", 1, 60_000),
    ("store.partitions", 1, 256),
    ("store.instances", 1, 1_000),
    ("store.feed_bytes_max", MIB, TIB),
    ("store.connect_wait_ms", 100, 600_000),
    ("store.response_timeout_ms", 50, 60_000),
    ("store.recovery_ms", 0, 60_000),
    ("store.replay_bytes_max", 0, TIB),
    ("store.replay_age_ms", 0, 3_600_000),
    ("store.replicas_min", 1, 16),
    ("store.durability_wait_ms", 1, 60_000),
    ("game.pending_finds_max", 1, 100_000),
    ("game.find_id_ttl_ms", 60_000, 31 * DAY_MS),
    ("poll.interval_ms", 100, 3_600_000),
    ("poll.credit_wait_ms", 0, 10_000),
    ("poll.recent_max", 1, 10_000),
    ("poll.held_max", 0, 1_000_000),
    ("poll.catalogue_max_age_s", 0, 86_400),
    ("auth.token_cache_max", 3, 10_000_000),
    ("auth.iat_ahead_s", 0, 3_600),
    ("limits.body_bytes_max", 1_024, 64 * MIB),
    ("limits.hunt_bytes_max", 1_024, 64 * MIB),
    ("limits.bulk_bytes_max", 1_024, 64 * MIB),
    ("limits.bulk_finds_max", 1, 100_000),
    ("limits.inline_json_bytes_max", 0, MIB),
    ("limits.wallets_max", 1, 100_000_000),
    ("limits.connections_max", 1, 1_000_000),
    ("limits.header_ms", 100, 600_000),
    ("limits.body_ms", 100, 3_600_000),
    ("limits.idle_ms", 100, 3_600_000),
    ("limits.write_ms", 100, 3_600_000),
];

const JITTER_MAX: f64 = 0.5;

/// Whether a text may name an instance: it becomes a header's value.
pub(super) fn is_instance_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Checks one value by itself.
///
/// # Errors
/// What the value must be.
pub(super) fn value(key: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Integer(number) => match RANGES
            .iter()
            .chain(&shim::RANGES)
            .chain(&sla::RANGES)
            .chain(&telemetry::RANGES)
            .find(|(name, ..)| *name == key)
        {
            Some((_, min, max)) if !(min..=max).contains(&number) => {
                Err(format!("is {number}; it must be {min} to {max}"))
            }
            _ => Ok(()),
        },
        Value::Float(number) if !(0.0..=JITTER_MAX).contains(number) => {
            Err(format!("is {number}; it must be 0 to {JITTER_MAX}"))
        }
        Value::String(text) => text_value(key, text),
        Value::Array(items) if key == "server.link_peers" => items.iter().try_for_each(network),
        Value::Array(items) if sla::list(key, items).is_some() => {
            sla::list(key, items).unwrap_or(Ok(()))
        }
        Value::Array(items) => items.iter().try_for_each(|item| {
            let known = item.as_str().and_then(|text| {
                shim::list_item(key, text).or_else(|| telemetry::list_item(key, text))
            });
            known.unwrap_or_else(|| origin(item))
        }),
        _ => Ok(()),
    }
}

fn text_value(key: &str, text: &str) -> Result<(), String> {
    let one_of = |allowed: &[&str]| {
        if allowed.contains(&text) {
            Ok(())
        } else {
            Err(format!(
                "is {text:?}; it must be one of {}",
                allowed.join(", ")
            ))
        }
    };
    match key {
        "server.listen" | "server.ops_listen" | "shim.listen" | "shim.ops_listen" => {
            match text.parse::<SocketAddr>() {
                Ok(_) => Ok(()),
                Err(_) => Err(format!(
                    "is {text:?}; it must be an address and a port, such as 127.0.0.1:8080 or [::1]:8080"
                )),
            }
        }
        "server.instance_id" if !text.is_empty() && !is_instance_id(text) => Err(format!(
            "is {text:?}; it must be up to 64 of A-Z a-z 0-9 . _ -"
        )),
        "store.url" => store_url(text),
        "store.key_prefix" => key_prefix(text),
        "store.durability" => one_of(&["async", "replicated", "fsync"]),
        "shim_health.path"
            if !text.starts_with('/') || !text.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            Err(format!(
                "is {text:?}; it must be a path, such as /health/ready"
            ))
        }
        "log.level" => one_of(&["error", "warn", "info", "debug", "trace"]),
        "log.format" => one_of(&["text", "json"]),
        "trace.otlp_endpoint" => telemetry::endpoint(text),
        _ => Ok(()),
    }
}

/// Checks the address of a store. A wrong one is not repeated: it may carry a password.
fn store_url(text: &str) -> Result<(), String> {
    match text.split_once(':') {
        Some((scheme, dir)) if EMBEDDED.strip_suffix(':') == Some(scheme) => {
            if dir.is_empty() || dir.contains('\0') {
                Err("names no directory; write embedded:DIR".into())
            } else {
                Ok(())
            }
        }
        Some(("redis" | "redis+sentinel" | "redis+cluster", rest)) if rest.starts_with("//") => {
            let parsed: Result<trove_streams::StoreUrl, _> = text.parse();
            parsed
                .map(drop)
                .map_err(|error| format!("is no address: {error}"))
        }
        Some((scheme, rest)) if rest.starts_with("//") => Err(format!(
            "is a {scheme} address; this version knows embedded:DIR, redis://, redis+sentinel:// and redis+cluster://"
        )),
        _ => Err("must be embedded:DIR, redis://…, redis+sentinel://… or redis+cluster://…".into()),
    }
}

/// What may begin every key of a store on Redis.
fn key_prefix(text: &str) -> Result<(), String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':');
    if text.len() <= 32 && text.bytes().all(fits) {
        Ok(())
    } else {
        Err(format!(
            "is {text:?}; it must be up to 32 of A-Z a-z 0-9 . _ - :"
        ))
    }
}

fn network(item: &Value) -> Result<(), String> {
    let text = item.as_str().ok_or("must be a list of texts")?;
    LinkPeers::parse([text]).map(drop).map_err(|_| {
        format!("has {text:?}; it must be an address or a network, such as 10.1.0.0/16 or ::1")
    })
}

fn origin(item: &Value) -> Result<(), String> {
    let text = item.as_str().ok_or("must be a list of texts")?;
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let plain = |host: &str| {
        !host.is_empty()
            && host
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b"/?#@*".contains(&b))
    };
    if text == "*" || host.is_some_and(plain) {
        Ok(())
    } else {
        Err(format!(
            "holds {text:?}; an origin is a scheme and a host without a path, such as https://game.example, or *"
        ))
    }
}

/// Checks settings against each other.
///
/// # Errors
/// Names the first two that contradict each other.
pub(super) fn relations(settings: &Settings) -> Result<(), SettingsError> {
    let Settings {
        server,
        store,
        game,
        poll,
        limits,
        shim,
        shim_upstream: upstream,
        shim_health: health,
        ..
    } = settings;
    if server.listen == server.ops_listen && server.listen.port() != 0 {
        return Err(SettingsError::Relation {
            first: "server.ops_listen",
            first_value: server.ops_listen.to_string(),
            relation: "the same as",
            second: "server.listen",
            second_value: server.listen.to_string(),
        });
    }
    if shim.listen == shim.ops_listen && shim.listen.port() != 0 {
        return Err(SettingsError::Relation {
            first: "shim.ops_listen",
            first_value: shim.ops_listen.to_string(),
            relation: "the same as",
            second: "shim.listen",
            second_value: shim.listen.to_string(),
        });
    }
    // A connection that the upstream closes at the moment when it is used again costs a second attempt, or an error.
    if upstream.pool_idle_ms >= upstream.keep_alive_ms {
        return Err(SettingsError::Relation {
            first: "shim_upstream.pool_idle_ms",
            first_value: upstream.pool_idle_ms.to_string(),
            relation: "as long as or above",
            second: "shim_upstream.keep_alive_ms",
            second_value: upstream.keep_alive_ms.to_string(),
        });
    }
    // The embedded store syncs every batch, and has no replicas.
    if store.dir().is_some() && store.durability == Durability::Replicated {
        return Err(SettingsError::Relation {
            first: "store.durability",
            first_value: "replicated".into(),
            relation: "set, as there are no replicas, with",
            second: "store.url",
            second_value: store.url.clone(),
        });
    }
    // A find that waits for less than one answer of the server is given up while its script may still run. The embedded store
    // has no server.
    if store.dir().is_none() && store.response_timeout_ms >= store.find_wait_ms {
        return Err(SettingsError::Relation {
            first: "store.response_timeout_ms",
            first_value: store.response_timeout_ms.to_string(),
            relation: "as long as or above",
            second: "store.find_wait_ms",
            second_value: store.find_wait_ms.to_string(),
        });
    }
    let bytes = |count: usize| count as u64;
    for (first, first_value, second, second_value) in [
        (
            "poll.credit_wait_ms",
            poll.credit_wait_ms,
            "poll.interval_ms",
            poll.interval_ms,
        ),
        // A client's id that was forgotten and used again would be taken for the find that is offered.
        (
            "store.replay_age_ms",
            store.replay_age_ms,
            "game.find_id_ttl_ms",
            game.find_id_ttl_ms,
        ),
        (
            "store.durability_wait_ms",
            store.durability_wait_ms,
            "store.find_wait_ms",
            store.find_wait_ms,
        ),
        (
            "limits.inline_json_bytes_max",
            bytes(limits.inline_json_bytes_max),
            "limits.body_bytes_max",
            bytes(limits.body_bytes_max),
        ),
        (
            "limits.body_bytes_max",
            bytes(limits.body_bytes_max),
            "limits.hunt_bytes_max",
            bytes(limits.hunt_bytes_max),
        ),
        (
            "limits.body_bytes_max",
            bytes(limits.body_bytes_max),
            "limits.bulk_bytes_max",
            bytes(limits.bulk_bytes_max),
        ),
        (
            "limits.header_ms",
            limits.header_ms,
            "limits.idle_ms",
            limits.idle_ms,
        ),
        (
            "shim_upstream.connect_ms",
            upstream.connect_ms,
            "shim_upstream.answer_ms",
            upstream.answer_ms,
        ),
        (
            "shim_upstream.queue_ms",
            upstream.queue_ms,
            "shim_upstream.answer_ms",
            upstream.answer_ms,
        ),
        (
            "shim_health.timeout_ms",
            health.timeout_ms,
            "shim_health.interval_ms",
            health.interval_ms,
        ),
        (
            "shim.cache_answer_bytes_max",
            bytes(shim.cache_answer_bytes_max),
            "shim.cache_bytes_max",
            bytes(shim.cache_bytes_max),
        ),
    ] {
        if first_value > second_value {
            return Err(SettingsError::Relation {
                first,
                first_value: first_value.to_string(),
                relation: "above",
                second,
                second_value: second_value.to_string(),
            });
        }
    }
    settings.sla.check()
}
