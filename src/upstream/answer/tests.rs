//! Which heads and bodies may be handed on, in tables.

use std::time::Duration;

use http::header::HeaderValue;

use super::*;
use crate::upstream::reported::tests::fields;

#[test]
fn which_heads_are_failures() {
    use Reason::{
        KeyRefused, NotJson, Redirect, Retired, ServerError, Throttled, UnexpectedStatus,
    };
    let json = "content-type: application/json; charset=utf-8";
    let html = "content-type: text/HTML; charset=utf-8";
    // the status, fields, why it is a failure, and the seconds to wait
    for (status, text, expected, wait) in [
        (200, json, None, None),
        (200, "", None, None),
        (200, "content-type: application/problem+JSON", None, None),
        (404, json, None, None),
        (400, json, None, None),
        (200, html, Some(NotJson), None),
        (404, html, Some(NotJson), None),
        (200, "content-encoding: gzip", Some(NotJson), None),
        (200, "content-encoding: identity", None, None),
        (204, json, Some(UnexpectedStatus), None),
        (206, json, Some(UnexpectedStatus), None),
        (301, json, Some(Redirect), None),
        (304, json, Some(UnexpectedStatus), None),
        (401, json, Some(KeyRefused), None),
        (403, json, Some(KeyRefused), None),
        (403, "", Some(KeyRefused), None),
        (403, html, Some(KeyRefused), None),
        (410, json, Some(Retired), None),
        (408, json, Some(UnexpectedStatus), None),
        (429, json, Some(Throttled), Some(1)),
        (429, "retry-after: 30", Some(Throttled), Some(30)),
        (429, "retry-after: 99999999", Some(Throttled), Some(3600)),
        (500, json, Some(ServerError), None),
        (500, "retry-after: 30", Some(ServerError), None),
        (503, html, Some(ServerError), None),
        (503, "retry-after: 30", Some(ServerError), Some(30)),
        (503, "retry-after: 86400", Some(ServerError), Some(3600)),
        (503, "retry-after: soon", Some(ServerError), None),
        (503, "ratelimit-reset: 30", Some(ServerError), None),
    ] {
        let code = StatusCode::from_u16(status).unwrap();
        let checked = check_head(code, &fields(text), false, SystemTime::UNIX_EPOCH);
        let (reason, after) = match checked {
            Ok(()) => (None, None),
            Err(failure) => (Some(failure.reason), failure.retry_after),
        };
        let wait = wait.map(Duration::from_secs);
        assert_eq!((reason, after), (expected, wait), "{status} {text}");
    }
}

#[test]
fn of_any_type_all_is_the_same_but_the_type() {
    use Reason::{KeyRefused, NotJson, ServerError, UnexpectedStatus};
    let html = "content-type: text/html";
    for (status, text, expected) in [
        (200, html, None),
        (404, html, None),
        (200, "content-encoding: br", Some(NotJson)),
        (204, html, Some(UnexpectedStatus)),
        (403, html, Some(KeyRefused)),
        (500, html, Some(ServerError)),
    ] {
        let code = StatusCode::from_u16(status).unwrap();
        let checked = check_head(code, &fields(text), true, SystemTime::UNIX_EPOCH);
        assert_eq!(
            checked.err().map(|failure| failure.reason),
            expected,
            "{status} {text}"
        );
    }
}

#[test]
fn an_unreadable_or_ambiguous_media_type_is_not_json() {
    for (name, values) in [
        ("content-type", &[&b"application/json; x=\xe9"[..]][..]),
        ("content-type", &[b"\xff"]),
        ("content-type", &[b"application/json", b"text/html"]),
        ("content-encoding", &[b"\xe9"]),
        ("content-encoding", &[b"identity", b"gzip"]),
    ] {
        let mut fields = HeaderMap::new();
        for value in values {
            fields.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let checked = check_head(StatusCode::OK, &fields, false, SystemTime::UNIX_EPOCH);
        assert_eq!(
            checked,
            Err(Failure::status(Reason::NotJson, StatusCode::OK)),
            "{name} {values:?}"
        );
    }
}

#[test]
fn a_frameworks_404_is_not_the_apis() {
    let own = r#"{"message":"Route GET:/nope not found","error":"Not Found","statusCode":404}"#;
    for (status, body, expected) in [
        (404, own, true),
        (404, r#" {"statusCode": 404, "message": ""}"#, true),
        (404, r#"{"error":"Not found"}"#, false),
        (404, r#"{"statusCode":404,"error":"Not Found"}"#, false),
        (404, r#"{"statusCode":"404","message":"x"}"#, false),
        (404, r#"{"statusCode":404,"message":["x"]}"#, false),
        (404, r#"{"statusCode":400,"message":"x"}"#, false),
        (404, r#"{"inner":{"statusCode":404,"message":"x"}}"#, false),
        (404, r#"[404,"x"]"#, false),
        (404, "", false),
        (400, own, false),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let checked = check_body(status, &body.into());
        let is_it = checked.is_err_and(|failure| failure.reason == Reason::WrongUpstream);
        assert_eq!(is_it, expected, "{status} {body}");
    }
}

#[test]
fn which_refusals_hold_for_every_page() {
    for (body, expected) in [
        (
            r#"{"message":"params/block must match pattern \"^[0-9]+$\""}"#,
            true,
        ),
        (
            r#"{"statusCode":400,"message":"params must have property 'block'"}"#,
            true,
        ),
        (
            r#"{"message":"querystring/operation_type must be allowed"}"#,
            true,
        ),
        (r#"{"message":"querystring/limit must be <= 60"}"#, false),
        (
            r#"{"message":"querystring must have property 'offset'"}"#,
            false,
        ),
        (
            r#"{"message":"params/block is wrong, querystring/limit too"}"#,
            false,
        ),
        (r#"{"message":"parameters/block is wrong"}"#, false),
        (r#"{"message":"the page is too large"}"#, false),
        (r#"{"message":["params/block"]}"#, false),
        (r#"["params/block must match"]"#, false),
        ("params/block must match", false),
    ] {
        assert_eq!(refuses_every_page(body.as_bytes()), expected, "{body}");
    }
}

/// RFC 8259 §8.1: UTF-8. The bad ones are ISO 8859-1, an overlong form, half of a pair, UTF-16.
#[test]
fn which_bodies_are_json_and_which_are_empty_lists() {
    for (body, empty) in [
        (&br#"{"total":0,"results":[]}"#[..], Some(true)),
        (br#"{"total":1,"results":[{}]}"#, Some(false)),
        (br#"{"results":{}}"#, Some(false)),
        (b"[]", Some(false)),
        ("{\"name\":\"caf\u{e9} \u{1f9e1}\"}".as_bytes(), Some(false)),
        (b"", None),
        (b"{} {}", None),
        (b"<html>", None),
        (b"{\"name\":\"caf\xe9\"}", None),
        (b"\"\xc0\xaf\"", None),
        (b"\"\xed\xa0\x80\"", None),
        (b"{\0}\0", None),
    ] {
        let index = check_body(StatusCode::OK, &Bytes::from_static(body));
        assert_eq!(index.ok().map(|index| index.empty), empty, "{body:?}");
    }
}
