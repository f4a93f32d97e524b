//! The load curve: how many users there should be at a time of the event. A step of a curve lasts from its first moment to
//! just before the next one's.

use super::{Case, Curve};
use std::time::Duration;

/// The most readings of a CSV curve: a year of 5-minute slots.
pub const READINGS_MAX: usize = 105_120;

/// Readings of a curve over their whole length, both as shares (0 to 1).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Readings(Vec<(f64, f64)>);

/// How many users there should be at a time of the event; after its end, those of its last moment.
#[must_use]
pub fn users_at(case: &Case, event_time: Duration) -> u32 {
    let users = f64::from(case.load.users);
    match &case.load.curve {
        Curve::Constant | Curve::Recording { .. } => case.load.users,
        Curve::Ramp { from, over } => {
            let gone = share(event_time, *over);
            whole(users * (from + (1.0 - from) * gone))
        }
        Curve::Steps { users } => {
            let count = users.len();
            let gone = share(event_time, case.duration);
            let step = (0..count)
                .rev()
                .find(|&step| gone * as_f64(count) >= as_f64(step))
                .unwrap_or(0);
            users.get(step).copied().unwrap_or(case.load.users)
        }
        Curve::Spike { base, at, lasts } => {
            if event_time >= *at && event_time < *at + *lasts {
                case.load.users
            } else {
                whole(users * base)
            }
        }
        Curve::Csv { readings, .. } => whole(users * readings.at(share(event_time, case.duration))),
    }
}

/// The share of a length that has gone by, 0 to 1; of nothing, all.
fn share(time: Duration, of: Duration) -> f64 {
    if of.is_zero() {
        return 1.0;
    }
    (time.as_secs_f64() / of.as_secs_f64()).clamp(0.0, 1.0)
}

/// The nearest whole number of users.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a share of a u32, clamped to its range; a cast from a float saturates"
)]
fn whole(users: f64) -> u32 {
    users.round().clamp(0.0, f64::from(u32::MAX)) as u32
}

fn as_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

impl Readings {
    /// Reads `timestamp,value` lines, the first of which may be names; timestamps are civil times or seconds and must grow,
    /// values are not negative. The greatest value becomes 1.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let mut readings: Vec<(f64, f64)> = Vec::new();
        for (at, row) in reader.records().enumerate() {
            let row = row.map_err(|error| error.to_string())?;
            let line = row.position().map_or(0, csv::Position::line);
            if at == 0
                && row
                    .get(1)
                    .is_some_and(|value| value.parse::<f64>().is_err())
            {
                continue;
            }
            let (Some(time), Some(value), 2) = (row.get(0), row.get(1), row.len()) else {
                return Err(format!("line {line} is not timestamp,value"));
            };
            let seconds = seconds(time).ok_or_else(|| format!("line {line}: {time} is no time"))?;
            let value = value
                .parse::<f64>()
                .ok()
                .filter(|value| value.is_finite() && *value >= 0.0)
                .ok_or_else(|| format!("line {line}: {value} is no reading"))?;
            if readings.last().is_some_and(|(last, _)| *last >= seconds) {
                return Err(format!("line {line} is not later than the one before"));
            }
            if readings.len() == READINGS_MAX {
                return Err(format!("it has more than {READINGS_MAX} readings"));
            }
            readings.push((seconds, value));
        }
        let (Some(&(first, _)), Some(&(last, _))) = (readings.first(), readings.last()) else {
            return Err("it has no readings".to_owned());
        };
        let top = readings
            .iter()
            .fold(0.0, |top: f64, (_, value)| top.max(*value));
        if top <= 0.0 || last <= first {
            return Err("it needs two readings, and one of them above 0".to_owned());
        }
        for (time, value) in &mut readings {
            *time = (*time - first) / (last - first);
            *value /= top;
        }
        Ok(Self(readings))
    }

    /// The reading at a share of their length, between two in proportion.
    fn at(&self, gone: f64) -> f64 {
        let next = self.0.partition_point(|(time, _)| *time <= gone);
        match (
            next.checked_sub(1).and_then(|at| self.0.get(at)),
            self.0.get(next),
        ) {
            (Some((t0, v0)), Some((t1, v1))) => v0 + (v1 - v0) * (gone - t0) / (t1 - t0),
            (Some((_, value)), None) | (None, Some((_, value))) => *value,
            (None, None) => 1.0,
        }
    }

    /// As a file that [`Readings::parse`] reads: the same curve, its times and values as shares.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|(time, value)| format!("{time},{value}\n"));
        std::iter::once("timestamp,value\n".to_owned())
            .chain(lines)
            .collect()
    }
}

/// Seconds since some moment, the same for all readings.
fn seconds(time: &str) -> Option<f64> {
    if let Ok(seconds) = time.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    let civil: jiff::civil::DateTime = time.parse().ok()?;
    let since = civil.duration_since(jiff::civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0));
    Some(since.as_secs_f64())
}
