//! `trove serve`: settings, keys and the log, then the server.

use super::args::ServeArgs;
use super::failure::{Exit, Failure};
use crate::auth::{KeySource, Keys, Secrets};
use crate::config::{self, LogFormat, LogLevel, Overrides, Settings};
use crate::serve::{self, ServeError};
use crate::store::redis::ConnectError;
use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// Serves until told to stop.
pub(super) fn run(args: ServeArgs) -> Result<(), Failure> {
    let load = move || {
        let flags = Overrides {
            listen: args.listen.clone(),
            ops_listen: args.ops_listen.clone(),
            store: args.store.clone(),
            instance_id: args.instance_id.clone(),
            ..Overrides::default()
        };
        Settings::load(args.config.as_deref(), config::environment(), flags)
            .map_err(|error| Failure::new(Exit::Usage, error))
    };
    let settings = load()?;
    let dir = settings.store.dir().map(ToOwned::to_owned);
    let keys_of = {
        let dir = dir.clone();
        move |settings: &Settings| {
            let secrets = Secrets::from_env(config::environment());
            Keys::load(settings, &secrets, dir.as_deref())
                .map_err(|error| Failure::new(Exit::Usage, error))
        }
    };
    let (keys, origin) = keys_of(&settings)?;
    let level = start_log(&settings);
    for (what, source) in [("token", origin.token), ("admin", origin.admin)] {
        if let KeySource::Made(path) = source {
            tracing::info!(path = %path.display(), "made a random {what} key");
        }
    }
    let reload = Box::new(move || {
        let settings = load().map_err(|failure| failure.words())?;
        let (keys, _) = keys_of(&settings).map_err(|failure| failure.words())?;
        level
            .modify(|filter| *filter = filter_of(settings.log.level))
            .map_err(|error| error.to_string())?;
        Ok((settings, keys))
    });
    serve::run(settings, keys, reload, args.demo).map_err(|error| {
        let exit = match error {
            ServeError::Listen { .. } => Exit::Usage,
            ServeError::Redis(ConnectError::Unreachable(_)) => Exit::Unreachable,
            ServeError::Redis(_) => Exit::Usage,
            _ => Exit::Unreachable,
        };
        Failure::new(exit, error)
    })
}

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Logs to standard error. The level can be changed while the server runs.
pub(super) fn start_log(settings: &Settings) -> reload::Handle<LevelFilter, Registry> {
    let (filter, handle) = reload::Layer::new(filter_of(settings.log.level));
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match settings.log.format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    handle
}
