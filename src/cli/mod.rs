//! The command line: what users type, and what becomes of it.
//!
//! - [`args`]: the commands and their arguments; [`values`] reads those that clap does not; [`usage`] puts its errors on one
//!   line.
//! - [`failure`]: how a command ends when it does not go well.
//! - [`client`]: speaks HTTP to a server, over TCP or the socket in the store's directory.
//! - [`serve`]: starts the server. [`shim`]: starts the shim, and switches one.
//! - [`manage`]: commands that manage, through a server. [`tokens`]: signs tokens. [`ledger`]: exports and audits a store,
//!   itself or through the server that has it. [`simulate`]: runs the game core.

mod args;
mod client;
mod failure;
mod ledger;
mod manage;
mod serve;
mod shim;
mod simulate;
mod store;
mod tokens;
mod usage;
mod values;

use crate::config::{self, Overrides, Settings};
use args::{Args, Command, SlaCommand};
use clap::Parser;
use failure::{Exit, Failure};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage::report(&error),
    };
    // The output is not locked: the server has threads that print.
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout());
    let outcome = run(args.command, &mut out).and_then(|code| {
        out.flush()?;
        Ok(code)
    });
    outcome.unwrap_or_else(|failure| failure.report())
}

fn run(command: Command, out: &mut impl Write) -> Result<ExitCode, Failure> {
    match command {
        Command::Serve(args) => serve::run(args)?,
        Command::Shim(args) => shim::run(args, out)?,
        Command::Token(args) => tokens::run(&args, out)?,
        Command::Hunt(args) => manage::hunt(args, out)?,
        Command::Adjust(args) => manage::adjust(args, out)?,
        Command::Reinstate(args) => manage::reinstate(args, out)?,
        Command::Export(args) => ledger::export(args, out)?,
        Command::Verify(args) => ledger::verify(args, out)?,
        Command::Store(command) => store::run(command, out)?,
        Command::Sla(SlaCommand::Rules { config }) => {
            let settings = Settings::load(
                config.as_deref(),
                config::environment(),
                Overrides::default(),
            )
            .map_err(|error| Failure::new(Exit::Usage, error))?;
            let sla = &settings.sla;
            out.write_all(crate::sla::rules::rules(&sla.objectives, sla.failures_min).as_bytes())?;
        }
        Command::Config => out.write_all(config::DEFAULTS.as_bytes())?,
        Command::Openapi => writeln!(out, "{}", crate::serve::openapi())?,
        Command::Simulate(args) => simulate::run(args, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings as far as commands other than `serve` need them: the environment, and the store that a flag names.
fn settings(store: Option<String>) -> Result<Settings, Failure> {
    let flags = Overrides {
        store,
        ..Overrides::default()
    };
    Settings::load(None, config::environment(), flags)
        .map_err(|error| Failure::new(Exit::Usage, error))
}
