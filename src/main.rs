//! The `trove` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    trove::cli::main()
}
