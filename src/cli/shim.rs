//! `trove shim`: settings, keys and the log, then the shim; and `trove shim switch`, which asks a running one.

use super::args::{ShimArgs, ShimCommand, ShimSwitchArgs};
use super::client::{Client, block_on};
use super::failure::{Exit, Failure};
use super::serve::start_log;
use crate::auth::{self, AdminKeys, KeyError, Secrets, TokenKeys};
use crate::config::{self, Overrides, Settings};
use crate::shim::{self, Keys, ShimError};
use http::Method;
use std::io::Write;

/// Runs the shim until told to stop, or what stands beside it.
pub(super) fn run(args: ShimArgs, out: &mut impl Write) -> Result<(), Failure> {
    match args.command {
        Some(ShimCommand::Switch(switch_args)) => switch(&switch_args, out),
        None => serve(args),
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, error)
}

fn serve(args: ShimArgs) -> Result<(), Failure> {
    let flags = Overrides {
        shim_listen: args.listen,
        shim_ops_listen: args.ops_listen,
        instance_id: args.instance_id,
        upstreams: args.upstreams,
        ..Overrides::default()
    };
    let settings =
        Settings::load(args.config.as_deref(), config::environment(), flags).map_err(usage)?;
    let keys = keys(&settings).map_err(usage)?;
    start_log(&settings);
    shim::run(&settings, keys).map_err(|error| {
        let exit = match error {
            ShimError::Io(_) => Exit::Unreachable,
            _ => Exit::Usage,
        };
        Failure::new(exit, error)
    })
}

/// The keys as far as there are any: a shim makes none. Beside an embedded store it takes those that its server keeps.
fn keys(settings: &Settings) -> Result<Keys, KeyError> {
    let secrets = Secrets::from_env(config::environment());
    let dir = settings.store.dir();
    let tokens = TokenKeys::load(settings, &secrets, dir, false);
    let admin_dir = dir.filter(|dir| dir.join("admin.key").exists());
    let admins = AdminKeys::load(settings, &secrets, admin_dir);
    Ok(Keys {
        tokens: if_any(tokens.map(|(keys, _)| keys))?,
        admins: if_any(admins.map(|(keys, _)| keys))?,
    })
}

fn if_any<T>(loaded: Result<T, KeyError>) -> Result<Option<T>, KeyError> {
    match loaded {
        Ok(keys) => Ok(Some(keys)),
        Err(KeyError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn switch(args: &ShimSwitchArgs, out: &mut impl Write) -> Result<(), Failure> {
    let settings = super::settings(args.store.store.clone())?;
    let secrets = Secrets::from_env(config::environment());
    let key = auth::admin_key(&settings, &secrets).map_err(usage)?;
    let url = if args.ops.contains("://") {
        args.ops.clone()
    } else {
        format!("http://{}", args.ops)
    };
    let client = Client::tcp(&url, Some(key))?;
    let body = serde_json::json!({ "group": args.group }).to_string();
    block_on(client.ask(Method::POST, "/shim/switch", Some(body.into_bytes())))?;
    Ok(writeln!(out, "{} is live", args.group)?)
}
