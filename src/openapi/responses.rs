//! Responses of ordgate's own, and the fields of all.

use serde_json::{Value, json};

use super::reference;
use crate::reason::Reason;

/// ordgate's own errors, by the names of their descriptions.
pub(super) fn refusals() -> Value {
    json!({
        "BadRequest": refusal(400, Reason::Invalid, "A parameter is invalid, or the request is malformed; the body names the parameter, the received value and the allowed ones", None),
        "Unauthorized": refusal(401, Reason::NoToken, "There is no valid token; WWW-Authenticate and the body say what is wrong with it. Only where the gateway has client tokens", Some("WWW-Authenticate")),
        "Forbidden": refusal(403, Reason::TokenOrigin, "The token may not be used by pages of this origin. Only where the gateway has client tokens", None),
        "NoRoute": refusal(404, Reason::NoRoute, "There is no such path", None),
        "NoToken": no_token(),
        "MethodNotAllowed": refusal(405, Reason::Method, "The path does not support the method; Allow lists the supported ones", Some("Allow")),
        "RequestTimeout": refusal(408, Reason::HeadTooSlow, "The request did not arrive in time", None),
        "BodyTooLarge": refusal(413, Reason::RequestBodyTooLarge, "The request's body is too large", None),
        "TargetTooLong": refusal(414, Reason::TargetTooLong, "The request target is too long", None),
        "TooManyRequests": refusal(429, Reason::Limited, "The client has exceeded a limit of requests, of requests to the upstream, or of connections", Some("Retry-After")),
        "HeadTooLarge": refusal(431, Reason::HeadTooLarge, "The request's header section is too large", None),
        "InternalError": refusal(500, Reason::Internal, "A fault of the gateway; its log says more", None),
        "NotImplemented": refusal(501, Reason::Upgrade, "The connection cannot be upgraded to another protocol", None),
        "BadGateway": refusal(502, Reason::NotJson, "The upstream sent no valid response", Some("Proxy-Status")),
        "ServiceUnavailable": refusal(503, Reason::OverBudget, "The upstream's budget is used up, its circuit breaker is open, or too many requests or connections are under way", Some("Retry-After")),
        "GatewayTimeout": refusal(504, Reason::UpstreamTimeout, "The upstream did not respond in time, or the request has only-if-cached and nothing usable is stored", None),
        "VersionNotSupported": refusal(505, Reason::BadVersion, "The version of HTTP is not supported", None),
        "LoopDetected": refusal(508, Reason::Loop, "The request has already passed through this gateway", None),
    })
}

/// A refusal, with an example for one reason, and a field of its own.
fn refusal(status: u16, reason: Reason, description: &str, field: Option<&str>) -> Value {
    let mut value = json!({
        "description": description,
        "headers": { "X-Request-Id": reference("headers", "X-Request-Id") },
        "content": { "application/problem+json": {
            "schema": reference("schemas", "Problem"),
            "example": example(status, reason, description),
        } },
    });
    if let Some(name) = field {
        value["headers"][name] = reference("headers", name);
    }
    value
}

fn example(status: u16, reason: Reason, description: &str) -> Value {
    let title = http::StatusCode::from_u16(status).ok();
    let title = title.and_then(|status| status.canonical_reason());
    let mut example = json!({
        "type": "about:blank",
        "title": title.unwrap_or("Error"),
        "status": status,
        "detail": description,
        "error": description,
        "reason": reason,
        "request_id": "d9bcd8683448941b",
    });
    if status == 400 {
        let allowed =
            "an integer from 1 to 60, in decimal digits without sign, blanks or leading zeros";
        let detail = format!("limit must be {allowed}, but \"61\" came");
        for (name, text) in [
            ("detail", &*detail),
            ("error", &*detail),
            ("parameter", "limit"),
            ("received", "61"),
            ("allowed", allowed),
        ] {
            example[name] = json!(text);
        }
    }
    example
}

/// 404 has two forms: the upstream's for a token, and ordgate's for a path.
fn no_token() -> Value {
    let mut value = refusal(
        404,
        Reason::NoRoute,
        "There is no such token (application/json), or no such path (application/problem+json)",
        None,
    );
    value["content"]["application/json"] = json!({
        "schema": reference("schemas", "NotFound"),
        "example": { "error": "Not found" },
    });
    value
}

/// The fields of responses.
pub(super) fn headers() -> Value {
    let header = |description: &str, kind: &str, example: Value| json!({ "description": description, "schema": { "type": kind }, "example": example });
    json!({
        "ETag": header("A digest of the body", "string", json!("\"62f0865337c9a19c992b2c087dc683fd\"")),
        "Age": header("Seconds since the upstream's response was received, or was shown to be unchanged", "integer", json!(3)),
        "Cache-Control": header("How long the client may use the response", "string", json!("public, max-age=5")),
        "Cache-Status": header("How the cache handled the request (RFC 9211)", "string", json!("ordgate; hit; ttl=4")),
        "X-Request-Id": header("The request's id in the logs", "string", json!("d9bcd8683448941b")),
        "RateLimit": header("The remainder of the client's rate limit", "string", json!("\"default\";r=2999;t=1")),
        "RateLimit-Policy": header("The client's rate limit", "string", json!("\"default\";q=3000;w=60")),
        "Retry-After": header("Seconds until the client should retry", "integer", json!(1)),
        "Allow": header("The methods that the path supports", "string", json!("GET, HEAD, OPTIONS")),
        "WWW-Authenticate": header("What is wrong with the token (RFC 6750)", "string", json!("Bearer realm=\"ordgate\"")),
        "Proxy-Status": header("What is wrong with the upstream (RFC 9209)", "string", json!("ordgate; error=connection_refused")),
    })
}
