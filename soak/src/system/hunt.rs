//! The hunt that users play, and their tokens, both made by the product's own commands.

use super::System;
use crate::books::ids::PLAYER_PREFIX;
use crate::generator::{self, Treasure};
use crate::refusal::Refusal;
use serde_json::json;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// How many treasures of each kind a hunt has. Coins differ, so that one credited for another is noticed.
const TREASURES: u64 = 64;
/// Tokens are valid so much longer than the run, for its beginning, its end and what comes between resumptions.
const TOKEN_EXTRA: Duration = Duration::from_secs(24 * 3600);
/// The longest validity that `trove token` gives.
const TOKEN_TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The hunt's treasures, repeatable ones first; named as the books want it ([`crate::books::ids`]).
#[must_use]
pub fn treasures() -> Vec<Treasure> {
    let of = |repeatable: bool| {
        (1..=TREASURES).map(move |coins| Treasure {
            id: format!("{}{coins}", if repeatable { "again-" } else { "once-" }),
            coins,
            repeatable,
        })
    };
    of(true).chain(of(false)).collect()
}

impl System {
    /// `trove`, with the run's keys and store.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.trove);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TROVE_") {
                command.env_remove(name);
            }
        }
        command.args(args).envs(self.keys()).stdin(Stdio::null());
        command
    }

    /// Runs `trove` to its end.
    pub(crate) fn trove_says(&self, args: &[&str]) -> Result<Output, Refusal> {
        let output = self.command(args).output();
        output.map_err(|error| Refusal::unreachable(format!("{}: {error}", self.trove.display())))
    }

    fn must(&self, args: &[&str]) -> Result<String, Refusal> {
        let output = self.trove_says(args)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let command = args.first().copied().unwrap_or_default();
        Err(Refusal::unreachable(format!(
            "trove {command}: {}",
            said.trim()
        )))
    }

    /// Puts the hunt and opens it, unless the run has one.
    pub(super) fn open_hunt(&self, wall_ms: u64) -> Result<(), Refusal> {
        if !self.state().hunt().is_empty() {
            return Ok(());
        }
        let hunt = format!("soak-{wall_ms}");
        let listed: Vec<_> = treasures()
            .iter()
            .map(|one| json!({"id": one.id, "coins": one.coins, "repeatable": one.repeatable}))
            .collect();
        let window_ms = u64::try_from(self.case.window_scaled().as_millis()).unwrap_or(u64::MAX);
        let document = json!({"id": hunt, "name": self.case.name, "window_ms": window_ms, "treasures": listed});
        let file = self.dir.join("hunt.json");
        std::fs::write(&file, document.to_string())
            .map_err(|error| Refusal::unreachable(format!("{}: {error}", file.display())))?;
        let server = self.manage_url()?;
        self.must(&["hunt", "put", &file.to_string_lossy(), "--server", &server])?;
        self.must(&["hunt", "open", &hunt, "--server", &server])?;
        self.state().set_hunt(&hunt)
    }

    /// Tokens of the users, `u1` first.
    pub(crate) fn tokens(&self) -> Result<Vec<String>, Refusal> {
        let lasts = self.case.duration.saturating_mul(2) + TOKEN_EXTRA;
        let ttl = format!("{}s", lasts.min(TOKEN_TTL_MAX).as_secs());
        let (users, _) = generator::users_max(&self.case);
        let count = users.to_string();
        let text = self.must(&[
            "token",
            "--count",
            &count,
            "--prefix",
            PLAYER_PREFIX,
            "--ttl",
            &ttl,
        ])?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}
