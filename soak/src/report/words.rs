//! Figures as people read them.

use super::plot::Unit;
use crate::verdict::ms;

/// A value on an axis or in a table.
pub(super) fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Latency => latency(value),
        Unit::Bytes => bytes(value),
        Unit::Percent => format!("{value:.0} %"),
        Unit::Count => short(value),
    }
}

/// Microseconds, short.
pub(super) fn latency(us: f64) -> String {
    let trim = |text: String| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    };
    if us >= 1e6 {
        format!("{} s", trim(format!("{:.1}", us / 1e6)))
    } else if us >= 1e3 {
        format!("{} ms", trim(format!("{:.1}", us / 1e3)))
    } else {
        format!("{us:.0} µs")
    }
}

/// Microseconds, with the digits that a comparison needs.
pub(super) fn exact(us: u64) -> String {
    if us < 1_000 {
        format!("{us} µs")
    } else {
        ms(us)
    }
}

/// Bytes in powers of 1,000.
pub(super) fn bytes(value: f64) -> String {
    let (divisor, unit) = match value.abs() {
        v if v >= 1e9 => (1e9, "GB"),
        v if v >= 1e6 => (1e6, "MB"),
        v if v >= 1e3 => (1e3, "kB"),
        _ => (1.0, "B"),
    };
    let scaled = value / divisor;
    if scaled.abs() >= 100.0 || divisor < 2.0 {
        format!("{scaled:.0} {unit}")
    } else {
        format!("{scaled:.1} {unit}")
    }
}

/// A number, thousands as k.
pub(super) fn short(value: f64) -> String {
    if value.abs() >= 1e6 {
        format!("{:.1} M", value / 1e6)
    } else if value.abs() >= 10_000.0 {
        format!("{:.0} k", value / 1e3)
    } else if value.abs() >= 1_000.0 {
        format!("{:.1} k", value / 1e3)
    } else if value.fract().abs() < 1e-9 || value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// A count, with commas.
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as percent, with digits enough to tell it from nothing.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 {
        "0 %".to_owned()
    } else if percent < 0.01 {
        format!("{percent:.4} %")
    } else {
        format!("{percent:.2} %")
    }
}

/// The unit of a time axis that ends at `end_s` seconds, in seconds.
pub(super) fn axis_unit(end_s: f64) -> f64 {
    if end_s <= 240.0 {
        1.0
    } else if end_s <= 4.0 * 3600.0 {
        60.0
    } else {
        3600.0
    }
}

/// A time on an axis, in the axis's unit of so many seconds.
pub(super) fn axis_time(time: f64, unit_s: f64) -> String {
    let name = match unit_s {
        s if s >= 3600.0 => "h",
        s if s >= 60.0 => "min",
        _ => "s",
    };
    if (time - time.round()).abs() < 1e-6 {
        format!("{time:.0} {name}")
    } else {
        format!("{time:.1} {name}")
    }
}

/// A time of the run: `1:02:03`.
pub(super) fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    format!(
        "{}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// How long something lasted.
pub(super) fn lasted(ms: u64) -> String {
    let time = std::time::Duration::from_millis(if ms >= 10_000 { ms / 1000 * 1000 } else { ms });
    humantime_serde::re::humantime::format_duration(time).to_string()
}

/// A moment of the wall clock, in UTC.
pub(super) fn moment(wall_ms: u64) -> String {
    let wall = std::time::UNIX_EPOCH + std::time::Duration::from_secs(wall_ms / 1000);
    humantime_serde::re::humantime::format_rfc3339_seconds(wall).to_string()
}

/// Text for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
