//! Refusals: all reasons why a request gets no answer from the upstream or the
//! cache, with the status, fields and text of each.
//!
//! The text says what was received, what is allowed and what to do, and discloses
//! nothing about the upstream's internals. `respond` renders it as
//! `application/problem+json` (RFC 9457).

use std::time::Duration;

use http::header::{ALLOW, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use crate::client_tokens::TokenFault;
use crate::limit;
use crate::reason::Reason;
use crate::trace::context::TraceId;
use crate::upstream::Failure;
use crate::upstream::keys::UNKNOWN;
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
    /// The status of the response, and the word for it.
    const fn row(&self) -> (u16, Reason) {
        match self {
            Self::Head(fault) => (head(*fault).0, fault.reason()),
            Self::TargetForm => (400, Reason::BadTarget),
            Self::NoRoute => (404, Reason::NoRoute),
            Self::Method { .. } => (405, Reason::Method),
            Self::Body => (400, Reason::Body),
            Self::Invalid(_) => (400, Reason::Invalid),
            Self::Token(TokenFault::Missing) => (401, Reason::NoToken),
            Self::Token(TokenFault::Unknown) => (401, Reason::UnknownToken),
            Self::Token(TokenFault::Expired) => (401, Reason::ExpiredToken),
            Self::TokenOrigin => (403, Reason::TokenOrigin),
            Self::TooMany(_) => (429, Reason::Limited),
            Self::TooManyMisses(_) => (429, Reason::LimitedMisses),
            Self::TooManyConnections => (503, Reason::TooManyConnections),
            Self::TooManyClientConnections => (429, Reason::TooManyClientConnections),
            Self::OnlyIfCached => (504, Reason::OnlyIfCached),
            Self::Loop => (508, Reason::Loop),
            Self::Upstream(failure) => (500, failure.reason),
        }
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        if let Self::Upstream(failure) = self {
            return failure.client_status();
        }
        StatusCode::from_u16(self.row().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The word for it.
    pub(crate) const fn reason(&self) -> Reason {
        self.row().1
    }

    /// What was received, what is allowed and what to do.
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::Head(fault) => head(*fault).1.to_owned(),
            Self::TargetForm => "The request target must be in origin form, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL without userinfo".to_owned(),
            Self::NoRoute => "There is no such path; /openapi.json lists all paths".to_owned(),
            Self::Method { allow } => {
                let allow = allow.to_str().unwrap_or("GET");
                format!("This path takes {allow}")
            }
            Self::Body => "This request must not have a body".to_owned(),
            Self::Invalid(invalid) => invalid.to_string(),
            Self::Token(fault) => token(*fault).to_owned(),
            Self::TokenOrigin => "The token may not be used by pages of this origin; the operator lists the origins of each token".to_owned(),
            Self::TooMany(too_many) => format!(
                "You have sent more requests than one client may; try again in {} s",
                too_many.retry_after
            ),
            Self::TooManyMisses(too_many) => format!(
                "You have sent more requests to the upstream than the {} a minute that one client may send; try again in {} s; cached answers are still served",
                too_many.burst, too_many.retry_after
            ),
            Self::OnlyIfCached => {
                "The request has only-if-cached, and no stored response may be used".to_owned()
            }
            Self::Loop => "This request has already passed through this gateway, according to its via field: upstream.url, or a proxy behind it, leads back here; the operator must change that".to_owned(),
            Self::TooManyConnections => "Too many connections; try again in 1 s".to_owned(),
            Self::TooManyClientConnections => "You have more connections open than one client may have; close some, or try again in 1 s".to_owned(),
            Self::Upstream(failure) if failure.reason == Reason::BudgetUnknown => format!(
                "What was spent of this gateway's budget of upstream requests is not known, since {UNKNOWN}: it counts as spent; try again when retry-after says"
            ),
            Self::Upstream(failure) => upstream(failure).to_owned(),
        }
    }

    /// Whether the connection closes after it: where the next request begins is not known,
    /// or there are too many.
    fn closes(&self) -> bool {
        if let Self::Upstream(failure) = self {
            return failure.is_of_request_body();
        }
        matches!(self, Self::Head(_) | Self::Body) || self.is_of_connections()
    }

    /// Whether there are too many connections.
    const fn is_of_connections(&self) -> bool {
        matches!(
            self,
            Self::TooManyConnections | Self::TooManyClientConnections
        )
    }

    /// Adds the fields of this refusal.
    pub(crate) fn fields(&self, fields: &mut HeaderMap) {
        if self.closes() {
            fields.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let mut retry_after = self.is_of_connections().then_some(1);
        if let Self::Method { allow } = self {
            fields.insert(ALLOW, allow.clone());
        }
        if let Self::Token(fault) = self {
            let challenge = HeaderValue::from_static(challenge(*fault));
            fields.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Self::TooMany(too_many) = self {
            fields.insert(RATELIMIT, too_many.field());
            retry_after = Some(too_many.retry_after);
        }
        if let Self::TooManyMisses(too_many) = self {
            let (policy, left) = too_many.fields_of_misses();
            fields.insert(RATELIMIT_POLICY, policy);
            fields.insert(RATELIMIT, left);
            retry_after = Some(too_many.retry_after);
        }
        if let Self::Upstream(failure) = self {
            fields.insert(PROXY_STATUS, proxy_status(failure));
            let seconds = |time: Duration| time.as_millis().div_ceil(1000).max(1);
            let seconds = failure.retry_after.map(seconds);
            retry_after = seconds.map(|seconds| u64::try_from(seconds).unwrap_or(u64::MAX));
        }
        if let Some(seconds) = retry_after {
            fields.insert(RETRY_AFTER, seconds.into());
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

/// The status and the text for a head at fault.
const fn head(fault: HeadFault) -> (u16, &'static str) {
    match fault {
        HeadFault::BareLf => (
            400,
            "A line of the message ends in LF alone; lines end in CRLF",
        ),
        HeadFault::BareCr => (400, "A line of the message holds a CR that no LF follows"),
        HeadFault::ObsFold => (400, "A field line is folded; each field stands on one line"),
        HeadFault::BadFieldLine => (
            400,
            "A field line is not name:value, without a blank before the colon and without control characters; in HTTP/2, a value has no blanks around it",
        ),
        HeadFault::TwoFramings => (
            400,
            "The message has both Content-Length and Transfer-Encoding; send one",
        ),
        HeadFault::BadContentLength => (400, "Content-Length must come once, as decimal digits"),
        HeadFault::BadTransferEncoding => (
            400,
            "Transfer-Encoding must be chunked, once, in HTTP/1.1, and is not for GET and HEAD",
        ),
        HeadFault::BadChunk => (400, "The chunked framing is malformed"),
        HeadFault::HostMissing => (400, "An HTTP/1.1 request must have a Host field"),
        HeadFault::HostInvalid => (
            400,
            "A request must have one Host field, of the form host or host:port",
        ),
        HeadFault::BadRequestLine => (
            400,
            "The request line must be: method, blank, target, blank, HTTP/1.1",
        ),
        HeadFault::BadTarget => (
            400,
            "The request target has a fragment, or a character that must be percent-encoded",
        ),
        HeadFault::BadVersion => (505, "The version must be HTTP/1.1 or HTTP/1.0"),
        HeadFault::TargetTooLong => (414, "The request target is too long"),
        HeadFault::HeadTooLarge => (431, "The request's head is too large"),
        HeadFault::HeadTooSlow => (408, "The request's head did not arrive in time"),
        HeadFault::Upgrade => (
            501,
            "The connection cannot be upgraded to another protocol; send the request without the Upgrade field",
        ),
        HeadFault::AuthorityMismatch => (400, ":authority and Host must name the same"),
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

fn token(fault: TokenFault) -> &'static str {
    match fault {
        TokenFault::Missing => {
            "A token is needed; send it as authorization: Bearer TOKEN, or in x-api-key"
        }
        TokenFault::Unknown => "The token is unknown: it is mistyped, or it has been revoked",
        TokenFault::Expired => "The token has expired; ask the operator for another",
    }
}

/// What a client needs to know about a failure of the upstream. The log has the
/// rest.
fn upstream(failure: &Failure) -> &'static str {
    let comes_back = failure.retry_after.is_some();
    let texts = [
        (
            Reason::OverBudget,
            "This gateway's budget of upstream requests is spent; try again when retry-after says",
        ),
        (
            Reason::Throttled,
            "The upstream wants fewer requests; try again when retry-after says",
        ),
        (
            Reason::NoSlot,
            "Too many upstream requests are in flight; try again in 1 s",
        ),
        (
            Reason::BreakerOpen,
            "The upstream does not answer, and gets no requests until it does; try again when retry-after says",
        ),
        (
            Reason::TlsClientCertificate,
            "The upstream requires a TLS client certificate, which this gateway does not have; the operator must act",
        ),
        (
            Reason::Tls,
            "No trusted TLS connection to the upstream is possible; the operator must act",
        ),
        (
            Reason::TlsCertificate,
            "No trusted TLS connection to the upstream is possible; the operator must act",
        ),
        (Reason::ConnectionRefused, "The upstream cannot be reached"),
        (Reason::Dns, "The upstream cannot be reached"),
        (Reason::Unreachable, "The upstream cannot be reached"),
        (
            Reason::ConnectTimeout,
            "The upstream did not answer in time",
        ),
        (
            Reason::UpstreamTimeout,
            "The upstream did not answer in time",
        ),
        (
            Reason::UpstreamBodyTimeout,
            "The upstream did not answer in time",
        ),
        (
            Reason::ConnectionClosed,
            "The upstream closed the connection without an answer",
        ),
        (Reason::Truncated, "The upstream's answer broke off"),
        (
            Reason::AnswerTooLarge,
            "The upstream's answer is larger than this gateway accepts",
        ),
        (Reason::NotHttp, "The upstream's answer is not HTTP"),
        (Reason::NotJson, "The upstream's answer is not JSON"),
        (
            Reason::AnswerWithheld,
            "The upstream's answer contains something that must not be passed on; the operator must act",
        ),
        (
            Reason::Redirect,
            "The upstream redirects, which this gateway does not follow",
        ),
        (
            Reason::ServerError,
            if comes_back {
                "The upstream is unavailable for a while; try again when retry-after says"
            } else {
                "The upstream failed"
            },
        ),
        (
            Reason::UnexpectedStatus,
            "The upstream's answer has an unexpected status",
        ),
        (
            Reason::KeyRefused,
            "The upstream does not accept this gateway's credentials; the operator must act",
        ),
        (
            Reason::TargetRefused,
            "The upstream refuses this request, though it accepts this gateway's credentials",
        ),
        (
            Reason::WrongUpstream,
            "The upstream has no such path, so it may be the wrong server for this route; the operator must act",
        ),
        (
            Reason::Retired,
            "The upstream has been retired; the operator must act",
        ),
        (
            Reason::RequestBodyBroken,
            "The request's body ended before its end, or its chunked framing is malformed; send it whole",
        ),
        (
            Reason::RequestBodyTooSlow,
            "The request's body came too slowly; send it faster, or in smaller requests",
        ),
        (
            Reason::RequestBodyTooLarge,
            "The request's body is larger than this gateway accepts",
        ),
        (
            Reason::RequestBodyNoRoom,
            "Too many request bodies are being received; try again in 1 s, with fewer at once",
        ),
        (
            Reason::Outdated,
            "The chain is being reorganized, and every answer was outdated on arrival; try again in 1 s",
        ),
    ];
    let found = texts.iter().find(|(reason, _)| *reason == failure.reason);
    found.map_or(
        "This gateway failed during its request to the upstream",
        |(_, text)| text,
    )
}

#[cfg(test)]
mod tests;
