//! Keeps a link up: resolves, connects, watches, drops, pauses, and begins again.

use std::future::Future;
use std::sync::Arc;

use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::link::{self, AbortOnDrop, Link};
use super::server::History;
use super::state::DownReason;
use super::{Parts, Shared};
use crate::endpoint::Endpoint;

/// Never ends; the connection's last handle aborts it.
pub(super) async fn run(shared: Arc<Shared>) {
    let parts = &shared.parts;
    let config = &parts.config;
    let mut backoff = Backoff::new(config.backoff_min, config.backoff_max, config.seed);
    let mut known: Option<History> = None;
    let mut number = 0;
    loop {
        match connect(number + 1, known.as_ref(), parts).await {
            Ok((link, mut driver, endpoint)) => {
                number += 1;
                let up_at = Instant::now();
                let link = Arc::new(link);
                known = Some(link.up().server.history.clone());
                shared.publish(&link);
                let reason = tokio::select! {
                    // An asked-for end is told from the end of the stream that it causes.
                    biased;
                    reason = link.condemned() => reason,
                    _ = &mut driver.0 => Arc::new(DownReason::Closed),
                    () = parts.resolver.moved(&endpoint) => Arc::new(DownReason::Moved),
                    reason = keep_probing(&shared, &link, &mut known) => Arc::new(reason),
                };
                // In this order: nobody takes the link any more, then those who wait on it are told.
                shared.withdraw(reason);
                drop(driver);
                if up_at.elapsed() >= config.backoff_max {
                    backoff.reset();
                }
            }
            Err(reason) => shared.failed(reason),
        }
        sleep(backoff.next()).await;
    }
}

async fn connect(
    number: u64,
    known: Option<&History>,
    parts: &Parts,
) -> Result<(Link, AbortOnDrop, Endpoint), DownReason> {
    let endpoint = parts.resolver.resolve().await?;
    let within = parts.config.connect_timeout;
    let (link, driver) = timeout(within, link::open(endpoint.clone(), number, known, parts))
        .await
        .map_err(|_| DownReason::ConnectTimedOut(within))??;
    Ok((link, driver, endpoint))
}

/// Looks at the server now and then, and at once when it is suspected; ends with a reason to drop the link.
async fn keep_probing(
    shared: &Shared,
    link: &Arc<Link>,
    known: &mut Option<History>,
) -> DownReason {
    let parts = &shared.parts;
    loop {
        let _ = timeout(parts.config.probe_interval, link.suspect.notified()).await;
        let probed = match link.probe(parts).await {
            // Counted; the next probe follows at once, until the bound or an answer.
            None => continue,
            Some(Err(reason)) => return reason,
            Some(Ok(probed)) => probed,
        };
        if probed.history.replid == link.up().server.history.replid {
            continue;
        }
        if let Err(reason) = bounded(parts, link.history_changed(probed, parts)).await {
            return reason;
        }
        *known = Some(link.up().server.history.clone());
        shared.publish(link);
    }
}

async fn bounded(
    parts: &Parts,
    work: impl Future<Output = Result<(), DownReason>>,
) -> Result<(), DownReason> {
    let within = parts.config.connect_timeout;
    timeout(within, work)
        .await
        .unwrap_or(Err(DownReason::ConnectTimedOut(within)))
}
