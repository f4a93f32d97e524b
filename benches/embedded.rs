//! What the embedded store costs (targets T11 and T12). Prints figures, asserts none.
//!
//! ```text
//! cargo bench -p trove --bench embedded                       everything
//! cargo bench -p trove --bench embedded -- finds              finds and polls (T11)
//! cargo bench -p trove --bench embedded -- large              the same in a store of a million players
//! cargo bench -p trove --bench embedded -- start              opening a large store (T12)
//! ```
//!
//! `TROVE_BENCH_DIR` says where the store is made (a directory on the disk to be measured), `TROVE_BENCH_SECONDS` how long
//! each part runs, `TROVE_BENCH_PLAYERS` how many players the large store has.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use trove::game::hunt::{HuntSpec, Treasure};
use trove::game::ids::{HuntId, PlayerId, PlayerName, TreasureId};
use trove::game::rules::{NewFind, What};
use trove::store::embedded::{EmbeddedStore, FILE_NAME, Options};
use trove::store::{Opening, Store};

const CALLERS: usize = 64;
const PLAYERS: u64 = 10_000;
const TREASURES: u64 = 2_000;
const SEED: u64 = 11;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn bench_dir() -> PathBuf {
    std::env::var_os("TROVE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// CPU time of all threads of this process so far.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).expect("time passes forwards"),
        u32::try_from(time.tv_nsec).expect("a second has 10^9 ns"),
    )
}

/// CPU time of the store's writer so far: the thread with its name.
fn writer_cpu() -> Duration {
    let mut nanos = 0;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten() {
        let Ok(path) = task.map(|task| task.path()) else {
            continue;
        };
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.trim() == "trove-store" {
            let spent = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            let first = spent.split(' ').next().and_then(|word| word.parse().ok());
            nanos += first.unwrap_or(0);
        }
    }
    Duration::from_nanos(nanos)
}

fn hunt() -> HuntId {
    HuntId::new("bench").expect("letters are an id")
}

fn treasure(n: u64) -> TreasureId {
    TreasureId::new(&format!("treasure-{n}")).expect("letters are an id")
}

fn spec() -> HuntSpec {
    HuntSpec {
        id: hunt(),
        name: "Bench".into(),
        window_ms: 3_600_000,
        opens_at: Some(0),
        closes_at: None,
        treasures: (0..TREASURES)
            .map(|n| Treasure {
                id: treasure(n),
                name: None,
                coins: 1 + n % 50,
                place: None,
                repeatable: false,
            })
            .collect(),
    }
}

fn find(n: u64) -> NewFind {
    NewFind {
        what: What::Treasure(treasure(n)),
        id: None,
        found_at: None,
    }
}

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(Options::new(dir)).expect("the store opens")
}

/// How often a second the disk syncs so many pages written in place, and the CPU time of one such write and sync in µs.
fn syncs_per_second(dir: &Path, pages: u64) -> (f64, f64) {
    let path = dir.join("sync-probe");
    let file = std::fs::File::create(&path).expect("the probe is made");
    file.write_all_at(&vec![0; 16 << 20], 0)
        .expect("the probe is written");
    file.sync_all().expect("the probe is synced");
    let (cpu_before, began, mut syncs) = (cpu(), Instant::now(), 0_u32);
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    while began.elapsed() < Duration::from_secs(1) {
        for _ in 0..pages {
            let page = random.random_range(0..4_096) * 4_096;
            file.write_all_at(&[1; 4_096], page)
                .expect("a page is written");
        }
        file.sync_data().expect("a page is synced");
        syncs += 1;
    }
    let syncs = f64::from(syncs);
    let rate = syncs / began.elapsed().as_secs_f64();
    let cpu_us = (cpu() - cpu_before).as_secs_f64() * 1e6 / syncs;
    std::fs::remove_file(path).expect("the probe is removed");
    (rate, cpu_us)
}

fn report_disk(dir: &Path) {
    for pages in [1, 64] {
        let (rate, cpu_us) = syncs_per_second(dir, pages);
        println!(
            "the disk by itself, {pages:>2} pages a fdatasync: {rate:.0} fdatasync/s, {cpu_us:.0} µs CPU each"
        );
    }
}

/// Counts before and after a part.
struct Meter {
    cpu: Duration,
    writer_cpu: Duration,
    began: Instant,
    syncs: u64,
    writes: u64,
    batches: u64,
    busy_us: u64,
}

impl Meter {
    fn start(store: &EmbeddedStore) -> Self {
        Self {
            cpu: cpu(),
            writer_cpu: writer_cpu(),
            began: Instant::now(),
            syncs: store.disk().syncs.load(Relaxed),
            writes: store.disk().writes.load(Relaxed),
            batches: store.writer_stats().batches.load(Relaxed),
            busy_us: store.writer_stats().busy_us.load(Relaxed),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "figures for people, far below 2^52"
    )]
    fn report(&self, store: &EmbeddedStore, what: &str, done: u64) {
        let cpu = (cpu() - self.cpu).as_secs_f64();
        let writer_cpu = (writer_cpu() - self.writer_cpu).as_secs_f64();
        let seconds = self.began.elapsed().as_secs_f64();
        let syncs = (store.disk().syncs.load(Relaxed) - self.syncs) as f64;
        let writes = (store.disk().writes.load(Relaxed) - self.writes) as f64;
        let batches = (store.writer_stats().batches.load(Relaxed) - self.batches) as f64;
        let busy = (store.writer_stats().busy_us.load(Relaxed) - self.busy_us) as f64;
        let done = done as f64;
        println!(
            "{what:<34} {:>7.0}/s  {:>5.1} µs CPU each ({:.1} the writer's)  {:>5.1} a batch  {:.2} fdatasync and {:.0} writes a batch  \
             {:>4.0} batches/s  {:>3.0} % of the time in batches",
            done / seconds,
            cpu * 1e6 / done,
            writer_cpu * 1e6 / done,
            done / batches,
            syncs / batches,
            writes / batches,
            batches / seconds,
            busy / 1e4 / seconds,
        );
    }
}

/// Runs callers side by side on one event loop, as the server does, until the time is up. Says how much they did.
async fn callers<F, Fut>(seconds: u64, each: F) -> u64
where
    F: Fn(Pcg64Mcg) -> Fut + Clone + 'static,
    Fut: Future<Output = Option<Pcg64Mcg>> + 'static,
{
    let until = Instant::now() + Duration::from_secs(seconds);
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let tasks: Vec<_> = (0..CALLERS as u64)
                .map(|n| {
                    let each = each.clone();
                    tokio::task::spawn_local(async move {
                        let mut random = Pcg64Mcg::seed_from_u64(SEED + n);
                        let mut done = 0;
                        while Instant::now() < until {
                            let Some(next) = each(random).await else {
                                break;
                            };
                            random = next;
                            done += 1;
                        }
                        done
                    })
                })
                .collect();
            let mut done = 0;
            for task in tasks {
                done += task.await.expect("a caller does not panic");
            }
            done
        })
        .await
}

async fn finds_and_polls(players: u64, seconds: u64) {
    let dir = tempfile::tempdir_in(bench_dir()).expect("a directory is made");
    report_disk(dir.path());
    let store = Arc::new(open(dir.path()));
    store.answer_on(&tokio::runtime::Handle::current());
    store
        .put_hunt(spec())
        .await
        .expect("the store answers")
        .expect("the hunt is taken");
    let id = |n: u64| PlayerId(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    if players > PLAYERS {
        fill(&store, players).await;
    }
    let meter = Meter::start(&store);
    let one = store.clone();
    let done = callers(seconds, move |mut random| {
        let store = one.clone();
        async move {
            let player = id(random.random_range(0..PLAYERS));
            let new = find(random.random_range(0..TREASURES));
            let recorded = store.record(&hunt(), vec![(player, new)]).await;
            recorded.ok().map(|_| random)
        }
    })
    .await;
    meter.report(&store, "finds recorded", done);

    let meter = Meter::start(&store);
    let one = store.clone();
    let done = callers(seconds, move |mut random| {
        let store = one.clone();
        async move {
            let player = id(random.random_range(0..PLAYERS));
            let new = find(random.random_range(0..TREASURES));
            let recorded = store.record(&hunt(), vec![(player, new)]).await;
            recorded.ok()?;
            store.credit(&hunt(), player).await.ok()?;
            Some(random)
        }
    })
    .await;
    meter.report(&store, "finds recorded, then collected", done);

    let meter = Meter::start(&store);
    let one = store.clone();
    let done = callers(seconds, move |mut random| {
        let store = one.clone();
        async move {
            let player = id(random.random_range(0..PLAYERS));
            store.wallet(&hunt(), player).await.ok()?;
            Some(random)
        }
    })
    .await;
    let spent = cpu() - meter.cpu;
    println!(
        "{:<34} {:>7}/s  {:>5.1} µs CPU each",
        "wallets loaded",
        done / seconds,
        spent.as_secs_f64() * 1e6 / u32::try_from(done).map_or(1.0, f64::from),
    );
    let audits = store.verify(None).await.expect("the audit runs");
    println!(
        "the audit of {} entries holds: {}",
        audits[0].entries,
        audits[0].holds()
    );
    store.stop().await.expect("the store stops");
    report_disk(dir.path());
}

/// Puts so many players into the store: a name, a find, and for every other one a credit.
async fn fill(store: &EmbeddedStore, players: u64) {
    let began = Instant::now();
    let numbers: Vec<u64> = (0..players).collect();
    for part in numbers.chunks(20_000) {
        let openings = part.iter().map(|n| Opening {
            name: PlayerName::new(&format!("player-{n}@example.org")).expect("a name"),
            issued_at: None,
            known: None,
        });
        let opened = store.open_players(openings.collect()).await;
        let mut opened: Vec<PlayerId> = opened
            .expect("players are opened")
            .into_iter()
            .map(|player| player.expect("nobody was erased"))
            .collect();
        // In the order of their numbers, which is the file's.
        opened.sort_unstable();
        let finds: Vec<_> = opened.iter().map(|player| (*player, find(0))).collect();
        store
            .record(&hunt(), finds)
            .await
            .expect("finds are recorded");
    }
    println!(
        "{players} players with a find each put into the store in {:.0} s",
        began.elapsed().as_secs_f64()
    );
}

fn file_mib(dir: &Path) -> u64 {
    std::fs::metadata(dir.join(FILE_NAME)).map_or(0, |file| file.len() >> 20)
}

fn timed_open(dir: &Path, after: &str) -> EmbeddedStore {
    let began = Instant::now();
    let store = open(dir);
    println!(
        "{after:<34} open in {:.1} ms ({} MiB)",
        began.elapsed().as_secs_f64() * 1e3,
        file_mib(dir)
    );
    store
}

async fn start(players: u64) {
    let dir = tempfile::tempdir_in(bench_dir()).expect("a directory is made");
    let store = open(dir.path());
    store
        .put_hunt(spec())
        .await
        .expect("the store answers")
        .expect("the hunt is taken");
    fill(&store, players).await;
    let began = Instant::now();
    store.stop().await.expect("the store stops");
    println!("stopped in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    for _ in 0..3 {
        let store = timed_open(dir.path(), "after a clean stop");
        store.stop().await.expect("the store stops");
    }
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["write-until-killed".as_ref(), dir.path().as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("the child's output is piped");
        BufReader::new(out)
            .read_line(&mut line)
            .expect("the child says that it writes");
        std::thread::sleep(Duration::from_millis(700));
        child.kill().expect("the child is killed");
        child.wait().expect("the child is gone");
        let store = timed_open(dir.path(), "after kill -9 among writes");
        store.stop().await.expect("the store stops");
    }
}

async fn write_until_killed(dir: &Path) {
    let store = open(dir);
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    for n in 0_u64.. {
        let finds = (0..64).map(|_| (PlayerId(random.random()), find(n % TREASURES)));
        store
            .record(&hunt(), finds.collect())
            .await
            .expect("finds are recorded");
        if n == 0 {
            println!("writing");
            std::io::stdout().flush().expect("the parent listens");
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime is built");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is = |word: &str| words.iter().any(|each| each == word);
    if let Some(at) = words.iter().position(|word| word == "write-until-killed") {
        return runtime.block_on(write_until_killed(Path::new(&words[at + 1])));
    }
    let all = !["finds", "large", "start"].into_iter().any(is);
    let seconds = setting("TROVE_BENCH_SECONDS", 5);
    let large = setting("TROVE_BENCH_PLAYERS", 1_000_000);
    if all || is("finds") {
        println!("-- {CALLERS} callers, {PLAYERS} players, seed {SEED}");
        runtime.block_on(finds_and_polls(PLAYERS, seconds));
    }
    if all || is("large") {
        println!("-- the same in a store of {large} players");
        runtime.block_on(finds_and_polls(large, seconds));
    }
    if all || is("start") {
        println!("-- starting");
        runtime.block_on(start(large));
    }
}
