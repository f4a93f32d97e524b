//! The answer to a scrape: Prometheus's text, or its protobuf format where the scraper prefers that, because only that has
//! native histograms.

use http::{HeaderMap, header};
use prometheus_client::encoding::{prometheus_protobuf, prometheus_text};
use prometheus_client::registry::Registry;

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text, version 0.0.4.
    Text,
    /// Delimited protobuf messages.
    Protobuf,
}

const PROTOBUF: &str = "application/vnd.google.protobuf";

impl Format {
    /// The format that a scraper prefers by its `Accept`: protobuf only if it is named, and no text is preferred to it.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(header::ACCEPT).iter();
        let offers = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .filter_map(offer);
        let (mut protobuf, mut text) = (0.0_f32, 0.0_f32);
        for (format, quality) in offers {
            let best = match format {
                Self::Protobuf => &mut protobuf,
                Self::Text => &mut text,
            };
            *best = best.max(quality);
        }
        if protobuf > 0.0 && protobuf >= text {
            Self::Protobuf
        } else {
            Self::Text
        }
    }

    /// What the answer says that it is.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus_text::CONTENT_TYPE,
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Everything that is registered, in this format.
    ///
    /// # Panics
    /// Never: writing to memory does not fail.
    #[must_use]
    pub fn encode(self, registry: &Registry) -> Vec<u8> {
        match self {
            Self::Text => {
                let mut text = String::new();
                prometheus_text::encode(&mut text, registry).expect("memory takes every write");
                text.into_bytes()
            }
            Self::Protobuf => {
                prometheus_protobuf::encode_to_vec(registry).expect("memory takes every write")
            }
        }
    }
}

/// One item of an `Accept`, if it is a format that there is, and how much it is wanted.
fn offer(item: &str) -> Option<(Format, f32)> {
    let mut parts = item.split(';').map(str::trim);
    let kind = parts.next()?.to_ascii_lowercase();
    let (mut quality, mut proto_fits) = (1.0_f32, true);
    for part in parts {
        let Some((name, value)) = part.split_once('=') else {
            continue;
        };
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => quality = value.trim().parse().unwrap_or(0.0),
            "proto" => proto_fits &= value == "io.prometheus.client.MetricFamily",
            "encoding" => proto_fits &= value == "delimited",
            _ => {}
        }
    }
    match kind.as_str() {
        PROTOBUF if proto_fits => Some((Format::Protobuf, quality)),
        "text/plain" | "text/*" | "*/*" => Some((Format::Text, quality)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        Format::of(&headers)
    }

    #[test]
    fn protobuf_goes_only_to_whom_asks_for_it() {
        assert_eq!(Format::of(&HeaderMap::new()), Format::Text);
        for (accept, format) in [
            ("*/*", Format::Text),
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::Text,
            ),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::Protobuf,
            ),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.3,text/plain;q=0.5",
                Format::Text,
            ),
            (
                "application/vnd.google.protobuf;proto=another;encoding=delimited",
                Format::Text,
            ),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0",
                Format::Text,
            ),
        ] {
            assert_eq!(of(accept), format, "{accept}");
        }
    }
}
