//! What clap has to say, in this program's form: help as it is, errors on one line.

use super::args::Args;
use clap::CommandFactory;
use clap::error::ErrorKind;
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
    format!("{first}{tips}; see {} --help", command())
}

/// The command that was typed, as far as there is one.
fn command() -> String {
    let mut command = Args::command();
    let mut words = vec![command.get_name().to_owned()];
    for word in std::env::args_os().skip(1) {
        let Some(next) = command.find_subcommand(word) else {
            break;
        };
        words.push(next.get_name().to_owned());
        command = next.clone();
    }
    words.join(" ")
}
