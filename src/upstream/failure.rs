//! How requests to the upstream fail. A [`Failure`] has one word for its reason; [`traits`]
//! says for each reason its name in `proxy-status`, and whether another attempt may help.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::pool::ConnectionError;
use crate::reason::Reason;
use crate::wire::body::BodyError;

/// How a request to the upstream has failed, or why it was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason.name())]
pub struct Failure {
    /// The word for it.
    pub reason: Reason,
    /// The status of the upstream's answer, where that is what is wrong.
    pub received: Option<StatusCode>,
    /// When to try again, where that is known.
    pub retry_after: Option<Duration>,
    /// The base URL that was tried, if one was.
    pub endpoint: Option<Arc<str>>,
    /// The texts of the error and its causes, where there was one.
    pub(crate) cause: Option<Arc<str>>,
}

/// What another attempt after a failure could be useful with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Nothing: it would fail again, or must not be repeated.
    Never,
    /// Another key, or another host.
    OtherKey,
    /// Another base URL.
    Elsewhere,
    /// Another base URL, or the same again.
    Anywhere,
}

use Retry::{Anywhere, Elsewhere, Never, OtherKey};

/// What follows from a reason: its error type of RFC 9209 §2.3, and what another
/// attempt could be useful with.
#[rustfmt::skip]
#[expect(clippy::wildcard_enum_match_arm, reason = "the other reasons are of no upstream")]
const fn traits(reason: Reason) -> (&'static str, Retry) {
    match reason {
        // Not sent.
        Reason::OverBudget | Reason::NoSlot =>
            ("connection_limit_reached", Never),
        Reason::BreakerOpen => ("destination_unavailable", Never),
        // No connection.
        Reason::ConnectionRefused => ("connection_refused", Anywhere),
        Reason::Dns => ("dns_error", Anywhere),
        Reason::Unreachable => ("destination_unavailable", Anywhere),
        Reason::ConnectTimeout => ("connection_timeout", Elsewhere),
        Reason::Tls => ("tls_protocol_error", Elsewhere),
        Reason::TlsCertificate => ("tls_certificate_error", Elsewhere),
        // No answer, or a part of one.
        Reason::UpstreamTimeout => ("http_response_timeout", Elsewhere),
        Reason::UpstreamBodyTimeout => ("connection_read_timeout", Elsewhere),
        Reason::ConnectionClosed => ("connection_terminated", Anywhere),
        Reason::Truncated => ("http_response_incomplete", Anywhere),
        Reason::AnswerTooLarge => ("http_response_body_size", Never),
        // An answer that is not passed on.
        Reason::NotHttp | Reason::NotJson | Reason::Redirect | Reason::ServerError
        | Reason::UnexpectedStatus => ("http_protocol_error", Elsewhere),
        Reason::AnswerWithheld | Reason::TargetRefused => ("http_protocol_error", Never),
        Reason::KeyRefused => ("http_protocol_error", OtherKey),
        Reason::Throttled => ("http_protocol_error", OtherKey),
        Reason::Retired => ("http_protocol_error", Elsewhere),
        // Another base URL may have the route; but one without it must not be hidden.
        Reason::WrongUpstream => ("destination_not_found", Never),
        // The client's request body.
        Reason::RequestBodyBroken => ("http_request_error", Never),
        Reason::RequestBodyTooSlow => ("http_request_error", Never),
        Reason::RequestBodyTooLarge => ("http_request_error", Never),
        Reason::RequestBodyNoRoom => ("proxy_internal_response", Never),
        _ => ("proxy_internal_error", Never),
    }
}

impl Failure {
    /// A failure of which no more is known.
    pub const fn new(reason: Reason) -> Self {
        Self {
            reason,
            received: None,
            retry_after: None,
            endpoint: None,
            cause: None,
        }
    }

    /// A failure that may be over after a time.
    pub fn until(reason: Reason, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(reason)
        }
    }

    /// An answer with a status that is not passed on.
    pub fn status(reason: Reason, received: StatusCode) -> Self {
        Self {
            received: Some(received),
            ..Self::new(reason)
        }
    }

    /// The same, with the text of what has caused it.
    pub(super) fn because(self, cause: &str) -> Self {
        Self {
            cause: Some(cause.into()),
            ..self
        }
    }

    /// Why a response body has broken off.
    pub fn of_body(error: &BodyError) -> Self {
        let known = error.downcast_ref::<Self>();
        known.cloned().unwrap_or(Self::new(Reason::Truncated))
    }

    /// Its error type of RFC 9209 §2.3.
    pub fn error(&self) -> &'static str {
        traits(self.reason).0
    }

    /// What another attempt could be useful with.
    pub(super) fn retry(&self) -> Retry {
        let is_client_error = self.received.is_some_and(|status| status.is_client_error());
        let is_gateway_error = |status: StatusCode| matches!(status.as_u16(), 502..=504);
        match traits(self.reason).1 {
            Elsewhere if self.reason == Reason::UnexpectedStatus && is_client_error => Never,
            Elsewhere
                if self.reason == Reason::ServerError
                    && self.retry_after.is_none()
                    && self.received.is_some_and(is_gateway_error) =>
            {
                Anywhere
            }
            retry @ (Never | OtherKey | Elsewhere | Anywhere) => retry,
        }
    }

    /// Whether the endpoint is at fault, rather than the target, the key or ordgate.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        matches!(self.retry(), Elsewhere | Anywhere)
    }

    /// Whether a request of another client might have been admitted.
    pub fn is_of_client(&self) -> bool {
        matches!(self.reason, Reason::OverBudget | Reason::NoSlot)
    }

    /// Whether it is a fault of the client's request body.
    pub fn is_of_request_body(&self) -> bool {
        matches!(
            self.reason,
            Reason::RequestBodyBroken
                | Reason::RequestBodyTooSlow
                | Reason::RequestBodyTooLarge
                | Reason::RequestBodyNoRoom
        )
    }
}

/// The reason of a connection's error.
pub(super) fn classify(error: &ConnectionError) -> Reason {
    // hyper-util has no other sign of it.
    if links(error).any(|link| link.to_string() == "dns error") {
        return Reason::Dns;
    }
    match beneath::<rustls::Error>(error) {
        Some(rustls::Error::InvalidCertificate(_)) => return Reason::TlsCertificate,
        Some(_) => return Reason::Tls,
        None => {}
    }
    let hyper = beneath::<hyper::Error>(error);
    if hyper.is_some_and(hyper::Error::is_parse) {
        return Reason::NotHttp;
    }
    let errors = links(error).filter_map(|link| link.downcast_ref::<io::Error>());
    let mut kinds = errors.map(io::Error::kind);
    let kind = kinds.find(|kind| *kind != io::ErrorKind::Other);
    match kind {
        _ if !error.is_connect => Reason::ConnectionClosed,
        Some(io::ErrorKind::TimedOut) => Reason::ConnectTimeout,
        Some(io::ErrorKind::ConnectionRefused) => Reason::ConnectionRefused,
        _ => Reason::Unreachable,
    }
}

/// What to look at, for reasons whose error does not say it by itself.
pub(crate) fn hint(reason: Reason) -> Option<&'static str> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the others say it by themselves"
    )]
    Some(match reason {
        Reason::Tls => {
            "the server and ordgate do not agree about TLS: check whether it serves TLS at this port (a URL with http:// is without), its versions, and that it requires no client certificate, which ordgate does not have"
        }
        Reason::TlsCertificate => {
            "the server's certificate is not trusted: check its names and dates, and ca_file if its authority is your own"
        }
        Reason::NotHttp | Reason::ConnectionClosed => {
            "if that happens to each request, check whether the server expects TLS at this port (a URL with https://)"
        }
        Reason::NotJson => {
            "what came is no JSON: check whether this is the right server, and its URL's scheme, port and path"
        }
        Reason::Retired => {
            "the server answers 410 Gone: it has been retired, and another is needed; final answers in the cache are still served"
        }
        Reason::KeyRefused => {
            "the server refuses the API key, or requests without one: check ORDGATE_API_KEYS or upstream.api_keys_file"
        }
        Reason::WrongUpstream => {
            "a 404 of a web framework, with statusCode and message, and not the API's: check whether this is the right server (the reference indexer serves ordinals and runes as two servers on two ports, each of which needs an upstream of its own, [upstreams.NAME]), whether its URL has the right path, and the route's upstream_path or the tip's path"
        }
        _ => return None,
    })
}

/// The texts of an error and of its causes, the outermost first, without repetitions.
pub(super) fn texts(error: &(dyn StdError + 'static)) -> String {
    let mut texts: Vec<_> = links(error).map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ").replace(char::is_control, " ")
}

/// The first error of a type in a chain of causes.
fn beneath<'e, T: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e T> {
    links(error).find_map(|link| link.downcast_ref::<T>())
}

/// An error and its causes. The source of an `io::Error` is the source of the error
/// that it wraps, so that one is inserted.
fn links<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'e (dyn StdError + 'static) = *error;
        let wrapped = error.downcast_ref::<io::Error>();
        match wrapped.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_the_upstream_is_in_the_table() {
        let of_upstream = Reason::ALL.iter();
        let of_upstream = of_upstream.skip_while(|reason| **reason != Reason::OverBudget);
        // These are of ordgate itself, or said of answers.
        let others = [
            Reason::Unconfirmed,
            Reason::Outdated,
            Reason::UpstreamAnswer,
            Reason::Internal,
        ];
        for reason in of_upstream.filter(|reason| !others.contains(reason)) {
            assert_ne!(
                traits(*reason),
                traits(Reason::Internal),
                "{}",
                reason.name()
            );
        }
    }

    #[test]
    fn a_repeated_request_may_succeed_after_some_statuses() {
        let of = |status: u16, retry_after| Failure {
            received: StatusCode::from_u16(status).ok(),
            retry_after,
            ..Failure::new(Reason::ServerError)
        };
        assert_eq!(of(500, None).retry(), Elsewhere);
        assert_eq!(of(503, None).retry(), Anywhere);
        let told = of(503, Some(Duration::from_secs(9)));
        assert_eq!(told.retry(), Elsewhere);
        let unexpected = |status| Failure::status(Reason::UnexpectedStatus, status);
        assert_eq!(unexpected(StatusCode::UPGRADE_REQUIRED).retry(), Never);
        assert_eq!(unexpected(StatusCode::PARTIAL_CONTENT).retry(), Elsewhere);
    }
}
