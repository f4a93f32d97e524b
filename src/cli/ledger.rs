//! `trove export` and `trove verify`: they read the store themselves, or ask the server that has it.

use super::args::{ExportArgs, VerifyArgs};
use super::client::{Client, block_on};
use super::failure::{Exit, Failure};
use crate::config::Settings;
use crate::game::ids::HuntId;
use crate::ledger::{ExportFormat, HuntVerdict, SumsReport, VerifyReport};
use crate::store::embedded::{AuditStore, OpenError};
use crate::store::redis::RedisStore;
use crate::store::{Store, StoreError};
use http::Method;
use http_body_util::BodyExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// The store, or `None` when a server has it.
fn open(dir: &Path) -> Result<Option<AuditStore>, Failure> {
    match quietly(dir, || AuditStore::open(dir))? {
        Ok(store) => Ok(Some(store)),
        Err(OpenError::InUse(_)) => Ok(None),
        Err(error @ OpenError::Missing(_)) => Err(Failure::new(
            Exit::Usage,
            format_args!("{error}; name its directory with --store"),
        )),
        Err(error) => Err(Failure::new(Exit::Unreachable, error)),
    }
}

/// Reads a store. A damaged file can make redb panic; to the user that is one more way of being damaged, and no place for
/// a panic's own words.
fn quietly<T>(dir: &Path, read: impl FnOnce() -> T) -> Result<T, Failure> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    std::panic::set_hook(hook);
    outcome.map_err(|_| unreadable(dir, "it is damaged"))
}

fn unreadable(dir: &Path, why: &str) -> Failure {
    Failure::new(
        Exit::Unreachable,
        format_args!(
            "the store in {} cannot be read: {why}; restore it from a backup",
            dir.display()
        ),
    )
}

fn no_such_hunt(hunt: &HuntId, store: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::No, format_args!("there is no hunt {hunt} in {store}"))
}

/// Shows on a terminal that something goes on.
fn spinner(what: String) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_message(what)
        .with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// `trove export`
pub(super) fn export(args: ExportArgs, out: &mut impl Write) -> Result<(), Failure> {
    let settings = super::settings(args.store.store)?;
    let Some(dir) = settings.store.dir() else {
        return block_on(export_redis(&settings, &args.hunt, args.format, out));
    };
    let Some(store) = open(dir)? else {
        let path = format!("/export/{}?format={}", args.hunt, args.format.as_str());
        return block_on(stream(&Client::unix(dir), &path, out));
    };
    let mut bytes = args.format.header().as_bytes().to_vec();
    let mut failed = None;
    let mut write = |rows: &[_]| -> Result<(), Failure> {
        args.format
            .write_rows(&mut bytes, rows)
            .map_err(|error| Failure::new(Exit::Unreachable, error))?;
        out.write_all(&bytes)?;
        bytes.clear();
        Ok(())
    };
    let send = |rows: Vec<_>| {
        let written = write(&rows);
        let goes_on = written.is_ok();
        failed = failed.take().or(written.err());
        goes_on
    };
    let exists = quietly(dir, || store.export(&args.hunt, send))?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    match exists {
        // Writes what a hunt without wallets has: the header.
        Ok(true) => write(&[]),
        Ok(false) => Err(no_such_hunt(&args.hunt, &dir.display())),
        Err(why) => Err(unreadable(dir, &why)),
    }
}

/// Writes an answer as it comes.
async fn stream(client: &Client, path: &str, out: &mut impl Write) -> Result<(), Failure> {
    let mut body = client.send(Method::GET, path, None).await?.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                format_args!(
                    "the export broke off ({error}): what was written is not whole; run it again"
                ),
            )
        })?;
        if let Some(bytes) = frame.data_ref() {
            out.write_all(bytes)?;
        }
    }
    Ok(())
}

/// `trove verify`
pub(super) fn verify(args: VerifyArgs, out: &mut impl Write) -> Result<(), Failure> {
    let settings = super::settings(args.store.store)?;
    let hunt = args.hunt.as_ref();
    let progress = if std::io::stderr().is_terminal() {
        spinner("auditing the ledger".into())
    } else {
        ProgressBar::hidden()
    };
    let report = match settings.store.dir() {
        Some(dir) => audit(dir, hunt)?,
        None => block_on(verify_redis(&settings, hunt))?,
    };
    progress.finish_and_clear();
    for verdict in &report.hunts {
        print(verdict, out)?;
    }
    out.flush()?;
    if report.holds {
        if report.hunts.is_empty() {
            writeln!(out, "there are no hunts")?;
        }
        return Ok(());
    }
    let broken: Vec<&str> = report
        .hunts
        .iter()
        .filter(|verdict| !verdict.holds)
        .map(|verdict| verdict.hunt.as_str())
        .collect();
    Err(Failure::new(
        Exit::No,
        format_args!(
            "the ledger does not add up in {}; stop the server and keep a copy of {}",
            broken.join(", "),
            settings.store.shown()
        ),
    ))
}

fn audit(dir: &Path, hunt: Option<&HuntId>) -> Result<VerifyReport, Failure> {
    match open(dir)? {
        Some(store) => match quietly(dir, || store.verify(hunt))? {
            Ok(Some(audits)) => Ok(VerifyReport::from(audits)),
            Ok(None) => Err(hunt.map_or_else(
                || unreadable(dir, "it has no hunts"),
                |hunt| no_such_hunt(hunt, &dir.display()),
            )),
            Err(why) => Err(unreadable(dir, &why)),
        },
        None => block_on(ask(&Client::unix(dir), hunt)),
    }
}

/// The store on Redis, for a command that only looks.
async fn connect(settings: &Settings) -> Result<RedisStore, Failure> {
    super::store::connect(settings, false).await
}

fn store_failed(error: &StoreError) -> Failure {
    Failure::new(Exit::Unreachable, format_args!("{error}; try again"))
}

async fn verify_redis(settings: &Settings, hunt: Option<&HuntId>) -> Result<VerifyReport, Failure> {
    let store = connect(settings).await?;
    match store.verify(hunt).await {
        Ok(audits) => Ok(VerifyReport::from(audits)),
        Err(StoreError::NoSuchHunt) => Err(hunt.map_or_else(
            || store_failed(&StoreError::NoSuchHunt),
            |hunt| no_such_hunt(hunt, &settings.store.shown()),
        )),
        Err(error) => Err(store_failed(&error)),
    }
}

async fn export_redis(
    settings: &Settings,
    hunt: &HuntId,
    format: ExportFormat,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let store = connect(settings).await?;
    let mut rows = match store.export(hunt).await {
        Ok(rows) => rows,
        Err(StoreError::NoSuchHunt) => return Err(no_such_hunt(hunt, &settings.store.shown())),
        Err(error) => return Err(store_failed(&error)),
    };
    let mut bytes = format.header().as_bytes().to_vec();
    while let Some(batch) = rows.recv().await {
        let batch = batch.map_err(|error| store_failed(&error))?;
        format
            .write_rows(&mut bytes, &batch)
            .map_err(|error| Failure::new(Exit::Unreachable, error))?;
        out.write_all(&bytes)?;
        bytes.clear();
    }
    out.write_all(&bytes)?;
    Ok(())
}

async fn ask(client: &Client, hunt: Option<&HuntId>) -> Result<VerifyReport, Failure> {
    let query = hunt.map_or_else(String::new, |hunt| format!("?hunt={hunt}"));
    let answer = client
        .ask(Method::GET, &format!("/verify{query}"), None)
        .await?;
    serde_json::from_slice(&answer).map_err(|error| {
        Failure::new(
            Exit::Unreachable,
            format_args!("{} gave an answer that is none: {error}", client.name()),
        )
    })
}

fn print(verdict: &HuntVerdict, out: &mut impl Write) -> Result<(), Failure> {
    let SumsReport {
        recorded,
        credited,
        expired,
        pending,
        revoked,
    } = verdict.sums;
    let word = if verdict.holds {
        "adds up"
    } else {
        "DOES NOT ADD UP"
    };
    writeln!(out, "{}: {word}", verdict.hunt)?;
    writeln!(
        out,
        "  recorded {recorded} = credited {credited} + expired {expired} + pending {pending} + revoked {revoked}"
    )?;
    writeln!(
        out,
        "  {} wallets, {} entries, as of feed position {}",
        verdict.wallets, verdict.entries, verdict.feed_position
    )?;
    for discrepancy in &verdict.discrepancies {
        writeln!(out, "  wrong: {discrepancy}")?;
    }
    let more = verdict
        .discrepancy_count
        .saturating_sub(verdict.discrepancies.len() as u64);
    if more > 0 {
        writeln!(out, "  and {more} more")?;
    }
    Ok(())
}
