//! Arguments that are more than text or a number. Each error says what the argument must be.

use crate::config::EMBEDDED;
use crate::game::coins::COINS_MAX;
use crate::ledger::ExportFormat;

/// The longest life of a token, in seconds: a year.
const TTL_S_MAX: u64 = 365 * 24 * 3_600;

/// A store's address; a bare directory is an embedded store's.
pub(super) fn store_url(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        Err("must name a directory")
    } else if text.starts_with(EMBEDDED) || text.contains("://") {
        Ok(text.to_owned())
    } else {
        Ok(format!("{EMBEDDED}{text}"))
    }
}

/// A stretch of time in seconds: a number with `s`, `m`, `h` or `d`, or bare seconds.
pub(super) fn seconds(text: &str) -> Result<u64, &'static str> {
    let wrong = "must be a number with s, m, h or d, such as 90m or 24h, from 1s to 365d";
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => 24 * 3_600,
    };
    let number: u64 = number.parse().map_err(|_| wrong)?;
    let seconds = number.checked_mul(unit).ok_or(wrong)?;
    (1..=TTL_S_MAX)
        .contains(&seconds)
        .then_some(seconds)
        .ok_or(wrong)
}

/// A moment in milliseconds since the epoch, written so or as RFC 3339.
pub(super) fn millis(text: &str) -> Result<u64, &'static str> {
    let wrong = "must be milliseconds since the epoch, or a time such as 2026-05-01T18:30:00Z";
    let millis = match text.parse::<u64>() {
        Ok(millis) => Some(millis),
        Err(_) => {
            let moment: Option<jiff::Timestamp> = text.parse().ok();
            moment.and_then(|moment| u64::try_from(moment.as_millisecond()).ok())
        }
    };
    millis.filter(|millis| *millis <= COINS_MAX).ok_or(wrong)
}

/// An adjustment's coins.
pub(super) fn coins(text: &str) -> Result<i64, &'static str> {
    text.parse::<i64>()
        .ok()
        .filter(|coins| (1..=COINS_MAX).contains(&coins.unsigned_abs()))
        .ok_or("must be a whole number other than 0, at most 2^53 - 1 either way")
}

/// An export's format.
pub(super) fn format(text: &str) -> Result<ExportFormat, &'static str> {
    ExportFormat::parse(text).ok_or("must be jsonl or csv")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_a_number_with_a_unit() {
        for (text, expected) in [
            ("90", 90),
            ("1s", 1),
            ("90m", 5_400),
            ("24h", 86_400),
            ("365d", TTL_S_MAX),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "0",
            "h",
            "1w",
            "-1h",
            "366d",
            "1.5h",
            "99999999999999999999",
            "9999999999999999999d",
            "é",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_moment_is_milliseconds_or_rfc_3339() {
        assert_eq!(millis("1800000000123"), Ok(1_800_000_000_123));
        assert_eq!(millis("2027-01-15T08:00:00Z"), Ok(1_800_000_000_000));
        assert_eq!(
            millis("2027-01-15T09:00:00.250+01:00"),
            Ok(1_800_000_000_250)
        );
        for wrong in [
            "",
            "-1",
            "yesterday",
            "2027-01-15",
            "2027-01-15T08:00:00",
            "1969-12-31T00:00:00Z",
            "9007199254740992",
        ] {
            assert!(millis(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn coins_have_a_sign_and_are_never_none() {
        for (text, expected) in [
            ("5", 5),
            ("+5", 5),
            ("-5", -5),
            ("-9007199254740991", -9_007_199_254_740_991),
        ] {
            assert_eq!(coins(text), Ok(expected), "{text}");
        }
        for wrong in [
            "0",
            "-0",
            "1.5",
            "9007199254740992",
            "-9223372036854775808",
            "many",
        ] {
            assert!(coins(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_is_an_embedded_store() {
        assert_eq!(store_url("./d").as_deref(), Ok("embedded:./d"));
        assert_eq!(store_url("embedded:d").as_deref(), Ok("embedded:d"));
        assert_eq!(
            store_url("redis://h").as_deref(),
            Ok("redis://h"),
            "the settings refuse it"
        );
        assert!(store_url("").is_err());
    }
}
