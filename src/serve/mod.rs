//! The game server.

use crate::auth::Keys;
use crate::config::Settings;
use std::process::ExitCode;

/// Runs the server until it is told to stop.
#[must_use]
pub fn run(settings: Settings, keys: Keys, demo: bool) -> ExitCode {
    let _ = (settings, keys, demo);
    eprintln!("trove: this build has no server");
    ExitCode::from(3)
}

/// The OpenAPI document of the public listener.
#[must_use]
pub fn openapi() -> String {
    String::from("{}")
}
