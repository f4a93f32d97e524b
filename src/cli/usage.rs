//! What clap has to say, in this program's form: help as it is, errors on one line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::process::ExitCode;

/// Prints help or the version, status 0; an error in one line, status 2.
pub(super) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody is left to be told that this cannot be written.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("trove: {}", line(error));
            ExitCode::from(2)
        }
    }
}

/// The first paragraph, the tips, and where to read more.
fn line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let join = |paragraph: &str| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    };
    let first = join(first.strip_prefix("error: ").unwrap_or(first));
    let tips = paragraphs
        .flat_map(str::lines)
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .map(|tip| format!("; {}", join(tip)));
    let tips: String = tips.collect();
    format!("{first}{tips}; see {} --help", command(error))
}

/// The command that was used, as its usage begins.
fn command(error: &clap::Error) -> String {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let words = usage
        .split_whitespace()
        .skip_while(|word| *word == "Usage:")
        .take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    let words: Vec<&str> = words.collect();
    if words.is_empty() {
        "trove".into()
    } else {
        words.join(" ")
    }
}
