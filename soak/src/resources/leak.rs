//! Whether a resource leaks.
//!
//! Two things must hold together, after the warm-up and within one incarnation of a process. A **slope**: the median of the
//! slopes between all pairs of readings (Theil–Sen), which a few readings far off (a snapshot, a burst of connections)
//! do not move, unlike least squares. And a **growth**: the median of the last quarter of readings over that of the first.
//! A slope alone condemns noise over a short time; a growth alone condemns a cache that has filled once.

/// The most readings of which all pairs are taken; more are thinned evenly, so that the cost is bounded for 48 hours.
pub const READINGS_MAX: usize = 400;
/// Fewer readings than this say nothing.
pub const READINGS_MIN: usize = 8;

/// When a resource counts as leaking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeakBounds {
    /// The share of its level by which it may grow an hour.
    pub slope_per_hour: f64,
    /// The share by which it may have grown.
    pub growth: f64,
}

/// What the readings of a resource say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leak {
    /// Its level at the beginning: the median of the first quarter of readings.
    pub level: f64,
    /// Its growth an hour, as a share of the level.
    pub slope_per_hour: f64,
    /// By how much it has grown, as a share of the level.
    pub growth: f64,
    /// Whether both are over their bounds.
    pub leaks: bool,
}

/// Judges the readings `(at_ms, value)` of one resource of one incarnation, in the order of time, after the warm-up. `None`
/// if there are too few, or no time passes between them.
#[must_use]
pub fn judge(readings: &[(u64, f64)], bounds: LeakBounds) -> Option<Leak> {
    if readings.len() < READINGS_MIN {
        return None;
    }
    let thinned = thin(readings);
    let quarter = thinned.len() / 4;
    let level_of = |part: &[(u64, f64)]| median(part.iter().map(|(_, value)| *value).collect());
    let level = level_of(&thinned[..quarter])?;
    let last = level_of(&thinned[thinned.len() - quarter..])?;
    let mut slopes = Vec::with_capacity(thinned.len() * (thinned.len() - 1) / 2);
    for (nth, (at, value)) in thinned.iter().enumerate() {
        for (later, then) in &thinned[nth + 1..] {
            let hours = later.saturating_sub(*at) as f64 / 3_600_000.0;
            if hours > 0.0 {
                slopes.push((then - value) / hours);
            }
        }
    }
    let slope = median(slopes)?;
    // What begins at nothing has grown by any share of it; measured against 1 it is judged by its absolute growth.
    let unit = if level.abs() < 1.0 { 1.0 } else { level.abs() };
    let (slope_per_hour, growth) = (slope / unit, (last - level) / unit);
    Some(Leak {
        level,
        slope_per_hour,
        growth,
        leaks: slope_per_hour > bounds.slope_per_hour && growth > bounds.growth,
    })
}

fn thin(readings: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let count = readings.len().min(READINGS_MAX);
    (0..count)
        .map(|nth| readings[nth * readings.len() / count])
        .collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    let (_, found, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: LeakBounds = LeakBounds {
        slope_per_hour: 0.05,
        growth: 0.1,
    };

    fn every_5_s(count: u64, value: impl Fn(u64) -> f64) -> Vec<(u64, f64)> {
        (0..count).map(|nth| (nth * 5_000, value(nth))).collect()
    }

    #[test]
    fn what_grows_steadily_leaks() {
        let readings = every_5_s(2000, |nth| 1e8 + 5e4 * nth as f64);
        let leak = judge(&readings, BOUNDS).expect("enough");
        assert!(leak.leaks, "{leak:?}");
        assert!((leak.slope_per_hour - 0.36).abs() < 0.06, "{leak:?}");
    }

    #[test]
    fn noise_does_not_leak() {
        // A fixed sequence that looks random; far more noise than the bound on the slope over so short a time.
        let readings = every_5_s(60, |nth| 1e8 + 2e6 * (nth * 7919 % 13) as f64);
        let leak = judge(&readings, BOUNDS).expect("enough");
        assert!(!leak.leaks, "{leak:?}");
    }

    #[test]
    fn a_cache_that_fills_once_and_stays_has_growth_but_no_slope() {
        let readings = every_5_s(1000, |nth| if nth < 200 { 1e8 } else { 2e8 });
        let leak = judge(&readings, BOUNDS).expect("enough");
        assert!(leak.growth > 0.9 && !leak.leaks, "{leak:?}");
    }

    #[test]
    fn a_slow_growth_within_an_hour_has_a_slope_but_no_growth() {
        let readings = every_5_s(360, |nth| 1e8 * (1.0 + 0.08 * nth as f64 / 720.0));
        let leak = judge(&readings, BOUNDS).expect("enough");
        assert!(leak.slope_per_hour > 0.05 && !leak.leaks, "{leak:?}");
    }

    #[test]
    fn a_few_wild_readings_do_not_matter() {
        let readings = every_5_s(400, |nth| if nth % 50 == 49 { 9e9 } else { 1e8 });
        assert!(!judge(&readings, BOUNDS).expect("enough").leaks);
    }

    #[test]
    fn few_readings_say_nothing() {
        assert_eq!(judge(&every_5_s(7, |nth| nth as f64), BOUNDS), None);
        let at_once: Vec<(u64, f64)> = (0..20).map(|nth| (5, f64::from(nth))).collect();
        assert_eq!(judge(&at_once, BOUNDS), None);
    }
}
