//! A run's directory with a record that was made up, from a seed: what a real run writes, without running one.
#![allow(dead_code, reason = "each test uses a part of it")]

use hdrhistogram::Histogram as Values;
use soak::case::{Case, FaultKind, Kind};
use soak::record::{
    End, FaultMark, Finding, Histogram, Interval, KindCounts, Phase, Sample, Segment, files,
};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

pub(crate) const SEED: u64 = 11;

/// Half an hour, a spike in the middle, two faults.
pub(crate) const CASE: &str = r#"
name = "made-up"
question = "Is a made-up half hour with a spike and two faults judged and shown as it was made up?"
seed = 11
duration = "30m"
warmup = "1m"
settle = "15s"
window = "30s"
interval = "5s"

[load]
users = 2000
curve = { kind = "spike", base = 0.5, at = "12m", lasts = "6m" }

[system]
store = "redis"
instances = 2

[[faults]]
at = "8m"
what = "kill_instance"
allow_for = "20s"
allow_failed = { find = 20 }
allow_p99 = "100ms"

[[faults]]
at = "22m"
what = "kill_redis"
allow_for = "40s"
allow_failed = { poll = 500, find = 400 }
allow_p99 = "3s"

[[objectives]]
request = "poll"
error_ratio = 0.001
failed_above = "1s"
percentile = 99.0
below = "20ms"

[[objectives]]
request = "find"
error_ratio = 0.005
percentile = 99.0
below = "100ms"
"#;

/// Numbers that look random, the same for the same seed (a linear congruential generator, Knuth's constants).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to below 1.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 32).unwrap_or_default()) / 4_294_967_296.0
    }

    /// Around a median, with the long tail that latencies have.
    fn latency_us(&mut self, median: f64) -> u64 {
        let spread = self.roll() + self.roll() + self.roll() - 1.5;
        whole(median * (spread * 1.6).exp()).max(1)
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "made-up values are small and not negative"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

pub(crate) struct Synthetic {
    dir: tempfile::TempDir,
    pub(crate) case: Case,
    pub(crate) intervals: Vec<Interval>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) faults: Vec<FaultMark>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) end: Option<End>,
    /// When the harness was resumed.
    pub(crate) resumed_at: Vec<u64>,
}

fn ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}

impl Synthetic {
    /// A run of [`CASE`] that passes.
    pub(crate) fn passing() -> Self {
        Self::of(CASE, SEED)
    }

    pub(crate) fn of(case: &str, seed: u64) -> Self {
        println!("seed {seed}");
        let case = Case::from_text("made-up.toml", case, None, &[]).expect("a case");
        let mut dice = Dice::new(seed);
        let faults = marks(&case);
        let step = ms(case.interval);
        let event = ms(case.event_lasts());
        let mut intervals = Vec::new();
        let mut at = 0;
        while at < ms(case.run_lasts()) {
            let mut interval = quiet(&case, &mut dice, at, at + step);
            interval.phase = match at {
                _ if at < ms(case.warmup) => Phase::Warmup,
                _ if at < event => Phase::Event,
                _ => Phase::Settle,
            };
            for fault in &faults {
                if at < fault.until_ms && fault.at_ms < at + step {
                    disturb(&mut interval, fault, &mut dice);
                }
            }
            intervals.push(interval);
            at += step;
        }
        let samples = samples(&case, &mut dice, at);
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            case,
            intervals,
            samples,
            faults,
            findings: Vec::new(),
            end: Some(End {
                at_ms: at,
                finds_acknowledged: 61_204,
                finds_credited: 60_597,
                finds_expired: 611,
                finds_unknown: 0,
                coins_credited: 847_311,
                verify: "exit 0: 2,000 players, everything adds up".to_owned(),
                verify_holds: true,
                findings: 0,
                unchecked: Vec::new(),
            }),
            resumed_at: Vec::new(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Keeps the directory for a look.
    pub(crate) fn keep(self) -> std::path::PathBuf {
        self.dir.keep()
    }

    /// The judged interval that begins at this time.
    pub(crate) fn interval_at(&mut self, at_ms: u64) -> &mut Interval {
        let at = |interval: &&mut Interval| interval.from_ms <= at_ms && at_ms < interval.to_ms;
        self.intervals.iter_mut().find(at).expect("an interval")
    }

    /// Writes the record anew.
    pub(crate) fn write(&self) {
        self.case.write(self.dir()).expect("the case");
        let began = 1_767_225_600_000;
        let segment = |at_ms: u64| Segment {
            at_ms,
            wall_ms: began + at_ms + if at_ms > 0 { 60_000 } else { 0 },
            command: ["soak", "run", "made-up.toml", "--set", "load.users=2000"]
                .map(str::to_owned)
                .into(),
            versions: [("soak", "0.1.0"), ("trove", "0.1.0"), ("redis", "8.0.2")]
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into(),
            machine: [
                ("kernel", "Linux 6.12"),
                ("processor", "a made-up one"),
                ("cores", "2"),
                ("memory", "8 GB"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            emits_per_second: soak::case::emits_per_second(&self.case),
        };
        let mut segments = vec![segment(0)];
        segments.extend(self.resumed_at.iter().map(|at| segment(*at)));
        self.lines(files::RUN, &segments);
        self.lines(files::INTERVALS, &self.intervals);
        self.lines(files::RESOURCES, &self.samples);
        self.lines(files::FAULTS, &self.faults);
        self.lines(files::FINDINGS, &self.findings);
        self.lines(files::END, self.end.as_slice());
    }

    fn lines<T: serde::Serialize>(&self, file: &str, records: &[T]) {
        let mut text = String::new();
        for record in records {
            text.push_str(&serde_json::to_string(record).expect("a record"));
            text.push('\n');
        }
        std::fs::write(self.dir().join(file), text).expect("written");
    }

    /// Puts text at a file's end, as a crash may leave it.
    pub(crate) fn append(&self, file: &str, text: &str) {
        let path = self.dir().join(file);
        let file = OpenOptions::new().append(true).open(path);
        file.expect("open")
            .write_all(text.as_bytes())
            .expect("written");
    }
}

/// The case's faults as they were done.
fn marks(case: &Case) -> Vec<FaultMark> {
    let mut marks = Vec::new();
    for fault in &case.faults {
        let mut at = fault.at;
        let mut done = 0;
        while at < case.duration && (fault.times == 0 || done < fault.times) {
            let at_ms = ms(case.scaled(at));
            marks.push(FaultMark {
                at_ms,
                until_ms: at_ms + ms(fault.lasts).max(4_000),
                allow_until_ms: at_ms + ms(fault.allow_for),
                what: fault.what,
                target: match fault.what {
                    FaultKind::KillRedis => "redis-0".to_owned(),
                    _ => format!("serve-{}", (fault.which + done) % 2),
                },
                note: "served again after 3.1 s".to_owned(),
                allow_failed: fault.allow_failed.clone(),
                allow_p99_us: u64::try_from(fault.allow_p99.as_micros()).expect("short"),
            });
            done += 1;
            if fault.every.is_zero() {
                break;
            }
            at += fault.every;
        }
    }
    marks.sort_by_key(|mark| mark.at_ms);
    marks
}

/// An interval in which all goes well.
fn quiet(case: &Case, dice: &mut Dice, from_ms: u64, to_ms: u64) -> Interval {
    let middle = std::time::Duration::from_millis((from_ms + to_ms) / 2);
    let users = soak::case::curve::users_at(case, case.event_time(middle));
    let share = f64::from(users) / f64::from(case.load.users);
    let seconds = (to_ms - from_ms) as f64 / 1e3;
    // The busier, the slower.
    let busy = 1.0 + share * share;
    let mut kinds = BTreeMap::new();
    for (kind, rate) in soak::case::emits_per_second(case) {
        let count = whole(rate * share * seconds * (0.98 + 0.04 * dice.roll()));
        let median = match kind {
            Kind::Poll => 420.0,
            Kind::Heartbeat => 210.0,
            Kind::Find => 2_900.0,
            Kind::BulkFind => 5_000.0,
            Kind::History => 1_500.0,
            Kind::Catalogue => 900.0,
        };
        let lost = whole(count as f64 * 0.002);
        kinds.insert(
            kind,
            KindCounts {
                intended: count,
                sent: count - lost,
                answered: count - lost,
                failed: BTreeMap::new(),
                dropped: [("lost".to_owned(), lost)].into(),
                latency: histogram(dice, median * busy, count - lost),
                service: histogram(dice, median * busy * 0.9, count - lost),
            },
        );
    }
    let polls = kinds.get(&Kind::Poll).map_or(0, |counts| counts.answered);
    let parts = [
        ("shim", 38.0),
        ("app", 55.0),
        ("store", 700.0),
        ("queue", 4.0),
    ]
    .map(|(part, median)| {
        let share = if part == "store" { polls / 25 } else { polls };
        (part.to_owned(), histogram(dice, median * busy, share))
    });
    Interval {
        from_ms,
        to_ms,
        users_intended: users,
        users,
        connects: whole(f64::from(users) * 0.002),
        kinds,
        parts: parts.into(),
        finds: whole(f64::from(users) * seconds / 30.0),
        credits: whole(f64::from(users) * seconds / 30.0),
        behind_us_max: dice.latency_us(600.0),
        turn_us_max: dice.latency_us(900.0),
        ..Interval::default()
    }
}

/// What a fault does to an interval, within its allowance.
fn disturb(interval: &mut Interval, fault: &FaultMark, dice: &mut Dice) {
    interval.disconnects += 400;
    interval.connects += 400;
    let median = match fault.what {
        FaultKind::KillRedis => {
            interval.stale += 900;
            60_000.0
        }
        _ => 3_000.0,
    };
    for (kind, counts) in &mut interval.kinds {
        if matches!(kind, Kind::Poll | Kind::Find) {
            counts.latency = histogram(dice, median, counts.answered);
        }
        if let Some(allowed) = fault.allow_failed.get(kind) {
            let failed = (allowed / 4).min(counts.answered);
            counts.answered -= failed;
            counts.failed.insert("503".to_owned(), failed);
        }
    }
}

/// So many values around a median; many are drawn as several of the same.
pub(crate) fn histogram(dice: &mut Dice, median_us: f64, count: u64) -> Histogram {
    let mut values = Values::<u64>::new_with_max(soak::record::LATENCY_US_MAX, 3).expect("bounds");
    let draws = count.clamp(1, 100);
    for draw in 0..draws {
        let share = count / draws + u64::from(draw < count % draws);
        if share > 0 {
            values
                .record_n(dice.latency_us(median_us), share)
                .expect("a value");
        }
    }
    Histogram::of(&values).expect("encoded")
}

fn samples(case: &Case, dice: &mut Dice, end_ms: u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    let processes = [
        ("soak", 0.35, 9e7),
        ("shim", 0.30, 4e7),
        ("serve-0", 0.22, 7e7),
        ("serve-1", 0.2, 7e7),
        ("redis-0", 0.12, 5e7),
    ];
    let mut cpu_s = [0.0; 5];
    let step = ms(case.interval);
    for at_ms in (step..=end_ms).step_by(usize::try_from(step).expect("small")) {
        let event = case.event_time(std::time::Duration::from_millis(at_ms));
        let users = f64::from(soak::case::curve::users_at(case, event));
        let share = users / f64::from(case.load.users);
        for (nth, (process, cpu, rss)) in processes.iter().enumerate() {
            cpu_s[nth] += cpu * share * step as f64 / 1e3 * (0.9 + 0.2 * dice.roll());
            let mut values: BTreeMap<String, f64> = [
                ("cpu_s", cpu_s[nth]),
                ("rss_bytes", rss * (1.0 + 0.3 * share + 0.01 * dice.roll())),
                ("fds", 30.0 + (users * cpu).round()),
                ("threads", 4.0),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
            if *process == "redis-0" {
                let grown = at_ms as f64 / end_ms as f64;
                values.insert("used_memory_bytes".to_owned(), 2e7 + 4e7 * grown);
                values.insert("feed_entries".to_owned(), 120_000.0 * grown);
                values.insert("clients".to_owned(), 12.0);
            } else if *process != "soak" {
                values.insert("connections".to_owned(), (users * cpu).round());
            }
            samples.push(Sample {
                at_ms,
                process: (*process).to_owned(),
                incarnation: 0,
                values,
            });
        }
    }
    samples
}
