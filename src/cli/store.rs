//! `trove store`: what a store on Redis is, and taking another one for it.

use super::args::StoreCommand;
use super::client::block_on;
use super::failure::{Exit, Failure};
use crate::config::{Settings, StorePlace};
use crate::serve::redis_options;
use crate::store::redis::{ConnectError, Info, RedisStore};
use std::io::Write;

/// Connects to the store on Redis that the settings name; makes a new one only if `create` says so.
pub(super) async fn connect(settings: &Settings, create: bool) -> Result<RedisStore, Failure> {
    let StorePlace::Redis(url) = settings.store.place() else {
        return Err(Failure::new(
            Exit::Usage,
            "this is for a store on Redis; name it with --store redis://HOST",
        ));
    };
    let options = crate::store::redis::Options {
        create,
        ..redis_options(settings)
    };
    RedisStore::connect(url, options).await.map_err(failed)
}

fn failed(error: ConnectError) -> Failure {
    let exit = match error {
        ConnectError::Unreachable(_) => Exit::Unreachable,
        _ => Exit::Usage,
    };
    Failure::new(exit, error)
}

/// `trove store info` and `trove store accept`
pub(super) fn run(command: StoreCommand, out: &mut impl Write) -> Result<(), Failure> {
    let (store, accept) = match command {
        StoreCommand::Info(arg) => (arg.store, false),
        StoreCommand::Accept(arg) => (arg.store, true),
    };
    let settings = super::settings(store)?;
    let info = block_on(async {
        let StorePlace::Redis(url) = settings.store.place() else {
            return Err(Failure::new(
                Exit::Usage,
                "this is for a store on Redis; name it with --store redis://HOST",
            ));
        };
        let options = redis_options(&settings);
        if accept {
            RedisStore::accept_at(url, options).await.map_err(failed)
        } else {
            RedisStore::info_at(url, options).await.map_err(failed)
        }
    })?;
    print(&settings, &info, out)
}

fn print(settings: &Settings, info: &Info, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "store       {}", settings.store.shown())?;
    writeln!(out, "server      {}", info.version)?;
    let Some(identity) = &info.identity else {
        writeln!(out, "identity    none: the server holds no store")?;
        return Ok(());
    };
    writeln!(out, "identity    {identity}")?;
    writeln!(out, "schema      {}", info.schema)?;
    writeln!(out, "partitions  {}", info.partitions)?;
    writeln!(out, "epoch       {}", info.epoch)?;
    writeln!(out, "made        {}", when(info.created_ms))?;
    writeln!(out, "feed bytes  {}", info.feed_bytes)?;
    Ok(())
}

fn when(ms: u64) -> String {
    let time = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| ms.to_string(), |time| time.to_string())
}
