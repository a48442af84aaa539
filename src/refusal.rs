//! Refusals: all reasons why a request gets no answer from the upstream or the
//! cache, with the status, fields and text of each.
//!
//! The text says what was received, what is allowed and what to do, and discloses
//! nothing about the upstream's internals. `respond` renders it as
//! `application/problem+json` (RFC 9457).

mod text;

use std::time::Duration;

use http::header::{ALLOW, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use crate::client_tokens::TokenFault;
use crate::limit;
use crate::reason::Reason;
use crate::trace::context::TraceId;
use crate::upstream::Failure;
use crate::validate::Invalid;
use crate::wire::head::HeadFault;
use crate::wire::{PROXY_STATUS, RATELIMIT, RATELIMIT_POLICY};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The head of the request is malformed, too large or too slow.
    Head(HeadFault),
    /// The target is in authority or asterisk form, or in an absolute form with
    /// userinfo or another scheme than http and https (RFC 9112 §3.2).
    TargetForm,
    /// No route has this path.
    NoRoute,
    /// The route does not take the method.
    Method {
        /// The methods that it takes.
        allow: HeaderValue,
    },
    /// The request has a body, and its route takes none.
    Body,
    /// A parameter is invalid.
    Invalid(Invalid),
    /// There is no valid client token.
    Token(TokenFault),
    /// The client token is not for pages of the request's origin.
    TokenOrigin,
    /// The client has exceeded its request rate.
    TooMany(limit::TooMany),
    /// The client has exceeded its rate of requests to the upstream.
    TooManyMisses(limit::TooMany),
    /// All connections together exceed their limit.
    TooManyConnections,
    /// The client exceeds its limit of connections.
    TooManyClientConnections,
    /// The client accepts only a stored response (RFC 9111 §5.2.1.7), and none may
    /// be used.
    OnlyIfCached,
    /// The request has already passed through this process, according to its `via`
    /// (RFC 9110 §7.6.3).
    Loop,
    /// The request to the upstream failed, or could not be sent.
    Upstream(Failure),
}

/// The body of a refusal: the members of RFC 9457, `error`, which clients of the API
/// read, and `reason`, which programs may compare.
#[derive(Debug, Serialize)]
pub(crate) struct ProblemDetails<'a> {
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
    reason: Reason,
    #[serde(rename = "request_id")]
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

impl Refusal {
    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Head(fault) => head_status(*fault),
            Self::TargetForm | Self::Body | Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Token(_) => StatusCode::UNAUTHORIZED,
            Self::TokenOrigin => StatusCode::FORBIDDEN,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooMany(_) | Self::TooManyMisses(_) | Self::TooManyClientConnections => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::TooManyConnections => StatusCode::SERVICE_UNAVAILABLE,
            Self::OnlyIfCached => StatusCode::GATEWAY_TIMEOUT,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::Upstream(failure) => failure.client_status(),
        }
    }

    /// Adds the fields of this refusal.
    pub(crate) fn fields(&self, fields: &mut HeaderMap) {
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
            Self::Token(fault) => {
                let challenge = HeaderValue::from_static(challenge(*fault));
                fields.insert(WWW_AUTHENTICATE, challenge);
            }
            Self::TooMany(too_many) => {
                fields.insert(RATELIMIT, too_many.field());
            }
            Self::TooManyMisses(too_many) => {
                let (policy, left) = too_many.fields_of_misses();
                fields.insert(RATELIMIT_POLICY, policy);
                fields.insert(RATELIMIT, left);
            }
            Self::Upstream(failure) => {
                if failure.is_of_request_body() {
                    // The rest of the body is not read, so no request can follow.
                    fields.insert(CONNECTION, HeaderValue::from_static("close"));
                }
                fields.insert(PROXY_STATUS, proxy_status(failure));
            }
            Self::TargetForm
            | Self::NoRoute
            | Self::Invalid(_)
            | Self::TokenOrigin
            | Self::OnlyIfCached
            | Self::Loop => {}
        }
        if let Some(seconds) = self.retry_after() {
            fields.insert(RETRY_AFTER, seconds.into());
        }
    }

    /// After how many seconds to try again.
    fn retry_after(&self) -> Option<u64> {
        let ceil = |time: &Duration| {
            time.as_millis()
                .div_ceil(1000)
                .try_into()
                .unwrap_or(u64::MAX)
        };
        match self {
            Self::TooMany(too_many) | Self::TooManyMisses(too_many) => Some(too_many.retry_after),
            Self::TooManyConnections | Self::TooManyClientConnections => Some(1),
            Self::Upstream(failure) => {
                let retry_after = failure.retry_after.as_ref();
                retry_after.map(|retry_after| u64::max(1, ceil(retry_after)))
            }
            Self::Head(_)
            | Self::TargetForm
            | Self::NoRoute
            | Self::Method { .. }
            | Self::Body
            | Self::Invalid(_)
            | Self::Token(_)
            | Self::TokenOrigin
            | Self::OnlyIfCached
            | Self::Loop => None,
        }
    }

    /// The body of the response.
    pub(crate) fn problem<'a>(
        &'a self,
        request_id: &'a str,
        trace: Option<TraceId>,
    ) -> ProblemDetails<'a> {
        let invalid = if let Self::Invalid(invalid) = self {
            Some(invalid)
        } else {
            None
        };
        let status = self.status();
        ProblemDetails {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: self.detail(),
            error: self.detail(),
            parameter: invalid.map(|i| &*i.parameter),
            received: invalid.map(|i| &*i.received),
            allowed: invalid.map(|i| &*i.allowed),
            reason: self.reason(),
            request_id,
            trace_id: trace.map(|id| id.to_string()),
        }
    }

    /// The word for it.
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Head(fault) => fault.reason(),
            Self::TargetForm => Reason::BadTarget,
            Self::NoRoute => Reason::NoRoute,
            Self::Method { .. } => Reason::Method,
            Self::Body => Reason::Body,
            Self::Invalid(_) => Reason::Invalid,
            Self::Token(TokenFault::Missing) => Reason::NoToken,
            Self::Token(TokenFault::Unknown) => Reason::UnknownToken,
            Self::Token(TokenFault::Expired) => Reason::ExpiredToken,
            Self::TokenOrigin => Reason::TokenOrigin,
            Self::TooMany(_) => Reason::Limited,
            Self::TooManyMisses(_) => Reason::LimitedMisses,
            Self::TooManyConnections => Reason::TooManyConnections,
            Self::TooManyClientConnections => Reason::TooManyClientConnections,
            Self::OnlyIfCached => Reason::OnlyIfCached,
            Self::Loop => Reason::Loop,
            Self::Upstream(failure) => failure.reason,
        }
    }
}

/// `www-authenticate` (RFC 6750 §3). It has no error where there is no token.
const fn challenge(fault: TokenFault) -> &'static str {
    match fault {
        TokenFault::Missing => "Bearer realm=\"ordgate\"",
        TokenFault::Unknown => {
            "Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token is unknown\""
        }
        TokenFault::Expired => {
            "Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token has expired\""
        }
    }
}

/// The status for a head at fault.
fn head_status(fault: HeadFault) -> StatusCode {
    match fault {
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
        | HeadFault::BadTarget
        | HeadFault::AuthorityMismatch => StatusCode::BAD_REQUEST,
    }
}

/// `proxy-status` (RFC 9209): the type of the error, and the upstream's status.
fn proxy_status(failure: &Failure) -> HeaderValue {
    let mut text = format!("ordgate; error={}", failure.error());
    if let Some(status) = failure.received {
        text.push_str(&format!("; received-status={}", status.as_u16()));
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("ordgate"))
}

#[cfg(test)]
mod tests;
