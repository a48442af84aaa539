//! Traces: `traceparent` on its way through, and the spans that a collector gets.

mod export;
mod propagation;
mod spans;

use crate::support::ExportedSpan;

const SPAN: &str = "00f067aa0ba902b7";

/// The id of a trace, by a number.
fn trace(number: u32) -> String {
    format!("{:032x}", 0xabc0_0000 + u128::from(number))
}

/// A `traceparent` with these flags.
fn parent(number: u32, flags: &str) -> String {
    format!("00-{}-{SPAN}-{flags}", trace(number))
}

/// The spans of a trace, those of one name, or all with an empty one.
fn of(spans: &[ExportedSpan], trace: &str, name: &str) -> Vec<ExportedSpan> {
    let is_one =
        |span: &&ExportedSpan| span.trace() == trace && (name.is_empty() || span.name() == name);
    spans.iter().filter(is_one).cloned().collect()
}

/// The one span of a trace with a name.
fn one(spans: &[ExportedSpan], trace: &str, name: &str) -> ExportedSpan {
    let found = of(spans, trace, name);
    assert_eq!(found.len(), 1, "{name} in {spans:#?}");
    found[0].clone()
}

/// The span of the request of a trace.
fn request(spans: &[ExportedSpan], trace: &str) -> ExportedSpan {
    let mut found = of(spans, trace, "");
    found.retain(ExportedSpan::is_request);
    assert_eq!(found.len(), 1, "{spans:#?}");
    found[0].clone()
}
