//! Metrics of the export of traces.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::{Metrics, by, one};
use crate::gateway::Gateway;
use crate::trace::tracer::SpanCounts;

/// Writes them; without a collector they are 0.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let none = SpanCounts::default();
    let tracer = gateway.records.tracer.as_ref();
    let counts = tracer.map_or(&none, |tracer| &tracer.counts);
    let results = [
        ("exported", &counts.exported),
        ("dropped", &counts.dropped),
        ("failed", &counts.failed),
    ];
    to.counter(
        "ordgate_spans",
        "Spans that the collector has accepted, that found the queue full, or that the collector did not take",
        by("result", results.map(|(result, n)| (result, n.load(Relaxed)))),
    )?;
    to.counter(
        "ordgate_traces_limited",
        "Requests that were not traced because 100 were traced in that second, or 10 of their client",
        one(counts.limited.load(Relaxed)),
    )
}
