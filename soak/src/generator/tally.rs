//! What is counted in one interval. Sums that must hold at any moment: what was intended was sent, dropped, or waits; what
//! was sent was answered, failed, or is under way.

use crate::case::Kind;
use crate::record::{Histogram as Encoded, Interval, KindCounts, Phase};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2Serializer};
use std::collections::BTreeMap;

/// The highest latency that is told apart, an hour; what is longer counts as this.
pub const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Significant digits of histograms.
pub const DIGITS: u8 = 3;

/// Why a request failed, beside its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No answer in time.
    Timeout,
    /// The connection broke off with the request under way.
    Broken,
    /// What came is no HTTP answer, or longer than is taken.
    Malformed,
    /// No connection came about.
    Connect,
    /// Out of descriptors or ports: ours, not the system's.
    Descriptors,
    /// The harness cut the connection itself (a stampede).
    Stampede,
    /// A status that it should not have.
    Status(u16),
}

impl Failure {
    fn name(self) -> String {
        match self {
            Self::Timeout => "timeout".to_owned(),
            Self::Broken => "broken".to_owned(),
            Self::Malformed => "malformed".to_owned(),
            Self::Connect => "connect".to_owned(),
            Self::Descriptors => "descriptors".to_owned(),
            Self::Stampede => "stampede".to_owned(),
            Self::Status(status) => status.to_string(),
        }
    }
}

/// Why a request was never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drop {
    /// The app was in the background.
    Offline,
    /// Lost on its way by the network model.
    Lost,
    /// The user has left.
    UserGone,
    /// It waited for the user's earlier requests as long as a request may take, or behind as many as are kept. The system's
    /// doing, not the model's: it counts as a failure and enters the latency at the time it waited.
    GaveUp,
    /// Too many finds wait for the back end.
    BulkFull,
}

impl Drop {
    const fn name(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Lost => "lost",
            Self::UserGone => "user_gone",
            Self::GaveUp => crate::record::GAVE_UP,
            Self::BulkFull => crate::record::BULK_FULL,
        }
    }
}

/// Of one kind.
#[derive(Debug)]
pub struct Counts {
    /// Whose intended time has come.
    pub intended: u64,
    /// Sent, or tried to.
    pub sent: u64,
    /// Answered as it should be.
    pub answered: u64,
    failed: BTreeMap<Failure, u64>,
    dropped: BTreeMap<Drop, u64>,
    latency: Histogram<u32>,
    service: Histogram<u32>,
}

impl Counts {
    fn new() -> Self {
        Self {
            intended: 0,
            sent: 0,
            answered: 0,
            failed: BTreeMap::new(),
            dropped: BTreeMap::new(),
            latency: histogram(),
            service: histogram(),
        }
    }

    /// An answer as it should be.
    pub fn answered(&mut self, latency_us: u64, service_us: u64) {
        self.answered += 1;
        self.latency.saturating_record(latency_us.max(1));
        self.service.saturating_record(service_us.max(1));
    }

    /// A failure, after the time it took to know.
    pub fn failed(&mut self, why: Failure, latency_us: u64, service_us: u64) {
        *self.failed.entry(why).or_default() += 1;
        self.latency.saturating_record(latency_us.max(1));
        self.service.saturating_record(service_us.max(1));
    }

    /// Never sent.
    pub fn dropped(&mut self, why: Drop, waited_us: u64) {
        *self.dropped.entry(why).or_default() += 1;
        if why == Drop::GaveUp {
            self.latency.saturating_record(waited_us.max(1));
        }
    }

    fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    fn drops(&self) -> u64 {
        self.dropped.values().sum()
    }

    fn clear(&mut self) {
        self.intended = 0;
        self.sent = 0;
        self.answered = 0;
        self.failed.clear();
        self.dropped.clear();
        self.latency.reset();
        self.service.reset();
    }

    fn record(&self) -> KindCounts {
        KindCounts {
            intended: self.intended,
            sent: self.sent,
            answered: self.answered,
            failed: self
                .failed
                .iter()
                .map(|(why, n)| (why.name(), *n))
                .collect(),
            dropped: self
                .dropped
                .iter()
                .map(|(why, n)| (why.name().to_owned(), *n))
                .collect(),
            latency: encode(&self.latency),
            service: encode(&self.service),
        }
    }
}

/// Parts of `Server-Timing`, in the order of [`Tally::parts`].
pub const PARTS: [&str; 4] = ["shim", "queue", "app", "store"];

/// An interval's counts.
#[derive(Debug)]
pub struct Tally {
    kinds: [Counts; Kind::ALL.len()],
    /// Microseconds of each part of polls.
    pub parts: [Histogram<u32>; PARTS.len()],
    /// Everything of the interval that is no histogram and no count by kind.
    pub record: Interval,
}

fn histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS)
        .expect("the bounds are constants that it allows")
}

impl Tally {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kinds: std::array::from_fn(|_| Counts::new()),
            parts: std::array::from_fn(|_| histogram()),
            record: Interval::default(),
        }
    }

    /// Of a kind.
    pub fn of(&mut self, kind: Kind) -> &mut Counts {
        &mut self.kinds[kind as usize]
    }

    /// What must hold for each kind: `waiting` and `under_way` at its beginning and end. Says what does not.
    #[must_use]
    pub fn unbalanced(&self, before: &Open, after: &Open) -> Option<String> {
        Kind::ALL.into_iter().find_map(|kind| {
            let (n, counts) = (kind as usize, &self.kinds[kind as usize]);
            let intended = before.waiting[n] + counts.intended;
            let left = counts.sent + counts.drops() + after.waiting[n];
            let sent = before.under_way[n] + counts.sent;
            let ended = counts.answered + counts.failures() + after.under_way[n];
            (intended != left || sent != ended).then(|| {
                format!(
                    "counts of {} do not add up: {intended} intended and {left} sent, dropped or waiting; {sent} sent and {ended} answered, failed or under way",
                    kind.as_str()
                )
            })
        })
    }

    /// Everything at nothing, keeping the memory.
    pub fn clear(&mut self) {
        for counts in &mut self.kinds {
            counts.clear();
        }
        for part in &mut self.parts {
            part.reset();
        }
        self.record = Interval::default();
    }

    /// As it is recorded. Kinds of which there was nothing are left out.
    #[must_use]
    pub fn interval(&self) -> Interval {
        let mut interval = self.record.clone();
        for kind in Kind::ALL {
            let counts = &self.kinds[kind as usize];
            if counts.intended + counts.sent + counts.answered + counts.failures() + counts.drops()
                > 0
            {
                interval.kinds.insert(kind, counts.record());
            }
        }
        for (name, part) in PARTS.iter().zip(&self.parts) {
            if !part.is_empty() {
                interval.parts.insert((*name).to_owned(), encode(part));
            }
        }
        interval
    }

    /// Of the phase.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase) -> Self {
        self.record.phase = phase;
        self
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

/// What is neither sent nor dropped, and neither answered nor failed, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// Its intended time has come and an earlier request of its user is under way.
    pub waiting: [u64; Kind::ALL.len()],
    /// Sent.
    pub under_way: [u64; Kind::ALL.len()],
}

/// V2 of HdrHistogram in base64.
#[must_use]
pub fn encode(histogram: &Histogram<u32>) -> Encoded {
    if histogram.is_empty() {
        return Encoded::default();
    }
    let mut bytes = Vec::new();
    V2Serializer::new()
        .serialize(histogram, &mut bytes)
        .expect("memory takes every write, and these bounds fit");
    Encoded(STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_percentile_lies_above_the_maximum() {
        let mut tally = Tally::new();
        for us in [3, 1_001, 999_999, 12_345_678] {
            tally.of(Kind::Poll).answered(us, us);
        }
        let latency = &tally.of(Kind::Poll).latency;
        for quantile in [0.5, 0.99, 0.999, 1.0] {
            assert!(latency.value_at_quantile(quantile) <= latency.max());
        }
        assert!(latency.max() >= 12_345_678);
    }

    #[test]
    fn a_histogram_survives_its_encoding() {
        let mut histogram = histogram();
        for us in 1..10_000 {
            histogram.saturating_record(us * 7);
        }
        let bytes = STANDARD.decode(encode(&histogram).0).unwrap();
        let read: Histogram<u64> = hdrhistogram::serialization::Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .unwrap();
        assert_eq!(read.len(), histogram.len());
        assert_eq!(
            read.value_at_quantile(0.99),
            histogram.value_at_quantile(0.99)
        );
        assert_eq!(read.max(), histogram.max());
    }

    #[test]
    fn counts_that_do_not_add_up_are_named() {
        let mut tally = Tally::new();
        let mut after = Open::default();
        tally.of(Kind::Find).intended = 3;
        tally.of(Kind::Find).sent = 2;
        tally.of(Kind::Find).answered(5, 5);
        tally.of(Kind::Find).dropped(Drop::Lost, 0);
        after.under_way[Kind::Find as usize] = 1;
        assert_eq!(tally.unbalanced(&Open::default(), &after), None);
        tally.of(Kind::Find).sent += 1;
        let text = tally.unbalanced(&Open::default(), &after).unwrap();
        assert!(text.contains("find"), "{text}");
    }
}
