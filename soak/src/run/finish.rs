//! The final check, when all has settled: the product's own audit, and its exported ledger against the harness's books.

use super::records::Records;
use crate::books;
use crate::case::Case;
use crate::record::{End, FaultMark, files, read_lines};
use crate::refusal::Refusal;
use crate::system::System;
use std::io::BufReader;
use std::path::Path;
use std::process::Stdio;

/// What the run knows already.
pub(super) struct Known {
    /// What could not be checked, and why.
    pub(super) unchecked: Vec<String>,
    /// Findings so far.
    pub(super) findings: u64,
    /// The run's time.
    pub(super) at_ms: u64,
}

/// Checks, and records the end.
pub(super) fn finish(
    case: &Case,
    dir: &Path,
    system: &System,
    records: &mut Records,
    known: Known,
) -> Result<(), Refusal> {
    let mut end = End::default();
    let mut unchecked = known.unchecked;
    let mut count = known.findings;
    // Another server has no ledger that could be asked for.
    if case.system.url_template.is_empty() {
        if let Some(store) = system.store_url() {
            let hunt = system.hunt();
            let (compared, findings) = compare(case, dir, system, &hunt, store)?;
            end = compared;
            count += end.findings;
            unchecked.append(&mut end.unchecked);
            for finding in &findings {
                records.append(files::FINDINGS, finding)?;
            }
            let output = system.trove_says(&["verify", &hunt, "--store", store])?;
            let said = if output.status.success() {
                output.stdout
            } else {
                output.stderr
            };
            let said = String::from_utf8_lossy(&said);
            let line = said
                .trim()
                .lines()
                .last()
                .unwrap_or_default()
                .trim()
                .to_owned();
            let status = output
                .status
                .code()
                .map_or_else(|| "a signal".into(), |code| code.to_string());
            end.verify = format!("{status}: {line}");
            end.verify_holds = output.status.success();
        } else {
            unchecked.push(
                "the ledger: where the store is was not said (TROVE_STORE__URL), so neither `trove verify` nor \
                 `trove export` could be asked"
                    .into(),
            );
        }
    } else {
        end.verify_holds = true;
        end.verify = "not asked: the system is not Trove's".into();
    }
    end.at_ms = known.at_ms;
    end.findings = count;
    end.unchecked = unchecked;
    records.append(files::END, &end)?;
    records
        .sync()
        .map_err(|error| Refusal::unreachable(format!("{}: {error}", dir.display())))
}

/// Holds the export against the books.
fn compare(
    case: &Case,
    dir: &Path,
    system: &System,
    hunt: &str,
    store: &str,
) -> Result<(End, Vec<crate::record::Finding>), Refusal> {
    let failed = |error: std::io::Error| Refusal::unreachable(format!("trove export: {error}"));
    let marks = read_lines(&dir.join(files::FAULTS)).map_err(failed)?;
    let marks: Vec<FaultMark> = marks.collect::<std::io::Result<_>>().map_err(failed)?;
    let mut export = system
        .command(&["export", hunt, "--store", store])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let rows = export
        .stdout
        .take()
        .ok_or_else(|| Refusal::unreachable("trove export: no output"))?;
    let compared = books::compare(dir, BufReader::with_capacity(1 << 20, rows), case, &marks);
    if compared.is_err() {
        let _ = export.kill();
    }
    let status = export.wait().map_err(failed)?;
    let (mut end, findings) = compared.map_err(failed)?;
    if !status.success() {
        end.unchecked
            .push(format!("the ledger: trove export ended with {status}"));
    }
    Ok((end, findings))
}
