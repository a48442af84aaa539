//! `[telemetry]`: which requests are traced.

use super::key::keys;
use super::kinds::{Fraction, integer};
use crate::trace::tracer;

keys! {
    /// Traces of requests that are not answered from memory. They are exported by OTLP
    /// if the environment names a collector: OTEL_EXPORTER_OTLP_ENDPOINT.
    pub(super) struct TelemetryKeys {
        /// The share of requests that are traced, from 0 to 1.
        ///
        /// It counts for requests without `traceparent`. For others the flag in that field
        /// decides.
        sample: f64 = Fraction => 0.01;
        /// The most traces in a second, whatever clients request.
        max_traces: u32 = integer(1..=10_000) => 100;
        /// The most of them that one client may have.
        max_traces_per_client: u32 = integer(1..=10_000) => 10;
    }
}

impl TelemetryKeys {
    pub(super) fn settings(&self) -> tracer::Settings {
        tracer::Settings {
            sample: *self.sample,
            max_traces: *self.max_traces,
            max_traces_per_client: *self.max_traces_per_client,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn a_share_is_from_0_to_1() {
        for (value, expected) in [
            ("0", Some(0.0)),
            ("1", Some(1.0)),
            ("0.0", Some(0.0)),
            ("0.25", Some(0.25)),
            ("1.0", Some(1.0)),
            ("1e-3", Some(0.001)),
            ("2", None),
            ("1.01", None),
            ("-0.1", None),
            ("nan", None),
            ("inf", None),
            ("\"0.5\"", None),
            ("true", None),
        ] {
            let config = Config::parse("test.toml", &format!("telemetry.sample = {value}"));
            match (config, expected) {
                (Ok(config), Some(share)) => {
                    assert!((config.traces.sample - share).abs() < 1e-9, "{value}");
                }
                (Err(problems), None) => {
                    let text = problems[0].to_string();
                    assert!(text.contains("a number from 0 to 1"), "{text}");
                }
                (Ok(_), None) => panic!("{value} is taken"),
                (Err(problems), Some(_)) => panic!("{value}: {}", problems[0]),
            }
        }
    }
}
