//! The report of a run: one HTML file that needs nothing else, with plots as inline SVG, and a JSON of the same figures beside
//! it. Made from the run's record alone, so it can be made again at any time, also of a run that was cut off.
//!
//! - [`digest`](self): the record read once, in bounded memory.
//! - `plots`, `plot`: which plots there are, and how one is drawn.
//! - `summary`: the figures; `page`: the HTML around them; `words`: figures as people read them.

mod compared;
mod digest;
mod page;
mod plot;
mod plots;
mod summary;
mod tables;
mod words;

pub use digest::POINTS_MAX;
pub use summary::{KindSummary, Percentiles, ResourceSummary, Summary};

use crate::case::Case;
use crate::verdict::judge;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// The page's name in the run's directory.
pub const HTML: &str = "report.html";
/// The figures' name.
pub const JSON: &str = "report.json";
/// The page's name where it compares with another run.
pub const COMPARED_HTML: &str = "report-compared.html";

/// A report that was written.
#[derive(Debug)]
pub struct Report {
    /// The page.
    pub html: PathBuf,
    /// Its figures.
    pub summary: Summary,
}

/// Judges the run in `dir` and writes its report there; with `against`, the directory of an earlier run, a page that compares
/// the two, and no JSON.
///
/// # Errors
/// There is no case in a directory, a record cannot be read, or the report cannot be written.
pub fn html(dir: &Path, against: Option<&Path>) -> anyhow::Result<Report> {
    let (case, digest, summary) = read(dir)?;
    let other = against.map(read).transpose()?;
    let plots = plots::all(&case, &digest, other.as_ref().map(|(_, digest, _)| digest));
    let bands = plots::bands(&summary.faults, &digest);
    let end = digest
        .end_ms
        .max(other.as_ref().map_or(0, |(_, digest, _)| digest.end_ms));
    let page = page::Page {
        case_text: std::fs::read_to_string(dir.join(crate::record::files::CASE))?,
        summary: &summary,
        before: other.as_ref().map(|(_, _, summary)| summary),
        plots: &plots,
        bands: &bands,
        end_s: end as f64 / 1e3,
    };
    let html = dir.join(if against.is_some() {
        COMPARED_HTML
    } else {
        HTML
    });
    write(&html, page.html().as_bytes())?;
    if against.is_none() {
        let mut json = serde_json::to_vec_pretty(&summary)?;
        json.push(b'\n');
        write(&dir.join(JSON), &json)?;
    }
    Ok(Report { html, summary })
}

/// The figures of the run in `dir`, with its verdict; nothing is written.
///
/// # Errors
/// There is no case, or a record cannot be read.
pub fn summary(dir: &Path) -> anyhow::Result<Summary> {
    read(dir).map(|(_, _, summary)| summary)
}

fn read(dir: &Path) -> anyhow::Result<(Case, digest::Digest, Summary)> {
    let case = Case::of_run(dir)?;
    let verdict = judge(dir)?;
    let digest = digest::Digest::read(dir)?;
    let summary = Summary::new(dir, &case, &digest, verdict)?;
    Ok((case, digest, summary))
}

/// Whole or not at all: a reader never meets half a report.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        use std::io::Write as _;
        use std::os::unix::fs::PermissionsExt as _;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(bytes)?;
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
