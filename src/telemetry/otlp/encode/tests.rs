//! One span in both encodings, field by field.

use std::time::Duration;

use http::HeaderMap;
use serde_json::json;

use super::protobuf::{FieldValue, fields};
use super::*;
use crate::trace::context::{SpanId, TRACEPARENT, TraceId};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn span(clock: &Clock) -> SpanRecord {
    let value = format!("00-{TRACE}-{PARENT}-01");
    let parent = HeaderMap::from_iter([(TRACEPARENT, value.parse().unwrap())]);
    let parent = SpanContext::of(&parent).unwrap();
    let began = clock.now();
    let mut span = SpanRecord {
        context: SpanContext::recorded(parent.trace, SpanId::new(0x1234), Some(parent)),
        parent: Some(parent.span),
        is_parent_remote: true,
        state: Some("a=1".into()),
        name: "GET /x".into(),
        kind: SpanKind::Server,
        began,
        ended: began + Duration::from_millis(5),
        attributes: Vec::new(),
        links: vec![SpanContext::recorded(TraceId::new(9), SpanId::new(8), None)],
        failed: true,
    };
    span.set("text", "first");
    span.set("text", "é".repeat(600));
    span.set("number", 404_u16);
    span.set("flag", true);
    span
}

fn resource() -> Vec<(String, String)> {
    vec![("service.name".to_owned(), "edge".to_owned())]
}

#[test]
fn json() {
    let clock = Clock::manual();
    let span = span(&clock);
    let body = request(
        Encoding::Json,
        &resource(),
        std::slice::from_ref(&span),
        &clock,
    );
    let body: Value = serde_json::from_slice(&body).unwrap();
    let group = &body["resourceSpans"][0];
    let service = json!([{"key": "service.name", "value": {"stringValue": "edge"}}]);
    assert_eq!(group["resource"]["attributes"], service);
    let scope = &group["scopeSpans"][0];
    assert_eq!(scope["scope"]["name"], "ordgate");
    let began = nanos(&clock, span.began);
    assert!(began > 1_500_000_000_000_000_000, "nanoseconds since 1970");
    let expected = json!({
        "traceId": TRACE,
        "spanId": "0000000000001234",
        "parentSpanId": PARENT,
        "traceState": "a=1",
        "flags": 0x301,
        "name": "GET /x",
        "kind": 2,
        "startTimeUnixNano": began.to_string(),
        "endTimeUnixNano": (began + 5_000_000).to_string(),
        "attributes": [
            // A long text is cut, at the boundary of a character.
            {"key": "text", "value": {"stringValue": "é".repeat(512)}},
            {"key": "number", "value": {"intValue": "404"}},
            {"key": "flag", "value": {"boolValue": true}},
        ],
        "links": [{
            "traceId": format!("{:032x}", 9),
            "spanId": format!("{:016x}", 8),
            "flags": 0x103,
        }],
        "status": {"code": 2},
    });
    assert_eq!(scope["spans"], json!([expected]));
}

/// The bytes of a field, which comes once.
fn inner(message: &[u8], field: u32) -> Vec<u8> {
    let found: Vec<_> = all(message, field);
    assert_eq!(found.len(), 1, "{field}");
    found[0].clone()
}

fn all(message: &[u8], wanted: u32) -> Vec<Vec<u8>> {
    let found = fields(message).filter_map(|(field, value)| match value {
        FieldValue::Bytes(bytes) if field == wanted => Some(bytes.to_vec()),
        FieldValue::Bytes(_) | FieldValue::Number(_) => None,
    });
    found.collect()
}

fn number(message: &[u8], wanted: u32) -> u64 {
    let found = fields(message).find_map(|(field, value)| match value {
        FieldValue::Number(number) if field == wanted => Some(number),
        FieldValue::Bytes(_) | FieldValue::Number(_) => None,
    });
    found.unwrap()
}

#[test]
fn protobuf() {
    let clock = Clock::manual();
    let span = span(&clock);
    let body = request(
        Encoding::Protobuf,
        &resource(),
        std::slice::from_ref(&span),
        &clock,
    );
    let group = inner(&body, 1);
    let attribute = inner(&inner(&group, 1), 1);
    assert_eq!(inner(&attribute, 1), b"service.name");
    assert_eq!(inner(&inner(&attribute, 2), 1), b"edge");
    let scope = inner(&group, 2);
    assert_eq!(inner(&inner(&scope, 1), 1), b"ordgate");
    let read = inner(&scope, 2);
    let count = fields(&read).count();
    assert_eq!(count, 10 + 3 + 1, "ten single ones, attributes, a link");
    assert_eq!(inner(&read, 1), span.context.trace.bytes());
    assert_eq!(inner(&read, 2), [0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    assert_eq!(inner(&read, 3), b"a=1");
    assert_eq!(inner(&read, 4), span.parent.unwrap().bytes());
    assert_eq!(inner(&read, 5), b"GET /x");
    assert_eq!(number(&read, 6), 2);
    let began = nanos(&clock, span.began);
    assert_eq!(
        (number(&read, 7), number(&read, 8)),
        (began, began + 5_000_000)
    );
    let attributes = all(&read, 9);
    let value = |at: usize| inner(&attributes[at], 2);
    assert_eq!(inner(&attributes[1], 1), b"number");
    assert_eq!(inner(&value(0), 1), "é".repeat(512).as_bytes());
    assert_eq!(number(&value(1), 3), 404);
    assert_eq!(number(&value(2), 2), 1);
    let link = inner(&read, 13);
    assert_eq!(inner(&link, 1)[15], 9);
    assert_eq!(inner(&link, 2)[7], 8);
    assert_eq!(number(&link, 6), 0x103);
    assert_eq!(number(&inner(&read, 15), 3), 2);
    assert_eq!(number(&read, 16), 0x301);
}
