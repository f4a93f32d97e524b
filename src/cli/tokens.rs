//! `trove token`: signs tokens with the key that the server verifies them with.

use super::args::TokenArgs;
use super::failure::{Exit, Failure};
use crate::auth::{Secrets, TokenKeys};
use crate::config;
use crate::game::ids::PlayerName;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) fn run(args: &TokenArgs, out: &mut impl Write) -> Result<(), Failure> {
    let settings = super::settings(args.store.store.clone())?;
    let secrets = Secrets::from_env(config::environment());
    let (keys, _) = TokenKeys::load(&settings, &secrets, settings.store.dir(), false)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let mut sign = |player: &PlayerName| writeln!(out, "{}", keys.sign(player, now_ms, args.ttl));
    for player in &args.players {
        sign(player)?;
    }
    if let (Some(count), Some(prefix)) = (args.count, &args.prefix) {
        let named = |n: u64| {
            PlayerName::new(&format!("{prefix}{n}")).map_err(|error| {
                Failure::new(
                    Exit::Usage,
                    format_args!("--prefix {prefix:?}: a player's name {error}"),
                )
            })
        };
        // The longest name first, so that a wrong prefix signs nothing.
        named(count)?;
        for n in 1..=count {
            sign(&named(n)?)?;
        }
    }
    Ok(())
}
