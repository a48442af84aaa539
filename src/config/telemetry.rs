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
