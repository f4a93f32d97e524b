//! Random sequences of everything that players and operators do, run through the game's model, the Redis store and the
//! embedded store side by side under one clock. Every answer, wallet, sequence number, history entry and sum must be the
//! same. `TROVE_TEST_SEED` repeats a run.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap that fails here fails its test, which is what it is for"
)]

#[path = "../redis_server/mod.rs"]
mod redis_server;

mod bench;
mod compare;
mod operators;
mod players;
mod time;

use bench::Bench;

fn seed() -> u64 {
    let seed = match std::env::var("TROVE_TEST_SEED") {
        Ok(seed) => seed.parse().expect("TROVE_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("TROVE_TEST_SEED={seed}");
    seed
}

async fn run(
    seed: u64,
    players: usize,
    rounds: usize,
    partitions: u16,
    sweeping: bool,
    rich: bool,
) -> [u64; 8] {
    let mut bench = Bench::new(seed, players, partitions, sweeping, rich).await;
    let mut histories = vec![Vec::new(); players];
    for round in 0..rounds {
        bench.round(round).await;
        if round % 10 == 9 || round + 1 == rounds {
            bench.compare(&mut histories).await;
        }
    }
    bench.counts
}

fn met(counts: [u64; 8]) {
    let names = [
        "recorded",
        "refused",
        "repeated",
        "settled",
        "adjusted",
        "reinstated",
        "erased",
        "hunt changed",
    ];
    println!("{names:?} {counts:?}");
    for (name, count) in names.iter().zip(counts) {
        assert!(count > 0, "nothing was {name}");
    }
}

fn sum(runs: &[[u64; 8]]) -> [u64; 8] {
    std::array::from_fn(|index| runs.iter().map(|run| run[index]).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_do_what_the_model_does() {
    let seed = seed();
    let mut counts = Vec::new();
    for (nth, partitions) in [16, 1, 3].into_iter().enumerate() {
        counts.push(run(seed + nth as u64, 400, 18, partitions, false, false).await);
    }
    met(sum(&counts));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_keep_to_the_range_of_coins_as_the_model_does() {
    let seed = seed();
    let mut counts = Vec::new();
    for nth in 0..40 {
        counts.push(
            run(
                seed + nth,
                12,
                20,
                [1, 4][usize::try_from(nth % 2).unwrap()],
                false,
                true,
            )
            .await,
        );
    }
    assert!(sum(&counts)[1] > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_do_what_the_model_does_also_by_themselves() {
    let counts = run(seed(), 300, 16, 16, true, false).await;
    met(counts);
}
