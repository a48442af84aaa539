//! Why a request was refused, or why the upstream's answer is missing, as one word. The
//! same word is in the access log, in metrics, in `/status` and in problem documents.
//!
//! Refusals and failures have details beside it, such as a parameter or a status; each
//! has one of these words.

use serde::{Serialize, Serializer};

macro_rules! reasons {
    ($($(#[$doc:meta])+ $variant:ident = $word:literal,)+) => {
        /// Why a request was refused, or failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])+ $variant,)+
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

reasons! {
    // The request.
    /// Its head is not well-formed HTTP.
    MalformedHead = "malformed_head",
    /// Where its body ends is ambiguous or malformed.
    MalformedFraming = "malformed_framing",
    /// Its Host is missing, invalid, or ambiguous.
    BadHost = "bad_host",
    /// Its target is malformed, or in a form that is not accepted.
    BadTarget = "bad_target",
    /// Its version of HTTP is not supported.
    BadVersion = "bad_version",
    /// Its target is too long.
    TargetTooLong = "target_too_long",
    /// Its head is too large.
    HeadTooLarge = "head_too_large",
    /// Its head was not complete in time.
    HeadTooSlow = "head_too_slow",
    /// It asks for another protocol.
    Upgrade = "upgrade",
    /// No route has its path.
    NoRoute = "no_route",
    /// Its route does not take the method.
    Method = "method",
    /// It has a body, and its route takes none.
    Body = "body",
    /// A parameter is invalid.
    Invalid = "invalid",
    /// It has only-if-cached, and no stored response may be used.
    OnlyIfCached = "only_if_cached",
    /// It has already passed through this process.
    Loop = "loop",
    /// Its body is truncated, or its framing is malformed.
    RequestBodyBroken = "request_body_broken",
    /// Its body comes too slowly.
    RequestBodyTooSlow = "request_body_too_slow",
    /// Its body is too large.
    RequestBodyTooLarge = "request_body_too_large",
    /// The buffers for request bodies are full.
    RequestBodyNoRoom = "request_body_no_room",
    // The client.
    /// It has no token, and one is required.
    NoToken = "no_token",
    /// Its token is unknown.
    UnknownToken = "unknown_token",
    /// Its token has expired.
    ExpiredToken = "expired_token",
    /// Its token is not for pages of its origin.
    TokenOrigin = "token_origin",
    /// The client has exceeded its rate of requests.
    Limited = "limited",
    /// The client has exceeded its rate of requests to the upstream.
    LimitedMisses = "limited_misses",
    /// All connections together exceed their limit.
    TooManyConnections = "too_many_connections",
    /// The client has too many connections.
    TooManyClientConnections = "too_many_client_connections",
    // Not sent to the upstream.
    /// The budget of the API keys is spent.
    OverBudget = "over_budget",
    /// What was spent of the budget before the start is not known.
    BudgetUnknown = "budget_unknown",
    /// No slot among the requests in flight was free in time; or others in the queue had
    /// precedence.
    NoSlot = "no_slot",
    /// The breaker is open.
    BreakerOpen = "breaker_open",
    /// It is not known yet whether the blocks that an earlier run has stored stand.
    Unconfirmed = "unconfirmed",
    // No connection to the upstream.
    /// The connection was refused.
    ConnectionRefused = "connection_refused",
    /// The TLS handshake failed.
    Tls = "tls",
    /// The upstream requires a TLS client certificate.
    TlsClientCertificate = "tls_client_certificate",
    /// The upstream's certificate is not trusted.
    TlsCertificate = "tls_certificate",
    /// The upstream's name does not resolve.
    Dns = "dns",
    /// The upstream cannot be reached.
    Unreachable = "unreachable",
    /// No connection in time.
    ConnectTimeout = "connect_timeout",
    // No usable answer of the upstream.
    /// It did not answer in time.
    UpstreamTimeout = "upstream_timeout",
    /// The body of its answer came too slowly.
    UpstreamBodyTimeout = "upstream_body_timeout",
    /// It closed the connection without an answer.
    ConnectionClosed = "connection_closed",
    /// Its answer is truncated.
    Truncated = "truncated",
    /// Its answer is too large.
    AnswerTooLarge = "answer_too_large",
    /// Its answer is not HTTP.
    NotHttp = "not_http",
    /// Its answer is not JSON.
    NotJson = "not_json",
    /// Its answer contains what must not be passed on.
    AnswerWithheld = "answer_withheld",
    /// It redirects.
    Redirect = "redirect",
    /// It answers with a server error.
    ServerError = "server_error",
    /// It answers with an error, which is passed on as it is.
    UpstreamAnswer = "upstream_answer",
    /// It answers with a status that the API does not use.
    UnexpectedStatus = "unexpected_status",
    /// It does not accept the API key.
    KeyRefused = "key_refused",
    /// It refuses the target, although it accepts the API key.
    TargetRefused = "target_refused",
    /// It has no such path: it may be the wrong server.
    WrongUpstream = "wrong_upstream",
    /// It wants fewer requests.
    Throttled = "throttled",
    /// It has been retired.
    Retired = "retired",
    // The gateway.
    /// Each answer was outdated by a reorg or a purge.
    Outdated = "outdated",
    /// It failed during the request.
    Internal = "internal",
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
