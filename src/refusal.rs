//! Refusals: why a request gets no answer from the upstream or the cache, with the status,
//! the fields and the text of the response.
//!
//! [`Reason`] has the status and the text of each reason; here is what a single case adds,
//! such as the methods that are allowed or when to try again. `respond` renders it as
//! `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use http::header::{ALLOW, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::limit::{OverLimit, ceil};
use crate::reason::Reason;
use crate::trace::TraceId;
use crate::upstream::Failure;
use crate::validate::Invalid;
use crate::wire::{PROXY_STATUS, RATELIMIT, RATELIMIT_POLICY};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The word for it.
    pub(crate) reason: Reason,
    /// The status of the response.
    pub(crate) status: StatusCode,
    /// What was received, what is allowed and what to do.
    pub(crate) detail: Cow<'static, str>,
    /// The fields that only this refusal has.
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    /// The parameter at fault, if one is.
    invalid: Option<Invalid>,
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        let refusal = Self {
            reason,
            status: reason.status(),
            detail: reason.text().into(),
            fields: Vec::new(),
            invalid: None,
        };
        // RFC 6750 §3. There is no error where there is no token.
        let challenges = [
            (Reason::NoToken, "Bearer realm=\"ordgate\""),
            (
                Reason::UnknownToken,
                "Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token is unknown\"",
            ),
            (
                Reason::ExpiredToken,
                "Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token has expired\"",
            ),
        ];
        if let Some((_, challenge)) = challenges.iter().find(|(of, _)| *of == reason) {
            return refusal.with(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        refusal
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self {
            detail: invalid.to_string().into(),
            invalid: Some(invalid),
            ..Self::from(Reason::Invalid)
        }
    }
}

impl From<Failure> for Refusal {
    /// Where the request to the upstream failed, or could not be sent. `proxy-status`
    /// (RFC 9209) has the type of the error, and the upstream's status.
    fn from(failure: Failure) -> Self {
        let received = failure.received.map(|status| status.as_u16());
        let received = received.map(|status| format!("; received-status={status}"));
        let text = format!(
            "ordgate; error={}{}",
            failure.error(),
            received.unwrap_or_default()
        );
        let text = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("ordgate"));
        let mut refusal = Self::from(failure.reason).with(PROXY_STATUS, text);
        if failure.is_of_request_body() {
            refusal = refusal.closing();
        }
        let Some(time) = failure.retry_after else {
            return refusal;
        };
        if failure.reason == Reason::ServerError {
            refusal.status = StatusCode::SERVICE_UNAVAILABLE;
        }
        refusal.retry_after(ceil(time).max(1))
    }
}

impl Refusal {
    /// The route does not take the method, only these.
    pub(crate) fn method(allow: HeaderValue) -> Self {
        let refusal = Self {
            detail: format!("This path takes {}", allow.to_str().unwrap_or("GET")).into(),
            ..Self::from(Reason::Method)
        };
        refusal.with(ALLOW, allow)
    }

    /// The client has exceeded its rate of requests, or of those to the upstream.
    pub(crate) fn too_many(reason: Reason, too_many: OverLimit) -> Self {
        let refusal = Self::from(reason).with(RATELIMIT_POLICY, too_many.policy);
        let refusal = refusal.with(RATELIMIT, too_many.left);
        refusal.retry_after(too_many.retry_after)
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.fields.push((name, value));
        self
    }

    /// With which the connection closes: where the next request begins is not known.
    pub(crate) fn closing(self) -> Self {
        self.with(CONNECTION, HeaderValue::from_static("close"))
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.detail = format!("{}; try again in {seconds} s", self.detail).into();
        self.with(RETRY_AFTER, seconds.into())
    }

    /// The body of the response: the members of RFC 9457, `error`, which clients of the API
    /// read, and `reason`, which programs may compare.
    pub(crate) fn problem(&self, request_id: &str, trace: Option<TraceId>) -> Value {
        let mut problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "error": self.detail,
            "reason": self.reason,
            "request_id": request_id,
        });
        if let Some(invalid) = &self.invalid {
            problem["parameter"] = json!(invalid.parameter);
            problem["received"] = json!(invalid.received);
            problem["allowed"] = json!(invalid.allowed);
        }
        if let Some(trace) = trace {
            problem["trace_id"] = trace.to_string().into();
        }
        problem
    }
}

#[cfg(test)]
mod tests;
