//! Spans in the two encodings of OTLP (opentelemetry-proto 1.x, whose trace messages
//! are stable): protocol buffers, and JSON.

mod protobuf;

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::settings::Encoding;
use crate::clock::{Clock, Moment};
use crate::trace::context::SpanContext;
use crate::trace::span::{AttributeValue, SpanKind, SpanRecord};

/// The flags of a span in OTLP: that it is known whether its parent is of another
/// process, and that it is.
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// The value of a failed span's status.
const STATUS_ERROR: u8 = 2;

/// The body of an export of these spans, of a resource.
pub(super) fn request(
    encoding: Encoding,
    resource: &[(String, String)],
    spans: &[SpanRecord],
    clock: &Clock,
) -> Vec<u8> {
    match encoding {
        Encoding::Protobuf => protobuf::request(resource, spans, clock),
        Encoding::Json => {
            let text = serde_json::to_vec(&json_request(resource, spans, clock));
            // Such a value can be written.
            text.unwrap_or_default()
        }
    }
}

/// The number of spans that a collector has not accepted, by its answer to a request
/// that has succeeded otherwise.
pub(super) fn rejected(encoding: Encoding, body: &[u8]) -> u64 {
    match encoding {
        Encoding::Protobuf => protobuf::rejected(body),
        Encoding::Json => {
            let answer: Value = serde_json::from_slice(body).unwrap_or_default();
            let number = &answer["partialSuccess"]["rejectedSpans"];
            // 64-bit numbers are strings in this form of JSON; not all follow that.
            let text = number.as_str().and_then(|text| text.parse().ok());
            text.or_else(|| number.as_u64()).unwrap_or_default()
        }
    }
}

fn json_request(resource: &[(String, String)], spans: &[SpanRecord], clock: &Clock) -> Value {
    let attribute =
        |(key, value): &(String, String)| json!({"key": key, "value": {"stringValue": value}});
    let resource: Vec<_> = resource.iter().map(attribute).collect();
    let spans: Vec<_> = spans.iter().map(|span| json_span(span, clock)).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{
            "scope": {"name": "ordgate", "version": env!("CARGO_PKG_VERSION")},
            "spans": spans,
        }],
    }]})
}

fn json_span(span: &SpanRecord, clock: &Clock) -> Value {
    let attributes = span.attributes.iter().map(|(key, value)| {
        let value = match value {
            AttributeValue::Text(text) => json!({"stringValue": text}),
            AttributeValue::Number(number) => json!({"intValue": number.to_string()}),
            AttributeValue::Flag(flag) => json!({"boolValue": flag}),
        };
        json!({"key": key, "value": value})
    });
    let links = span.links.iter().map(|link| {
        json!({
            "traceId": link.trace.to_string(),
            "spanId": link.span.to_string(),
            "flags": link_flags(link),
        })
    });
    let mut value = json!({
        "traceId": span.context.trace.to_string(),
        "spanId": span.context.span.to_string(),
        "flags": flags(span),
        "name": span.name,
        "kind": kind(span.kind),
        "startTimeUnixNano": nanos(clock, span.began).to_string(),
        "endTimeUnixNano": nanos(clock, span.ended).to_string(),
        "attributes": attributes.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = parent.to_string().into();
    }
    if let Some(state) = &span.state {
        value["traceState"] = (**state).into();
    }
    if span.failed {
        value["status"] = json!({"code": STATUS_ERROR});
    }
    value
}

/// The flags of a span: those of its trace, and whether its parent is remote.
fn flags(span: &SpanRecord) -> u32 {
    let remote = match span.is_parent_remote {
        true => IS_REMOTE,
        false => 0,
    };
    u32::from(span.context.flags()) | KNOWS_REMOTE | remote
}

/// The flags of a link. The span that it leads to is of this process.
fn link_flags(link: &SpanContext) -> u32 {
    u32::from(link.flags()) | KNOWS_REMOTE
}

/// The number of a kind.
const fn kind(kind: SpanKind) -> u8 {
    match kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    }
}

/// Nanoseconds since 1970.
fn nanos(clock: &Clock, moment: Moment) -> u64 {
    let wall: SystemTime = clock.wall(moment);
    let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
