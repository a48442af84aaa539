//! Why a request was refused, or why the upstream's answer is missing: one table with a
//! word, a status and a text for each reason.
//!
//! The word is in the access log, in metrics, in `/status`, in `cache-status` and in problem
//! documents. The text is for the client. It discloses nothing about the upstream's
//! internals; the log has the rest. `refusal` adds what a single case has to say, such as a
//! parameter.

use http::StatusCode;
use serde::{Serialize, Serializer};

macro_rules! reasons {
    ($($variant:ident = $word:literal, $status:literal, $text:literal;)+) => {
        /// Why a request was refused, or failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $text] $variant,)+
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            const fn row(self) -> (&'static str, u16, &'static str) {
                match self {
                    $(Self::$variant => ($word, $status, $text),)+
                }
            }
        }
    };
}

reasons! {
    // The request.
    MalformedFraming = "malformed_framing", 400, "Transfer-Encoding must be chunked, once, and is not for GET and HEAD";
    BadHost = "bad_host", 400, "A request must have one Host field, of the form host or host:port, which names the same as :authority";
    BadTarget = "bad_target", 400, "The request target must be in origin form, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL without userinfo";
    TargetTooLong = "target_too_long", 414, "The request target is too long";
    Upgrade = "upgrade", 501, "The connection cannot be upgraded to another protocol; send the request without the Upgrade field";
    NoRoute = "no_route", 404, "There is no such path; /openapi.json lists all paths";
    Method = "method", 405, "This path does not take the method";
    Body = "body", 400, "This request must not have a body";
    Invalid = "invalid", 400, "A parameter is invalid";
    OnlyIfCached = "only_if_cached", 504, "The request has only-if-cached, and no stored response may be used";
    Loop = "loop", 508, "This request has already passed through this gateway, according to its via field: upstream.url, or a proxy behind it, leads back here; the operator must change that";
    RequestBodyBroken = "request_body_broken", 400, "The request's body ended before its end, or its chunked framing is malformed; send it whole";
    RequestBodyTooSlow = "request_body_too_slow", 408, "The request's body came too slowly; send it faster, or in smaller requests";
    RequestBodyTooLarge = "request_body_too_large", 413, "The request's body is larger than this gateway accepts";
    RequestBodyNoRoom = "request_body_no_room", 503, "Too many request bodies are being received; send fewer at once";
    // The client.
    NoToken = "no_token", 401, "A token is needed; send it as authorization: Bearer TOKEN, or in x-api-key";
    UnknownToken = "unknown_token", 401, "The token is unknown: it is mistyped, or it has been revoked";
    ExpiredToken = "expired_token", 401, "The token has expired; ask the operator for another";
    TokenOrigin = "token_origin", 403, "The token may not be used by pages of this origin; the operator lists the origins of each token";
    Limited = "limited", 429, "You have sent more requests than one client may";
    LimitedMisses = "limited_misses", 429, "You have sent more requests to the upstream than one client may; cached answers are still served";
    // Not sent to the upstream.
    OverBudget = "over_budget", 503, "This gateway's budget of upstream requests is spent";
    NoSlot = "no_slot", 503, "Too many upstream requests are in flight, and others had precedence";
    BreakerOpen = "breaker_open", 503, "The upstream does not answer, and gets no requests until it does";
    Unconfirmed = "unconfirmed", 503, "It is not known yet whether the blocks that an earlier run has stored stand";
    // No connection to the upstream.
    ConnectionRefused = "connection_refused", 502, "The upstream cannot be reached: it refuses connections";
    Tls = "tls", 502, "No TLS connection to the upstream is possible; the operator must act";
    TlsCertificate = "tls_certificate", 502, "No trusted TLS connection to the upstream is possible; the operator must act";
    Dns = "dns", 502, "The upstream cannot be reached: its name does not resolve";
    Unreachable = "unreachable", 502, "The upstream cannot be reached";
    ConnectTimeout = "connect_timeout", 504, "The upstream did not accept a connection in time";
    // No usable answer of the upstream.
    UpstreamTimeout = "upstream_timeout", 504, "The upstream did not answer in time";
    UpstreamBodyTimeout = "upstream_body_timeout", 504, "The upstream's answer came too slowly";
    ConnectionClosed = "connection_closed", 502, "The upstream closed the connection without an answer";
    Truncated = "truncated", 502, "The upstream's answer broke off";
    AnswerTooLarge = "answer_too_large", 502, "The upstream's answer is larger than this gateway accepts";
    NotHttp = "not_http", 502, "The upstream's answer is not HTTP";
    NotJson = "not_json", 502, "The upstream's answer is not JSON";
    AnswerWithheld = "answer_withheld", 502, "The upstream's answer contains something that must not be passed on; the operator must act";
    Redirect = "redirect", 502, "The upstream redirects, which this gateway does not follow";
    ServerError = "server_error", 502, "The upstream failed";
    UpstreamAnswer = "upstream_answer", 502, "The upstream answered with an error, which is passed on as it is";
    UnexpectedStatus = "unexpected_status", 502, "The upstream's answer has an unexpected status";
    KeyRefused = "key_refused", 502, "The upstream does not accept this gateway's credentials; the operator must act";
    TargetRefused = "target_refused", 502, "The upstream refuses this request, though it accepts this gateway's credentials";
    WrongUpstream = "wrong_upstream", 502, "The upstream has no such path, so it may be the wrong server for this route; the operator must act";
    Throttled = "throttled", 503, "The upstream wants fewer requests";
    Retired = "retired", 502, "The upstream has been retired; the operator must act";
    // The gateway.
    Outdated = "outdated", 503, "The chain is being reorganized, and every answer was outdated on arrival";
    Internal = "internal", 500, "This gateway failed during the request";
}

impl Reason {
    /// The word.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The status of the response.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What a client needs to know: what came, what is allowed, and what to do.
    pub(crate) const fn text(self) -> &'static str {
        self.row().2
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_reason_is_one_word_of_its_own() {
        let mut names = BTreeSet::new();
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            let name = reason.name();
            assert!(names.insert(name), "{name} is there twice");
            let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(name.bytes().all(is_letter), "{name}");
        }
    }
}
