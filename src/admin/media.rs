//! In which format `/metrics` answers a request (RFC 9110 §12.5.1).

use http::HeaderMap;
use http::header::ACCEPT;

/// The formats of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Classic,
}

impl MetricsFormat {
    /// The one that a request prefers; OpenMetrics if it has no preference.
    pub(super) fn of(fields: &HeaderMap) -> Self {
        let values = fields.get_all(ACCEPT).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        let ranges: Vec<_> = texts
            .flat_map(|text| text.split(','))
            .filter_map(range)
            .collect();
        let open_metrics = weight(&ranges, "application", "openmetrics-text");
        let classic = weight(&ranges, "text", "plain");
        match classic > open_metrics {
            true => Self::Classic,
            false => Self::OpenMetrics,
        }
    }

    /// Its media type.
    pub(super) const fn media(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A media range, its type and subtype in lower case, and its weight.
fn range(text: &str) -> Option<(String, String, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let (kind, subtype) = parts.next()?.split_once('/')?;
    let weight = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.eq_ignore_ascii_case("q").then(|| value.parse::<f32>())
    });
    let weight = match weight {
        None => 1.0,
        // NaN is no weight.
        Some(weight) => weight.ok().filter(|weight| (0.0..=1.0).contains(weight))?,
    };
    Some((
        kind.to_ascii_lowercase(),
        subtype.to_ascii_lowercase(),
        weight,
    ))
}

/// The weight of a type: that of the most specific range. Parameters such as `version` are
/// not compared: there is one version of each.
fn weight(ranges: &[(String, String, f32)], kind: &str, subtype: &str) -> f32 {
    let best_of = |kind: &str, subtype: &str| {
        let all = ranges
            .iter()
            .filter(|range| range.0 == kind && range.1 == subtype);
        all.map(|range| range.2).reduce(f32::max)
    };
    best_of(kind, subtype)
        .or_else(|| best_of(kind, "*"))
        .or_else(|| best_of("*", "*"))
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::MetricsFormat::{Classic, OpenMetrics};
    use super::*;

    #[test]
    fn the_preferred_format_is_sent() {
        let rows = [
            ("", OpenMetrics),
            ("*/*", OpenMetrics),
            ("text/plain", Classic),
            ("text/plain;version=0.0.4", Classic),
            ("TEXT/Plain; charset=utf-8", Classic),
            ("text/*", Classic),
            ("application/openmetrics-text", OpenMetrics),
            ("application/openmetrics-text, text/plain", OpenMetrics),
            (
                "application/openmetrics-text;q=0.3, text/plain;q=0.5",
                Classic,
            ),
            ("application/openmetrics-text;q=0, */*", Classic),
            ("text/plain;q=0.5, */*", OpenMetrics),
            ("text/plain, */*;q=0.1", Classic),
            ("text/plain;q=0", OpenMetrics),
            ("text/plain;q=2", OpenMetrics),
            ("text/plain;q=nan", OpenMetrics),
            ("text/html,application/xhtml+xml,*/*;q=0.8", OpenMetrics),
            // Prometheus 2.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            // Prometheus 3 with a preference for the classic format.
            (
                "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,*/*;q=0.2",
                Classic,
            ),
        ];
        for (accept, expected) in rows {
            let mut fields = HeaderMap::new();
            if !accept.is_empty() {
                fields.insert(ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(MetricsFormat::of(&fields), expected, "{accept}");
        }
    }
}
