//! What servers and the shim say of themselves on `/metrics`, in Prometheus's text format.

use crate::system::http::Client;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The series of one process at a moment, by `name{labels}` as it writes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters(BTreeMap<String, f64>);

impl Counters {
    /// Reads them from an operations listener.
    ///
    /// # Errors
    /// When it does not answer in the client's time.
    pub fn read(client: &Client, ops: SocketAddr) -> Result<Self, String> {
        match client.get(&format!("http://{ops}/metrics"))? {
            (200, text) => Ok(Self::parse(&text)),
            (status, _) => Err(format!("/metrics answered {status}")),
        }
    }

    /// Reads the format; what is no sample is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                // A label's value may hold spaces; Trove's samples carry no timestamps.
                let (series, value) = line.rsplit_once(' ')?;
                Some((series.to_owned(), value.parse().ok()?))
            });
        Self(samples.collect())
    }

    /// The sum over all series of a name that have these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        // Series of one name lie together, but those of `name_count` lie between `name` and `name{`.
        let named = self
            .0
            .range(name.to_owned()..)
            .take_while(|(series, _)| series.starts_with(name));
        named
            .filter(|(series, _)| {
                let rest = &series[name.len()..];
                let has = |(label, value): &(&str, &str)| {
                    let wanted = format!("{label}=\"{value}\"");
                    rest.split(['{', ',', '}']).any(|part| part == wanted)
                };
                (rest.is_empty() || rest.starts_with('{')) && labels.iter().all(has)
            })
            .map(|(_, value)| value)
            .sum()
    }

    /// Whether there is a series of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.keys().any(|series| {
            series
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP a_total A.\n# TYPE a_total counter\na_total 3\n\
b_count{route=\"poll\",status_class=\"2xx\"} 5\nb_count{route=\"poll\",status_class=\"3xx\"} 2\n\
b_count{route=\"other\",status_class=\"2xx\"} 11\nb_count_more{route=\"poll\"} 100\n\
c{le=\"+Inf\",name=\"x y\"} 1.5\n";

    #[test]
    fn series_are_summed_by_name_and_labels() {
        let counters = Counters::parse(TEXT);
        assert_eq!(counters.sum("a_total", &[]), 3.0);
        assert_eq!(counters.sum("b_count", &[("route", "poll")]), 7.0);
        assert_eq!(counters.sum("b_count", &[]), 18.0);
        assert_eq!(counters.sum("c", &[("name", "x y")]), 1.5);
        assert_eq!(counters.sum("nothing", &[]), 0.0);
        assert!(counters.has("c") && !counters.has("b"));
    }
}
