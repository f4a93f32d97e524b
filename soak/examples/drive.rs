//! Drives a server that is already there with the generator alone: no system, no faults, no books. For measuring the
//! generator itself (`benches/generator.py`) and for looking at its records.
//!
//! ```sh
//! cargo run --release -p soak --example drive -- 127.0.0.1:8080 HUNT TOKENS CASE.toml [key=value …]
//! ```
//!
//! `TOKENS` is what `trove token --count N --prefix u` prints; the hunt needs a repeatable treasure `drop` of 5 coins for finds; the admin key,
//! if finds are to be sent in bulk, is in `TROVE_ADMIN_KEY`. Prints each interval and finding as a line of JSON, then one
//! line with what the generator used.

use soak::books::Entry;
use soak::case::Case;
use soak::generator::{self, Books, Output, Plan, Resume, Treasure};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

struct Nowhere;

impl Books for Nowhere {
    fn enter(&mut self, _: Entry) -> bool {
        true
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, hunt, tokens, case, sets @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: drive ADDRESS HUNT TOKENS CASE.toml [key=value …]");
    };
    let case = Arc::new(Case::read(case, sets)?);
    let tokens: Vec<String> = std::fs::read_to_string(tokens)?
        .lines()
        .map(str::to_owned)
        .collect();
    let (users, _) = generator::users_max(&case);
    anyhow::ensure!(
        tokens.len() >= users as usize,
        "{users} users and {} tokens",
        tokens.len()
    );
    let plan = Plan {
        case,
        targets: vec![address.parse()?],
        host: address.clone(),
        hunt: hunt.clone(),
        treasures: vec![Treasure {
            id: "drop".to_owned(),
            coins: 5,
            repeatable: true,
        }],
        tokens: Box::new(move |user| tokens[user as usize - 1].clone()),
        admin_key: std::env::var("TROVE_ADMIN_KEY").ok(),
        resume: Resume::default(),
    };
    let (out, inbox) = sync_channel(64);
    let handle = generator::start(plan, Box::new(Nowhere), out)?;
    eprintln!("{}", handle.uses());
    let mut answered = 0;
    for output in inbox {
        match output {
            Output::Interval(interval) => {
                answered += interval
                    .kinds
                    .values()
                    .map(|counts| counts.answered)
                    .sum::<u64>();
                println!("{}", serde_json::to_string(&interval)?);
            }
            Output::Finding(finding) => println!("{}", serde_json::to_string(&finding)?),
            Output::Ended => break,
        }
    }
    let totals = handle.join()?;
    println!(
        "sent {} answered {answered} finds {} findings {} users {users}",
        totals.sent, totals.finds, totals.findings
    );
    Ok(())
}
