//! The `trove` binary.
fn main() {}
