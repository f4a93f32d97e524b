//! Histograms of durations with two sets of buckets: classic ones, with a boundary exactly on each objective, and native
//! ones (exponential, 8 to an octave), which a scraper gets that asks for Prometheus's protobuf format.
//!
//! One observation is two additions to counters and one to the sum, without a lock: polls from memory pay for it. Both
//! sets are needed: an exponential boundary never lies exactly on an objective, and a percentile read from the classic ones
//! would be off by their width.

use prometheus_client::encoding::{
    EncodeMetric, MetricEncoder, NativeHistogram, NativeHistogramBuckets, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Prometheus's schema of the native buckets: the upper bound of bucket *i* is 2^(*i*/8) seconds, 9 % above that of *i*−1.
pub const NATIVE_SCHEMA: i32 = 3;
/// The exponent of the upper bound of the zero bucket: 2^−20 s, about a microsecond.
const ZERO_EXPONENT: i32 = -20;
/// The exponent of the upper bound of the last bucket: 2^12 s, over an hour. What took longer counts there.
const LAST_EXPONENT: i32 = 12;
const PER_OCTAVE: i32 = 1 << NATIVE_SCHEMA;
const FIRST_INDEX: i32 = ZERO_EXPONENT * PER_OCTAVE;
/// Native buckets, the zero bucket among them as the first.
#[allow(clippy::cast_sign_loss)] // The last exponent is the larger.
pub const NATIVE_BUCKETS: usize = ((LAST_EXPONENT - ZERO_EXPONENT) * PER_OCTAVE + 1) as usize;

/// The mantissas of 2^(k/8) for k from 0 to 7: a number whose mantissa is above so many of them lies so many buckets above
/// its power of two.
const MANTISSAS: [u64; 8] = [
    0x0_0000_0000_0000,
    0x1_72b8_3c7d_517b,
    0x3_06fe_0a31_b715,
    0x4_bfda_d536_2a27,
    0x6_a09e_667f_3bcd,
    0x8_ace5_422a_a0db,
    0xa_e89f_995a_d3ad,
    0xd_5818_dcfb_a487,
];
const MANTISSA_BITS: u64 = (1 << 52) - 1;

/// The place of a duration among the native buckets.
#[inline]
fn native_place(ns: u64) -> usize {
    #[expect(
        clippy::cast_precision_loss,
        reason = "an ulp moves nothing that a bucket of 9 % shows"
    )]
    let bits = (ns as f64 * 1e-9).to_bits();
    let exponent = i32::try_from(bits >> 52).unwrap_or(0) - 1023;
    let mantissa = bits & MANTISSA_BITS;
    let above: i32 = MANTISSAS.iter().map(|one| i32::from(mantissa > *one)).sum();
    let place = exponent * PER_OCTAVE + above - FIRST_INDEX;
    usize::try_from(place).unwrap_or(0).min(NATIVE_BUCKETS - 1)
}

/// The upper bound of a native bucket, in seconds.
#[must_use]
pub fn native_bound_s(place: usize) -> f64 {
    let index = FIRST_INDEX + i32::try_from(place.min(NATIVE_BUCKETS - 1)).unwrap_or(0);
    (f64::from(index) / f64::from(PER_OCTAVE)).exp2()
}

/// The boundaries of classic buckets, ascending.
#[derive(Debug, Clone)]
pub struct Buckets(Arc<[(u64, f64)]>);

impl Buckets {
    /// From boundaries in milliseconds, in any order. One that is no positive number is left out.
    #[must_use]
    pub fn of_ms(ms: &[f64]) -> Self {
        let mut bounds: Vec<(u64, f64)> = ms
            .iter()
            .filter(|ms| ms.is_finite() && **ms > 0.0)
            .map(|ms| (bound_ns(*ms), ms / 1_000.0))
            .collect();
        bounds.sort_by_key(|(ns, _)| *ns);
        bounds.dedup_by_key(|(ns, _)| *ns);
        Self(bounds.into())
    }

    /// The place of the bucket that ends at so many milliseconds.
    #[must_use]
    pub fn place_of_ms(&self, ms: f64) -> Option<usize> {
        let ns = bound_ns(ms);
        self.0.iter().position(|(bound, _)| *bound == ns)
    }
}

fn bound_ns(ms: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "boundaries are from microseconds to hours"
    )]
    let ns = (ms * 1e6).round() as u64;
    ns
}

/// One histogram. Clones are the same histogram.
#[derive(Clone)]
pub struct Durations(Arc<Inner>);

struct Inner {
    buckets: Buckets,
    /// One more than there are boundaries.
    classic: Box<[AtomicU64]>,
    native: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    created: SystemTime,
}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durations").finish_non_exhaustive()
    }
}

/// What a histogram has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// By classic bucket, the last without a boundary.
    pub classic: Vec<u64>,
    /// By native bucket, the zero bucket first.
    pub native: Vec<u64>,
    /// All of them.
    pub count: u64,
    sum_ns: u64,
}

impl Durations {
    /// An empty one.
    #[must_use]
    pub fn new(buckets: Buckets) -> Self {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner {
            classic: zeros(buckets.0.len() + 1),
            native: zeros(NATIVE_BUCKETS),
            buckets,
            sum_ns: AtomicU64::new(0),
            created: SystemTime::now(),
        }))
    }

    /// Counts one.
    #[inline]
    pub fn observe(&self, took: Duration) {
        if cfg!(feature = "unmeasured") {
            return;
        }
        let inner = &*self.0;
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let place = inner.buckets.0.partition_point(|(bound, _)| *bound < ns);
        inner.sum_ns.fetch_add(ns, Ordering::Relaxed);
        inner.native[native_place(ns)].fetch_add(1, Ordering::Relaxed);
        // Last, and read first: whoever reads sees no observation in the classic buckets that the native ones lack.
        inner.classic[place].fetch_add(1, Ordering::Release);
    }

    /// What it has counted so far.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let inner = &*self.0;
        let mut classic: Vec<u64> = inner
            .classic
            .iter()
            .map(|count| count.load(Ordering::Acquire))
            .collect();
        let native: Vec<u64> = inner
            .native
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let count = native.iter().sum();
        // What came in between counts as the longest, until the next look.
        let known: u64 = classic.iter().sum();
        if let Some(last) = classic.last_mut() {
            *last += count - known.min(count);
        }
        Counted {
            classic,
            native,
            count,
            sum_ns: inner.sum_ns.load(Ordering::Relaxed),
        }
    }

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let counted = self.counted();
        let bounds = self.0.buckets.0.iter().map(|(_, seconds)| *seconds);
        let classic: Vec<(f64, u64)> = bounds
            .chain(std::iter::once(f64::INFINITY))
            .zip(counted.classic)
            .collect();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a sum of nanoseconds of months is below 2^53"
        )]
        let sum_s = counted.sum_ns as f64 / 1e9;
        let (spans, deltas) = spans_and_deltas(&counted.native[1..]);
        encoder.encode_histogram_with_native::<NoLabelSet>(
            sum_s,
            counted.count,
            &classic,
            None,
            NativeHistogram {
                schema: NATIVE_SCHEMA,
                zero_threshold: f64::from(ZERO_EXPONENT).exp2(),
                zero_count: counted.native[0],
                negative: NativeHistogramBuckets {
                    spans: &[],
                    deltas: &[],
                },
                positive: NativeHistogramBuckets {
                    spans: &spans,
                    deltas: &deltas,
                },
                created: Some(self.0.created),
            },
        )
    }
}

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        Self::encode(self, &mut encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// The sparse form of native buckets: runs of those that are not empty, and each one's difference from the one before.
fn spans_and_deltas(counts: &[u64]) -> (Vec<(i32, u32)>, Vec<i64>) {
    let (mut spans, mut deltas): (Vec<(i32, u32)>, Vec<i64>) = (Vec::new(), Vec::new());
    let mut next_index = 0;
    let mut before = 0;
    for (index, count) in (FIRST_INDEX + 1..).zip(counts) {
        let Some(count) = i64::try_from(*count).ok().filter(|count| *count > 0) else {
            continue;
        };
        match spans.last_mut() {
            Some((_, length)) if index == next_index => *length += 1,
            Some(_) => spans.push((index - next_index, 1)),
            None => spans.push((index, 1)),
        }
        deltas.push(count - before);
        before = count;
        next_index = index + 1;
    }
    (spans, deltas)
}

/// Histograms of one name, told apart by labels that are all known from the start.
#[derive(Debug, Clone)]
pub struct DurationsByLabel(Arc<[(Labels, Durations)]>);

/// Names and values.
type Labels = Vec<(&'static str, &'static str)>;

impl DurationsByLabel {
    /// One empty histogram for each set of labels.
    #[must_use]
    pub fn new(buckets: &Buckets, labels: impl Iterator<Item = Labels>) -> Self {
        Self(
            labels
                .map(|labels| (labels, Durations::new(buckets.clone())))
                .collect(),
        )
    }

    /// The histogram at this place, in the order in which the labels were given.
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    #[must_use]
    pub fn at(&self, place: usize) -> &Durations {
        &self.0[place].1
    }
}

impl EncodeMetric for DurationsByLabel {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, durations) in &*self.0 {
            let mut of_labels = encoder.encode_family(labels)?;
            durations.encode(&mut of_labels)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_belongs_to_the_bucket_that_it_ends() {
        let buckets = Buckets::of_ms(&[1_000.0, 0.25, 1.0]);
        assert_eq!(buckets.place_of_ms(1_000.0), Some(2));
        assert_eq!(buckets.place_of_ms(750.0), None);
        let durations = Durations::new(buckets);
        for ns in [0, 250_000, 250_001, 1_000_000_000, 1_000_000_001] {
            durations.observe(Duration::from_nanos(ns));
        }
        let counted = durations.counted();
        assert_eq!(counted.classic, [2, 1, 1, 1]);
        assert_eq!((counted.count, counted.native.iter().sum()), (5, 5));
    }

    #[test]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    fn native_buckets_are_those_of_prometheus() {
        // A power of two seconds ends its bucket; what is just above lies in the next.
        let place = |s: f64| native_place((s * 1e9) as u64);
        let of_index = |index: i32| usize::try_from(index - FIRST_INDEX).unwrap();
        assert_eq!(place(1.0), of_index(0));
        assert_eq!(place(1.000_001), of_index(1));
        assert_eq!(place(0.5), of_index(-8));
        assert_eq!(place(2.0), of_index(8));
        assert_eq!(place(1.4), of_index(4));
        assert_eq!(place(1.45), of_index(5));
        assert_eq!(native_place(0), 0);
        assert_eq!(native_place(900), 0);
        assert_eq!(native_place(u64::MAX), NATIVE_BUCKETS - 1);
        assert!((native_bound_s(of_index(0)) - 1.0).abs() < 1e-12);
        for ns in (1..60).map(|n| 3_u64.pow(n % 35)) {
            let seconds = ns as f64 / 1e9;
            let at = native_place(ns);
            if at > 0 && at + 1 < NATIVE_BUCKETS {
                let (low, high) = (native_bound_s(at - 1), native_bound_s(at));
                let near = 1e-9;
                assert!(
                    seconds > low * (1.0 - near) && seconds <= high * (1.0 + near),
                    "{ns} ns in {low} to {high}"
                );
            }
        }
    }

    #[test]
    fn spans_tell_where_the_counts_are() {
        let mut counts = vec![0; NATIVE_BUCKETS - 1];
        counts[3] = 2;
        counts[4] = 5;
        counts[9] = 1;
        let (spans, deltas) = spans_and_deltas(&counts);
        assert_eq!(spans, [(FIRST_INDEX + 4, 2), (4, 1)]);
        assert_eq!(deltas, [2, 3, -4]);
        assert_eq!(spans_and_deltas(&[0; 5]), (vec![], vec![]));
    }
}
