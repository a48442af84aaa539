//! Every way in which a request ends without an answer of the upstream, folded
//! into one type, with the status, the words and the fields that it means.
//!
//! Each says what came, what is allowed and what to do, and nothing of the
//! upstream's insides. `respond` turns it into `application/problem+json`
//! (RFC 9457).

use std::time::Duration;

use http::header::{ALLOW, CONNECTION, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use crate::limit::{TooManyMisses, TooManyRequests};
use crate::upstream::client::upload::BodyFault;
use crate::upstream::{Failure, Unreachable};
use crate::validate::Invalid;
use crate::wire::head::HeadFault;
use crate::wire::{PROXY_STATUS, RATELIMIT, RATELIMIT_POLICY};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message's framing is not to be trusted.
    Head(HeadFault),
    /// The target is in authority or asterisk form, or in an absolute form with
    /// userinfo or another scheme than http and https (RFC 9112 §3.2).
    TargetForm,
    /// The path is no route.
    NoRoute,
    /// The route does not take the method.
    Method {
        /// What it takes.
        allow: HeaderValue,
    },
    /// The request has a body.
    Body,
    /// A parameter does not validate.
    Invalid(Invalid),
    /// The caller has asked too often.
    TooMany(TooManyRequests),
    /// The client's requests have gone to the upstream too often.
    TooManyMisses(TooManyMisses),
    /// There are more connections than are served.
    TooManyConnections,
    /// The client has more connections than one may have.
    TooManyClientConnections,
    /// The client wants what is stored or nothing (RFC 9111 §5.2.1.7), and
    /// there is nothing.
    OnlyIfCached,
    /// The request has come through this ordgate already, as its `via` says
    /// (RFC 9110 §7.6.3).
    Loop,
    /// The upstream was asked, or could not be, and there is no answer.
    Upstream(Failure),
}

/// The body of a refusal: RFC 9457's members, and `error`, which is where
/// clients of the API look.
#[derive(Debug, Serialize)]
pub struct Problem<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: String,
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<&'a str>,
    #[serde(rename = "request_id")]
    request_id: &'a str,
}

impl Refusal {
    /// The status that says it.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Head(fault) => match fault {
                HeadFault::TargetTooLong => StatusCode::URI_TOO_LONG,
                HeadFault::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                HeadFault::HeadTooSlow => StatusCode::REQUEST_TIMEOUT,
                HeadFault::Upgrade => StatusCode::NOT_IMPLEMENTED,
                HeadFault::BadVersion => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                HeadFault::BareLf
                | HeadFault::BareCr
                | HeadFault::ObsFold
                | HeadFault::BadFieldLine
                | HeadFault::TwoFramings
                | HeadFault::BadContentLength
                | HeadFault::BadTransferEncoding
                | HeadFault::BadChunk
                | HeadFault::HostMissing
                | HeadFault::HostInvalid
                | HeadFault::BadRequestLine
                | HeadFault::BadTarget => StatusCode::BAD_REQUEST,
            },
            Self::TargetForm | Self::Body | Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooMany(_) | Self::TooManyMisses(_) | Self::TooManyClientConnections => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::TooManyConnections => StatusCode::SERVICE_UNAVAILABLE,
            Self::OnlyIfCached => StatusCode::GATEWAY_TIMEOUT,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Upstream(failure) => match failure {
                Failure::Spent { .. }
                | Failure::TooManyInFlight
                | Failure::Excess { .. }
                | Failure::BreakerOpen { .. }
                | Failure::Unsettled
                | Failure::Throttled { .. }
                // It is away for a while, and has said for how long.
                | Failure::ServerError {
                    retry_after: Some(_),
                    ..
                } => StatusCode::SERVICE_UNAVAILABLE,
                Failure::RequestBody(fault) => match fault {
                    BodyFault::Broken => StatusCode::BAD_REQUEST,
                    BodyFault::TooSlow => StatusCode::REQUEST_TIMEOUT,
                    BodyFault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                    BodyFault::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
                },
                Failure::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
                Failure::Abandoned => StatusCode::INTERNAL_SERVER_ERROR,
                Failure::Unreachable(_)
                | Failure::Terminated
                | Failure::NotProcessed
                | Failure::Incomplete
                | Failure::TooLarge
                | Failure::Protocol
                | Failure::NotJson
                | Failure::KeyEchoed
                | Failure::Redirect(_)
                | Failure::ServerError {
                    retry_after: None, ..
                }
                | Failure::UnexpectedStatus(_)
                | Failure::KeyRefused(_)
                | Failure::TargetRefused(_)
                | Failure::NoSuchRoute { .. }
                | Failure::Retired => StatusCode::BAD_GATEWAY,
            },
        }
    }

    /// What came, what is allowed, what to do.
    pub fn detail(&self) -> String {
        match self {
            Self::Head(fault) => head(*fault).to_owned(),
            Self::TargetForm => "The request target must be in origin form, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL without userinfo".to_owned(),
            Self::NoRoute => "There is no such path here; /openapi.json lists those that there are".to_owned(),
            Self::Method { allow } => {
                let allow = allow.to_str().unwrap_or("GET");
                format!("This path takes {allow}")
            }
            Self::Body => "This request must not have a body".to_owned(),
            Self::Invalid(invalid) => invalid.to_string(),
            Self::TooMany(too_many) => format!(
                "You have sent more requests than one client may; try again in {} s",
                too_many.retry_after
            ),
            Self::TooManyMisses(too_many) => format!(
                "You have sent more requests that had to go to the upstream than the {} a minute that one client may; try again in {} s, answers from the cache are still served",
                too_many.per_minute, too_many.retry_after
            ),
            Self::OnlyIfCached => {
                "Nothing that may be used is stored, and the request has only-if-cached".to_owned()
            }
            Self::Loop => "This request has come through this gateway before, as its via field says: upstream.url, or a proxy behind it, leads back here, and the operator has to change that".to_owned(),
            Self::TooManyConnections => "There are more connections than can be served; try again in 1 s".to_owned(),
            Self::TooManyClientConnections => "You have more connections open than one client may; close some, or try again in 1 s".to_owned(),
            Self::Upstream(failure) => upstream(failure).to_owned(),
        }
    }

    /// Adds the fields that belong to it.
    pub fn fields(&self, fields: &mut HeaderMap) {
        match self {
            Self::Head(_)
            | Self::Body
            | Self::TooManyConnections
            | Self::TooManyClientConnections => {
                fields.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Method { allow } => {
                fields.insert(ALLOW, allow.clone());
            }
            Self::TooMany(too_many) => {
                fields.insert(RATELIMIT, too_many.field());
            }
            Self::TooManyMisses(too_many) => {
                fields.insert(RATELIMIT_POLICY, too_many.policy());
                fields.insert(RATELIMIT, too_many.field());
            }
            Self::Upstream(failure) => {
                if matches!(failure, Failure::RequestBody(_)) {
                    // The rest of its body is not read, so nothing can follow.
                    fields.insert(CONNECTION, HeaderValue::from_static("close"));
                }
                fields.insert(PROXY_STATUS, proxy_status(failure));
            }
            Self::TargetForm
            | Self::NoRoute
            | Self::Invalid(_)
            | Self::OnlyIfCached
            | Self::Loop => {}
        }
        if let Some(seconds) = self.retry_after() {
            fields.insert(RETRY_AFTER, seconds.into());
        }
    }

    /// In how many seconds to try again.
    fn retry_after(&self) -> Option<u64> {
        let ceil = |time: &Duration| {
            time.as_millis()
                .div_ceil(1000)
                .try_into()
                .unwrap_or(u64::MAX)
        };
        match self {
            Self::TooMany(too_many) => Some(too_many.retry_after),
            Self::TooManyMisses(too_many) => Some(too_many.retry_after),
            Self::TooManyConnections
            | Self::TooManyClientConnections
            | Self::Upstream(
                Failure::TooManyInFlight
                | Failure::Excess {
                    retry_after: None, ..
                }
                | Failure::Unsettled
                | Failure::RequestBody(BodyFault::NoRoom),
            ) => Some(1),
            Self::Upstream(
                Failure::Spent { retry_after }
                | Failure::BreakerOpen { retry_after }
                | Failure::Throttled { retry_after }
                | Failure::Excess {
                    retry_after: Some(retry_after),
                    ..
                }
                | Failure::ServerError {
                    retry_after: Some(retry_after),
                    ..
                },
            ) => Some(u64::max(1, ceil(retry_after))),
            Self::Head(_)
            | Self::TargetForm
            | Self::NoRoute
            | Self::Method { .. }
            | Self::Body
            | Self::Invalid(_)
            | Self::OnlyIfCached
            | Self::Loop
            | Self::Upstream(_) => None,
        }
    }

    /// The body that says it.
    pub fn problem<'a>(&'a self, request_id: &'a str) -> Problem<'a> {
        let invalid = if let Self::Invalid(invalid) = self {
            Some(invalid)
        } else {
            None
        };
        let status = self.status();
        Problem {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: self.detail(),
            error: self.detail(),
            parameter: invalid.map(|i| &*i.parameter),
            received: invalid.map(|i| &*i.received),
            allowed: invalid.map(|i| &*i.allowed),
            request_id,
        }
    }

    /// One word for it, in metrics and in `cache-status`'s `detail`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Head(HeadFault::Upgrade) => "upgrade",
            Self::Head(_) => "malformed",
            Self::TargetForm => "target-form",
            Self::NoRoute => "no-route",
            Self::Method { .. } => "method",
            Self::Body => "body",
            Self::Invalid(_) => "invalid",
            Self::TooMany(_) => "rate-limited",
            Self::TooManyMisses(_) => "misses-limited",
            Self::TooManyConnections => "connections",
            Self::TooManyClientConnections => "client-connections",
            Self::OnlyIfCached => "only-if-cached",
            Self::Loop => "loop",
            Self::Upstream(Failure::Spent { .. }) => "budget-spent",
            Self::Upstream(Failure::BreakerOpen { .. }) => "breaker-open",
            Self::Upstream(Failure::Throttled { .. }) => "throttled",
            Self::Upstream(Failure::RequestBody(_)) => "request-body",
            Self::Upstream(failure) => failure.name(),
        }
    }
}

fn head(fault: HeadFault) -> &'static str {
    match fault {
        HeadFault::BareLf => "A line of the message ends in LF alone; lines end in CRLF",
        HeadFault::BareCr => "A line of the message holds a CR that no LF follows",
        HeadFault::ObsFold => "A field line is folded; each field stands on one line",
        HeadFault::BadFieldLine => {
            "A field line is not name:value, without a blank before the colon and without control characters"
        }
        HeadFault::TwoFramings => {
            "The message has both Content-Length and Transfer-Encoding; send one"
        }
        HeadFault::BadContentLength => "Content-Length must come once, as decimal digits",
        HeadFault::BadTransferEncoding => "Transfer-Encoding must be chunked, once, in HTTP/1.1",
        HeadFault::BadChunk => "The chunked framing is malformed",
        HeadFault::HostMissing => "An HTTP/1.1 request must have a Host field",
        HeadFault::HostInvalid => {
            "A request must have one Host field, of the form host or host:port"
        }
        HeadFault::BadRequestLine => {
            "The request line must be: method, blank, target, blank, HTTP/1.1"
        }
        HeadFault::BadTarget => {
            "The request target has a fragment, or a character that must be percent-encoded"
        }
        HeadFault::BadVersion => "The version must be HTTP/1.1 or HTTP/1.0",
        HeadFault::TargetTooLong => "The request target is longer than is allowed",
        HeadFault::HeadTooLarge => "The request's head is larger than is allowed",
        HeadFault::HeadTooSlow => "The request's head did not arrive in time",
        HeadFault::Upgrade => {
            "The connection cannot be upgraded to another protocol; send the request without the Upgrade field"
        }
    }
}

/// What a client needs to know of the upstream's trouble; the operator finds
/// the rest in the log.
fn upstream(failure: &Failure) -> &'static str {
    match failure {
        Failure::Spent { .. } => {
            "This gateway's budget of upstream requests is spent; try again when retry-after says"
        }
        Failure::Throttled { .. } => {
            "The upstream wants fewer requests; try again when retry-after says"
        }
        Failure::TooManyInFlight => {
            "As many upstream requests are under way as may be; try again in 1 s"
        }
        Failure::Excess { .. } => {
            "The upstream takes no more requests at once; try again when retry-after says"
        }
        Failure::BreakerOpen { .. } => {
            "The upstream goes on failing and is left alone for a while; try again when retry-after says"
        }
        Failure::Unreachable(Unreachable::ClientCertificate) => {
            "The upstream demands a TLS client certificate, which this gateway has not; the operator has to look"
        }
        Failure::Unreachable(Unreachable::Tls | Unreachable::Alert | Unreachable::Certificate) => {
            "There is no TLS with the upstream that could be trusted; the operator has to look"
        }
        Failure::Unreachable(_) => "The upstream cannot be reached",
        Failure::TimedOut(_) => "The upstream did not answer in time",
        Failure::Terminated => "The upstream closed the connection without an answer",
        Failure::NotProcessed => "The upstream refused to process the request",
        Failure::Incomplete => "The upstream's answer broke off",
        Failure::TooLarge => "The upstream's answer is larger than this gateway accepts",
        Failure::Protocol => "The upstream's answer is not HTTP",
        Failure::NotJson => "The upstream's answer is not JSON",
        Failure::KeyEchoed => {
            "The upstream's answer has something in it that must not be passed on; the operator has to look"
        }
        Failure::Redirect(_) => "The upstream redirects, which this gateway does not follow",
        Failure::ServerError {
            retry_after: Some(_),
            ..
        } => "The upstream is away for a while; try again when retry-after says",
        Failure::ServerError {
            retry_after: None, ..
        } => "The upstream failed",
        Failure::UnexpectedStatus(_) => {
            "The upstream's answer has a status that means nothing here"
        }
        Failure::KeyRefused(_) => {
            "The upstream does not accept this gateway's credentials; the operator has to look"
        }
        Failure::TargetRefused(_) => {
            "The upstream refuses what was asked for, though it accepts this gateway's credentials"
        }
        Failure::NoSuchRoute { .. } => {
            "The upstream has no such path, so that it may be the wrong server for this route; the operator has to look"
        }
        Failure::Retired => "The upstream has been retired; the operator has to look",
        Failure::RequestBody(fault) => match fault {
            BodyFault::Broken => {
                "The request's body ended before its end, or its chunked framing is malformed; send it whole"
            }
            BodyFault::TooSlow => {
                "The request's body came too slowly; send it faster, or in smaller requests"
            }
            BodyFault::TooLarge => "The request's body is larger than this gateway accepts",
            BodyFault::NoRoom => {
                "Too many request bodies are being received; try again in 1 s, with fewer at once"
            }
        },
        Failure::Abandoned => "This gateway failed while it asked the upstream",
        Failure::Unsettled => {
            "The chain is being reorganized, and what came was overtaken each time; try again in 1 s"
        }
    }
}

/// RFC 9209: the error's type, and the status that the upstream gave.
fn proxy_status(failure: &Failure) -> HeaderValue {
    let mut text = format!("ordgate; error={}", failure.name());
    if let Some(status) = failure.upstream_status() {
        text.push_str(&format!("; received-status={}", status.as_u16()));
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("ordgate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_fields() {
        let seconds = Duration::from_secs;
        let rows = [
            (Refusal::Head(HeadFault::BareLf), 400, "connection: close"),
            (
                Refusal::Head(HeadFault::TargetTooLong),
                414,
                "connection: close",
            ),
            (
                Refusal::Head(HeadFault::HeadTooLarge),
                431,
                "connection: close",
            ),
            (
                Refusal::Head(HeadFault::HeadTooSlow),
                408,
                "connection: close",
            ),
            (
                Refusal::Head(HeadFault::BadVersion),
                505,
                "connection: close",
            ),
            (Refusal::Head(HeadFault::Upgrade), 501, "connection: close"),
            (
                Refusal::TooManyClientConnections,
                429,
                "connection: close, retry-after: 1",
            ),
            (Refusal::NoRoute, 404, ""),
            (Refusal::Loop, 508, ""),
            (
                Refusal::Method {
                    allow: HeaderValue::from_static("GET"),
                },
                405,
                "allow: GET",
            ),
            (
                Refusal::TooMany(TooManyRequests { retry_after: 3 }),
                429,
                "ratelimit: \"default\";r=0;t=3, retry-after: 3",
            ),
            (
                Refusal::TooManyMisses(TooManyMisses {
                    per_minute: std::num::NonZeroU32::MIN,
                    retry_after: 3,
                }),
                429,
                "ratelimit-policy: \"misses\";q=1;w=60, ratelimit: \"misses\";r=0;t=3, retry-after: 3",
            ),
            (
                Refusal::Upstream(Failure::Spent {
                    retry_after: Duration::from_millis(1200),
                }),
                503,
                "proxy-status: ordgate; error=connection_limit_reached, retry-after: 2",
            ),
            (
                Refusal::Upstream(Failure::BreakerOpen {
                    retry_after: Duration::from_millis(4100),
                }),
                503,
                "proxy-status: ordgate; error=destination_unavailable, retry-after: 5",
            ),
            (
                Refusal::Upstream(Failure::Throttled {
                    retry_after: seconds(0),
                }),
                503,
                "proxy-status: ordgate; error=http_protocol_error; received-status=429, retry-after: 1",
            ),
            (
                Refusal::Upstream(Failure::Excess {
                    status: Some(StatusCode::SERVICE_UNAVAILABLE),
                    retry_after: None,
                }),
                503,
                "proxy-status: ordgate; error=connection_limit_reached; received-status=503, retry-after: 1",
            ),
            (
                Refusal::Upstream(Failure::NoSuchRoute {
                    endpoint: "http://a".into(),
                }),
                502,
                "proxy-status: ordgate; error=destination_not_found; received-status=404",
            ),
            (
                Refusal::Upstream(Failure::ServerError {
                    status: StatusCode::INTERNAL_SERVER_ERROR,
                    retry_after: None,
                }),
                502,
                "proxy-status: ordgate; error=http_protocol_error; received-status=500",
            ),
            (
                Refusal::Upstream(Failure::ServerError {
                    status: StatusCode::SERVICE_UNAVAILABLE,
                    retry_after: Some(seconds(60)),
                }),
                503,
                "proxy-status: ordgate; error=http_protocol_error; received-status=503, retry-after: 60",
            ),
            (
                Refusal::Upstream(Failure::TimedOut(crate::upstream::TimedOut::Whole)),
                504,
                "proxy-status: ordgate; error=http_response_timeout",
            ),
            (
                Refusal::Upstream(Failure::Unsettled),
                503,
                "proxy-status: ordgate; error=proxy_internal_error, retry-after: 1",
            ),
            (
                Refusal::Upstream(Failure::Abandoned),
                500,
                "proxy-status: ordgate; error=proxy_internal_error",
            ),
            (
                Refusal::Upstream(Failure::RequestBody(BodyFault::Broken)),
                400,
                "connection: close, proxy-status: ordgate; error=http_request_error",
            ),
            (
                Refusal::Upstream(Failure::RequestBody(BodyFault::TooSlow)),
                408,
                "connection: close, proxy-status: ordgate; error=http_request_error",
            ),
            (
                Refusal::Upstream(Failure::RequestBody(BodyFault::TooLarge)),
                413,
                "connection: close, proxy-status: ordgate; error=http_request_error",
            ),
            (
                Refusal::Upstream(Failure::RequestBody(BodyFault::NoRoom)),
                503,
                "connection: close, proxy-status: ordgate; error=proxy_internal_response, retry-after: 1",
            ),
        ];
        for (refusal, status, expected) in rows {
            let mut fields = HeaderMap::new();
            refusal.fields(&mut fields);
            let text: Vec<_> = fields
                .iter()
                .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
                .collect();
            assert_eq!(text.join(", "), expected, "{refusal:?}");
            assert_eq!(refusal.status().as_u16(), status, "{refusal:?}");
        }
    }

    #[test]
    fn a_problem_has_the_apis_member_beside_the_standard_ones() {
        let refusal = Refusal::Invalid(Invalid::new("limit", "61\"", "1 to 60"));
        let json: serde_json::Value = serde_json::to_value(refusal.problem("r-1")).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "about:blank",
                "title": "Bad Request",
                "status": 400,
                "detail": "limit must be 1 to 60, but \"61\"\" came",
                "error": "limit must be 1 to 60, but \"61\"\" came",
                "parameter": "limit",
                "received": "61\"",
                "allowed": "1 to 60",
                "request_id": "r-1",
            })
        );
    }
}
