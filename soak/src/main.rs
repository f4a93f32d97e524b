//! The load and soak harness of Trove: says exactly what it emits, checks every coin, and writes a report.
fn main() {
    eprintln!("soak: no case can be run by this version");
    std::process::exit(2);
}
