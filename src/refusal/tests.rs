//! Statuses, fields and problem documents.

use std::time::Duration;

use super::*;

#[test]
fn each_refusal_has_its_status_and_fields() {
    let until =
        |reason, millis| Refusal::from(Failure::until(reason, Duration::from_millis(millis)));
    let status = |reason, code, millis: Option<u64>| {
        Refusal::from(Failure {
            retry_after: millis.map(Duration::from_millis),
            ..Failure::status(reason, StatusCode::from_u16(code).unwrap())
        })
    };
    let too_many = OverLimit {
        policy: HeaderValue::from_static("\"misses\";q=1;w=60"),
        left: HeaderValue::from_static("\"misses\";r=0;t=3"),
        retry_after: 3,
    };
    let rows = [
        (Reason::NoRoute.into(), 404, ""),
        (
            Reason::NoToken.into(),
            401,
            "www-authenticate: Bearer realm=\"ordgate\"",
        ),
        (
            Reason::UnknownToken.into(),
            401,
            "www-authenticate: Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token is unknown\"",
        ),
        (
            Reason::ExpiredToken.into(),
            401,
            "www-authenticate: Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token has expired\"",
        ),
        (Reason::TokenOrigin.into(), 403, ""),
        (Reason::Loop.into(), 508, ""),
        (
            Refusal::method(HeaderValue::from_static("GET")),
            405,
            "allow: GET",
        ),
        (
            Refusal::too_many(Reason::LimitedMisses, too_many),
            429,
            "ratelimit-policy: \"misses\";q=1;w=60, ratelimit: \"misses\";r=0;t=3, retry-after: 3",
        ),
        (
            until(Reason::OverBudget, 1200),
            503,
            "proxy-status: ordgate; error=connection_limit_reached, retry-after: 2",
        ),
        (
            until(Reason::BreakerOpen, 4100),
            503,
            "proxy-status: ordgate; error=destination_unavailable, retry-after: 5",
        ),
        (
            status(Reason::Throttled, 429, Some(0)),
            503,
            "proxy-status: ordgate; error=http_protocol_error; received-status=429, retry-after: 1",
        ),
        (
            status(Reason::WrongUpstream, 404, None),
            502,
            "proxy-status: ordgate; error=destination_not_found; received-status=404",
        ),
        (
            status(Reason::ServerError, 500, None),
            502,
            "proxy-status: ordgate; error=http_protocol_error; received-status=500",
        ),
        (
            status(Reason::ServerError, 503, Some(60_000)),
            503,
            "proxy-status: ordgate; error=http_protocol_error; received-status=503, retry-after: 60",
        ),
        (
            Refusal::from(Failure::new(Reason::UpstreamTimeout)),
            504,
            "proxy-status: ordgate; error=http_response_timeout",
        ),
        (
            until(Reason::Outdated, 1000),
            503,
            "proxy-status: ordgate; error=proxy_internal_error, retry-after: 1",
        ),
        (
            Refusal::from(Failure::new(Reason::Internal)),
            500,
            "proxy-status: ordgate; error=proxy_internal_error",
        ),
        (
            until(Reason::RequestBodyNoRoom, 1000),
            503,
            "proxy-status: ordgate; error=proxy_internal_response, connection: close, retry-after: 1",
        ),
    ];
    let bodies = [
        (Reason::RequestBodyBroken, 400),
        (Reason::RequestBodyTooSlow, 408),
        (Reason::RequestBodyTooLarge, 413),
    ];
    let bodies = bodies.map(|(fault, status)| {
        let expected = "proxy-status: ordgate; error=http_request_error, connection: close";
        let refusal = Refusal::from(Failure::new(fault));
        (refusal, status, expected)
    });
    for (refusal, status, expected) in rows.into_iter().chain(bodies) {
        let text: Vec<_> = refusal
            .fields
            .iter()
            .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
            .collect();
        assert_eq!(text.join(", "), expected, "{refusal:?}");
        assert_eq!(refusal.status.as_u16(), status, "{refusal:?}");
    }
}

#[test]
fn a_problem_has_the_error_member_of_the_api() {
    let refusal = Refusal::from(Invalid::new("limit", "61\"", "1 to 60"));
    assert_eq!(
        refusal.problem("r-1", None),
        json!({
            "type": "about:blank",
            "title": "Bad Request",
            "status": 400,
            "detail": "limit must be 1 to 60, but \"61\"\" came",
            "error": "limit must be 1 to 60, but \"61\"\" came",
            "reason": "invalid",
            "parameter": "limit",
            "received": "61\"",
            "allowed": "1 to 60",
            "request_id": "r-1",
        })
    );
}
