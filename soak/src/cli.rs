//! The command line of `soak`. Exit status: 0 passed or done; 1 the run failed or is invalid; 2 wrong usage or case; 3 something
//! it depends on is missing or out of reach. Errors are one line on standard error.

use crate::case::{Case, emits_line, emits_per_second, shipped};
use crate::live::Live;
use crate::refusal::Refusal;
use crate::report;
use crate::run::{self, Options};
use crate::verdict::Verdict;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// Where runs go unless told.
const RUNS: &str = "soak-runs";

/// The load and soak harness of Trove: says what it emits, checks every coin, breaks things on purpose.
#[derive(Debug, Parser)]
#[command(name = "soak", version, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 the run passed, or what was asked is done; 1 the run failed or is invalid; \
    2 wrong usage, or a case that cannot be; 3 something it depends on is missing or out of reach."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a case, judge it and write its report.
    Run(RunArgs),
    /// Go on with a run that was cut off, with nothing counted twice.
    Resume {
        /// The run's directory
        dir: PathBuf,
    },
    /// Judge a run from its record and write its report again, or a comparison with another run.
    Report(ReportArgs),
    /// List the cases that ship with the harness, each with its question.
    Cases,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// A case file, or the name of a case that ships (`soak cases`)
    case: String,
    /// Set a key of the case, dotted: `--set load.users=100 --set duration=10m`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The run's directory [default: soak-runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ReportArgs {
    /// The run's directory
    dir: PathBuf,
    /// An earlier run, to compare with
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
}

/// Does what the arguments say.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let done = match args.command {
        Command::Run(args) => run(&args),
        Command::Resume { dir } => resume(&dir),
        Command::Report(args) => report(&args),
        Command::Cases => {
            cases();
            Ok(0)
        }
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(refusal) => {
            let words = refusal.to_string();
            let words: Vec<&str> = words.split_whitespace().collect();
            eprintln!("soak: {}", words.join(" "));
            ExitCode::from(refusal.exit_status())
        }
    }
}

/// Help and version as they are; an error in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // Nobody is left to be told that this cannot be written.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let words = words.join(" ");
    let words = words.strip_prefix("error: ").unwrap_or(&words);
    eprintln!("soak: {words}; see soak --help");
    ExitCode::from(2)
}

fn run(args: &RunArgs) -> Result<u8, Refusal> {
    let case = Case::read(&args.case, &args.sets).map_err(Refusal::usage)?;
    let dir = args.out.clone().unwrap_or_else(|| {
        let now = humantime_serde::re::humantime::format_rfc3339_seconds(SystemTime::now());
        let now = now.to_string().replace([':', '-'], "").replace('T', "-");
        Path::new(RUNS).join(format!("{}-{}", case.name, now.trim_end_matches('Z')))
    });
    println!("{} {}", case.name, emits_line(&emits_per_second(&case)));
    println!("{}", case.question);
    println!(
        "seed {}, about {}, in {}",
        case.seed,
        lasts(&case),
        dir.display()
    );
    let options = options(&case);
    ended(&dir, run::run(case, &dir, options))
}

fn resume(dir: &Path) -> Result<u8, Refusal> {
    let case = Case::of_run(dir).map_err(Refusal::usage)?;
    println!("{} {}", case.name, emits_line(&emits_per_second(&case)));
    ended(dir, run::resume(dir, options(&case)))
}

fn options(case: &Case) -> Options {
    let mut live = Live::new(case);
    Options {
        command: std::env::args().collect(),
        show: Box::new(move |interval, status| live.show(interval, status)),
    }
}

fn lasts(case: &Case) -> String {
    let seconds = std::time::Duration::from_secs(case.run_lasts().as_secs());
    humantime_serde::re::humantime::format_duration(seconds).to_string()
}

/// Says how a run ended.
fn ended(dir: &Path, verdict: Result<Verdict, Refusal>) -> Result<u8, Refusal> {
    let verdict = verdict?;
    let summary =
        report::summary(dir).map_err(|error| Refusal::unreachable(format!("{error:#}")))?;
    print!("{}", summary.text());
    println!("  {}", dir.join(report::HTML).display());
    Ok(verdict.outcome.exit_status())
}

fn report(args: &ReportArgs) -> Result<u8, Refusal> {
    for dir in [Some(&args.dir), args.against.as_ref()]
        .into_iter()
        .flatten()
    {
        if !dir.join(crate::record::files::CASE).exists() {
            let dir = dir.display();
            return Err(Refusal::usage(format!(
                "{dir} is no run's directory: it has no case.toml"
            )));
        }
    }
    let written = report::html(&args.dir, args.against.as_deref())
        .map_err(|error| Refusal::unreachable(format!("{error:#}")))?;
    print!("{}", written.summary.text());
    println!("  {}", written.html.display());
    Ok(written.summary.verdict.outcome.exit_status())
}

fn cases() {
    for shipped in &shipped::CASES {
        // That each can be read is a test.
        if let Ok(case) = Case::read(shipped.name, &[]) {
            println!("{:<22} {} ({})", case.name, case.question, lasts(&case));
        }
    }
}
