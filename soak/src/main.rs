//! The load and soak harness of Trove: says exactly what it emits, checks every coin, and writes a report.

use std::process::ExitCode;

fn main() -> ExitCode {
    soak::cli::main()
}
