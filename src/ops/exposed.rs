//! The numbers of a scrape, by series. The page takes its numbers from the very text that a scraper would get, so that the
//! two cannot disagree.

use std::collections::BTreeMap;

/// The most series that are taken.
pub const SERIES_MAX: usize = 2_000;

/// The samples of Prometheus's text, by name with labels as they stand there: without buckets of histograms, without
/// histograms that have counted nothing, and without what `is_left_out` names.
#[must_use]
pub fn samples(text: &str, is_left_out: impl Fn(&str) -> bool) -> BTreeMap<&str, f64> {
    let samples = text.lines().filter_map(|line| {
        if line.starts_with('#') {
            return None;
        }
        let (series, value) = line.rsplit_once(' ')?;
        let name = series.split('{').next().unwrap_or(series);
        let value: f64 = value.parse().ok()?;
        let is_empty = value == 0.0 && (name.ends_with("_count") || name.ends_with("_sum"));
        let is_kept = !name.ends_with("_bucket") && !is_empty && !is_left_out(name);
        is_kept.then_some((series, value))
    });
    samples.take(SERIES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_what_the_text_says_without_buckets_and_without_what_is_empty() {
        let text = "# HELP a_total A.\n# TYPE a_total counter\na_total 0\n\
            b_bucket{le=\"1\"} 4\nb_count{route=\"a b\"} 4\nb_sum{route=\"a b\"} 0.25\nb_count{route=\"c\"} 0\n\
            left_out{x=\"1\"} 3\n";
        let samples = samples(text, |name| name == "left_out");
        let expected = [
            ("a_total", 0.0),
            ("b_count{route=\"a b\"}", 4.0),
            ("b_sum{route=\"a b\"}", 0.25),
        ];
        assert_eq!(samples, BTreeMap::from(expected));
    }

    #[test]
    fn the_series_are_bounded() {
        let text: String = (0..SERIES_MAX + 10)
            .map(|n| format!("a{{n=\"{n}\"}} 1\n"))
            .collect();
        assert_eq!(samples(&text, |_| false).len(), SERIES_MAX);
    }
}
