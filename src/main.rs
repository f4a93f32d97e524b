//! The `trove` binary.

use std::process::ExitCode;

/// A poll that collects makes some hundred small allocations on its way through the router and the store's client: with
/// mimalloc instead of the C library's allocator it costs 15 to 20 % less CPU (`benches/collect.py`), and an idle connection
/// of the shim 40 % less memory (`benches/idle.py`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    trove::cli::main()
}
