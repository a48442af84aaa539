//! The forms of `traceparent` and `tracestate`, as tables.

use super::*;
use crate::api_key::ApiKey;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

fn with(name: &HeaderName, lines: &[&str]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines {
        fields.append(name, HeaderValue::try_from(*line).unwrap());
    }
    fields
}

/// Each form, and the flags that are read of it.
#[test]
fn forms_of_traceparent() {
    let zero_trace = "0".repeat(32);
    let zero_span = "0".repeat(16);
    for (value, flags) in [
        (format!("00-{TRACE}-{SPAN}-01"), Some(1)),
        (format!("00-{TRACE}-{SPAN}-00"), Some(0)),
        (format!("00-{TRACE}-{SPAN}-03"), Some(3)),
        (format!("00-{TRACE}-{SPAN}-ff"), Some(3)),
        (format!("00-{TRACE}-{SPAN}-08"), Some(0)),
        // Version 00 has nothing after it.
        (format!("00-{TRACE}-{SPAN}-01-"), None),
        (format!("00-{TRACE}-{SPAN}-01-00"), None),
        (format!("00-{TRACE}-{SPAN}-011"), None),
        // Later versions may have.
        (format!("01-{TRACE}-{SPAN}-01"), Some(1)),
        (format!("cc-{TRACE}-{SPAN}-01-what-follows"), Some(1)),
        (format!("cc-{TRACE}-{SPAN}-01-"), Some(1)),
        (format!("cc-{TRACE}-{SPAN}-01.what"), None),
        (format!("fe-{TRACE}-{SPAN}-00"), Some(0)),
        (format!("ff-{TRACE}-{SPAN}-01"), None),
        (format!("00-{zero_trace}-{SPAN}-01"), None),
        (format!("00-{TRACE}-{zero_span}-01"), None),
        (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
        (format!("00-{TRACE}-{}-01", SPAN.to_uppercase()), None),
        (format!("0A-{TRACE}-{SPAN}-01"), None),
        (format!("00-{TRACE}-{SPAN}-0A"), None),
        (format!("00_{TRACE}-{SPAN}-01"), None),
        (format!("00-{TRACE}_{SPAN}-01"), None),
        (format!("00-{TRACE}-{SPAN}_01"), None),
        (format!("00-{TRACE}-{SPAN}-0"), None),
        (format!("00-{TRACE}-{SPAN}"), None),
        (format!("00-{}g-{SPAN}-01", &TRACE[1..]), None),
        (format!("0-{TRACE}-{SPAN}-001"), None),
        (format!("00-{TRACE}-{SPAN}-+1"), None),
        (String::new(), None),
        ("00".to_owned(), None),
    ] {
        let read = SpanContext::of(&with(&TRACEPARENT, &[&value]));
        assert_eq!(read.map(SpanContext::flags), flags, "{value}");
        if let Some(read) = read {
            let (trace, span) = (read.trace.to_string(), read.span.to_string());
            assert_eq!((&*trace, &*span), (TRACE, SPAN), "{value}");
            let sent = read.field().unwrap();
            let expected = format!("00-{TRACE}-{SPAN}-{:02x}", read.flags());
            assert_eq!(sent, expected.as_str(), "{value}");
        }
    }
}

#[test]
fn traceparent_counts_only_if_it_comes_once() {
    let value = format!("00-{TRACE}-{SPAN}-01");
    assert!(SpanContext::of(&HeaderMap::new()).is_none());
    assert!(SpanContext::of(&with(&TRACEPARENT, &[&value])).is_some());
    assert!(SpanContext::of(&with(&TRACEPARENT, &[&value, &value])).is_none());
    assert!(SpanContext::of(&with(&TRACEPARENT, &[&value, ""])).is_none());
}

#[test]
fn a_recorded_span_is_sampled_and_keeps_the_random_flag_of_its_parent() {
    let span = SpanId::new(7);
    for (flags, expected) in [("00", 1), ("01", 1), ("02", 3), ("03", 3)] {
        let value = format!("00-{TRACE}-{SPAN}-{flags}");
        let parent = SpanContext::of(&with(&TRACEPARENT, &[&value]));
        let trace = parent.unwrap().trace;
        assert_eq!(SpanContext::recorded(trace, span, parent).flags(), expected);
    }
    let own = SpanContext::recorded(TraceId::new(5), span, None);
    let expected = format!("00-{:032x}-{:016x}-03", 5, 7);
    assert_eq!(own.field().unwrap(), expected.as_str());
}

#[test]
fn forms_of_tracestate() {
    let long = |n: usize| format!("k{n}={}", "v".repeat(200));
    let (one, two, three) = (long(1), long(2), long(3));
    let many: Vec<_> = (0..33).map(|n| format!("k{n}=v")).collect();
    let key = "k".repeat(256);
    let _hidden = ApiKey::list("k3y:of:the:Provider").unwrap();
    for (lines, expected) in [
        (&["a=1"][..], Some("a=1")),
        (&["a=1", "b=2"], Some("a=1,b=2")),
        (&["a=1 , b=2,\t,"], Some("a=1,b=2")),
        (
            &["fw529a3039@dt=FfffF", "x/y*z_-=!~ "],
            Some("fw529a3039@dt=FfffF,x/y*z_-=!~"),
        ),
        (&[""], None),
        (&[], None),
        (&["a"], None),
        (&["a="], None),
        (&["=1"], None),
        (&["A=1"], None),
        (&["_a=1"], None),
        (&["a=1=2"], None),
        (&["a=1", "a=2"], None),
        (&["a=1,b"], None),
        (&["a=é"], None),
        (&[&format!("{key}=1")], Some(&*format!("{key}=1"))),
        (&[&format!("k{key}=1")], None),
        (&[&format!("a={}", "v".repeat(257))], None),
        (&[&many[..32].join(",")], Some(&*many[..32].join(","))),
        (&[&many.join(",")], None),
        // A token or a key is not sent on.
        (&["a=1,b=k3y:of:the:Provider"], None),
        (&[&format!("a=og_{}", "aZ3".repeat(17))[..54]], None),
        // What does not fit is left out from the end.
        (&[&one, &two, &three], Some(&*format!("{one},{two}"))),
    ] {
        let fields = with(&TRACESTATE, lines);
        assert_eq!(state_of(&fields).as_deref(), expected, "{lines:?}");
    }
}
